//! Runs requests: the models, the answers that are under way, and the phases of the server's life.

pub(crate) mod choices;
pub(crate) mod compilers;
pub(crate) mod costs;
pub(crate) mod embedding;
pub(crate) mod fleet;
pub(crate) mod identity;
pub(crate) mod lifecycle;
pub(crate) mod model;
pub(crate) mod reader;
pub(crate) mod resume;
pub(crate) mod shared;
pub(crate) mod slot;
pub(crate) mod structured;
pub(crate) mod workers;
