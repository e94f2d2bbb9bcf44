//! The nearest points of the grids ([`crate::quant::grids`]). A table lists, for each point of the full lattice, the
//! points of the grid around it, so that a search compares few.

use std::sync::LazyLock;

use crate::quant::grids;

/// Grid points that are compared for each point of the lattice.
const NEAR: usize = 16;

/// A grid with `D` values per point.
pub(super) struct Grid<const D: usize> {
    points: Vec<[f32; D]>,
    /// The numbers of a digit, in ascending order.
    numbers: Vec<f32>,
    /// `NEAR` entries for each point of the lattice, nearest first.
    near: Vec<u16>,
}

/// The best point for some values and a scale: its index, and Σ w q x and Σ w q².
#[derive(Clone, Copy, Default)]
pub(super) struct Point {
    pub(super) index: u16,
    pub(super) xq: f32,
    pub(super) qq: f32,
}

impl Point {
    /// The weighted squared error, less that of zeros.
    pub(super) fn gain(self, scale: f32) -> f32 {
        scale * (scale * self.qq - 2.0 * self.xq)
    }
}

impl<const D: usize> Grid<D> {
    fn new(points: impl Iterator<Item = [i8; D]>) -> Grid<D> {
        let points: Vec<[i8; D]> = points.collect();
        let mut numbers: Vec<i8> = points.as_flattened().to_vec();
        numbers.sort_unstable();
        numbers.dedup();
        let n_points = numbers.len().pow(D as u32);
        let mut near = Vec::with_capacity(n_points * NEAR);
        let mut order: Vec<(u32, u16)> = Vec::with_capacity(points.len());
        for number in 0..n_points {
            let mut rest = number;
            let center: [i8; D] = std::array::from_fn(|_| {
                let digit = numbers[rest % numbers.len()];
                rest /= numbers.len();
                digit
            });
            order.clear();
            order.extend(points.iter().enumerate().map(|(index, point)| {
                let away = |(a, b): (&i8, &i8)| (i32::from(*a) - i32::from(*b)).pow(2) as u32;
                let distance = point.iter().zip(&center).map(away).sum();
                (distance, index as u16)
            }));
            order.select_nth_unstable(NEAR - 1);
            order[..NEAR].sort_unstable();
            near.extend(order[..NEAR].iter().map(|(_, index)| index));
        }
        Grid {
            points: points.iter().map(|point| point.map(f32::from)).collect(),
            numbers: numbers.into_iter().map(f32::from).collect(),
            near,
        }
    }

    /// The largest number.
    pub(super) fn largest(&self) -> f32 {
        self.numbers[self.numbers.len() - 1]
    }

    /// Finds the point q with the least Σ w (x - scale * q)² among those near x / scale.
    #[inline]
    pub(super) fn nearest(&self, x: &[f32; D], w: &[f32; D], scale: f32, inverse: f32) -> Point {
        let mut number = 0;
        for x in x.iter().rev() {
            let u = x * inverse;
            let above = |pair: &[f32]| usize::from(u > (pair[0] + pair[1]) * 0.5);
            let digit: usize = self.numbers.windows(2).map(above).sum();
            number = number * self.numbers.len() + digit;
        }
        let mut best = (f32::MAX, Point::default());
        for &index in &self.near[number * NEAR..][..NEAR] {
            let q = &self.points[usize::from(index)];
            let (mut xq, mut qq) = ([0.0; D], [0.0; D]);
            for k in 0..D {
                let wq = w[k] * q[k];
                xq[k] = wq * x[k];
                qq[k] = wq * q[k];
            }
            let point = Point {
                index,
                xq: total(&xq),
                qq: total(&qq),
            };
            let gain = point.gain(scale);
            if gain < best.0 {
                best = (gain, point);
            }
        }
        best.1
    }
}

/// Adds 4 or 8 numbers in pairs.
#[inline(always)]
fn total<const D: usize>(x: &[f32; D]) -> f32 {
    let mut x = *x;
    let mut n = D / 2;
    while n > 0 {
        for i in 0..n {
            x[i] += x[i + n];
        }
        n /= 2;
    }
    x[0]
}

/// The grid of the first bytes of each entry, and `by` more.
fn of<const D: usize>(entries: impl Iterator<Item = u64>, by: i8) -> Grid<D> {
    Grid::new(entries.map(|entry| {
        let bytes = entry.to_le_bytes();
        std::array::from_fn(|k| bytes[k] as i8 + by)
    }))
}

pub(super) static IQ2_XXS: LazyLock<Grid<8>> =
    LazyLock::new(|| of(grids::IQ2_XXS.iter().copied(), 0));
pub(super) static IQ2_XS: LazyLock<Grid<8>> =
    LazyLock::new(|| of(grids::IQ2_XS.iter().copied(), 0));
pub(super) static IQ2_S: LazyLock<Grid<8>> = LazyLock::new(|| of(grids::IQ2_S.iter().copied(), 0));
pub(super) static IQ3_XXS: LazyLock<Grid<4>> =
    LazyLock::new(|| of(grids::IQ3_XXS.iter().map(|word| u64::from(*word)), 0));
pub(super) static IQ3_S: LazyLock<Grid<4>> =
    LazyLock::new(|| of(grids::IQ3_S.iter().map(|word| u64::from(*word)), 0));
/// Points of IQ1 moved up, and moved down.
pub(super) static IQ1: LazyLock<[Grid<8>; 2]> =
    LazyLock::new(|| [0, -2].map(|by| of(grids::IQ1_S.iter().copied(), by)));
