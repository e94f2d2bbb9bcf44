//! `cargo xtask gelu-golden`: records the logits of a deep Gemma 2 model and of Gemma 4 models in f64, with GELU and with
//! llama.cpp's table of it, and llama.cpp's own, for the engine's tests.

use std::path::Path;

use anyhow::{Context as _, Result};
use rocmforge_gguf::{GgmlType, Writer};
use rocmforge_testkit::models::{model, model_of};

use crate::python;

/// Writes the engine's fixture.
pub(crate) fn write(python: &Path) -> Result<()> {
    let mut gemma2 = model_of("gemma2", GgmlType::F32, 46).context("the model is gone")??;
    gemma2
        .set("gemma2.rope.scaling.attn_factor", 3f32)
        .set("gemma2.attn_logit_softcapping", 50f32);
    let script = include_str!("gelu_reference.py");
    let mut entries = vec![entry("gemma2", &gemma2, python, script)?];
    for name in ["gemma4", "gemma4_moe"] {
        let writer = model(name, GgmlType::F32).context("the model is gone")??;
        let script = include_str!("gelu_gemma4.py");
        entries.push(entry(name, &writer, python, script)?);
    }
    let all = format!("{{\n{}\n}}\n", entries.join(",\n"));
    python::write_fixture("crates/engine/tests/fixtures/gelu.json", all)
}

/// Returns what `script` prints about a model, as an entry of the fixture.
fn entry(name: &str, writer: &Writer<'_>, python: &Path, script: &str) -> Result<String> {
    let path = crate::root().join(format!("target/gen-model/{name}-gelu.gguf"));
    std::fs::create_dir_all(path.parent().context("the path has a folder")?)?;
    std::fs::write(&path, writer.to_vec()?)?;
    let rows = String::from_utf8(python::run(python, script, [&path])?)?;
    std::fs::remove_file(&path)?;
    Ok(format!("  \"{name}\": {}", rows.trim()))
}
