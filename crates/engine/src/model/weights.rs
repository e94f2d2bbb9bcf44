//! The tensors a plan refers to. Matrices stay in the file's mapping; vectors (norms, biases) are
//! small and become f32 at load.

use std::sync::Arc;

use rocmforge_cpu as cpu;
use rocmforge_gguf::{Gguf, quant};

use crate::error::EngineError;
use crate::plan::WeightId;

/// Tensors by [`WeightId`].
#[derive(Debug)]
pub struct Weights {
    gguf: Arc<Gguf>,
    entries: Vec<Entry>,
}

#[derive(Debug)]
enum Entry {
    /// Index into the file's tensors.
    Matrix {
        tensor: usize,
    },
    Vector {
        values: Vec<f32>,
    },
}

impl Weights {
    /// The matrix `[n_out, n_in]`.
    pub fn matrix(&self, id: WeightId) -> cpu::Weight<'_> {
        let Entry::Matrix { tensor } = self.entries[id.0 as usize] else {
            panic!("weight {} is a vector", id.0);
        };
        let info = &self.gguf.tensors()[tensor];
        cpu::Weight {
            ty: info.ty,
            n_out: info.n_rows() as usize,
            n_in: info.row_len() as usize,
            data: self.gguf.tensor_data(info),
        }
    }

    pub fn vector(&self, id: WeightId) -> &[f32] {
        match &self.entries[id.0 as usize] {
            Entry::Vector { values } => values,
            Entry::Matrix { .. } => panic!("weight {} is a matrix", id.0),
        }
    }

    /// Bytes of all tensors the plan uses, as they lie in the file.
    pub fn matrix_bytes(&self) -> u64 {
        let bytes = |entry: &Entry| match entry {
            Entry::Matrix { tensor } => self.gguf.tensors()[*tensor].n_bytes,
            Entry::Vector { .. } => 0,
        };
        self.entries.iter().map(bytes).sum()
    }
}

/// Collects the tensors that a wiring asks for, and in the end refuses a file with tensors nobody asked for.
#[derive(Debug)]
pub(super) struct WeightLoader<'a> {
    gguf: Arc<Gguf>,
    arch: &'a str,
    entries: Vec<Entry>,
    used: Vec<bool>,
}

impl<'a> WeightLoader<'a> {
    pub(super) fn new(gguf: Arc<Gguf>, arch: &'a str) -> WeightLoader<'a> {
        let used = vec![false; gguf.tensors().len()];
        WeightLoader {
            gguf,
            arch,
            entries: Vec::new(),
            used,
        }
    }

    /// The matrix `name`, `[n_out, n_in]`.
    pub(super) fn matrix(
        &mut self,
        name: &str,
        n_out: usize,
        n_in: usize,
    ) -> Result<WeightId, EngineError> {
        let tensor = self.find(name).ok_or_else(|| self.missing(name))?;
        let info = &self.gguf.tensors()[tensor];
        check_shape(name, &info.dims, &[n_in, n_out])?;
        if !info.ty.can_dequantize() {
            return Err(EngineError::TensorType {
                name: name.to_string(),
                ty: info.ty.name(),
            });
        }
        Ok(self.push(Entry::Matrix { tensor }))
    }

    /// The matrix `name` if the file has it.
    pub(super) fn opt_matrix(
        &mut self,
        name: &str,
        n_out: usize,
        n_in: usize,
    ) -> Result<Option<WeightId>, EngineError> {
        self.has(name)
            .then(|| self.matrix(name, n_out, n_in))
            .transpose()
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.gguf.tensor(name).is_some()
    }

    /// The vector `name` of `len` values.
    pub(super) fn vector(&mut self, name: &str, len: usize) -> Result<WeightId, EngineError> {
        let values = self
            .opt_values(name, len)?
            .ok_or_else(|| self.missing(name))?;
        Ok(self.push(Entry::Vector { values }))
    }

    /// The vector `name` if the file has it.
    pub(super) fn opt_vector(
        &mut self,
        name: &str,
        len: usize,
    ) -> Result<Option<WeightId>, EngineError> {
        Ok(self
            .opt_values(name, len)?
            .map(|values| self.push(Entry::Vector { values })))
    }

    /// The values of the vector `name` if the file has it.
    pub(super) fn opt_values(
        &mut self,
        name: &str,
        len: usize,
    ) -> Result<Option<Vec<f32>>, EngineError> {
        let Some(tensor) = self.find(name) else {
            return Ok(None);
        };
        let info = &self.gguf.tensors()[tensor];
        check_shape(name, &info.dims, &[len])?;
        if !info.ty.can_dequantize() {
            return Err(EngineError::TensorType {
                name: name.to_string(),
                ty: info.ty.name(),
            });
        }
        let mut values = vec![0.0; len];
        quant::dequantize(info.ty, self.gguf.tensor_data(info), &mut values)?;
        Ok(Some(values))
    }

    /// Ends the collection. A tensor that was not asked for means that the wiring is not the file's.
    pub(super) fn finish(self) -> Result<Weights, EngineError> {
        for (info, used) in self.gguf.tensors().iter().zip(&self.used) {
            if !used && !is_known_unused(&info.name) {
                return Err(EngineError::UnusedTensor {
                    name: rocmforge_gguf::escape_control(&info.name).to_string(),
                    arch: self.arch.to_string(),
                });
            }
        }
        Ok(Weights {
            gguf: self.gguf,
            entries: self.entries,
        })
    }

    fn find(&mut self, name: &str) -> Option<usize> {
        let info = self.gguf.tensor(name)?;
        let index = self
            .gguf
            .tensors()
            .iter()
            .position(|other| std::ptr::eq(other, info))?;
        self.used[index] = true;
        Some(index)
    }

    fn push(&mut self, entry: Entry) -> WeightId {
        self.entries.push(entry);
        WeightId(self.entries.len() as u32 - 1)
    }

    fn missing(&self, name: &str) -> EngineError {
        EngineError::MissingTensor {
            name: name.to_string(),
            arch: self.arch.to_string(),
        }
    }
}

/// Tensors of old converters that repeat what metadata says.
fn is_known_unused(name: &str) -> bool {
    name.ends_with(".attn_rot_embd") || name.ends_with(".attn_rot_embd.weight")
}

fn check_shape(name: &str, got: &[u64], expected: &[usize]) -> Result<(), EngineError> {
    let expected: Vec<u64> = expected.iter().map(|&dim| dim as u64).collect();
    // Trailing dimensions of 1 say nothing.
    let trimmed = got
        .iter()
        .rposition(|&dim| dim != 1)
        .map_or(&got[..1.min(got.len())], |last| &got[..=last]);
    let wanted = expected
        .iter()
        .rposition(|&dim| dim != 1)
        .map_or(&expected[..1], |last| &expected[..=last]);
    if trimmed == wanted {
        return Ok(());
    }
    Err(EngineError::TensorShape {
        name: name.to_string(),
        got: got.to_vec(),
        expected,
    })
}
