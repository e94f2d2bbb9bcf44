//! `cargo xtask gelu-golden`: records the logits of a deep Gemma 2 model in f64, with GELU and with llama.cpp's table of
//! it, and llama.cpp's own, for the engine's tests.

use std::path::Path;

use anyhow::{Context as _, Result};
use rocmforge_gguf::GgmlType;
use rocmforge_testkit::models::model_of;

use crate::python;

const SCRIPT: &str = include_str!("gelu_reference.py");

/// Writes the engine's fixture.
pub(crate) fn write(python: &Path) -> Result<()> {
    let path = crate::root().join("target/gen-model/gemma2-46-layers.gguf");
    let writer = model_of("gemma2", GgmlType::F32, 46).context("the model is gone")?;
    let mut writer = writer?;
    writer
        .set("gemma2.rope.scaling.attn_factor", 3f32)
        .set("gemma2.attn_logit_softcapping", 50f32);
    std::fs::create_dir_all(path.parent().context("the path has a folder")?)?;
    std::fs::write(&path, writer.to_vec()?)?;
    let rows = python::run(python, SCRIPT, [&path])?;
    python::write_fixture("crates/engine/tests/fixtures/gelu.json", rows)
}
