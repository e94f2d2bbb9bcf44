//! Reductions over a row of logits, for the sampler.

use crate::arch::Kernel;
use crate::generic::lanes::exp_nonpositive;
use crate::generic::simd::Simd;
use crate::isa::Isa;

/// Computes ln(sum(e^x)), which is subtracted from a logit to get its log-probability.
///
/// Negative infinity for an empty row or if all `x` are negative infinity; NaN if any `x` is NaN.
pub fn log_sum_exp(isa: Isa, x: &[f32]) -> f32 {
    let max = largest(isa, x);
    if max.is_infinite() {
        return if x.iter().any(|x| x.is_nan()) {
            f32::NAN
        } else {
            max
        };
    }
    let sum: f64 = match isa.vector() {
        None => x
            .iter()
            .map(|&x| (f64::from(x) - f64::from(max)).exp())
            .sum(),
        Some(isa) => isa.run(SumExp { x, max }),
    };
    (f64::from(max) + sum.ln()) as f32
}

/// sum(e^(x - max)).
struct SumExp<'a> {
    x: &'a [f32],
    max: f32,
}

impl Kernel for SumExp<'_> {
    type Output = f64;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> f64 {
        let max = s.splat(self.max);
        let (xs, tail) = S::chunks(self.x);
        let mut sum = 0.0;
        // Short runs are summed in f32 and their sums in f64, because a vocabulary is long.
        for xs in xs.chunks(64) {
            let mut acc = s.splat(0.0);
            for x in xs {
                acc = s.add(acc, exp_nonpositive(s, s.sub(s.load_chunk(x), max)));
            }
            sum += f64::from(s.sum(acc));
        }
        let tail = s.load_part(tail, f32::NEG_INFINITY);
        sum + f64::from(s.sum(exp_nonpositive(s, s.sub(tail, max))))
    }
}

/// Returns the index of the largest element, the first of equals. NaN counts as smaller than anything. `None` if there
/// is no element other than NaN.
pub fn argmax(isa: Isa, x: &[f32]) -> Option<usize> {
    let max = largest(isa, x);
    x.iter().position(|&x| x == max)
}

/// Returns the largest element that is not NaN, or negative infinity.
fn largest(isa: Isa, x: &[f32]) -> f32 {
    match isa.vector() {
        None => x.iter().copied().fold(f32::NEG_INFINITY, f32::max),
        Some(isa) => isa.run(Max { x }),
    }
}

struct Max<'a> {
    x: &'a [f32],
}

impl Kernel for Max<'_> {
    type Output = f32;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> f32 {
        let mut acc = [s.splat(f32::NEG_INFINITY); 4];
        let (xs, tail) = S::chunks(self.x);
        let (fours, rest) = xs.as_chunks::<4>();
        for four in fours {
            for j in 0..4 {
                // With the running maximum second, it wins over NaN.
                acc[j] = s.max(s.load_chunk(&four[j]), acc[j]);
            }
        }
        for x in rest {
            acc[0] = s.max(s.load_chunk(x), acc[0]);
        }
        acc[1] = s.max(s.load_part(tail, f32::NEG_INFINITY), acc[1]);
        s.max_lane(s.max(s.max(acc[0], acc[1]), s.max(acc[2], acc[3])))
    }
}
