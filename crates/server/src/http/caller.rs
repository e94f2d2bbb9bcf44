//! Who asks, and for what.

use std::sync::Arc;

use axum::extract::FromRequestParts;
use axum::http::HeaderName;
use axum::http::request::Parts;

use super::connection::Connection;
use super::error::ApiError;
use super::keys::Key;
use crate::observe::requests::Asked;
use crate::serving::resume::Kept;

/// The header with the id of a request.
pub(crate) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// The client of a request, and what it asked for.
#[derive(Debug, Clone, Default)]
pub(crate) struct Caller {
    /// Its key, if the server has keys.
    pub(crate) key: Option<Arc<Key>>,
    /// The id of the request.
    pub(crate) id: String,
    /// The route as in the server's table.
    pub(crate) route: String,
    pub(crate) connection: Connection,
    /// Its header `traceparent`, if the server sends spans.
    pub(crate) trace_parent: Option<String>,
    /// What keeps its stream.
    pub(crate) kept: Option<Arc<Kept>>,
}

impl Caller {
    /// Returns what the owner may know of the request.
    pub(crate) fn asked(&self) -> Asked {
        Asked {
            id: self.id.clone(),
            route: self.route.clone(),
            key: self.key.as_ref().map(|key| key.name.to_string()),
        }
    }

    /// Returns whose the things are that the server keeps for the client.
    pub(crate) fn owner(&self) -> Option<Arc<str>> {
        self.key.as_ref().map(|key| Arc::clone(&key.name))
    }

    /// Caches of callers with different salts are apart.
    pub(crate) fn cache_salt(&self, own: Option<String>) -> Option<String> {
        match (&self.key, own) {
            (None, own) => own,
            (Some(key), own) => Some(format!("{}:{}", key.name, own.unwrap_or_default())),
        }
    }
}

impl<S: Sync> FromRequestParts<S> for Caller {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Caller, ApiError> {
        let caller = parts.extensions.get::<Caller>().cloned();
        caller.ok_or_else(|| ApiError::internal("this route checks no key"))
    }
}
