//! The numbers that codes of a format stand for before they are scaled, and sums
//! over a group of them. Everything is f32 and without branches, four values at a
//! time.

use super::lanes::{F32x4, Number, sum};
use crate::quant::iq::KVALUES_IQ4NL;

/// A finite set of numbers around zero.
pub(super) trait Codes: Copy {
    /// The number of the largest magnitude, which the extreme value of a group
    /// becomes.
    const EXTREME: f32;
    /// The last number on the other side of zero, if it has less magnitude.
    const OPPOSITE: Option<f32>;
    /// The distance of numbers at the far end as a share of [`Codes::EXTREME`], by
    /// which the search for a scale steps.
    const SPACING: f32;

    /// The number nearest to `x`.
    fn nearest<T: Number>(self, x: T) -> T;

    /// The place of that number among all, from the least: the code in the file.
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

/// 1.5 * 2^23. From half of it on numbers have no fraction, so that adding it rounds.
const BEYOND: f32 = 12_582_912.0;

/// The nearest integer, ties to even, of a magnitude below 2^22.
#[inline(always)]
pub(super) fn round<T: Number>(x: T) -> T {
    (x + T::splat(BEYOND)) - T::splat(BEYOND)
}

/// Adds up `K` terms of every value of a group with its weight, in two registers each, so that additions do not wait
/// for each other.
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

/// The codes in the file of `(x - start) * slope`.
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

/// The least and the greatest value of a group.
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
