//! The files of a profile, held to the rules of their formats, and the page to what a browser makes of it.

mod browser;
mod fixture;
mod flamegraph;
mod hostile;
mod page;
mod shown;
mod trace;
