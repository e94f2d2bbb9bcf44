//! Files of a profile for people and for tools: a trace, a flame graph, a page.
//!
//! Each has a `write` that takes a [`Profile`](crate::report::Profile). What other pages need, the skeleton, tables and
//! line charts, is in [`html`], [`numbers`] and [`chart`].

pub mod chart;
pub mod flamegraph;
pub mod html;
mod kinds;
pub mod numbers;
pub mod page;
pub mod trace;
mod tracks;
