//! How fast a model runs, what it waits for, whether that got worse, and whether it is the machine's limit.
//!
//! [`report::Profile`] is what a profiled run found; [`render`] makes files for people and tools of it. [`mod@bench`]
//! measures parts of the program by themselves; [`baseline`] keeps measurements and compares them; [`external`] drives
//! the vendors' profilers. All of them summarise samples with [`stats`].
#![forbid(unsafe_code)]

pub mod advisor;
pub mod baseline;
pub mod bench;
mod ceilings;
pub mod clock;
pub mod external;
pub mod launches;
pub mod ops;
pub mod phases;
pub mod render;
pub mod report;
pub mod stats;
pub mod telemetry;
pub mod timeline;
pub mod timer;
pub mod ttft;
