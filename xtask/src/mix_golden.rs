//! `cargo xtask mix-golden`: the tensor types that llama.cpp's quantizer chooses for models of many shapes,
//! which the engine's tests compare its own choice with.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, bail};

const SCRIPT: &str = include_str!("llama_mixes.py");

/// Writes the table to the engine's fixtures.
pub(crate) fn write(python: &Path) -> Result<()> {
    let output = Command::new(python)
        .args(["-c", SCRIPT])
        .output()
        .with_context(|| format!("cannot run {}", python.display()))?;
    if !output.status.success() {
        bail!(
            "llama.cpp failed: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    let path = crate::root().join("crates/engine/tests/fixtures/mixes.json");
    std::fs::write(&path, output.stdout).with_context(|| format!("writing {}", path.display()))?;
    println!("wrote {}", path.display());
    Ok(())
}
