//! Fits super-blocks: `G` groups of `N` values whose scales are integers times one f16. The groups are first fitted
//! independently. The super-scale is then fitted to their scales, each weighted by the cost of its error, and the
//! integers are chosen by the error of the values after rounding them again. Finally the super-scale is fitted to these
//! integers.

use super::affine::{self, Minimum, fit_affine};
use super::codes::{Codes, sums};
use super::lanes::F32x4;
use super::scale::{self, fit_scale, inverse};
use super::{Search, Unit};
use crate::quant::plain::F16;

/// Rounds of choosing integers and fitting the super-scale to them.
const TURNS: usize = 2;

/// If the groups fit up to this share of their energy, most of the error comes from rounding the super-scale to f16.
/// Then up to this many smaller integers are tried, in search of a super-scale that rounds well.
const EXACT: f32 = 1e-5;
const SMALLER: usize = 12;

/// Integer scales of groups, to be multiplied by `d`.
pub(super) struct Scales<const G: usize> {
    pub(super) d: F16,
    pub(super) scales: [f32; G],
    /// `d * scales`, in units
    pub(super) steps: [f32; G],
}

/// Fits x = d * scale * code with codes of `C` and scales of `S`.
pub(super) fn fit_scales<C: Codes, S: Codes, const N: usize, const G: usize>(
    codes: C,
    integers: S,
    x: &[[f32; N]; G],
    w: &[[f32; N]; G],
    unit: Unit,
    search: Search,
) -> Scales<G> {
    let free: [_; G] = std::array::from_fn(|g| fit_scale(codes, &x[g], &w[g], search));
    let steps = free.map(|fit| fit.scale);
    let first = super_scale(integers, &steps, &free.map(|fit| fit.stiffness));
    let mut least = f32::MAX;
    let mut best = (unit.half(first), [0.0; G]);
    // Chooses integers for a super-scale and returns the best super-scale for them.
    let mut consider = |target: f32| {
        let d = unit.factor(target);
        let by_d = inverse(d.value);
        let (mut total, mut scales) = (0.0, [0.0; G]);
        let (mut xp, mut pp) = (0.0, 0.0);
        for g in 0..G {
            let (x, w) = (&x[g], &w[g]);
            let mut error = f32::MAX;
            for scale in nearby(integers, steps[g] * by_d) {
                let trial = scale::error_of(codes, x, w, d.value * scale);
                if trial < error {
                    (error, scales[g]) = (trial, scale);
                }
            }
            total += error;
            let scale = scales[g];
            let by_step = F32x4::splat(inverse(d.value * scale));
            let [xl, ll] = sums(x, w, |x, w| {
                let l = codes.nearest(x * by_step);
                [w * x * l, w * l * l]
            });
            xp += xl * scale;
            pp += ll * scale * scale;
        }
        if total < least {
            least = total;
            best = (d, scales);
        }
        if pp > 0.0 { xp / pp } else { target }
    };
    let mut target = first;
    for _ in 0..TURNS {
        target = consider(target);
    }
    if is_exact(free.iter().map(|fit| fit.error), x, w) {
        for share in smaller::<S>() {
            consider(first * share);
        }
    }
    let (d, scales) = best;
    Scales {
        d: d.stored,
        scales,
        steps: scales.map(|scale| d.value * scale),
    }
}

/// Fits the factor that brings integers closest to the scales of the groups.
fn super_scale<S: Codes, const G: usize>(integers: S, scales: &[f32; G], w: &[f32; G]) -> f32 {
    fit_scale(integers, scales, w, Search::Thorough).scale
}

/// Integer scales and minimums of groups, to be multiplied by `d` and `dmin`.
pub(super) struct Affines<const G: usize> {
    pub(super) d: F16,
    pub(super) dmin: F16,
    pub(super) scales: [f32; G],
    pub(super) mins: [f32; G],
    /// `d * scales`, in units
    pub(super) steps: [f32; G],
    /// `-dmin * mins`, in units
    pub(super) starts: [f32; G],
}

/// Fits x = d * scale * code - dmin * min with codes of `C` from 0, and scales and
/// minimums of `S` from 0.
pub(super) fn fit_affines<C: Codes, S: Codes, const N: usize, const G: usize>(
    codes: C,
    integers: S,
    x: &[[f32; N]; G],
    w: &[[f32; N]; G],
    unit: Unit,
    search: Search,
) -> Affines<G> {
    let free: [_; G] =
        std::array::from_fn(|g| fit_affine(codes, &x[g], &w[g], Minimum::NotPositive, search));
    let steps = free.map(|fit| fit.scale);
    let depths = free.map(|fit| -fit.min);
    let moments: [[f32; 2]; G] = std::array::from_fn(|g| sums(&x[g], &w[g], |x, w| [w, w * x]));
    let first = (
        super_scale(integers, &steps, &free.map(|fit| fit.stiffness)),
        super_scale(integers, &depths, &moments.map(|[weight, _]| weight)),
    );
    let mut least = f32::MAX;
    let mut best = (unit.half(0.0), unit.half(0.0), [0.0; G], [0.0; G]);
    let mut consider = |target: (f32, f32)| {
        let (d, dmin) = (unit.factor(target.0), unit.factor(target.1));
        let (by_d, by_dmin) = (inverse(d.value), inverse(dmin.value));
        let (mut total, mut scales, mut mins) = (0.0, [0.0; G], [0.0; G]);
        let mut normal = NormalEquations::default();
        for g in 0..G {
            let (x, w) = (&x[g], &w[g]);
            let first = integers.nearest(depths[g] * by_dmin);
            let mut error = f32::MAX;
            for scale in nearby(integers, steps[g] * by_d) {
                let step = d.value * scale;
                let mut min = first;
                for _ in 0..2 {
                    let (trial, better) = affine::error_of(codes, x, w, step, -dmin.value * min);
                    if trial < error {
                        (error, scales[g], mins[g]) = (trial, scale, min);
                    }
                    let better = integers.nearest(-better * by_dmin);
                    if better == min {
                        break;
                    }
                    min = better;
                }
            }
            total += error;
            let (scale, min) = (scales[g], mins[g]);
            let by_step = F32x4::splat(inverse(d.value * scale));
            let start = F32x4::splat(-dmin.value * min);
            let [l, ll, xl] = sums(x, w, |x, w| {
                let l = codes.nearest((x - start) * by_step);
                [w * l, w * l * l, w * x * l]
            });
            normal.add(scale, min, [l, ll, xl], moments[g]);
        }
        if total < least {
            least = total;
            best = (d, dmin, scales, mins);
        }
        normal.solve().unwrap_or(target)
    };
    let mut target = first;
    for _ in 0..TURNS {
        target = consider(target);
    }
    if is_exact(free.iter().map(|fit| fit.error), x, w) {
        for share in smaller::<S>() {
            consider((first.0 * share, first.1 * share));
        }
    }
    let (d, dmin, scales, mins) = best;
    Affines {
        d: d.stored,
        dmin: dmin.stored,
        scales,
        mins,
        steps: scales.map(|scale| d.value * scale),
        starts: mins.map(|min| -dmin.value * min),
    }
}

/// Least squares for `d` and `dmin` of x = d * p - dmin * m, where p is scale times
/// code.
#[derive(Default)]
struct NormalEquations {
    pp: f32,
    pm: f32,
    mm: f32,
    xp: f32,
    xm: f32,
}

impl NormalEquations {
    /// Adds a group: Σ w code, Σ w code², Σ w x code; Σ w, Σ w x.
    fn add(&mut self, scale: f32, min: f32, [l, ll, xl]: [f32; 3], [weight, x]: [f32; 2]) {
        self.pp += scale * scale * ll;
        self.pm += scale * min * l;
        self.mm += min * min * weight;
        self.xp += scale * xl;
        self.xm += min * x;
    }

    /// Solves for `d` and `dmin`; `None` if they are undetermined or negative.
    fn solve(&self) -> Option<(f32, f32)> {
        let det = self.pp * self.mm - self.pm * self.pm;
        let (d, dmin) = if det > 1e-6 * self.pp * self.mm {
            (
                (self.xp * self.mm - self.xm * self.pm) / det,
                (self.xp * self.pm - self.xm * self.pp) / det,
            )
        } else {
            (self.xp / self.pp, 0.0)
        };
        (d >= 0.0 && dmin >= 0.0).then_some((d, dmin))
    }
}

/// The integer nearest to `x` and its neighbours, clamped to the range of `S`.
fn nearby<S: Codes>(integers: S, x: f32) -> [f32; 3] {
    let middle = integers.nearest(x);
    [middle - 1.0, middle, middle + 1.0].map(|x| integers.nearest(x))
}

/// Whether groups with these errors fit up to rounding errors.
fn is_exact<const N: usize, const G: usize>(
    errors: impl Iterator<Item = f32>,
    x: &[[f32; N]; G],
    w: &[[f32; N]; G],
) -> bool {
    let energy: f32 = x
        .iter()
        .zip(w)
        .map(|(x, w)| sums(x, w, |x, w| [w * x * x])[0])
        .sum();
    errors.sum::<f32>() < EXACT * energy
}

/// Factors of the super-scale that reduce the largest integer of `S` by one, two and so on.
fn smaller<S: Codes>() -> impl Iterator<Item = f32> {
    (1..=SMALLER).map(|n| {
        let most = S::EXTREME.abs();
        most / (most - n as f32)
    })
}
