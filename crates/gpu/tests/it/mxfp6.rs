//! MXFP6, bit for bit against the scalar code: every code with every scale.

use crate::common;
use half::f16;
use rocmforge_gguf::quant::mxfp6;
use rocmforge_gpu::ops::{self, Mxfp6};
use zerocopy::IntoBytes as _;

/// Blocks with all 256 scales, two for each, which together have all 64 codes.
fn all_blocks<const MANTISSA: u32>() -> Vec<mxfp6::Mxfp6<MANTISSA>> {
    (0..=255u8)
        .flat_map(|e| [0, 32].map(|first| (e, first)))
        .map(|(e, first)| {
            let mut codes = [0u8; 24];
            for i in 0..32 {
                for bit in (0..6).filter(|bit| (first + i) >> bit & 1 == 1) {
                    let at = 6 * i + bit;
                    codes[at / 8] |= 1 << (at % 8);
                }
            }
            mxfp6::Mxfp6 { e, codes }
        })
        .collect()
}

/// The bits of each value; all NaNs are equal.
fn bits(values: impl IntoIterator<Item = f32>) -> Vec<Option<u32>> {
    let bits = |x: f32| (!x.is_nan()).then(|| x.to_bits());
    values.into_iter().map(bits).collect()
}

fn check<const MANTISSA: u32>(format: Mxfp6) {
    let blocks = all_blocks::<MANTISSA>();
    let mut expected = Vec::new();
    for block in &blocks {
        let mut values = [0.0; 32];
        block.dequantize(&mut values);
        expected.extend(values);
    }
    for gpu in common::gpus() {
        let bytes = gpu.upload(blocks.as_bytes()).unwrap();
        let out = gpu.alloc::<f32>(expected.len()).unwrap();
        ops::dequantize_mxfp6(&gpu, format, bytes.as_slice(), out.as_slice()).unwrap();
        let found = gpu.read(out.as_slice::<f32>()).unwrap();
        assert_eq!(bits(found), bits(expected.iter().copied()), "{format:?}");

        let out = gpu.alloc::<u16>(expected.len()).unwrap();
        ops::dequantize_mxfp6_f16(&gpu, format, bytes.as_slice(), out.as_slice()).unwrap();
        let found = gpu.read(out.as_slice::<u16>()).unwrap();
        let found = found.into_iter().map(|x| f16::from_bits(x).to_f32());
        let rounded = expected.iter().map(|&x| f16::from_f32(x).to_f32());
        assert_eq!(bits(found), bits(rounded), "{format:?}");
    }
}

#[test]
fn e2m3() {
    check::<3>(Mxfp6::E2M3);
}

#[test]
fn e3m2() {
    check::<2>(Mxfp6::E3M2);
}
