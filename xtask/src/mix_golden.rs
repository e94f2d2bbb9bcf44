//! `cargo xtask mix-golden`: records the tensor types that llama.cpp's quantizer chooses for models of many shapes, for
//! the engine's tests.

use std::path::Path;

use anyhow::Result;

use crate::python;

const SCRIPT: &str = include_str!("llama_mixes.py");

/// Writes the table to the engine's fixtures.
pub(crate) fn write(python: &Path) -> Result<()> {
    let table = python::run(python, SCRIPT, [""; 0])?;
    python::write_fixture("crates/engine/tests/fixtures/mixes.json", table)
}
