//! Runs external profilers and reads their results: rocprofv3, rocprof-compute, Nsight Systems and Compute, perf,
//! amd-smi.
//!
//! Output of a tool is untrusted: every parser bounds what it reads and never panics. A [`Request`] runs any of the
//! tools and returns a [`ToolReport`]; [`RocprofSession`] and the other modules have each tool's commands and parsers,
//! [`helpers`] ready-made sessions. [`sampler`] measures how busy a device is.
//!
//! Flags and formats follow the tools' documentation: rocprofiler-sdk and rocprof-compute of ROCm 6.2 to 10, AMD SMI 24 to
//! 27, Nsight Systems and Nsight Compute 2022 to 2025, perf 6.
#![forbid(unsafe_code)]

/// Path of a sample of a tool's output, among the fuzzers' seeds.
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
pub use request::{Request, Trace};
pub use rocprof::{ProfilingConfig, RocprofSession};
pub use rocprof_compute::Roofline;
pub use table::{CounterRow, OperationRow, TimeRow, ToolReport};
pub use tools::{Tool, available_tools};
