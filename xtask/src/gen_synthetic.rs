//! `cargo xtask gen-synthetic`: writes models with the shapes of released ones and random weights.

use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::Path;

use anyhow::{Context as _, Result};
use rocmforge_quantize::synthetic::Synthetic;

/// Writes a model of `shape` to `out`; `types` is a file type, or a tensor type for all matrices.
pub(crate) fn write(shape: &str, types: &str, n_layers: Option<usize>, out: &Path) -> Result<()> {
    let synthetic = Synthetic {
        n_layers,
        ..format!("{shape}:{types}").parse()?
    };
    let name = || format!("writing {}", out.display());
    let mut file = BufWriter::with_capacity(1 << 20, File::create(out).with_context(name)?);
    synthetic.write(&mut file).with_context(name)?;
    file.flush().with_context(name)
}
