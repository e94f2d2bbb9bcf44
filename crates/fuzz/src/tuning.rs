//! Target `tuning`: parses lines of a cache of autotuning results, which hold shapes and choices.

use std::fmt::{Debug, Display};
use std::str::FromStr;

use rocmforge_runtime::tuning::{Choice, Shape};

pub(crate) fn run(data: &[u8]) {
    for line in String::from_utf8_lossy(data).lines() {
        check::<Shape>(line);
        check::<Choice>(line);
    }
}

/// Checks that a line that parses is written back unchanged.
fn check<T: FromStr + Display + Debug + PartialEq>(line: &str) {
    if let Ok(value) = line.parse::<T>() {
        assert_eq!(value.to_string(), line, "{value:?}");
    }
}
