//! `POST /v1/completions`: continues texts without a chat template.

use std::sync::Arc;
use std::time::Instant;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use rocmforge::parts::{Bos, encode_prompt};
use rocmforge_engine::serve::PromptScore;
use rocmforge_engine::{FinishReason, PromptOutput};
use rocmforge_gguf::TokenId;
use rocmforge_text::infill::Gap;
use rocmforge_text::tokenizer::{LeadingSpace, SpecialText, Tokenizer};
use serde::Deserialize;
use serde_json::{Value, json};

use super::chat_events::{finish_reason, object};
use super::generation::{Form, Generation};
use super::logprobs::CompletionLogprobs;
use super::usage::{Timings, usage};
use crate::app::{App, Body};
use crate::config::Limits;
use crate::http::caller::Caller;
use crate::http::error::ApiError;
use crate::http::fields::Fields;
use crate::http::stream::{Encoder, Out, events};
use crate::serving::choices::{Choices, PromptTimes, Totals, Update, Whole};
use crate::serving::model::Served;
use crate::serving::structured::source;

/// The best tokens that log-probabilities may have, at most.
const MAX_LOGPROBS: usize = 20;

/// A text or token ids, or several of them.
#[derive(Deserialize)]
#[serde(untagged)]
pub(crate) enum Prompts {
    Text(String),
    Texts(Vec<String>),
    Ids(Vec<TokenId>),
    ManyIds(Vec<Vec<TokenId>>),
}

/// `POST /v1/completions`
pub(crate) async fn create(
    State(app): State<Arc<App>>,
    caller: Caller,
    Body(mut fields): Body,
) -> Result<Response, ApiError> {
    let ticket = app.admit(&caller)?;
    let model = app.model(&mut fields).await?;
    model.put_defaults(&mut fields);
    let echo = fields.take("echo")?.unwrap_or(false);
    // As with OpenAI, 0 is allowed here: with echo, the prompt is scored and nothing is generated.
    let only_prompt = fields.take_if("max_tokens", &json!(0));
    let mut generation = Generation::read(&mut fields, &caller, &app.limits)?;
    if only_prompt {
        generation.max_tokens = Some(0);
    }
    let logprobs: Option<usize> = fields.take("logprobs")?;
    if logprobs > Some(MAX_LOGPROBS) {
        return Err(ApiError::field(
            "logprobs",
            format!("use 0 to {MAX_LOGPROBS}"),
        ));
    }
    let suffix: Option<String> = fields.take("suffix")?;
    let suffix = suffix.filter(|text| !text.is_empty());
    fields.refuse("best_of", &[json!(1), json!(generation.n)])?;
    let structure = source(&mut fields)?;
    let prompts = prompts(&mut fields, &generation, &app.limits)?;
    let ignored = fields.unread();
    let of_model = Arc::clone(&model);
    let generation_tokens = generation.max_tokens;
    let (prompts, times) = app
        .workers
        .run(move || {
            let began = Instant::now();
            let prompts = match suffix {
                None => tokens(prompts, &of_model.tokenizer),
                Some(suffix) => before_suffix(prompts, &suffix, &of_model, generation_tokens)?,
            };
            let times = PromptTimes {
                tokenize: began.elapsed(),
                ..PromptTimes::default()
            };
            Ok((prompts, times))
        })
        .await?;
    let compilers = (&app.compilers, &ticket.tenant());
    let structure = model.structure(structure, None, compilers).await?;
    let form = Form {
        special_text: SpecialText::Hide,
        leading_space: LeadingSpace::Keep,
        logprobs,
        structure,
    };
    let prompts: Vec<Arc<[TokenId]>> = prompts.into_iter().map(Arc::from).collect();
    let requests = |prompt| {
        let mut requests = generation.requests(prompt, &form);
        if let (true, Some(top)) = (echo, logprobs) {
            let scores = PromptOutput::Scores { from: 1, top };
            requests
                .iter_mut()
                .for_each(|request| request.prompt_output = scores);
        }
        requests
    };
    let groups = prompts.iter().map(requests).collect();
    let choices = Choices::submit(Arc::clone(&model), groups, ticket)?.after(times);
    // The engine has found that the prompts are not too long to be repeated.
    let answers = prompts.iter().flat_map(|prompt| {
        let echo = echo.then(|| Echo::new(prompt, &model.tokenizer));
        let logprobs = logprobs.map(|_| CompletionLogprobs::new());
        std::iter::repeat_n(Answer { echo, logprobs }, generation.n)
    });
    let answers: Vec<Answer> = answers.collect();
    let id = app.new_id("cmpl-");
    let mut response = match generation.stream {
        true => {
            let encoder = CompletionEvents {
                head: object(&id, "text_completion", &model),
                model,
                answers,
                include_usage: generation.include_usage,
            };
            events(choices, encoder, &app.lifecycle, &app.limits).await?
        }
        false => {
            let (wholes, totals) = app.unless_aborted(choices.whole()).await?;
            let answers = answers.into_iter().zip(wholes).enumerate();
            let choices: Vec<Value> = answers
                .map(|(index, (answer, whole))| answer.whole(index, &model.tokenizer, whole))
                .collect();
            let mut body = object(&id, "text_completion", &model);
            body["choices"] = choices.into();
            body["usage"] = usage(&totals);
            body["timings"] = json!(Timings::new(&totals));
            Json(body).into_response()
        }
    };
    app.tell_ignored(&mut response, ignored);
    Ok(response)
}

/// Reads the prompts of a request.
///
/// # Errors
/// There are none or too many, or they have another type.
pub(crate) fn prompts(
    fields: &mut Fields,
    generation: &Generation,
    limits: &Limits,
) -> Result<Prompts, ApiError> {
    let wrong = |_| ApiError::field("prompt", "use a text, token ids, or a list of either");
    let prompts: Prompts = serde_json::from_value(fields.need("prompt")?).map_err(wrong)?;
    let n = match &prompts {
        Prompts::Text(_) | Prompts::Ids(_) => 1,
        Prompts::Texts(texts) => texts.len(),
        Prompts::ManyIds(ids) => ids.len(),
    };
    if n == 0 {
        return Err(ApiError::field("prompt", "at least one prompt is needed"));
    }
    match n.saturating_mul(generation.n) > limits.max_choices {
        true => Err(ApiError::field(
            "prompt",
            format!("use at most {} answers in all", limits.max_choices),
        )),
        false => Ok(prompts),
    }
}

pub(crate) fn tokens(prompts: Prompts, tokenizer: &Tokenizer) -> Vec<Vec<TokenId>> {
    let encode = |text: &String| encode_prompt(tokenizer, text.as_bytes(), Bos::AsFileSays, true);
    match prompts {
        Prompts::Text(text) => vec![encode(&text)],
        Prompts::Texts(texts) => texts.iter().map(encode).collect(),
        Prompts::Ids(ids) => vec![ids],
        Prompts::ManyIds(ids) => ids,
    }
}

/// Returns the prompts for what stands between texts and a suffix.
fn before_suffix(
    prompts: Prompts,
    suffix: &str,
    model: &Served,
    max_tokens: Option<usize>,
) -> Result<Vec<Vec<TokenId>>, ApiError> {
    let texts = match prompts {
        Prompts::Text(text) => vec![text],
        Prompts::Texts(texts) => texts,
        Prompts::Ids(_) | Prompts::ManyIds(_) => {
            return Err(ApiError::field(
                "suffix",
                "use it with a text, not with token ids",
            ));
        }
    };
    let prompt = |before| {
        let gap = Gap {
            before,
            after: suffix.to_string(),
            ..Gap::default()
        };
        model.gap_prompt(&gap, max_tokens)
    };
    texts.into_iter().map(prompt).collect()
}

/// One answer, and what is to be put before it.
#[derive(Clone)]
struct Answer {
    echo: Option<Echo>,
    logprobs: Option<CompletionLogprobs>,
}

/// A prompt that the answer begins with.
#[derive(Clone)]
struct Echo {
    ids: Arc<[TokenId]>,
    text: Arc<str>,
    scores: Vec<PromptScore>,
}

impl Echo {
    fn new(prompt: &Arc<[TokenId]>, tokenizer: &Tokenizer) -> Echo {
        let text = tokenizer.decode(prompt, SpecialText::Hide, LeadingSpace::Strip);
        Echo {
            ids: Arc::clone(prompt),
            text: text.into(),
            scores: Vec::new(),
        }
    }
}

impl Answer {
    /// Returns text and log-probabilities of the prompt, once.
    fn take_echo(&mut self, tokenizer: &Tokenizer) -> Option<(String, Value)> {
        let echo = self.echo.take()?;
        let logprobs = self.logprobs.as_mut();
        let logprobs =
            logprobs.map(|logprobs| logprobs.of_prompt(tokenizer, &echo.ids, &echo.scores));
        Some((echo.text.to_string(), logprobs.unwrap_or_default()))
    }

    fn whole(mut self, index: usize, tokenizer: &Tokenizer, whole: Whole) -> Value {
        if let Some(echo) = &mut self.echo {
            echo.scores = whole.scores;
        }
        let (mut text, before) = self.take_echo(tokenizer).unwrap_or_default();
        text.push_str(&whole.text);
        let logprobs = match &mut self.logprobs {
            None => Value::Null,
            Some(logprobs) => joined(before, logprobs.of_tokens(tokenizer, &whole.tokens)),
        };
        choice(index, text, logprobs, Some(finish_reason(whole.reason)))
    }
}

fn choice(index: usize, text: String, logprobs: Value, reason: Option<&'static str>) -> Value {
    json!({ "index": index, "text": text, "logprobs": logprobs, "finish_reason": reason })
}

/// Joins the lists of a prompt and of its answer.
fn joined(mut first: Value, second: Value) -> Value {
    let Value::Object(second) = second else {
        return first;
    };
    if first.is_null() {
        return Value::Object(second);
    }
    for (name, list) in second {
        if let (Some(Value::Array(to)), Value::Array(more)) = (first.get_mut(&name), list) {
            to.extend(more);
        }
    }
    first
}

/// The chunks of a stream.
struct CompletionEvents {
    head: Value,
    model: Arc<Served>,
    answers: Vec<Answer>,
    include_usage: bool,
}

impl CompletionEvents {
    fn chunk(&self, choice: Value, out: &mut Out) {
        let mut chunk = self.head.clone();
        chunk["choices"] = json!([choice]);
        out.data(&chunk);
    }

    /// Writes the prompt before the first token of an answer that echoes it.
    fn echo(&mut self, index: usize, out: &mut Out) {
        if let Some((text, logprobs)) = self.answers[index].take_echo(&self.model.tokenizer) {
            self.chunk(choice(index, text, logprobs, None), out);
        }
    }

    fn finished(&mut self, index: usize, text: String, reason: FinishReason, out: &mut Out) {
        let reason = finish_reason(Some(reason));
        self.chunk(choice(index, text, Value::Null, Some(reason)), out);
    }
}

impl Encoder for CompletionEvents {
    fn begin(&mut self, _: &mut Out) {}

    fn update(&mut self, update: Update, out: &mut Out) -> Option<usize> {
        match update {
            Update::PromptScores { choice, scores } => {
                if let Some(echo) = &mut self.answers[choice].echo {
                    echo.scores.extend(scores);
                }
            }
            Update::Tokens {
                choice: index,
                tokens,
                text,
            } => {
                self.echo(index, out);
                let tokenizer = &self.model.tokenizer;
                let logprobs = self.answers[index].logprobs.as_mut();
                let logprobs = logprobs.map(|logprobs| logprobs.of_tokens(tokenizer, &tokens));
                if !text.is_empty() || logprobs.is_some() {
                    self.chunk(choice(index, text, logprobs.unwrap_or_default(), None), out);
                }
            }
            Update::Finished {
                choice,
                reason,
                text,
            } => {
                self.echo(choice, out);
                self.finished(choice, text, reason, out);
            }
        }
        None
    }

    fn end(&mut self, totals: &Totals, out: &mut Out) {
        if self.include_usage {
            let mut chunk = self.head.clone();
            chunk["choices"] = json!([]);
            chunk["usage"] = usage(totals);
            chunk["timings"] = json!(Timings::new(totals));
            out.data(&chunk);
        }
        out.done();
    }
}
