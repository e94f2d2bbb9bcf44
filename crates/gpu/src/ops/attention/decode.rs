//! Attention of few rows per sequence, each computed on its own (`kernels/kv/attention_decode.hip`), also of latent layers.

use rocmforge_plan::Values;

use super::scratch::{AttentionScratch, SPLIT_GRAIN};
use super::{Call, RowKind, Way, is_fast};
use crate::error::GpuError;
use crate::gpu::Gpu;
use crate::kernel::{Kernel, kernels};
use crate::kv::KvShape;
use crate::operands::{ActFormat, Acts};
use crate::ops::attention_params::{CacheParams, CombineActsParams, DecodeParams};
use crate::ops::half::HalfRows;
use crate::ops::norm::{acts_out, quantize};
use crate::tuning::{Choice, Shape};

/// Threads per block of the decode kernels.
pub(super) const THREADS: u32 = 128;

/// Widths of keys and values with specialized kernels for few rows.
pub(super) const FAST_WIDTHS: [[usize; 2]; 7] = [
    [64, 64],
    [80, 80],
    [96, 96],
    [128, 128],
    [192, 128],
    [256, 256],
    [512, 512],
];

/// Returns the maximum number of query heads per block. Those of a block of wide heads would not fit into registers.
fn max_heads([k_dim, v_dim]: [usize; 2]) -> usize {
    if k_dim > 256 || k_dim != v_dim { 4 } else { 8 }
}

/// Query heads and positions that a block of the kernel of latent layers keeps in shared memory, and its widest keys:
/// `QUERIES`, `KEYS` and `MAX_K_DIM` of `kernels/decode_latent.h`. A thread has four values.
const LATENT_HEADS: usize = 8;
const LATENT_KEYS: usize = 8;
pub(super) const LATENT_K_DIM: usize = 640;
pub(super) const LATENT_V_DIM: usize = 4 * THREADS as usize;

/// `ORDERS` of a head dimension in attention_decode.hip: one byte for each number of query heads per block. Equal bytes
/// mean equal bits of the result.
#[derive(Clone, Copy)]
pub(super) struct Orders(pub(super) u32);

impl Orders {
    /// Whether blocks of `heads` query heads sum in the same order as blocks of `most`.
    fn are_equal(self, heads: usize, most: usize) -> bool {
        let order = |heads: usize| self.0.to_le_bytes()[heads.trailing_zeros() as usize];
        order(heads) == order(most)
    }
}

/// The constants with the [`Orders`] of each of [`FAST_WIDTHS`].
pub(super) const ORDERS_NAMES: [&str; FAST_WIDTHS.len()] = [
    "orders_64",
    "orders_80",
    "orders_96",
    "orders_128",
    "orders_192_128",
    "orders_256",
    "orders_512",
];

kernels! {
    struct DecodeKernels {
        decode_64_1: DecodeParams,
        decode_64_2: DecodeParams,
        decode_64_4: DecodeParams,
        decode_64_8: DecodeParams,
        decode_80_1: DecodeParams,
        decode_80_2: DecodeParams,
        decode_80_4: DecodeParams,
        decode_80_8: DecodeParams,
        decode_96_1: DecodeParams,
        decode_96_2: DecodeParams,
        decode_96_4: DecodeParams,
        decode_96_8: DecodeParams,
        decode_128_1: DecodeParams,
        decode_128_2: DecodeParams,
        decode_128_4: DecodeParams,
        decode_128_8: DecodeParams,
        decode_192_128_1: DecodeParams,
        decode_192_128_2: DecodeParams,
        decode_192_128_4: DecodeParams,
        decode_256_1: DecodeParams,
        decode_256_2: DecodeParams,
        decode_256_4: DecodeParams,
        decode_256_8: DecodeParams,
        decode_512_1: DecodeParams,
        decode_512_2: DecodeParams,
        decode_512_4: DecodeParams,
        decode_latent: DecodeParams,
        generic: DecodeParams,
        combine: DecodeParams,
        combine_q8x32: CombineActsParams,
        combine_q8x256_1: CombineActsParams,
        combine_q8x256_2: CombineActsParams,
        combine_q8x256_4: CombineActsParams,
    }
}

impl DecodeKernels {
    /// The module that has them.
    pub(super) fn module(&self) -> &'static str {
        self.generic.module
    }

    /// Returns the kernel for a width of keys and a number of query heads per block.
    fn of(&self, k_dim: usize, heads: usize) -> &Kernel<DecodeParams> {
        let of_dim: &[&Kernel<DecodeParams>] = match k_dim {
            64 => &[
                &self.decode_64_1,
                &self.decode_64_2,
                &self.decode_64_4,
                &self.decode_64_8,
            ],
            80 => &[
                &self.decode_80_1,
                &self.decode_80_2,
                &self.decode_80_4,
                &self.decode_80_8,
            ],
            96 => &[
                &self.decode_96_1,
                &self.decode_96_2,
                &self.decode_96_4,
                &self.decode_96_8,
            ],
            128 => &[
                &self.decode_128_1,
                &self.decode_128_2,
                &self.decode_128_4,
                &self.decode_128_8,
            ],
            192 => &[
                &self.decode_192_128_1,
                &self.decode_192_128_2,
                &self.decode_192_128_4,
            ],
            512 => &[&self.decode_512_1, &self.decode_512_2, &self.decode_512_4],
            _ => &[
                &self.decode_256_1,
                &self.decode_256_2,
                &self.decode_256_4,
                &self.decode_256_8,
            ],
        };
        of_dim[heads.trailing_zeros() as usize]
    }
}

/// The properties that determine the blocks of a decode launch.
#[derive(Clone, Copy)]
pub(crate) struct DecodeExtents {
    pub(crate) n_rows: usize,
    pub(crate) n_heads: usize,
    pub(crate) kv: KvShape,
}

impl DecodeExtents {
    fn group(&self) -> usize {
        self.n_heads / self.kv.n_kv_heads
    }

    /// Maximum number of query heads per block for this shape: the fewest loads.
    fn most_heads(&self) -> usize {
        self.group()
            .next_power_of_two()
            .min(max_heads([self.kv.k_dim, self.kv.v_dim]))
    }

    /// Blocks per row and split.
    fn n_blocks(&self, heads: usize) -> usize {
        self.kv.n_kv_heads * self.group().div_ceil(heads)
    }

    /// Returns into how many splits the context of each row is divided. The ends of splits determine the order of
    /// additions, so the number follows from the default block shape even if another is used.
    fn n_splits(&self, gpu: &Gpu, scratch: &AttentionScratch) -> Result<usize, GpuError> {
        let heads = self.most_heads();
        let at_once = gpu.n_concurrent_blocks(self.kernel(gpu, heads), (THREADS, 0))?;
        let of_row = [self.n_blocks(heads), self.n_heads * (self.kv.v_dim + 2)];
        let grain = (SPLIT_GRAIN, scratch.n_ctx);
        Ok(scratch.n_splits_of_rows(gpu, (self.n_rows, of_row), grain, at_once))
    }

    fn kernel<'g>(&self, gpu: &'g Gpu, heads: usize) -> &'g Kernel<DecodeParams> {
        let kernels = gpu.kernels().attention_decode.of(self.kv.types);
        kernels.of(self.kv.k_dim, heads)
    }

    fn shape(&self) -> Shape {
        Shape::Attention {
            types: self.kv.types,
            n_heads: self.n_heads,
            n_kv_heads: self.kv.n_kv_heads,
            dim: self.kv.k_dim,
            n_rows: self.n_rows.next_power_of_two(),
        }
    }

    /// Returns the query heads per block: the tuned number, else the maximum.
    fn heads(&self, gpu: &Gpu, scratch: &AttentionScratch) -> usize {
        match gpu.tuned(|| self.shape()) {
            Some(Choice::Attention { heads }) if self.gives_equal_bits(heads, scratch) => heads,
            _ => self.most_heads(),
        }
    }

    /// Whether blocks of `heads` query heads, at most the default number, give the same bits.
    fn gives_equal_bits(&self, heads: usize, scratch: &AttentionScratch) -> bool {
        let most = self.most_heads();
        let widths = [self.kv.k_dim, self.kv.v_dim];
        let place = FAST_WIDTHS.iter().position(|&fast| fast == widths);
        let orders = scratch.orders[place.expect("the widths have a specialized kernel")];
        heads.is_power_of_two() && heads <= most && orders.are_equal(heads, most)
    }

    /// Returns the shape of the launch and its candidate choices, the default first; no choices if the dimension has no
    /// specialized kernel.
    pub(crate) fn ways(&self, scratch: &AttentionScratch) -> (Shape, Vec<Choice>) {
        if self.kv.values == Values::InKeys
            || !is_fast(self.kv.k_dim, self.kv.v_dim, self.kv.values, RowKind::Plain)
        {
            return (self.shape(), Vec::new());
        }
        let fewer = std::iter::successors(Some(self.most_heads()), |heads| Some(heads / 2));
        let alike = fewer
            .take_while(|&heads| heads > 0)
            .filter(|&heads| self.gives_equal_bits(heads, scratch));
        let ways = alike.map(|heads| Choice::Attention { heads });
        (self.shape(), ways.collect())
    }
}

impl Call<'_> {
    pub(super) fn decode_params(&self, n_splits: usize) -> DecodeParams {
        DecodeParams {
            q: self.queries.q.address(),
            out: self.queries.out.address(),
            partial: self.scratch.partial.as_slice::<f32>().address(),
            positions: self.step.positions.address(),
            seq_of_row: self.step.seq_of_row.address(),
            seqs: self.step.seqs.table(),
            cache: CacheParams::new(self.kv, self.step),
            scores: self.scores(),
            n_rows: self.step.n_rows() as u32,
            n_heads: self.queries.n_heads as u32,
            n_splits: n_splits as u32,
            k_dim: self.kv.shape.k_dim as u32,
            v_dim: self.kv.shape.v_dim as u32,
            v_row: match self.kv.shape.values {
                Values::Apart => self.kv.shape.v_dim as u32,
                Values::InKeys => self.kv.shape.k_dim as u32,
            },
        }
    }

    pub(super) fn kernels(&self) -> &DecodeKernels {
        let all = &self.gpu.kernels().attention_decode;
        all.of(self.kv.shape.types)
    }

    pub(super) fn decode(&self) -> Result<(), GpuError> {
        let params = self.decode_parts()?;
        if params.n_splits == 1 {
            return Ok(());
        }
        let grid = [params.n_heads, params.n_rows, 1];
        let combine = &self.kernels().combine;
        self.gpu.launch(combine, grid, THREADS, 0, &params)
    }

    /// Returns the kernel that combines the splits of decode rows and converts the results to the form of `acts`, and the heads
    /// of its blocks, if there is one.
    pub(super) fn combine_acts(
        &self,
        acts: &Acts<'_>,
    ) -> Option<(&Kernel<CombineActsParams>, usize)> {
        let (kernels, v_dim) = (self.kernels(), self.kv.shape.v_dim);
        let combine = match (acts.form, v_dim) {
            (ActFormat::Q8x32, 32..=256) if v_dim.is_multiple_of(32) => (&kernels.combine_q8x32, 1),
            (ActFormat::Q8x256, 256) => (&kernels.combine_q8x256_1, 1),
            (ActFormat::Q8x256, 128) => (&kernels.combine_q8x256_2, 2),
            (ActFormat::Q8x256, 64) => (&kernels.combine_q8x256_4, 4),
            _ => return None,
        };
        let [_, v_hadamard] = self.kv.shape.hadamard_lens();
        let is_taken = self.way() == Way::Decode
            && v_hadamard == 1
            && self.queries.n_heads.is_multiple_of(combine.1)
            && HalfRows::new(self.gpu, acts, None).is_none();
        is_taken.then_some(combine)
    }

    pub(super) fn decode_to(
        &self,
        acts: &Acts<'_>,
        (combine, heads): (&Kernel<CombineActsParams>, usize),
    ) -> Result<(), GpuError> {
        let shape = (
            self.step.n_rows(),
            self.queries.n_heads * self.kv.shape.v_dim,
        );
        assert_eq!(
            (acts.n_rows, acts.width),
            shape,
            "acts have the shape of the results"
        );
        let decode = self.decode_parts()?;
        if decode.n_splits == 1 {
            return quantize(self.gpu, self.queries.out, acts);
        }
        let grid = [decode.n_heads / heads as u32, decode.n_rows, 1];
        let acts = acts_out(acts);
        let n_threads = heads as u32 * THREADS;
        let params = CombineActsParams { decode, acts };
        self.gpu.launch(combine, grid, n_threads, 0, &params)
    }

    /// Computes the parts of the results of decode rows, or the results if there is one part.
    fn decode_parts(&self) -> Result<DecodeParams, GpuError> {
        let n_rows = self.step.n_rows();
        let extents = DecodeExtents {
            n_rows,
            n_heads: self.queries.n_heads,
            kv: self.kv.shape,
        };
        let n_splits = extents.n_splits(self.gpu, self.scratch)?;
        let heads = extents.heads(self.gpu, self.scratch);
        let n_blocks = extents.n_blocks(heads);
        let params = self.decode_params(n_splits);
        let kernel = extents.kernel(self.gpu, heads);
        let grid = [n_blocks as u32, n_splits as u32, n_rows as u32];
        self.gpu.launch(kernel, grid, THREADS, 0, &params)?;
        Ok(params)
    }

    /// Shared memory of a block of `decode_latent`.
    fn latent_bytes(&self) -> u32 {
        let floats = (LATENT_HEADS + LATENT_KEYS) * self.kv.shape.k_dim;
        (floats * size_of::<f32>()) as u32
    }

    /// Rows of decode steps and of prompts alike.
    pub(super) fn latent(&self) -> Result<(), GpuError> {
        let kernel = &self.kernels().decode_latent;
        let (n_rows, n_heads) = (self.step.n_rows(), self.queries.n_heads);
        let n_blocks = self.kv.shape.n_kv_heads * self.group().div_ceil(LATENT_HEADS);
        let blocks = (THREADS, self.latent_bytes());
        let at_once = self.gpu.n_concurrent_blocks(kernel, blocks)?;
        let of_row = [n_blocks, n_heads * (self.kv.shape.v_dim + 2)];
        let grain = (SPLIT_GRAIN, self.step.longest);
        let n_splits =
            { self.scratch }.n_splits_of_rows(self.gpu, (n_rows, of_row), grain, at_once);
        let params = self.decode_params(n_splits);
        let grid = [n_blocks as u32, n_splits as u32, n_rows as u32];
        self.gpu
            .launch(kernel, grid, THREADS, self.latent_bytes(), &params)?;
        if n_splits == 1 {
            return Ok(());
        }
        let grid = [n_heads as u32, n_rows as u32, 1];
        let combine = &self.kernels().combine;
        self.gpu.launch(combine, grid, THREADS, 0, &params)
    }

    /// Heads of any width.
    pub(super) fn generic(&self) -> Result<(), GpuError> {
        let grid = [self.queries.n_heads as u32, self.step.n_rows() as u32, 1];
        let n_sums = self.kv.shape.v_dim.max(THREADS as usize);
        let shared_bytes = (self.kv.shape.k_dim + n_sums) * size_of::<f32>();
        let kernel = &self.kernels().generic;
        self.gpu.launch(
            kernel,
            grid,
            THREADS,
            shared_bytes as u32,
            &self.decode_params(1),
        )
    }
}
