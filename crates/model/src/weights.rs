//! Loads the tensors a plan refers to. Matrices stay in the mapped file; vectors (norms, biases) are small and
//! are converted to f32 at load.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use rocmforge_gguf::{GgmlType, Gguf, TensorInfo, TokenId, quant};
use rocmforge_plan::{WeightEntry, WeightId, Weights};

use crate::error::LoadError;

/// A tensor of a file that the plan leaves out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SkippedTensor {
    pub name: String,
    /// Why leaving it out cannot change the text.
    pub reason: &'static str,
}

/// Most faults that are collected: more are no help, and a damaged file may have any number.
const MAX_FAULTS: usize = 1 << 12;

/// What becomes of a tensor that is missing, or is not as the metadata implies.
#[derive(Debug)]
pub(crate) enum Faults {
    /// The first one ends loading.
    Refuse,
    /// All of them are noted, and what is loaded is of no use.
    Collect(Vec<LoadError>),
}

impl Faults {
    /// Notes `error`, or returns it.
    fn note(&mut self, error: LoadError) -> Result<(), LoadError> {
        match self {
            Faults::Collect(noted) if noted.len() < MAX_FAULTS => {
                noted.push(error);
                Ok(())
            }
            _ => Err(error),
        }
    }
}

/// Collects the tensors that a plan uses, and finally rejects a file with tensors that are neither used nor skipped for
/// a reason.
#[derive(Debug)]
pub(crate) struct WeightLoader<'a> {
    gguf: Arc<Gguf>,
    arch: &'a str,
    entries: Vec<WeightEntry>,
    /// Matrices by tensor, first row and number of rows, so that each has one id.
    matrices: HashMap<[usize; 3], WeightId>,
    /// For each tensor of the file, whether it is used or skipped.
    used: Vec<bool>,
    skipped: Vec<SkippedTensor>,
    faults: Faults,
}

impl<'a> WeightLoader<'a> {
    pub(crate) fn new(gguf: Arc<Gguf>, arch: &'a str, faults: Faults) -> WeightLoader<'a> {
        let used = vec![false; gguf.tensors().len()];
        WeightLoader {
            gguf,
            arch,
            entries: Vec::new(),
            matrices: HashMap::new(),
            used,
            skipped: Vec::new(),
            faults,
        }
    }

    /// Returns the matrix `name`, `[n_out, n_in]`.
    pub(crate) fn matrix(
        &mut self,
        name: &str,
        n_out: usize,
        n_in: usize,
    ) -> Result<WeightId, LoadError> {
        self.rows(name, n_out, n_in, 0..n_out)
    }

    /// Returns some rows of the matrix `name`, `[n_out, n_in]`: one of several fused projections.
    pub(crate) fn rows(
        &mut self,
        name: &str,
        n_out: usize,
        n_in: usize,
        rows: Range<usize>,
    ) -> Result<WeightId, LoadError> {
        assert!(rows.end <= n_out, "rows of the matrix");
        self.rows_of(name, &[n_in, n_out], rows)
    }

    /// Returns the left and the right half of each row of the matrix `name`, `[n_out, 2 * width]`.
    pub(crate) fn column_halves(
        &mut self,
        name: &str,
        [n_out, width]: [usize; 2],
    ) -> Result<[WeightId; 2], LoadError> {
        let Some(tensor) = self.checked(name, &[2 * width, n_out])? else {
            return Ok([self.stand_in(), self.stand_in()]);
        };
        let gguf = Arc::clone(&self.gguf);
        let info = &gguf.tensors()[tensor];
        let ty = info.ty;
        let Some(half) = ty.row_bytes(width) else {
            let arch = self.arch.to_string();
            let feature = format!(
                "halves of the rows of `{name}`, which are not whole blocks of {}",
                ty.name()
            );
            self.faults
                .note(LoadError::UnsupportedFeature { arch, feature })?;
            return Ok([self.stand_in(), self.stand_in()]);
        };
        let rows = gguf.tensor_data(info).chunks_exact(2 * half);
        let of_half = |from: usize| rows.clone().flat_map(move |row| &row[from..from + half]);
        let halves = [0, half].map(|from| of_half(from).copied().collect());
        let n_in = width;
        Ok(halves.map(|data| self.push(WeightEntry::Owned { ty, n_in, data })))
    }

    /// Returns the matrices `name` of `n_experts` experts, stacked: `[n_experts, n_out, n_in]`.
    pub(crate) fn experts(
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
        let Some(tensor) = self.checked(name, dims)? else {
            return Ok(self.stand_in());
        };
        let place = [tensor, rows.start, rows.len()];
        if let Some(&id) = self.matrices.get(&place) {
            return Ok(id);
        }
        let id = self.push(WeightEntry::Matrix {
            tensor,
            first_row: rows.start,
            n_rows: rows.len(),
        });
        self.matrices.insert(place, id);
        Ok(id)
    }

    /// Returns the index of the tensor `name`, of these dimensions and a type that can be computed with; `None` if a fault
    /// was noted.
    fn checked(&mut self, name: &str, dims: &[usize]) -> Result<Option<usize>, LoadError> {
        let Some(tensor) = self.find(name) else {
            let error = self.missing(name);
            self.faults.note(error)?;
            return Ok(None);
        };
        let info = &self.gguf.tensors()[tensor];
        match check(name, info, dims) {
            Ok(()) => Ok(Some(tensor)),
            Err(error) => self.faults.note(error).map(|()| None),
        }
    }

    /// Returns the id of nothing, in place of a tensor at fault.
    fn stand_in(&mut self) -> WeightId {
        self.push_vector(Vec::new())
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.gguf.tensor(name).is_some()
    }

    /// Returns the number of rows of the matrix `name`, if the file has it.
    pub(crate) fn n_rows(&self, name: &str) -> Option<u64> {
        self.gguf.tensor(name).map(|info| info.n_rows())
    }

    /// Returns the vector `name` of `len` values, times `factor`.
    pub(crate) fn vector(
        &mut self,
        name: &str,
        len: usize,
        factor: f64,
    ) -> Result<WeightId, LoadError> {
        let Some(tensor) = self.checked(name, &[len])? else {
            return Ok(self.stand_in());
        };
        let mut values = self.values(tensor)?;
        scale(&mut values, factor);
        Ok(self.push(WeightEntry::Vector { values }))
    }

    /// Returns some values of the vector `name` of `len` values, times `factor`, if the file has it.
    pub(crate) fn opt_part(
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

    /// Returns the vector `name` of `len` finite values, if the file has it.
    pub(crate) fn opt_finite(
        &mut self,
        name: &str,
        len: usize,
    ) -> Result<Option<WeightId>, LoadError> {
        let Some(values) = self.opt_values(name, len)? else {
            return Ok(None);
        };
        if let Some(&value) = values.iter().find(|value| !value.is_finite()) {
            let name = name.to_string();
            self.faults.note(LoadError::TensorValue { name, value })?;
        }
        Ok(Some(self.push_vector(values)))
    }

    /// Returns a part of each vector of the tensor `name`, `[n_rows, len]`, if the file has it.
    pub(crate) fn opt_rows(
        &mut self,
        name: &str,
        [n_rows, len]: [usize; 2],
        part: Range<usize>,
    ) -> Result<Option<WeightId>, LoadError> {
        let values = self.opt_values_of(name, &[len, n_rows])?;
        Ok(values.map(|values| {
            let rows = values.chunks_exact(len.max(1));
            let parts = rows.flat_map(|row| &row[part.clone()]).copied();
            self.push_vector(parts.collect())
        }))
    }

    /// Returns the tokens that the tensor `name` of integers lists, each below `n_vocab`, if the file has it.
    pub(crate) fn opt_token_ids(
        &mut self,
        name: &str,
        n_vocab: usize,
    ) -> Result<Option<Vec<TokenId>>, LoadError> {
        let Some(tensor) = self.find(name) else {
            return Ok(None);
        };
        let info = &self.gguf.tensors()[tensor];
        if info.ty != GgmlType::I64 {
            return Err(LoadError::TensorType {
                name: name.to_string(),
                ty: info.ty.name(),
            });
        }
        let n_ids = info.n_elements() as usize;
        check_shape(name, &info.dims, &[n_ids.min(n_vocab).max(1)])?;
        let numbers = self.gguf.tensor_data(info).as_chunks().0.iter();
        let ids = numbers.map(|&bytes| match i64::from_le_bytes(bytes) {
            id if (0..n_vocab as i64).contains(&id) => Ok(id as TokenId),
            id => Err(LoadError::UnknownToken {
                name: name.to_string(),
                id,
                n_vocab,
            }),
        });
        ids.collect::<Result<Vec<TokenId>, LoadError>>().map(Some)
    }

    /// Returns the values of the vector `name`, which must be there.
    pub(crate) fn required_values(
        &mut self,
        name: &str,
        len: usize,
    ) -> Result<Vec<f32>, LoadError> {
        self.required(name, &[len])
    }

    /// Returns the values of the tensor `name` of vectors, `[n_rows, len]`, which must be there.
    pub(crate) fn required_rows(
        &mut self,
        name: &str,
        [n_rows, len]: [usize; 2],
    ) -> Result<Vec<f32>, LoadError> {
        self.required(name, &[len, n_rows])
    }

    /// Returns the values of a tensor; none if a fault was noted.
    fn required(&mut self, name: &str, dims: &[usize]) -> Result<Vec<f32>, LoadError> {
        match self.checked(name, dims)? {
            Some(tensor) => self.values(tensor),
            None => Ok(Vec::new()),
        }
    }

    /// Returns the kernel `name` of a convolution over `n` tokens, `[width, n]`, in the order in which it is read,
    /// `[n, width]`.
    pub(crate) fn conv_kernel(
        &mut self,
        name: &str,
        width: usize,
        n: usize,
    ) -> Result<WeightId, LoadError> {
        self.kernel(name, &[n, width], n)
    }

    /// As [`WeightLoader::conv_kernel`], of a tensor that says that each value has a kernel of its own, `[width, 1, n]`.
    pub(crate) fn separate_conv_kernel(
        &mut self,
        name: &str,
        width: usize,
        n: usize,
    ) -> Result<WeightId, LoadError> {
        self.kernel(name, &[n, 1, width], n)
    }

    fn kernel(&mut self, name: &str, dims: &[usize], n: usize) -> Result<WeightId, LoadError> {
        let values = self.required(name, dims)?;
        let of_tap = |tap| values.iter().skip(tap).step_by(n).copied();
        let kernel = (0..n).flat_map(of_tap).collect();
        Ok(self.push_vector(kernel))
    }

    /// Returns the factor on products with the matrix `{tensor}.weight`, which files have beside those in NVFP4; 1 if
    /// there is none.
    pub(crate) fn scale_of(&mut self, tensor: &str) -> Result<f32, LoadError> {
        let matrix = self.gguf.tensor(&format!("{tensor}.weight"));
        if matrix.is_none_or(|info| info.ty != GgmlType::NVFP4) {
            return Ok(1.0);
        }
        let name = format!("{tensor}.scale");
        let Some(values) = self.opt_values(&name, 1)? else {
            return Ok(1.0);
        };
        match values[0] {
            value if value.is_normal() => Ok(value),
            value => {
                self.faults.note(LoadError::TensorValue { name, value })?;
                Ok(1.0)
            }
        }
    }

    /// Adds a vector of `len` times `value`, which is not in the file.
    pub(crate) fn push_constant(&mut self, len: usize, value: f32) -> WeightId {
        let len = match self.faults {
            Faults::Refuse => len,
            // Nothing bounds the length of a vector beside tensors that are missing.
            Faults::Collect(_) => 0,
        };
        self.push_vector(vec![value; len])
    }

    /// Adds a vector that is not in the file.
    pub(crate) fn push_vector(&mut self, values: Vec<f32>) -> WeightId {
        self.push(WeightEntry::Vector { values })
    }

    /// Adds a matrix of another model.
    pub(crate) fn push_shared(&mut self, weights: &Arc<Weights>, id: WeightId) -> WeightId {
        let weights = Arc::clone(weights);
        self.push(WeightEntry::Shared { weights, id })
    }

    /// Adds a matrix with rows of `n_in` values that is not in the file.
    pub(crate) fn push_matrix(
        &mut self,
        n_in: usize,
        values: &[f32],
    ) -> Result<WeightId, LoadError> {
        assert!(values.len().is_multiple_of(n_in), "whole rows");
        let mut data = vec![0; size_of_val(values)];
        quant::quantize(GgmlType::F32, values, &mut data)?;
        let ty = GgmlType::F32;
        Ok(self.push(WeightEntry::Owned { ty, n_in, data }))
    }

    /// Returns the matrices of keys and of values of `n_heads` heads from one tensor, `[n_heads, n_key + n_value, n_in]`:
    /// those of keys transposed, `[n_heads, n_in, n_key]`, then those of values `[n_heads, n_value, n_in]`; both with
    /// their types.
    pub(crate) fn keys_and_values(
        &mut self,
        name: &str,
        n_heads: usize,
        [n_key, n_value]: [usize; 2],
        n_in: usize,
    ) -> Result<[(WeightId, GgmlType); 2], LoadError> {
        let n_rows = n_key + n_value;
        let Some(tensor) = self.checked(name, &[n_in, n_heads * n_rows])? else {
            let nothing = (self.stand_in(), GgmlType::F32);
            return Ok([nothing; 2]);
        };
        let info = &self.gguf.tensors()[tensor];
        let (ty, data) = (info.ty, self.gguf.tensor_data(info));
        let row_bytes = data.len() / (n_heads * n_rows);
        let mut keys = vec![0.0; n_heads * n_in * n_key];
        let mut values = Vec::with_capacity(n_heads * n_value * row_bytes);
        let mut row = vec![0.0; n_in];
        let heads = data.chunks_exact(n_rows * row_bytes);
        for (of_head, keys) in heads.zip(keys.chunks_exact_mut(n_in * n_key)) {
            let (of_keys, of_values) = of_head.split_at(n_key * row_bytes);
            for (i, from) in of_keys.chunks_exact(row_bytes).enumerate() {
                quant::dequantize(ty, from, &mut row)?;
                for (to, value) in keys.chunks_exact_mut(n_key).zip(&row) {
                    to[i] = *value;
                }
            }
            values.extend_from_slice(of_values);
        }
        // Blocks cannot be transposed. F16 is far finer than they are.
        const MAX_F16: f32 = 65504.0;
        let fits = keys.iter().all(|x| x.abs() <= MAX_F16);
        let key_ty = match ty {
            GgmlType::F32 | GgmlType::BF16 => GgmlType::F32,
            _ if fits => GgmlType::F16,
            _ => GgmlType::F32,
        };
        let key_bytes = key_ty.row_bytes(keys.len()).expect("values without blocks");
        let mut data = vec![0; key_bytes];
        quant::quantize(key_ty, &keys, &mut data)?;
        let mut owned = |ty, n_in, data| (self.push(WeightEntry::Owned { ty, n_in, data }), ty);
        Ok([owned(key_ty, n_key, data), owned(ty, n_in, values)])
    }

    /// Returns the values of the matrix `name`, `[n_out, n_in]`, row-major, if the file has it.
    pub(crate) fn opt_matrix_values(
        &mut self,
        name: &str,
        [n_out, n_in]: [usize; 2],
    ) -> Result<Option<Vec<f32>>, LoadError> {
        self.opt_values_of(name, &[n_in, n_out])
    }

    /// Returns the values of the vector `name` if the file has it.
    pub(crate) fn opt_values(
        &mut self,
        name: &str,
        len: usize,
    ) -> Result<Option<Vec<f32>>, LoadError> {
        self.opt_values_of(name, &[len])
    }

    fn opt_values_of(&mut self, name: &str, dims: &[usize]) -> Result<Option<Vec<f32>>, LoadError> {
        if !self.has(name) {
            return Ok(None);
        }
        let tensor = self.checked(name, dims)?;
        tensor.map(|tensor| self.values(tensor)).transpose()
    }

    /// Returns the values of a tensor that has been checked.
    fn values(&self, tensor: usize) -> Result<Vec<f32>, LoadError> {
        let info = &self.gguf.tensors()[tensor];
        let mut values = vec![0.0; info.n_elements() as usize];
        quant::dequantize(info.ty, self.gguf.tensor_data(info), &mut values)?;
        Ok(values)
    }

    /// Leaves out the tensors that `is_skipped` selects by name. `reason` says why that cannot change the text.
    pub(crate) fn skip(&mut self, reason: &'static str, is_skipped: impl Fn(&str) -> bool) {
        for (info, used) in self.gguf.tensors().iter().zip(&mut self.used) {
            if !*used && is_skipped(&info.name) {
                *used = true;
                self.skipped.push(SkippedTensor {
                    name: rocmforge_gguf::shown(&info.name),
                    reason,
                });
            }
        }
    }

    /// Finishes loading; returns the weights and the tensors that were left out. An unused tensor means that the plan
    /// does not match the file, which is an error.
    pub(crate) fn finish(mut self) -> Result<(Weights, Vec<SkippedTensor>), LoadError> {
        self.refuse_unused()?;
        Ok((Weights::new(self.gguf, self.entries), self.skipped))
    }

    fn refuse_unused(&mut self) -> Result<(), LoadError> {
        for (info, used) in self.gguf.tensors().iter().zip(&self.used) {
            if !used {
                self.faults.note(LoadError::UnusedTensor {
                    name: rocmforge_gguf::shown(&info.name),
                    arch: self.arch.to_string(),
                })?;
            }
        }
        Ok(())
    }

    /// Finishes a loader that collects faults, with what recording the plan returned.
    pub(crate) fn into_faults<T>(mut self, recorded: Result<T, LoadError>) -> Vec<LoadError> {
        // A plan that was recorded in part has not used every tensor.
        let error = match recorded {
            Ok(_) => self.refuse_unused().err(),
            Err(error) => Some(error),
        };
        match self.faults {
            Faults::Refuse => error.into_iter().collect(),
            Faults::Collect(noted) => noted.into_iter().chain(error).collect(),
        }
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

    pub(crate) fn missing(&self, name: &str) -> LoadError {
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

/// Checks the shape and the type of a tensor.
fn check(name: &str, info: &TensorInfo, dims: &[usize]) -> Result<(), LoadError> {
    check_shape(name, &info.dims, dims)?;
    match info.ty.can_dequantize() {
        true => Ok(()),
        false => Err(LoadError::TensorType {
            name: name.to_string(),
            ty: info.ty.name(),
        }),
    }
}

fn check_shape(name: &str, got: &[u64], expected: &[usize]) -> Result<(), LoadError> {
    let expected: Vec<u64> = expected.iter().map(|&dim| dim as u64).collect();
    // Trailing dimensions of 1 carry no information.
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
