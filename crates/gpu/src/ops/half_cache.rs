//! Copies of a layer's keys and values in f16 (`kernels/hopper/kv/kv_halves.hip`): Hopper's kernels of prompts read no other
//! type of cache.

use rocmforge_plan::Values;

use super::attend::AttendBlocks;
use super::attention_params::{CacheParams, ScoreParams};
use crate::error::GpuError;
use crate::gpu::Gpu;
use crate::image::Image;
use crate::kernel::{Table, kernels, layout};
use crate::kv::{KvLayer, KvShape, KvType};
use crate::memory::{Address, Buffer};
use crate::step::{SeqRows, Step};
use crate::variant::Variant;

const THREADS: u32 = 256;
/// With fewer rows per sequence, copying its context takes longer than is gained.
const MIN_ROWS: usize = 32;
/// The most memory for the copies.
const MAX_BYTES: usize = 512 << 20;

#[repr(C)]
#[derive(Clone, Copy)]
struct KvHalvesParams {
    cache: CacheParams,
    scores: ScoreParams,
    seqs: Table<SeqRows>,
    k: Address,
    v: Address,
    k_dim: u32,
    v_dim: u32,
    n_pages: u32,
    k_hadamard: u32,
    v_hadamard: u32,
    pad: u32,
}

layout!(KvHalvesParams {
    cache,
    scores,
    seqs,
    k,
    v,
    k_dim,
    v_dim,
    n_pages,
    k_hadamard,
    v_hadamard,
    pad
});

kernels! {
    struct KvHalvesKernels {
        kv_halves: KvHalvesParams,
    }
}

/// Memory for the keys and values of a layer in f16.
pub(super) struct HalfCache {
    memory: Buffer,
    /// The pages, in order.
    pages: Buffer,
}

/// Returns a cache of this shape in f16.
fn in_halves(shape: &KvShape) -> KvShape {
    KvShape {
        types: KvType::F16.into(),
        ..*shape
    }
}

/// Returns the bytes of a page in f16.
fn page_bytes(shape: &KvShape) -> usize {
    2 * shape.page * shape.n_kv_heads * (shape.k_dim + shape.v_dim)
}

/// Whether prompts over a cache of this shape may be computed with a copy of it. Layers of another device have no heads here.
fn may_copy(gpu: &Gpu, attends: &AttendBlocks, shape: &KvShape) -> bool {
    let module = gpu.kernels().kv_halves.of(shape.types).kv_halves.module;
    shape.types != KvType::F16.into()
        && shape.values == Values::Apart
        && shape.n_kv_heads > 0
        && !gpu.takes(Variant::AttentionExact)
        && attends.of(gpu, &in_halves(shape), usize::MAX).is_some()
        && Image::find(gpu.target(), module).is_some()
}

impl HalfCache {
    /// Allocates memory for copies of one of `layers` at a time, or of as much of it as fits [`MAX_BYTES`]. Returns `None`
    /// if the device has no kernels for them.
    pub(super) fn new(
        gpu: &Gpu,
        attends: &AttendBlocks,
        layers: &[KvShape],
    ) -> Result<Option<HalfCache>, GpuError> {
        let layers = layers.iter().filter(|shape| may_copy(gpu, attends, shape));
        let fitting = |shape: &KvShape| shape.n_blocks.min(MAX_BYTES / page_bytes(shape));
        let of_layers = layers.map(|shape| (fitting(shape), fitting(shape) * page_bytes(shape)));
        let Some((n_pages, n_bytes)) = of_layers.reduce(|a, b| (a.0.max(b.0), a.1.max(b.1))) else {
            return Ok(None);
        };
        let pages: Vec<u32> = (0..n_pages as u32).collect();
        Ok(Some(HalfCache {
            memory: gpu.alloc::<u8>(n_bytes)?,
            pages: gpu.upload(&pages)?,
        }))
    }

    /// Returns the shape of a copy of what the sequences of a step have in a layer, if the memory suffices, and the rows are
    /// so many that it pays.
    pub(super) fn shape_of(
        &self,
        gpu: &Gpu,
        attends: &AttendBlocks,
        (layer, step): (&KvShape, &Step<'_>),
    ) -> Option<KvShape> {
        let n_pages = step.longest.div_ceil(layer.page).min(step.max_pages);
        let shape = KvShape {
            n_blocks: n_pages * step.n_seqs(),
            ..in_halves(layer)
        };
        let fits = shape.n_blocks * page_bytes(layer) <= self.memory.n_bytes()
            && shape.n_blocks <= self.pages.n_bytes() / size_of::<u32>();
        (fits && step.n_rows() >= MIN_ROWS * step.n_seqs() && may_copy(gpu, attends, layer))
            .then_some(shape)
    }

    /// Copies what the rows of a step see of `layer` to a cache of `shape`, which is from [`HalfCache::shape_of`]. Returns
    /// that cache, and the step with its pages.
    pub(super) fn copy<'a>(
        &'a self,
        gpu: &Gpu,
        layer: &KvLayer<'_>,
        (step, scores): (&Step<'a>, ScoreParams),
        shape: KvShape,
    ) -> Result<(KvLayer<'a>, Step<'a>), GpuError> {
        let [k_bytes, v_bytes] = shape.n_bytes();
        let memory = self.memory.as_slice::<u8>();
        let copied = KvLayer {
            shape,
            k: memory.part(0..k_bytes),
            v: memory.part(k_bytes..k_bytes + v_bytes),
        };
        let [k, v] = copied.planes().map(|planes| planes.codes);
        let [k_hadamard, v_hadamard] = layer.shape.hadamard_lens();
        let n_pages = shape.n_blocks / step.n_seqs();
        let params = KvHalvesParams {
            cache: CacheParams::new(layer, step),
            scores,
            seqs: step.seqs.table(),
            k,
            v,
            k_dim: shape.k_dim as u32,
            v_dim: shape.v_dim as u32,
            n_pages: n_pages as u32,
            k_hadamard: k_hadamard as u32,
            v_hadamard: v_hadamard as u32,
            pad: 0,
        };
        let kernel = &gpu.kernels().kv_halves.of(layer.shape.types).kv_halves;
        let [heads, pages, seqs] = [2 * shape.n_kv_heads, n_pages, step.n_seqs()].map(|n| n as u32);
        gpu.launch(kernel, [heads, pages, seqs], THREADS, 0, &params)?;
        let step = Step {
            block_tables: self.pages.as_slice().part(0..shape.n_blocks),
            max_pages: n_pages,
            ..*step
        };
        Ok((copied, step))
    }
}

/// The most bytes for copies of layers of this shape, whatever their number of blocks.
pub fn half_cache_bytes(gpu: &Gpu, layers: &[KvShape]) -> Result<usize, GpuError> {
    let attends = AttendBlocks::new(gpu)?;
    let is_copied = layers.iter().any(|shape| may_copy(gpu, &attends, shape));
    Ok(if is_copied { MAX_BYTES } else { 0 })
}
