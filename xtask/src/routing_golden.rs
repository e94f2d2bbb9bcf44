//! `cargo xtask routing-golden`: records, for the engine's tests, logits in f64 and those of llama.cpp where llama.cpp
//! chooses other experts: of a qwen3moe model in Q5_1, with both engines' rounding of sums, and of a deepseek2 model in
//! F32, with each of two experts that are nearly tied.

use std::path::Path;

use anyhow::{Context as _, Result};

use crate::{gen_model, python};

/// Model, type, script and fixture.
const REFERENCES: [(&str, &str, &str, &str); 2] = [
    (
        "qwen3moe",
        "Q5_1",
        include_str!("routing_reference.py"),
        "routing.json",
    ),
    (
        "deepseek2",
        "F32",
        include_str!("latent_reference.py"),
        "latent.json",
    ),
];

/// Writes the engine's fixtures.
pub(crate) fn write(python: &Path) -> Result<()> {
    for (model, ty, script, fixture) in REFERENCES {
        let path = crate::root().join(format!("target/gen-model/{model}-{ty}.gguf"));
        std::fs::create_dir_all(path.parent().context("the path has a folder")?)?;
        gen_model::write(model, ty, &path)?;
        let rows = python::run(python, script, [&path])?;
        python::write_fixture(&format!("crates/engine/tests/fixtures/{fixture}"), rows)?;
    }
    Ok(())
}
