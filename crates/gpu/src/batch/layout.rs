//! Places the inputs, conversions and outputs of a batch in memory, and validates the batch.

use rocmforge_plan::act_format;
use std::ops::Range;
use std::sync::Arc;

use super::weights::Weights;
use super::workspace::Sizes;
use super::{MAX_BATCH_OPERATIONS, MAX_BATCH_ROWS, MatmulInput, QuantizedMatmulOp, check_limit};
use crate::error::BatchError;
use crate::gpu::Gpu;
use crate::memory::{Buffer, Slice};
use crate::operands::{ActFormat, Acts, Matrix};
use crate::ops::Group;

/// Maximum number of values of all inputs. Keeps the grids of launches over them within the limits of drivers.
const MAX_INPUTS: usize = 1 << 28;
/// The same for all outputs.
const MAX_OUTPUTS: usize = 1 << 26;

/// Alignment of everything in bytes, enough for any load.
const ALIGN: usize = 256;

/// Memory that operations read. Shared inputs are listed once.
pub(super) struct Input<'a> {
    pub(super) from: MatmulInput<'a>,
    len: usize,
    /// Offset of host values in the upload, in bytes.
    pub(super) upload: usize,
}

/// An input converted to an 8-bit form.
struct Converted {
    input: usize,
    form: ActFormat,
    /// Offsets of codes, scales and sums in the work memory, in bytes.
    at: [usize; 3],
}

pub(super) struct Operation<'a> {
    pub(super) matrix: Matrix<'a>,
    pub(super) n_rows: usize,
    input: usize,
    /// `None` for weights that take f32.
    converted: Option<usize>,
    /// Range in the values of all outputs.
    pub(super) output: Range<usize>,
}

/// Where everything of a batch goes.
pub(super) struct Layout<'a> {
    pub(super) operations: Vec<Operation<'a>>,
    pub(super) inputs: Vec<Input<'a>>,
    converted: Vec<Converted>,
    pub(super) sizes: Sizes,
    /// Offset of the tables in the upload.
    pub(super) tables: usize,
}

impl<'a> Layout<'a> {
    pub(super) fn new(
        gpu: &Gpu,
        weights: &'a Weights,
        ops: &[QuantizedMatmulOp<'a>],
    ) -> Result<Layout<'a>, BatchError> {
        if ops.is_empty() {
            return Err(BatchError::Empty);
        }
        if ops.len() > MAX_BATCH_OPERATIONS {
            return Err(BatchError::TooManyOperations {
                n: ops.len(),
                most: MAX_BATCH_OPERATIONS,
            });
        }
        let mut layout = Layout {
            operations: Vec::with_capacity(ops.len()),
            inputs: Vec::new(),
            converted: Vec::new(),
            sizes: Sizes {
                n_ops: ops.len(),
                ..Sizes::default()
            },
            tables: 0,
        };
        for (i, op) in ops.iter().enumerate() {
            let matrix = weights
                .get(op.weight)
                .ok_or(BatchError::UnknownWeight { op: i })?;
            check(gpu, i, op, &matrix)?;
            layout.add(op, matrix)?;
        }
        layout.tables = layout.sizes.upload;
        let n_rows = layout.operations.iter().map(|op| op.n_rows);
        layout.sizes.upload += Group::max_bytes(layout.converted.len(), n_rows);
        Ok(layout)
    }

    fn add(&mut self, op: &QuantizedMatmulOp<'a>, matrix: Matrix<'a>) -> Result<(), BatchError> {
        let len = op.n_rows * matrix.n_in;
        let mut known = self.inputs.iter();
        let input = match known.position(|known| is_same(&known.from, &op.input)) {
            Some(input) => input,
            None => {
                let input = Input {
                    from: op.input,
                    len,
                    upload: self.sizes.upload,
                };
                if let MatmulInput::Host(_) = op.input {
                    take(&mut self.sizes.upload, len * size_of::<f32>());
                }
                self.inputs.push(input);
                self.inputs.len() - 1
            }
        };
        let n_inputs = self.inputs.iter().map(|input| input.len).sum();
        check_limit("input", n_inputs, MAX_INPUTS)?;
        let form = act_format(matrix.ty);
        let same = |c: &Converted| c.input == input && c.form == form;
        let converted = match form {
            ActFormat::F32 => None,
            _ => Some(self.converted.iter().position(same).unwrap_or_else(|| {
                let n_bytes = [len, len / form.block_len() * 4, len / 16 * 2];
                let at = n_bytes.map(|n_bytes| take(&mut self.sizes.work, n_bytes));
                self.converted.push(Converted { input, form, at });
                self.converted.len() - 1
            })),
        };
        let first = self.sizes.out;
        let output = first..first + op.n_rows * matrix.n_out;
        check_limit("output", output.end, MAX_OUTPUTS)?;
        // Align the outputs of each operation to cache lines.
        self.sizes.out = output.end.next_multiple_of(ALIGN / size_of::<f32>());
        self.operations.push(Operation {
            matrix,
            n_rows: op.n_rows,
            input,
            converted,
            output,
        });
        Ok(())
    }

    /// Returns the activations that an operation multiplies with.
    pub(super) fn acts<'b>(
        &'b self,
        op: &Operation<'_>,
        upload: Slice<'b, u8>,
        work: Slice<'b, u8>,
    ) -> Acts<'b> {
        let shape = [op.n_rows, op.matrix.n_in];
        match op.converted {
            Some(converted) => self.converted[converted].acts(shape, work),
            None => {
                let values = self.inputs[op.input].values(upload);
                let none = values.part(0..0);
                Acts {
                    form: ActFormat::F32,
                    n_rows: shape[0],
                    width: shape[1],
                    values,
                    codes: none.cast(),
                    scales: none,
                    sums: none.cast(),
                    half: None,
                    source: None,
                }
            }
        }
    }

    /// Returns the conversions: the values, and their destination as one row.
    pub(super) fn conversions<'b>(
        &'b self,
        upload: Slice<'b, u8>,
        work: Slice<'b, u8>,
    ) -> impl Iterator<Item = (Slice<'b, f32>, Acts<'b>)> {
        self.converted.iter().map(move |converted| {
            let input = &self.inputs[converted.input];
            (input.values(upload), converted.acts([1, input.len], work))
        })
    }
}

/// Whether both are the same memory.
fn is_same(a: &MatmulInput<'_>, b: &MatmulInput<'_>) -> bool {
    match (a, b) {
        (MatmulInput::Host(a), MatmulInput::Host(b)) => std::ptr::eq(*a, *b),
        (MatmulInput::Device(a), MatmulInput::Device(b)) => Arc::ptr_eq(a, b),
        _ => false,
    }
}

impl Input<'_> {
    fn values<'b>(&'b self, upload: Slice<'b, u8>) -> Slice<'b, f32> {
        match self.from {
            MatmulInput::Host(_) => {
                let bytes = self.upload..self.upload + self.len * size_of::<f32>();
                upload.part(bytes).cast()
            }
            MatmulInput::Device(buffer) => Buffer::as_slice(buffer),
        }
    }
}

impl Converted {
    fn acts<'b>(&self, [n_rows, width]: [usize; 2], work: Slice<'b, u8>) -> Acts<'b> {
        let n = n_rows * width;
        let [codes, scales, sums] = self.at;
        let n_scales = n / self.form.block_len();
        Acts {
            form: self.form,
            n_rows,
            width,
            values: work.part(0..0).cast(),
            codes: work.part(codes..codes + n).cast(),
            scales: work.part(scales..scales + n_scales * 4).cast(),
            sums: work.part(sums..sums + n / 16 * 2).cast(),
            half: None,
            source: None,
        }
    }
}

/// Allocates bytes at `end` and returns their offset.
fn take(end: &mut usize, n_bytes: usize) -> usize {
    let at = *end;
    *end = (at + n_bytes).next_multiple_of(ALIGN);
    at
}

/// Validates operation `i`.
fn check(
    gpu: &Gpu,
    i: usize,
    op: &QuantizedMatmulOp<'_>,
    matrix: &Matrix<'_>,
) -> Result<(), BatchError> {
    let n_rows = op.n_rows;
    if n_rows == 0 {
        return Err(BatchError::NoRows { op: i });
    }
    if n_rows > MAX_BATCH_ROWS {
        return Err(BatchError::TooManyRows {
            op: i,
            n_rows,
            most: MAX_BATCH_ROWS,
        });
    }
    let found = match op.input {
        MatmulInput::Host(values) => values.len(),
        MatmulInput::Device(buffer) if !buffer.is_of(gpu) => {
            return Err(BatchError::OtherDevice { op: i });
        }
        // A buffer that is not whole values matches no length.
        MatmulInput::Device(buffer) => match buffer.n_bytes().is_multiple_of(size_of::<f32>()) {
            true => buffer.n_bytes() / size_of::<f32>(),
            false => 0,
        },
    };
    let expected = n_rows * matrix.n_in;
    if found != expected {
        return Err(BatchError::InputLength {
            op: i,
            found,
            n_rows,
            n_in: matrix.n_in,
            expected,
        });
    }
    Ok(())
}
