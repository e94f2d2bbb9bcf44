//! Rotary position embedding (Su et al. 2021): rotates pairs of a head's values by angles that grow with the position.
//! The cosines and sines of the angles are computed elsewhere, in f64.

use rocmforge_plan::RopeStyle;

use super::rows_per_task;
use crate::arch::Kernel;
use crate::generic::simd::Simd;
use crate::isa::Isa;
use crate::pool::Pool;

/// The rotations of a batch of tokens.
#[derive(Clone, Copy, Debug)]
pub struct Rotation<'a> {
    /// Which values make a pair.
    pub style: RopeStyle,
    /// Values per head.
    pub head_dim: usize,
    /// Values per head that rotate: even.
    pub n_rot: usize,
    /// The first of them; `start + n_rot` is at most `head_dim`.
    pub start: usize,
    /// `[n_tokens, n_rot / 2, 2]`: cosine and sine of each pair at the token's position.
    pub cos_sin: &'a [f32],
}

/// Rotates every head of `x` `[n_tokens, n_heads * head_dim]` in place.
///
/// # Panics
/// If `n_rot` is odd or exceeds `head_dim`, or lengths do not match.
pub fn rope(isa: Isa, pool: &Pool, n_tokens: usize, rotation: &Rotation<'_>, x: &mut [f32]) {
    let &Rotation {
        style,
        head_dim,
        n_rot,
        start,
        cos_sin,
    } = rotation;
    assert!(
        n_rot.is_multiple_of(2) && start + n_rot <= head_dim,
        "{n_rot} of {head_dim} values rotate, from {start} on"
    );
    assert_eq!(
        cos_sin.len(),
        n_tokens * n_rot,
        "a cosine and a sine for each pair of each token"
    );
    if n_rot == 0 || x.is_empty() {
        return;
    }
    assert!(
        n_tokens > 0 && x.len().is_multiple_of(n_tokens * head_dim),
        "x holds whole heads"
    );
    let heads = [head_dim, start];
    let width = x.len() / n_tokens;
    pool.for_each_rows(
        x,
        width,
        rows_per_task(pool, n_tokens, width),
        &|first, x| {
            let rows = x
                .chunks_exact_mut(width)
                .zip(cos_sin[first * n_rot..].chunks_exact(n_rot));
            for (x, cos_sin) in rows {
                match (isa.vector(), style) {
                    (None, _) => scalar(x, heads, style, cos_sin),
                    (Some(isa), RopeStyle::Norm) => isa.run(Norm { x, heads, cos_sin }),
                    (Some(isa), RopeStyle::Neox) => isa.run(Neox { x, heads, cos_sin }),
                }
            }
        },
    );
}

/// Returns the heads of `x` from their first rotated value on.
#[inline(always)]
fn rotated_parts(x: &mut [f32], [head_dim, start]: [usize; 2]) -> impl Iterator<Item = &mut [f32]> {
    x.chunks_exact_mut(head_dim)
        .map(move |head| &mut head[start..])
}

fn scalar(x: &mut [f32], [head_dim, start]: [usize; 2], style: RopeStyle, cos_sin: &[f32]) {
    let n_pairs = cos_sin.len() / 2;
    for head in rotated_parts(x, [head_dim, start]) {
        for i in 0..n_pairs {
            let (cos, sin) = (cos_sin[2 * i], cos_sin[2 * i + 1]);
            let (first, second) = match style {
                RopeStyle::Norm => (2 * i, 2 * i + 1),
                RopeStyle::Neox => (i, i + n_pairs),
            };
            let (a, b) = (head[first], head[second]);
            head[first] = a * cos - b * sin;
            head[second] = a * sin + b * cos;
        }
    }
}

/// Rotates the heads of one token. The cosines and sines of a vector of pairs are loaded once for all heads.
struct Norm<'a> {
    x: &'a mut [f32],
    /// Values per head, and the first that rotates.
    heads: [usize; 2],
    cos_sin: &'a [f32],
}

impl Kernel for Norm<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (cos_sins, cos_sin_tail) = S::chunks(self.cos_sin);
        for (i, cos_sin) in cos_sins.iter().enumerate() {
            let cos_sin = s.load_chunk(cos_sin);
            let (cos, sin) = (s.dup_even(cos_sin), s.dup_odd(cos_sin));
            for head in rotated_parts(self.x, self.heads) {
                let x = &mut S::chunks_mut(head).0[i];
                s.store_chunk(rotate_pairs(s, s.load_chunk(x), cos, sin), x);
            }
        }
        if !cos_sin_tail.is_empty() {
            let tail = self.cos_sin.len() - cos_sin_tail.len()..self.cos_sin.len();
            let cos_sin = s.load_part(cos_sin_tail, 0.0);
            let (cos, sin) = (s.dup_even(cos_sin), s.dup_odd(cos_sin));
            for head in rotated_parts(self.x, self.heads) {
                let x = &mut head[tail.clone()];
                s.store_part(rotate_pairs(s, s.load_part(x, 0.0), cos, sin), x);
            }
        }
    }
}

#[inline(always)]
fn rotate_pairs<S: Simd>(s: S, x: S::F32, cos: S::F32, sin: S::F32) -> S::F32 {
    s.mul_sub_add(x, cos, s.mul(s.swap_pairs(x), sin))
}

/// Like [`Norm`], for pairs of halves.
struct Neox<'a> {
    x: &'a mut [f32],
    /// Values per head, and the first that rotates.
    heads: [usize; 2],
    cos_sin: &'a [f32],
}

impl Kernel for Neox<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let n_pairs = self.cos_sin.len() / 2;
        let whole = n_pairs / S::LANES * S::LANES;
        for i in (0..whole).step_by(S::LANES) {
            let (a, b) = self.cos_sin[2 * i..2 * (i + S::LANES)].split_at(S::LANES);
            let (cos, sin) = s.unzip(s.load(a), s.load(b));
            for head in rotated_parts(self.x, self.heads) {
                let (a, b) = head.split_at_mut(n_pairs);
                let (a, b) = (&mut a[i..i + S::LANES], &mut b[i..i + S::LANES]);
                let (x, y) = (s.load(a), s.load(b));
                s.store(s.sub(s.mul(x, cos), s.mul(y, sin)), a);
                s.store(s.mul_add(x, sin, s.mul(y, cos)), b);
            }
        }
        for i in whole..n_pairs {
            let (cos, sin) = (self.cos_sin[2 * i], self.cos_sin[2 * i + 1]);
            for head in rotated_parts(self.x, self.heads) {
                let (x, y) = (head[i], head[i + n_pairs]);
                head[i] = x * cos - y * sin;
                head[i + n_pairs] = x * sin + y * cos;
            }
        }
    }
}
