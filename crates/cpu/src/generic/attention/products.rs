//! The two matrix products of attention: queries with keys, weights with values.
//!
//! Both use eight accumulators, which cover the latency of the multiply-add: two queries times four keys or vectors of
//! columns, or one times eight. Each element is computed in one accumulator, in an order that does not depend on that
//! shape. (Four queries times two, which widen each f16 vector once for a whole group, and three times four were no
//! faster on a Xeon of 2023.)

use rocmforge_gguf::quant::legacy::Q8_0;

use super::ahead::Ahead;
use super::query_tile::BLOCK;
use crate::generic::simd::Simd;

/// How keys or values are stored: rows of units, each several vectors that share a scale.
pub(super) trait Source<S: Simd> {
    type Unit;
    /// Vectors per unit, a power of two.
    const VECTORS: usize;
    type Scale: Copy;
    fn scale(s: S, unit: &Self::Unit) -> Self::Scale;
    /// Loads vector `i` of `unit`.
    fn load(s: S, unit: &Self::Unit, i: usize, scale: Self::Scale) -> S::F32;
}

/// Stored as f32.
pub(super) struct Wide;

impl<S: Simd> Source<S> for Wide {
    type Unit = S::Chunk;
    const VECTORS: usize = 1;
    type Scale = ();

    #[inline(always)]
    fn scale(_: S, _: &S::Chunk) {}

    #[inline(always)]
    fn load(s: S, x: &S::Chunk, _: usize, (): ()) -> S::F32 {
        s.load_chunk(x)
    }
}

/// Stored as f16.
pub(super) struct Half;

impl<S: Simd> Source<S> for Half {
    type Unit = S::HalfChunk;
    const VECTORS: usize = 1;
    type Scale = ();

    #[inline(always)]
    fn scale(_: S, _: &S::HalfChunk) {}

    #[inline(always)]
    fn load(s: S, x: &S::HalfChunk, _: usize, (): ()) -> S::F32 {
        s.load_half_chunk(x)
    }
}

/// Stored as Q8_0 blocks. The product of a code and its scale is exact in f32.
pub(super) struct Coded;

impl<S: Simd> Source<S> for Coded {
    type Unit = Q8_0;
    const VECTORS: usize = 32 / S::LANES;
    type Scale = S::F32;

    #[inline(always)]
    fn scale(s: S, block: &Q8_0) -> S::F32 {
        s.splat_f16(block.d.bits())
    }

    #[inline(always)]
    fn load(s: S, block: &Q8_0, i: usize, scale: S::F32) -> S::F32 {
        s.mul(s.load_i8(&block.qs[i * S::LANES..]), scale)
    }
}

/// scores [n_queries, BLOCK] = q [n_queries, n] * k [BLOCK, n]^T, with rows of `n` vectors.
///
/// Scores are written as whole vectors, because they are soon read as such: a load that spans two narrower stores would
/// wait until both have left the store buffer.
#[inline(always)]
pub(super) fn score<S: Simd, K: Source<S>>(
    s: S,
    q: &[S::Chunk],
    k: &[K::Unit],
    n: usize,
    scores: &mut [f32],
    ahead: &mut Ahead,
) {
    let n_units = n / K::VECTORS;
    let (pairs, last) = scores.as_chunks_mut::<{ 2 * BLOCK }>();
    let mut queries = q.chunks_exact(2 * n);
    for (q, scores) in (&mut queries).zip(pairs) {
        let q = split::<_, 2>(q, n);
        let (first, second) = scores.as_chunks_mut::<8>().0.split_at_mut(BLOCK / 8);
        for (k, (first, second)) in k
            .chunks_exact(8 * n_units)
            .zip(first.iter_mut().zip(second))
        {
            let (k_low, k_high) = k.split_at(4 * n_units);
            ahead.step(s);
            let low = s.sum_8(dots::<S, K, 2, 4>(s, q, split(k_low, n_units)));
            ahead.step(s);
            let high = s.sum_8(dots::<S, K, 2, 4>(s, q, split(k_high, n_units)));
            let (sums_first, sums_second) = s.zip_halves(low, high);
            s.store_sums(sums_first, first);
            s.store_sums(sums_second, second);
        }
    }
    if !last.is_empty() {
        let q = split::<_, 1>(queries.remainder(), n);
        for (k, scores) in k.chunks_exact(8 * n_units).zip(last.as_chunks_mut::<8>().0) {
            ahead.step(s);
            s.store_sums(s.sum_8(dots::<S, K, 1, 8>(s, q, split(k, n_units))), scores);
        }
    }
}

/// Computes dot products of `Q` queries with `E` keys (`Q * E` is 8), not yet summed over lanes.
#[inline(always)]
fn dots<S: Simd, K: Source<S>, const Q: usize, const E: usize>(
    s: S,
    q: [&[S::Chunk]; Q],
    k: [&[K::Unit]; E],
) -> [S::F32; 8] {
    let mut acc = [s.splat(0.0); 8];
    for unit in 0..k[0].len() {
        let mut scales = [K::scale(s, &k[0][unit]); E];
        for j in 1..E {
            scales[j] = K::scale(s, &k[j][unit]);
        }
        for d in 0..K::VECTORS {
            let mut keys = [s.splat(0.0); E];
            for j in 0..E {
                keys[j] = K::load(s, &k[j][unit], d, scales[j]);
            }
            for i in 0..Q {
                let query = s.load_chunk(&q[i][unit * K::VECTORS + d]);
                for j in 0..E {
                    acc[i * E + j] = s.mul_add(query, keys[j], acc[i * E + j]);
                }
            }
        }
    }
    acc
}

/// Returns the first `N` rows of `n` elements. Slices of one length spare loops over them the bounds checks.
#[inline(always)]
fn split<T, const N: usize>(mut x: &[T], n: usize) -> [&[T]; N] {
    let mut rows = [&x[..0]; N];
    for row in &mut rows {
        (*row, x) = x.split_at(n);
    }
    rows
}

/// Values of some positions of a block.
pub(super) struct ValueRows<'a, U> {
    /// Rows of `n` vectors, in units of their source.
    pub(super) rows: &'a [U],
    /// Position of the first row in the block.
    pub(super) first: usize,
    /// Vectors of a value.
    pub(super) n: usize,
    /// Vectors per row; more than `n` if a value is a part of its row.
    pub(super) stride: usize,
}

/// values `[n_queries, v.n]` += weights `[n_queries, BLOCK]`, from column `v.first` on, times `v.rows`.
#[inline(always)]
pub(super) fn weigh<S: Simd, V: Source<S>>(
    s: S,
    mut weights: &[f32],
    v: &ValueRows<'_, V::Unit>,
    mut values: &mut [S::Chunk],
    ahead: &mut Ahead,
) {
    while !weights.is_empty() {
        let taken = (weights.len() / BLOCK).min(2);
        let (now, rest) = weights.split_at(taken * BLOCK);
        let (values_now, values_rest) = std::mem::take(&mut values).split_at_mut(taken * v.n);
        match taken {
            2 => weigh_queries::<S, V, 2, 4>(s, now, v, values_now, ahead),
            _ => weigh_queries::<S, V, 1, 8>(s, now, v, values_now, ahead),
        }
        (weights, values) = (rest, values_rest);
    }
}

/// [`weigh`] for `Q` queries, `C` vectors of columns at a time.
#[inline(always)]
fn weigh_queries<S: Simd, V: Source<S>, const Q: usize, const C: usize>(
    s: S,
    weights: &[f32],
    v: &ValueRows<'_, V::Unit>,
    values: &mut [S::Chunk],
    ahead: &mut Ahead,
) {
    let mut col = 0;
    while col + C <= v.n {
        ahead.step(s);
        weigh_columns::<S, V, Q, C>(s, weights, v, col, values);
        col += C;
    }
    while C > 4 && col + 4 <= v.n {
        ahead.step(s);
        weigh_columns::<S, V, Q, 4>(s, weights, v, col, values);
        col += 4;
    }
    while col < v.n {
        weigh_columns::<S, V, Q, 1>(s, weights, v, col, values);
        col += 1;
    }
}

/// [`weigh`] for `Q` queries and `C` vectors of columns from vector `col` on.
#[inline(always)]
fn weigh_columns<S: Simd, V: Source<S>, const Q: usize, const C: usize>(
    s: S,
    weights: &[f32],
    v: &ValueRows<'_, V::Unit>,
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
    for (t, row) in (v.first..BLOCK).zip(v.rows.chunks_exact(v.stride / V::VECTORS)) {
        let columns = columns::<S, V, C>(s, row, col);
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

/// Loads `C` vectors of a row from vector `col` on, which is a multiple of `C`.
#[inline(always)]
fn columns<S: Simd, V: Source<S>, const C: usize>(
    s: S,
    row: &[V::Unit],
    col: usize,
) -> [S::F32; C] {
    let mut columns = [s.splat(0.0); C];
    if C < V::VECTORS {
        for j in 0..C {
            let unit = &row[(col + j) / V::VECTORS];
            columns[j] = V::load(s, unit, (col + j) % V::VECTORS, V::scale(s, unit));
        }
        return columns;
    }
    let units = &row[col / V::VECTORS..][..C / V::VECTORS];
    for (i, unit) in units.iter().enumerate() {
        let scale = V::scale(s, unit);
        for j in 0..V::VECTORS {
            columns[i * V::VECTORS + j] = V::load(s, unit, j, scale);
        }
    }
    columns
}
