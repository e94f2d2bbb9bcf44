//! Attention by its definition, in f64: all scores, softmax, weighted sum. The reference for the vector kernel.

use rocmforge_gguf::quant::Block;

use crate::generic::attention::QueryTile;
use crate::hadamard::hadamard;
use crate::kv_slice::KvSlice;
use crate::pool::Tile;

/// Computes all rows of `tile` into `out`.
pub(super) fn attend(tile: &QueryTile<'_>, out: &mut Tile<'_>) {
    let (group, k_dim, v_dim) = (tile.group(), tile.shape.k_dim, tile.shape.v_dim);
    // A key or value.
    let mut stored = vec![0.0; k_dim.max(v_dim)];
    for row in 0..tile.n_rows {
        let out = out.row(tile.first_row + row);
        for (head, out) in out.chunks_exact_mut(v_dim).enumerate() {
            let query = tile.query(row * group + head);
            let mut query: Vec<f64> = query.iter().map(|&x| f64::from(x)).collect();
            hadamard(&mut query, tile.shape.k_hadamard);
            let mut weights: Vec<f64> = tile
                .visible(row)
                .map(|pos| {
                    read(tile.inputs.k, tile.slot(pos), &mut stored[..k_dim]);
                    let dot: f64 = { query.iter().zip(&stored) }
                        .map(|(&q, &k)| q * f64::from(k))
                        .sum();
                    let score = dot * f64::from(tile.shape.factor(tile.first_pos + row));
                    let score = tile.shape.soft_cap.map_or(score, |cap| {
                        let cap = f64::from(cap);
                        cap * (score / cap).tanh()
                    });
                    let distance = pos.abs_diff(tile.first_pos + row) as f64;
                    score - tile.slope(head).map_or(0.0, f64::from) * distance
                })
                .collect();
            // A sink is the score of a position without a value.
            weights.extend(tile.sink(head).map(f64::from));
            let max = weights.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            weights.iter_mut().for_each(|w| *w = (*w - max).exp());
            let sum: f64 = weights.iter().sum();
            // Values of a row of the cache that holds them.
            let (from, width) = match tile.inputs.v {
                Some(v) => (v, v_dim),
                None => (tile.inputs.k, k_dim),
            };
            let mut values = vec![0.0; v_dim];
            for (pos, weight) in tile.visible(row).zip(weights) {
                read(from, tile.slot(pos), &mut stored[..width]);
                for (x, &value) in values.iter_mut().zip(&stored) {
                    *x += weight * f64::from(value);
                }
            }
            hadamard(&mut values, tile.shape.v_hadamard);
            for (out, x) in out.iter_mut().zip(values) {
                *out = (x / sum) as f32;
            }
        }
    }
}

/// Reads the head in row `slot` of a cache, which f32 holds exactly.
fn read(cache: KvSlice<'_>, slot: usize, out: &mut [f32]) {
    let first = slot * out.len();
    match cache.get(first..first + out.len()) {
        KvSlice::F16(x) => {
            for (out, &x) in out.iter_mut().zip(x) {
                *out = half::f16::from_bits(x).to_f32();
            }
        }
        KvSlice::F32(x) => out.copy_from_slice(x),
        KvSlice::Q8_0(blocks) => {
            for (out, block) in out.chunks_exact_mut(32).zip(blocks) {
                block.dequantize(out);
            }
        }
        KvSlice::Heads { code, heads, .. } => code.load(heads, out),
    }
}
