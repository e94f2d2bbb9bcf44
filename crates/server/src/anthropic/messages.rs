//! `POST /v1/messages` and `/v1/messages/count_tokens`

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use serde_json::{Map, Value, json};

use super::AnthropicError;
use super::conversation::{messages, tools};
use super::events::{MessageEvents, content, stop, usage};
use crate::app::{App, Body};
use crate::config::Limits;
use crate::http::caller::Caller;
use crate::http::error::ApiError;
use crate::http::fields::Fields;
use crate::http::stream::events;
use crate::openai::chat::Chat;
use crate::openai::generation::Generation;
use crate::openai::messages::{check_tools, for_template};
use crate::openai::usage::Timings;
use crate::serving::choices::Choices;
use crate::serving::reader::{Calls, Parts};
use crate::serving::structured::Forced;

/// `POST /v1/messages`
pub(super) async fn create(
    State(app): State<Arc<App>>,
    caller: Caller,
    body: Result<Body, ApiError>,
) -> Result<Response, AnthropicError> {
    let Body(mut fields) = body?;
    let ticket = app.admit(&caller)?;
    let model = app.model(&mut fields).await?;
    model.put_defaults(&mut fields);
    fields.refuse("n", &[json!(1)])?;
    fields.rename("stop_sequences", "stop");
    let generation = Generation::read(&mut fields, &caller, &app.limits)?;
    if generation.max_tokens.is_none() {
        return Err(ApiError::field("max_tokens", "this field is required").into());
    }
    let (chat, calls) = read(&mut fields, &app.limits)?;
    fields.take_fields("metadata")?;
    let ignored = fields.unread();
    let tenant = ticket.tenant();
    let prompt = chat.prompt(&app, &model, &tenant, None, calls).await?;
    let mut reader = prompt.reader();
    let stops = generation.stops().to_vec();
    let n_prompt = prompt.ids.len();
    let requests = generation.requests(&prompt.ids, &prompt.form(None));
    let choices = Choices::submit(Arc::clone(&model), vec![requests], ticket)?;
    let choices = choices.after(prompt.times);
    let head = json!({
        "id": app.new_id("msg_"),
        "type": "message",
        "role": "assistant",
        "model": model.name,
    });
    let mut response = match generation.stream {
        true => {
            let encoder = MessageEvents::new(head, reader, stops, n_prompt);
            events(choices, encoder, &app.lifecycle, &app.limits).await?
        }
        false => {
            let mut parts = Parts::default();
            let whole = choices.whole_until(|_, text| reader.gather(text, &mut parts));
            let (mut wholes, totals) = app.unless_aborted(whole).await?;
            let whole = wholes.pop().unwrap_or_default();
            reader.gather_rest(&mut parts);
            let (reason, sequence) = stop(&reader, whole.reason, &stops);
            let mut body = head;
            body["content"] = content(parts);
            body["stop_reason"] = reason.into();
            body["stop_sequence"] = sequence.into();
            body["usage"] = usage(&totals);
            body["timings"] = json!(Timings::new(&totals));
            Json(body).into_response()
        }
    };
    app.tell_ignored(&mut response, ignored);
    Ok(response)
}

/// `POST /v1/messages/count_tokens`
pub(super) async fn count(
    State(app): State<Arc<App>>,
    caller: Caller,
    body: Result<Body, ApiError>,
) -> Result<Response, AnthropicError> {
    let Body(mut fields) = body?;
    let _ticket = app.admit(&caller)?;
    let model = app.model(&mut fields).await?;
    model.put_template_defaults(&mut fields);
    let (chat, _) = read(&mut fields, &app.limits)?;
    let prompt = chat.encode(&app, &model).await?;
    let body = json!({ "input_tokens": prompt.ids.len() });
    Ok(app.answer(body, &fields))
}

/// Reads the conversation.
///
/// # Errors
/// A message or a tool has a wrong form.
pub(crate) fn read(fields: &mut Fields, limits: &Limits) -> Result<(Chat, Calls), ApiError> {
    let messages = for_template(messages(fields)?, limits)?;
    let mut tools = tools(fields)?;
    check_tools(&tools, limits)?;
    let mut choice = fields.take_fields("tool_choice")?;
    let forced = match choice.take::<String>("type")?.as_deref() {
        None | Some("auto") => None,
        Some("none") => {
            tools.clear();
            None
        }
        Some("any") => Some(Forced::Any),
        Some("tool") => Some(Forced::Named(choice.need("name")?)),
        Some(_) => {
            let what = "use the type auto, any, tool or none";
            return Err(ApiError::field("tool_choice", what));
        }
    };
    let calls = match choice.take("disable_parallel_tool_use")? {
        Some(true) => Calls::One,
        None | Some(false) => Calls::Any,
    };
    let mut variables: Map<String, Value> =
        fields.take("chat_template_kwargs")?.unwrap_or_default();
    let thinking: Option<String> = fields.take_fields("thinking")?.take("type")?;
    if let Some(kind) = thinking {
        variables.insert("enable_thinking".into(), (kind != "disabled").into());
    }
    // As with Anthropic, an answer continues a last message of the assistant.
    let last = messages.last().and_then(|message| message.get("role"));
    let continues = last.is_some_and(|role| role == "assistant");
    let chat = Chat {
        messages,
        tools,
        variables,
        continues,
        forced,
    };
    Ok((chat, calls))
}
