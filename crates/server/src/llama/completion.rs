//! `POST /completion` and `/infill`: llama-server's own completions, which editors use.

use std::sync::Arc;
use std::time::Instant;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use rocmforge_engine::serve::Token;
use rocmforge_engine::{FinishReason, StopCause};
use rocmforge_gguf::TokenId;
use rocmforge_text::infill::{File, Gap};
use rocmforge_text::tokenizer::{LeadingSpace, SpecialText};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::app::{App, Body};
use crate::http::caller::Caller;
use crate::http::error::ApiError;
use crate::http::fields::Fields;
use crate::http::stream::{Encoder, Out, events};
use crate::openai::completions::{prompts, tokens};
use crate::openai::generation::{Form, Generation};
use crate::openai::logprobs::of_token;
use crate::openai::usage::Timings;
use crate::serving::choices::{Choices, PromptTimes, Ticket, Totals, Update, Whole};
use crate::serving::model::Served;
use crate::serving::structured::source;

/// The best tokens that `n_probs` may ask for.
const MAX_PROBS: usize = 20;

/// `POST /completion`
pub(super) async fn complete(
    State(app): State<Arc<App>>,
    caller: Caller,
    Body(fields): Body,
) -> Result<Response, ApiError> {
    let mut asked = Asked::read(&app, &caller, fields).await?;
    let prompts = prompts(&mut asked.fields, &asked.generation, &app.limits)?;
    let encode = move |model: &Served| Ok(tokens(prompts, &model.tokenizer));
    asked.answer(app, encode).await
}

/// A file beside the one with the gap, as clients send it.
#[derive(Deserialize)]
struct Extra {
    text: String,
    #[serde(default)]
    filename: String,
}

/// `POST /infill`
pub(super) async fn infill(
    State(app): State<Arc<App>>,
    caller: Caller,
    Body(fields): Body,
) -> Result<Response, ApiError> {
    let mut asked = Asked::read(&app, &caller, fields).await?;
    let fields = &mut asked.fields;
    let extra: Vec<Extra> = fields.take("input_extra")?.unwrap_or_default();
    let files = extra.into_iter().map(|extra| File {
        name: extra.filename,
        text: extra.text,
    });
    let gap = Gap {
        before: fields.take("input_prefix")?.unwrap_or_default(),
        after: fields.take("input_suffix")?.unwrap_or_default(),
        begun: fields.take("prompt")?.unwrap_or_default(),
        files: files.collect(),
    };
    let max_tokens = asked.generation.max_tokens;
    let encode = move |model: &Served| Ok(vec![model.gap_prompt(&gap, max_tokens)?]);
    asked.answer(app, encode).await
}

/// What both routes have.
struct Asked {
    ticket: Ticket,
    model: Arc<Served>,
    fields: Fields,
    generation: Generation,
    with_tokens: bool,
    n_probs: usize,
    /// Paths of the fields that the answer is to have; empty for all.
    wanted: Vec<String>,
}

impl Asked {
    async fn read(app: &App, caller: &Caller, mut fields: Fields) -> Result<Asked, ApiError> {
        let ticket = app.admit(caller)?;
        let model = app.model(&mut fields).await?;
        model.put_defaults(&mut fields);
        // llama-server's defaults.
        for (name, value) in [
            ("temperature", json!(0.8)),
            ("top_k", json!(40)),
            ("top_p", json!(0.95)),
            ("min_p", json!(0.05)),
        ] {
            fields.put_default(name, value);
        }
        // The cache is always used.
        fields.take::<Value>("cache_prompt")?;
        let n_probs = fields.take("n_probs")?.unwrap_or(0);
        if n_probs > MAX_PROBS {
            let message = format!("use 0 to {MAX_PROBS}");
            return Err(ApiError::field("n_probs", message));
        }
        let generation = Generation::read(&mut fields, caller, &app.limits)?;
        Ok(Asked {
            ticket,
            with_tokens: fields.take("return_tokens")?.unwrap_or(false) || generation.stream,
            wanted: fields.take("response_fields")?.unwrap_or_default(),
            generation,
            n_probs,
            model,
            fields,
        })
    }

    async fn answer(
        self,
        app: Arc<App>,
        encode: impl FnOnce(&Served) -> Result<Vec<Vec<TokenId>>, ApiError> + Send + 'static,
    ) -> Result<Response, ApiError> {
        let Asked {
            ticket,
            model,
            mut fields,
            generation,
            with_tokens,
            n_probs,
            wanted,
        } = self;
        let structure = source(&mut fields)?;
        let ignored = fields.unread();
        let of_model = Arc::clone(&model);
        let work = move || {
            let began = Instant::now();
            let prompts = encode(&of_model)?;
            let times = PromptTimes {
                tokenize: began.elapsed(),
                ..PromptTimes::default()
            };
            Ok((prompts, times))
        };
        let (prompts, times) = app.workers.run(work).await?;
        let compilers = (&app.compilers, &ticket.tenant());
        let structure = model.structure(structure, None, compilers).await?;
        let form = Form {
            special_text: SpecialText::Hide,
            leading_space: LeadingSpace::Keep,
            logprobs: (n_probs > 0).then_some(n_probs),
            structure,
        };
        let requests = |prompt: Vec<TokenId>| generation.requests(&prompt.into(), &form);
        let groups: Vec<_> = prompts.into_iter().map(requests).collect();
        let n_answers = groups.iter().map(Vec::len).sum();
        let choices = Choices::submit(Arc::clone(&model), groups, ticket)?.after(times);
        let answers = Answers {
            model,
            stops: generation.stops().to_vec(),
            settings: generation.settings(),
            with_tokens,
            with_probs: n_probs > 0,
            ends_at_eog: !generation.ignores_eos(),
            wanted,
            ended: vec![Ended::default(); n_answers],
        };
        let mut response = match generation.stream {
            true => events(choices, answers, &app.lifecycle, &app.limits).await?,
            false => {
                let (wholes, totals) = app.unless_aborted(choices.whole()).await?;
                let wholes = wholes.into_iter().enumerate();
                let mut all: Vec<Value> = wholes
                    .map(|(index, whole)| answers.whole(index, &whole, &totals))
                    .collect();
                match all.len() {
                    1 => Json(all.remove(0)).into_response(),
                    _ => Json(all).into_response(),
                }
            }
        };
        app.tell_ignored(&mut response, ignored);
        Ok(response)
    }
}

/// Answers in llama-server's form.
struct Answers {
    model: Arc<Served>,
    stops: Vec<String>,
    settings: Value,
    with_tokens: bool,
    with_probs: bool,
    /// Whether a token of end-of-generation ends an answer. It is not among its tokens then.
    ends_at_eog: bool,
    wanted: Vec<String>,
    ended: Vec<Ended>,
}

/// What the last piece of an answer says of all of it.
#[derive(Clone, Default)]
struct Ended {
    reason: Option<FinishReason>,
    has_new_line: bool,
}

impl Answers {
    fn piece(&self, index: usize, text: &str, tokens: &[Token]) -> Value {
        let tokenizer = &self.model.tokenizer;
        let ends = |token: &Token| self.ends_at_eog && tokenizer.is_eog(token.id);
        let shown = || tokens.iter().filter(|token| !ends(token));
        let ids: Vec<TokenId> = match self.with_tokens {
            true => shown().map(|token| token.id).collect(),
            false => Vec::new(),
        };
        let mut piece = json!({ "index": index, "content": text, "tokens": ids, "stop": false });
        if self.with_probs {
            let of_token = |token| of_token(tokenizer, token);
            piece["completion_probabilities"] = shown().map(of_token).collect();
        }
        piece
    }

    /// Adds what the last piece of an answer says.
    fn ended(&self, mut piece: Value, ended: &Ended, totals: &Totals) -> Value {
        let (kind, word) = match ended.reason {
            Some(FinishReason::Stop(StopCause::Text(at))) => ("word", &*self.stops[at]),
            Some(FinishReason::Stop(_)) => ("eos", ""),
            Some(FinishReason::Length | FinishReason::Context | FinishReason::Deadline) => {
                ("limit", "")
            }
            Some(FinishReason::Aborted) | None => ("none", ""),
        };
        // The context was full, or shifted.
        let is_full = ended.reason == Some(FinishReason::Context)
            || totals.prompt_tokens + totals.completion_tokens > self.model.engine.n_ctx();
        let sums = json!({
            "stop": true,
            "model": self.model.name,
            "generation_settings": self.settings,
            "stop_type": kind,
            "stopping_word": word,
            "has_new_line": ended.has_new_line,
            "truncated": is_full && self.ended.len() == 1,
            "tokens_predicted": totals.completion_tokens,
            "tokens_evaluated": totals.prompt_tokens,
            "tokens_cached": totals.cached_tokens,
            "timings": Timings::new(totals),
        });
        if let (Value::Object(piece), Value::Object(sums)) = (&mut piece, sums) {
            piece.extend(sums);
        }
        match self.wanted.is_empty() {
            true => piece,
            false => self.wanted(&piece),
        }
    }

    /// Returns the fields of an answer that were asked for, under their paths.
    fn wanted(&self, answer: &Value) -> Value {
        let field = |path: &String| {
            let value = answer.pointer(&format!("/{path}"))?;
            Some((path.clone(), value.clone()))
        };
        Value::Object(self.wanted.iter().filter_map(field).collect())
    }

    fn whole(&self, index: usize, whole: &Whole, totals: &Totals) -> Value {
        let piece = self.piece(index, &whole.text, &whole.tokens);
        let ended = Ended {
            reason: whole.reason,
            has_new_line: whole.text.contains('\n'),
        };
        self.ended(piece, &ended, totals)
    }
}

impl Encoder for Answers {
    fn begin(&mut self, _: &mut Out) {}

    fn update(&mut self, update: Update, out: &mut Out) -> Option<usize> {
        match update {
            Update::PromptScores { .. } => {}
            Update::Tokens {
                choice,
                tokens,
                text,
            } => {
                self.ended[choice].has_new_line |= text.contains('\n');
                out.data(&self.piece(choice, &text, &tokens));
            }
            Update::Finished {
                choice,
                reason,
                text,
            } => {
                if !text.is_empty() {
                    out.data(&self.piece(choice, &text, &[]));
                }
                let ended = &mut self.ended[choice];
                ended.reason = Some(reason);
                ended.has_new_line |= text.contains('\n');
            }
        }
        None
    }

    fn end(&mut self, totals: &Totals, out: &mut Out) {
        for (index, ended) in self.ended.iter().enumerate() {
            let last = self.piece(index, "", &[]);
            out.data(&self.ended(last, ended, totals));
        }
    }
}
