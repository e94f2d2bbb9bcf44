//! `POST /v1/responses`: OpenAI's newer form of a conversation, of items in and items out.

mod events;
mod input;
mod output;
pub(crate) mod store;

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use rocmforge_grammar::Source;
use serde_json::{Map, Value, json};

use super::chat::{Chat, named};
use super::generation::Generation;
use super::messages::{check_tools, for_template};
use crate::app::{App, Body};
use crate::http::caller::Caller;
use crate::http::error::ApiError;
use crate::http::fields::Fields;
use crate::http::stream::events as stream;
use crate::serving::choices::Choices;
use crate::serving::model::unix_seconds;
use crate::serving::reader::{Calls, Parts};
use crate::serving::structured::{Forced, of_format};

use events::ResponseEvents;
use output::Response as Answered;
use store::Kept;

/// `POST /v1/responses`
pub(crate) async fn create(
    State(app): State<Arc<App>>,
    caller: Caller,
    Body(mut fields): Body,
) -> Result<Response, ApiError> {
    let ticket = app.admit(&caller)?;
    let model = app.model(&mut fields).await?;
    let mut kept = Kept {
        store: fields.take("store")?.unwrap_or(false),
        owner: caller.key.as_ref().map(|key| key.name.to_string()),
        items: Vec::new(),
    };
    let previous: Option<String> = fields.take("previous_response_id")?;
    if let Some(id) = &previous {
        kept.items = app.responses.items(id, &kept.owner).ok_or_else(|| {
            let error = ApiError::field(
                "previous_response_id",
                "there is no such response; only those with store set to true are kept, and not for ever",
            );
            ApiError {
                status: StatusCode::NOT_FOUND,
                ..error
            }
        })?;
    }
    fields.rename("max_output_tokens", "max_tokens");
    model.put_defaults(&mut fields);
    fields.refuse("n", &[json!(1)])?;
    fields.refuse("background", &[json!(false)])?;
    let generation = Generation::read(&mut fields, &caller, &app.limits)?;
    let Asked {
        chat,
        structure,
        calls,
        echo,
    } = read(&mut fields, &app, &mut kept)?;
    let ignored = fields.unread();
    let tenant = ticket.tenant();
    let prompt = chat.prompt(&app, &model, &tenant, structure, calls);
    let prompt = prompt.await?;
    let reader = prompt.reader();
    let requests = generation.requests(&prompt.ids, &prompt.form(None));
    let choices = Choices::submit(Arc::clone(&model), vec![requests], ticket)?;
    let choices = choices.after(prompt.times);
    let id = app.new_id("resp_");
    let mut head = json!({
        "id": id,
        "object": "response",
        "created_at": unix_seconds(),
        "model": model.name,
        "max_output_tokens": generation.max_tokens,
        "previous_response_id": previous,
        "store": kept.store,
        "truncation": "disabled",
        "error": null,
        "metadata": {},
    });
    head.as_object_mut().expect("it is an object").extend(echo);
    let mut answered = Answered::new(head, id, reader, model);
    let mut response = match generation.stream {
        true => {
            let encoder = ResponseEvents::new(answered, Arc::clone(&app), kept);
            stream(choices, encoder, &app.lifecycle, &app.limits).await?
        }
        false => {
            let mut parts = Parts::default();
            let reader = &mut answered.reader;
            let whole = choices.whole_until(|_, text| reader.gather(text, &mut parts));
            let (mut wholes, totals) = app.unless_aborted(whole).await?;
            let whole = wholes.pop().unwrap_or_default();
            let body = answered.whole(parts, &whole, &totals);
            app.responses.keep(&kept, &body);
            Json(body).into_response()
        }
    };
    app.tell_ignored(&mut response, ignored);
    Ok(response)
}

/// `GET /v1/responses/{id}`
pub(crate) async fn get(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let owner = caller.key.as_ref().map(|key| key.name.to_string());
    let response = app.responses.response(&id, &owner);
    response.map(Json).ok_or_else(unknown)
}

/// `DELETE /v1/responses/{id}`
pub(crate) async fn delete(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let owner = caller.key.as_ref().map(|key| key.name.to_string());
    match app.responses.remove(&id, &owner) {
        true => Ok(Json(
            json!({ "id": id, "object": "response", "deleted": true }),
        )),
        false => Err(unknown()),
    }
}

fn unknown() -> ApiError {
    ApiError::new(StatusCode::NOT_FOUND, "there is no such response")
}

/// Reads items and tools.
///
/// # Errors
/// One of them has a wrong form.
pub(crate) fn read_input(fields: &mut Fields) -> Result<(), ApiError> {
    let items = input::items(fields.need("input")?)?;
    input::messages(&items)?;
    let tools: Vec<Value> = fields.take("tools")?.unwrap_or_default();
    input::tools(&tools)?;
    let format: Option<Map<String, Value>> = fields.take_fields("text")?.take("format")?;
    let format = format.as_ref();
    format.map(|format| of_format(format, "text")).transpose()?;
    Ok(())
}

/// What a response is to answer.
struct Asked {
    chat: Chat,
    structure: Option<Source>,
    calls: Calls,
    /// Fields that the response repeats.
    echo: Map<String, Value>,
}

/// Reads the conversation.
fn read(fields: &mut Fields, app: &App, kept: &mut Kept) -> Result<Asked, ApiError> {
    let instructions: Option<String> = fields.take("instructions")?;
    kept.items.extend(input::items(fields.need("input")?)?);
    let mut messages = input::messages(&kept.items)?;
    if let Some(text) = &instructions {
        messages.insert(0, json!({ "role": "system", "content": text }));
    }
    let messages = for_template(messages, &app.limits)?;
    let given: Vec<Value> = fields.take("tools")?.unwrap_or_default();
    let mut tools = input::tools(&given)?;
    check_tools(&tools, &app.limits)?;
    let choice = fields
        .take::<Value>("tool_choice")?
        .unwrap_or("auto".into());
    let forced = match choice.as_str() {
        Some("auto") => None,
        Some("none") => {
            tools.clear();
            None
        }
        Some("required") => Some(Forced::Any),
        _ => Some(named(&choice)?),
    };
    let parallel = fields.take("parallel_tool_calls")?.unwrap_or(true);
    let format: Option<Map<String, Value>> = fields.take_fields("text")?.take("format")?;
    let structure = format.as_ref().map(|format| of_format(format, "text"));
    let structure = structure.transpose()?.flatten();
    let format = format.map_or_else(|| json!({ "type": "text" }), Value::Object);
    let mut variables: Map<String, Value> =
        fields.take("chat_template_kwargs")?.unwrap_or_default();
    let effort: Option<String> = fields.take_fields("reasoning")?.take("effort")?;
    if let Some(effort) = &effort {
        let thinks = effort != "none";
        variables.entry("enable_thinking").or_insert(thinks.into());
        let effort = effort.as_str().into();
        variables.entry("reasoning_effort").or_insert(effort);
    }
    let echo = json!({
        "instructions": instructions,
        "tools": given,
        "tool_choice": choice,
        "parallel_tool_calls": parallel,
        "text": { "format": format },
        "reasoning": { "effort": effort, "summary": null },
    });
    let Value::Object(echo) = echo else {
        unreachable!("it was written as an object")
    };
    let chat = Chat {
        messages,
        tools,
        variables,
        continues: false,
        forced,
    };
    let calls = match parallel {
        true => Calls::Any,
        false => Calls::One,
    };
    Ok(Asked {
        chat,
        structure,
        calls,
        echo,
    })
}
