//! `cargo xtask quant-errors`: measures the errors of llama.cpp's quantizers, the table that
//! `crates/gguf/tests/it/quantize.rs` compares the quantizers here with.

use std::path::Path;

use anyhow::Result;

use crate::python;

const SCRIPT: &str = include_str!("quant_errors.py");

/// Writes the table in place.
pub(crate) fn write(model: &Path, python: &Path) -> Result<()> {
    let table = python::run(python, SCRIPT, [model])?;
    python::write_fixture("crates/gguf/tests/fixtures/errors/llama_cpp.tsv", table)
}
