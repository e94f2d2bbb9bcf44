//! Products of activations with weight matrices, and embedding lookup.
//!
//! `Acts::quantize` converts the activations to the format that the weights require. [`matmul`] splits the output into
//! tiles and runs each on the kernel of its format and instruction set. The scalar kernel dequantizes both sides and is
//! the reference for the others.

use std::cell::RefCell;
use std::marker::PhantomData;

use rocmforge_gguf::quant::{GgmlType, iq, k, lattice, legacy, mxfp, nvfp, plain, q2, ternary};
use rocmforge_plan::{ActFormat, Activation, OutMode, Weight};

use crate::Isa;
use crate::acts::Acts;
use crate::aligned::Floats;
use crate::arch::Vector;
use crate::generic::sign_dot::SignTile;
use crate::generic::tile::{DequantizedTile, FloatTile, IntTile};
use crate::job::Job;
use crate::ops::gate_in_place;
use crate::pool::{MatrixMut, Pool, Tile};

/// Weight bytes of a task with few tokens, which only streams them.
const STREAM_TASK_BYTES: usize = 256 * 1024;

/// Activation bytes of a task's tokens, which stay in the L2 cache while weight rows stream through.
const TOKENS_BYTES: usize = 1024 * 1024;

/// Rows times tokens of a task that unpacks rows, with at least 128 rows. Allocating the unpacked rows costs 5 % with 8
/// tokens and 128 rows.
const TASK_PRODUCTS: usize = 4096;

/// Rows of a task are a multiple of this: two of the longest vectors of any instruction set.
const ROWS_STEP: usize = 32;

/// A product of activations with one weight matrix.
pub struct Product<'a> {
    /// [n_out, n_in].
    pub w: Weight<'a>,
    /// `[n_out]`.
    pub bias: Option<&'a [f32]>,
    pub mode: OutMode,
    /// [n_tokens, n_out].
    pub out: &'a mut [f32],
}

/// out = acts * w^T + bias: `out` [n_tokens, n_out], `acts` [n_tokens, n_in], `bias` `[n_out]`.
///
/// Every element has the same bits for any number of tokens, rows and threads.
///
/// # Panics
/// If shapes do not match, `acts` do not have the format of [`rocmforge_plan::act_format`], or the format of `w`
/// cannot be dequantized.
pub fn matmul(isa: Isa, pool: &Pool, acts: &Acts, product: Product<'_>) {
    matmul_all(isa, pool, acts, vec![product]);
}

/// Computes several products with the same activations in one dispatch, without a wait between them. The bits are those
/// of [`matmul`].
///
/// # Panics
/// As [`matmul`].
pub fn matmul_all(isa: Isa, pool: &Pool, acts: &Acts, products: Vec<Product<'_>>) {
    let (mut jobs, mut outs) = (Vec::new(), Vec::new());
    let (mut n_rows, mut row_bytes) = (0, 0);
    for Product { w, bias, mode, out } in products {
        let job = Job {
            w,
            acts,
            scale: 1.0,
            bias,
            mode,
        };
        row_bytes = job.check(out.len()).max(row_bytes);
        n_rows += w.n_out;
        if !out.is_empty() {
            jobs.push(job);
            outs.push(MatrixMut {
                values: out,
                row_len: w.n_out,
            });
        }
    }
    if outs.is_empty() {
        return;
    }
    let (tokens_per_task, rows_per_task) = task_shape(pool, n_rows, acts, row_bytes);
    pool.for_each_tile(outs, tokens_per_task, rows_per_task, &|i, tile| {
        run_tile(isa, &jobs[i], tile);
    });
}

/// One of the two products of a gated feed-forward network.
#[derive(Clone, Copy)]
pub struct Gate<'a> {
    /// [n_out, n_in].
    pub w: Weight<'a>,
    /// `[n_out]`.
    pub bias: Option<&'a [f32]>,
}

/// Computes `out = activation(acts * gate^T) * (acts * up^T)` in one dispatch, with the bits of two products and
/// [`crate::gated_activation`]. `out` [n_tokens, n_out].
///
/// # Panics
/// As [`matmul`], or if the two matrices have different shapes.
pub fn matmul_gated(
    isa: Isa,
    pool: &Pool,
    acts: &Acts,
    [gate, up]: [Gate<'_>; 2],
    activation: Activation,
    out: &mut [f32],
) {
    let [gate, up] = [gate, up].map(|side| Job {
        w: side.w,
        acts,
        scale: 1.0,
        bias: side.bias,
        mode: OutMode::Store,
    });
    let row_bytes = gate.check(out.len()) + up.check(out.len());
    let row_len = gate.w.n_out;
    if out.is_empty() {
        return;
    }
    let (tokens_per_task, rows_per_task) = task_shape(pool, row_len, acts, row_bytes);
    let outs = vec![MatrixMut {
        values: out,
        row_len,
    }];
    pool.for_each_tile(outs, tokens_per_task, rows_per_task, &|_, tile| {
        let (tokens, cols) = (tile.rows(), tile.cols());
        run_tile(isa, &gate, tile);
        GATED.with_borrow_mut(|scratch| {
            let n = tokens.len() * cols.len();
            scratch.resize(n);
            let ups = &mut scratch[..n];
            let mut up_tile = Tile::of(ups, tokens.clone(), cols.clone());
            run_tile(isa, &up, &mut up_tile);
            for (token, up) in tokens.zip(ups.chunks_exact(cols.len())) {
                gate_in_place(isa, activation, up, tile.row(token));
            }
        });
    });
}

thread_local! {
    /// The `up` half of a tile of [`matmul_gated`].
    static GATED: RefCell<Floats> = const { RefCell::new(Floats::new()) };
}

/// Runs one task of a product.
pub(crate) fn run_tile(isa: Isa, job: &Job<'_>, tile: &mut Tile<'_>) {
    match (isa.vector(), fast_tile(job.w.ty)) {
        (None, _) => scalar_tile(job, tile),
        (Some(isa), Some(run)) => run(isa, job, tile),
        (Some(isa), None) => isa.run(DequantizedTile { job, tile }),
    }
}

/// Chooses tokens and weight rows per task, for `n_rows` rows of at most `row_bytes`.
pub(crate) fn task_shape(
    pool: &Pool,
    n_rows: usize,
    acts: &Acts,
    row_bytes: usize,
) -> (usize, usize) {
    let act_bytes = match acts.format() {
        ActFormat::F32 => 4,
        ActFormat::Q8x32 | ActFormat::Q8x256 => 1,
    };
    let tokens = (TOKENS_BYTES / (acts.n_in() * act_bytes).max(1)).max(48) / 24 * 24;
    let tokens = tokens.min(acts.n_tokens());
    // Enough tasks that one late thread does not keep the others waiting.
    let fair = n_rows.div_ceil(4 * pool.n_threads());
    let rows = if tokens <= 4 {
        fair.min(STREAM_TASK_BYTES / row_bytes.max(1))
    } else {
        fair.min((TASK_PRODUCTS / tokens).max(128))
    };
    (tokens, rows.next_multiple_of(ROWS_STEP).max(ROWS_STEP))
}

type TileFn = fn(Vector, &Job<'_>, &mut Tile<'_>);

/// The vector kernel of a format.
fn fast_tile(ty: GgmlType) -> Option<TileFn> {
    macro_rules! kernel {
        ($tile:ident<$format:ty>) => {
            Some(|isa, job, tile| {
                isa.run($tile::<'_, '_, '_, $format> {
                    job,
                    tile,
                    format: PhantomData,
                })
            })
        };
    }
    match ty {
        GgmlType::F32 => kernel!(FloatTile<plain::F32>),
        GgmlType::F16 => kernel!(FloatTile<plain::F16>),
        GgmlType::BF16 => kernel!(FloatTile<plain::BF16>),
        GgmlType::Q4_0 => kernel!(IntTile<legacy::Q4_0>),
        GgmlType::Q4_1 => kernel!(IntTile<legacy::Q4_1>),
        GgmlType::Q5_0 => kernel!(IntTile<legacy::Q5_0>),
        GgmlType::Q5_1 => kernel!(IntTile<legacy::Q5_1>),
        GgmlType::Q8_0 => kernel!(IntTile<legacy::Q8_0>),
        GgmlType::Q2_K => kernel!(IntTile<k::Q2K>),
        GgmlType::Q3_K => kernel!(IntTile<k::Q3K>),
        GgmlType::Q4_K => kernel!(IntTile<k::Q4K>),
        GgmlType::Q5_K => kernel!(IntTile<k::Q5K>),
        GgmlType::Q6_K => kernel!(IntTile<k::Q6K>),
        GgmlType::IQ4_NL => kernel!(IntTile<iq::Iq4Nl>),
        GgmlType::IQ4_XS => kernel!(IntTile<iq::Iq4Xs>),
        GgmlType::MXFP4 => kernel!(IntTile<mxfp::Mxfp4>),
        GgmlType::NVFP4 => kernel!(IntTile<nvfp::Nvfp4>),
        GgmlType::Q2_0 => kernel!(IntTile<q2::Q2_0>),
        GgmlType::TQ1_0 => kernel!(IntTile<ternary::Tq1_0>),
        GgmlType::TQ2_0 => kernel!(IntTile<ternary::Tq2_0>),
        GgmlType::IQ1_S => kernel!(IntTile<lattice::Iq1S>),
        GgmlType::IQ1_M => kernel!(IntTile<lattice::Iq1M>),
        GgmlType::IQ2_XXS => kernel!(IntTile<lattice::Iq2Xxs>),
        GgmlType::IQ2_XS => kernel!(IntTile<lattice::Iq2Xs>),
        GgmlType::IQ2_S => kernel!(IntTile<lattice::Iq2S>),
        GgmlType::IQ3_XXS => kernel!(IntTile<lattice::Iq3Xxs>),
        GgmlType::IQ3_S => kernel!(IntTile<lattice::Iq3S>),
        GgmlType::Q1_0 => Some(|isa, job, tile| isa.run(SignTile { job, tile })),
        _ => None,
    }
}

/// Whether [`matmul`] has a vector kernel for this format. Without one it is correct but slow, since every row is
/// dequantized to f32; callers count and report that.
pub fn is_fast(isa: Isa, ty: GgmlType) -> bool {
    isa != Isa::Scalar && fast_tile(ty).is_some()
}

/// The reference: both sides dequantized, products summed in f64.
fn scalar_tile(job: &Job<'_>, tile: &mut Tile<'_>) {
    let mut x = vec![0.0; job.w.n_in];
    let mut rows = vec![0.0; tile.cols().len() * job.w.n_in];
    for (i, row) in tile.cols().zip(rows.chunks_exact_mut(job.w.n_in)) {
        job.w.dequantize(i, 0, row);
    }
    for token in tile.rows() {
        job.acts.dequantize_row(token, &mut x);
        for (i, row) in tile.cols().zip(rows.chunks_exact(job.w.n_in)) {
            let products = row
                .iter()
                .zip(&x)
                .map(|(w, x)| f64::from(*w) * f64::from(*x));
            job.write(tile, token, i, &[products.sum::<f64>() as f32]);
        }
    }
}

/// Dequantizes rows `ids` of `w` (embedding lookup): `out` [ids.len(), n_in].
///
/// # Panics
/// If an id is not below `n_out`, or `out` has the wrong shape.
pub fn get_rows(w: &Weight<'_>, ids: &[u32], out: &mut [f32]) {
    w.check();
    assert_eq!(out.len(), ids.len() * w.n_in, "out is [ids, n_in]");
    for (id, out) in ids.iter().zip(out.chunks_exact_mut(w.n_in)) {
        assert!((*id as usize) < w.n_out, "row {id} of {}", w.n_out);
        w.dequantize(*id as usize, 0, out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Arbitrary codes for which the scales of all formats used here are finite.
    fn weights(ty: GgmlType, n: usize) -> Vec<u8> {
        let bytes = ty.row_bytes(n).expect("whole blocks");
        (0..bytes).map(|i| (i * i / 7 % 97) as u8 & 0x3f).collect()
    }

    fn matrix(values: &mut [f32], row_len: usize) -> MatrixMut<'_> {
        MatrixMut { values, row_len }
    }

    /// Every format has a kernel today, so this calls the fallback for those without one directly.
    #[test]
    fn dequantized_tiles_match_the_scalar_kernel() {
        let (n_in, n_out) = (768, 21);
        let pool = Pool::new(2);
        for isa in Isa::available() {
            let Some(vector) = isa.vector() else {
                continue;
            };
            for ty in [GgmlType::Q4_K, GgmlType::Q8_0, GgmlType::IQ4_XS] {
                let data = weights(ty, n_in * n_out);
                let w = Weight {
                    ty,
                    n_out,
                    n_in,
                    data: &data,
                };
                let mut alone = Vec::new();
                for n_tokens in 1..=7 {
                    let x: Vec<f32> = (0..n_tokens * n_in)
                        .map(|i| (i * 37 % 101) as f32 / 50.0 - 1.0)
                        .collect();
                    let mut acts = Acts::new();
                    acts.quantize(isa, &pool, &x, [n_tokens, n_in], ActFormat::F32);
                    let job = Job {
                        w,
                        acts: &acts,
                        scale: 1.0,
                        bias: None,
                        mode: OutMode::Store,
                    };
                    let mut out = vec![f32::NAN; n_tokens * n_out];
                    pool.for_each_tile(vec![matrix(&mut out, n_out)], 7, 16, &|_, tile| {
                        vector.run(DequantizedTile { job: &job, tile });
                    });
                    let mut expected = vec![f32::NAN; n_tokens * n_out];
                    pool.for_each_tile(vec![matrix(&mut expected, n_out)], 7, 16, &|_, tile| {
                        scalar_tile(&job, tile);
                    });
                    let largest = expected.iter().fold(0f32, |m, y| m.max(y.abs()));
                    for (y, expected) in out.iter().zip(&expected) {
                        assert!((y - expected).abs() <= 1e-5 * largest, "{y} {expected}");
                    }
                    if n_tokens == 1 {
                        alone = out;
                    } else {
                        assert_eq!(out[..n_out], alone, "{} {n_tokens}", ty.name());
                    }
                }
            }
        }
    }
}
