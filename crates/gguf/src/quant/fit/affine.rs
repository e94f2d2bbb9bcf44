//! Searches for a scale and a minimum: x = scale * code + min with codes 0..=hi. Candidates vary how much of the range
//! the codes cover and where it is clipped. Each is refined by least squares in both, as in ggml's `make_qkx2_quants`,
//! and the best by alternating rounding and least squares.

use super::codes::{Codes, bounds, sums};
use super::lanes::F32x4;
use super::scale::inverse;
use super::{Half, Search, Unit};

/// A scale and a minimum with their error.
#[derive(Clone, Copy, Debug)]
pub(super) struct Affine {
    pub(super) scale: f32,
    pub(super) min: f32,
    /// weighted squared error
    pub(super) error: f32,
    /// Σ w code²: the cost of a squared change of the scale
    pub(super) stiffness: f32,
}

/// The minimums that a format can store.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Minimum {
    Any,
    /// Zero or below.
    NotPositive,
}

/// Candidates: by how many codes the range is wider than the codes, and the share of that clipped at the lower end.
const WIDER: [f32; 7] = [-0.6, -0.3, 0.3, 0.6, 0.9, 1.2, 1.6];
const CUTS: [f32; 3] = [0.0, 0.5, 1.0];
const FEW: [(f32, f32); 2] = [(-0.6, 0.5), (0.6, 0.5)];
const REFINEMENTS: usize = 3;

/// Tolerance as in the search for a scale, but the error is a difference of sums here.
const NOISE: f32 = 1e-6;

/// A group with its values shifted and scaled to 0..=1.
struct Group<'a, C, const N: usize> {
    codes: C,
    u: [f32; N],
    w: &'a [f32; N],
    sum_w: f32,
    sum_u: f32,
    sum_uu: f32,
    /// The largest intercept that the format can store.
    most: f32,
}

/// Returns the scale and minimum with the least error found.
pub(super) fn fit_affine<C: Codes, const N: usize>(
    codes: C,
    x: &[f32; N],
    w: &[f32; N],
    minimum: Minimum,
    search: Search,
) -> Affine {
    let (mut low, high) = bounds(x);
    if minimum == Minimum::NotPositive && low > 0.0 {
        low = 0.0;
    }
    let range = high - low;
    if range < f32::MIN_POSITIVE {
        return Affine {
            scale: 0.0,
            min: low,
            error: 0.0,
            stiffness: 0.0,
        };
    }
    let inverse = 1.0 / range;
    let u = x.map(|x| (x - low) * inverse);
    let [sum_w, sum_u, sum_uu] = sums(&u, w, |u, w| [w, w * u, w * u * u]);
    let most = match minimum {
        Minimum::Any => f32::MAX,
        Minimum::NotPositive => -low * inverse,
    };
    let group = Group {
        codes,
        u,
        w,
        sum_w,
        sum_u,
        sum_uu,
        most,
    };
    let best = match search {
        Search::Brief => group.best_of(FEW),
        Search::Thorough => {
            let all = WIDER
                .into_iter()
                .flat_map(|wider| CUTS.map(|cut| (wider, cut)));
            group.refine(group.best_of(all))
        }
    };
    Affine {
        scale: best.scale * range,
        min: low + best.min * range,
        error: best.error * range * range,
        stiffness: best.stiffness,
    }
}

impl<C: Codes, const N: usize> Group<'_, C, N> {
    /// Returns the best of `candidates` and the fit that covers exactly the range.
    fn best_of(&self, candidates: impl IntoIterator<Item = (f32, f32)>) -> Affine {
        let noise = NOISE * self.sum_uu;
        let first = self.least_squares(C::EXTREME, 0.0);
        candidates.into_iter().fold(first, |best, (wider, cut)| {
            let trial = self.least_squares(C::EXTREME + wider, -wider * cut);
            if trial.error < best.error - noise {
                trial
            } else {
                best
            }
        })
    }

    /// Alternates rounding and least squares while the error falls.
    fn refine(&self, mut best: Affine) -> Affine {
        for _ in 0..REFINEMENTS {
            if best.scale == 0.0 {
                break;
            }
            let trial = self.least_squares(1.0 / best.scale, -best.min / best.scale);
            if trial.error >= best.error - NOISE * self.sum_uu {
                break;
            }
            best = trial;
        }
        best
    }

    /// Rounds `u * slope + start` to codes and fits a line to them.
    fn least_squares(&self, slope: f32, start: f32) -> Affine {
        let (slope, start) = (F32x4::splat(slope), F32x4::splat(start));
        let [l, ll, ul] = sums(&self.u, self.w, |u, w| {
            let l = self.codes.nearest(u * slope + start);
            let wl = w * l;
            [wl, wl * l, wl * u]
        });
        let (sw, su) = (self.sum_w, self.sum_u);
        let d = sw * ll - l * l;
        let (mut scale, mut min) = if d > 0.0 {
            ((sw * ul - su * l) / d, (ll * su - l * ul) / d)
        } else {
            (0.0, su / sw)
        };
        if min > self.most {
            min = self.most;
            scale = if ll > 0.0 { (ul - min * l) / ll } else { 0.0 };
        }
        let error = self.sum_uu - 2.0 * (scale * ul + min * su)
            + scale * (scale * ll + 2.0 * min * l)
            + min * min * sw;
        Affine {
            scale,
            min,
            error,
            stiffness: ll,
        }
    }
}

/// Returns the error with exactly this scale and minimum, and the best minimum for the same codes.
pub(super) fn error_of<C: Codes, const N: usize>(
    codes: C,
    x: &[f32; N],
    w: &[f32; N],
    scale: f32,
    min: f32,
) -> (f32, f32) {
    let [inverse, scale, min] = [inverse(scale), scale, min].map(F32x4::splat);
    let [error, rest, weight] = sums(x, w, |x, w| {
        let rest = x - scale * codes.nearest((x - min) * inverse);
        let r = rest - min;
        [w * r * r, w * rest, w]
    });
    (error, rest / weight)
}

/// Fits an f16 scale and minimum; a thorough search chooses them by their error.
pub(super) fn fit_halves<C: Codes, const N: usize>(
    codes: C,
    x: &[f32; N],
    w: &[f32; N],
    unit: Unit,
    search: Search,
) -> (Half, Half) {
    if search == Search::Brief {
        let free = fit_affine(codes, x, w, Minimum::Any, search);
        let [scale, min] = [free.scale, free.min].map(|x| unit.half(x));
        if !scale.is_subnormal() {
            return (scale, min);
        }
    }
    let free = fit_affine(codes, x, w, Minimum::Any, Search::Thorough);
    let mut best = (f32::MAX, unit.half(free.scale), unit.half(free.min));
    for scale in unit.halves(free.scale) {
        let mut min = unit.half(free.min);
        for _ in 0..2 {
            let (error, better) = error_of(codes, x, w, scale.value, min.value);
            if error < best.0 {
                best = (error, scale, min);
            }
            min = unit.half(better);
        }
    }
    if free.scale == 0.0 {
        // An f16 minimum may miss part of a constant, which the codes can add.
        for min in unit.halves(free.min) {
            let scale = unit.half((free.min - min.value) / C::EXTREME);
            let (error, _) = error_of(codes, x, w, scale.value, min.value);
            if error < best.0 {
                best = (error, scale, min);
            }
        }
    }
    (best.1, best.2)
}
