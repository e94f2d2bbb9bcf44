//! `cargo xtask quant-errors`: what llama.cpp's quantizers leave of given values, as
//! the table that `crates/gguf/tests/quantize.rs` holds the quantizers here to.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};

const SCRIPT: &str = include_str!("quant_errors.py");

/// Writes the table in place.
pub(crate) fn write(model: &Path, python: &Path) -> Result<()> {
    let output = Command::new(python)
        .args(["-c", SCRIPT])
        .arg(model)
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("starting {}", python.display()))?;
    if !output.status.success() {
        bail!(
            "{} failed; it needs the packages llama-cpp-python and gguf",
            python.display()
        );
    }
    let path = crate::root().join("crates/gguf/tests/fixtures/errors/llama_cpp.tsv");
    std::fs::write(&path, output.stdout).with_context(|| format!("writing {}", path.display()))?;
    println!("wrote {}", path.display());
    Ok(())
}
