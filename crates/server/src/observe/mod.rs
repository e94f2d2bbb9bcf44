//! What the server tells about itself.

pub(crate) mod metrics;
