//! Processes the blocks of a segment for one query tile.

use std::ops::Range;

use rocmforge_gguf::quant::legacy::{Q4_0, Q5_1, Q8_0};
use rocmforge_gguf::quant::{blocks, f8};

use super::ahead::Ahead;
use super::partial::{Partial, softmax};
use super::products::{Coded, Half, Source, ValueRows, Wide, score, weigh};
use super::query_tile::{BLOCK, PAD, QueryTile};
use crate::generic::lanes::capped;
use crate::generic::simd::Simd;
use crate::hadamard::hadamard;
use crate::head_code::{HeadCode, SmallCodes};
use crate::kv_slice::KvSlice;

/// Working memory of a tile, in addition to its partials.
pub(super) struct Buffers<'a> {
    /// [n_queries, k_pad], scaled; padding is 0.
    q: &'a mut [f32],
    /// [n_queries, BLOCK]: scores, then their exponentials.
    scores: &'a mut [f32],
    /// [BLOCK, k_pad] and [BLOCK, v_pad]; padding is 0.
    k: &'a mut [f32],
    v: &'a mut [f32],
}

impl<'a> Buffers<'a> {
    pub(super) fn len(tile: &QueryTile<'_>) -> usize {
        tile.n_queries() * (tile.k_pad() + BLOCK) + BLOCK * (tile.k_pad() + tile.v_pad())
    }

    pub(super) fn new(buffer: &'a mut [f32], tile: &QueryTile<'_>) -> Buffers<'a> {
        let (q, rest) = buffer.split_at_mut(tile.n_queries() * tile.k_pad());
        let (scores, rest) = rest.split_at_mut(tile.n_queries() * BLOCK);
        let (k, v) = rest.split_at_mut(BLOCK * tile.k_pad());
        Buffers { q, scores, k, v }
    }

    pub(super) fn pack_queries(&mut self, tile: &QueryTile<'_>) {
        for (i, packed) in self.q.chunks_exact_mut(tile.k_pad()).enumerate() {
            let query = tile.query(i);
            let factor = tile.shape.factor(tile.first_pos + i / tile.group());
            for (packed, &x) in packed.iter_mut().zip(query) {
                *packed = x * factor;
            }
            hadamard(&mut packed[..query.len()], tile.shape.k_hadamard);
            packed[query.len()..].fill(0.0);
        }
    }
}

/// Adds the positions of one segment to a newly reset `partial`.
#[inline(always)]
pub(super) fn walk<S: Simd>(
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

        // Neither end of the visible range decreases from row to row.
        let mut first_row = match tile.shape.mask.looks_ahead() {
            true => 0,
            false => base.saturating_sub(tile.first_pos),
        };
        while tile.visible(first_row).end <= base {
            first_row += 1;
        }
        let mut end_row = tile.n_rows;
        while tile.visible(end_row - 1).start >= block.end {
            end_row -= 1;
        }
        let queries = first_row * group..end_row * group;
        let q = &buffers.q[queries.start * k_pad..queries.end * k_pad];
        let scores = &mut buffers.scores[queries.start * BLOCK..queries.end * BLOCK];

        let mut ahead = Ahead::new(tile, next_slot, queries.len());
        let (q, n) = (S::chunks(q).0, k_pad / S::LANES);
        let keys = rows(s, tile.inputs.k, slot, k_dim, queries.len(), buffers.k);
        match keys {
            Rows::Wide(k) => score::<S, Wide>(s, q, S::chunks(k).0, n, scores, &mut ahead),
            Rows::Half(k) => score::<S, Half>(s, q, S::half_chunks(k), n, scores, &mut ahead),
            Rows::Coded(k) => score::<S, Coded>(s, q, k, n, scores, &mut ahead),
        }
        if let Some(cap) = tile.shape.soft_cap {
            for x in S::chunks_mut(scores).0 {
                s.store_chunk(capped(s, cap, s.load_chunk(x)), x);
            }
        }
        if tile.shape.alibi.is_some() {
            for (i, scores) in queries.clone().zip(scores.chunks_exact_mut(BLOCK)) {
                let slope = tile.slope(i % group).expect("there are biases");
                let pos = tile.first_pos + i / group;
                for (key, score) in (base..).zip(scores) {
                    *score -= slope * pos.abs_diff(key) as f32;
                }
            }
        }
        // Vectors of a row of the values' source.
        let (v, stride) = match tile.inputs.v {
            Some(v) => (rows(s, v, slot, v_dim, queries.len(), buffers.v), v_pad),
            None => (keys, k_pad),
        };
        let stride = stride / S::LANES;

        // Positions of the block that `row` sees, relative to `base`.
        let seen_by = |row| {
            let visible = tile.visible(row);
            visible.start.saturating_sub(base)..visible.end.min(block.end) - base
        };
        let all_see_all = seen_by(first_row) == (0..BLOCK) && seen_by(end_row - 1) == (0..BLOCK);
        for (i, scores) in queries.zip(scores.chunks_exact_mut(BLOCK)) {
            if !all_see_all {
                let seen = seen_by(i / group);
                scores[..seen.start].fill(f32::NEG_INFINITY);
                scores[seen.end..].fill(f32::NEG_INFINITY);
            }
            ahead.step(s);
            softmax(s, scores, partial.of_query(i, v_pad));
        }

        // Unseen slots may hold NaN, which a weight of 0 would not cancel. If rows see different positions, they are
        // processed one by one.
        let rows_at_once = if all_see_all { end_row - first_row } else { 1 };
        let n = v_pad / S::LANES;
        for row in (first_row..end_row).step_by(rows_at_once) {
            let seen = seen_by(row);
            let v_rows = seen.start * stride..seen.end * stride;
            let n_queries = rows_at_once * group;
            let weights = &scores[(row - first_row) * group * BLOCK..][..n_queries * BLOCK];
            let values = &mut partial.values[row * group * v_pad..][..n_queries * v_pad];
            let values = S::chunks_mut(values).0;
            let first = seen.start;
            match v {
                Rows::Wide(v) => {
                    let rows = &S::chunks(v).0[v_rows];
                    let v = ValueRows {
                        rows,
                        first,
                        n,
                        stride,
                    };
                    weigh::<S, Wide>(s, weights, &v, values, &mut ahead);
                }
                Rows::Half(v) => {
                    let rows = &S::half_chunks(v)[v_rows];
                    let v = ValueRows {
                        rows,
                        first,
                        n,
                        stride,
                    };
                    weigh::<S, Half>(s, weights, &v, values, &mut ahead);
                }
                Rows::Coded(v) => {
                    let n_units = stride / <Coded as Source<S>>::VECTORS;
                    let rows = &v[seen.start * n_units..seen.end * n_units];
                    let v = ValueRows {
                        rows,
                        first,
                        n,
                        stride,
                    };
                    weigh::<S, Coded>(s, weights, &v, values, &mut ahead);
                }
            }
        }
    }
}

/// `BLOCK` rows of keys or values.
#[derive(Clone, Copy)]
enum Rows<'a> {
    Wide(&'a [f32]),
    Half(&'a [u16]),
    Coded(&'a [Q8_0]),
}

/// Returns the rows of `dim` values from row `slot` of a cache: in place if kernels can read them there, else in
/// `buffer`, as f32 and padded with 0 to a multiple of `PAD`. For few queries, halves and codes are widened on the fly,
/// which costs less than widening them into the buffer.
#[inline(always)]
fn rows<'a, S: Simd>(
    s: S,
    cache: KvSlice<'a>,
    slot: usize,
    dim: usize,
    n_queries: usize,
    buffer: &'a mut [f32],
) -> Rows<'a> {
    let elements = slot * dim..(slot + BLOCK) * dim;
    let pad = dim.next_multiple_of(PAD);
    match cache {
        KvSlice::Q8_0(cache) => {
            let blocks = &cache[elements.start / 32..elements.end / 32];
            if n_queries <= 4 {
                return Rows::Coded(blocks);
            }
            let (out, _) = buffer.as_chunks_mut::<32>();
            for (block, out) in blocks.iter().zip(out) {
                let scale = Coded::scale(s, block);
                for (i, out) in out.chunks_exact_mut(S::LANES).enumerate() {
                    s.store(Coded::load(s, block, i, scale), out);
                }
            }
        }
        KvSlice::Heads { code, heads, .. } => {
            let head = code.head_bytes(dim);
            let heads = heads[slot * head..].chunks_exact(head);
            for (head, out) in heads.zip(buffer.chunks_exact_mut(pad)).take(BLOCK) {
                match code {
                    HeadCode::F8E4M3 => widen_f8(s, head, out),
                    HeadCode::Q4_0 if dim.is_multiple_of(32) => {
                        widen_blocks::<S, Q4_0>(s, head, out)
                    }
                    HeadCode::Q5_1 if dim.is_multiple_of(32) => {
                        widen_blocks::<S, Q5_1>(s, head, out)
                    }
                    HeadCode::Q8_0 | HeadCode::Q5_1 | HeadCode::Q4_0 => {
                        let (out, padding) = out.split_at_mut(dim);
                        code.load(head, out);
                        padding.fill(0.0);
                    }
                }
            }
        }
        KvSlice::F32(cache) if dim == pad => return Rows::Wide(&cache[elements]),
        KvSlice::F16(cache) if dim == pad && n_queries <= 4 => return Rows::Half(&cache[elements]),
        KvSlice::F16(cache) if dim == pad => {
            let (x, _) = cache[elements].as_chunks::<PAD>();
            let (out, _) = buffer.as_chunks_mut::<PAD>();
            for (x, out) in x.iter().zip(out) {
                for (x, out) in x.chunks_exact(S::LANES).zip(out.chunks_exact_mut(S::LANES)) {
                    s.store(s.load_f16(x), out);
                }
            }
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
        }
        KvSlice::F32(cache) => {
            for (row, out) in cache[elements]
                .chunks_exact(dim)
                .zip(buffer.chunks_exact_mut(pad))
            {
                out[..dim].copy_from_slice(row);
                out[dim..].fill(0.0);
            }
        }
    }
    Rows::Wide(buffer)
}

/// Converts an FP8 head to f32, padded with 0.
#[inline(always)]
fn widen_f8<S: Simd>(s: S, head: &[u8], out: &mut [f32]) {
    let (scale, codes) = f8::load(head);
    // A half with the bits of a code is 2^-8 times its value.
    let factor = s.splat(scale * 256.0);
    let (out, padding) = out.split_at_mut(codes.len());
    for (codes, out) in codes.chunks(S::LANES).zip(out.chunks_mut(S::LANES)) {
        if codes.len() == S::LANES {
            let mut halves = [0; PAD];
            for (half, &code) in halves.iter_mut().zip(codes) {
                *half = u16::from(code & 0x80) << 8 | u16::from(code & 0x7f) << 7;
            }
            s.store(s.mul(s.load_f16(&halves), factor), out);
        } else {
            for (&code, out) in codes.iter().zip(out) {
                *out = f8::number(code) * scale;
            }
        }
    }
    padding.fill(0.0);
}

/// Converts blocks of small codes to f32. The product of a code and its scale is exact.
#[inline(always)]
fn widen_blocks<S: Simd, B: SmallCodes>(s: S, head: &[u8], out: &mut [f32]) {
    for (block, out) in blocks::<B>(head).iter().zip(out.chunks_exact_mut(32)) {
        let codes = block.codes();
        let (scale, min) = (s.splat_f16(block.scale()), s.splat_f16(block.min()));
        for (codes, out) in codes
            .chunks_exact(S::LANES)
            .zip(out.chunks_exact_mut(S::LANES))
        {
            s.store(s.mul_add(s.load_i8(codes), scale, min), out);
        }
    }
}
