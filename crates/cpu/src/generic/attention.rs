//! The attention kernel: one query tile against blocks of keys and values, with online softmax.
//!
//! Per block of 16 positions: widen keys and values to f32 in a cache-resident buffer (f32 caches
//! are read in place), scores of all queries, softmax update per query, weighted sum of values.
//! Scores are dot products along the head dimension in one accumulator each; eight accumulators
//! (2 queries x 4 keys) cover the latency of the multiply-add and are reduced together. The order
//! of operations for one query depends only on its row and position, never on its neighbours.

use std::ops::Range;

use super::lanes::exp_nonpositive;
use super::simd::Simd;
use crate::arch::Kernel;
use crate::attention::{AttnShape, KvSlice};
use crate::pool::Tile;

/// Positions per step of the online softmax; divides every page size.
pub(crate) const BLOCK: usize = 16;
/// Positions per independent softmax; a multiple of [`BLOCK`].
pub(crate) const SEGMENT: usize = 1024;
/// Rows of buffers are padded to a multiple of this many f32, so to whole vectors of any ISA.
const PAD: usize = 16;
/// Bytes of a cache line.
const LINE: usize = 64;

/// Consecutive rows of one sequence, with the query heads of one KV head.
///
/// Queries of a tile are numbered `row * group + head`.
#[derive(Clone, Copy)]
pub(crate) struct QueryTile<'a> {
    pub(crate) shape: AttnShape,
    pub(crate) q: &'a [f32],
    pub(crate) k: KvSlice<'a>,
    pub(crate) v: KvSlice<'a>,
    pub(crate) block_table: &'a [u32],
    pub(crate) kv_head: usize,
    pub(crate) first_row: usize,
    pub(crate) n_rows: usize,
    pub(crate) first_pos: usize,
}

impl QueryTile<'_> {
    pub(crate) fn group(&self) -> usize {
        self.shape.n_heads / self.shape.n_kv_heads
    }

    fn n_queries(&self) -> usize {
        self.n_rows * self.group()
    }

    /// Positions that `row` of the tile sees.
    pub(crate) fn visible(&self, row: usize) -> Range<usize> {
        visible(&self.shape, self.first_pos + row)
    }

    /// Positions that any row of the tile sees.
    pub(crate) fn visible_to_any(&self) -> Range<usize> {
        self.visible(0).start..self.visible(self.n_rows - 1).end
    }

    /// Query `i`, unscaled.
    pub(crate) fn query(&self, i: usize) -> &[f32] {
        let (row, head) = (self.first_row + i / self.group(), i % self.group());
        let head = self.kv_head * self.group() + head;
        let start = (row * self.shape.n_heads + head) * self.shape.k_dim;
        &self.q[start..start + self.shape.k_dim]
    }

    /// First slot, counted in rows of `dim` elements, of `position` in `k` and `v`.
    pub(crate) fn slot(&self, position: usize) -> usize {
        let page = self.shape.page;
        let block = self.block_table[position / page] as usize;
        (block * self.shape.n_kv_heads + self.kv_head) * page + position % page
    }

    fn k_pad(&self) -> usize {
        self.shape.k_dim.next_multiple_of(PAD)
    }

    fn v_pad(&self) -> usize {
        self.shape.v_dim.next_multiple_of(PAD)
    }
}

/// Positions that a row at `pos` sees.
pub(crate) fn visible(shape: &AttnShape, pos: usize) -> Range<usize> {
    let window = shape.window.map_or(usize::MAX, |w| w as usize);
    (pos + 1).saturating_sub(window)..pos + 1
}

/// Segments that `positions` touch.
pub(crate) fn segments(positions: &Range<usize>) -> Range<usize> {
    positions.start / SEGMENT..positions.end.div_ceil(SEGMENT)
}

fn segment_positions(segment: usize) -> Range<usize> {
    segment * SEGMENT..(segment + 1) * SEGMENT
}

/// Buffers of a thread, kept between tasks.
#[derive(Default)]
pub(crate) struct Scratch(Vec<f32>);

impl Scratch {
    /// `N` slices of the given lengths, each on a cache line; they hold old values.
    fn split<const N: usize>(&mut self, lens: [usize; N]) -> [&mut [f32]; N] {
        let total: usize = lens.iter().map(|len| len.next_multiple_of(PAD)).sum();
        if self.0.len() < total + PAD {
            self.0.resize(total + PAD, 0.0);
        }
        let skip = self.0.as_ptr().align_offset(LINE).min(PAD);
        let mut rest = &mut self.0[skip..];
        lens.map(|len| {
            let (slice, tail) = std::mem::take(&mut rest).split_at_mut(len.next_multiple_of(PAD));
            rest = tail;
            &mut slice[..len]
        })
    }
}

/// f32 that a partial softmax of `n_queries` takes.
pub(crate) fn partial_len(n_queries: usize, v_dim: usize) -> usize {
    n_queries.next_multiple_of(PAD) + n_queries * (PAD + v_dim.next_multiple_of(PAD))
}

/// Softmax of the queries of a tile over some positions: for each query the largest score, the sum
/// of exp(score - largest) in the lanes of a vector, and the sum of values weighted so.
struct Partial<T> {
    /// [n_queries]
    max: T,
    /// [n_queries, PAD]
    sum: T,
    /// [n_queries, v_pad]
    values: T,
}

impl<'a> Partial<&'a [f32]> {
    fn new(buffer: &'a [f32], n_queries: usize) -> Self {
        let (max, rest) = buffer.split_at(n_queries.next_multiple_of(PAD));
        let (sum, values) = rest.split_at(n_queries * PAD);
        Partial { max, sum, values }
    }
}

impl<'a> Partial<&'a mut [f32]> {
    fn new_mut(buffer: &'a mut [f32], n_queries: usize) -> Self {
        let (max, rest) = buffer.split_at_mut(n_queries.next_multiple_of(PAD));
        let (sum, values) = rest.split_at_mut(n_queries * PAD);
        Partial { max, sum, values }
    }

    fn reset(&mut self) {
        self.max.fill(f32::NEG_INFINITY);
        self.sum.fill(0.0);
        self.values.fill(0.0);
    }

    fn as_ref(&self) -> Partial<&[f32]> {
        Partial {
            max: self.max,
            sum: self.sum,
            values: self.values,
        }
    }
}

/// A tile from first to last position.
pub(crate) struct WholeTile<'a, 't> {
    pub(crate) tile: QueryTile<'a>,
    pub(crate) scratch: &'a mut Scratch,
    pub(crate) out: &'a mut Tile<'t>,
}

impl Kernel for WholeTile<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { tile, scratch, out } = self;
        let n_queries = tile.n_queries();
        let partial_len = partial_len(n_queries, tile.shape.v_dim);
        let [total, part, rest] = scratch.split([partial_len, partial_len, Buffers::len(&tile)]);
        let mut buffers = Buffers::new(rest, &tile);
        buffers.pack_queries(&tile);
        let mut total = Partial::new_mut(total, n_queries);
        let mut part = Partial::new_mut(part, n_queries);
        let positions = tile.visible_to_any();
        for segment in segments(&positions) {
            let first = segment * SEGMENT <= positions.start;
            let target = if first { &mut total } else { &mut part };
            target.reset();
            walk(s, &tile, segment_positions(segment), &mut buffers, target);
            if !first {
                merge(s, &tile, segment, &mut total, &part.as_ref());
            }
        }
        finish(s, &tile, &total.as_ref(), out);
    }
}

/// One segment of a tile, into a partial of its own.
pub(crate) struct SegmentOfTile<'a> {
    pub(crate) tile: QueryTile<'a>,
    pub(crate) segment: usize,
    pub(crate) scratch: &'a mut Scratch,
    /// At least [`partial_len`] long.
    pub(crate) partial: &'a mut [f32],
}

impl Kernel for SegmentOfTile<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self {
            tile,
            segment,
            scratch,
            partial,
        } = self;
        let [rest] = scratch.split([Buffers::len(&tile)]);
        let mut buffers = Buffers::new(rest, &tile);
        buffers.pack_queries(&tile);
        let partial = &mut partial[..partial_len(tile.n_queries(), tile.shape.v_dim)];
        let mut partial = Partial::new_mut(partial, tile.n_queries());
        partial.reset();
        walk(
            s,
            &tile,
            segment_positions(segment),
            &mut buffers,
            &mut partial,
        );
    }
}

/// The partials of a tile's segments, in order, merged into its output.
pub(crate) struct MergeTile<'a, 't> {
    pub(crate) tile: QueryTile<'a>,
    /// `stride` f32 for each segment that the tile sees.
    pub(crate) partials: &'a [f32],
    pub(crate) stride: usize,
    pub(crate) scratch: &'a mut Scratch,
    pub(crate) out: &'a mut Tile<'t>,
}

impl Kernel for MergeTile<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self {
            tile,
            partials,
            stride,
            scratch,
            out,
        } = self;
        let n_queries = tile.n_queries();
        let len = partial_len(n_queries, tile.shape.v_dim);
        let [total] = scratch.split([len]);
        total.copy_from_slice(&partials[..len]);
        let mut total = Partial::new_mut(total, n_queries);
        let segments = segments(&tile.visible_to_any());
        for (segment, part) in segments.zip(partials.chunks_exact(stride)).skip(1) {
            merge(
                s,
                &tile,
                segment,
                &mut total,
                &Partial::new(&part[..len], n_queries),
            );
        }
        finish(s, &tile, &total.as_ref(), out);
    }
}

/// Working memory of a tile beside its partials.
struct Buffers<'a> {
    /// [n_queries, k_pad], scaled; padding is 0.
    q: &'a mut [f32],
    /// [n_queries, BLOCK]: scores, then their exponentials.
    scores: &'a mut [f32],
    /// [BLOCK, k_pad] and [BLOCK, v_pad]; padding is 0.
    k: &'a mut [f32],
    v: &'a mut [f32],
}

impl<'a> Buffers<'a> {
    fn len(tile: &QueryTile<'_>) -> usize {
        tile.n_queries() * (tile.k_pad() + BLOCK) + BLOCK * (tile.k_pad() + tile.v_pad())
    }

    fn new(buffer: &'a mut [f32], tile: &QueryTile<'_>) -> Buffers<'a> {
        let (q, rest) = buffer.split_at_mut(tile.n_queries() * tile.k_pad());
        let (scores, rest) = rest.split_at_mut(tile.n_queries() * BLOCK);
        let (k, v) = rest.split_at_mut(BLOCK * tile.k_pad());
        Buffers { q, scores, k, v }
    }

    fn pack_queries(&mut self, tile: &QueryTile<'_>) {
        for (i, packed) in self.q.chunks_exact_mut(tile.k_pad()).enumerate() {
            let query = tile.query(i);
            for (packed, &x) in packed.iter_mut().zip(query) {
                *packed = x * tile.shape.scale;
            }
            packed[query.len()..].fill(0.0);
        }
    }
}

/// Adds the positions of one segment to a fresh `partial`.
#[inline(always)]
fn walk<S: Simd>(
    s: S,
    tile: &QueryTile<'_>,
    segment: Range<usize>,
    buffers: &mut Buffers<'_>,
    partial: &mut Partial<&mut [f32]>,
) {
    let seen = tile.visible_to_any();
    let start = segment.start.max(seen.start) / BLOCK * BLOCK;
    let end = segment.end.min(seen.end);
    let (group, k_pad, v_pad) = (tile.group(), tile.k_pad(), tile.v_pad());
    let (k_dim, v_dim) = (tile.shape.k_dim, tile.shape.v_dim);
    for base in (start..end).step_by(BLOCK) {
        let block = base..base + BLOCK;
        let slot = tile.slot(base);
        let next_slot = (block.end < end).then(|| tile.slot(block.end));
        // What rows see begins and ends no earlier than what the rows above them see.
        let first_row = base.saturating_sub(tile.first_pos);
        let mut end_row = tile.n_rows;
        while tile.visible(end_row - 1).start >= block.end {
            end_row -= 1;
        }
        let queries = first_row * group..end_row * group;
        let q = &buffers.q[queries.start * k_pad..queries.end * k_pad];
        let scores = &mut buffers.scores[queries.start * BLOCK..queries.end * BLOCK];
        let mut ahead = Ahead::new(tile, next_slot, queries.len());
        let k = widen(s, tile.k, slot, k_dim, buffers.k);
        score(s, q, k, k_pad, scores, &mut ahead);
        let v = widen(s, tile.v, slot, v_dim, buffers.v);

        let covers = |row| {
            let visible = tile.visible(row);
            visible.start <= block.start && block.end <= visible.end
        };
        let all_see_all = covers(first_row) && covers(end_row - 1);
        for (row, scores) in (first_row..end_row).zip(scores.chunks_exact_mut(group * BLOCK)) {
            let visible = tile.visible(row);
            let unseen_before = visible.start.saturating_sub(block.start);
            let seen = visible.end.min(block.end) - block.start;
            for (head, scores) in scores.chunks_exact_mut(BLOCK).enumerate() {
                if !all_see_all {
                    scores[..unseen_before].fill(f32::NEG_INFINITY);
                    scores[seen..].fill(f32::NEG_INFINITY);
                }
                let i = row * group + head;
                ahead.step(s);
                softmax(
                    s,
                    scores,
                    &mut partial.max[i],
                    &mut partial.sum[i * PAD..(i + 1) * PAD],
                    &mut partial.values[i * v_pad..(i + 1) * v_pad],
                );
            }
            if !all_see_all {
                // Unseen slots may hold NaN, which a weight of 0 would not cancel.
                let i = row * group;
                let values = &mut partial.values[i * v_pad..(i + group) * v_pad];
                let rows = unseen_before * v_pad..seen * v_pad;
                weigh(
                    s,
                    scores,
                    unseen_before,
                    &v[rows],
                    v_pad,
                    values,
                    &mut ahead,
                );
            }
        }
        if all_see_all {
            let values = &mut partial.values[queries.start * v_pad..queries.end * v_pad];
            weigh(s, scores, 0, v, v_pad, values, &mut ahead);
        }
    }
}

/// The cache lines of the next block, asked for in small portions during the work on this one.
///
/// Pages are scattered and hardware prefetchers do not follow. A core has a dozen or so buffers for
/// lines on their way, so asking for a whole block at once would stall it.
struct Ahead {
    k: *const u8,
    v: *const u8,
    k_lines_per_step: usize,
    v_lines_per_step: usize,
    steps_left: usize,
}

impl Ahead {
    fn new(tile: &QueryTile<'_>, next_slot: Option<usize>, n_queries: usize) -> Ahead {
        let AttnShape { k_dim, v_dim, .. } = tile.shape;
        let block = |slot: usize, dim: usize| slot * dim..(slot + BLOCK) * dim;
        let k = tile
            .k
            .get(next_slot.map_or(0..0, |slot| block(slot, k_dim)));
        let v = tile
            .v
            .get(next_slot.map_or(0..0, |slot| block(slot, v_dim)));
        // `score` takes 2 steps a query, softmax 1, `weigh` about 1 for 8 vectors.
        let n_steps = n_queries * (3 + tile.v_pad().div_ceil(64));
        let lines_per_step = |cache: KvSlice<'_>| cache.n_bytes().div_ceil(LINE * n_steps);
        let k_lines_per_step = lines_per_step(k);
        Ahead {
            k: k.as_ptr(),
            v: v.as_ptr(),
            k_lines_per_step,
            v_lines_per_step: lines_per_step(v),
            steps_left: k.n_bytes().div_ceil(LINE * k_lines_per_step.max(1)),
        }
    }

    #[inline(always)]
    fn step<S: Simd>(&mut self, s: S) {
        if self.steps_left == 0 {
            return;
        }
        self.steps_left -= 1;
        for _ in 0..self.k_lines_per_step {
            s.prefetch(self.k);
            self.k = self.k.wrapping_add(LINE);
        }
        for _ in 0..self.v_lines_per_step {
            s.prefetch(self.v);
            self.v = self.v.wrapping_add(LINE);
        }
    }
}

/// The block of BLOCK rows of `dim` at row `slot` of a cache, as f32 rows padded with 0 to a
/// multiple of PAD.
#[inline(always)]
fn widen<'a, S: Simd>(
    s: S,
    cache: KvSlice<'a>,
    slot: usize,
    dim: usize,
    buffer: &'a mut [f32],
) -> &'a [f32] {
    let elements = slot * dim..(slot + BLOCK) * dim;
    let pad = dim.next_multiple_of(PAD);
    match cache {
        KvSlice::F16(cache) if dim == pad => {
            let (x, _) = cache[elements].as_chunks::<PAD>();
            let (out, _) = buffer.as_chunks_mut::<PAD>();
            for (x, out) in x.iter().zip(out) {
                for (x, out) in x.chunks_exact(S::LANES).zip(out.chunks_exact_mut(S::LANES)) {
                    s.store(s.load_f16(x), out);
                }
            }
            buffer
        }
        KvSlice::F16(cache) => {
            for (row, out) in cache[elements]
                .chunks_exact(dim)
                .zip(buffer.chunks_exact_mut(pad))
            {
                let (out, padding) = out.split_at_mut(dim);
                for (x, out) in row.chunks(S::LANES).zip(out.chunks_mut(S::LANES)) {
                    if x.len() == S::LANES {
                        s.store(s.load_f16(x), out);
                    } else {
                        for (&x, out) in x.iter().zip(out) {
                            *out = half::f16::from_bits(x).to_f32();
                        }
                    }
                }
                padding.fill(0.0);
            }
            buffer
        }
        KvSlice::F32(cache) if dim == pad => &cache[elements],
        KvSlice::F32(cache) => {
            for (row, out) in cache[elements]
                .chunks_exact(dim)
                .zip(buffer.chunks_exact_mut(pad))
            {
                out[..dim].copy_from_slice(row);
                out[dim..].fill(0.0);
            }
            buffer
        }
    }
}

/// scores [n_queries, BLOCK] = q [n_queries, width] * k [BLOCK, width]^T.
#[inline(always)]
fn score<S: Simd>(s: S, q: &[f32], k: &[f32], width: usize, scores: &mut [f32], ahead: &mut Ahead) {
    let mut pairs = q.chunks_exact(2 * width);
    let mut score_pairs = scores.chunks_exact_mut(2 * BLOCK);
    for (q, scores) in (&mut pairs).zip(&mut score_pairs) {
        let (q0, q1) = q.split_at(width);
        let (scores0, scores1) = scores.split_at_mut(BLOCK);
        for (i, k) in k.chunks_exact(4 * width).enumerate() {
            ahead.step(s);
            let sums = s.sums_of_8(dots_2x4(s, [q0, q1], k, width));
            scores0[i * 4..i * 4 + 4].copy_from_slice(&sums[..4]);
            scores1[i * 4..i * 4 + 4].copy_from_slice(&sums[4..]);
        }
    }
    let (q, scores) = (pairs.remainder(), score_pairs.into_remainder());
    if !q.is_empty() {
        for (k, scores) in k.chunks_exact(8 * width).zip(scores.chunks_exact_mut(8)) {
            ahead.step(s);
            scores.copy_from_slice(&s.sums_of_8(dots_1x8(s, q, k, width)));
        }
    }
}

/// Unreduced dot products of 2 queries with 4 keys, all of `width`.
#[inline(always)]
fn dots_2x4<S: Simd>(s: S, q: [&[f32]; 2], k: &[f32], width: usize) -> [S::F32; 8] {
    let n = width / S::LANES;
    let (q0, q1) = (&S::chunks(q[0]).0[..n], &S::chunks(q[1]).0[..n]);
    let k = S::chunks(k).0;
    let (k0, k1, k2, k3) = (&k[..n], &k[n..2 * n], &k[2 * n..3 * n], &k[3 * n..4 * n]);
    let mut acc = [s.splat(0.0); 8];
    for d in 0..n {
        let (x0, x1) = (s.load_chunk(&q0[d]), s.load_chunk(&q1[d]));
        let y = [&k0[d], &k1[d], &k2[d], &k3[d]];
        for j in 0..4 {
            let y = s.load_chunk(y[j]);
            acc[j] = s.mul_add(x0, y, acc[j]);
            acc[4 + j] = s.mul_add(x1, y, acc[4 + j]);
        }
    }
    acc
}

/// Unreduced dot products of one query with 8 keys, all of `width`.
#[inline(always)]
fn dots_1x8<S: Simd>(s: S, q: &[f32], k: &[f32], width: usize) -> [S::F32; 8] {
    let n = width / S::LANES;
    let q = &S::chunks(q).0[..n];
    let mut rest = &S::chunks(k).0[..8 * n];
    let mut k = [q; 8];
    for key in &mut k {
        (*key, rest) = rest.split_at(n);
    }
    let mut acc = [s.splat(0.0); 8];
    for d in 0..n {
        let x = s.load_chunk(&q[d]);
        for j in 0..8 {
            acc[j] = s.mul_add(x, s.load_chunk(&k[j][d]), acc[j]);
        }
    }
    acc
}

/// Turns the scores of one query into weights and takes them into its running softmax.
#[inline(always)]
fn softmax<S: Simd>(s: S, scores: &mut [f32], max: &mut f32, sum: &mut [f32], values: &mut [f32]) {
    let (scores, _) = S::chunks_mut(scores);
    let mut block_max = s.splat(f32::NEG_INFINITY);
    for x in &*scores {
        block_max = s.max(s.load_chunk(x), block_max);
    }
    let block_max = s.max_lane(block_max);
    // A factor of exp(0) would change no bits, so an unchanged maximum needs no scaling.
    if block_max > *max {
        let factor = exp_nonpositive(s, s.splat(*max - block_max));
        *max = block_max;
        for x in S::chunks_mut(sum)
            .0
            .iter_mut()
            .chain(S::chunks_mut(values).0)
        {
            s.store_chunk(s.mul(s.load_chunk(x), factor), x);
        }
    }
    let max = s.splat(*max);
    let sum = &mut S::chunks_mut(sum).0[0];
    let mut total = s.load_chunk(sum);
    for x in scores {
        let weight = exp_nonpositive(s, s.sub(s.load_chunk(x), max));
        s.store_chunk(weight, x);
        total = s.add(total, weight);
    }
    s.store_chunk(total, sum);
}

/// values [n_queries, width] += weights [n_queries, BLOCK], from column `first` on, times
/// v [n, width].
#[inline(always)]
fn weigh<S: Simd>(
    s: S,
    weights: &[f32],
    first: usize,
    v: &[f32],
    width: usize,
    values: &mut [f32],
    ahead: &mut Ahead,
) {
    let n = width / S::LANES;
    let v = S::chunks(v).0;
    let (mut values, mut weights) = (S::chunks_mut(values).0, weights);
    // Two queries by four vectors, or one by eight, are eight sums: see `score`.
    while !weights.is_empty() {
        let n_queries = weights.len() / BLOCK;
        let taken = n_queries.min(2);
        let (now, rest) = weights.split_at(taken * BLOCK);
        let (values_now, values_rest) = values.split_at_mut(taken * n);
        let v = Values { v, n, first };
        match taken {
            2 => weigh_queries::<S, 2, 4>(s, now, v, values_now, ahead),
            _ => weigh_queries::<S, 1, 8>(s, now, v, values_now, ahead),
        }
        (weights, values) = (rest, values_rest);
    }
}

/// Values of a block from position `first` on, in rows of `n` vectors.
#[derive(Clone, Copy)]
struct Values<'a, C> {
    v: &'a [C],
    n: usize,
    first: usize,
}

#[inline(always)]
fn weigh_queries<S: Simd, const Q: usize, const C: usize>(
    s: S,
    weights: &[f32],
    v: Values<'_, S::Chunk>,
    values: &mut [S::Chunk],
    ahead: &mut Ahead,
) {
    let whole = v.n / C * C;
    for col in (0..whole).step_by(C) {
        ahead.step(s);
        weigh_columns::<S, Q, C>(s, weights, v, col, values);
    }
    for col in whole..v.n {
        weigh_columns::<S, Q, 1>(s, weights, v, col, values);
    }
}

/// `C` vectors of columns from vector `col` on, for `Q` queries, kept in registers.
#[inline(always)]
fn weigh_columns<S: Simd, const Q: usize, const C: usize>(
    s: S,
    weights: &[f32],
    v: Values<'_, S::Chunk>,
    col: usize,
    values: &mut [S::Chunk],
) {
    let n = v.n;
    let mut acc = [[s.splat(0.0); C]; Q];
    for i in 0..Q {
        let values = &values[i * n + col..i * n + col + C];
        for j in 0..C {
            acc[i][j] = s.load_chunk(&values[j]);
        }
    }
    let weights = &weights[..Q * BLOCK];
    let v_rows = v.v.chunks_exact(n);
    for (t, v) in (v.first..BLOCK).zip(v_rows) {
        let v = &v[col..col + C];
        let mut columns = [s.splat(0.0); C];
        for j in 0..C {
            columns[j] = s.load_chunk(&v[j]);
        }
        for i in 0..Q {
            let weight = s.splat(weights[i * BLOCK + t]);
            for j in 0..C {
                acc[i][j] = s.mul_add(weight, columns[j], acc[i][j]);
            }
        }
    }
    for i in 0..Q {
        let values = &mut values[i * n + col..i * n + col + C];
        for j in 0..C {
            s.store_chunk(acc[i][j], &mut values[j]);
        }
    }
}

/// Takes the partial of `segment` into `total`, which holds the segments before it.
#[inline(always)]
fn merge<S: Simd>(
    s: S,
    tile: &QueryTile<'_>,
    segment: usize,
    total: &mut Partial<&mut [f32]>,
    part: &Partial<&[f32]>,
) {
    let (n_queries, group) = (tile.n_queries(), tile.group());
    let width = tile.v_pad();
    let segment = segment_positions(segment);
    for i in 0..n_queries {
        let visible = tile.visible(i / group);
        if visible.end <= segment.start || visible.start >= segment.end {
            continue;
        }
        let sums = i * PAD..(i + 1) * PAD;
        let values = i * width..(i + 1) * width;
        if visible.start >= segment.start {
            // The first segment that this row sees.
            total.max[i] = part.max[i];
            total.sum[sums.clone()].copy_from_slice(&part.sum[sums]);
            total.values[values.clone()].copy_from_slice(&part.values[values]);
            continue;
        }
        let max = total.max[i].max(part.max[i]);
        let old = exp_nonpositive(s, s.splat(total.max[i] - max));
        let new = exp_nonpositive(s, s.splat(part.max[i] - max));
        total.max[i] = max;
        add_scaled(s, &mut total.sum[sums.clone()], old, &part.sum[sums], new);
        add_scaled(
            s,
            &mut total.values[values.clone()],
            old,
            &part.values[values],
            new,
        );
    }
}

/// x = x * a + y * b.
#[inline(always)]
fn add_scaled<S: Simd>(s: S, x: &mut [f32], a: S::F32, y: &[f32], b: S::F32) {
    for (x, y) in S::chunks_mut(x).0.iter_mut().zip(S::chunks(y).0) {
        let scaled = s.mul(s.load_chunk(x), a);
        s.store_chunk(s.mul_add(s.load_chunk(y), b, scaled), x);
    }
}

/// Divides by the sum of weights and writes the tile's rows.
#[inline(always)]
fn finish<S: Simd>(s: S, tile: &QueryTile<'_>, total: &Partial<&[f32]>, out: &mut Tile<'_>) {
    let group = tile.group();
    let width = tile.v_pad();
    for row in 0..tile.n_rows {
        let out = out.row(tile.first_row + row);
        for (head, out) in out.chunks_exact_mut(tile.shape.v_dim).enumerate() {
            let i = row * group + head;
            let sum = &S::chunks(&total.sum[i * PAD..]).0[0];
            let factor = 1.0 / s.sum(s.load_chunk(sum));
            for (out, &x) in out.iter_mut().zip(&total.values[i * width..]) {
                *out = x * factor;
            }
        }
    }
}
