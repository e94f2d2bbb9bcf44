//! The files of a profile, held to the rules of their formats, and the page to what a browser makes of it.

mod browser;
mod comparison;
mod fixture;
mod flamegraph;
mod hostile;
mod junit;
mod markdown;
mod page;
mod shown;
mod trace;
mod trend;
