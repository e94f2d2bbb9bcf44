//! Errors as clients get them, in OpenAI's form.

use std::time::Duration;

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use rocmforge_engine::serve::SubmitError;
use rocmforge_engine::{EngineError, Failure, RequestError};
use rocmforge_text::chat_template::{RenderError, TemplateError};
use serde_json::{Value, json};

/// Why a request is refused or failed.
#[derive(Debug, Clone)]
pub(crate) struct ApiError {
    pub(crate) status: StatusCode,
    /// A word that programs can compare.
    pub(crate) code: Option<&'static str>,
    /// The field at fault.
    pub(crate) param: Option<String>,
    pub(crate) message: String,
    /// Seconds after which the client may try again.
    pub(crate) retry_after: Option<u64>,
}

impl ApiError {
    pub(crate) fn new(status: StatusCode, message: impl Into<String>) -> ApiError {
        ApiError {
            status,
            code: None,
            param: None,
            message: message.into(),
            retry_after: None,
        }
    }

    /// A request that is wrong in itself.
    pub(crate) fn bad(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::BAD_REQUEST, message)
    }

    /// A request with a wrong field.
    pub(crate) fn field(name: impl Into<String>, message: impl Into<String>) -> ApiError {
        let name = name.into();
        let message = format!("{name}: {}", message.into());
        ApiError {
            param: Some(name),
            ..ApiError::bad(message)
        }
    }

    pub(crate) fn code(self, code: &'static str) -> ApiError {
        ApiError {
            code: Some(code),
            ..self
        }
    }

    pub(crate) fn retry_after(self, seconds: u64) -> ApiError {
        ApiError {
            retry_after: Some(seconds),
            ..self
        }
    }

    /// The server is about to end.
    pub(crate) fn stopping() -> ApiError {
        ApiError::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "the server is shutting down; send the request to another one or try again",
        )
        .code("shutting_down")
        .retry_after(5)
    }

    /// The engine of a model has failed. It is loaded again, or the server ends.
    pub(crate) fn model_failed() -> ApiError {
        ApiError::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "the model has failed and is not available now; try again later, or use another one",
        )
        .code("model_failed")
        .retry_after(10)
    }

    /// The server's owner has ended the request. The status is none that clients try again after.
    pub(crate) fn ended() -> ApiError {
        let message = "the server's owner has ended this request";
        ApiError::new(StatusCode::FORBIDDEN, message).code("ended_by_owner")
    }

    /// An error of this program.
    pub(crate) fn internal(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, message)
    }

    fn kind(&self) -> &'static str {
        match self.status {
            StatusCode::UNAUTHORIZED => "authentication_error",
            StatusCode::FORBIDDEN => "permission_error",
            StatusCode::NOT_FOUND => "not_found_error",
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            status if status.is_server_error() => "server_error",
            _ => "invalid_request_error",
        }
    }

    /// The error as a JSON document.
    pub(crate) fn body(&self) -> Value {
        json!({
            "error": {
                "message": self.message,
                "type": self.kind(),
                "param": self.param,
                "code": self.code,
            }
        })
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(self.body())).into_response();
        let headers = response.headers_mut();
        if let Some(seconds) = self.retry_after {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

impl From<EngineError> for ApiError {
    fn from(error: EngineError) -> ApiError {
        let message = error.to_string();
        match error {
            EngineError::Request(error) => match error {
                RequestError::PromptTooLong { .. } | RequestError::TextTooLong { .. } => {
                    ApiError::bad(message).code("context_length_exceeded")
                }
                RequestError::LoadedForEmbeddings | RequestError::LoadedForText => {
                    ApiError::new(StatusCode::NOT_IMPLEMENTED, message).code("wrong_model")
                }
                RequestError::NotFinite => ApiError::internal(message),
                _ => ApiError::bad(message),
            },
            // What remains of the configuration is a setting that the request changed.
            EngineError::Config(_) => ApiError::bad(message),
            EngineError::Device(_) => ApiError::internal(message),
            EngineError::Failed(failure) => failure.into(),
        }
    }
}

impl From<Failure> for ApiError {
    fn from(failure: Failure) -> ApiError {
        let message = failure.to_string();
        match failure {
            Failure::NotStarted => {
                ApiError::new(StatusCode::GATEWAY_TIMEOUT, message).code("queue_timeout")
            }
            Failure::Overloaded { less_after, .. } => {
                ApiError::new(StatusCode::TOO_MANY_REQUESTS, message)
                    .code("overloaded")
                    .retry_after(whole_seconds(less_after))
            }
            Failure::EngineStopped => ApiError::model_failed(),
            _ => ApiError::internal(message),
        }
    }
}

impl From<SubmitError> for ApiError {
    fn from(error: SubmitError) -> ApiError {
        match error {
            SubmitError::Invalid(error) => error.into(),
            SubmitError::Stopped => ApiError::model_failed(),
            SubmitError::Full(_) => {
                ApiError::new(StatusCode::TOO_MANY_REQUESTS, error.to_string()).code("queue_full")
            }
            error => ApiError::internal(error.to_string()),
        }
    }
}

/// Returns the seconds that a client should wait, from 1 to an hour.
pub(crate) fn whole_seconds(time: Duration) -> u64 {
    time.as_secs_f64().ceil().clamp(1.0, 3600.0) as u64
}

impl From<TemplateError> for ApiError {
    fn from(error: TemplateError) -> ApiError {
        let message = format!("the chat template: {error}");
        match error {
            TemplateError::Render(RenderError::Refused { .. }) => {
                ApiError::field("messages", message)
            }
            _ => ApiError::internal(message),
        }
    }
}
