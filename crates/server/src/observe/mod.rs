//! What the server tells about itself.

pub(crate) mod access_log;
pub(crate) mod metrics;
pub(crate) mod requests;
pub(crate) mod sensors;
pub(crate) mod steps;
pub(crate) mod traces;
