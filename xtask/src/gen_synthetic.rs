//! `cargo xtask gen-synthetic`: writes models with the shapes of released ones and random weights.

use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::Path;

use anyhow::{Context as _, Result};
use rocmforge_gguf::{Gguf, LoadMode};
use rocmforge_quantize::synthetic::Synthetic;

/// Writes a model to `out`: `shape` is its shape and file type, as in `llama-3.1-8b:Q4_K_M`, and `vocab` the file whose
/// vocabulary it takes.
pub(crate) fn write(
    shape: &str,
    n_layers: Option<usize>,
    vocab: Option<&Path>,
    out: &Path,
) -> Result<()> {
    let mut synthetic = Synthetic {
        n_layers,
        ..shape.parse()?
    };
    if let Some(path) = vocab {
        let file = Gguf::open(path, LoadMode::Mmap)?;
        let of_vocab = |key: &str| key.starts_with("tokenizer.");
        let metadata = file.metadata().iter().filter(|(key, _)| of_vocab(key));
        synthetic.metadata = metadata
            .map(|(key, value)| (key.to_string(), value.into()))
            .collect();
    }
    let name = || format!("writing {}", out.display());
    let mut file = BufWriter::with_capacity(1 << 20, File::create(out).with_context(name)?);
    synthetic.write(&mut file).with_context(name)?;
    file.flush().with_context(name)
}
