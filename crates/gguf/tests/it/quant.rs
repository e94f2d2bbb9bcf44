//! Compares every conversion bit for bit with the Python packages `gguf` and `ml_dtypes`, whose results
//! `fixtures/make.py` wrote.

use std::path::{Path, PathBuf};

use rocmforge_gguf::quant::grids;
use rocmforge_gguf::quant::mxfp6::Mxfp6;
use rocmforge_gguf::{Error, GgmlType, quant};
use zerocopy::IntoBytes as _;

fn fixture(name: &str) -> Vec<u8> {
    let path: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures")
        .join(name);
    std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn f32s(bytes: &[u8]) -> Vec<f32> {
    let words = bytes.as_chunks().0;
    words.iter().map(|b| f32::from_le_bytes(*b)).collect()
}

fn same(a: f32, b: f32) -> bool {
    a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan())
}

#[test]
fn dequantize_matches_the_python_package() {
    let mut n_types = 0;
    for &ty in GgmlType::ALL.iter().filter(|ty| ty.can_dequantize()) {
        let blocks = fixture(&format!("dequantize/{}.blocks", ty.name()));
        let expected = f32s(&fixture(&format!("dequantize/{}.f32", ty.name())));
        let mut got = vec![0.5; expected.len()];
        quant::dequantize(ty, &blocks, &mut got).unwrap();
        for (i, (&g, &e)) in got.iter().zip(&expected).enumerate() {
            assert!(same(g, e), "{} value {i}: {g:e}, expected {e:e}", ty.name());
        }
        assert!(expected.iter().any(|e| e.is_finite() && *e != 0.0));
        n_types += 1;
    }
    assert_eq!(n_types, 28);
}

#[test]
fn quantize_matches_the_python_package() {
    let input = f32s(&fixture("quantize/input.f32"));
    for ty in [
        GgmlType::F16,
        GgmlType::BF16,
        GgmlType::Q8_0,
        GgmlType::Q4_0,
        GgmlType::MXFP4,
        GgmlType::Q1_0,
        GgmlType::Q2_0,
        GgmlType::TQ1_0,
        GgmlType::TQ2_0,
        GgmlType::NVFP4,
    ] {
        let expected = fixture(&format!("quantize/{}.blocks", ty.name()));
        let mut got = vec![0; expected.len()];
        quant::quantize(ty, &input, &mut got).unwrap();
        for (i, (g, e)) in got
            .chunks(ty.block_bytes())
            .zip(expected.chunks(ty.block_bytes()))
            .enumerate()
        {
            assert_eq!(g, e, "{} block {i}", ty.name());
        }
    }
}

#[test]
fn f16_and_bf16_rounding_matches_at_the_edges() {
    let input = f32s(&fixture("quantize/special.f32"));
    for ty in [GgmlType::F16, GgmlType::BF16] {
        let expected = fixture(&format!("quantize/{}.special", ty.name()));
        let mut got = vec![0; expected.len()];
        quant::quantize(ty, &input, &mut got).unwrap();
        let values = |bytes: &[u8]| {
            let mut out = vec![0.0; input.len()];
            quant::dequantize(ty, bytes, &mut out).unwrap();
            out
        };
        for ((g, e), x) in values(&got).iter().zip(values(&expected)).zip(&input) {
            assert!(same(*g, e), "{} of {x:e}: {g:e}, expected {e:e}", ty.name());
        }
    }
}

fn check_mxfp6<const MANTISSA: u32>(name: &str) {
    let read = |kind: &str| fixture(&format!("mxfp6/{name}.{kind}"));
    for (code, expected) in f32s(&read("numbers")).into_iter().enumerate() {
        let number = Mxfp6::<MANTISSA>::number(code as u8);
        assert!(same(number, expected), "{name} code {code}: {number}");
    }
    let (cases, codes) = (f32s(&read("cases")), read("codes"));
    assert!(cases.len() > 300 && cases.len() == codes.len());
    for (x, expected) in cases.into_iter().zip(codes) {
        assert_eq!(Mxfp6::<MANTISSA>::nearest(x), expected, "{name} of {x:e}");
    }
    let (input, expected) = (f32s(&fixture("quantize/input.f32")), read("blocks"));
    let mut n_blocks = 0;
    for (values, expected) in input.as_chunks().0.iter().zip(expected.chunks(25)) {
        let block = Mxfp6::<MANTISSA>::quantize(values);
        assert_eq!(block.as_bytes(), expected, "{name} of {values:?}");
        // The values of the codes times the scale, with each bit extracted separately.
        let mut out = [0.5; 32];
        block.dequantize(&mut out);
        let scale = 2f64.powi(i32::from(expected[0]) - 127);
        for (i, x) in out.into_iter().enumerate() {
            let bit = |k: usize| (expected[1 + k / 8] >> (k % 8) & 1) << (k - 6 * i);
            let code = (6 * i..6 * i + 6).map(bit).sum();
            let expected = scale * f64::from(Mxfp6::<MANTISSA>::number(code));
            assert_eq!(f64::from(x), expected, "{name} value {i}");
        }
        n_blocks += 1;
    }
    assert_eq!(n_blocks, 24);
    for wrong in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let mut values = [1.0; 32];
        values[31] = wrong;
        let block = Mxfp6::<MANTISSA>::quantize(&values);
        let mut out = [0.5; 32];
        block.dequantize(&mut out);
        assert!(block.e == 255 && out.iter().all(|x| x.is_nan()));
    }
}

#[test]
fn mxfp6_matches_ml_dtypes() {
    check_mxfp6::<3>("E2M3");
    check_mxfp6::<2>("E3M2");
}

#[test]
fn rejects_mismatched_lengths() {
    for (bytes, values) in [(17, 32), (18, 31), (18, 64), (36, 32), (0, 32), (18, 0)] {
        let mut dst = vec![0.0; values];
        let error = quant::dequantize(GgmlType::Q4_0, &vec![0; bytes], &mut dst).unwrap_err();
        assert!(matches!(error, Error::LengthMismatch { .. }), "{error}");
        let mut dst = vec![0; bytes];
        let error = quant::quantize(GgmlType::Q4_0, &vec![0.0; values], &mut dst).unwrap_err();
        assert!(matches!(error, Error::LengthMismatch { .. }), "{error}");
    }
    quant::dequantize(GgmlType::Q4_0, &[], &mut []).unwrap();
}

#[test]
fn errors_name_unsupported_types() {
    let error = quant::dequantize(GgmlType::Q8_K, &[0; 292], &mut [0.0; 256]).unwrap_err();
    let text = error.to_string();
    assert!(
        text.contains("Q8_K") && text.contains("Q4_K, Q5_K"),
        "{text}"
    );
    let error = quant::quantize(GgmlType::Q4_K, &[0.0; 256], &mut [0; 144]).unwrap_err();
    assert!(error.to_string().contains("Q4_K"), "{error}");
}

#[test]
fn dequantizes_a_hand_made_q4_0_block() {
    // Scale 2, codes j in the low nibbles and 15 - j in the high ones.
    let mut block = vec![0x00, 0x40];
    block.extend((0..16u8).map(|j| j | (15 - j) << 4));
    let mut out = [0.0; 32];
    quant::dequantize(GgmlType::Q4_0, &block, &mut out).unwrap();
    for j in 0..16 {
        assert_eq!(out[j], 2.0 * (j as f32 - 8.0));
        assert_eq!(out[16 + j], 2.0 * (7.0 - j as f32));
    }
}

#[test]
fn type_table_matches_the_python_package() {
    let table = String::from_utf8(fixture("table/types.tsv")).unwrap();
    // All but Q2_0, which the package does not know.
    assert_eq!(table.lines().count() + 1, GgmlType::ALL.len());
    for line in table.lines() {
        let fields: Vec<&str> = line.split('\t').collect();
        let number = |i: usize| fields[i].parse::<usize>().unwrap();
        let ty = GgmlType::from_id(number(0) as u32).expect(line);
        // The package still has the Q8_1 of 2023, with two f32; ggml's block has
        // two f16 (ggml-common.h). No file holds either.
        let bytes = if ty == GgmlType::Q8_1 { 36 } else { number(3) };
        let found = (ty.name(), ty.block_len(), ty.block_bytes());
        assert_eq!(found, (fields[1], number(2), bytes));
    }
}

#[test]
fn grids_match_the_python_package() {
    let check = |line: &str, words: Vec<u64>| {
        let step = |hash, word| (hash ^ word) * std::num::Wrapping(0x0100_0000_01b3);
        let words = words.into_iter().map(std::num::Wrapping);
        let n = words.len();
        let hash = words.fold(std::num::Wrapping(0xcbf2_9ce4_8422_2325), step);
        let found = format!("{n}\t{hash:016x}");
        assert_eq!(line.split_once('\t').unwrap().1, found, "{line}");
    };
    let table = String::from_utf8(fixture("table/grids.tsv")).unwrap();
    let lines: Vec<&str> = table.lines().collect();
    assert_eq!(lines.len(), 6);
    let wide = |grid: &[u32]| grid.iter().map(|word| u64::from(*word)).collect();
    check(lines[0], grids::IQ1_S.to_vec());
    check(lines[1], grids::IQ2_XXS.to_vec());
    check(lines[2], grids::IQ2_XS.to_vec());
    check(lines[3], grids::IQ2_S.to_vec());
    check(lines[4], wide(&grids::IQ3_XXS));
    check(lines[5], wide(&grids::IQ3_S));
}

#[test]
fn type_table_is_consistent() {
    for &ty in GgmlType::ALL {
        assert_eq!(GgmlType::from_id(ty.id()), Some(ty));
        assert_eq!(GgmlType::from_name(ty.name()), Some(ty));
        assert_eq!(
            GgmlType::from_name(&ty.name().to_lowercase()),
            Some(ty),
            "GGML's own spelling mixes cases"
        );
        assert_eq!(ty.row_bytes(2 * ty.block_len()), Some(2 * ty.block_bytes()));
        if ty.block_len() > 1 {
            assert_eq!(ty.row_bytes(ty.block_len() + 1), None);
        }
        let expected = (usize::MAX / ty.block_len()).checked_mul(ty.block_bytes());
        let longest = usize::MAX / ty.block_len() * ty.block_len();
        assert_eq!(ty.row_bytes(longest), expected);
    }
    for id in [4, 5, 31, 33, 36, 38, 43, 1000, u32::MAX] {
        assert_eq!(GgmlType::from_id(id), None);
    }
    assert_eq!(GgmlType::from_name("Q4_2"), None);
}
