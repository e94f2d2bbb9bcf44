//! Measures parts of rocmforge on their own (bench suites), keeps the results (baselines) and decides whether later
//! results are worse.
//!
//! A number is never compared with one from other hardware unless the user asks for it, and never called worse on noise
//! alone. A suite is a list of cases: [`run()`] prepares each on each device, lets the [`harness`] time it, and makes a
//! [`BenchRow`] of the samples and the work of the case. [`export`] writes rows as text; [`mod@baseline`] keeps and
//! compares them.
#![forbid(unsafe_code)]

pub mod baseline;
mod case;
mod error;
pub mod export;
mod filter;
pub mod harness;
pub mod load;
mod options;
pub mod pace;
pub mod requests;
pub mod row;
mod run;
mod suites;
mod target;
mod values;

pub use error::BenchError;
pub use filter::Filter;
pub use options::{Effort, Options, Subject, Suite};
pub use row::BenchRow;
pub use run::{Outcome, Sink, row_names, run, wanted_names};
pub use target::{BenchDevice, found_gpus};
