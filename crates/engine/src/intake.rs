//! Checks requests and prepares them for the scheduler, on the thread of the client.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::error::{EngineError, RequestError};
use crate::request::{PromptOutput, Request, RequestId};
use crate::sequence::Sequence;
use rocmforge_gguf::TokenId;
use rocmforge_plan::{Breakers, SamplingParams};
use rocmforge_runtime::{ContextPolicy, Limits, Output, check_shift};
use rocmforge_text::TextStream;
use rocmforge_text::tokenizer::{Detokenizer, LeadingSpace, Tokenizer};

/// What an engine has to know to accept a request. Shared by all threads that submit.
pub(crate) struct Intake {
    pub(crate) limits: Limits,
    pub(crate) n_vocab: usize,
    pub(crate) tokenizer: Option<Arc<Tokenizer>>,
    next_id: AtomicU64,
    /// The sequence breakers of the last request with DRY. Searching a vocabulary for them takes milliseconds, and
    /// requests seldom differ in them.
    last_breakers: Mutex<Option<(Vec<String>, Arc<Breakers>)>>,
}

impl Intake {
    pub(crate) fn new(limits: Limits, n_vocab: usize, tokenizer: Option<Arc<Tokenizer>>) -> Intake {
        Intake {
            limits,
            n_vocab,
            tokenizer,
            next_id: AtomicU64::new(0),
            last_breakers: Mutex::default(),
        }
    }

    /// Checks a request and makes it a sequence with an id of its own.
    ///
    /// # Errors
    /// [`EngineError::Request`] or [`EngineError::Config`] if the request is invalid.
    pub(crate) fn prepare(&self, mut request: Request) -> Result<Sequence, EngineError> {
        self.check(&request)?;
        SamplingParams::order_bias(&mut request.sampling);
        let text = self.tokenizer.is_some().then(|| {
            let leading_space = match &request.constraint {
                Some(_) => LeadingSpace::Keep,
                None => request.leading_space,
            };
            let detokenizer = Detokenizer::new(request.special_text, leading_space);
            TextStream::new(detokenizer, request.stop.clone())
        });
        let breakers = self.breakers(&request.sampling);
        let policy = self.context_policy(&request);
        let early_sampling = self.early_sampling(&request);
        let id = RequestId(self.next_id.fetch_add(1, Ordering::Relaxed));
        Ok(Sequence {
            early_sampling,
            ..Sequence::new(id, request, text, breakers, policy)
        })
    }

    fn context_policy(&self, request: &Request) -> ContextPolicy {
        request.context_policy.unwrap_or(self.limits.context_policy)
    }

    /// Returns sampling parameters that forbid the tokens that would stop the request; `None` without a minimum.
    fn early_sampling(&self, request: &Request) -> Option<Arc<SamplingParams>> {
        if request.min_tokens == 0 {
            return None;
        }
        let of_model = match (&self.tokenizer, request.ignore_eos) {
            (Some(tokenizer), false) => tokenizer.eog_ids(),
            _ => &[],
        };
        let mut sampling = Arc::clone(&request.sampling);
        let stops = of_model.iter().chain(&request.stop_ids);
        let forbidden = stops.map(|&id| (id, f32::NEG_INFINITY));
        Arc::make_mut(&mut sampling).logit_bias.extend(forbidden);
        SamplingParams::order_bias(&mut sampling);
        Some(sampling)
    }

    /// Returns the request's sequence breakers as tokens; none without DRY or a tokenizer.
    fn breakers(&self, sampling: &SamplingParams) -> Arc<Breakers> {
        let texts = &sampling.dry.sequence_breakers;
        let (true, Some(tokenizer)) = (sampling.has_dry(), &self.tokenizer) else {
            return Arc::default();
        };
        let last = || {
            let last = self.last_breakers.lock();
            last.unwrap_or_else(PoisonError::into_inner)
        };
        if let Some((known, breakers)) = &*last()
            && known == texts
        {
            return Arc::clone(breakers);
        }
        let breakers = Arc::new(Breakers::new(tokenizer.overlapping_sequences(texts)));
        *last() = Some((texts.clone(), Arc::clone(&breakers)));
        breakers
    }

    fn check(&self, request: &Request) -> Result<(), EngineError> {
        let n_ctx = self.limits.n_ctx;
        request.sampling.validate().map_err(RequestError::from)?;
        if request.prompt.is_empty() {
            return Err(RequestError::EmptyPrompt.into());
        }
        let n_tokens = request.prompt.len();
        if n_tokens + usize::from(request.max_tokens > 0) > n_ctx {
            return Err(RequestError::PromptTooLong { n_tokens, n_ctx }.into());
        }
        let max_tokens = self.limits.max_tokens;
        if self.limits.whole_sequences && n_tokens > max_tokens {
            let error = RequestError::TextTooLong {
                n_tokens,
                max_tokens,
            };
            return Err(error.into());
        }
        let embeds = matches!(request.prompt_output, PromptOutput::Embedding(_));
        match self.limits.output {
            Output::Hidden if !embeds || request.max_tokens > 0 => {
                return Err(RequestError::LoadedForEmbeddings.into());
            }
            Output::Logits if embeds => return Err(RequestError::LoadedForText.into()),
            Output::Hidden | Output::Logits => {}
        }
        let policy = self.context_policy(request);
        policy.check(n_ctx)?;
        if policy != ContextPolicy::Stop {
            check_shift(self.limits.fixed_by)?;
        }
        let biased = request.sampling.logit_bias.iter().map(|(id, _)| id);
        let ids = request.prompt.iter().chain(&request.stop_ids).chain(biased);
        self.check_ids(ids)
    }

    fn check_ids<'a>(&self, mut ids: impl Iterator<Item = &'a TokenId>) -> Result<(), EngineError> {
        let n_vocab = self.n_vocab;
        match ids.find(|&&id| id as usize >= n_vocab) {
            Some(&id) => Err(RequestError::TokenOutOfRange { id, n_vocab }.into()),
            None => Ok(()),
        }
    }
}
