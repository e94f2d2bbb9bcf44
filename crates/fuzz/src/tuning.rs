//! What a cache of tuning results holds: launches and how to make them, one or the other a line.

use std::fmt::{Debug, Display};
use std::str::FromStr;

use rocmforge_runtime::tuning::{Choice, Shape};

pub(crate) fn run(data: &[u8]) {
    for line in String::from_utf8_lossy(data).lines() {
        check::<Shape>(line);
        check::<Choice>(line);
    }
}

/// What is read is written as it was.
fn check<T: FromStr + Display + Debug + PartialEq>(line: &str) {
    if let Ok(value) = line.parse::<T>() {
        assert_eq!(value.to_string(), line, "{value:?}");
    }
}
