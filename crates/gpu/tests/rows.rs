//! Rows of weights, bit for bit against the scalar code that defines the formats.

mod common;
#[path = "common/weights.rs"]
mod weights;

use half::f16;
use rocmforge_gguf::GgmlType;
use rocmforge_gpu::{Gpu, OutMode, ops};
use weights::{FORMATS, Fill, Packed, Random, blocks, values};

const N_OUT: usize = 7;

/// Rows that end within a chunk, where a format has them, and whole ones.
fn widths(ty: GgmlType) -> Vec<usize> {
    match ty.block_len() {
        // More values than those of a block of threads.
        1 => vec![101, 352],
        // More chunks than a block has threads.
        256 => vec![5 * 256],
        len => vec![3 * len],
    }
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}

/// Runs `test` for every device, format and kind of block, with the matrix and its values.
fn for_all(test: impl Fn(&Gpu, &Packed, &[f32], &str)) {
    for gpu in common::gpus() {
        for (ty, n_in) in FORMATS
            .iter()
            .flat_map(|&ty| widths(ty).into_iter().map(move |n| (ty, n)))
        {
            for fill in [Fill::Random, Fill::Ones, Fill::ZeroScales, Fill::TinyScales] {
                let file = blocks(ty, N_OUT * n_in, fill, &mut Random(ty.id().into()));
                let packed = Packed::new(&gpu, ty, N_OUT, n_in, &file);
                let what = format!("{} {} {n_in} {fill:?}", gpu.target(), ty.name());
                test(&gpu, &packed, &values(ty, &file), &what);
            }
        }
    }
}

#[test]
fn dequantized_bits() {
    for_all(|gpu, packed, expected, what| {
        // Where 16 bytes can be stored at once, and where they cannot.
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

#[test]
fn rows_by_id() {
    for_all(|gpu, packed, table, what| {
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
fn bytes_are_about_those_of_the_file() {
    for gpu in common::gpus() {
        for ty in FORMATS {
            let (n_out, n_in) = (256, 2048);
            let file = (n_out * ty.row_bytes(n_in).unwrap()) as f64;
            let packed = ops::packed_bytes(&gpu, ty, n_out, n_in).unwrap() as f64;
            // Q3_K has scales of a byte instead of six bits.
            let most = if ty == GgmlType::Q3_K { 1.04 } else { 1.0 };
            assert!(
                (file..=most * file).contains(&packed),
                "{}: {packed} for {file}",
                ty.name()
            );
        }
    }
}

#[test]
fn a_format_without_kernels_is_an_error() {
    for gpu in common::gpus() {
        let text = ops::packed_bytes(&gpu, GgmlType::IQ2_XS, 4, 256)
            .unwrap_err()
            .to_string();
        assert!(text.contains("IQ2_XS"), "{text}");
    }
}
