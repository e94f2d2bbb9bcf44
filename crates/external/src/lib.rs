//! The vendors' profilers and the counters of the system: commands, runs, results.
//!
//! A [`Request`] asks any of the tools and gets a [`ToolReport`]; [`RocprofSession`] and the other modules have each
//! tool's commands and parsers, [`helpers`] the usual questions. What a tool writes is a stranger's input: parsers
//! bound it and panic on none of it. [`sampler`] says how busy a device is while something runs.
//!
//! The tools' flags and forms are those of their documentation: rocprofiler-sdk of ROCm 6.2 to 7, AMD SMI 24 to 27,
//! rocprof-compute 3, Nsight Systems and Nsight Compute 2022 to 2025, perf 6.
#![forbid(unsafe_code)]

/// A sample of what a tool writes, among the seeds of the fuzzers.
#[cfg(test)]
macro_rules! sample {
    ($name:literal) => {
        concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../fuzz/seeds/external/",
            $name
        )
    };
}

pub mod amd_smi;
mod any;
mod command;
pub mod counters;
mod csv;
mod diagnosis;
mod error;
mod files;
pub mod helpers;
pub mod ncu;
pub mod nsys;
pub mod perf;
pub mod process;
mod request;
pub mod rocprof;
pub mod rocprof_compute;
pub mod sampler;
pub mod sysfs;
mod table;
pub mod tools;

pub use any::read_any;
pub use command::CommandLine;
pub use counters::{CounterCategory, GpuFamily};
pub use error::ExternalError;
pub use request::Request;
pub use rocprof::{ProfilingConfig, RocprofSession};
pub use table::{CounterRow, TimeRow, ToolReport};
pub use tools::{Tool, available_tools};
