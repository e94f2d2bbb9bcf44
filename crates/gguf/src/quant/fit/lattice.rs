//! Fits the formats with grids: points of a lattice, signs apart, with integer scales for groups and one f16.
//!
//! Each group is fitted alone, by candidates that map its largest value to the largest number of the grid and near it.
//! The super-scale is then chosen by how well its odd multiples meet these scales, and refined together with the integers
//! by the error that the values have with them.

use std::ops::Range;

use super::grid::{Grid, IQ1, IQ2_S, IQ2_XS, IQ2_XXS, IQ3_S, IQ3_XXS, Point};
use super::scale::inverse;
use super::{Fit, Half, Search, Unit};
use crate::quant::k::QK_K;
use crate::quant::lattice::{Iq1M, Iq1S, Iq2S, Iq2Xs, Iq2Xxs, Iq3S, Iq3Xxs, Lattice};
use crate::quant::plain::F16;

/// Candidates for a group: by how much less than the largest value the largest number stands for.
const SHARES: [f32; 13] = [
    1.2, 1.12, 1.06, 1.0, 0.95, 0.9, 0.85, 0.8, 0.75, 0.7, 0.64, 0.58, 0.5,
];
/// Rounds of choosing points and fitting the scale to them.
const REFINEMENTS: usize = 3;
/// Candidates for the super-scale, as shares of the one with which the largest scale is exact.
const SUPER_SHARES: Range<usize> = 70..125;
/// Rounds of choosing integers and fitting the super-scale to them.
const TURNS: usize = 3;
/// Factor on the super-scale of IQ1 after the fit. The scale of least error makes values too small: of numbers that follow
/// a value with correlation r, it keeps the share r of their size, and products lose it in every layer. With this factor,
/// the perplexity of forge-mini falls by 4 to 7 %.
const IQ1_GAIN: f32 = 1.06;

/// Where the signs of values are.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Signs {
    /// For each eight values, of which an even number is negative.
    Even,
    /// For each value.
    Free,
    /// In the points, which are moved up or down by the group.
    MovedByGroup,
    /// In the points, which are moved up or down one by one.
    Moved,
}

/// How a format chooses points.
struct Shape<'a, const D: usize> {
    grids: &'a [Grid<D>],
    signs: Signs,
    /// Values of a group.
    group: usize,
    /// Largest integer scale; all of them are odd.
    most: u8,
    /// [`Lattice::UNIT`]
    unit: f32,
    /// Factor on the super-scale after the fit.
    gain: f32,
}

/// A fitted super-block.
struct Fitted {
    d: F16,
    /// (scale - 1) / 2 of each group.
    scales: [u8; QK_K / 16],
    /// Of each point.
    indices: [u16; QK_K / 4],
    /// A sign for each value, eight a byte.
    signs: [u8; QK_K / 8],
    /// Whether a point is moved down.
    down: [bool; QK_K / 8],
}

/// The points of a group: for each its grid and its place there, and sums of all.
#[derive(Clone, Copy)]
struct Chosen {
    points: [(u8, u16); 8],
    sum: Point,
}

impl<const D: usize> Shape<'_, D> {
    /// Chooses the best points for a scale.
    fn choose(&self, x: &[f32], w: &[f32], scale: f32) -> Chosen {
        match self.signs {
            Signs::MovedByGroup => {
                let [up, down] = [0..1, 1..2].map(|grids| self.choose_of(grids, x, w, scale));
                if down.sum.gain(scale) < up.sum.gain(scale) {
                    down
                } else {
                    up
                }
            }
            _ => self.choose_of(0..self.grids.len(), x, w, scale),
        }
    }

    fn choose_of(&self, grids: Range<usize>, x: &[f32], w: &[f32], scale: f32) -> Chosen {
        let inverse = inverse(scale);
        let mut chosen = Chosen {
            points: [(0, 0); 8],
            sum: Point::default(),
        };
        let values = x.as_chunks::<D>().0.iter().zip(w.as_chunks::<D>().0);
        for ((x, w), to) in values.zip(&mut chosen.points) {
            let mut best = (f32::MAX, Point::default());
            for grid in grids.clone() {
                let point = self.grids[grid].nearest(x, w, scale, inverse);
                let gain = point.gain(scale);
                if gain < best.0 {
                    best = (gain, point);
                    *to = (grid as u8, point.index);
                }
            }
            chosen.sum.xq += best.1.xq;
            chosen.sum.qq += best.1.qq;
        }
        chosen
    }

    /// Fits a group alone. Returns its scale, and Σ w q², the cost of a squared change of the scale.
    fn fit_group(&self, x: &[f32], w: &[f32]) -> (f32, f32) {
        let largest = x.iter().fold(0.0f32, |most, x| most.max(x.abs()));
        let first = largest / self.grids[0].largest();
        let mut best = (f32::MAX, 0.0, 0.0);
        let mut consider = |scale: f32| {
            let Point { xq, qq, .. } = self.choose(x, w, scale).sum;
            if xq <= 0.0 || qq <= 0.0 {
                return None;
            }
            let error = -xq * (xq / qq);
            (error < best.0).then(|| {
                best = (error, xq / qq, qq);
                xq / qq
            })
        };
        let mut scale = None;
        for share in SHARES {
            scale = consider(first * share).or(scale);
        }
        for _ in 0..REFINEMENTS {
            let Some(better) = scale else {
                break;
            };
            scale = consider(better);
        }
        (best.1, best.2)
    }

    fn fit(&self, x: &[f32], w: &[f32], unit: Unit) -> Fitted {
        let (mut values, signs) = (unsigned(x), signs_of(x));
        let signs = match self.signs {
            Signs::Even => made_even(&mut values, w, signs),
            Signs::Free => signs,
            Signs::Moved | Signs::MovedByGroup => {
                values.copy_from_slice(x);
                [0; QK_K / 8]
            }
        };
        let n_groups = QK_K / self.group;
        let groups = || {
            values
                .chunks_exact(self.group)
                .zip(w.chunks_exact(self.group))
        };
        let mut free = [(0.0f32, 0.0f32); QK_K / 16];
        for ((x, w), free) in groups().zip(&mut free) {
            *free = self.fit_group(x, w);
        }
        let free = &free[..n_groups];
        let mut best = (f32::MAX, unit.half(0.0), [1u8; QK_K / 16]);
        let mut target = self.super_scale(free);
        for _ in 0..TURNS {
            let d = unit.factor(target);
            let by_d = inverse(d.value * self.unit);
            let (mut gain, mut scales) = (0.0, [1; QK_K / 16]);
            let (mut xq, mut qq) = (0.0, 0.0);
            for (g, (x, w)) in groups().enumerate() {
                let mut least = f32::MAX;
                let mut sum = Point::default();
                for scale in self.odd_near(free[g].0 * by_d) {
                    let step = d.value * self.unit * f32::from(scale);
                    let chosen = self.choose(x, w, step);
                    if chosen.sum.gain(step) < least {
                        (least, sum, scales[g]) = (chosen.sum.gain(step), chosen.sum, scale);
                    }
                }
                gain += least;
                let scale = f32::from(scales[g]);
                xq += sum.xq * scale;
                qq += sum.qq * scale * scale;
            }
            if gain < best.0 {
                best = (gain, d, scales);
            }
            if qq <= 0.0 || xq <= 0.0 {
                break;
            }
            target = xq / qq / self.unit;
        }
        let (gain, d, scales) = best;
        // Where no scale helps, as with weights that vanish.
        let d = if gain < 0.0 { d } else { unit.half(0.0) };
        // Of subnormal numbers there are too few for a small factor.
        let enlarged = match d.is_subnormal() {
            true => d,
            false => unit.half(d.value * self.gain),
        };
        Fitted {
            d: enlarged.stored,
            ..self.packed(groups(), d, &scales, signs)
        }
    }

    /// Chooses the points for integer scales.
    fn packed<'b>(
        &self,
        groups: impl Iterator<Item = (&'b [f32], &'b [f32])>,
        d: Half,
        scales: &[u8; QK_K / 16],
        signs: [u8; QK_K / 8],
    ) -> Fitted {
        let per_group = self.group / D;
        let mut fitted = Fitted {
            d: d.stored,
            scales: scales.map(|scale| scale / 2),
            indices: [0; QK_K / 4],
            signs,
            down: [false; QK_K / 8],
        };
        for (g, (x, w)) in groups.enumerate() {
            let step = d.value * self.unit * f32::from(scales[g]);
            let chosen = self.choose(x, w, step);
            for (k, (grid, index)) in chosen.points.iter().take(per_group).enumerate() {
                let at = g * per_group + k;
                fitted.indices[at] = *index;
                if D == 8 {
                    fitted.down[at] = *grid == 1;
                }
            }
        }
        fitted
    }

    /// The super-scale whose odd multiples are closest to the scales of the groups, each with the cost of its error.
    fn super_scale(&self, free: &[(f32, f32)]) -> f32 {
        let most = free
            .iter()
            .fold(0.0f32, |most, (scale, _)| most.max(*scale));
        let first = most / f32::from(self.most);
        let mut best = (f32::MAX, first);
        for share in SUPER_SHARES {
            let d = first * share as f32 * 0.01;
            let by_d = inverse(d);
            let cost = |(scale, stiffness): &(f32, f32)| {
                let [near, ..] = self.odd_near(scale * by_d);
                stiffness * (d * f32::from(near) - scale).powi(2)
            };
            let cost: f32 = free.iter().map(cost).sum();
            if cost < best.0 {
                best = (cost, d);
            }
        }
        best.1 / self.unit
    }

    /// The odd integers next to `x`, the nearest first.
    fn odd_near(&self, x: f32) -> [u8; 3] {
        let nearest = (((x - 1.0) * 0.5).round() as i32 * 2 + 1).clamp(1, self.most.into()) as u8;
        [
            nearest,
            nearest.saturating_sub(2).max(1),
            (nearest + 2).min(self.most),
        ]
    }
}

fn unsigned(x: &[f32]) -> [f32; QK_K] {
    std::array::from_fn(|i| x[i].abs())
}

fn signs_of(x: &[f32]) -> [u8; QK_K / 8] {
    std::array::from_fn(|j| (0..8).fold(0, |byte, k| byte | u8::from(x[8 * j + k] < 0.0) << k))
}

/// Gives the value of least importance the other sign where the number of negative ones is odd.
fn made_even(values: &mut [f32; QK_K], w: &[f32], mut signs: [u8; QK_K / 8]) -> [u8; QK_K / 8] {
    let eights = values.as_chunks_mut::<8>().0.iter_mut();
    for ((x, w), signs) in eights.zip(w.as_chunks::<8>().0).zip(&mut signs) {
        if signs.count_ones().is_multiple_of(2) {
            continue;
        }
        let cost = |k: &usize| w[*k] * x[*k] * x[*k];
        let least = (0..8).min_by(|a, b| cost(a).total_cmp(&cost(b)));
        let least = least.expect("there are eight values");
        x[least] = -x[least];
        *signs ^= 1 << least;
    }
    signs
}

/// Two scales a byte, the first low.
fn nibbles<const N: usize>(scales: &[u8; QK_K / 16]) -> [u8; N] {
    std::array::from_fn(|i| scales[2 * i] | scales[2 * i + 1] << 4)
}

impl Fitted {
    /// Four times seven signs of 32 values, and the scale of the group.
    fn signs_and_scale(&self, group: usize) -> [u8; 4] {
        let seven = |k: usize| u32::from(self.signs[4 * group + k] & 127) << (7 * k);
        let signs = seven(0) | seven(1) | seven(2) | seven(3);
        (signs | u32::from(self.scales[group]) << 28).to_le_bytes()
    }
}

impl Fit for Iq2Xxs {
    fn fit(x: &[f32], w: &[f32], unit: Unit, _: Search) -> Self {
        let shape = Shape {
            grids: std::slice::from_ref(&*IQ2_XXS),
            signs: Signs::Even,
            group: 32,
            most: 31,
            unit: Iq2Xxs::UNIT,
            gain: 1.0,
        };
        let fitted = shape.fit(x, w, unit);
        let group = |g: usize| {
            let [a, b, c, d] = std::array::from_fn(|k| fitted.indices[4 * g + k] as u8);
            let [e, f, g, h] = fitted.signs_and_scale(g);
            [a, b, c, d, e, f, g, h]
        };
        Iq2Xxs {
            d: fitted.d,
            qs: std::array::from_fn(group),
        }
    }
}

impl Fit for Iq2Xs {
    fn fit(x: &[f32], w: &[f32], unit: Unit, _: Search) -> Self {
        let shape = Shape {
            grids: std::slice::from_ref(&*IQ2_XS),
            signs: Signs::Even,
            group: 16,
            most: 31,
            unit: Iq2Xs::UNIT,
            gain: 1.0,
        };
        let fitted = shape.fit(x, w, unit);
        let eight = |j: usize| fitted.indices[j] | u16::from(fitted.signs[j] & 127) << 9;
        Iq2Xs {
            d: fitted.d,
            qs: std::array::from_fn(|j| eight(j).to_le_bytes()),
            scales: nibbles(&fitted.scales),
        }
    }
}

impl Fit for Iq2S {
    fn fit(x: &[f32], w: &[f32], unit: Unit, _: Search) -> Self {
        let shape = Shape {
            grids: std::slice::from_ref(&*IQ2_S),
            signs: Signs::Free,
            group: 16,
            most: 31,
            unit: Iq2S::UNIT,
            gain: 1.0,
        };
        let fitted = shape.fit(x, w, unit);
        let high = |i: usize| {
            (0..4).fold(0, |byte, k| {
                byte | (fitted.indices[4 * i + k] >> 8) << (2 * k)
            })
        };
        Iq2S {
            d: fitted.d,
            qs: std::array::from_fn(|j| fitted.indices[j] as u8),
            signs: fitted.signs,
            qh: std::array::from_fn(|i| high(i) as u8),
            scales: nibbles(&fitted.scales),
        }
    }
}

impl Fit for Iq3Xxs {
    /// ggml weights by the square alone.
    const BALANCE: f32 = 1.0;

    fn fit(x: &[f32], w: &[f32], unit: Unit, _: Search) -> Self {
        let shape = Shape {
            grids: std::slice::from_ref(&*IQ3_XXS),
            signs: Signs::Even,
            group: 32,
            most: 31,
            unit: Iq3Xxs::UNIT,
            gain: 1.0,
        };
        let fitted = shape.fit(x, w, unit);
        Iq3Xxs {
            d: fitted.d,
            qs: fitted.indices.map(|index| index as u8),
            signs: std::array::from_fn(|g| fitted.signs_and_scale(g)),
        }
    }
}

impl Fit for Iq3S {
    fn fit(x: &[f32], w: &[f32], unit: Unit, _: Search) -> Self {
        let shape = Shape {
            grids: std::slice::from_ref(&*IQ3_S),
            signs: Signs::Free,
            group: 32,
            most: 31,
            unit: Iq3S::UNIT,
            gain: 1.0,
        };
        let fitted = shape.fit(x, w, unit);
        let high =
            |i: usize| (0..8).fold(0, |byte, k| byte | (fitted.indices[8 * i + k] >> 8) << k);
        Iq3S {
            d: fitted.d,
            qs: fitted.indices.map(|index| index as u8),
            qh: std::array::from_fn(|i| high(i) as u8),
            signs: fitted.signs,
            scales: nibbles(&fitted.scales),
        }
    }
}

impl Fit for Iq1S {
    fn fit(x: &[f32], w: &[f32], unit: Unit, _: Search) -> Self {
        let shape = Shape {
            grids: &*IQ1,
            signs: Signs::MovedByGroup,
            group: 32,
            most: 15,
            unit: Iq1S::UNIT,
            gain: IQ1_GAIN,
        };
        let fitted = shape.fit(x, w, unit);
        let high = |g: usize| {
            let indices = (0..4).fold(0, |bits, k| {
                bits | (fitted.indices[4 * g + k] >> 8) << (3 * k)
            });
            indices | u16::from(fitted.scales[g]) << 12 | u16::from(fitted.down[4 * g]) << 15
        };
        Iq1S {
            d: fitted.d,
            qs: std::array::from_fn(|j| fitted.indices[j] as u8),
            qh: std::array::from_fn(|g| high(g).to_le_bytes()),
        }
    }
}

impl Fit for Iq1M {
    fn fit(x: &[f32], w: &[f32], unit: Unit, _: Search) -> Self {
        let shape = Shape {
            grids: &*IQ1,
            signs: Signs::Moved,
            group: 16,
            most: 15,
            unit: Iq1M::UNIT,
            gain: IQ1_GAIN,
        };
        let fitted = shape.fit(x, w, unit);
        let four = |j: usize| (fitted.indices[j] >> 8) as u8 | u8::from(fitted.down[j]) << 3;
        let scales = |i: usize| {
            let scale = |k: usize| u16::from(fitted.scales[4 * i + k]) << (3 * k);
            let part = fitted.d.bits() >> (4 * i) & 15;
            scale(0) | scale(1) | scale(2) | scale(3) | part << 12
        };
        Iq1M {
            qs: std::array::from_fn(|j| fitted.indices[j] as u8),
            qh: std::array::from_fn(|i| four(2 * i) | four(2 * i + 1) << 4),
            scales: std::array::from_fn(|i| scales(i).to_le_bytes()),
        }
    }
}
