//! `GET /openapi.json`: the description of all routes, for programs that make clients. It is written by hand, as handlers
//! read fields one by one; tests hold it to what the server does.

use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse as _, Response};

const DOCUMENT: &str = include_str!("openapi.json");

/// `GET /openapi.json`
pub(crate) async fn document() -> Response {
    let kind = HeaderValue::from_static("application/json");
    ([(header::CONTENT_TYPE, kind)], DOCUMENT).into_response()
}
