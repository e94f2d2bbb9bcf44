//! Searches for a scale: x = scale * code. Candidates map the extreme value of a group to the extreme code and near it.
//! Each is refined by least squares, as in ggml's `make_qx_quants`, and the best by alternating rounding and least
//! squares while it improves.

use super::codes::{Codes, bounds, sums};
use super::lanes::F32x4;
use super::{Half, Search, Unit};

/// A scale with its error.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scale {
    pub(super) scale: f32,
    /// weighted squared error
    pub(super) error: f32,
    /// Σ w code²: the cost of a squared change of the scale
    pub(super) stiffness: f32,
}

/// Candidates: by how many codes the extreme value exceeds the extreme code.
const STEPS: [f32; 10] = [-0.8, -0.6, -0.4, -0.2, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25];
const FEW_STEPS: [f32; 2] = [-0.6, 0.6];

const REFINEMENTS: usize = 3;

/// Numerical error of the sums as a share of the energy. Among candidates that differ by less the first wins, so that
/// equal groups get equal scales.
const NOISE: f32 = 1e-8;

impl Scale {
    /// The scale of a group of zeros.
    const ZERO: Scale = Scale {
        scale: 0.0,
        error: 0.0,
        stiffness: 0.0,
    };

    fn is_better_than(&self, other: &Scale) -> bool {
        let energy = other.stiffness * other.scale * other.scale;
        self.error < other.error - NOISE * energy
    }
}

/// Returns the scale with the least error found.
pub(super) fn fit_scale<C: Codes, const N: usize>(
    codes: C,
    x: &[f32; N],
    w: &[f32; N],
    search: Search,
) -> Scale {
    let extreme = extreme(x);
    if search == Search::Brief {
        return fit_briefly(codes, x, w, extreme);
    }
    let mut best = fit_side(codes, x, w, C::EXTREME / extreme);
    if let Some(opposite) = C::OPPOSITE {
        let other = fit_side(codes, x, w, opposite / extreme);
        if other.is_better_than(&best) {
            best = other;
        }
    }
    best
}

/// Returns the value of largest magnitude; of a negative and a positive one the negative.
fn extreme<const N: usize>(x: &[f32; N]) -> f32 {
    let (lo, hi) = bounds(x);
    if -lo >= hi { lo } else { hi }
}

/// Like [`fit_side`] for the extreme code, with few candidates and no refinement.
fn fit_briefly<C: Codes, const N: usize>(
    codes: C,
    x: &[f32; N],
    w: &[f32; N],
    extreme: f32,
) -> Scale {
    let inverse = C::EXTREME / extreme;
    if !inverse.is_finite() {
        return Scale::ZERO;
    }
    let first = least_squares(codes, x, w, inverse);
    FEW_STEPS.into_iter().fold(first, |best, step| {
        let trial = least_squares(codes, x, w, inverse * (1.0 + step * C::SPACING));
        if trial.is_better_than(&best) {
            trial
        } else {
            best
        }
    })
}

/// Finds the best scale near `1 / inverse`, which maps the extreme value to some code.
fn fit_side<C: Codes, const N: usize>(codes: C, x: &[f32; N], w: &[f32; N], inverse: f32) -> Scale {
    if !inverse.is_finite() {
        return Scale::ZERO;
    }
    let mut best = least_squares(codes, x, w, inverse);
    for step in STEPS {
        let trial = least_squares(codes, x, w, inverse * (1.0 + step * C::SPACING));
        if trial.is_better_than(&best) {
            best = trial;
        }
    }
    for _ in 0..REFINEMENTS {
        if best.scale == 0.0 {
            break;
        }
        let trial = least_squares(codes, x, w, 1.0 / best.scale);
        if !trial.is_better_than(&best) {
            break;
        }
        best = trial;
    }
    best
}

/// Rounds `x * inverse` to codes and fits a scale to them.
fn least_squares<C: Codes, const N: usize>(
    codes: C,
    x: &[f32; N],
    w: &[f32; N],
    inverse: f32,
) -> Scale {
    // Sums of rounding errors rather than of values, so that the error is not a small difference of large numbers.
    let slope = F32x4::splat(inverse);
    let [rr, rl, ll] = sums(x, w, |x, w| {
        let u = x * slope;
        let l = codes.nearest(u);
        let r = u - l;
        let wl = w * l;
        [w * r * r, wl * r, wl * l]
    });
    if ll == 0.0 {
        return Scale {
            scale: 0.0,
            error: rr / (inverse * inverse),
            stiffness: 0.0,
        };
    }
    let shift = rl / ll;
    Scale {
        scale: (1.0 + shift) / inverse,
        error: (rr - rl * shift) / (inverse * inverse),
        stiffness: ll,
    }
}

/// Returns the error with exactly this scale.
pub(super) fn error_of<C: Codes, const N: usize>(
    codes: C,
    x: &[f32; N],
    w: &[f32; N],
    scale: f32,
) -> f32 {
    let [inverse, scale] = [inverse(scale), scale].map(F32x4::splat);
    let [error] = sums(x, w, |x, w| {
        let r = x - scale * codes.nearest(x * inverse);
        [w * r * r]
    });
    error
}

/// Fits an f16 scale. A thorough search takes the one of least error among the fits of both sides and the scale that
/// maps the extreme value to the extreme code.
pub(super) fn fit_half<C: Codes, const N: usize>(
    codes: C,
    x: &[f32; N],
    w: &[f32; N],
    unit: Unit,
    search: Search,
) -> Half {
    let extreme = extreme(x);
    if search == Search::Brief {
        let half = unit.half(fit_briefly(codes, x, w, extreme).scale);
        if !half.is_subnormal() {
            return half;
        }
    }
    let mut best = (f32::MAX, unit.half(0.0));
    let mut consider = |scale: f32| {
        for half in unit.halves(scale) {
            let error = error_of(codes, x, w, half.value);
            if error < best.0 {
                best = (error, half);
            }
        }
    };
    consider(extreme / C::EXTREME);
    consider(fit_side(codes, x, w, C::EXTREME / extreme).scale);
    if let Some(opposite) = C::OPPOSITE {
        consider(fit_side(codes, x, w, opposite / extreme).scale);
    }
    best.1
}

/// 1 / scale, or 0 for 0.
#[inline(always)]
pub(super) fn inverse(scale: f32) -> f32 {
    if scale == 0.0 { 0.0 } else { 1.0 / scale }
}
