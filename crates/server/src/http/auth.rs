//! Who asks: checks the key and the host of every request, and gives each an id.

use std::sync::Arc;

use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};

use super::caller::{Caller, REQUEST_ID};
use super::connection::Connection;
use super::cors::Origins;
use super::error::ApiError;
use super::keys::{Key, Scope};
use crate::anthropic::AnthropicError;
use crate::app::App;
use crate::ollama::OllamaError;

/// Where Anthropic's clients send their key.
const API_KEY: HeaderName = HeaderName::from_static("x-api-key");
/// Where a browser says which page caused a request.
const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
/// The span of the client that a request belongs to.
const TRACE_PARENT: HeaderName = HeaderName::from_static("traceparent");
/// Longest id that a client may choose.
const MAX_ID_BYTES: usize = 128;

/// Lets requests with a key for answers pass.
pub(crate) async fn infer(state: State<Arc<App>>, request: Request, next: Next) -> Response {
    with_scope(Scope::Infer, state, request, next).await
}

/// Lets requests with a key of the server's owner pass; without keys those of programs, and of the server's own page.
pub(crate) async fn admin(state: State<Arc<App>>, request: Request, next: Next) -> Response {
    if state.keys().is_empty() && is_sent_elsewhere(request.headers()) {
        let message = "a page of another site asks for a route of the server's owner";
        return ApiError::new(StatusCode::FORBIDDEN, message).into_response();
    }
    with_scope(Scope::Admin, state, request, next).await
}

/// Lets requests with a key for metrics pass.
pub(crate) async fn metrics(state: State<Arc<App>>, request: Request, next: Next) -> Response {
    with_scope(Scope::Metrics, state, request, next).await
}

async fn with_scope(
    scope: Scope,
    State(app): State<Arc<App>>,
    mut request: Request,
    next: Next,
) -> Response {
    match key(&app, request.headers(), scope) {
        Ok(key) => {
            let route = request.extensions().get::<MatchedPath>();
            let id = request.headers().get(REQUEST_ID);
            let connection = request.extensions().get::<Connection>();
            let caller = Caller {
                key,
                kept: None,
                trace_parent: trace_parent(&app, request.headers()),
                connection: connection.cloned().unwrap_or_default(),
                id: id
                    .and_then(|id| id.to_str().ok())
                    .unwrap_or_default()
                    .to_string(),
                route: route.map_or_else(String::new, |route| route.as_str().to_string()),
            };
            request.extensions_mut().insert(caller.clone());
            let mut response = next.run(request).await;
            response.extensions_mut().insert(caller);
            response
        }
        Err(error) => in_form_of(request.uri().path(), error),
    }
}

/// Returns an error in the form that the clients of a route read.
fn in_form_of(path: &str, error: ApiError) -> Response {
    match path {
        path if path.starts_with("/v1/messages") => AnthropicError::from(error).into_response(),
        path if path.starts_with("/api/") => OllamaError::from(error).into_response(),
        _ => error.into_response(),
    }
}

/// Returns the key of a request, if the server has keys.
///
/// # Errors
/// It is missing, unknown, or not for this.
fn key(app: &App, headers: &HeaderMap, scope: Scope) -> Result<Option<Arc<Key>>, ApiError> {
    let keys = app.keys();
    if keys.is_empty() {
        return Ok(None);
    }
    let unknown =
        |message: &str| ApiError::new(StatusCode::UNAUTHORIZED, message).code("invalid_api_key");
    let sent = sent_key(headers).ok_or_else(|| {
        unknown("a key is missing; send it as `Authorization: Bearer KEY` or `x-api-key: KEY`")
    })?;
    let key = keys.find(sent);
    let key = key.ok_or_else(|| unknown("the key is wrong; ask the server's owner for one"))?;
    match key.may(scope) {
        true => Ok(Some(key)),
        false => Err(ApiError::new(
            StatusCode::FORBIDDEN,
            "this key may not use this route; ask the server's owner for its scope",
        )),
    }
}

fn trace_parent(app: &App, headers: &HeaderMap) -> Option<String> {
    app.traces.as_ref()?;
    let parent = headers.get(TRACE_PARENT)?.to_str().ok()?;
    Some(parent.to_string())
}

fn sent_key(headers: &HeaderMap) -> Option<&[u8]> {
    if let Some(key) = headers.get(API_KEY) {
        return Some(key.as_bytes());
    }
    let (scheme, key) = headers
        .get(header::AUTHORIZATION)?
        .as_bytes()
        .split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then_some(key)
}

/// Checks the `Host` of a server on loopback, so that no page of another site can reach it by a name that leads here.
/// Echoes or creates the id of the request.
pub(crate) async fn host_and_id(
    State(app): State<Arc<App>>,
    mut request: Request,
    next: Next,
) -> Response {
    let id = request.headers().get(REQUEST_ID);
    let id = id.filter(|id| is_id(id)).cloned();
    let id = id.unwrap_or_else(|| {
        HeaderValue::from_str(&app.new_id("req-")).expect("an id has plain characters")
    });
    let headers = request.headers_mut();
    headers.insert(REQUEST_ID, id.clone());
    let refusal = if app.is_local && !is_local(headers) {
        Some("this server answers on localhost only; it was asked by another name")
    } else if app.keys().is_empty() && is_foreign(headers) && !is_listed(&app.origins, headers) {
        Some(
            "a page of another site asks, and this server has no keys; start it with a keys file, or list the site's origin",
        )
    } else {
        None
    };
    let mut response = match refusal {
        Some(message) => ApiError::new(StatusCode::FORBIDDEN, message).into_response(),
        None => next.run(request).await,
    };
    response.headers_mut().insert(REQUEST_ID, id);
    response
}

fn is_id(id: &HeaderValue) -> bool {
    let is_part = |c: &u8| c.is_ascii_alphanumeric() || matches!(c, b'-' | b'_' | b'.');
    (1..=MAX_ID_BYTES).contains(&id.len()) && id.as_bytes().iter().all(is_part)
}

/// Whether a page of another site sent the request. Without keys, any page that a user opens could have answers computed.
fn is_foreign(headers: &HeaderMap) -> bool {
    let Some(origin) = headers.get(header::ORIGIN) else {
        return false;
    };
    let origin = origin.to_str().unwrap_or_default();
    let own = headers
        .get(header::HOST)
        .and_then(|host| host.to_str().ok());
    let (_, host) = origin.split_once("://").unwrap_or_default();
    own.is_none_or(|own| !host.eq_ignore_ascii_case(own))
}

fn is_listed(origins: &Origins, headers: &HeaderMap) -> bool {
    let origin = headers.get(header::ORIGIN);
    origin.is_some_and(|origin| origins.allow(origin))
}

/// Whether a browser says that a page of another site caused the request. It says so of links and pictures, too, which
/// have no origin.
fn is_sent_elsewhere(headers: &HeaderMap) -> bool {
    let site = headers.get(FETCH_SITE);
    site.is_some_and(|site| site != "same-origin" && site != "none")
}

fn is_local(headers: &HeaderMap) -> bool {
    let Some(Ok(host)) = headers.get(header::HOST).map(HeaderValue::to_str) else {
        return true;
    };
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|c| c.is_ascii_digit()) => name,
        _ => host,
    };
    let name = name.trim_start_matches('[').trim_end_matches(']');
    match name.parse::<std::net::IpAddr>() {
        Ok(address) => address.is_loopback(),
        Err(_) => name.eq_ignore_ascii_case("localhost"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knows_names_of_this_machine() {
        let host = |name: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::HOST, HeaderValue::from_str(name).unwrap());
            is_local(&headers)
        };
        for name in [
            "localhost",
            "LocalHost:8080",
            "127.0.0.1:1",
            "[::1]:80",
            "[::1]",
            "127.9.9.9",
        ] {
            assert!(host(name), "{name}");
        }
        for name in [
            "example.com",
            "localhost.example.com:80",
            "10.0.0.1",
            "localhost:x",
            "",
        ] {
            assert!(!host(name), "{name}");
        }
    }

    #[test]
    fn knows_pages_of_other_sites() {
        let page = |origin: &str, host: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::ORIGIN, HeaderValue::from_str(origin).unwrap());
            headers.insert(header::HOST, HeaderValue::from_str(host).unwrap());
            is_foreign(&headers)
        };
        assert!(!page("http://127.0.0.1:8080", "127.0.0.1:8080"));
        assert!(!page("https://LocalHost", "localhost"));
        assert!(page("http://example.com", "127.0.0.1:8080"));
        assert!(page("http://127.0.0.1:3000", "127.0.0.1:8080"));
        assert!(page("null", "127.0.0.1:8080"));
        assert!(!is_foreign(&HeaderMap::new()));
    }

    #[test]
    fn knows_what_other_pages_cause() {
        let sent = |site| {
            let mut headers = HeaderMap::new();
            headers.insert(FETCH_SITE, HeaderValue::from_static(site));
            is_sent_elsewhere(&headers)
        };
        // The words of the specification of Fetch Metadata.
        assert!(sent("cross-site") && sent("same-site"));
        assert!(!sent("same-origin") && !sent("none"));
        assert!(!is_sent_elsewhere(&HeaderMap::new()));
    }

    #[test]
    fn reads_keys_from_both_headers() {
        let mut headers = HeaderMap::new();
        assert_eq!(sent_key(&headers), None);
        headers.insert(header::AUTHORIZATION, HeaderValue::from_static("Basic abc"));
        assert_eq!(sent_key(&headers), None);
        headers.insert(
            header::AUTHORIZATION,
            HeaderValue::from_static("bearer abc"),
        );
        assert_eq!(sent_key(&headers), Some(&b"abc"[..]));
        headers.insert(API_KEY, HeaderValue::from_static("xyz"));
        assert_eq!(sent_key(&headers), Some(&b"xyz"[..]));
    }
}
