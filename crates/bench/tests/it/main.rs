//! Tests of the suites through the public API.

mod names;
