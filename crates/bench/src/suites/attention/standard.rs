//! Attention by definition, in f32: all scores, their softmax, the weighted sum of the values.

use super::Shape;

/// Computes `out = softmax(q k^T * scale) v` per head; `q`, `k`, `v`, `out` are `[n_heads, n, dim]`, `scores` is `[n,
/// n]` scratch.
pub(super) fn attend(
    shape: &Shape,
    q: &[f32],
    k: &[f32],
    v: &[f32],
    scores: &mut [f32],
    out: &mut [f32],
) {
    let Shape { n, dim, .. } = *shape;
    let head_len = n * dim;
    let heads = q.chunks_exact(head_len).zip(k.chunks_exact(head_len));
    let heads = heads.zip(v.chunks_exact(head_len));
    for (((q, k), v), out) in heads.zip(out.chunks_exact_mut(head_len)) {
        for (q, scores) in q.chunks_exact(dim).zip(scores.chunks_exact_mut(n)) {
            for (k, score) in k.chunks_exact(dim).zip(scores) {
                let dot: f32 = q.iter().zip(k).map(|(q, k)| q * k).sum();
                *score = dot * shape.scale();
            }
        }
        for scores in scores.chunks_exact_mut(n) {
            let max = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            scores
                .iter_mut()
                .for_each(|score| *score = (*score - max).exp());
            let sum: f32 = scores.iter().sum();
            scores.iter_mut().for_each(|score| *score /= sum);
        }
        out.fill(0.0);
        for (scores, out) in scores.chunks_exact(n).zip(out.chunks_exact_mut(dim)) {
            for (weight, v) in scores.iter().zip(v.chunks_exact(dim)) {
                for (out, v) in out.iter_mut().zip(v) {
                    *out += weight * v;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By hand: scores 0 and ln 3 (times sqrt 2 for the scale) give weights 1/4 and 3/4.
    #[test]
    fn two_positions() {
        let shape = Shape {
            n: 2,
            n_heads: 1,
            dim: 2,
        };
        let ln_3 = 3f32.ln() * 2f32.sqrt();
        let (q, k, v) = (
            [1.0, 0.0, 0.0, 1.0],
            [0.0, 5.0, ln_3, 5.0],
            [4.0, 0.0, 8.0, -4.0],
        );
        let (mut scores, mut out) = ([0.0; 4], [0.0; 4]);
        attend(&shape, &q, &k, &v, &mut scores, &mut out);
        // The second query has equal scores for both keys.
        for (got, expected) in out.iter().zip([7.0, -3.0, 6.0, -2.0]) {
            assert!((got - expected).abs() < 1e-5, "{out:?}");
        }
    }
}
