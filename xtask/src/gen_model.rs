//! `cargo xtask gen-model`: writes the small random models of the tests, one per architecture, so that other programs
//! can run them; `cargo xtask arch-golden`: records llama.cpp's logits of these models for the engine's tests.

use std::path::Path;

use anyhow::{Context as _, Result, bail};
use rocmforge_gguf::GgmlType;
use rocmforge_testkit::models;
use rocmforge_testkit::models::dflash::{Dflash, dflash};
use rocmforge_testkit::models::eagle3::{Eagle3, eagle3};
use rocmforge_testkit::models::{embeddings, families, plamo};

use crate::compare_llama::llama_cpp;
use crate::python;

/// Prompt lengths of the committed logits: one token, and a context below and above Phi's original one.
const LENGTHS: [usize; 3] = [1, 17, 300];
/// Every 37th logit of a row is kept.
const STRIDE: usize = 37;

pub(crate) use models::prompt;

/// Writes the model `name` with matrices of type `ty` to `out`.
pub(crate) fn write(name: &str, ty: &str, out: &Path) -> Result<()> {
    let known = GgmlType::from_name(ty).with_context(|| format!("no tensor type {ty}"))?;
    let model = models::model(name, known)
        .or_else(|| families::model(name, known))
        .or_else(|| embeddings::model(name, known))
        .or_else(|| plamo::model(name, known))
        .or_else(|| models::assistant(name.strip_suffix("_assistant")?, known))
        .or_else(|| Some(eagle3(Eagle3::named(name)?, known)))
        .or_else(|| Some(dflash(Dflash::named(name)?, known)));
    let Some(model) = model else {
        let names: Vec<&str> = names().collect();
        bail!(
            "there is no model {name}; the models are all, {}",
            names.join(", ")
        );
    };
    let bytes = model?.to_vec()?;
    std::fs::write(out, bytes).with_context(|| format!("writing {}", out.display()))
}

/// Writes every model to the folder `out`, as `NAME-TYPE.gguf`.
pub(crate) fn write_all(ty: &str, out: &Path) -> Result<()> {
    std::fs::create_dir_all(out).with_context(|| format!("making {}", out.display()))?;
    for name in names() {
        write(name, ty, &out.join(format!("{name}-{ty}.gguf")))?;
    }
    Ok(())
}

fn names() -> impl Iterator<Item = &'static str> {
    models::NAMES
        .into_iter()
        .chain(families::names())
        .chain(plamo::NAMES)
        .chain(embeddings::CASES.into_iter().map(|case| case.name))
}

/// Records llama.cpp's logits of every model for the engine's tests.
pub(crate) fn golden(python: &Path) -> Result<()> {
    let folder = crate::root().join("target/gen-model");
    write_all("F32", &folder)?;
    let mut entries = Vec::new();
    for name in models::NAMES {
        let path = folder.join(format!("{name}-F32.gguf"));
        entries.push(golden_model(name, |ids| llama_cpp(&path, ids, python))?);
    }
    for (name, ty) in models::QUANTIZED {
        let path = folder.join(format!("{name}-{ty}.gguf"));
        write(name, ty, &path)?;
        let name = format!("{name} {ty}");
        entries.push(golden_model(&name, |ids| llama_cpp(&path, ids, python))?);
    }
    write_golden("crates/engine/tests/fixtures/architectures.json", &entries)?;
    let mut entries = Vec::new();
    for name in families::names() {
        let path = folder.join(format!("{name}-F32.gguf"));
        write(name, "F32", &path)?;
        entries.push(golden_family(name, |ids| llama_cpp(&path, ids, python))?);
        std::fs::remove_file(&path)?;
    }
    write_golden("crates/engine/tests/fixtures/families.json", &entries)
}

/// The entry of a model of a row of families: for each prompt, a logit of every position, [`models::families::kept`].
fn golden_family(name: &str, mut logits: impl FnMut(&[u32]) -> Result<Vec<f32>>) -> Result<String> {
    let mut rows = Vec::new();
    for &n_tokens in families::prompts(name) {
        let logits = logits(&prompt(n_tokens, 512))?;
        let kept = families::kept(&logits, n_tokens);
        let kept: Vec<String> = kept.iter().map(|logit| format!("{logit:.4}")).collect();
        rows.push(format!("    \"{n_tokens}\": [{}]", kept.join(", ")));
    }
    Ok(format!("  \"{name}\": {{\n{}\n  }}", rows.join(",\n")))
}

/// The entry of a model among the committed logits: for each prompt length, every 37th logit after the last token.
/// `logits` returns those of all tokens, `[n_tokens, n_vocab]`.
pub(crate) fn golden_model(
    name: &str,
    mut logits: impl FnMut(&[u32]) -> Result<Vec<f32>>,
) -> Result<String> {
    let mut rows = Vec::new();
    for n_tokens in LENGTHS {
        let logits = logits(&prompt(n_tokens, 512))?;
        let last = &logits[logits.len() - logits.len() / n_tokens..];
        let kept = last.iter().step_by(STRIDE);
        let kept: Vec<String> = kept.map(|logit| format!("{logit:.6}")).collect();
        rows.push(format!("    \"{n_tokens}\": [{}]", kept.join(", ")));
    }
    Ok(format!("  \"{name}\": {{\n{}\n  }}", rows.join(",\n")))
}

/// Writes entries of [`golden_model`] to a fixture.
pub(crate) fn write_golden(path: &str, models: &[String]) -> Result<()> {
    python::write_fixture(path, format!("{{\n{}\n}}\n", models.join(",\n")))
}
