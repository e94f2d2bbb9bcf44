//! Files of a profile for people and for tools: a trace, a flame graph, a page.
//!
//! Each has a `write` that takes a [`Profile`](rocmforge_profile::schema::Profile). What other pages need, the skeleton, tables and
//! line charts, is in [`html`], [`numbers`] and [`chart`].
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
