//! Dequantized rows of weights, bit for bit against the scalar code.

use crate::common;
use crate::common::formats::for_each_format;
use crate::common::weights::{Fill, Packed, Random, blocks, values};
use half::f16;
use rocmforge_gguf::GgmlType;
use rocmforge_gpu::{Gpu, OutMode, ops};

const N_OUT: usize = 7;

/// Row lengths: whole chunks, and for float formats a partial last chunk.
fn widths(ty: GgmlType) -> Vec<usize> {
    match ty.block_len() {
        // More values than a block of threads handles at once.
        1 => vec![101, 352],
        // More chunks than a block has threads.
        256 => vec![5 * 256],
        len => vec![3 * len],
    }
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}

/// Runs `test` for every device and kind of block, with the matrix and its values.
fn for_all(ty: GgmlType, test: impl Fn(&Gpu, &Packed, &[f32], &str)) {
    for gpu in common::gpus_of(ty) {
        for n_in in widths(ty) {
            for fill in [Fill::Random, Fill::Ones, Fill::ZeroScales, Fill::TinyScales] {
                let file = blocks(ty, N_OUT * n_in, fill, &mut Random(ty.id().into()));
                let packed = Packed::new(&gpu, ty, N_OUT, n_in, &file);
                let what = format!("{} {} {n_in} {fill:?}", gpu.target(), ty.name());
                test(&gpu, &packed, &values(ty, &file), &what);
            }
        }
    }
}

for_each_format!(dequantized_bits);

fn dequantized_bits(ty: GgmlType) {
    for_all(ty, |gpu, packed, expected, what| {
        // With and without the alignment for stores of 16 bytes.
        for first in [0, 1] {
            let out = gpu.alloc::<f32>(first + expected.len()).unwrap();
            let out = out.as_slice().part(first..first + expected.len());
            ops::dequantize(gpu, &packed.matrix(), out).unwrap();
            assert_eq!(bits(&gpu.read(out).unwrap()), bits(expected), "{what}");
        }

        let out = gpu.alloc::<u16>(expected.len()).unwrap();
        ops::dequantize_f16(gpu, &packed.matrix(), out.as_slice()).unwrap();
        let found = gpu.read(out.as_slice::<u16>()).unwrap();
        let expected: Vec<u16> = expected
            .iter()
            .map(|&x| f16::from_f32(x).to_bits())
            .collect();
        assert_eq!(found, expected, "{what}");
    });
}

for_each_format!(rows_by_id);

fn rows_by_id(ty: GgmlType) {
    for_all(ty, |gpu, packed, table, what| {
        let (n_in, scale) = (packed.n_in, 1.7f32);
        let ids = [3u32, 0, 6, 3, 99];
        let before = Random(5).values(ids.len() * n_in);
        let wanted = ids
            .iter()
            .flat_map(|&id| &table[(id as usize).min(N_OUT - 1) * n_in..][..n_in]);
        let scaled: Vec<f32> = wanted.map(|x| x * scale).collect();
        let summed: Vec<f32> = scaled.iter().zip(&before).map(|(x, y)| x + y).collect();
        let ids = gpu.upload(&ids).unwrap();
        for (mode, expected) in [(OutMode::Store, scaled), (OutMode::Add, summed)] {
            let out = gpu.upload(&before).unwrap();
            let matrix = packed.matrix();
            ops::get_rows(gpu, &matrix, ids.as_slice(), scale, mode, out.as_slice()).unwrap();
            let found = gpu.read(out.as_slice::<f32>()).unwrap();
            assert_eq!(bits(&found), bits(&expected), "{what} {mode:?}");
        }
    });
}

#[test]
fn packed_size_is_close_to_file_size() {
    for gpu in common::gpus() {
        let formats = GgmlType::COMPUTED.iter();
        for &ty in formats.filter(|&&ty| common::has_format(&gpu, ty)) {
            let (n_out, n_in) = (256, 2048);
            let file = (n_out * ty.row_bytes(n_in).unwrap()) as f64;
            let packed = ops::packed_bytes(&gpu, ty, n_out, n_in).unwrap() as f64;
            let most = match ty {
                // 8-bit instead of 6-bit scales.
                GgmlType::Q3_K => 1.04,
                // Eight bytes for scales and d, which are six.
                GgmlType::IQ3_S => 1.02,
                // Two bits for each digit, of which a byte has five.
                GgmlType::TQ1_0 => 1.23,
                _ => 1.0,
            };
            // The range of its scales, or of BF16 weights.
            let has_range = !matches!(ty, GgmlType::F32 | GgmlType::F16);
            let range = if has_range { 256.0 } else { 0.0 };
            assert!(
                (file..=most * file + range).contains(&packed),
                "{}: {packed} for {file}",
                ty.name()
            );
        }
    }
}

#[test]
fn unsupported_formats_are_errors() {
    for gpu in common::gpus() {
        let text = ops::packed_bytes(&gpu, GgmlType::Q8_K, 4, 256)
            .unwrap_err()
            .to_string();
        assert!(text.contains("Q8_K"), "{text}");
    }
}
