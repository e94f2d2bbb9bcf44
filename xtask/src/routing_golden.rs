//! `cargo xtask routing-golden`: records logits of a qwen3moe model in Q5_1 in f64, with this engine's and with
//! llama.cpp's rounding of sums, and llama.cpp's own, for the engine's tests.

use std::path::Path;

use anyhow::{Context as _, Result};

use crate::{gen_model, python};

const SCRIPT: &str = include_str!("routing_reference.py");

/// Writes the engine's fixture.
pub(crate) fn write(python: &Path) -> Result<()> {
    let path = crate::root().join("target/gen-model/qwen3moe-Q5_1.gguf");
    std::fs::create_dir_all(path.parent().context("the path has a folder")?)?;
    gen_model::write("qwen3moe", "Q5_1", &path)?;
    let rows = python::run(python, SCRIPT, [&path])?;
    python::write_fixture("crates/engine/tests/fixtures/routing.json", rows)
}
