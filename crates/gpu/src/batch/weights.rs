//! Weights of batches: validated, repacked and kept on the device.

use std::sync::atomic::{AtomicU64, Ordering};

use rocmforge_gguf::GgmlType;
use rocmforge_gguf::quant::mxfp6::{self, E2M3, E3M2};
use zerocopy::FromBytes;

use crate::error::{BatchError, GpuError};
use crate::gpu::Gpu;
use crate::memory::Buffer;
use crate::operands::{Matrix, RowOrder};
use crate::ops::{self, Mxfp6};
use crate::upload::{Uploader, chunk_bytes};

/// A weight of one [`super::BatchQuantizedMatmul`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WeightHandle {
    owner: u64,
    index: usize,
}

pub(super) struct Weights {
    /// Distinguishes the weights of different batches.
    owner: u64,
    matrices: Vec<Resident>,
}

struct Resident {
    ty: GgmlType,
    n_out: usize,
    n_in: usize,
    data: Buffer,
}

impl Weights {
    pub(super) fn new() -> Weights {
        static OWNERS: AtomicU64 = AtomicU64::new(0);
        Weights {
            owner: OWNERS.fetch_add(1, Ordering::Relaxed),
            matrices: Vec::new(),
        }
    }

    pub(super) fn n_bytes(&self) -> usize {
        self.matrices.iter().map(|m| m.data.n_bytes()).sum()
    }

    /// Returns `None` for a handle of another batch.
    pub(super) fn get(&self, handle: WeightHandle) -> Option<Matrix<'_>> {
        if handle.owner != self.owner {
            return None;
        }
        let weight = self.matrices.get(handle.index)?;
        Some(Matrix {
            ty: weight.ty,
            n_out: weight.n_out,
            n_in: weight.n_in,
            order: RowOrder::Apart,
            data: weight.data.as_slice(),
        })
    }

    pub(super) fn add(
        &mut self,
        gpu: &Gpu,
        ty: GgmlType,
        [n_out, n_in]: [usize; 2],
        blocks: &[u8],
    ) -> Result<WeightHandle, GpuError> {
        // Checked before the shape, whose rules depend on the type.
        ops::check_format(ty)?;
        let block = [ty.block_len(), ty.block_bytes()];
        check_shape(ty.name(), block, [n_out, n_in], blocks.len()).map_err(GpuError::Batch)?;
        let data = gpu.alloc::<u8>(ops::packed_bytes(gpu, ty, n_out, n_in)?)?;
        let matrix = Matrix {
            ty,
            n_out,
            n_in,
            order: RowOrder::Apart,
            data: data.as_slice(),
        };
        let mut uploader = Uploader::new(gpu, chunk_bytes(ty, [n_out, n_in]))?;
        uploader.repack(blocks, &matrix)?;
        uploader.finish()?;
        self.matrices.push(Resident {
            ty,
            n_out,
            n_in,
            data,
        });
        Ok(WeightHandle {
            owner: self.owner,
            index: self.matrices.len() - 1,
        })
    }

    pub(super) fn add_mxfp6(
        &mut self,
        gpu: &Gpu,
        format: Mxfp6,
        shape: [usize; 2],
        blocks: &[u8],
    ) -> Result<WeightHandle, GpuError> {
        let name = match format {
            Mxfp6::E2M3 => "MXFP6 E2M3",
            Mxfp6::E3M2 => "MXFP6 E3M2",
        };
        let block = [mxfp6::LEN, size_of::<E2M3>()];
        const { assert!(size_of::<E2M3>() == size_of::<E3M2>()) };
        check_shape(name, block, shape, blocks.len()).map_err(GpuError::Batch)?;
        let halves = match format {
            Mxfp6::E2M3 => to_bf16::<3>(blocks),
            Mxfp6::E3M2 => to_bf16::<2>(blocks),
        };
        self.add(gpu, GgmlType::BF16, shape, &halves)
    }
}

/// Converts blocks to bytes of BF16. Exact: numbers have at most 4 significant bits, and bf16 has 8 exponent bits.
fn to_bf16<const MANTISSA: u32>(blocks: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(blocks.len() / size_of::<E2M3>() * mxfp6::LEN * 2);
    let mut values = [0.0; mxfp6::LEN];
    for block in blocks.chunks_exact(size_of::<E2M3>()) {
        let block = mxfp6::Mxfp6::<MANTISSA>::ref_from_bytes(block).expect("a chunk is one block");
        block.dequantize(&mut values);
        let halves = values.map(|x| half::bf16::from_f32(x).to_le_bytes());
        bytes.extend(halves.as_flattened());
    }
    bytes
}

/// Checks the shape of a matrix whose blocks have `block_len` values in `block_bytes` bytes.
fn check_shape(
    ty: &'static str,
    [block_len, block_bytes]: [usize; 2],
    [n_out, n_in]: [usize; 2],
    found: usize,
) -> Result<(), BatchError> {
    if n_out == 0 || n_in == 0 {
        return Err(BatchError::EmptyWeight { n_out, n_in });
    }
    if !n_in.is_multiple_of(block_len) {
        return Err(BatchError::Columns {
            ty,
            n_in,
            block_len,
        });
    }
    let n_blocks = (n_in / block_len).checked_mul(n_out);
    let expected = n_blocks.and_then(|n| n.checked_mul(block_bytes));
    if expected != Some(found) {
        return Err(BatchError::WeightBytes {
            ty,
            n_out,
            n_in,
            found,
            expected: expected.map_or("more bytes than can be counted".into(), |n| n.to_string()),
        });
    }
    // Kernels count rows and columns in 32 bits, and repacking launches count chunks in 32 bits.
    super::check_limit("weights", n_out.max(n_in), u32::MAX as usize / 64)
}
