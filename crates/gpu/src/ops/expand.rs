//! Keys and values of all heads of latent attention, made from the cached latent vectors for the prompt of one sequence
//! (`kernels/hopper/expand.hip`). Each query then meets keys of its head's width instead of latent vectors.

use rocmforge_plan::Values;

use super::attend::{self, AttendBlocks};
use super::attention::{AttentionScratch, Queries, attention};
use super::attention_params::CacheParams;
use super::rows::dequantize_stack_f16;
use crate::error::GpuError;
use crate::gpu::Gpu;
use crate::image::Image;
use crate::kernel::{Kernel, kernels, layout};
use crate::kv::{KvLayer, KvShape, KvType, KvTypes};
use crate::memory::{Address, Buffer};
use crate::operands::ExpertMatrices;
use crate::step::Step;
use crate::variant::Variant;

/// Positions of a block, and values of a latent vector that it multiplies at a time.
const ROWS: usize = 128;
const PANEL: usize = 64;
/// With fewer rows, converting the weights takes longer than is gained.
const MIN_ROWS: usize = 128;
/// The most memory for keys, values and matrices.
const MAX_BYTES: usize = 128 << 20;

#[repr(C)]
#[derive(Clone, Copy)]
struct ExpandParams {
    cache: CacheParams,
    k_weights: Address,
    v_weights: Address,
    k: Address,
    v: Address,
    n_positions: u32,
    n_heads: u32,
    rank: u32,
    n_rot: u32,
}

layout!(ExpandParams {
    cache,
    k_weights,
    v_weights,
    k,
    v,
    n_positions,
    n_heads,
    rank,
    n_rot
});

kernels! {
    struct ExpandKernels {
        expand_192_256: ExpandParams,
        expand_128_128: ExpandParams,
        expand_64_128: ExpandParams,
    }
}

/// The heads of a layer of latent attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LatentHeads {
    pub n_heads: usize,
    /// Values of a key, of which the last `n_rot` are rotated and the same in all heads; and of a value.
    pub k_dim: usize,
    pub n_rot: usize,
    pub v_dim: usize,
    /// Values of a latent vector, without the rotated ones.
    pub rank: usize,
}

impl LatentHeads {
    /// Returns the kernel for these heads with the constant that says its shared memory, if there is one.
    fn kernel<'g>(&self, gpu: &'g Gpu) -> Option<(&'g Kernel<ExpandParams>, &'static str)> {
        let all = &gpu.kernels().expand;
        let n_plain = self.k_dim.checked_sub(self.n_rot)?;
        let is_whole = self.rank.is_multiple_of(PANEL) && self.n_rot.is_multiple_of(8);
        match (n_plain, self.v_dim) {
            _ if !is_whole => None,
            (192, 256) => Some((&all.expand_192_256, "expand_192_256_bytes")),
            (128, 128) => Some((&all.expand_128_128, "expand_128_128_bytes")),
            (64, 128) => Some((&all.expand_64_128, "expand_64_128_bytes")),
            _ => None,
        }
    }

    /// Estimates the work per head for `n_rows` rows, the last ones of `n_positions`, in multiply-adds: with latent vectors,
    /// and with keys and values of the head. GEMMs of single heads are slower than those of `expand_*`: they count three
    /// times.
    fn costs(&self, n_rows: usize, n_positions: usize) -> [usize; 2] {
        let n_seen = n_rows * (n_positions - n_rows / 2);
        let of_product = self.rank * (self.k_dim - self.n_rot + self.v_dim);
        [
            n_seen * (2 * self.rank + self.n_rot) + 3 * n_rows * of_product,
            n_seen * (self.k_dim + self.v_dim) + n_positions * of_product,
        ]
    }
}

/// Memory for the keys and values of all heads of one layer and one sequence.
pub struct HeadsMemory {
    heads: LatentHeads,
    shape: KvShape,
    kv: [Buffer; 2],
    /// The matrices of keys and of values, as f16.
    weights: [Buffer; 2],
    /// The pages, in order.
    pages: Buffer,
    shared_bytes: u32,
}

impl HeadsMemory {
    /// The most bytes that [`HeadsMemory::new`] allocates for these heads.
    pub fn most_bytes(gpu: &Gpu, heads: LatentHeads) -> usize {
        let is_built = |(kernel, _): (&Kernel<ExpandParams>, _)| {
            Image::find(gpu.target(), kernel.module).is_some()
        };
        match heads.kernel(gpu).is_some_and(is_built) {
            true => MAX_BYTES,
            false => 0,
        }
    }

    /// Allocates memory for sequences of up to `n_ctx` positions, or as many as fit [`MAX_BYTES`] with the matrices, where
    /// the device has kernels for these heads and caches of these types, and steps have enough rows.
    pub fn new(
        gpu: &Gpu,
        types: KvTypes,
        heads: LatentHeads,
        [page, n_ctx, max_rows]: [usize; 3],
    ) -> Result<Option<HeadsMemory>, GpuError> {
        let Some((kernel, constant)) = heads.kernel(gpu) else {
            return Ok(None);
        };
        let n_weights = [heads.k_dim - heads.n_rot, heads.v_dim]
            .map(|n_out| heads.n_heads.saturating_mul(n_out * heads.rank));
        let of_weights = n_weights[0].saturating_add(n_weights[1]).saturating_mul(2);
        let of_page = page * heads.n_heads * 2 * (heads.k_dim + heads.v_dim);
        let most = MAX_BYTES.saturating_sub(of_weights) / of_page.max(1);
        let n_blocks = n_ctx.div_ceil(page).min(most);
        let shape = KvShape {
            types,
            n_blocks,
            n_kv_heads: heads.n_heads,
            page,
            k_dim: heads.k_dim,
            v_dim: heads.v_dim,
            values: Values::Apart,
        };
        let attends = AttendBlocks::new(gpu)?;
        if Image::find(gpu.target(), kernel.module).is_none()
            || attends.of(gpu, &shape, MIN_ROWS).is_none()
            || max_rows.min(n_blocks * page) < MIN_ROWS
        {
            return Ok(None);
        }
        let pages: Vec<u32> = (0..n_blocks as u32).collect();
        Ok(Some(HeadsMemory {
            heads,
            shape,
            kv: shape.alloc(gpu)?,
            weights: [
                gpu.alloc::<u16>(n_weights[0])?,
                gpu.alloc::<u16>(n_weights[1])?,
            ],
            pages: gpu.upload(&pages)?,
            shared_bytes: gpu.constant(kernel.module, constant)?,
        }))
    }

    pub fn heads(&self) -> LatentHeads {
        self.heads
    }

    /// Whether [`attend_to_heads`] can compute `n_rows` rows, the last ones of `n_positions` of a sequence, and is faster
    /// than attention to the latent vectors.
    pub fn is_faster(&self, gpu: &Gpu, n_rows: usize, n_positions: usize) -> bool {
        let fits = n_positions <= self.shape.n_blocks * self.shape.page;
        let [latent, of_heads] = self.heads.costs(n_rows, n_positions);
        let forced = [
            Variant::AttentionExact,
            Variant::AttentionDecode,
            Variant::AttentionGeneric,
            Variant::RowsPrompt,
            Variant::RowsAnswer,
        ];
        n_rows >= MIN_ROWS
            && fits
            && of_heads < latent
            && !forced.iter().any(|&variant| gpu.takes(variant))
    }
}

/// Attention of the only sequence of a step to keys and values of its heads, which are made from the latent vectors of
/// its first `n_positions` positions with the heads' matrices, of keys (`[rank, k_dim - n_rot]` each) and of values
/// (`[v_dim, rank]`). Queries are those of [`attention`] with keys of the heads.
///
/// # Errors
/// [`GpuError::Format`] for formats without kernels; errors of a launch.
///
/// # Panics
/// If the shapes do not match, the step has several sequences, or the memory is for fewer positions.
pub fn attend_to_heads(
    gpu: &Gpu,
    queries: &Queries<'_>,
    (latents, n_positions): (&KvLayer<'_>, usize),
    matrices: [ExpertMatrices<'_>; 2],
    step: &Step<'_>,
    (memory, scratch): (&HeadsMemory, &AttentionScratch),
) -> Result<(), GpuError> {
    let LatentHeads {
        n_heads,
        k_dim,
        n_rot,
        rank,
        ..
    } = memory.heads;
    let shape = &latents.shape;
    assert_eq!(
        (shape.types, shape.n_kv_heads, shape.k_dim, shape.values),
        (KvType::F16.into(), 1, rank + n_rot, Values::InKeys),
        "a cache of latent vectors"
    );
    assert_eq!(shape.page, memory.shape.page, "pages of one size");
    assert!(
        step.n_seqs() == 1 && n_positions <= memory.shape.n_blocks * memory.shape.page,
        "{n_positions} positions of one sequence"
    );
    let shapes = matrices.map(|matrices| [matrices.n_out, matrices.n_in]);
    assert_eq!(
        shapes,
        [[rank, k_dim - n_rot], [memory.heads.v_dim, rank]],
        "the matrices of the heads"
    );
    for (matrices, out) in matrices.iter().zip(&memory.weights) {
        assert_eq!(matrices.stack.n_experts, n_heads, "a matrix per head");
        dequantize_stack_f16(gpu, matrices, out.as_slice())?;
    }
    let layer = KvLayer::new(memory.shape, &memory.kv);
    let [k, v] = layer.planes().map(|planes| planes.codes);
    let [k_weights, v_weights] = [0, 1].map(|i| memory.weights[i].as_slice::<u16>().address());
    let params = ExpandParams {
        cache: CacheParams::new(latents, step),
        k_weights,
        v_weights,
        k,
        v,
        n_positions: n_positions as u32,
        n_heads: n_heads as u32,
        rank: rank as u32,
        n_rot: n_rot as u32,
    };
    let (kernel, _) = memory.heads.kernel(gpu).expect("memory is for a kernel");
    let grid = [2 * n_heads as u32, n_positions.div_ceil(ROWS) as u32, 1];
    gpu.launch(kernel, grid, attend::THREADS, memory.shared_bytes, &params)?;
    let step = Step {
        block_tables: memory.pages.as_slice(),
        max_pages: memory.shape.n_blocks,
        ..*step
    };
    attention(gpu, queries, &layer, &step, scratch)
}
