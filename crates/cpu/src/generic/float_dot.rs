//! Dot products of weight rows in F32, F16 and BF16 with f32 activations.
//!
//! Each row and token has one vector of sums, which accumulates `LANES` products at a time in order; its lanes are
//! added at the end. This order is the same for every tile of rows and tokens, so the bits of a result do not depend on
//! what is computed together. Rows that are not whole vectors are padded with zeros.
//!
//! BF16 rows are widened, too: `vdpbf16ps` reaches half the rate of the multiply-add (Emerald Rapids VM, 2026-11: 89
//! GFLOP/s against 184), and it would round the activations.

use rocmforge_gguf::quant::plain::{BF16, F16, F32};

use super::bytes::SimdBytes;
use super::simd::Simd;

/// A format without blocks.
pub(crate) trait Plain: Copy + 'static {
    const ZERO: Self;

    /// Loads a vector of `x`, widened.
    fn load<S: SimdBytes>(s: S, x: &S::Span<Self>) -> S::F32;
}

impl Plain for f32 {
    const ZERO: f32 = 0.0;

    #[inline(always)]
    fn load<S: SimdBytes>(s: S, x: &S::Span<f32>) -> S::F32 {
        s.load_span(x)
    }
}

impl Plain for F32 {
    const ZERO: F32 = F32([0; 4]);

    #[inline(always)]
    fn load<S: SimdBytes>(s: S, x: &S::Span<F32>) -> S::F32 {
        s.load_f32_span(x)
    }
}

impl Plain for F16 {
    const ZERO: F16 = F16([0; 2]);

    #[inline(always)]
    fn load<S: SimdBytes>(s: S, x: &S::Span<F16>) -> S::F32 {
        s.load_f16_span(x)
    }
}

impl Plain for BF16 {
    const ZERO: BF16 = BF16([0; 2]);

    #[inline(always)]
    fn load<S: SimdBytes>(s: S, x: &S::Span<BF16>) -> S::F32 {
        s.load_bf16_span(x)
    }
}

/// Accumulates into `sums` the products of `R` rows and `N` tokens, over `rows[r]`, all of one length, and the same
/// stretch of activations, which is padded with zeros to whole vectors.
#[inline(always)]
pub(crate) fn dot<S: Simd, P: Plain, const R: usize, const N: usize>(
    s: S,
    rows: [&[P]; R],
    acts: [&[f32]; N],
    sums: &mut [[S::F32; N]; R],
) {
    // A local copy stays in registers; through the reference it would be stored at every step.
    let mut tile = *sums;
    let whole = rows[0].len() / S::LANES;
    // All of one length by construction, so that accesses in the loop need no bounds checks.
    let mut w = [S::spans(rows[0]).0; R];
    for r in 0..R {
        w[r] = &S::spans(rows[r]).0[..whole];
    }
    let mut x = [S::spans(acts[0]).0; N];
    for n in 0..N {
        x[n] = &S::spans(acts[n]).0[..whole];
    }
    for k in 0..whole {
        let mut x_k = [s.splat(0.0); N];
        for n in 0..N {
            x_k[n] = s.load_span(&x[n][k]);
        }
        for r in 0..R {
            let w_k = P::load(s, &w[r][k]);
            for n in 0..N {
                tile[r][n] = s.mul_add(w_k, x_k[n], tile[r][n]);
            }
        }
    }
    if whole * S::LANES < rows[0].len() {
        for r in 0..R {
            let w_k = load_last(s, rows[r]);
            for n in 0..N {
                let x_k = s.load(&acts[n][whole * S::LANES..]);
                tile[r][n] = s.mul_add(w_k, x_k, tile[r][n]);
            }
        }
    }
    *sums = tile;
}

/// Widens a row to f32; `out` is padded with zeros to whole vectors.
#[inline(always)]
pub(crate) fn widen<S: Simd, P: Plain>(s: S, row: &[P], out: &mut [f32]) {
    let (whole, _) = S::spans(row);
    for (x, out) in whole.iter().zip(out.chunks_exact_mut(S::LANES)) {
        s.store(P::load(s, x), out);
    }
    if whole.len() * S::LANES < row.len() {
        s.store(load_last(s, row), &mut out[whole.len() * S::LANES..]);
    }
}

/// Loads the values after the last whole vector, padded with zeros.
#[inline(always)]
fn load_last<S: Simd, P: Plain>(s: S, row: &[P]) -> S::F32 {
    let (_, rest) = S::spans(row);
    let mut last = [P::ZERO; 16];
    last[..rest.len()].copy_from_slice(rest);
    P::load(s, &S::spans(&last).0[0])
}
