//! One task of a matrix product: a tile of tokens by weight rows.
//!
//! With few tokens weights are streamed through registers. With more they are unpacked to a
//! stretch that stays in the L1 cache while all tokens of the tile go over it.

use std::marker::PhantomData;

use rocmforge_gguf::quant::{self, Block};

use super::float_dot::{self, Plain};
use super::format::{Format, TokenBlocks};
use super::int_dot::{BlockRows, Panel, stream};
use super::simd::Simd;
use crate::arch::Kernel;
use crate::matmul::{Job, OutMode, Weight};
use crate::pool::Tile;

/// Tokens that codes are multiplied with at once. For so few alone unpacking to a panel does not
/// pay (Sapphire Rapids, 2026-11: 33 us against 46 with 4 tokens, 47 against 40 with 5; Q4_K
/// [256, 2048] on one thread).
const INT_TOKENS: usize = 4;

/// Values per row of a panel of codes: 8 rows take 8 to 12 KiB of the L1 cache.
const INT_STRETCH: usize = 1024;

/// Rows and tokens of a register tile in f32: 12 sums in 16 registers.
const FLOAT_ROWS: usize = 4;
const FLOAT_TOKENS: usize = 3;

/// Rows of an f32 panel, and its values per row: 16 KiB of the L1 cache.
const FLOAT_GROUP: usize = 8;
const FLOAT_STRETCH: usize = 512;

/// Register tiles that a group of rows makes with the same tokens.
const FLOAT_TILES: usize = FLOAT_GROUP / FLOAT_ROWS;

/// Adds bias and residual to the products of `token` with the `LANES` weight rows from `first` on,
/// and writes those that lie in the tile.
#[inline(always)]
fn write<S: Simd>(
    s: S,
    job: &Job<'_>,
    tile: &mut Tile<'_>,
    token: usize,
    first: usize,
    sums: S::F32,
) {
    let cols = tile.cols();
    let n = S::LANES.min(cols.end - first);
    if n < S::LANES {
        let mut values = [0.0; 16];
        s.store(sums, &mut values);
        job.write(tile, token, first, &values[..n]);
        return;
    }
    let out = &mut tile.row(token)[first - cols.start..][..n];
    let mut y = sums;
    if let Some(bias) = job.bias {
        y = s.add(y, s.load(&bias[first..]));
    }
    if job.mode == OutMode::Add {
        y = s.add(s.load(out), y);
    }
    s.store(y, out);
}

/// Block formats with int8 activations.
pub(crate) struct IntTile<'a, 'b, 'c, F> {
    pub job: &'a Job<'b>,
    pub tile: &'a mut Tile<'c>,
    pub format: PhantomData<F>,
}

impl<F: Format> Kernel for IntTile<'_, '_, '_, F> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let IntTile { job, tile, .. } = self;
        let rows = BlockRows::<F> {
            blocks: quant::blocks(job.w.data),
            blocks_per_row: job.w.n_in / F::Block::TYPE.block_len(),
        };
        let cols = tile.cols();
        let acts: Vec<TokenBlocks<'_, F>> = tile
            .rows()
            .map(|t| TokenBlocks::new(job.acts.code_row(t)))
            .collect();
        let mut sums = vec![s.splat(0.0); acts.len()];
        let mut panel = Panel::new();
        if acts.len() <= INT_TOKENS {
            rows.prefetch(s, cols.start);
        }
        for first in cols.clone().step_by(S::LANES) {
            let group = (first, cols.end);
            match acts.len() {
                1 => stream::<S, F, 1>(s, rows, group, tokens(&acts), tokens_mut(&mut sums)),
                2 => stream::<S, F, 2>(s, rows, group, tokens(&acts), tokens_mut(&mut sums)),
                3 => stream::<S, F, 3>(s, rows, group, tokens(&acts), tokens_mut(&mut sums)),
                4 => stream::<S, F, 4>(s, rows, group, tokens(&acts), tokens_mut(&mut sums)),
                _ => panel_tokens(s, rows, group, &acts, &mut panel, &mut sums),
            }
            for (token, sums) in tile.rows().zip(&sums) {
                write(s, job, tile, token, first, *sums);
            }
        }
    }
}

/// The products of all tokens with one group of rows, stretch by stretch.
#[inline(always)]
fn panel_tokens<S: Simd, F: Format>(
    s: S,
    rows: BlockRows<'_, F>,
    group: (usize, usize),
    acts: &[TokenBlocks<'_, F>],
    panel: &mut Panel<S>,
    sums: &mut [S::F32],
) {
    let n_blocks = rows.blocks_per_row;
    let step = INT_STRETCH / F::Block::TYPE.block_len();
    sums.fill(s.splat(0.0));
    for block in (0..n_blocks).step_by(step) {
        panel.fill(s, rows, group, block, step.min(n_blocks - block));
        for (acts, sums) in acts.chunks(INT_TOKENS).zip(sums.chunks_mut(INT_TOKENS)) {
            match acts.len() {
                1 => panel.dot::<F, 1>(s, tokens(acts), tokens_mut(sums)),
                2 => panel.dot::<F, 2>(s, tokens(acts), tokens_mut(sums)),
                3 => panel.dot::<F, 3>(s, tokens(acts), tokens_mut(sums)),
                _ => panel.dot::<F, 4>(s, tokens(acts), tokens_mut(sums)),
            }
        }
    }
}

/// `x`, whose length the caller has matched.
#[inline(always)]
fn tokens<T, const N: usize>(x: &[T]) -> &[T; N] {
    x.try_into().expect("N tokens")
}

/// `x`, whose length the caller has matched.
#[inline(always)]
fn tokens_mut<T, const N: usize>(x: &mut [T]) -> &mut [T; N] {
    x.try_into().expect("N tokens")
}

/// F32, F16 and BF16.
pub(crate) struct FloatTile<'a, 'b, 'c, P> {
    pub job: &'a Job<'b>,
    pub tile: &'a mut Tile<'c>,
    pub format: PhantomData<P>,
}

impl<P: Plain + Block> Kernel for FloatTile<'_, '_, '_, P> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let FloatTile { job, tile, .. } = self;
        let (n_in, data) = (job.w.n_in, quant::blocks::<P>(job.w.data));
        let row = |i: usize| &data[i * n_in..][..n_in];
        let (cols, tokens) = (tile.cols(), tile.rows());
        if tokens.len() > FLOAT_TOKENS {
            float_panels(s, job, tile, PlainRows { data, n_in });
            return;
        }
        for first in cols.clone().step_by(FLOAT_GROUP) {
            let rows: [&[P]; FLOAT_GROUP] =
                std::array::from_fn(|i| row((first + i).min(cols.end - 1)));
            match tokens.len() {
                1 => float_stream::<S, P, 1>(s, job, tile, rows, first),
                2 => float_stream::<S, P, 2>(s, job, tile, rows, first),
                _ => float_stream::<S, P, FLOAT_TOKENS>(s, job, tile, rows, first),
            }
        }
    }
}

/// A group of whole rows with all tokens of the tile, which are few.
#[inline(always)]
fn float_stream<S: Simd, P: Plain, const N: usize>(
    s: S,
    job: &Job<'_>,
    tile: &mut Tile<'_>,
    rows: [&[P]; FLOAT_GROUP],
    first: usize,
) {
    let token = tile.rows().start;
    let acts: [&[f32]; N] = std::array::from_fn(|n| job.acts.f32_row(token + n));
    let mut sums = [[[s.splat(0.0); N]; FLOAT_ROWS]; FLOAT_TILES];
    let (halves, _) = rows.as_chunks();
    for (rows, sums) in halves.iter().zip(&mut sums) {
        float_dot::dot(s, *rows, acts, sums);
    }
    for n in 0..N {
        write_group(s, job, tile, (token + n, first), &sums, n);
    }
}

/// Adds up the places of the sums of a group with token `n` of its register tiles, and writes
/// them to `(token, first row)`.
#[inline(always)]
fn write_group<S: Simd, const N: usize>(
    s: S,
    job: &Job<'_>,
    tile: &mut Tile<'_>,
    (token, first): (usize, usize),
    sums: &[[[S::F32; N]; FLOAT_ROWS]],
    n: usize,
) {
    let mut group = [s.splat(0.0); FLOAT_GROUP];
    for i in 0..FLOAT_GROUP {
        group[i] = sums[i / FLOAT_ROWS][i % FLOAT_ROWS][n];
    }
    let values = s.sums_of_8(group);
    job.write(
        tile,
        token,
        first,
        &values[..FLOAT_GROUP.min(tile.cols().end - first)],
    );
}

/// Formats without a dot product of their own: rows are dequantized to f32.
pub(crate) struct DequantizedTile<'a, 'b, 'c> {
    pub job: &'a Job<'b>,
    pub tile: &'a mut Tile<'c>,
}

impl Kernel for DequantizedTile<'_, '_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let DequantizedTile { job, tile } = self;
        float_panels(s, job, tile, job.w);
    }
}

/// Rows that convert to f32.
trait Rows {
    /// Values of row `i` from `from` on: `out.len()` of them, where the row ends filled up with
    /// zeros.
    fn widen<S: Simd>(&self, s: S, i: usize, from: usize, out: &mut [f32]);
}

struct PlainRows<'a, P> {
    data: &'a [P],
    n_in: usize,
}

impl<P: Plain> Rows for PlainRows<'_, P> {
    #[inline(always)]
    fn widen<S: Simd>(&self, s: S, i: usize, from: usize, out: &mut [f32]) {
        let row = &self.data[i * self.n_in..][..self.n_in][from..];
        float_dot::widen(s, &row[..out.len().min(row.len())], out);
    }
}

impl Rows for &Weight<'_> {
    #[inline(always)]
    fn widen<S: Simd>(&self, _: S, i: usize, from: usize, out: &mut [f32]) {
        let n = out.len().min(self.n_in - from);
        self.dequantize(i, from, &mut out[..n]);
        out[n..].fill(0.0);
    }
}

/// Products with rows that are converted to f32 once for all tokens.
#[inline(always)]
fn float_panels<S: Simd>(s: S, job: &Job<'_>, tile: &mut Tile<'_>, weights: impl Rows) {
    let (cols, tokens, n_in) = (tile.cols(), tile.rows(), job.w.n_in);
    let mut panel = vec![0.0; FLOAT_GROUP * FLOAT_STRETCH];
    let zero = [[s.splat(0.0); FLOAT_TOKENS]; FLOAT_ROWS];
    // One for each register tile: all rows of the panel for the first tokens, and so on.
    let mut sums = vec![zero; tokens.len().div_ceil(FLOAT_TOKENS) * FLOAT_TILES];
    for first in cols.clone().step_by(FLOAT_GROUP) {
        sums.fill(zero);
        let n_rows = FLOAT_GROUP.min(cols.end - first);
        for from in (0..n_in).step_by(FLOAT_STRETCH) {
            let n = FLOAT_STRETCH.min(n_in - from).next_multiple_of(S::LANES);
            for (i, row) in panel
                .chunks_exact_mut(FLOAT_STRETCH)
                .take(n_rows)
                .enumerate()
            {
                weights.widen(s, first + i, from, &mut row[..n]);
            }
            let firsts = tokens.clone().step_by(FLOAT_TOKENS);
            for (token, sums) in firsts.zip(sums.chunks_exact_mut(FLOAT_TILES)) {
                // Tokens beyond the last repeat it.
                let acts: [&[f32]; FLOAT_TOKENS] = std::array::from_fn(|t| {
                    &job.acts.f32_row((token + t).min(tokens.end - 1))[from..][..n]
                });
                let tiles = panel.chunks_exact(FLOAT_ROWS * FLOAT_STRETCH);
                for (rows, sums) in tiles.zip(sums) {
                    let rows: [&[f32]; FLOAT_ROWS] =
                        std::array::from_fn(|r| &rows[r * FLOAT_STRETCH..][..n]);
                    float_dot::dot(s, rows, acts, sums);
                }
            }
        }
        for (t, token) in tokens.clone().enumerate() {
            let sums = &sums[t / FLOAT_TOKENS * FLOAT_TILES..][..FLOAT_TILES];
            write_group(s, job, tile, (token, first), sums, t % FLOAT_TOKENS);
        }
    }
}
