//! The numbers that codes of a format stand for before they are scaled, and sums
//! over a group of them. Everything is f32 and without branches, so that the
//! searches compile to vector code on any machine.

use crate::quant::iq::KVALUES_IQ4NL;

/// Values summed side by side. Wider than a register of the poorest machine, so
/// that additions do not wait for each other.
const LANES: usize = 8;

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
    fn nearest(self, x: f32) -> f32;

    /// The place of that number among all, from the least: the code in the file.
    fn index(self, x: f32) -> u8;
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
    fn nearest(self, x: f32) -> f32 {
        round(clamp(x, LO as f32, HI as f32))
    }

    #[inline(always)]
    fn index(self, x: f32) -> u8 {
        // The lowest byte of the sum is that of the integer.
        (self.nearest(x) - LO as f32 + BEYOND).to_bits() as u8
    }
}

impl Codes for Iq4 {
    const EXTREME: f32 = KVALUES_IQ4NL[0] as f32;
    const OPPOSITE: Option<f32> = Some(KVALUES_IQ4NL[15] as f32);
    const SPACING: f32 = 8.0 / 127.0;

    #[inline(always)]
    fn nearest(self, x: f32) -> f32 {
        let mut nearest = f32::from(KVALUES_IQ4NL[0]);
        for pair in KVALUES_IQ4NL.windows(2) {
            let (a, b) = (f32::from(pair[0]), f32::from(pair[1]));
            nearest += if x > (a + b) / 2.0 { b - a } else { 0.0 };
        }
        nearest
    }

    #[inline(always)]
    fn index(self, x: f32) -> u8 {
        let above = |pair: &[i8]| x > (f32::from(pair[0]) + f32::from(pair[1])) / 2.0;
        KVALUES_IQ4NL
            .windows(2)
            .map(|pair| u8::from(above(pair)))
            .sum()
    }
}

/// 1.5 * 2^23. From half of it on numbers have no fraction, so that adding it rounds.
const BEYOND: f32 = 12_582_912.0;

/// The nearest integer, ties to even, of a magnitude below 2^22.
#[inline(always)]
pub(super) fn round(x: f32) -> f32 {
    (x + BEYOND) - BEYOND
}

/// As `f32::clamp`, without its care for NaN.
#[inline(always)]
pub(super) fn clamp(x: f32, lo: f32, hi: f32) -> f32 {
    let x = if x > lo { x } else { lo };
    if x < hi { x } else { hi }
}

/// Adds up `K` terms of every value of a group with its weight.
#[inline(always)]
pub(super) fn sums<const N: usize, const K: usize>(
    x: &[f32; N],
    w: &[f32; N],
    terms: impl Fn(f32, f32) -> [f32; K],
) -> [f32; K] {
    let mut lanes = [[0.0; LANES]; K];
    for (x, w) in x
        .as_chunks::<LANES>()
        .0
        .iter()
        .zip(w.as_chunks::<LANES>().0)
    {
        for i in 0..LANES {
            let terms = terms(x[i], w[i]);
            for k in 0..K {
                lanes[k][i] += terms[k];
            }
        }
    }
    lanes.map(|lanes| {
        let [a, b, c, d, e, f, g, h] = lanes;
        ((a + e) + (c + g)) + ((b + f) + (d + h))
    })
}

/// The least and the greatest value of a group.
#[inline(always)]
pub(super) fn bounds<const N: usize>(x: &[f32; N]) -> (f32, f32) {
    let (mut lo, mut hi) = ([f32::MAX; LANES], [f32::MIN; LANES]);
    for x in x.as_chunks::<LANES>().0 {
        for i in 0..LANES {
            lo[i] = if x[i] < lo[i] { x[i] } else { lo[i] };
            hi[i] = if x[i] > hi[i] { x[i] } else { hi[i] };
        }
    }
    (
        lo.into_iter().fold(f32::MAX, f32::min),
        hi.into_iter().fold(f32::MIN, f32::max),
    )
}
