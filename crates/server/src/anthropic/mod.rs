//! Anthropic's API: messages, whole or as a stream, and the count of their tokens.

mod conversation;
mod events;
mod messages;

pub(crate) use messages::read;

use std::sync::Arc;

use axum::Router;
use axum::http;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use serde_json::{Value, json};

use crate::app::App;
use crate::http::error::ApiError;

/// The routes that need a key for answers.
pub(crate) fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/v1/messages", post(messages::create))
        .route("/v1/messages/count_tokens", post(messages::count))
}

/// An error in Anthropic's form.
pub(crate) struct AnthropicError(ApiError);

impl From<ApiError> for AnthropicError {
    fn from(error: ApiError) -> AnthropicError {
        AnthropicError(error)
    }
}

/// Returns the error as Anthropic's clients read it.
pub(crate) fn body(error: &ApiError) -> Value {
    let kind = match error.status {
        StatusCode::UNAUTHORIZED => "authentication_error",
        StatusCode::FORBIDDEN => "permission_error",
        StatusCode::NOT_FOUND => "not_found_error",
        StatusCode::PAYLOAD_TOO_LARGE => "request_too_large",
        StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
        StatusCode::SERVICE_UNAVAILABLE => "overloaded_error",
        status if status.is_server_error() => "api_error",
        _ => "invalid_request_error",
    };
    json!({ "type": "error", "error": { "type": kind, "message": error.message } })
}

impl IntoResponse for AnthropicError {
    fn into_response(self) -> Response {
        let body = body(&self.0).to_string();
        let (mut parts, _) = self.0.into_response().into_parts();
        parts.headers.remove(http::header::CONTENT_LENGTH);
        Response::from_parts(parts, body.into())
    }
}
