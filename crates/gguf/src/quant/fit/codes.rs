//! The unscaled numbers that the codes of a format stand for, and sums over groups. All in f32, without branches, four
//! values at a time.

use super::lanes::{F32x4, Number, sum};
use crate::quant::iq::KVALUES_IQ4NL;

/// A finite set of numbers around zero.
pub(super) trait Codes: Copy {
    /// The number of largest magnitude, to which the extreme value of a group is mapped.
    const EXTREME: f32;
    /// The extreme on the other side of zero, if its magnitude is smaller.
    const OPPOSITE: Option<f32>;
    /// Spacing of the outermost numbers as a share of [`Codes::EXTREME`]; the step of the scale search.
    const SPACING: f32;

    /// Rounds `x` to the nearest number.
    fn nearest<T: Number>(self, x: T) -> T;

    /// Index of that number in ascending order, which is the code in the file.
    fn index<T: Number>(self, x: T) -> T;
}

/// The integers from `LO` to `HI`.
#[derive(Clone, Copy)]
pub(super) struct Ints<const LO: i32, const HI: i32>;

/// The table of IQ4_NL and IQ4_XS.
#[derive(Clone, Copy)]
pub(super) struct Iq4;

impl<const LO: i32, const HI: i32> Codes for Ints<LO, HI> {
    const EXTREME: f32 = if -LO > HI { LO as f32 } else { HI as f32 };
    const OPPOSITE: Option<f32> = if LO < 0 && HI < -LO {
        Some(HI as f32)
    } else {
        None
    };
    const SPACING: f32 = 1.0 / if -LO > HI { -LO as f32 } else { HI as f32 };

    #[inline(always)]
    fn nearest<T: Number>(self, x: T) -> T {
        round(x.within(LO as f32, HI as f32))
    }

    #[inline(always)]
    fn index<T: Number>(self, x: T) -> T {
        self.nearest(x) - T::splat(LO as f32)
    }
}

impl Codes for Iq4 {
    const EXTREME: f32 = KVALUES_IQ4NL[0] as f32;
    const OPPOSITE: Option<f32> = Some(KVALUES_IQ4NL[15] as f32);
    const SPACING: f32 = 8.0 / 127.0;

    #[inline(always)]
    fn nearest<T: Number>(self, x: T) -> T {
        let first = T::splat(f32::from(KVALUES_IQ4NL[0]));
        KVALUES_IQ4NL.windows(2).fold(first, |nearest, pair| {
            let (a, b) = (f32::from(pair[0]), f32::from(pair[1]));
            nearest + x.where_above((a + b) / 2.0, b - a)
        })
    }

    #[inline(always)]
    fn index<T: Number>(self, x: T) -> T {
        let zero = T::splat(0.0);
        KVALUES_IQ4NL.windows(2).fold(zero, |index, pair| {
            let (a, b) = (f32::from(pair[0]), f32::from(pair[1]));
            index + x.where_above((a + b) / 2.0, 1.0)
        })
    }
}

/// 1.5 * 2^23. Sums with it have no fraction bits, so adding it rounds.
const BEYOND: f32 = 12_582_912.0;

/// Rounds magnitudes below 2^22 to the nearest integer, ties to even.
#[inline(always)]
pub(super) fn round<T: Number>(x: T) -> T {
    (x + T::splat(BEYOND)) - T::splat(BEYOND)
}

/// Sums `K` terms over the values of a group and their weights. Two accumulators for each term, so that additions do
/// not wait for each other.
#[inline(always)]
pub(super) fn sums<const N: usize, const K: usize>(
    x: &[f32; N],
    w: &[f32; N],
    terms: impl Fn(F32x4, F32x4) -> [F32x4; K],
) -> [f32; K] {
    let mut low = [F32x4::splat(0.0); K];
    let mut high = low;
    let x = x.as_chunks::<4>().0.as_chunks::<2>().0;
    let w = w.as_chunks::<4>().0.as_chunks::<2>().0;
    for ([a, b], [aw, bw]) in x.iter().zip(w) {
        let low_terms = terms(F32x4::new(*a), F32x4::new(*aw));
        let high_terms = terms(F32x4::new(*b), F32x4::new(*bw));
        for k in 0..K {
            low[k] += low_terms[k];
            high[k] += high_terms[k];
        }
    }
    std::array::from_fn(|k| sum(low[k] + high[k]))
}

/// Computes the file's codes of `(x - start) * slope`.
#[inline(always)]
pub(super) fn indices<C: Codes, const N: usize>(
    codes: C,
    x: &[f32; N],
    slope: f32,
    start: f32,
) -> [u8; N] {
    let (slope, start) = (F32x4::splat(slope), F32x4::splat(start));
    let mut out = [0; N];
    for (out, x) in out.as_chunks_mut().0.iter_mut().zip(x.as_chunks().0) {
        let index = codes.index((F32x4::new(*x) - start) * slope);
        // The lowest byte of the sum is that of the integer.
        *out = (index + F32x4::splat(BEYOND))
            .to_array()
            .map(|x| x.to_bits() as u8);
    }
    out
}

/// Returns the smallest and the largest value of a group.
#[inline(always)]
pub(super) fn bounds<const N: usize>(x: &[f32; N]) -> (f32, f32) {
    let (mut lo, mut hi) = (F32x4::splat(f32::MAX), F32x4::splat(f32::MIN));
    for x in x.as_chunks::<4>().0 {
        lo = lo.fast_min(F32x4::new(*x));
        hi = hi.fast_max(F32x4::new(*x));
    }
    let [a, b, c, d] = lo.to_array();
    let [e, f, g, h] = hi.to_array();
    (a.min(b).min(c.min(d)), e.max(f).max(g.max(h)))
}
