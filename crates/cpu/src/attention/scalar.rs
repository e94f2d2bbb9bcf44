//! Attention by its definition, in f64: all scores, softmax, weighted sum. The reference for the vector kernel.

use crate::generic::attention::QueryTile;
use crate::kv_slice::KvSlice;
use crate::pool::Tile;

/// Computes all rows of `tile` into `out`.
pub(super) fn attend(tile: &QueryTile<'_>, out: &mut Tile<'_>) {
    let (group, k_dim, v_dim) = (tile.group(), tile.shape.k_dim, tile.shape.v_dim);
    for row in 0..tile.n_rows {
        let out = out.row(tile.first_row + row);
        for (head, out) in out.chunks_exact_mut(v_dim).enumerate() {
            let query = tile.query(row * group + head);
            let mut weights: Vec<f64> = tile
                .visible(row)
                .map(|pos| {
                    let key = tile.slot(pos) * k_dim;
                    let dot: f64 = (0..k_dim)
                        .map(|d| f64::from(query[d]) * element(tile.inputs.k, key + d))
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
                let value = tile.slot(pos) * width;
                for (d, x) in values.iter_mut().enumerate() {
                    *x += weight * element(from, value + d);
                }
            }
            for (out, x) in out.iter_mut().zip(values) {
                *out = (x / sum) as f32;
            }
        }
    }
}

fn element(cache: KvSlice<'_>, i: usize) -> f64 {
    match cache {
        KvSlice::F16(x) => half::f16::from_bits(x[i]).to_f64(),
        KvSlice::F32(x) => f64::from(x[i]),
        KvSlice::Q8_0(x) => f64::from(x[i / 32].d.to_f32()) * f64::from(x[i / 32].qs[i % 32]),
        KvSlice::Heads { code, heads, dim } => {
            let (scale, codes) = code.load(&heads[i / dim * code.head_bytes(dim)..]);
            f64::from(scale) * f64::from(code.number(codes[i % dim]))
        }
    }
}
