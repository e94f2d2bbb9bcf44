//! `POST /api/chat` and `/api/generate`

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use rocmforge::parts::{Bos, encode_prompt};
use rocmforge_gguf::TokenId;
use rocmforge_grammar::Source;
use rocmforge_text::infill::Gap;
use rocmforge_text::tokenizer::{LeadingSpace, SpecialText};
use serde_json::{Map, Value, json};

use super::events::{Lines, Shape};
use super::models::{named, slot};
use super::{OllamaError, keep_alive};
use crate::app::{App, Body};
use crate::http::caller::Caller;
use crate::http::error::ApiError;
use crate::http::fields::Fields;
use crate::http::stream::events;
use crate::openai::chat::Chat;
use crate::openai::generation::{Form, Generation};
use crate::openai::messages::{check_tools, for_template};
use crate::serving::choices::{Choices, Ticket};
use crate::serving::fleet::Asker;
use crate::serving::model::{Served, TEMPLATE_VARIABLES};
use crate::serving::reader::{Calls, Reader};
use crate::serving::slot::KeepAlive;

/// `POST /api/chat`
pub(super) async fn chat(
    State(app): State<Arc<App>>,
    caller: Caller,
    body: Result<Body, ApiError>,
) -> Result<Response, OllamaError> {
    let Body(mut fields) = body?;
    let mut messages: Vec<Value> = fields.take("messages")?.unwrap_or_default();
    if messages.is_empty() {
        return load_or_unload(&app, caller, fields, Shape::Chat).await;
    }
    let asked = Asked::read(&app, caller, &mut fields).await?;
    for (at, message) in messages.iter_mut().enumerate() {
        let images = message.get("images").and_then(Value::as_array);
        if images.is_some_and(|images| !images.is_empty()) {
            let what = "this server reads text only; leave images out";
            return Err(ApiError::field(format!("messages[{at}]"), what).into());
        }
        if let Some(thinking) = message.get("thinking").cloned() {
            message["reasoning_content"] = thinking;
        }
    }
    let tools: Vec<Value> = fields.take("tools")?.unwrap_or_default();
    check_tools(&tools, &app.limits)?;
    let chat = Chat {
        messages: for_template(messages, &app.limits)?,
        tools,
        variables: thinking(&asked.model, &mut fields)?,
        ..Chat::default()
    };
    let ignored = asked.ignored(&fields);
    let mut response = asked.answer_chat(&app, chat, Shape::Chat).await?;
    app.tell_ignored(&mut response, ignored);
    Ok(response)
}

/// `POST /api/generate`
pub(super) async fn generate(
    State(app): State<Arc<App>>,
    caller: Caller,
    body: Result<Body, ApiError>,
) -> Result<Response, OllamaError> {
    let Body(mut fields) = body?;
    let prompt: String = fields.take("prompt")?.unwrap_or_default();
    let suffix: Option<String> = fields.take("suffix")?;
    let suffix = suffix.filter(|text| !text.is_empty());
    let system: Option<String> = fields.take("system")?;
    for name in ["template", "context", "images"] {
        fields.refuse(name, &[json!(""), json!([])])?;
    }
    let is_raw = fields.take("raw")?.unwrap_or(false);
    if prompt.is_empty() && suffix.is_none() {
        return load_or_unload(&app, caller, fields, Shape::Generate).await;
    }
    let asked = Asked::read(&app, caller, &mut fields).await?;
    let variables = thinking(&asked.model, &mut fields)?;
    let ignored = asked.ignored(&fields);
    let mut response = match suffix {
        Some(after) => {
            let gap = Gap {
                before: prompt,
                after,
                ..Gap::default()
            };
            asked.fill_gap(&app, gap).await?
        }
        None if is_raw => asked.answer_raw(&app, prompt).await?,
        None => {
            let system = system.filter(|text| !text.is_empty());
            let system = system.map(|text| json!({ "role": "system", "content": text }));
            let user = json!({ "role": "user", "content": prompt });
            let chat = Chat {
                messages: system.into_iter().chain([user]).collect(),
                variables,
                ..Chat::default()
            };
            asked.answer_chat(&app, chat, Shape::Generate).await?
        }
    };
    app.tell_ignored(&mut response, ignored);
    Ok(response)
}

/// Answers a request that has nothing to answer, as Ollama does: its model is loaded, or leaves the memory if it is to stay
/// there for no time.
async fn load_or_unload(
    app: &App,
    caller: Caller,
    mut fields: Fields,
    shape: Shape,
) -> Result<Response, OllamaError> {
    let _ticket = app.admit(&caller)?;
    let slot = slot(app, &mut fields)?;
    let keep_alive = keep_alive::take(app, &caller, &mut fields)?;
    // As of a request with an answer.
    structure(&mut fields)?;
    thoughts(&mut fields)?;
    fields.take::<bool>("stream")?;
    fields.take::<Map<String, Value>>("options")?;
    let tools: Vec<Value> = fields.take("tools")?.unwrap_or_default();
    check_tools(&tools, &app.limits)?;
    let reason = match keep_alive {
        Some(KeepAlive::For(Duration::ZERO)) => {
            // One that is not in memory need not leave it.
            let _ = app.fleet.unload(slot).await;
            "unload"
        }
        _ => {
            app.model_named(Some(slot.name()), Asker::Client).await?;
            if keep_alive.is_some() {
                slot.set_keep_alive(keep_alive);
            }
            "load"
        }
    };
    let body = Lines::empty(shape, slot.name(), reason);
    Ok(app.answer(body, &fields))
}

/// Returns the variables of the template: the model's defaults, and whether it is to think.
fn thinking(model: &Served, fields: &mut Fields) -> Result<Map<String, Value>, ApiError> {
    let default = model.defaults().get(TEMPLATE_VARIABLES);
    let mut variables = default
        .and_then(Value::as_object)
        .cloned()
        .unwrap_or_default();
    variables.extend(thoughts(fields)?);
    Ok(variables)
}

/// Returns the variables of the template that say whether it is to think.
fn thoughts(fields: &mut Fields) -> Result<Map<String, Value>, ApiError> {
    let mut variables = Map::new();
    match fields.take::<Value>("think")? {
        Some(Value::Bool(thinks)) => {
            variables.insert("enable_thinking".into(), thinks.into());
        }
        Some(Value::String(effort)) => {
            variables.insert("enable_thinking".into(), true.into());
            variables.insert("reasoning_effort".into(), effort.into());
        }
        Some(_) => return Err(ApiError::field("think", "use true, false or a level")),
        None => {}
    }
    Ok(variables)
}

/// Returns what the answer must be.
fn structure(fields: &mut Fields) -> Result<Option<Source>, ApiError> {
    match fields.take::<Value>("format")? {
        None => Ok(None),
        Some(Value::String(text)) if text.is_empty() => Ok(None),
        Some(Value::String(text)) if text == "json" => Ok(Some(Source::JsonObject)),
        Some(Value::Object(schema)) => {
            Ok(Some(Source::JsonSchema(Value::Object(schema).to_string())))
        }
        Some(_) => Err(ApiError::field("format", "use json or a JSON schema")),
    }
}

/// What both routes have.
struct Asked {
    model: Arc<Served>,
    ticket: Ticket,
    generation: Generation,
    structure: Option<Source>,
    /// Names of options that nothing has read.
    ignored: Option<String>,
}

impl Asked {
    async fn read(app: &App, caller: Caller, fields: &mut Fields) -> Result<Asked, ApiError> {
        let ticket = app.admit(&caller)?;
        let model = named(app, &caller, fields).await?;
        let structure = structure(fields)?;
        let stream = fields.take("stream")?.unwrap_or(true);
        let (generation, ignored) = generation(app, &model, &caller, fields, stream)?;
        Ok(Asked {
            model,
            ticket,
            generation,
            structure,
            ignored,
        })
    }

    /// Names the fields and options that nothing has read.
    fn ignored(&self, fields: &Fields) -> Option<String> {
        let names = [fields.unread(), self.ignored.clone()];
        let names: Vec<String> = names.into_iter().flatten().collect();
        (!names.is_empty()).then(|| names.join(","))
    }

    async fn answer_chat(self, app: &App, chat: Chat, shape: Shape) -> Result<Response, ApiError> {
        let Asked {
            model,
            ticket,
            generation,
            structure,
            ignored: _,
        } = self;
        let tenant = ticket.tenant();
        let prompt = chat.prompt(app, &model, &tenant, structure, Calls::Any);
        let prompt = prompt.await?;
        let requests = generation.requests(&prompt.ids, &prompt.form(None));
        let choices = Choices::submit(Arc::clone(&model), vec![requests], ticket)?;
        let lines = Lines::new(shape, &model.name, Some(prompt.reader()));
        respond(app, choices, lines, generation.stream).await
    }

    async fn answer_raw(self, app: &App, text: String) -> Result<Response, ApiError> {
        let model = Arc::clone(&self.model);
        let encode = move || {
            Ok(encode_prompt(
                &model.tokenizer,
                text.as_bytes(),
                Bos::AsFileSays,
                true,
            ))
        };
        self.answer_ids(app, encode).await
    }

    async fn fill_gap(self, app: &App, gap: Gap) -> Result<Response, ApiError> {
        let (model, max_tokens) = (Arc::clone(&self.model), self.generation.max_tokens);
        let encode = move || model.gap_prompt(&gap, max_tokens);
        self.answer_ids(app, encode).await
    }

    /// Answers a prompt that has no template.
    async fn answer_ids(
        self,
        app: &App,
        encode: impl FnOnce() -> Result<Vec<TokenId>, ApiError> + Send + 'static,
    ) -> Result<Response, ApiError> {
        let Asked {
            model,
            ticket,
            generation,
            structure,
            ignored: _,
        } = self;
        let ids = app.workers.run(encode).await?;
        let compilers = (&app.compilers, &ticket.tenant());
        let structure = model.structure(structure, None, compilers).await?;
        let form = Form {
            special_text: SpecialText::Hide,
            leading_space: LeadingSpace::Keep,
            logprobs: None,
            structure,
        };
        let requests = generation.requests(&ids.into(), &form);
        let choices = Choices::submit(Arc::clone(&model), vec![requests], ticket)?;
        let lines = Lines::new(Shape::Generate, &model.name, None::<Reader>);
        respond(app, choices, lines, generation.stream).await
    }
}

async fn respond(
    app: &App,
    choices: Choices,
    lines: Lines,
    stream: bool,
) -> Result<Response, ApiError> {
    if stream {
        return events(choices, lines, &app.lifecycle, &app.limits).await;
    }
    let (mut wholes, totals) = app.unless_aborted(choices.whole()).await?;
    let whole = wholes.pop().unwrap_or_default();
    Ok(Json(lines.whole(&whole, &totals)).into_response())
}

/// Reads `options`, which have llama.cpp's names and Ollama's defaults. Returns the names of those that are unknown, too.
fn generation(
    app: &App,
    model: &Served,
    caller: &Caller,
    fields: &mut Fields,
    stream: bool,
) -> Result<(Generation, Option<String>), ApiError> {
    let given: Map<String, Value> = fields.take("options")?.unwrap_or_default();
    let mut options = json!({ "temperature": 0.8, "top_k": 40, "top_p": 0.9, "stream": stream });
    let defaults = model.defaults().iter();
    for (name, value) in defaults.filter(|(name, _)| *name != TEMPLATE_VARIABLES) {
        options[name] = value.clone();
    }
    for (name, value) in given {
        let name = match name.as_str() {
            "num_predict" => {
                // Negative: no limit.
                if value.as_i64().is_none_or(|n| n > 0) {
                    options["max_tokens"] = value;
                }
                continue;
            }
            "repeat_penalty" => "repetition_penalty",
            "n" | "stream" => continue,
            name => name,
        };
        options[name] = value;
    }
    let Value::Object(options) = options else {
        unreachable!("it was written as an object")
    };
    let mut options = Fields::new(options);
    let generation = Generation::read(&mut options, caller, &app.limits)?;
    Ok((generation, options.unread()))
}
