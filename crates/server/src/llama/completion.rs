//! `POST /completion` and `/infill`: llama-server's own completions, which editors use.

use std::sync::Arc;

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
use crate::http::auth::Caller;
use crate::http::error::ApiError;
use crate::http::fields::Fields;
use crate::http::stream::{Encoder, Out, events};
use crate::openai::completions::{prompts, tokens};
use crate::openai::generation::{Form, Generation};
use crate::openai::logprobs::of_token;
use crate::openai::usage::Timings;
use crate::serving::choices::{Choices, Totals, Update, Whole};
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
    let mut asked = Asked::read(&app, &caller, fields)?;
    let prompts = prompts(&mut asked.fields, &asked.generation, &app.limits)?;
    let encode = move |model: &Served| Ok(tokens(prompts, &model.tokenizer));
    asked.answer(app, caller, encode).await
}

/// A file beside the one with the gap, as clients send it.
#[derive(Deserialize)]
struct Extra {
    #[serde(default)]
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
    let mut asked = Asked::read(&app, &caller, fields)?;
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
    asked.answer(app, caller, encode).await
}

/// What both routes have.
struct Asked {
    model: Arc<Served>,
    fields: Fields,
    generation: Generation,
    with_tokens: bool,
    n_probs: usize,
}

impl Asked {
    fn read(app: &App, caller: &Caller, mut fields: Fields) -> Result<Asked, ApiError> {
        let model = app.model(fields.take::<String>("model")?.as_deref())?;
        // -1: no limit.
        match fields.take::<i64>("n_predict")? {
            Some(0) => return Err(ApiError::field("n_predict", "use 1 or more, or -1")),
            Some(n) if n > 0 => fields.put("max_tokens", n.into()),
            _ => {}
        }
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
        Ok(Asked {
            generation: Generation::read(&mut fields, caller, &app.limits)?,
            with_tokens: fields.take("return_tokens")?.unwrap_or(false),
            n_probs,
            model,
            fields,
        })
    }

    async fn answer(
        self,
        app: Arc<App>,
        caller: Caller,
        encode: impl FnOnce(&Served) -> Result<Vec<Vec<TokenId>>, ApiError> + Send + 'static,
    ) -> Result<Response, ApiError> {
        let Asked {
            model,
            mut fields,
            generation,
            with_tokens,
            n_probs,
        } = self;
        let ticket = app.admit(&caller)?;
        let structure = source(&mut fields)?;
        let ignored = fields.unread();
        let of_model = Arc::clone(&model);
        let work = move || Ok((encode(&of_model)?, of_model.grammar(structure)?));
        let (prompts, grammar) = app.workers.run(work).await?;
        let form = Form {
            special_text: SpecialText::Hide,
            leading_space: LeadingSpace::Keep,
            logprobs: (n_probs > 0).then_some(n_probs),
            grammar,
        };
        let requests = |prompt: &Vec<TokenId>| generation.requests(prompt, &form);
        let groups: Vec<_> = prompts.iter().map(requests).collect();
        let n_answers = groups.iter().map(Vec::len).sum();
        let choices = Choices::submit(Arc::clone(&model), groups, ticket)?;
        let answers = Answers {
            model,
            stops: generation.stops().to_vec(),
            with_tokens,
            with_probs: n_probs > 0,
            ended: vec![None; n_answers],
        };
        let mut response = match generation.stream {
            true => events(choices, answers, &app).await?,
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
    with_tokens: bool,
    with_probs: bool,
    /// Why each answer ended.
    ended: Vec<Option<FinishReason>>,
}

impl Answers {
    fn piece(&self, index: usize, text: &str, tokens: &[Token]) -> Value {
        let tokenizer = &self.model.tokenizer;
        let ids = tokens.iter().map(|token| token.id);
        let ids: Vec<TokenId> = match self.with_tokens {
            true => ids.filter(|&id| !tokenizer.is_eog(id)).collect(),
            false => Vec::new(),
        };
        let mut piece = json!({ "index": index, "content": text, "tokens": ids, "stop": false });
        if self.with_probs {
            let shown = tokens.iter().filter(|token| !tokenizer.is_eog(token.id));
            let of_token = |token: &Token| {
                let mut value = of_token(tokenizer, token);
                value["id"] = token.id.into();
                value
            };
            piece["completion_probabilities"] = shown.map(of_token).collect();
        }
        piece
    }

    /// Adds what the last piece of an answer says.
    fn ended(&self, mut piece: Value, reason: Option<FinishReason>, totals: &Totals) -> Value {
        let (kind, word) = match reason {
            Some(FinishReason::Stop(StopCause::Text(at))) => ("word", &*self.stops[at]),
            Some(FinishReason::Stop(_)) => ("eos", ""),
            Some(FinishReason::Length | FinishReason::Context | FinishReason::Deadline) => {
                ("limit", "")
            }
            Some(FinishReason::Aborted) | None => ("none", ""),
        };
        let sums = json!({
            "stop": true,
            "model": self.model.name,
            "stop_type": kind,
            "stopping_word": word,
            "truncated": false,
            "tokens_predicted": totals.completion_tokens,
            "tokens_evaluated": totals.prompt_tokens,
            "tokens_cached": totals.cached_tokens,
            "timings": Timings::new(totals),
        });
        if let (Value::Object(piece), Value::Object(sums)) = (&mut piece, sums) {
            piece.extend(sums);
        }
        piece
    }

    fn whole(&self, index: usize, whole: &Whole, totals: &Totals) -> Value {
        let piece = self.piece(index, &whole.text, &whole.tokens);
        self.ended(piece, whole.reason, totals)
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
            } => out.data(&self.piece(choice, &text, &tokens)),
            Update::Finished {
                choice,
                reason,
                text,
            } => {
                if !text.is_empty() {
                    out.data(&self.piece(choice, &text, &[]));
                }
                self.ended[choice] = Some(reason);
            }
        }
        None
    }

    fn end(&mut self, totals: &Totals, out: &mut Out) {
        for (index, reason) in self.ended.iter().enumerate() {
            let last = self.piece(index, "", &[]);
            out.data(&self.ended(last, *reason, totals));
        }
    }
}
