//! Ollama's API, so that programs made for it work unchanged. Streams are lines of JSON, and on unless turned off.

mod chat;
mod events;
mod keep_alive;
mod models;

use std::sync::Arc;

use axum::Router;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde_json::json;

use crate::app::App;
use crate::http::error::ApiError;

/// The routes that need a key for answers.
pub(crate) fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/api/chat", post(chat::chat))
        .route("/api/generate", post(chat::generate))
        .route("/api/embed", post(models::embed))
        .route("/api/embeddings", post(models::embed_one))
        .route("/api/tags", get(models::tags))
        .route("/api/ps", get(models::running))
        .route("/api/show", post(models::show))
        .route("/api/version", get(models::version))
}

/// An error in Ollama's form.
pub(crate) struct OllamaError(pub(crate) ApiError);

impl From<ApiError> for OllamaError {
    fn from(error: ApiError) -> OllamaError {
        OllamaError(error)
    }
}

impl IntoResponse for OllamaError {
    fn into_response(self) -> Response {
        let body = json!({ "error": self.0.message }).to_string();
        let (mut parts, _) = self.0.into_response().into_parts();
        parts.headers.remove(header::CONTENT_LENGTH);
        Response::from_parts(parts, body.into())
    }
}
