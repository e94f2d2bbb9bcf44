//! Packs fitted codes into the blocks of each format.

use super::affine::fit_halves;
use super::codes::{Codes, Ints, Iq4, indices};
use super::scale::{fit_half, inverse};
use super::super_block::{fit_affines, fit_scales};
use super::{Fit, Search, Unit};
use crate::quant::iq::{Iq4Nl, Iq4Xs};
use crate::quant::k::{Q2K, Q3K, Q4K, Q5K, Q6K, QK_K};
use crate::quant::legacy::{Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, QK};
use crate::quant::plain::F16;
use crate::quant::q2::Q2_0;
use crate::quant::ternary::{Tq1_0, Tq2_0};

/// Views a block of 32 values as one group.
fn one(x: &[f32]) -> &[f32; QK] {
    x.try_into().expect("a block of 32 values")
}

/// Views a super-block's values as groups.
fn groups<const N: usize, const G: usize>(x: &[f32]) -> &[[f32; N]; G] {
    x.as_chunks().0.try_into().expect("a super-block of groups")
}

/// Fits a block with a scale. Returns the scale and the codes.
fn scaled<C: Codes>(codes: C, x: &[f32], w: &[f32], unit: Unit, search: Search) -> (F16, [u8; QK]) {
    let (x, w) = (one(x), one(w));
    let d = fit_half(codes, x, w, unit, search);
    (d.stored, indices(codes, x, inverse(d.value), 0.0))
}

/// Fits a block with a scale and a minimum. Returns both and the codes.
fn shifted<C: Codes>(
    codes: C,
    x: &[f32],
    w: &[f32],
    unit: Unit,
    search: Search,
) -> (F16, F16, [u8; QK]) {
    let (x, w) = (one(x), one(w));
    let (d, m) = fit_halves(codes, x, w, unit, search);
    let codes = indices(codes, x, inverse(d.value), m.value);
    (d.stored, m.stored, codes)
}

/// Computes the codes of groups from the step and the start of each.
fn all_indices<C: Codes, const N: usize, const G: usize>(
    codes: C,
    x: &[[f32; N]; G],
    steps: &[f32; G],
    starts: &[f32; G],
) -> [u8; QK_K] {
    let mut out = [0; QK_K];
    for (g, out) in out.as_chunks_mut::<N>().0.iter_mut().enumerate() {
        *out = indices(codes, &x[g], inverse(steps[g]), starts[g]);
    }
    out
}

/// Packs the lower four bits of the codes as in [`Q4_0`].
fn nibbles(codes: &[u8; QK]) -> [u8; QK / 2] {
    std::array::from_fn(|j| codes[j] & 15 | codes[j + QK / 2] << 4)
}

/// Packs the fifth bits of the codes; bit j is that of code j.
fn fifth_bits(codes: &[u8; QK]) -> [u8; QK / 8] {
    let bits = codes.iter().rev();
    let bits = bits.fold(0u32, |bits, code| bits << 1 | u32::from(code >> 4));
    bits.to_le_bytes()
}

/// Packs two bits of each code, from bit `shift` on, as in [`Q2K`].
fn two_bits(codes: &[u8; QK_K], shift: u32) -> [u8; QK_K / 4] {
    std::array::from_fn(|i| {
        let first = i / 32 * 128 + i % 32;
        (0..4).fold(0, |byte, k| {
            byte | (codes[first + 32 * k] >> shift & 3) << (2 * k)
        })
    })
}

/// Packs the lower four bits of the codes; codes `apart` from each other share a byte.
fn four_bits(codes: &[u8; QK_K], apart: usize) -> [u8; QK_K / 2] {
    std::array::from_fn(|i| {
        let first = i / apart * 2 * apart + i % apart;
        codes[first] & 15 | codes[first + apart] << 4
    })
}

/// Packs bit `shift` of each code as in [`Q5K`].
fn one_bit(codes: &[u8; QK_K], shift: u32) -> [u8; QK_K / 8] {
    std::array::from_fn(|l| (0..8).fold(0, |byte, k| byte | (codes[32 * k + l] >> shift & 1) << k))
}

/// The inverse of [`crate::quant::k::scale_min_k4`].
fn pack_k4(scales: &[f32; 8], mins: &[f32; 8]) -> [u8; 12] {
    let mut out = [0; 12];
    for j in 0..4 {
        let [low, high] = [j, j + 4].map(|j| (scales[j] as u8, mins[j] as u8));
        out[j] = low.0 | (high.0 >> 4) << 6;
        out[j + 4] = low.1 | (high.1 >> 4) << 6;
        out[j + 8] = high.0 & 15 | high.1 << 4;
    }
    out
}

/// The inverse of [`crate::quant::k::q3_scales`].
fn pack_q3(scales: &[f32; 16]) -> [u8; 12] {
    let scales = scales.map(|scale| (scale + 32.0) as u8);
    std::array::from_fn(|i| match i {
        ..8 => scales[i] & 15 | scales[i + 8] << 4,
        _ => (0..4).fold(0, |byte, k| byte | (scales[i - 8 + 4 * k] >> 4) << (2 * k)),
    })
}

impl Fit for Q4_0 {
    const PLAIN: Search = Search::Brief;

    fn fit(x: &[f32], w: &[f32], unit: Unit, search: Search) -> Self {
        let (d, codes) = scaled(Ints::<-8, 7>, x, w, unit, search);
        let qs = nibbles(&codes);
        Q4_0 { d, qs }
    }
}

impl Fit for Q4_1 {
    const PLAIN: Search = Search::Brief;

    fn fit(x: &[f32], w: &[f32], unit: Unit, search: Search) -> Self {
        let (d, m, codes) = shifted(Ints::<0, 15>, x, w, unit, search);
        let qs = nibbles(&codes);
        Q4_1 { d, m, qs }
    }
}

impl Fit for Q5_0 {
    const PLAIN: Search = Search::Brief;

    fn fit(x: &[f32], w: &[f32], unit: Unit, search: Search) -> Self {
        let (d, codes) = scaled(Ints::<-16, 15>, x, w, unit, search);
        let (qh, qs) = (fifth_bits(&codes), nibbles(&codes));
        Q5_0 { d, qh, qs }
    }
}

impl Fit for Q5_1 {
    const PLAIN: Search = Search::Brief;

    fn fit(x: &[f32], w: &[f32], unit: Unit, search: Search) -> Self {
        let (d, m, codes) = shifted(Ints::<0, 31>, x, w, unit, search);
        let (qh, qs) = (fifth_bits(&codes), nibbles(&codes));
        Q5_1 { d, m, qh, qs }
    }
}

impl Fit for Q8_0 {
    const PLAIN: Search = Search::Brief;

    fn fit(x: &[f32], w: &[f32], unit: Unit, search: Search) -> Self {
        let (d, codes) = scaled(Ints::<-127, 127>, x, w, unit, search);
        let qs = codes.map(|code| code.wrapping_sub(127) as i8);
        Q8_0 { d, qs }
    }
}

impl Fit for Iq4Nl {
    fn fit(x: &[f32], w: &[f32], unit: Unit, search: Search) -> Self {
        let (d, codes) = scaled(Iq4, x, w, unit, search);
        let qs = nibbles(&codes);
        Iq4Nl { d, qs }
    }
}

impl Fit for Iq4Xs {
    fn fit(x: &[f32], w: &[f32], unit: Unit, search: Search) -> Self {
        let x = groups::<32, 8>(x);
        let fit = fit_scales(Iq4, Ints::<-32, 31>, x, groups(w), unit, search);
        let codes = all_indices(Iq4, x, &fit.steps, &[0.0; 8]);
        let scales = fit.scales.map(|scale| (scale + 32.0) as u8);
        let high = (0..8).fold(0, |bits, g| bits | u16::from(scales[g] >> 4) << (2 * g));
        let mut qs = [0; QK_K / 2];
        for (qs, codes) in qs.as_chunks_mut().0.iter_mut().zip(codes.as_chunks().0) {
            *qs = nibbles(codes);
        }
        Iq4Xs {
            d: fit.d,
            scales_h: high.to_le_bytes(),
            scales_l: std::array::from_fn(|i| scales[2 * i] & 15 | scales[2 * i + 1] << 4),
            qs,
        }
    }
}

impl Fit for Q2K {
    fn fit(x: &[f32], w: &[f32], unit: Unit, search: Search) -> Self {
        let (x, codes) = (groups::<16, 16>(x), Ints::<0, 3>);
        let fit = fit_affines(codes, Ints::<0, 15>, x, groups(w), unit, search);
        let codes = all_indices(codes, x, &fit.steps, &fit.starts);
        Q2K {
            scales: std::array::from_fn(|g| fit.scales[g] as u8 | (fit.mins[g] as u8) << 4),
            qs: two_bits(&codes, 0),
            d: fit.d,
            dmin: fit.dmin,
        }
    }
}

impl Fit for Q3K {
    const PLAIN: Search = Search::Brief;

    fn fit(x: &[f32], w: &[f32], unit: Unit, search: Search) -> Self {
        let (x, codes) = (groups::<16, 16>(x), Ints::<-4, 3>);
        let fit = fit_scales(codes, Ints::<-32, 31>, x, groups(w), unit, search);
        let codes = all_indices(codes, x, &fit.steps, &[0.0; 16]);
        Q3K {
            hmask: one_bit(&codes, 2),
            qs: two_bits(&codes, 0),
            scales: pack_q3(&fit.scales),
            d: fit.d,
        }
    }
}

impl Fit for Q4K {
    fn fit(x: &[f32], w: &[f32], unit: Unit, search: Search) -> Self {
        let (x, codes) = (groups::<32, 8>(x), Ints::<0, 15>);
        let fit = fit_affines(codes, Ints::<0, 63>, x, groups(w), unit, search);
        let codes = all_indices(codes, x, &fit.steps, &fit.starts);
        Q4K {
            d: fit.d,
            dmin: fit.dmin,
            scales: pack_k4(&fit.scales, &fit.mins),
            qs: four_bits(&codes, 32),
        }
    }
}

impl Fit for Q5K {
    fn fit(x: &[f32], w: &[f32], unit: Unit, search: Search) -> Self {
        let (x, codes) = (groups::<32, 8>(x), Ints::<0, 31>);
        let fit = fit_affines(codes, Ints::<0, 63>, x, groups(w), unit, search);
        let codes = all_indices(codes, x, &fit.steps, &fit.starts);
        Q5K {
            d: fit.d,
            dmin: fit.dmin,
            scales: pack_k4(&fit.scales, &fit.mins),
            qh: one_bit(&codes, 4),
            qs: four_bits(&codes, 32),
        }
    }
}

impl Fit for Q6K {
    fn fit(x: &[f32], w: &[f32], unit: Unit, search: Search) -> Self {
        let (x, codes) = (groups::<16, 16>(x), Ints::<-32, 31>);
        let fit = fit_scales(codes, Ints::<-128, 127>, x, groups(w), unit, search);
        let codes = all_indices(codes, x, &fit.steps, &[0.0; 16]);
        Q6K {
            ql: four_bits(&codes, 64),
            qh: two_bits(&codes, 4),
            scales: fit.scales.map(|scale| scale as i8),
            d: fit.d,
        }
    }
}

/// Fits a whole block with a scale. Returns it and the codes, counted from the least.
fn whole<C: Codes, const N: usize>(
    codes: C,
    x: &[f32],
    w: &[f32],
    unit: Unit,
    search: Search,
) -> (F16, [u8; N]) {
    let (x, w) = (x.try_into(), w.try_into());
    let (x, w): (&[f32; N], &[f32; N]) = (x.expect("a block"), w.expect("a block"));
    let d = fit_half(codes, x, w, unit, search);
    (d.stored, indices(codes, x, inverse(d.value), 0.0))
}

impl Fit for Q2_0 {
    fn fit(x: &[f32], w: &[f32], unit: Unit, search: Search) -> Self {
        let (d, codes) = whole::<_, 64>(Ints::<-1, 2>, x, w, unit, search);
        Q2_0::of(d, |i| codes[i])
    }
}

impl Fit for Tq1_0 {
    fn fit(x: &[f32], w: &[f32], unit: Unit, search: Search) -> Self {
        let (d, codes) = whole::<_, QK_K>(Ints::<-1, 1>, x, w, unit, search);
        Tq1_0::of(d, |i| codes[i])
    }
}

impl Fit for Tq2_0 {
    fn fit(x: &[f32], w: &[f32], unit: Unit, search: Search) -> Self {
        let (d, codes) = whole::<_, QK_K>(Ints::<-1, 1>, x, w, unit, search);
        Tq2_0::of(d, |i| codes[i])
    }
}
