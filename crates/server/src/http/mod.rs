//! HTTP: connections, keys, request bodies, errors and streams.

pub(crate) mod auth;
pub(crate) mod caller;
pub(crate) mod connection;
pub(crate) mod connections;
pub(crate) mod cors;
pub(crate) mod error;
pub(crate) mod fields;
pub(crate) mod keys;
pub(crate) mod stream;
pub(crate) mod timed_io;
pub(crate) mod tls;
