//! Stores measurements as baselines and compares later ones with them.
//!
//! A [`Measurement`] is the result of any benchmark. A [`PerformanceBaseline`] holds measurements of a machine
//! ([`Hardware`]) and is a file of a [`Store`]: schema A is written, A and B are read. [`compare_metrics`] compares a
//! benchmark, [`RegressionReport`] collects many comparisons, and [`Trend`] follows all files of a folder over time.

mod again;
mod compare;
mod error;
mod hardware;
mod metric;
mod pairs;
mod ratio;
mod read;
mod report;
mod rows;
mod rules;
mod schema;
mod store;
mod trend;

pub use compare::{Comparison, ComparisonResult, Doubt, Method, MetricComparison, compare_metrics};
pub use error::{BaselineError, SchemaError};
pub use hardware::{Difference, Hardware};
pub use metric::{Direction, direction};
pub use pairs::{Pairs, Verdict};
pub use ratio::Interval;
pub use report::{RegressionReport, Row, four_digits};
pub use rows::row_name;
pub use rules::{HardwareRule, Rules, Tails, Thresholds};
pub use schema::{
    Benchmark, ENOUGH_SAMPLES, MAX_SAMPLES, Measurement, OTHER_LOAD, PerformanceBaseline,
};
pub use store::{Store, Stored, check_name, is_path, read};
pub use trend::{Lost, Point, Series, Trend};
