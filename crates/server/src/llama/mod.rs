//! Routes of llama-server: completions, embeddings, tokens, templates, properties, health, streams that are
//! read again.

mod completion;
mod embeddings;
mod streams;

use std::sync::Arc;

use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use rocmforge_gguf::TokenId;
use rocmforge_text::tokenizer::{EncodeOptions, LeadingSpace, SpecialText, Tokenizer};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::app::{App, Body};
use crate::http::caller::Caller;
use crate::http::error::ApiError;
use crate::openai::chat::Chat;
use crate::serving::lifecycle::Phase;

pub(crate) use streams::keep as keep_streams;

/// The routes that need a key for answers.
pub(crate) fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/completion", post(completion::complete))
        .route("/completions", post(completion::complete))
        .route("/infill", post(completion::infill))
        .route("/embedding", post(embeddings::embed))
        .route("/embeddings", post(embeddings::embed))
        .route("/tokenize", post(tokenize))
        .route("/detokenize", post(detokenize))
        .route("/apply-template", post(apply_template))
        .route("/props", get(props))
        .route("/v1/stream", get(streams::resume).delete(streams::end))
        .route("/v1/streams/lookup", post(streams::lookup))
}

/// The routes that need no key.
pub(crate) fn probes() -> Router<Arc<App>> {
    Router::new()
        .route("/health", get(ready))
        .route("/health/ready", get(ready))
        .route("/health/startup", get(ready))
        .route("/health/live", get(live))
}

/// `GET /health`, `/health/ready`, `/health/startup`: whether the server takes requests. It names the models that have
/// failed.
pub(crate) async fn ready(State(app): State<Arc<App>>) -> Response {
    let failed = app.fleet.failed();
    let status = match app.lifecycle.phase() {
        Phase::Starting => "starting",
        Phase::Ready if failed.len() == app.fleet.slots().len() => "failed",
        Phase::Ready => OK,
        Phase::Draining | Phase::Aborting | Phase::Ended => "draining",
    };
    health(status, &failed)
}

/// `GET /health/live`: whether the server runs at all. It does not if a device hangs.
pub(crate) async fn live(State(app): State<Arc<App>>) -> Response {
    health(
        match app.fleet.longest_step() > Some(app.limits.max_step_time) {
            true => "stuck",
            false => OK,
        },
        &[],
    )
}

/// The status of a server that is well.
const OK: &str = "ok";

fn health(status: &str, failed: &[&str]) -> Response {
    let code = match status {
        OK => StatusCode::OK,
        _ => StatusCode::SERVICE_UNAVAILABLE,
    };
    let mut body = json!({ "status": status });
    if !failed.is_empty() {
        body["failed"] = json!(failed);
    }
    (code, Json(body)).into_response()
}

/// Which model's properties are asked for; without a name, the first one's.
#[derive(Deserialize)]
struct Wanted {
    model: Option<String>,
}

/// `GET /props`: as of llama-server's router, what is known of a model without loading it.
async fn props(
    State(app): State<Arc<App>>,
    wanted: Result<Query<Wanted>, QueryRejection>,
) -> Result<Json<Value>, ApiError> {
    let Query(wanted) = wanted.map_err(|error| ApiError::bad(error.body_text()))?;
    let slot = app.fleet.slot(wanted.model.as_deref())?;
    let model = slot.ready();
    let model = model.as_ref();
    let text = |id: fn(&Tokenizer) -> Option<TokenId>| {
        let tokenizer = &model?.tokenizer;
        Some(tokenizer.token_text(id(tokenizer)?).into_owned())
    };
    Ok(Json(json!({
        "model_alias": slot.name(),
        "chat_template": model.map(|model| model.template.source()),
        "bos_token": text(Tokenizer::bos),
        "eos_token": text(Tokenizer::eos),
        "default_generation_settings": { "n_ctx": model.map_or(0, |model| model.engine.n_ctx()) },
        "build_info": format!("rocmforge {}", env!("CARGO_PKG_VERSION")),
    })))
}

/// `POST /tokenize`
pub(crate) async fn tokenize(
    State(app): State<Arc<App>>,
    caller: Caller,
    Body(mut fields): Body,
) -> Result<Response, ApiError> {
    let _ticket = app.admit(&caller)?;
    let model = app.model(&mut fields).await?;
    let content: String = fields.need("content")?;
    let options = EncodeOptions {
        add_special: fields.take("add_special")?.unwrap_or(false),
        parse_special: fields.take("parse_special")?.unwrap_or(true),
    };
    let with_pieces = fields.take("with_pieces")?.unwrap_or(false);
    let work = move || {
        let ids = model.tokenizer.encode(&content, options);
        let piece = |&id: &TokenId| json!({ "id": id, "piece": piece_of(&model.tokenizer, id) });
        let tokens = match with_pieces {
            true => ids.iter().map(piece).collect(),
            false => json!(ids),
        };
        Ok(json!({ "tokens": tokens }))
    };
    let body = app.workers.run(work).await?;
    Ok(app.answer(body, &fields))
}

/// The text of a token, or its bytes if they are no UTF-8.
fn piece_of(tokenizer: &Tokenizer, id: TokenId) -> Value {
    let bytes = tokenizer.token_bytes(id);
    std::str::from_utf8(bytes).map_or_else(|_| json!(bytes), |text| json!(text))
}

/// `POST /detokenize`
pub(crate) async fn detokenize(
    State(app): State<Arc<App>>,
    caller: Caller,
    Body(mut fields): Body,
) -> Result<Response, ApiError> {
    let _ticket = app.admit(&caller)?;
    let model = app.model(&mut fields).await?;
    let tokens: Vec<TokenId> = fields.need("tokens")?;
    let n_vocab = model.tokenizer.n_vocab();
    if let Some(id) = tokens.iter().find(|&&id| id as usize >= n_vocab) {
        let message = format!("{id} is outside the vocabulary of {n_vocab} tokens");
        return Err(ApiError::field("tokens", message));
    }
    let text = model
        .tokenizer
        .decode(&tokens, SpecialText::Show, LeadingSpace::Strip);
    Ok(app.answer(json!({ "content": text }), &fields))
}

/// `POST /apply-template`
pub(crate) async fn apply_template(
    State(app): State<Arc<App>>,
    caller: Caller,
    Body(mut fields): Body,
) -> Result<Response, ApiError> {
    let _ticket = app.admit(&caller)?;
    let model = app.model(&mut fields).await?;
    model.put_template_defaults(&mut fields);
    let chat = Chat::read(&mut fields, &app.limits)?;
    let work = move || Ok(chat.rendered(&model)?.text().to_string());
    let prompt = app.workers.run(work).await?;
    Ok(app.answer(json!({ "prompt": prompt }), &fields))
}
