//! Tests of all output files against the rules of their formats, and of the pages in a browser.

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
