//! One task of a matrix product: a tile of tokens by weight rows.
//!
//! With few tokens, weights are streamed through registers. With more, they are unpacked to a panel that stays in the
//! L1 cache while all tokens of the tile use it.

use std::marker::PhantomData;

use rocmforge_gguf::quant::{self, Block};
use rocmforge_plan::{OutMode, Weight};

use super::float_dot::{self, Plain};
use super::format::{Format, PackedBlocks, TokenBlocks};
use super::int_dot::{BlockRows, Panel, dot_panels, stream};
use super::simd::Simd;
use crate::acts::PACK;
use crate::aligned::Floats;
use crate::arch::Kernel;
use crate::job::Job;
use crate::pool::Tile;

/// Values per panel of codes; with scales and factors 8 to 12 KiB of the L1 cache.
const INT_PANEL: usize = 16 * 1024;

/// Rows per f32 register tile: with [`Simd::FLOAT_TOKENS`] tokens, 12 sums in 16 registers or 24 in 32.
const FLOAT_ROWS: usize = 4;

/// Up to this many tokens, rows in a float format are streamed.
const FLOAT_STREAM_TOKENS: usize = 3;

/// Rows of an f32 panel, and values per row: 16 KiB of the L1 cache.
const FLOAT_GROUP: usize = 8;
const FLOAT_STRETCH: usize = 512;

/// Register tiles per group of rows.
const FLOAT_TILES: usize = FLOAT_GROUP / FLOAT_ROWS;

/// Scales the products of `token` with the `LANES` weight rows from `first` on, adds bias and residual, and writes those
/// within the tile.
#[inline(always)]
pub(super) fn write<S: Simd>(
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
    let mut y = s.mul(sums, s.splat(job.scale));
    if let Some(bias) = job.bias {
        y = s.add(y, s.load(&bias[first..]));
    }
    if job.mode == OutMode::Add {
        y = s.add(s.load(out), y);
    }
    s.store(y, out);
}

/// A tile of a block format with int8 activations.
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
        if tile.rows().len() <= S::STREAM_TOKENS {
            stream_tokens(s.stream(), job, tile, rows);
        } else {
            panel_tokens(s, job, tile, rows);
        }
    }
}

/// Multiplies few tokens with all rows of the tile.
#[inline(always)]
fn stream_tokens<S: Simd, F: Format>(
    s: S,
    job: &Job<'_>,
    tile: &mut Tile<'_>,
    rows: BlockRows<'_, F>,
) {
    match tile.rows().len() {
        1 => stream_n::<S, F, 1>(s, job, tile, rows),
        2 => stream_n::<S, F, 2>(s, job, tile, rows),
        _ => stream_n::<S, F, 4>(s, job, tile, rows),
    }
}

/// [`stream_tokens`] for at most `N` tokens; missing ones repeat the last.
#[inline(always)]
fn stream_n<S: Simd, F: Format, const N: usize>(
    s: S,
    job: &Job<'_>,
    tile: &mut Tile<'_>,
    rows: BlockRows<'_, F>,
) {
    let (cols, tokens) = (tile.cols(), tile.rows());
    let acts = std::array::from_fn(|t| {
        let token = (tokens.start + t).min(tokens.end - 1);
        TokenBlocks::new(job.acts.code_row(token))
    });
    let mut sums = [s.splat(0.0); N];
    let first_group = cols.start..cols.end.min(cols.start + S::LANES);
    rows.prefetch(s, first_group, 0..rows.blocks_per_row);
    for first in cols.clone().step_by(S::LANES) {
        stream::<S, F, N>(s, rows, (first, cols.end), &acts, &mut sums);
        for (token, sums) in tokens.clone().zip(sums) {
            write(s, job, tile, token, first, sums);
        }
    }
}

/// Multiplies all tokens with all rows of the tile, one stretch of a group of rows at a time.
#[inline(always)]
pub(super) fn panel_tokens<S: Simd, F: Format>(
    s: S,
    job: &Job<'_>,
    tile: &mut Tile<'_>,
    rows: BlockRows<'_, F>,
) {
    let (cols, tokens) = (tile.cols(), tile.rows());
    // Tiles begin at whole groups of tokens.
    let groups = tokens.start / PACK..tokens.end.div_ceil(PACK);
    let acts: Vec<PackedBlocks<'_, F>> = groups
        .map(|group| PackedBlocks::new(job.acts.packed_row(group)))
        .collect();
    let n_blocks = rows.blocks_per_row;
    let step = INT_PANEL / (S::PANELS * S::LANES) / F::Block::TYPE.block_len();
    let panel_rows = S::PANELS * S::LANES;
    let mut sums = vec![[[s.splat(0.0); PACK]; 2]; acts.len()];
    let mut panels = [Panel::new(), Panel::new()];
    for first in cols.clone().step_by(panel_rows) {
        let n_panels = (cols.end - first).div_ceil(S::LANES).min(S::PANELS);
        sums.fill([[s.splat(0.0); PACK]; 2]);
        for block in (0..n_blocks).step_by(step) {
            let n = step.min(n_blocks - block);
            for (r, panel) in panels.iter_mut().take(n_panels).enumerate() {
                panel.fill(s, rows, (first + r * S::LANES, cols.end), block, n);
            }
            // Prefetch the next stretch while this one is multiplied: the rows are too many and too short for hardware
            // prefetchers.
            let (next, from) = match block + n < n_blocks {
                true => (first, block + n),
                false => (first + panel_rows, 0),
            };
            let next = next.min(cols.end)..(next + panel_rows).min(cols.end);
            rows.prefetch(s, next, from..n_blocks.min(from + step));
            for (acts, sums) in acts.iter().zip(&mut sums) {
                if S::PANELS == 2 && n_panels == 2 {
                    dot_panels::<S, F, 2>(s, &panels, *acts, sums);
                } else {
                    let [panel, _] = &panels;
                    let [sums, _] = sums;
                    let (panel, sums) = (std::array::from_ref(panel), std::array::from_mut(sums));
                    dot_panels::<S, F, 1>(s, panel, *acts, sums);
                }
            }
        }
        for (t, token) in tokens.clone().enumerate() {
            for (r, sums) in sums[t / PACK].iter().take(n_panels).enumerate() {
                let first = first + r * S::LANES;
                write(s, job, tile, token, first, sums[t % PACK]);
            }
        }
    }
}

/// A tile of F32, F16 or BF16 weights.
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
        let rows = PlainRows { data, n_in };
        let (cols, tokens) = (tile.cols(), tile.rows());
        if tokens.len() > FLOAT_STREAM_TOKENS {
            float_panels(s, job, tile, rows);
            return;
        }
        for first in cols.clone().step_by(FLOAT_GROUP) {
            match tokens.len() {
                1 if S::ROW_BY_ROW => float_rows(s, job, tile, rows, first),
                1 => float_stream::<S, P, 1>(s, job, tile, rows, first),
                2 => float_stream::<S, P, 2>(s, job, tile, rows, first),
                _ => float_stream::<S, P, FLOAT_STREAM_TOKENS>(s, job, tile, rows, first),
            }
        }
    }
}

/// Multiplies a group of whole rows with the only token of the tile, one after the other.
#[inline(always)]
fn float_rows<S: Simd, P: Plain>(
    s: S,
    job: &Job<'_>,
    tile: &mut Tile<'_>,
    rows: PlainRows<'_, P>,
    first: usize,
) {
    let (token, end) = (tile.rows().start, tile.cols().end);
    let acts = job.acts.f32_row(token);
    let mut sums = [[s.splat(0.0)]; FLOAT_GROUP];
    for (i, [sum]) in sums.iter_mut().take(end - first).enumerate() {
        *sum = float_dot::dot_row(s, rows.row(first + i), acts);
    }
    write_group(s, job, tile, (token, first), &sums, 0);
}

/// Multiplies a group of whole rows with the few tokens of the tile. Meanwhile the rows after them are prefetched, because
/// several short rows are too many streams for hardware prefetchers.
#[inline(always)]
fn float_stream<S: Simd, P: Plain, const N: usize>(
    s: S,
    job: &Job<'_>,
    tile: &mut Tile<'_>,
    rows: PlainRows<'_, P>,
    first: usize,
) {
    let (token, end) = (tile.rows().start, tile.cols().end);
    let acts: [&[f32]; N] = std::array::from_fn(|n| job.acts.f32_row(token + n));
    let mut sums = [[s.splat(0.0); N]; FLOAT_GROUP];
    let (tiles, _) = sums.as_chunks_mut::<FLOAT_ROWS>();
    for (i, sums) in tiles.iter_mut().enumerate() {
        let first = first + i * FLOAT_ROWS;
        let group: [&[P]; FLOAT_ROWS] = std::array::from_fn(|r| rows.row((first + r).min(end - 1)));
        let ahead = rows.address(first + FLOAT_ROWS);
        float_dot::dot(s, group, acts, Some(ahead), sums);
    }
    for n in 0..N {
        write_group(s, job, tile, (token + n, first), &sums, n);
    }
}

/// Sums the lanes of the sums of a group's rows with token `n` of its register tiles, and writes them to `(token, first row)`.
#[inline(always)]
fn write_group<S: Simd, const N: usize>(
    s: S,
    job: &Job<'_>,
    tile: &mut Tile<'_>,
    (token, first): (usize, usize),
    sums: &[[S::F32; N]],
    n: usize,
) {
    let mut group = [s.splat(0.0); FLOAT_GROUP];
    for i in 0..FLOAT_GROUP {
        group[i] = sums[i][n];
    }
    let values = s.sums_of_8(group);
    job.write(
        tile,
        token,
        first,
        &values[..FLOAT_GROUP.min(tile.cols().end - first)],
    );
}

/// A tile of a format without a dot product: rows are dequantized to f32.
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
    /// Writes `out.len()` values of row `i` from `from` on, padded with zeros past the end of the row.
    fn widen<S: Simd>(&self, s: S, i: usize, from: usize, out: &mut [f32]);
}

#[derive(Clone, Copy)]
struct PlainRows<'a, P> {
    data: &'a [P],
    n_in: usize,
}

impl<'a, P: Copy> PlainRows<'a, P> {
    fn row(self, i: usize) -> &'a [P] {
        &self.data[i * self.n_in..][..self.n_in]
    }

    /// The address of a row, which may lie past the end.
    fn address(self, i: usize) -> *const u8 {
        self.data.as_ptr().wrapping_add(i * self.n_in).cast()
    }
}

impl<P: Plain> Rows for PlainRows<'_, P> {
    #[inline(always)]
    fn widen<S: Simd>(&self, s: S, i: usize, from: usize, out: &mut [f32]) {
        let row = &self.data[i * self.n_in..][..self.n_in][from..];
        float_dot::widen(s, &row[..out.len().min(row.len())], out);
    }
}

impl Rows for Weight<'_> {
    #[inline(always)]
    fn widen<S: Simd>(&self, _: S, i: usize, from: usize, out: &mut [f32]) {
        let n = out.len().min(self.n_in - from);
        self.dequantize(i, from, &mut out[..n]);
        out[n..].fill(0.0);
    }
}

/// Multiplies rows that are converted to f32 once for all tokens.
#[inline(always)]
fn float_panels<S: Simd>(s: S, job: &Job<'_>, tile: &mut Tile<'_>, weights: impl Rows) {
    match S::FLOAT_TOKENS {
        6 => float_panels_of::<S, 6>(s, job, tile, weights),
        _ => float_panels_of::<S, 3>(s, job, tile, weights),
    }
}

/// [`float_panels`] with register tiles of `N` tokens.
#[inline(always)]
fn float_panels_of<S: Simd, const N: usize>(
    s: S,
    job: &Job<'_>,
    tile: &mut Tile<'_>,
    weights: impl Rows,
) {
    let (cols, tokens, n_in) = (tile.cols(), tile.rows(), job.w.n_in);
    let mut panel = Floats::new();
    panel.resize(FLOAT_GROUP * FLOAT_STRETCH);
    let zero = [[s.splat(0.0); N]; FLOAT_ROWS];
    // One per register tile: all rows of the panel for the first tokens, and so on.
    let mut sums = vec![zero; tokens.len().div_ceil(N) * FLOAT_TILES];
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
            let firsts = tokens.clone().step_by(N);
            for (token, sums) in firsts.zip(sums.chunks_exact_mut(FLOAT_TILES)) {
                // Missing tokens repeat the last.
                let acts: [&[f32]; N] = std::array::from_fn(|t| {
                    &job.acts.f32_row((token + t).min(tokens.end - 1))[from..][..n]
                });
                let tiles = panel.chunks_exact(FLOAT_ROWS * FLOAT_STRETCH);
                for (rows, sums) in tiles.zip(sums) {
                    let rows: [&[f32]; FLOAT_ROWS] =
                        std::array::from_fn(|r| &rows[r * FLOAT_STRETCH..][..n]);
                    float_dot::dot(s, rows, acts, None, sums);
                }
            }
        }
        for (t, token) in tokens.clone().enumerate() {
            let sums = &sums[t / N * FLOAT_TILES..][..FLOAT_TILES];
            write_group(s, job, tile, (token, first), sums.as_flattened(), t % N);
        }
    }
}
