//! The page at `/`: one file with nothing from elsewhere. Its policy allows the style and the script in it by their
//! hashes, and connections to this server.

use std::sync::LazyLock;

use axum::http::{HeaderName, HeaderValue, header};
use axum::response::{IntoResponse as _, Response};
use sha2::{Digest as _, Sha256};

use crate::base64::base64;

const PAGE: &str = include_str!("page.html");

/// The page's content security policy.
static POLICY: LazyLock<HeaderValue> = LazyLock::new(|| {
    let hash = |element: &str| {
        let open = format!("<{element}>");
        let close = format!("</{element}>");
        let (_, rest) = PAGE.split_once(&open).expect("the page has it");
        let (text, _) = rest.split_once(&close).expect("it is closed");
        base64(&Sha256::digest(text))
    };
    let policy = format!(
        "default-src 'none'; style-src 'sha256-{}'; script-src 'sha256-{}'; img-src data:; connect-src 'self'; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        hash("style"),
        hash("script"),
    );
    HeaderValue::from_str(&policy).expect("it has plain characters")
});

/// `GET /`
pub(crate) async fn page() -> Response {
    let headers: [(HeaderName, HeaderValue); 4] = [
        (
            header::CONTENT_TYPE,
            HeaderValue::from_static("text/html; charset=utf-8"),
        ),
        (header::CONTENT_SECURITY_POLICY, POLICY.clone()),
        (
            header::X_CONTENT_TYPE_OPTIONS,
            HeaderValue::from_static("nosniff"),
        ),
        (
            header::REFERRER_POLICY,
            HeaderValue::from_static("no-referrer"),
        ),
    ];
    (headers, PAGE).into_response()
}
