//! Measures what a run of a model costs: the time of each operation, phase and launch, and how close it comes to what
//! the machine can do.
//!
//! Nothing here changes what the engine computes: it only observes, through [`timer::Collector`]. [`schema::Profile`]
//! is the result as plain data; [`stats`] summarises samples.
#![forbid(unsafe_code)]

pub mod advisor;
mod ceilings;
pub mod clock;
pub mod launches;
pub mod ops;
pub mod phases;
pub mod schema;
pub mod stats;
pub mod telemetry;
pub mod timeline;
pub mod timer;
pub mod ttft;
