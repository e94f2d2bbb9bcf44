//! The state of one request while it is served.

use std::cmp::Reverse;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::draft::Draft;
use crate::event::{FinishReason, StopCause};
use crate::kv_cache::{BlockTable, StateTable};
use crate::masks::Constrained;
use crate::progress::Tracker;
use crate::request::{PromptOutput, Request, RequestId};
use rocmforge_gguf::TokenId;
use rocmforge_model::PooledTokens;
use rocmforge_plan::Breakers;
use rocmforge_plan::{DryHistory, SampleRow, SamplingParams};
use rocmforge_runtime::ContextPolicy;
use rocmforge_text::TextStream;

/// A token that a step in flight samples; the engine does not have its id yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PendingSample {
    /// The step that samples it.
    pub(crate) step: u64,
    /// The row of that step's output.
    pub(crate) row: usize,
}

/// When a sequence is served: by descending priority, then in order of arrival.
pub(crate) type Turn = (Reverse<i32>, RequestId);

/// A request with its tokens and KV-cache blocks.
#[derive(Debug)]
pub(crate) struct Sequence {
    pub(crate) id: RequestId,
    /// A request with the same prompt, which computes it first. `None` once it has.
    pub(crate) leader: Option<RequestId>,
    pub(crate) request: Request,
    /// The prompt and the generated tokens whose ids have arrived.
    pub(crate) tokens: Vec<TokenId>,
    pub(crate) n_prompt: usize,
    /// Tokens of the prompt that were not in the cache when the request came.
    pub(crate) n_to_compute: usize,
    /// Tokens submitted since the sequence was last admitted.
    pub(crate) n_submitted: usize,
    /// Submitted tokens that context shifts have dropped.
    pub(crate) n_forgotten: usize,
    pub(crate) context_policy: ContextPolicy,
    /// Prompt tokens that came from the prefix cache at the first admission.
    pub(crate) n_cached: usize,
    /// Prompt positions whose output has been requested.
    pub(crate) n_prompt_outputs: usize,
    pub(crate) pending: Option<PendingSample>,
    pub(crate) draft: Draft,
    /// A step in flight whose choice is not used: its token was known before.
    pub(crate) void_step: Option<u64>,
    pub(crate) table: BlockTable,
    pub(crate) states: StateTable,
    pub(crate) text: Option<TextStream>,
    /// The request's sequence breakers as tokens.
    pub(crate) breakers: Arc<Breakers>,
    /// Mirostat's state after the last token in `tokens`.
    pub(crate) mu: Option<f32>,
    /// The sampling of the first `min_tokens`, if the request has a minimum.
    pub(crate) early_sampling: Option<Arc<SamplingParams>>,
    /// The state of the constraint after the last token in `tokens`.
    pub(crate) constrained: Option<Constrained>,
    /// Sums of the hidden values of the tokens so far, for an embedding.
    pub(crate) hidden: Vec<f64>,
    pub(crate) was_admitted: bool,
    /// When the request came.
    pub(crate) added: Instant,
    /// Time until it was admitted.
    pub(crate) queue_time: Duration,
    /// When its first token was to come, if that was near the limit.
    pub(crate) forecast: Option<Duration>,
    pub(crate) progress: Arc<Tracker>,
    /// The group in which the sequence runs since a step with it failed.
    pub(crate) trial: Option<u64>,
    /// Whether a step with this sequence alone has failed.
    pub(crate) failed_alone: bool,
}

impl Sequence {
    pub(crate) fn new(
        id: RequestId,
        mut request: Request,
        text: Option<TextStream>,
        breakers: Arc<Breakers>,
        context_policy: ContextPolicy,
    ) -> Sequence {
        Sequence {
            id,
            leader: None,
            tokens: request.prompt.to_vec(),
            n_prompt: request.prompt.len(),
            n_to_compute: request.prompt.len(),
            n_submitted: 0,
            n_forgotten: 0,
            context_policy,
            n_cached: 0,
            n_prompt_outputs: 0,
            pending: None,
            draft: Draft::default(),
            void_step: None,
            table: BlockTable::default(),
            states: StateTable::default(),
            text,
            breakers,
            mu: None,
            early_sampling: None,
            constrained: request.constraint.take().map(Constrained::new),
            hidden: Vec::new(),
            was_admitted: false,
            added: Instant::now(),
            queue_time: Duration::ZERO,
            forecast: None,
            progress: Arc::default(),
            trial: None,
            failed_alone: false,
            request,
        }
    }

    /// Returns when the sequence ends or fails, whatever it has.
    pub(crate) fn alarm(&self) -> Option<Instant> {
        let start_by = self.request.start_by.filter(|_| !self.was_admitted);
        [start_by, self.request.deadline]
            .into_iter()
            .flatten()
            .min()
    }

    pub(crate) fn turn(&self) -> Turn {
        (Reverse(self.request.priority), self.id)
    }

    /// Returns the number of tokens, a pending one included.
    pub(crate) fn len(&self) -> usize {
        self.tokens.len() + usize::from(self.pending.is_some())
    }

    /// Returns the number of tokens that are not submitted yet.
    pub(crate) fn n_unsubmitted(&self) -> usize {
        self.len() - self.n_submitted
    }

    /// Returns the number of positions in the cache.
    pub(crate) fn n_positions(&self) -> usize {
        self.n_submitted - self.n_forgotten
    }

    /// Returns the number of generated tokens, a pending one included.
    pub(crate) fn n_generated(&self) -> usize {
        self.len() - self.n_prompt
    }

    /// Returns whether all of its tokens but the last generated one are computed, or in a step in flight.
    pub(crate) fn is_decoding(&self) -> bool {
        self.n_generated() > 0 && self.n_unsubmitted() <= 1
    }

    /// Returns how many tokens may be drafted after the known and the pending ones, in a context of `n_ctx`.
    pub(crate) fn n_draftable(&self, n_ctx: usize) -> usize {
        let n_left = self
            .request
            .max_tokens
            .saturating_sub(self.n_generated() + 1);
        n_left.min(n_ctx.saturating_sub(self.n_positions() + 1))
    }

    /// Returns whether the sequence needs another token, in a context of `n_ctx`.
    pub(crate) fn wants_sample(&self, n_ctx: usize) -> bool {
        let has_room = self.context_policy != ContextPolicy::Stop || self.len() < n_ctx;
        has_room && self.n_generated() < self.request.max_tokens
    }

    /// Returns whether the next token may not stop the sequence, without counting a pending one.
    pub(crate) fn is_too_short(&self) -> bool {
        self.tokens.len() - self.n_prompt < self.request.min_tokens
    }

    /// Returns why the sequence ends with its last token, if it does. `is_eog`: it is an end-of-generation token.
    pub(crate) fn finish_reason(&self, is_eog: bool, n_ctx: usize) -> Option<FinishReason> {
        let last = *self.tokens.last().expect("a prompt is not empty");
        if is_eog && !self.request.ignore_eos {
            Some(FinishReason::Stop(StopCause::Eog(last)))
        } else if self.request.stop_ids.contains(&last) {
            Some(FinishReason::Stop(StopCause::Token(last)))
        } else if self.tokens.len() - self.n_prompt >= self.request.max_tokens {
            Some(FinishReason::Length)
        } else if self.context_policy == ContextPolicy::Stop && self.tokens.len() >= n_ctx {
            Some(FinishReason::Context)
        } else {
            None
        }
    }

    /// Returns tokens that come next whatever is chosen, after `chosen`, a sample after `n_drafted` drafted tokens; and lets a step in flight that chooses the first of them choose in
    /// vain. None where the choice itself has a result: log-probabilities, or the state of the sampler.
    pub(crate) fn take_forced(
        &mut self,
        (n_drafted, chosen): (usize, TokenId),
        is_worth: impl FnOnce(usize) -> bool,
    ) -> Vec<TokenId> {
        let is_too_short = self.is_too_short();
        let (request, pending) = (&self.request, &mut self.pending);
        let has_result = request.logprobs.is_some() || request.sampling.mirostat.is_some();
        let Some(constrained) = self.constrained.as_mut().filter(|_| !has_result) else {
            return Vec::new();
        };
        let forced = match n_drafted {
            0 => constrained.forced(),
            // The constraint itself has computed no mask since.
            n => { self.draft.after(n) }
                .map_or_else(Vec::new, |after| after.forced_after(chosen).to_vec()),
        };
        let biases = &request.sampling.logit_bias;
        let has_bias = |id: &TokenId| biases.iter().any(|(other, _)| other == id);
        // Such a token would not be chosen yet.
        let is_early = |id: &TokenId| is_too_short && request.stop_ids.contains(id);
        if !is_worth(forced.len()) || forced.iter().any(|id| has_bias(id) || is_early(id)) {
            return Vec::new();
        }
        if let Some(pending) = pending.take() {
            self.void_step = Some(pending.step);
            constrained.break_promise();
        }
        forced
    }

    /// Returns how to sample the next token, or that after the first `n_drafted` tokens of the draft. The device adds a
    /// pending token to the history. Penalties and DRY see at most `n_ctx` tokens, dropped ones included.
    pub(crate) fn sample_row(&mut self, n_ctx: usize, n_drafted: usize) -> SampleRow {
        let mask = self.constrained.as_mut().map(|it| match self.pending {
            _ if n_drafted > 0 => {
                let after = self.draft.after(n_drafted);
                let after = after.expect("each drafted token has a mask after it");
                Arc::clone(&after.mask)
            }
            Some(_) => it.mask_after_pending(),
            None => it.mask(),
        });
        let index = self.n_generated() + n_drafted;
        let params = match &self.early_sampling {
            Some(early) if index < self.request.min_tokens => early,
            _ => &self.request.sampling,
        };
        let dry = params.has_dry().then(|| DryHistory {
            tokens: self.history(params.dry.last_n.min(n_ctx), n_drafted),
            breakers: Arc::clone(&self.breakers),
        });
        SampleRow {
            params: Arc::clone(params),
            index: index as u64,
            counts: self.penalty_counts(n_ctx, n_drafted),
            dry,
            mu: self.mu,
            logprobs: self.request.logprobs,
            mask,
        }
    }

    /// Returns the last `n` tokens before the one that comes after `n_drafted` of the draft, without a pending one.
    fn history(&self, n: usize, n_drafted: usize) -> Vec<TokenId> {
        let n = n.saturating_sub(usize::from(self.pending.is_some()));
        let drafted = &self.draft.to_compute()[..n_drafted];
        let known = &self.tokens[self
            .tokens
            .len()
            .saturating_sub(n.saturating_sub(n_drafted))..];
        let drafted = &drafted[n_drafted.saturating_sub(n)..];
        [known, drafted].concat()
    }

    /// Counts each token in the penalty window, by ascending id.
    fn penalty_counts(&self, n_ctx: usize, n_drafted: usize) -> Vec<(TokenId, u32)> {
        let params = &self.request.sampling;
        if !params.has_penalties() {
            return Vec::new();
        }
        let mut last = self.history(params.penalty_last_n.min(n_ctx), n_drafted);
        last.sort_unstable();
        last.chunk_by(|a, b| a == b)
            .map(|same| (same[0], same.len() as u32))
            .collect()
    }

    /// Returns the positions whose hidden values the embedding needs; none without one.
    pub(crate) fn embedded(&self) -> Range<usize> {
        match self.request.prompt_output {
            PromptOutput::Embedding(PooledTokens::First) => 0..1,
            PromptOutput::Embedding(PooledTokens::Last) => self.n_prompt - 1..self.n_prompt,
            PromptOutput::Embedding(PooledTokens::All) => 0..self.n_prompt,
            PromptOutput::Nothing | PromptOutput::Scores { .. } | PromptOutput::Logits { .. } => {
                0..0
            }
        }
    }

    /// Adds the hidden values at `position`. Returns their mean after the last one.
    pub(crate) fn add_hidden(&mut self, position: usize, values: &[f32]) -> Option<Vec<f32>> {
        self.hidden.resize(values.len(), 0.0);
        for (sum, &x) in self.hidden.iter_mut().zip(values) {
            *sum += f64::from(x);
        }
        let positions = self.embedded();
        let n = positions.len() as f64;
        (position + 1 == positions.end)
            .then(|| self.hidden.iter().map(|sum| (sum / n) as f32).collect())
    }

    /// Returns how many tokens may come from the prefix cache: those before the last, whose logits are needed, and
    /// before the first position whose output is still to be requested.
    pub(crate) fn n_shareable(&self) -> usize {
        let first_output = match self.request.prompt_output {
            _ if self.n_prompt_outputs == self.n_prompt => usize::MAX,
            PromptOutput::Nothing => usize::MAX,
            PromptOutput::Scores { from, .. } => from.saturating_sub(1),
            PromptOutput::Logits { from } => from,
            PromptOutput::Embedding(PooledTokens::First | PooledTokens::All) => 0,
            PromptOutput::Embedding(PooledTokens::Last) => usize::MAX,
        };
        (self.tokens.len() - 1).min(first_output.max(self.n_prompt_outputs))
    }
}

/// The purpose of an output row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RowPurpose {
    Sample {
        /// Whether the row is the first one after the prompt.
        ends_prompt: bool,
    },
    /// A token to sample after drafted ones, of use only if all of them are right.
    Drafted {
        n_before: usize,
    },
    PromptScore {
        position: usize,
    },
    PromptLogits {
        position: usize,
    },
    Embedding {
        position: usize,
    },
}
