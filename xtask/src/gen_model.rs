//! `cargo xtask gen-model`: small random models of every wiring, as files, so that another program can run
//! what the tests run; `cargo xtask arch-golden`: llama.cpp's logits of these models, which the tests of the
//! engine compare with.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use rocmforge_gguf::GgmlType;
use rocmforge_testkit::models;

use crate::compare_llama::llama_cpp;

/// Prompt lengths of the committed logits: one token, a context below and one above Phi's original one.
const LENGTHS: [usize; 3] = [1, 17, 300];
/// Every so many of a row's logits is kept.
const STRIDE: usize = 37;

pub(crate) use models::prompt;

/// Writes the model `name` with matrices of type `ty` to `out`.
pub(crate) fn write(name: &str, ty: &str, out: &Path) -> Result<()> {
    let known = GgmlType::from_name(ty).with_context(|| format!("no tensor type {ty}"))?;
    let Some(model) = models::model(name, known) else {
        bail!(
            "no model {name}; there are: all, {}",
            models::NAMES.join(", ")
        );
    };
    let bytes = model?.to_vec()?;
    std::fs::write(out, bytes).with_context(|| format!("writing {}", out.display()))
}

/// Writes every model to the folder `out`, as `NAME-TYPE.gguf`.
pub(crate) fn write_all(ty: &str, out: &Path) -> Result<()> {
    std::fs::create_dir_all(out).with_context(|| format!("making {}", out.display()))?;
    for name in models::NAMES {
        write(name, ty, &out.join(format!("{name}-{ty}.gguf")))?;
    }
    Ok(())
}

/// What is committed of the logits `[n_tokens, n_vocab]`: some of the last row.
pub(crate) fn golden_row(logits: &[f32], n_tokens: usize) -> String {
    let last = &logits[logits.len() - logits.len() / n_tokens..];
    let kept: Vec<String> = last
        .iter()
        .step_by(STRIDE)
        .map(|logit| format!("{logit:.6}"))
        .collect();
    kept.join(", ")
}

/// Writes llama.cpp's logits of the last position of each prompt to the engine's fixtures.
pub(crate) fn golden(python: &Path) -> Result<()> {
    let folder = crate::root().join("target/gen-model");
    write_all("F32", &folder)?;
    let mut json = String::from("{\n");
    for (i, name) in models::NAMES.into_iter().enumerate() {
        write!(json, "  \"{name}\": {{")?;
        for (j, n_tokens) in LENGTHS.into_iter().enumerate() {
            let ids = prompt(n_tokens, 512);
            let logits = llama_cpp(&folder.join(format!("{name}-F32.gguf")), &ids, python)?;
            let comma = if j == 0 { "" } else { "," };
            let row = golden_row(&logits, n_tokens);
            write!(json, "{comma}\n    \"{n_tokens}\": [{row}]")?;
        }
        let comma = if i + 1 == models::NAMES.len() {
            ""
        } else {
            ","
        };
        writeln!(json, "\n  }}{comma}")?;
    }
    json.push_str("}\n");
    let path = crate::root().join("crates/engine/tests/fixtures/architectures.json");
    std::fs::write(&path, json).with_context(|| format!("writing {}", path.display()))?;
    println!("wrote {}", path.display());
    Ok(())
}
