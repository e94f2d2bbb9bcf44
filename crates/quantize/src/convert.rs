//! Converts the rows of one tensor on all threads, a slab of rows at a time, and measures what it costs.
//!
//! A task takes some rows from their old type to f32, from there to the new type, and back again for the
//! error. Sums are added in the order of the rows, so they do not depend on the number of threads.

use std::sync::Mutex;

use rocmforge_cpu::Pool;
use rocmforge_gguf::GgmlType;
use rocmforge_gguf::quant::{dequantize, quantize_rows};

use super::QuantizeError;

/// Values of a task at least: enough to make its dispatch cheap, few enough that Ctrl-C is prompt.
const TASK_VALUES: usize = 1 << 16;
/// Tasks of a slab for each thread.
const TASKS_PER_THREAD: usize = 8;

/// What a conversion has cost.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Errors {
    /// Root of the mean squared difference.
    pub rmse: f64,
    /// Root of the squared differences over the squared values: 0.1 is a tenth of the signal.
    pub relative: f64,
    /// As `relative`, each square weighted by the importance of its column.
    pub weighted: Option<f64>,
}

/// Rows and what they are to become.
pub(super) struct Conversion<'a> {
    /// Blocks of type `from`.
    pub(super) data: &'a [u8],
    pub(super) from: GgmlType,
    pub(super) to: GgmlType,
    pub(super) row_len: usize,
    /// Experts of a layer are several matrices in one tensor.
    pub(super) rows_per_matrix: usize,
    /// `[n_matrices, row_len]`.
    pub(super) importance: Option<&'a [f32]>,
}

impl Conversion<'_> {
    /// Gives the new blocks to `sink` in order, with the number of bytes they came from.
    pub(super) fn run(
        &self,
        pool: &Pool,
        name: &str,
        mut sink: impl FnMut(&[u8], usize) -> Result<(), QuantizeError>,
    ) -> Result<Errors, QuantizeError> {
        let bytes = |ty: GgmlType| ty.row_bytes(self.row_len).expect("rows are whole blocks");
        let (from_bytes, to_bytes) = (bytes(self.from), bytes(self.to));
        let n_rows = self.data.len() / from_bytes;
        let task_rows = TASK_VALUES.div_ceil(self.row_len);
        let slab_rows = (task_rows * TASKS_PER_THREAD * pool.n_threads()).min(n_rows);
        let mut blocks = vec![0; slab_rows * to_bytes];
        let mut sums = Sums::default();
        for first in (0..n_rows).step_by(slab_rows) {
            let rows = slab_rows.min(n_rows - first);
            let blocks = &mut blocks[..rows * to_bytes];
            let done = Mutex::new(Vec::new());
            pool.for_each_rows(blocks, to_bytes, task_rows, &|row, out| {
                let result = self.rows(first + row, out);
                let mut done = done.lock().expect("no task panics while it holds the lock");
                done.push((row, result));
            });
            let mut done = done
                .into_inner()
                .expect("no task panics while it holds the lock");
            done.sort_by_key(|(row, _)| *row);
            for (_, result) in done {
                sums.add(&result.map_err(|source| QuantizeError::Tensor {
                    name: name.to_string(),
                    source,
                })?);
            }
            sink(blocks, rows * from_bytes)?;
        }
        Ok(sums.errors(n_rows * self.row_len))
    }

    /// Converts the rows from `first` on that fill `out`.
    fn rows(&self, first: usize, out: &mut [u8]) -> Result<Sums, rocmforge_gguf::Error> {
        let bytes = |ty: GgmlType| ty.row_bytes(self.row_len).expect("rows are whole blocks");
        let (from_bytes, to_bytes) = (bytes(self.from), bytes(self.to));
        let n_rows = out.len() / to_bytes;
        let mut values = vec![0.0; n_rows * self.row_len];
        let mut result = vec![0.0; n_rows * self.row_len];
        let data = &self.data[first * from_bytes..][..n_rows * from_bytes];
        dequantize(self.from, data, &mut values)?;
        let mut sums = Sums::default();
        let mut row = 0;
        while row < n_rows {
            let matrix = (first + row) / self.rows_per_matrix;
            let end = ((matrix + 1) * self.rows_per_matrix - first).min(n_rows);
            let importance = self
                .importance
                .map(|all| &all[matrix * self.row_len..][..self.row_len]);
            let part = row * self.row_len..end * self.row_len;
            let (values, result) = (&values[part.clone()], &mut result[part]);
            let out = &mut out[row * to_bytes..end * to_bytes];
            quantize_rows(self.to, values, self.row_len, importance, out)
                .map_err(|error| in_tensor(error, first + row))?;
            dequantize(self.to, out, result)?;
            sums.add_rows(values, result, self.row_len, importance);
            row = end;
        }
        Ok(sums)
    }
}

/// The error, with its row counted from the tensor's first instead of from `first`.
fn in_tensor(error: rocmforge_gguf::Error, first: usize) -> rocmforge_gguf::Error {
    match error {
        rocmforge_gguf::Error::Unrepresentable {
            ty,
            row,
            column,
            value,
        } => rocmforge_gguf::Error::Unrepresentable {
            ty,
            row: first + row,
            column,
            value,
        },
        other => other,
    }
}

/// Sums over values `x` and their differences `e` from what the blocks say.
#[derive(Debug, Clone, Copy, Default)]
struct Sums {
    x2: f64,
    e2: f64,
    weighted_x2: f64,
    weighted_e2: f64,
    has_weights: bool,
}

impl Sums {
    fn add_rows(
        &mut self,
        values: &[f32],
        result: &[f32],
        row_len: usize,
        importance: Option<&[f32]>,
    ) {
        let rows = values
            .chunks_exact(row_len)
            .zip(result.chunks_exact(row_len));
        for (values, result) in rows {
            for (column, (&x, &y)) in values.iter().zip(result).enumerate() {
                let x2 = f64::from(x) * f64::from(x);
                let e = f64::from(x) - f64::from(y);
                self.x2 += x2;
                self.e2 += e * e;
                if let Some(importance) = importance {
                    let weight = f64::from(importance[column]);
                    self.weighted_x2 += weight * x2;
                    self.weighted_e2 += weight * e * e;
                }
            }
        }
        self.has_weights |= importance.is_some();
    }

    fn add(&mut self, other: &Sums) {
        self.x2 += other.x2;
        self.e2 += other.e2;
        self.weighted_x2 += other.weighted_x2;
        self.weighted_e2 += other.weighted_e2;
        self.has_weights |= other.has_weights;
    }

    fn errors(&self, n: usize) -> Errors {
        let share = |e2: f64, x2: f64| if e2 == 0.0 { 0.0 } else { (e2 / x2).sqrt() };
        Errors {
            rmse: (self.e2 / n as f64).sqrt(),
            relative: share(self.e2, self.x2),
            weighted: self
                .has_weights
                .then(|| share(self.weighted_e2, self.weighted_x2)),
        }
    }
}
