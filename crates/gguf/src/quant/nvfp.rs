//! NVFP4: 64 E2M1 values, and an unsigned E4M3 scale for each 16. A factor for the whole tensor lies beside it in files.
//! After ggml `ggml-quants.c` (`dequantize_row_nvfp4`).

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::mxfp::KVALUES_MXFP4;
use super::{Block, GgmlType, QuantizeBlock, nibbles};

/// x = scale / 2 * table\[q\], groups of 16
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Nvfp4 {
    /// E4M3 scales; their highest bit means nothing
    pub d: [u8; 4],
    /// codes; each group of 16 has its first eight values in the low nibbles of eight bytes
    pub qs: [[u8; 8]; 4],
}

/// Half of an unsigned E4M3 scale. The code of NaN is 0, as in ggml.
#[inline]
pub const fn e4m3_half(code: u8) -> f32 {
    if code == 0x7f {
        return 0.0;
    }
    // Exponent field 0 means the exponent of field 1 without the leading one.
    let (exponent, mantissa) = (code as u32 >> 3 & 15, code as u32 & 7);
    let (integer, power) = match exponent {
        0 => (mantissa, 1),
        _ => (mantissa | 8, exponent),
    };
    integer as f32 * f32::from_bits((power + 127 - 11) << 23)
}

impl Block for Nvfp4 {
    const TYPE: GgmlType = GgmlType::NVFP4;

    fn dequantize(&self, out: &mut [f32]) {
        for ((out, qs), d) in out.chunks_exact_mut(16).zip(&self.qs).zip(self.d) {
            let d = e4m3_half(d);
            for (x, q) in out.iter_mut().zip(nibbles::<8, 16>(qs)) {
                *x = d * f32::from(KVALUES_MXFP4[usize::from(q)]);
            }
        }
    }
}

/// The code nearest to a scale. As in ggml, ties round up, and 256 becomes the largest number.
fn nearest_e4m3(scale: f32) -> u8 {
    const LARGEST: u8 = 0x7e;
    if scale < 1.0 / 64.0 {
        // Without a leading one, in steps of 2^-9.
        return (scale * 512.0 + 0.5).min(7.0) as u8;
    }
    // The upper three bits of the mantissa, rounded; a carry goes to the exponent.
    let rounded = (scale.to_bits() >> 19).div_ceil(2);
    let code = i64::from(rounded) - ((127 - 7) << 3);
    match code {
        0x78.. => LARGEST,
        code => code as u8,
    }
}

impl QuantizeBlock for Nvfp4 {
    /// The scale maps the largest magnitude to 6, the largest number.
    fn quantize(values: &[f32]) -> Self {
        let mut block = Nvfp4 {
            d: [0; 4],
            qs: [[0; 8]; 4],
        };
        for (g, values) in values.as_chunks::<16>().0.iter().enumerate() {
            let amax = values.iter().fold(0.0f32, |m, x| m.max(x.abs()));
            block.d[g] = nearest_e4m3(amax / 6.0);
            let d = e4m3_half(block.d[g]);
            let code = |x: f32| {
                let error = |q: u8| (f32::from(KVALUES_MXFP4[usize::from(q)]) * d - x).abs();
                let nearer = |best, q| if error(q) < error(best) { q } else { best };
                (1..16).fold(0, nearer)
            };
            block.qs[g] = std::array::from_fn(|i| code(values[i]) | code(values[i + 8]) << 4);
        }
        block
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compared with the numbers of `f8`, whose tests have their own oracle.
    #[test]
    fn scales_are_half_of_e4m3() {
        for code in 0..0x7f {
            let number = crate::quant::f8::number(code);
            assert_eq!(2.0 * e4m3_half(code), number, "{code}");
            assert_eq!(e4m3_half(code | 0x80), e4m3_half(code));
        }
        assert_eq!((e4m3_half(0x7f), e4m3_half(0xff)), (0.0, 240.0));
    }
}
