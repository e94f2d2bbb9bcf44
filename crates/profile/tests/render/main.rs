//! The files of a profile, held to the rules of their formats, and the page to what a browser makes of it.

mod browser;
mod fixture;
mod flamegraph;
mod page;
mod trace;
