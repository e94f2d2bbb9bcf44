//! Synthetic models by name, `SHAPE:TYPE`, in memory: nothing is downloaded and no file is written.

use std::str::FromStr;

use rocmforge_cpu::memory::available_bytes;
use rocmforge_gguf::quant::can_quantize;
use rocmforge_gguf::{GgmlType, Gguf, shown};

use super::{Draft, SHAPES, Shape, Synthetic};
use crate::error::QuantizeError;
use crate::file_type::FileType;
use crate::options::{QuantizeOptions, TypeRule};

/// Why a synthetic model cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum SyntheticError {
    #[error(
        "'{found}' is not the name of a synthetic model; write SHAPE:TYPE, such as llama-3.1-8b:Q4_K_M"
    )]
    NoPair { found: String },
    #[error("unknown shape '{found}'; known shapes: {known}")]
    Shape { found: String, known: String },
    #[error("unknown type '{found}'; known types: {known}")]
    Type { found: String, known: String },
    #[error(
        "{name} needs {needed_mib} MiB for its weights, {free_mib} MiB are free; use a smaller shape or type"
    )]
    NoMemory {
        name: String,
        needed_mib: u64,
        free_mib: u64,
    },
    #[error(transparent)]
    Quantize(#[from] QuantizeError),
    #[error(transparent)]
    Gguf(#[from] rocmforge_gguf::Error),
}

impl FromStr for Synthetic {
    type Err = SyntheticError;

    /// Parses `SHAPE:TYPE`: a name in [`SHAPES`], and a file type, or a tensor type for all matrices.
    fn from_str(text: &str) -> Result<Synthetic, SyntheticError> {
        let found = || shown(text);
        let pair = text.split_once(':');
        let (shape, types) = pair.ok_or_else(|| SyntheticError::NoPair { found: found() })?;
        let shape = Shape::find(shape).ok_or_else(|| SyntheticError::Shape {
            found: shown(shape),
            known: join(SHAPES.iter().map(|shape| shape.name)),
        })?;
        Ok(Synthetic {
            shape,
            types: types_of(types)?,
            n_layers: None,
            metadata: Vec::new(),
        })
    }
}

/// Returns the types of a model's tensors: those of a file type, or a tensor type for all matrices.
///
/// # Errors
/// If there is no such type.
pub fn types_of(types: &str) -> Result<QuantizeOptions, SyntheticError> {
    let mixes = || FileType::ALL.iter().filter(|ty| **ty != FileType::COPY);
    if let Some(file_type) = FileType::from_name(types)
        && file_type != FileType::COPY
    {
        return Ok(QuantizeOptions::new(file_type));
    }
    let tensor_types = || GgmlType::ALL.iter().filter(|ty| can_quantize(**ty));
    let mut tensor_types_of_name =
        tensor_types().filter(|ty| ty.name().eq_ignore_ascii_case(types));
    let Some(ty) = tensor_types_of_name.next() else {
        let mut known: Vec<&str> = mixes().map(|ty| ty.name()).collect();
        let others = tensor_types().map(|ty| ty.name());
        known.extend(others.filter(|&name| FileType::from_name(name).is_none()));
        return Err(SyntheticError::Type {
            found: shown(types),
            known: join(known.into_iter()),
        });
    };
    let mut options = QuantizeOptions::new(FileType::F32);
    options.rules = vec![TypeRule::parse(&format!(".*={}", ty.name()))?];
    Ok(options)
}

fn join<'a>(names: impl Iterator<Item = &'a str>) -> String {
    names.collect::<Vec<_>>().join(", ")
}

impl Synthetic {
    /// Creates the model in memory.
    ///
    /// # Errors
    /// If memory for the weights is missing, or the tensors cannot have the types chosen.
    pub fn open(&self) -> Result<Gguf, SyntheticError> {
        self.draft()?.open(self.shape.name)
    }
}

impl Draft {
    /// Creates the model in memory; errors call it `name`.
    ///
    /// # Errors
    /// If memory for the weights is missing.
    pub fn open(&self, name: &str) -> Result<Gguf, SyntheticError> {
        self.open_within(name, available_bytes())
    }

    fn open_within(&self, name: &str, free: Option<u64>) -> Result<Gguf, SyntheticError> {
        let needed = self.file_bytes()?;
        let no_memory = |free: u64| SyntheticError::NoMemory {
            name: name.to_string(),
            needed_mib: needed >> 20,
            free_mib: free >> 20,
        };
        if let Some(free) = free.filter(|free| *free < needed) {
            return Err(no_memory(free));
        }
        let mut bytes = Vec::new();
        let reserved = usize::try_from(needed).map(|n| bytes.try_reserve_exact(n));
        if !matches!(reserved, Ok(Ok(()))) {
            return Err(no_memory(free.unwrap_or(0)));
        }
        self.write(&mut bytes)?;
        Ok(Gguf::from_vec(bytes)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_names_of_shapes_and_types() {
        let model: Synthetic = "llama-3.1-8b:q4_k_m".parse().unwrap();
        assert_eq!(
            (model.shape.n_embd, model.types.file_type),
            (4096, FileType::Q4_K_M)
        );
        // Llama 3.1 8B in Q4_K_M is a file of 4,920,734,272 bytes, about 8 MB of which are its vocabulary.
        let bytes = model.file_bytes().unwrap();
        assert!((4_905_000_000..4_921_000_000).contains(&bytes), "{bytes}");
        let mxfp4: Synthetic = "qwen2.5-0.5b:MXFP4".parse().unwrap();
        assert_eq!(mxfp4.types.rules.len(), 1);

        for (text, parts) in [
            ("llama", &["SHAPE:TYPE"][..]),
            ("", &["SHAPE:TYPE"]),
            (
                "llama-9-1b:Q4_0",
                &["llama-9-1b", "llama-3.1-8b", "qwen3-8b"],
            ),
            ("llama-3.1-8b:Q9", &["'Q9'", "Q4_K_M", "MXFP4"]),
            ("llama-3.1-8b:", &["''", "Q4_K_M"]),
            ("llama-3.1-8b:COPY", &["'COPY'"]),
            ("a\u{1b}[2J:F16", &["\\u{1b}"]),
        ] {
            let error = text.parse::<Synthetic>().unwrap_err().to_string();
            for part in parts {
                assert!(error.contains(part), "{part:?} is not in {error:?}");
            }
        }
    }

    #[test]
    fn checks_memory_before_writing() {
        let model: Synthetic = "llama-3.1-70b:Q8_0".parse().unwrap();
        let draft = model.draft().unwrap();
        let error = draft.open_within("it", Some(1 << 30)).unwrap_err();
        let error = error.to_string();
        // 70.6 billion weights at 34 bytes per 32.
        assert!(
            error.contains("1024 MiB are free") && error.contains("71"),
            "{error}"
        );
    }
}
