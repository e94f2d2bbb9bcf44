//! `cargo xtask gen-synthetic`: models of released shapes with random weights, as files.

use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::Path;

use anyhow::{Context as _, Result};
use rocmforge::engine::quantize::{FileType, QuantizeOptions, TypeRule};
use rocmforge::engine::synthetic::{SHAPES, Shape, Synthetic};

/// Writes a model of `shape` to `out`; `types` is a file type, or a tensor type for all matrices.
pub(crate) fn write(shape: &str, types: &str, n_layers: Option<usize>, out: &Path) -> Result<()> {
    let synthetic = Synthetic {
        shape: Shape::find(shape).with_context(|| {
            let names: Vec<&str> = SHAPES.iter().map(|shape| shape.name).collect();
            format!("no shape {shape}; there are: {}", names.join(", "))
        })?,
        types: options(types)?,
        n_layers,
    };
    let name = || format!("writing {}", out.display());
    let mut file = BufWriter::with_capacity(1 << 20, File::create(out).with_context(name)?);
    synthetic.write(&mut file).with_context(name)?;
    file.flush().with_context(name)
}

fn options(types: &str) -> Result<QuantizeOptions> {
    if let Some(file_type) = FileType::from_name(types) {
        return Ok(QuantizeOptions::new(file_type));
    }
    let mut options = QuantizeOptions::new(FileType::F32);
    options.rules = vec![TypeRule::parse(&format!(".*={types}"))?];
    Ok(options)
}
