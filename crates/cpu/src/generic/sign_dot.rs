//! Dot products of signs (Q1_0) with int8 activations, for few tokens. With many, signs are unpacked to panels as the
//! codes of other formats are.
//!
//! A lane holds the 128 signs of a block, 8 in a byte. Bit `k` of all bytes is a vector of codes 0 and 1 for every
//! eighth value, with a shift but no shuffle. The activations are brought into this order once for all rows of a tile.
//! Four neighbouring bytes are 32 values, which share a scale of the activations, so each 32-bit place of the sum of the
//! eight products belongs to one scale. Twice this sum, less the sum of the activations, is the product with -1 and 1.
//!
//! The terms and their order are those of [`super::int_dot`], so results have the same bits.
//!
//! One thread of an Emerald Rapids VM, 2026-11, weights [8192, 2048] from memory: 16.5 GB/s, where Q4_0 has 22.

use rocmforge_gguf::quant;
use rocmforge_gguf::quant::q1::Q1_0;

use super::int_dot::BlockRows;
use super::simd::Simd;
use super::tile::{panel_tokens, write};
use crate::arch::Kernel;
use crate::job::Job;
use crate::pool::Tile;

/// Activation scales of a block.
const PARTS: usize = 4;

/// A tile of Q1_0 weights.
pub(crate) struct SignTile<'a, 'b, 'c> {
    pub job: &'a Job<'b>,
    pub tile: &'a mut Tile<'c>,
}

impl Kernel for SignTile<'_, '_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let SignTile { job, tile } = self;
        let rows = BlockRows::<Q1_0> {
            blocks: quant::blocks(job.w.data),
            blocks_per_row: job.w.n_in / 128,
        };
        match tile.rows().len() {
            1 => stream_n::<S, 1>(s, job, tile, rows),
            2 => stream_n::<S, 2>(s, job, tile, rows),
            n if n <= S::STREAM_TOKENS => stream_n::<S, 4>(s, job, tile, rows),
            _ => panel_tokens(s, job, tile, rows),
        }
    }
}

/// The activations of a block.
#[derive(Clone, Copy)]
struct ActBlock {
    /// Value `8 * j + k` is at `[k][j]`.
    codes: [[i8; 16]; 8],
    scales: [f32; PARTS],
    sums: [i16; PARTS],
}

/// Brings the activations of a token into the order of the signs.
fn act_blocks(job: &Job<'_>, token: usize) -> Vec<ActBlock> {
    let row = job.acts.code_row(token);
    let codes = row.codes.as_flattened().as_chunks::<128>().0.iter();
    let scales = row.scales.as_chunks().0.iter();
    let sums = row.sums32.as_chunks().0.iter();
    let mut blocks = Vec::with_capacity(codes.len());
    for ((codes, scales), sums) in codes.zip(scales).zip(sums) {
        blocks.push(ActBlock {
            codes: every_eighth(codes),
            scales: *scales,
            sums: *sums,
        });
    }
    blocks
}

/// Value `8 * j + k` goes to `[k][j]`.
fn every_eighth(x: &[i8; 128]) -> [[i8; 16]; 8] {
    let mut halves = [[0; 8]; 2];
    let eights = x.as_chunks::<8>().0.as_chunks::<8>().0;
    for (half, x) in halves.iter_mut().zip(eights) {
        for (row, x) in half.iter_mut().zip(x) {
            *row = u64::from_le_bytes(x.map(i8::cast_unsigned));
        }
        transpose(half);
    }
    let mut out = [[0; 16]; 8];
    for (k, out) in out.iter_mut().enumerate() {
        let (low, high) = out.split_at_mut(8);
        low.copy_from_slice(&halves[0][k].to_le_bytes().map(u8::cast_signed));
        high.copy_from_slice(&halves[1][k].to_le_bytes().map(u8::cast_signed));
    }
    out
}

/// Transposes 8 by 8 bytes.
fn transpose(x: &mut [u64; 8]) {
    for (distance, mask) in [
        (4, 0xffff_ffff),
        (2, 0xffff_0000_ffff),
        (1, 0xff_00ff_00ff_00ff),
    ] {
        for i in (0..8).filter(|i| i & distance == 0) {
            let moved = (x[i] >> (8 * distance) ^ x[i + distance]) & mask;
            x[i + distance] ^= moved;
            x[i] ^= moved << (8 * distance);
        }
    }
}

/// Multiplies at most `N` tokens with all rows of the tile; missing tokens repeat the last.
#[inline(always)]
fn stream_n<S: Simd, const N: usize>(
    s: S,
    job: &Job<'_>,
    tile: &mut Tile<'_>,
    rows: BlockRows<'_, Q1_0>,
) {
    let (cols, tokens) = (tile.cols(), tile.rows());
    let acts: [Vec<ActBlock>; N] =
        std::array::from_fn(|t| act_blocks(job, (tokens.start + t).min(tokens.end - 1)));
    let acts = acts.each_ref().map(Vec::as_slice);
    let first_group = cols.start..cols.end.min(cols.start + S::LANES);
    rows.prefetch(s, first_group, 0..rows.blocks_per_row);
    for first in cols.clone().step_by(S::LANES) {
        let sums = stream::<S, N>(s, rows, (first, cols.end), acts);
        for (token, sums) in tokens.clone().zip(sums) {
            write(s, job, tile, token, first, sums);
        }
    }
}

/// Multiplies `N` tokens with the group of rows from `first` on; rows end before `end`.
#[inline(always)]
fn stream<S: Simd, const N: usize>(
    s: S,
    rows: BlockRows<'_, Q1_0>,
    (first, end): (usize, usize),
    acts: [&[ActBlock]; N],
) -> [S::F32; N] {
    let group = rows.group(s, first, end);
    let acts = acts.map(|acts| &acts[..rows.blocks_per_row]);
    let mut chains = [s.splat(0.0); N];
    // As in `int_dot::stream`, the next group is prefetched.
    let next = if first + S::LANES < end {
        first + S::LANES
    } else {
        first
    };
    let ahead = rows.address(next);
    let step = S::LANES * size_of::<Q1_0>();
    let one = s.splat_u8(1);
    for b in 0..rows.blocks_per_row {
        let blocks = s.each(&group, b);
        for line in (0..step).step_by(64) {
            s.prefetch(ahead.wrapping_add(b * step + line));
        }
        // Loops rather than `map`, whose closures are compiled without the instruction set.
        let mut signs = [s.zero(); 4];
        for (i, signs) in signs.iter_mut().enumerate() {
            *signs = s.load16(&blocks, i, |b| &b.qs);
        }
        let mut dots = [[s.zero_dot(); 4]; N];
        for k in 0..8 {
            for i in 0..4 {
                let bits = s.and(signs[i], one);
                signs[i] = s.shr(signs[i], 1);
                for n in 0..N {
                    let acts = s.repeat_i8(&acts[n][b].codes[k]);
                    dots[n][i] = s.dot(dots[n][i], bits, acts);
                }
            }
        }
        let d = s.f16_of(&blocks, |b| b.d.bits());
        for n in 0..N {
            let acts = &acts[n][b];
            let mut sums = [s.zero_i32(); 4];
            for i in 0..4 {
                sums[i] = s.add_dot(sums[i], dots[n][i]);
            }
            let sums = s.transpose4_i32(sums);
            for (part, sum) in sums.iter().enumerate() {
                let dot = s.shl_i32(*sum, 1);
                let dot = s.sub_i32(dot, s.splat_i32(acts.sums[part].into()));
                let factor = s.mul(d, s.splat(acts.scales[part]));
                chains[n] = s.mul_add(s.to_f32(dot), factor, chains[n]);
            }
        }
    }
    chains
}
