//! Renders profiles, comparisons and trends: HTML pages, charts, flame graphs, Chrome traces, JUnit and Markdown.
//!
//! Every string in a profile or baseline is untrusted: each writer escapes all text, and a page loads nothing and runs
//! only its own scripts. [`page`], [`flamegraph`] and [`trace`] write a
//! [`Profile`](rocmforge_profile::schema::Profile); [`trend`], [`junit`] and [`markdown`] write results of
//! [`rocmforge_bench::baseline`]. [`html`], [`numbers`] and [`chart`] are shared by all pages.
#![forbid(unsafe_code)]

pub mod chart;
pub mod flamegraph;
pub mod html;
pub mod junit;
mod kinds;
pub mod markdown;
pub mod numbers;
pub mod page;
pub mod trace;
mod tracks;
pub mod trend;
