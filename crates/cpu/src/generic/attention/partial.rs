//! Softmax over a part of the positions, and how two parts are merged (Milakov and Gimelshein 2018).

use super::query_tile::{PAD, QueryTile, segment_positions};
use crate::generic::lanes::exp_nonpositive;
use crate::generic::simd::Simd;
use crate::hadamard::hadamard;
use crate::pool::Tile;

/// Number of f32 values of a partial softmax of `n_queries`.
pub(crate) fn partial_len(n_queries: usize, v_dim: usize) -> usize {
    n_queries.next_multiple_of(PAD) + n_queries * (PAD + v_dim.next_multiple_of(PAD))
}

/// Softmax of a tile's queries over some positions: for each query the largest score, the sum of exp(score - largest)
/// in the lanes of a vector, and the sum of values with these weights.
pub(super) struct Partial<T> {
    /// [n_queries]
    max: T,
    /// [n_queries, PAD]
    sum: T,
    /// [n_queries, v_pad]
    pub(super) values: T,
}

impl<'a> Partial<&'a [f32]> {
    pub(super) fn new(buffer: &'a [f32], n_queries: usize) -> Self {
        let (max, rest) = buffer.split_at(n_queries.next_multiple_of(PAD));
        let (sum, values) = rest.split_at(n_queries * PAD);
        Partial { max, sum, values }
    }
}

impl<'a> Partial<&'a mut [f32]> {
    pub(super) fn new_mut(buffer: &'a mut [f32], n_queries: usize) -> Self {
        let (max, rest) = buffer.split_at_mut(n_queries.next_multiple_of(PAD));
        let (sum, values) = rest.split_at_mut(n_queries * PAD);
        Partial { max, sum, values }
    }

    pub(super) fn reset(&mut self) {
        self.max.fill(f32::NEG_INFINITY);
        self.sum.fill(0.0);
        self.values.fill(0.0);
    }

    pub(super) fn of_query(&mut self, i: usize, v_pad: usize) -> QueryPartial<'_> {
        QueryPartial {
            max: &mut self.max[i],
            sum: &mut self.sum[i * PAD..(i + 1) * PAD],
            values: &mut self.values[i * v_pad..(i + 1) * v_pad],
        }
    }

    pub(super) fn as_ref(&self) -> Partial<&[f32]> {
        Partial {
            max: self.max,
            sum: self.sum,
            values: self.values,
        }
    }
}

/// One query's part of a [`Partial`].
pub(super) struct QueryPartial<'a> {
    max: &'a mut f32,
    sum: &'a mut [f32],
    values: &'a mut [f32],
}

/// Converts a block of scores of one query to weights and adds them to its softmax. The weighted values are added
/// separately.
#[inline(always)]
pub(super) fn softmax<S: Simd>(s: S, scores: &mut [f32], partial: QueryPartial<'_>) {
    let QueryPartial { max, sum, values } = partial;
    let (scores, _) = S::chunks_mut(scores);
    let mut block_max = s.splat(f32::NEG_INFINITY);
    for x in &*scores {
        block_max = s.max(s.load_chunk(x), block_max);
    }
    let block_max = s.max_lane(block_max);
    // A factor of exp(0) changes no bits, so an unchanged maximum needs no scaling.
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

/// Merges the partial of `segment` into `total`, which holds the segments before it.
#[inline(always)]
pub(super) fn merge<S: Simd>(
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

/// Divides by the sum of weights, including that of the sink, and writes the tile's rows.
#[inline(always)]
pub(super) fn finish<S: Simd>(
    s: S,
    tile: &QueryTile<'_>,
    total: &Partial<&[f32]>,
    out: &mut Tile<'_>,
) {
    let group = tile.group();
    let width = tile.v_pad();
    for row in 0..tile.n_rows {
        let out = out.row(tile.first_row + row);
        for (head, out) in out.chunks_exact_mut(tile.shape.v_dim).enumerate() {
            let i = row * group + head;
            let sum = s.sum(s.load_chunk(&S::chunks(&total.sum[i * PAD..]).0[0]));
            // A sink far above the scores is infinite here, and leaves nothing of the values.
            let sink = tile
                .sink(head)
                .map_or(0.0, |sink| (sink - total.max[i]).exp());
            let factor = 1.0 / (sum + sink);
            for (out, &x) in out.iter_mut().zip(&total.values[i * width..]) {
                *out = x * factor;
            }
            hadamard(out, tile.shape.v_hadamard);
        }
    }
}
