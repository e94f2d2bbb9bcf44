//! Batched products of quantized matrices: weights stay on the device, operations are collected, and one launch per
//! weight format runs them all, after one launch that converts their activations.
//!
//! [`BatchQuantizedMatmul::execute`] waits for the results. [`AsyncKernelLauncher`] queues batches and returns handles.
//!
//! ```no_run
//! use rocmforge_gguf::GgmlType;
//! use rocmforge_gpu::{BatchQuantizedMatmul, Gpu, MatmulInput, QuantizedMatmulOp};
//!
//! # fn blocks(_: &str) -> Vec<u8> { Vec::new() }
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let gpu = Gpu::open("cuda:0".parse()?)?;
//! let mut batch = BatchQuantizedMatmul::new(&gpu);
//! // Blocks in GGUF file layout.
//! let q = batch.add_weight(GgmlType::Q4_K, [4096, 4096], &blocks("blk.0.attn_q.weight"))?;
//! let v = batch.add_weight(GgmlType::Q6_K, [1024, 4096], &blocks("blk.0.attn_v.weight"))?;
//!
//! let x = vec![0.5f32; 2 * 4096];
//! let result = batch.execute(&[
//!     QuantizedMatmulOp { weight: q, n_rows: 2, input: MatmulInput::Host(&x) },
//!     QuantizedMatmulOp { weight: v, n_rows: 2, input: MatmulInput::Host(&x) },
//! ])?;
//! println!("{:?} in {} launches", result.total(), result.n_launches());
//! for op in 0..result.len() {
//!     println!("{:?}: {:?}", result.timing(op), &result.output(op)[..4]);
//! }
//! # Ok(())
//! # }
//! ```

mod execution;
mod launcher;
mod layout;
mod result;
mod weights;
mod workspace;

use std::sync::Arc;

use rocmforge_gguf::GgmlType;

use crate::error::{BatchError, GpuError};
use crate::gpu::Gpu;
use crate::memory::Buffer;
use crate::ops::Mxfp6;
use execution::Execution;
use weights::Weights;
use workspace::Pool;

pub use launcher::{AsyncKernelLauncher, LaunchHandle};
pub use result::{BatchMatmulResult, OperationTime};
pub use weights::WeightHandle;

/// Maximum rows of activations per operation. Larger products keep a device busy by themselves, and GEMM kernels
/// ([`crate::ops::matmul`]) load the weights fewer times.
pub const MAX_BATCH_ROWS: usize = 64;

/// Maximum number of operations per batch.
pub const MAX_BATCH_OPERATIONS: usize = 1024;

/// `output = input * weight^T`, output `[n_rows, n_out]`.
#[derive(Clone, Copy)]
pub struct QuantizedMatmulOp<'a> {
    pub weight: WeightHandle,
    /// 1 to [`MAX_BATCH_ROWS`].
    pub n_rows: usize,
    /// `[n_rows, n_in]`.
    pub input: MatmulInput<'a>,
}

/// Activations in f32, row-major. Operations that name the same memory share its copy and its conversion.
#[derive(Clone, Copy)]
pub enum MatmulInput<'a> {
    Host(&'a [f32]),
    /// The whole buffer. It is kept until the operation has run.
    Device(&'a Arc<Buffer>),
}

/// Weights resident on a device, and the memory for batches of products with them.
pub struct BatchQuantizedMatmul {
    gpu: Gpu,
    weights: Weights,
    pool: Pool,
}

impl BatchQuantizedMatmul {
    pub fn new(gpu: &Gpu) -> BatchQuantizedMatmul {
        BatchQuantizedMatmul {
            gpu: gpu.clone(),
            weights: Weights::new(),
            pool: Pool::default(),
        }
    }

    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// Uploads a matrix `[n_out, n_in]`. `blocks` are its rows in GGUF file layout.
    ///
    /// # Errors
    /// [`GpuError::Format`] for types without kernels; [`GpuError::Batch`] if the shape is empty or its rows are not
    /// whole blocks, or if `blocks` has the wrong size; errors of the device.
    pub fn add_weight(
        &mut self,
        ty: GgmlType,
        shape: [usize; 2],
        blocks: &[u8],
    ) -> Result<WeightHandle, GpuError> {
        self.weights.add(&self.gpu, ty, shape, blocks)
    }

    /// As [`BatchQuantizedMatmul::add_weight`], for MXFP6 blocks (`gguf::quant::mxfp6`), which no file contains. The
    /// device stores them as BF16, which represents each of their values exactly, so that activations are not rounded.
    ///
    /// # Errors
    /// As [`BatchQuantizedMatmul::add_weight`].
    pub fn add_mxfp6(
        &mut self,
        format: Mxfp6,
        shape: [usize; 2],
        blocks: &[u8],
    ) -> Result<WeightHandle, GpuError> {
        self.weights.add_mxfp6(&self.gpu, format, shape, blocks)
    }

    /// Bytes of the weights on the device.
    pub fn weight_bytes(&self) -> usize {
        self.weights.n_bytes()
    }

    /// Runs the operations and waits for them. Outputs have the same bits as [`crate::ops::matvec`] of the same rows.
    ///
    /// # Errors
    /// [`GpuError::Batch`] names an invalid operation before anything runs; errors of the device.
    pub fn execute(&self, ops: &[QuantizedMatmulOp<'_>]) -> Result<BatchMatmulResult, GpuError> {
        let mut execution = Execution::prepare(self, ops)?;
        execution.queue()?;
        execution.wait()?;
        Ok(execution.finish())
    }
}

/// Fails if `value` exceeds `most`.
fn check_limit(what: &'static str, value: usize, most: usize) -> Result<(), BatchError> {
    match value <= most {
        true => Ok(()),
        false => Err(BatchError::TooLarge {
            what,
            values: value,
            most,
        }),
    }
}
