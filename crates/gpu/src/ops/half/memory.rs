//! Device memory for the f16 form of activations, and which weights have kernels for their codes.

use std::sync::Arc;

use rocmforge_gguf::GgmlType;

use super::super::formats::format_modules;
use super::super::routing::buffer::{SMALL, TILE_ROWS, max_tiles};
use super::made::{LastMade, Made};
use crate::error::GpuError;
use crate::gpu::Gpu;
use crate::image::Image;
use crate::memory::{Buffer, Slice};
use crate::operands::{ActFormat, RowOrder};

/// Rows of activations that are stored together, and the bytes of 64 values of them.
pub(super) const OCTET: usize = 8;
const OCTET_BYTES: usize = 1024;
/// Rows of weights are padded to a multiple of this many values.
const BLOCK: usize = 128;

/// The most floats of a tile's sums (`SUMS` in half.h).
const MAX_SUMS: usize = 128 * 256;
/// The most blocks that a processor runs at once.
const MAX_BLOCKS: usize = 2;

/// Dense products of more rows than this are GEMMs where these take codes on int8 units (H200).
pub(in crate::ops) const MAX_ROWS_BESIDE_OCTETS: usize = 2;

/// The modules of `kernels/hopper/format/gemm_half.hip`.
const MODULES: [&str; GgmlType::COMPUTED.len()] = format_modules!(gemm_half);

/// Device memory for the f16 form of activations, and for sums of divided tiles.
pub(crate) struct HalfBuffer {
    /// Factors of rows, then the values.
    x: Buffer,
    parts: Arc<Buffer>,
    made: LastMade,
    has_octets: bool,
}

/// [`HalfBuffer`] in a launch.
#[derive(Clone, Copy)]
pub struct HalfMemory<'a> {
    pub(super) x: Slice<'a, u8>,
    pub(super) parts: Slice<'a, u8>,
    made: &'a LastMade,
    /// Whether all weights that the activations are multiplied with have kernels for codes.
    pub(in crate::ops) has_octets: bool,
}

impl HalfMemory<'_> {
    /// Says what the memory contains after the launches so far: nothing once the activations are written anew.
    pub(super) fn remember(&self, made: Option<Made>) {
        *self.made.lock().unwrap_or_else(|e| e.into_inner()) = made;
    }

    pub(in crate::ops) fn forget(&self) {
        self.remember(None);
    }

    pub(super) fn has(&self, made: Made) -> bool {
        *self.made.lock().unwrap_or_else(|e| e.into_inner()) == Some(made)
    }
}

/// Bytes of the factors of `n_rows` rows.
pub(super) fn factor_bytes(n_rows: usize) -> usize {
    (n_rows * size_of::<f32>()).next_multiple_of(OCTET_BYTES)
}

/// Of how many f16 numbers an activation is the sum.
pub(super) fn n_parts(form: ActFormat) -> usize {
    match form {
        ActFormat::F32 => 2,
        ActFormat::Q8x32 | ActFormat::Q8x256 => 1,
    }
}

pub(super) fn value_bytes(form: ActFormat, n_octets: usize, width: usize) -> usize {
    n_octets * (width.next_multiple_of(BLOCK) / 64) * n_parts(form) * OCTET_BYTES
}

/// Returns the octets of up to `max_rows` rows, of any of `n_experts` experts if there are experts.
fn max_octets(max_rows: usize, n_experts: Option<usize>) -> usize {
    let Some(n_experts) = n_experts else {
        return max_rows.div_ceil(OCTET);
    };
    // Answers have small tiles whatever the number of rows.
    max_rows.div_ceil(OCTET) + max_tiles(max_rows, n_experts, TILE_ROWS[SMALL])
}

/// Bytes of the counters of divided tiles, at the start of `parts`.
pub(super) fn counter_bytes(gpu: &Gpu) -> usize {
    (MAX_BLOCKS * gpu.n_compute_units() as usize * size_of::<u64>()).next_multiple_of(OCTET_BYTES)
}

impl HalfBuffer {
    /// Allocates memory for activations of up to `max_rows` rows, maybe of experts, where the device has kernels that
    /// take them. So few that products are GEMVs in any case need none.
    pub(crate) fn new(
        gpu: &Gpu,
        form: ActFormat,
        [max_rows, width]: [usize; 2],
        n_experts: Option<usize>,
    ) -> Result<Option<HalfBuffer>, GpuError> {
        let is_built = MODULES
            .iter()
            .any(|module| Image::find(gpu.target(), module).is_some());
        if max_rows <= MAX_ROWS_BESIDE_OCTETS || !is_built {
            return Ok(None);
        }
        let n_octets = max_octets(max_rows, n_experts);
        let n_bytes = factor_bytes(max_rows) + value_bytes(form, n_octets, width);
        Ok(Some(HalfBuffer {
            x: gpu.alloc::<u8>(n_bytes)?,
            parts: parts(gpu)?,
            made: LastMade::default(),
            has_octets: false,
        }))
    }

    /// The same for products with these weights.
    pub(crate) fn beside(self, weights: &[(GgmlType, RowOrder)]) -> HalfBuffer {
        let mut all = weights.iter();
        HalfBuffer {
            has_octets: !weights.is_empty() && all.all(|&(ty, order)| has_octets(ty, order)),
            ..self
        }
    }

    pub(crate) fn memory(&self) -> HalfMemory<'_> {
        HalfMemory {
            x: self.x.as_slice(),
            parts: self.parts.as_slice(),
            made: &self.made,
            has_octets: self.has_octets,
        }
    }
}

/// Returns the memory for divided tiles, which all products of a device share: of those that run at once, one has divided tiles.
fn parts(gpu: &Gpu) -> Result<Arc<Buffer>, GpuError> {
    let mut shared = gpu
        .inner
        .half_parts
        .lock()
        .unwrap_or_else(|e| e.into_inner());
    if let Some(parts) = shared.upgrade() {
        return Ok(parts);
    }
    let counters = counter_bytes(gpu);
    // Two for each block. Where a processor runs two blocks, their tiles are at most half as large.
    let n_parts = 2 * gpu.n_compute_units() as usize;
    let parts = gpu.alloc::<u8>(counters + n_parts * MAX_SUMS * size_of::<f32>())?;
    gpu.fill_bytes(parts.as_slice::<u8>().part(0..counters), 0)?;
    let parts = Arc::new(parts);
    *shared = Arc::downgrade(&parts);
    Ok(parts)
}

/// Whether weights of this type have a kernel for codes (`kernels/gemm/octet.h`) where they lie in tiles.
pub(in crate::ops) fn may_have_octets(ty: GgmlType) -> bool {
    matches!(ty, GgmlType::Q4_K | GgmlType::Q6_K)
}

/// The same for weights in this order of rows.
pub(super) fn has_octets(ty: GgmlType, order: RowOrder) -> bool {
    may_have_octets(ty) && order == RowOrder::Tiles
}
