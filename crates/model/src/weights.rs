//! The tensors a plan refers to. Matrices stay in the file's mapping; vectors (norms, biases) are
//! small and become f32 at load.

use std::ops::Range;
use std::sync::Arc;

use rocmforge_gguf::{GgmlType, Gguf, quant};

use crate::error::LoadError;
use rocmforge_plan::{WeightEntry, WeightId, Weights};

/// Collects the tensors that a wiring asks for, and in the end refuses a file with tensors nobody asked for.
#[derive(Debug)]
pub(super) struct WeightLoader<'a> {
    gguf: Arc<Gguf>,
    arch: &'a str,
    entries: Vec<WeightEntry>,
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
    ) -> Result<WeightId, LoadError> {
        self.rows(name, n_out, n_in, 0..n_out)
    }

    /// Some rows of the matrix `name`, `[n_out, n_in]`: one projection of several that are fused.
    pub(super) fn rows(
        &mut self,
        name: &str,
        n_out: usize,
        n_in: usize,
        rows: Range<usize>,
    ) -> Result<WeightId, LoadError> {
        assert!(rows.end <= n_out, "rows of the matrix");
        self.rows_of(name, &[n_in, n_out], rows)
    }

    /// The matrices `name` of `n_experts` experts, `[n_experts, n_out, n_in]`, one below the other.
    pub(super) fn experts(
        &mut self,
        name: &str,
        n_experts: usize,
        n_out: usize,
        n_in: usize,
    ) -> Result<WeightId, LoadError> {
        self.rows_of(name, &[n_in, n_out, n_experts], 0..n_out * n_experts)
    }

    fn rows_of(
        &mut self,
        name: &str,
        dims: &[usize],
        rows: Range<usize>,
    ) -> Result<WeightId, LoadError> {
        let tensor = self.find(name).ok_or_else(|| self.missing(name))?;
        let info = &self.gguf.tensors()[tensor];
        check_shape(name, &info.dims, dims)?;
        if !info.ty.can_dequantize() {
            return Err(LoadError::TensorType {
                name: name.to_string(),
                ty: info.ty.name(),
            });
        }
        Ok(self.push(WeightEntry::Matrix {
            tensor,
            first_row: rows.start,
            n_rows: rows.len(),
        }))
    }

    /// The matrix `name` if the file has it.
    pub(super) fn opt_matrix(
        &mut self,
        name: &str,
        n_out: usize,
        n_in: usize,
    ) -> Result<Option<WeightId>, LoadError> {
        self.has(name)
            .then(|| self.matrix(name, n_out, n_in))
            .transpose()
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.gguf.tensor(name).is_some()
    }

    /// The vector `name` of `len` values, times `factor`.
    pub(super) fn vector(
        &mut self,
        name: &str,
        len: usize,
        factor: f64,
    ) -> Result<WeightId, LoadError> {
        let mut values = self
            .opt_values(name, len)?
            .ok_or_else(|| self.missing(name))?;
        scale(&mut values, factor);
        Ok(self.push(WeightEntry::Vector { values }))
    }

    /// Some values of the vector `name` of `len` values, times `factor`, if the file has it.
    pub(super) fn opt_part(
        &mut self,
        name: &str,
        len: usize,
        part: Range<usize>,
        factor: f64,
    ) -> Result<Option<WeightId>, LoadError> {
        let values = self.opt_values(name, len)?;
        Ok(values.map(|values| {
            let mut values = values[part].to_vec();
            scale(&mut values, factor);
            self.push(WeightEntry::Vector { values })
        }))
    }

    /// A matrix of rows of `n_in` values that is not in the file.
    pub(super) fn push_matrix(
        &mut self,
        n_in: usize,
        values: &[f32],
    ) -> Result<WeightId, LoadError> {
        assert!(values.len().is_multiple_of(n_in), "whole rows");
        let mut data = vec![0; size_of_val(values)];
        quant::quantize(GgmlType::F32, values, &mut data)?;
        Ok(self.push(WeightEntry::Owned { n_in, data }))
    }

    /// The values of the vector `name` if the file has it.
    pub(super) fn opt_values(
        &mut self,
        name: &str,
        len: usize,
    ) -> Result<Option<Vec<f32>>, LoadError> {
        let Some(tensor) = self.find(name) else {
            return Ok(None);
        };
        let info = &self.gguf.tensors()[tensor];
        check_shape(name, &info.dims, &[len])?;
        if !info.ty.can_dequantize() {
            return Err(LoadError::TensorType {
                name: name.to_string(),
                ty: info.ty.name(),
            });
        }
        let mut values = vec![0.0; len];
        quant::dequantize(info.ty, self.gguf.tensor_data(info), &mut values)?;
        Ok(Some(values))
    }

    /// Ends the collection. A tensor that was not asked for means that the wiring is not the file's.
    pub(super) fn finish(self) -> Result<Weights, LoadError> {
        for (info, used) in self.gguf.tensors().iter().zip(&self.used) {
            if !used && !is_known_unused(&info.name) {
                return Err(LoadError::UnusedTensor {
                    name: rocmforge_gguf::escape_control(&info.name).to_string(),
                    arch: self.arch.to_string(),
                });
            }
        }
        Ok(Weights::new(self.gguf, self.entries))
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

    fn push(&mut self, entry: WeightEntry) -> WeightId {
        self.entries.push(entry);
        WeightId(self.entries.len() as u32 - 1)
    }

    fn missing(&self, name: &str) -> LoadError {
        LoadError::MissingTensor {
            name: name.to_string(),
            arch: self.arch.to_string(),
        }
    }
}

fn scale(values: &mut [f32], factor: f64) {
    if factor != 1.0 {
        for value in values {
            *value = (f64::from(*value) * factor) as f32;
        }
    }
}

/// Tensors of old converters that repeat what metadata says.
fn is_known_unused(name: &str) -> bool {
    name.ends_with(".attn_rot_embd") || name.ends_with(".attn_rot_embd.weight")
}

fn check_shape(name: &str, got: &[u64], expected: &[usize]) -> Result<(), LoadError> {
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
    Err(LoadError::TensorShape {
        name: name.to_string(),
        got: got.to_vec(),
        expected,
    })
}
