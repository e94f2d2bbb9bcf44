//! The suites from outside.

mod names;
