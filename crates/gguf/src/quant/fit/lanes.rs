//! Vectors of four f32 for the inner loops of the searches. Written as vectors because the compiler vectorizes only
//! some of these loops by itself, and fills half registers or branches in the others.

use std::ops::{Add, Mul, Sub};

pub(super) use wide::f32x4 as F32x4;

/// A value or a vector of values that [`super::codes::Codes`] round: f32 or [`F32x4`].
pub(super) trait Number:
    Copy + Add<Output = Self> + Sub<Output = Self> + Mul<Output = Self>
{
    fn splat(x: f32) -> Self;

    /// Clamps to `least..=most`. NaN becomes one of the bounds.
    fn within(self, least: f32, most: f32) -> Self;

    /// `value` where `self` is greater than `bound`, else 0.
    fn where_above(self, bound: f32, value: f32) -> Self;
}

impl Number for f32 {
    #[inline(always)]
    fn splat(x: f32) -> f32 {
        x
    }

    #[inline(always)]
    fn within(self, least: f32, most: f32) -> f32 {
        let x = if self > least { self } else { least };
        if x < most { x } else { most }
    }

    #[inline(always)]
    fn where_above(self, bound: f32, value: f32) -> f32 {
        if self > bound { value } else { 0.0 }
    }
}

impl Number for F32x4 {
    #[inline(always)]
    fn splat(x: f32) -> F32x4 {
        F32x4::splat(x)
    }

    #[inline(always)]
    fn within(self, least: f32, most: f32) -> F32x4 {
        self.fast_max(F32x4::splat(least))
            .fast_min(F32x4::splat(most))
    }

    #[inline(always)]
    fn where_above(self, bound: f32, value: f32) -> F32x4 {
        self.simd_gt(F32x4::splat(bound)) & F32x4::splat(value)
    }
}

/// `(a + c) + (b + d)`.
#[inline(always)]
pub(super) fn sum(x: F32x4) -> f32 {
    let [a, b, c, d] = x.to_array();
    (a + c) + (b + d)
}
