//! Dot products of weight rows in F32, F16 and BF16 with f32 activations.
//!
//! A row and a token have one vector of sums, which takes up `LANES` products at a time in order;
//! its places are added at the end. That order is the same for every tile of rows and tokens, so
//! the bits of a result do not depend on what is computed together. A row that is not whole
//! vectors is filled up with zeros.

use rocmforge_gguf::quant::plain::{BF16, F16, F32};
use zerocopy::FromZeros;

use super::bytes::SimdBytes;
use super::simd::Simd;

/// A format of one value a block.
pub(crate) trait Plain: FromZeros + Copy + 'static {
    /// The first `LANES` of `x`, widened.
    fn load<S: SimdBytes>(s: S, x: &[Self]) -> S::F32;
}

impl Plain for f32 {
    #[inline(always)]
    fn load<S: SimdBytes>(s: S, x: &[f32]) -> S::F32 {
        s.load(x)
    }
}

impl Plain for F32 {
    #[inline(always)]
    fn load<S: SimdBytes>(s: S, x: &[F32]) -> S::F32 {
        s.load_plain_f32(x)
    }
}

impl Plain for F16 {
    #[inline(always)]
    fn load<S: SimdBytes>(s: S, x: &[F16]) -> S::F32 {
        s.load_plain_f16(x)
    }
}

impl Plain for BF16 {
    #[inline(always)]
    fn load<S: SimdBytes>(s: S, x: &[BF16]) -> S::F32 {
        s.load_plain_bf16(x)
    }
}

/// Goes on with `sums` of `R` rows and `N` tokens over `rows[r]`, all of one length, and the same
/// stretch of activations. `acts` are filled up with zeros to whole vectors.
#[inline(always)]
pub(crate) fn dot<S: Simd, P: Plain, const R: usize, const N: usize>(
    s: S,
    rows: [&[P]; R],
    acts: [&[f32]; N],
    sums: &mut [[S::F32; N]; R],
) {
    let len = rows[0].len();
    let whole = len - len % S::LANES;
    let mut k = 0;
    while k < whole {
        let mut x = [s.splat(0.0); N];
        for n in 0..N {
            x[n] = s.load(&acts[n][k..k + S::LANES]);
        }
        for r in 0..R {
            let w = P::load(s, &rows[r][k..k + S::LANES]);
            for n in 0..N {
                sums[r][n] = s.mul_add(w, x[n], sums[r][n]);
            }
        }
        k += S::LANES;
    }
    if whole < len {
        for r in 0..R {
            let mut last = [P::new_zeroed(); 16];
            last[..len - whole].copy_from_slice(&rows[r][whole..]);
            let w = P::load(s, &last);
            for n in 0..N {
                sums[r][n] = s.mul_add(w, s.load(&acts[n][whole..]), sums[r][n]);
            }
        }
    }
}

/// Widens a row to f32; `out` is `row` filled up to whole vectors.
#[inline(always)]
pub(crate) fn widen<S: Simd, P: Plain>(s: S, row: &[P], out: &mut [f32]) {
    let whole = row.len() - row.len() % S::LANES;
    let mut k = 0;
    while k < whole {
        s.store(P::load(s, &row[k..k + S::LANES]), &mut out[k..k + S::LANES]);
        k += S::LANES;
    }
    if whole < row.len() {
        let mut last = [P::new_zeroed(); 16];
        last[..row.len() - whole].copy_from_slice(&row[whole..]);
        s.store(P::load(s, &last), &mut out[whole..]);
    }
}
