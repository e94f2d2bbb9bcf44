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

/// Bytes of a cache line.
const LINE_BYTES: usize = 64;

/// How far ahead of a single row memory is prefetched: what arrives within the latency of memory, and stays in the L1
/// cache. With 4 KiB, one thread reads up to 20 % less per second.
const AHEAD_BYTES: usize = 8 * 1024;

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
/// stretch of activations, which is padded with zeros to whole vectors. Meanwhile as many bytes as `rows` have are
/// prefetched from `ahead` on, line by line in memory order.
#[inline(always)]
pub(crate) fn dot<S: Simd, P: Plain, const R: usize, const N: usize>(
    s: S,
    rows: [&[P]; R],
    acts: [&[f32]; N],
    ahead: Option<*const u8>,
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
    let step = R * S::LANES * size_of::<P>();
    for k in 0..whole {
        if let Some(ahead) = ahead {
            for line in (0..step).step_by(LINE_BYTES) {
                s.prefetch(ahead.wrapping_add(k * step + line));
            }
        }
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

/// Returns the sums of one row and one token, added in the order of [`dot`], and prefetches the memory after the row.
///
/// Memory is read fastest in its own order. The chain of additions of a single row keeps up if vectors are long; those of
/// short rows overlap. EPYC (Zen 5), rows of 2048 values in F16, one thread: 36 GB/s, 21 with four rows at a time.
#[inline(always)]
pub(crate) fn dot_row<S: Simd, P: Plain>(s: S, row: &[P], acts: &[f32]) -> S::F32 {
    let (whole, rest) = S::spans(row);
    let x = &S::spans(acts).0[..whole.len()];
    let per_line = (LINE_BYTES / (S::LANES * size_of::<P>())).max(1);
    let (w_lines, x_lines) = (whole.chunks_exact(per_line), x.chunks_exact(per_line));
    let last = w_lines.remainder().iter().zip(x_lines.remainder());
    let mut sum = s.splat(0.0);
    for (w, x) in w_lines.zip(x_lines) {
        let line: *const u8 = w.as_ptr().cast();
        s.prefetch_once(line.wrapping_add(AHEAD_BYTES));
        for j in 0..per_line {
            sum = s.mul_add(P::load(s, &w[j]), s.load_span(&x[j]), sum);
        }
    }
    for (w, x) in last {
        sum = s.mul_add(P::load(s, w), s.load_span(x), sum);
    }
    if !rest.is_empty() {
        let x = s.load(&acts[whole.len() * S::LANES..]);
        sum = s.mul_add(load_last(s, row), x, sum);
    }
    sum
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
