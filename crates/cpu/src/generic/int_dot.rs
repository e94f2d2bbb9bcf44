//! Dot products of quantized weight rows with int8 activations.
//!
//! Two paths compute the same numbers. [`stream`] reads a group of rows once, unpacks it in registers and multiplies it
//! with up to four tokens: memory-bound decode. [`Panel`] unpacks and transposes a stretch of a group of rows once, so
//! that every 32-bit place of a vector is a weight row, and [`dot_panels`] then multiplies it with many tokens:
//! prefill.
//!
//! Both sum a block's products in exact integers (the largest sum of any format is 2^28), then add one f32 term per
//! block, and a second one for minimums, to a chain per row and token, in block order. The bits of a result therefore
//! do not depend on the path, on how many tokens or rows are computed together, or on where a stretch ends.
//!
//! One thread of an Emerald Rapids VM, 2026-11, weights [1024, 2048], best of 60 to 200 runs. Plain reads of the same
//! memory reach 15 GB/s, f32 multiply-adds at most 101 GFLOP/s with AVX2 and 184 with AVX-512, `vpdpbusd` 760 GOP/s.
//! AVX-512 streams with the code of AVX2.
//!
//! | weights | decode GB/s | in L2 | 8 tokens GOP/s | 128 tokens | 128 tokens, AVX2 |
//! |---|---|---|---|---|---|
//! | Q4_0 | 12.5 | 21 | 162 | 383 | 174 |
//! | Q8_0 | 13.1 | 32 | 127 | 352 | 107 |
//! | Q4_K | 12.2 | 18 | 169 | 395 | 216 |
//! | Q5_K | 12.1 | 19 | 140 | 364 | 202 |
//! | Q6_K | 11.9 | 20 | 124 | 303 | 179 |
//!
//! With AVX2, Q8_0 needs four instructions for 32 products where other formats need a little over two, because its
//! products leave no room in i16 to add two of them. With 8 tokens, about half of the time is spent unpacking.

use std::ops::Range;

use super::bytes::SimdBytes;
use super::format::{
    Codes, Format, Offset, PackedBlocks, TokenBlocks, dot_steps, has_small_dots, n_scales, offset,
};
use super::simd::Simd;
use crate::acts::PACK;

/// The rows of a quantized matrix.
pub(crate) struct BlockRows<'a, F: Format> {
    pub blocks: &'a [F::Block],
    pub blocks_per_row: usize,
}

impl<F: Format> Clone for BlockRows<'_, F> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<F: Format> Copy for BlockRows<'_, F> {}

impl<'a, F: Format> BlockRows<'a, F> {
    /// The group of rows from `first` on. Places past row `end - 1` repeat it.
    #[inline(always)]
    pub(super) fn group<S: SimdBytes>(
        self,
        s: S,
        first: usize,
        end: usize,
    ) -> S::Rows<'a, [F::Block]> {
        let n = self.blocks_per_row;
        s.rows(|i| &self.blocks[(first + i).min(end - 1) * n..][..n])
    }
}

impl<F: Format> BlockRows<'_, F> {
    pub(super) fn address(self, row: usize) -> *const u8 {
        let blocks: *const u8 = self.blocks.as_ptr().cast();
        blocks.wrapping_add(row * self.blocks_per_row * size_of::<F::Block>())
    }

    /// Prefetches `blocks` of some rows.
    #[inline(always)]
    pub(crate) fn prefetch<S: Simd>(self, s: S, some: Range<usize>, blocks: Range<usize>) {
        let n_lines = (blocks.len() * size_of::<F::Block>()).div_ceil(64);
        for row in some {
            let first = self.address(row);
            let mut line = first.wrapping_add(blocks.start * size_of::<F::Block>());
            for _ in 0..n_lines {
                s.prefetch(line);
                line = line.wrapping_add(64);
            }
        }
    }
}

/// The products of one block: exact sums of codes, and sums of minimums in f32.
struct BlockDot<S: Simd> {
    dot: S::I32,
    min: S::F32,
}

/// Adds the terms of one block to the chain `sum`.
#[inline(always)]
fn add_block<S: Simd, F: Format>(
    s: S,
    sum: S::F32,
    (d, m): (S::F32, S::F32),
    scale: f32,
    block: BlockDot<S>,
) -> S::F32 {
    let scale = s.splat(scale);
    let sum = s.mul_add(s.to_f32(block.dot), s.mul(d, scale), sum);
    match F::OFFSET {
        Offset::Min => s.mul_add(block.min, s.mul(m, scale), sum),
        Offset::None | Offset::Power { .. } => sum,
    }
}

/// Combines the products of a block with integer scales; `min_dot` are products of scales or minimums with sums of
/// activations.
#[inline(always)]
fn scaled_block<S: Simd, F: Format>(s: S, dot: S::I32, min_dot: S::I32) -> BlockDot<S> {
    match const { offset::<S, F>() } {
        Offset::Power { log2 } => BlockDot {
            dot: s.sub_i32(dot, s.shl_i32(min_dot, log2)),
            min: s.splat(0.0),
        },
        Offset::None | Offset::Min => BlockDot {
            dot,
            min: s.to_f32(min_dot),
        },
    }
}

/// Whether the offset of a block needs products of integer scales or minimums with sums.
const fn has_min_dot<S: SimdBytes, F: Format>() -> bool {
    F::SCALED && !matches!(offset::<S, F>(), Offset::None)
}

/// Converts `codes` to the form that [`dot_step`] takes.
#[inline(always)]
fn dot_codes<S: SimdBytes, F: Format>(s: S, codes: S::Bytes) -> S::Bytes {
    match F::CODES {
        Codes::Unsigned { .. } => codes,
        Codes::Signed { .. } => s.signed_codes(codes),
    }
}

#[inline(always)]
fn dot_step<S: SimdBytes, F: Format>(s: S, sum: S::Dot, codes: S::Bytes, acts: S::Bytes) -> S::Dot {
    match F::CODES {
        Codes::Unsigned { .. } => s.dot(sum, codes, acts),
        Codes::Signed { .. } => s.dot_signed(sum, codes, acts),
    }
}

#[inline(always)]
fn add_dot<S: SimdBytes, F: Format>(s: S, sum: S::I32, dot: S::Dot, scale: S::Bytes) -> S::I32 {
    if !F::SCALED {
        s.add_dot(sum, dot)
    } else if const { has_small_dots::<S, F>() } {
        s.add_scaled_small(sum, dot, scale)
    } else {
        s.add_scaled(sum, dot, scale)
    }
}

/// Multiplies `N` tokens with the group of rows from `first` on; rows end before `end`.
#[inline(always)]
pub(crate) fn stream<S: Simd, F: Format, const N: usize>(
    s: S,
    rows: BlockRows<'_, F>,
    (first, end): (usize, usize),
    acts: &[TokenBlocks<'_, F>; N],
    sums: &mut [S::F32; N],
) {
    let group = rows.group(s, first, end);
    let mut acts = *acts;
    for acts in &mut acts {
        *acts = acts.range(0, rows.blocks_per_row * F::PARTS);
    }
    let mut chains = [s.splat(0.0); N];
    // While a group is multiplied, the next one is prefetched, line by line in memory order. Hardware prefetchers alone
    // do not keep up with eight short rows: 6 GB/s against 13 (Emerald Rapids, 2026-11, one thread). After the last
    // group, the hint repeats lines that are already cached.
    let next = if first + S::LANES < end {
        first + S::LANES
    } else {
        first
    };
    let ahead = rows.address(next);
    let step = S::LANES * size_of::<F::Block>();
    for at in 0..rows.blocks_per_row {
        let blocks = s.each(&group, at);
        for part in 0..F::PARTS {
            // The part's number in its row.
            let b = at * F::PARTS + part;
            let mut dots = [[s.zero_i32(); 4]; N];
            let mut min_dots = [[s.zero_i32(); 4]; N];
            for i in 0..4 {
                if part == 0 {
                    for line in (0..step / 4).step_by(64) {
                        s.prefetch(ahead.wrapping_add(at * step + i * (step / 4) + line));
                    }
                }
                let scales = F::scales(s, &blocks, i);
                for chunk in 0..F::CHUNKS {
                    let codes = F::codes(s, &blocks, i, part * F::CHUNKS + chunk);
                    let codes = codes.as_ref();
                    let mut place = 0;
                    while place < codes.len() {
                        let group = F::group(chunk, place);
                        let scale = if F::SCALED {
                            let j = group / F::GROUPS_PER_SCALE;
                            s.repeat_place(scales.scales[j / 8], j % 8)
                        } else {
                            s.zero()
                        };
                        let steps = const { dot_steps::<S, F>(F::GROUPS_PER_SCALE) };
                        for n in 0..N {
                            let mut dot = s.zero_dot();
                            for k in 0..F::GROUPS_PER_SCALE {
                                let acts = s.repeat_i8(&acts[n].codes[b].as_ref()[group + k]);
                                let codes = dot_codes::<S, F>(s, codes[place + k]);
                                dot = dot_step::<S, F>(s, dot, codes, acts);
                                if (k + 1) % steps == 0 {
                                    dots[n][i] = add_dot::<S, F>(s, dots[n][i], dot, scale);
                                    dot = s.zero_dot();
                                }
                            }
                        }
                        place += F::GROUPS_PER_SCALE;
                    }
                }
                if has_min_dot::<S, F>() {
                    let factors = match const { offset::<S, F>() } {
                        Offset::Min => scales.mins,
                        Offset::None | Offset::Power { .. } => scales.scales,
                    };
                    for n in 0..N {
                        let (sums, _) = acts[n].sums[b].as_ref().as_chunks();
                        for (k, sums) in sums.iter().enumerate() {
                            min_dots[n][i] =
                                s.dot_i16(min_dots[n][i], factors[k], s.repeat_i16(sums));
                        }
                    }
                }
            }
            let factors = (F::d_of_part(s, &blocks, part), F::m(s, &blocks));
            for n in 0..N {
                let dot = s.reduce4(dots[n]);
                let block = if F::SCALED {
                    scaled_block::<S, F>(s, dot, s.reduce4(min_dots[n]))
                } else {
                    let sum = acts[n].sums[b].as_ref()[0];
                    let power = match const { offset::<S, F>() } {
                        Offset::Power { log2 } => i32::from(sum) << log2,
                        Offset::None | Offset::Min => 0,
                    };
                    BlockDot {
                        dot: s.sub_i32(dot, s.splat_i32(power)),
                        min: s.splat(f32::from(sum)),
                    }
                };
                let scale = acts[n].scales[b / F::PARTS_PER_SCALE];
                chains[n] = add_block::<S, F>(s, chains[n], factors, scale, block);
            }
        }
    }
    *sums = chains;
}

/// A stretch of a group of rows, unpacked and transposed: one 32-bit place of a vector per row. Parts of blocks
/// ([`Format::PARTS`]) are blocks here.
pub(crate) struct Panel<S: SimdBytes> {
    first_block: usize,
    /// Four codes per place, four vectors per group of 16 values.
    codes: Vec<S::Bytes>,
    /// Each scale twice per place.
    scales: Vec<S::Bytes>,
    /// Two neighbouring factors of activation sums per place.
    min_pairs: Vec<S::Bytes>,
    /// `d` and `m` of each block.
    factors: Vec<(S::F32, S::F32)>,
}

impl<S: Simd> Panel<S> {
    pub(crate) fn new() -> Panel<S> {
        Panel {
            first_block: 0,
            codes: Vec::new(),
            scales: Vec::new(),
            min_pairs: Vec::new(),
            factors: Vec::new(),
        }
    }

    /// Unpacks blocks `first_block..first_block + n_blocks` of the group of rows from `first` on.
    #[inline(always)]
    pub(crate) fn fill<F: Format>(
        &mut self,
        s: S,
        rows: BlockRows<'_, F>,
        (first, end): (usize, usize),
        first_block: usize,
        n_blocks: usize,
    ) {
        self.first_block = first_block * F::PARTS;
        let n_scales = if F::SCALED { n_scales::<F>() } else { 0 };
        let n_pairs = if has_min_dot::<S, F>() {
            n_scales / 2
        } else {
            0
        };
        let zero = s.zero();
        let part_codes = F::GROUPS * 4;
        self.codes.resize(n_blocks * F::PARTS * part_codes, zero);
        self.scales.resize(n_blocks * n_scales, zero);
        self.min_pairs.resize(n_blocks * n_pairs, zero);
        let no_factors = (s.splat(0.0), s.splat(0.0));
        self.factors.resize(n_blocks * F::PARTS, no_factors);
        let group = rows.group(s, first, end);
        for b in 0..n_blocks {
            let blocks = s.each(&group, first_block + b);
            let out = &mut self.codes[b * F::PARTS * part_codes..][..F::PARTS * part_codes];
            for chunk in 0..F::PARTS * F::CHUNKS {
                let out = &mut out[chunk / F::CHUNKS * part_codes..][..part_codes];
                let codes = [
                    F::codes(s, &blocks, 0, chunk),
                    F::codes(s, &blocks, 1, chunk),
                    F::codes(s, &blocks, 2, chunk),
                    F::codes(s, &blocks, 3, chunk),
                ];
                let [c0, c1, c2, c3] = [
                    codes[0].as_ref(),
                    codes[1].as_ref(),
                    codes[2].as_ref(),
                    codes[3].as_ref(),
                ];
                for place in 0..c0.len() {
                    let by_row = s.transpose4([
                        dot_codes::<S, F>(s, c0[place]),
                        dot_codes::<S, F>(s, c1[place]),
                        dot_codes::<S, F>(s, c2[place]),
                        dot_codes::<S, F>(s, c3[place]),
                    ]);
                    let out = &mut out[4 * F::group(chunk, place)..][..4];
                    out.copy_from_slice(&by_row);
                }
            }
            if F::SCALED {
                let lanes = [
                    F::scales(s, &blocks, 0),
                    F::scales(s, &blocks, 1),
                    F::scales(s, &blocks, 2),
                    F::scales(s, &blocks, 3),
                ];
                let out = &mut self.scales[b * n_scales..][..n_scales];
                let out_pairs = &mut self.min_pairs[b * n_pairs..][..n_pairs];
                for half in 0..n_scales / 8 {
                    let pairs = s.transpose4([
                        lanes[0].scales[half],
                        lanes[1].scales[half],
                        lanes[2].scales[half],
                        lanes[3].scales[half],
                    ]);
                    for k in 0..4 {
                        let [even, odd] = s.split_pairs(pairs[k]);
                        out[8 * half + 2 * k] = even;
                        out[8 * half + 2 * k + 1] = odd;
                    }
                    if has_min_dot::<S, F>() {
                        let pairs = match const { offset::<S, F>() } {
                            Offset::Min => s.transpose4([
                                lanes[0].mins[half],
                                lanes[1].mins[half],
                                lanes[2].mins[half],
                                lanes[3].mins[half],
                            ]),
                            Offset::None | Offset::Power { .. } => pairs,
                        };
                        out_pairs[4 * half..][..4].copy_from_slice(&pairs);
                    }
                }
            }
            for part in 0..F::PARTS {
                let factors = (F::d_of_part(s, &blocks, part), F::m(s, &blocks));
                self.factors[b * F::PARTS + part] = factors;
            }
        }
    }

    /// Computes the products of block `b` with token `t` of a group, whose pairs of sums are `sums`.
    #[inline(always)]
    fn scaled_offset<F: Format>(
        &self,
        s: S,
        b: usize,
        dot: S::I32,
        sums: &[[i16; 2 * PACK]],
        t: usize,
    ) -> BlockDot<S> {
        let mut min_dot = s.zero_i32();
        if has_min_dot::<S, F>() {
            let n_pairs = n_scales::<F>() / 2;
            let pairs = &self.min_pairs[b * n_pairs..][..n_pairs];
            for (pair, sums) in pairs.iter().zip(sums) {
                min_dot = s.dot_i16(min_dot, *pair, s.splat_i16x2(sums, t));
            }
        }
        scaled_block::<S, F>(s, dot, min_dot)
    }
}

/// Continues the chains `sums` of a group of tokens over the blocks of `R` panels, which are the same blocks of
/// neighbouring groups of rows. Each load of activations serves all panels: with a single AVX-512 panel there are more
/// loads than the processor has ports for.
#[inline(always)]
pub(crate) fn dot_panels<S: Simd, F: Format, const R: usize>(
    s: S,
    panels: &[Panel<S>; R],
    acts: PackedBlocks<'_, F>,
    sums: &mut [[S::F32; PACK]; R],
) {
    let n_scales = n_scales::<F>();
    let vectors_per_scale = 4 * F::GROUPS_PER_SCALE;
    let steps = const { dot_steps::<S, F>(4 * F::GROUPS_PER_SCALE) };
    let n_blocks = panels[0].factors.len();
    let acts = acts.range(panels[0].first_block, n_blocks);
    let mut chains = *sums;
    for b in 0..n_blocks {
        let act_codes = acts.codes[b].as_ref();
        let mut codes = [&panels[0].codes[..]; R];
        for r in 0..R {
            codes[r] = &panels[r].codes[b * 4 * F::GROUPS..][..4 * F::GROUPS];
        }
        let mut dots = [[s.zero_i32(); PACK]; R];
        for j in 0..n_scales {
            let mut step = 0;
            while step < vectors_per_scale {
                let mut dot = [[s.zero_dot(); PACK]; R];
                for k in step..step + steps {
                    let v = j * vectors_per_scale + k;
                    let acts = s.splat_each_i8x4(&act_codes[v]);
                    for t in 0..PACK {
                        for r in 0..R {
                            dot[r][t] = dot_step::<S, F>(s, dot[r][t], codes[r][v], acts[t]);
                        }
                    }
                    s.in_step(&mut dot);
                }
                for r in 0..R {
                    let scale = if F::SCALED {
                        panels[r].scales[b * n_scales..][..n_scales][j]
                    } else {
                        s.zero()
                    };
                    for t in 0..PACK {
                        dots[r][t] = add_dot::<S, F>(s, dots[r][t], dot[r][t], scale);
                    }
                }
                step += steps;
            }
        }
        let shared = b / F::PARTS_PER_SCALE;
        let sums = acts.sums[shared].as_ref();
        for r in 0..R {
            for t in 0..PACK {
                let block = if F::SCALED {
                    panels[r].scaled_offset::<F>(s, b, dots[r][t], sums, t)
                } else {
                    unscaled_block::<S, F>(s, dots[r][t], (&sums[0], b % F::PARTS_PER_SCALE), t)
                };
                let factors = panels[r].factors[b];
                chains[r][t] =
                    add_block::<S, F>(s, chains[r][t], factors, acts.scales[shared][t], block);
            }
        }
    }
    *sums = chains;
}

/// Computes the products of a block without integer scales with token `t` of a group. `sums` has the sums of 32
/// activations in halves; a block of one group has the half `half`, a block of two groups both.
#[inline(always)]
fn unscaled_block<S: Simd, F: Format>(
    s: S,
    dot: S::I32,
    (sums, half): (&[i16; 2 * PACK], usize),
    t: usize,
) -> BlockDot<S> {
    let sums = s.splat_i16x2(sums, t);
    let min = match F::OFFSET {
        Offset::Min => {
            let ones = s.repeat_i16(&const { of_halves::<F>(1) }[half]);
            s.to_f32(s.dot_i16(s.zero_i32(), ones, sums))
        }
        Offset::None | Offset::Power { .. } => s.splat(0.0),
    };
    let dot = match const { offset::<S, F>() } {
        Offset::Power { .. } => {
            let powers = s.repeat_i16(&const { of_halves::<F>(power::<S, F>()) }[half]);
            s.dot_i16(dot, powers, sums)
        }
        Offset::None | Offset::Min => dot,
    };
    BlockDot { dot, min }
}

/// The factor of the sums of activations in [`Offset::Power`].
const fn power<S: SimdBytes, F: Format>() -> i16 {
    match offset::<S, F>() {
        Offset::Power { log2 } => -(1 << log2),
        Offset::None | Offset::Min => 0,
    }
}

/// For each half of 32 activations, `factor` for those that belong to a block: of a block of one group only that half,
/// else both. A table, since a vector made when the half is known takes longer than the products.
const fn of_halves<F: Format>(factor: i16) -> [[i16; 8]; 2] {
    let mut factors = [[factor; 8]; 2];
    if F::GROUPS == 1 {
        let mut i = 0;
        while i < 8 {
            factors[1 - i % 2][i] = 0;
            i += 1;
        }
    }
    factors
}
