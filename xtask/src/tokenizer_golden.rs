//! `cargo xtask tokenizer-golden`: records llama.cpp's tokens of nasty texts, for the tests of tokenizers.

use std::path::Path;

use anyhow::{Context as _, Result};

use crate::python;

const SCRIPT: &str = include_str!("tokenizer_golden.py");

/// Random texts; enough that each row of the table cuts one of them as no other row does.
const N_RANDOM: &str = "60";

/// Writes the tokens to the fixtures of the text crate. `source` is the file that names the pre-tokenizers.
pub(crate) fn write(source: &Path, python: &Path) -> Result<()> {
    let source = source.to_str().context("the path must be UTF-8")?;
    let rows = python::run(python, SCRIPT, [N_RANDOM, source])?;
    python::write_fixture("crates/text/tests/fixtures/tokenizers.json", rows)
}
