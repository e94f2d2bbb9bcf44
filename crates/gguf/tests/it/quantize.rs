//! Errors of the quantizers compared with those of llama.cpp on the same values (a table from `cargo xtask
//! quant-errors`), and rejected inputs.

use std::path::PathBuf;

use rocmforge_gguf::{Error, GgmlType, Gguf, LoadMode, TensorInfo, quant};

use crate::inputs::{self, ROW};

/// A row of the table: the error of llama.cpp.
struct Expected {
    input: String,
    ty: GgmlType,
    weighted: bool,
    left: Left,
}

/// Errors of a tensor, by two weightings.
struct Left {
    /// Σ importance * error²
    square: f64,
    /// Σ importance * value² * error²
    of_large: f64,
}

fn table() -> Vec<Expected> {
    include_str!("../fixtures/errors/llama_cpp.tsv")
        .lines()
        .map(|line| {
            let fields: Vec<&str> = line.split('\t').collect();
            Expected {
                input: fields[0].to_owned(),
                ty: GgmlType::from_name(fields[1]).unwrap(),
                weighted: fields[2] == "1",
                left: Left {
                    square: fields[3].parse().unwrap(),
                    of_large: fields[4].parse().unwrap(),
                },
            }
        })
        .collect()
}

/// Quantizes and dequantizes `x`.
fn restored(ty: GgmlType, x: &[f32], row_len: usize, importance: Option<&[f32]>) -> Vec<f32> {
    let mut bytes = vec![0xff; ty.row_bytes(x.len()).unwrap()];
    quant::quantize_rows(ty, x, row_len, importance, &mut bytes).unwrap();
    let mut back = vec![0.0; x.len()];
    quant::dequantize(ty, &bytes, &mut back).unwrap();
    back
}

fn left(ty: GgmlType, x: &[f32], row_len: usize, importance: Option<&[f32]>) -> Left {
    let mut left = Left {
        square: 0.0,
        of_large: 0.0,
    };
    let back = restored(ty, x, row_len, importance);
    for (i, (x, y)) in x.iter().zip(&back).enumerate() {
        let (x, y) = (f64::from(*x), f64::from(*y));
        let weight = importance.map_or(1.0, |w| f64::from(w[i % row_len]));
        left.square += weight * (y - x) * (y - x);
        left.of_large += weight * (y - x) * (y - x) * x * x;
    }
    left
}

/// Tolerance for the digits of the table.
const ROUNDING: f64 = 1.0 + 1e-6;

/// Compares one input in every format. Returns those with a larger error.
fn compare(rows: &[Expected], input: &str, x: &[f32], row_len: usize) -> Vec<String> {
    let importance = inputs::importance(row_len);
    let mut worse = Vec::new();
    for row in rows.iter().filter(|row| row.input == input) {
        let left = left(row.ty, x, row_len, row.weighted.then_some(&importance[..]));
        let root = |a: f64, b: f64| (a / b).sqrt();
        let line = format!(
            "{:8} {} {input:26} {:7.4} {:7.4}",
            row.ty.name(),
            u8::from(row.weighted),
            root(left.square, row.left.square),
            root(left.of_large, row.left.of_large),
        );
        println!("{line}");
        if left.square > row.left.square * ROUNDING {
            worse.push(line);
        } else if input.contains("weight")
            && !row.weighted
            && left.of_large > row.left.of_large * ROUNDING
        {
            worse.push(format!("{line} (of large values)"));
        }
    }
    worse
}

#[test]
fn errors_do_not_exceed_llama_cpp() {
    let rows = table();
    let mut worse = Vec::new();
    for (name, x) in inputs::inputs() {
        assert_eq!(rows.iter().filter(|row| row.input == name).count(), 47);
        worse.extend(compare(&rows, name, &x, ROW));
    }
    assert!(worse.is_empty(), "{}", worse.join("\n"));
}

#[test]
fn errors_on_a_model_do_not_exceed_llama_cpp() {
    compare_tensors(3);
}

#[test]
#[ignore = "exhaustive: more tensors"]
fn errors_on_more_of_a_model_do_not_exceed_llama_cpp() {
    compare_tensors(8);
}

/// Compares the first tensors that llama.cpp's errors are known of.
fn compare_tensors(n: usize) {
    let Some(data) = std::env::var_os("ROCMFORGE_CONFORMANCE_DATA").map(PathBuf::from) else {
        println!("skipped: ROCMFORGE_CONFORMANCE_DATA is not set");
        return;
    };
    let rows = table();
    let path = data.join("models/forge-mini-F16.gguf");
    let file = Gguf::open(&path, LoadMode::Mmap).unwrap();
    let mut worse = Vec::new();
    let mut n_compared = 0;
    let is_known = |t: &&TensorInfo| rows.iter().any(|row| row.input == t.name);
    for t in file.tensors().iter().filter(is_known).take(n) {
        let row_len = t.dims[0] as usize;
        let n_rows = t.dims[1].min(256) as usize;
        let mut x = vec![0.0; n_rows * row_len];
        let bytes = &file.tensor_data(t)[..t.ty.row_bytes(x.len()).unwrap()];
        quant::dequantize(t.ty, bytes, &mut x).unwrap();
        worse.extend(compare(&rows, &t.name, &x, row_len));
        n_compared += 1;
    }
    assert_eq!(n_compared, n);
    assert!(worse.is_empty(), "{}", worse.join("\n"));
}

fn searched() -> impl Iterator<Item = GgmlType> {
    let types = GgmlType::ALL.iter().copied();
    types.filter(|&ty| quant::can_quantize(ty) && ty.block_len() > 1)
}

/// With values of every magnitude and weights of every size, results are finite and no block is much worse than all
/// zeros.
#[test]
fn extreme_magnitudes_and_weights_stay_finite() {
    let values = inputs::extremes();
    let mut weights = inputs::importance(ROW);
    for (i, weight) in weights.iter_mut().enumerate() {
        *weight = (*weight * [1e37, 1.0, 1e-38, 1e-45, 0.0][i / 32 % 5]).min(f32::MAX);
    }
    assert_eq!(searched().count(), 25);
    for ty in searched() {
        let mut values = values.clone();
        if ty == GgmlType::NVFP4 {
            // Without a factor for the tensor, its numbers are smaller.
            values
                .iter_mut()
                .for_each(|x| *x = x.clamp(-2688.0, 2688.0));
        }
        for importance in [None, Some(&weights[..]), Some(&[0.0; ROW][..])] {
            let back = restored(ty, &values, ROW, importance);
            let blocks = values
                .chunks(ty.block_len())
                .zip(back.chunks(ty.block_len()));
            for (i, (x, y)) in blocks.enumerate() {
                assert!(y.iter().all(|y| y.is_finite()), "{} block {i}", ty.name());
                let energy: f64 = x.iter().map(|x| f64::from(*x).powi(2)).sum();
                let error = |(x, y): (&f32, &f32)| (f64::from(*x) - f64::from(*y)).powi(2);
                let error: f64 = x.iter().zip(y).map(error).sum();
                let weighted = importance.is_some();
                assert!(
                    weighted || error <= 1.25 * energy,
                    "{} block {i}: {error:e} of {energy:e}",
                    ty.name()
                );
            }
        }
    }
}

#[test]
fn rejects_unrepresentable_values() {
    for ty in searched().chain([GgmlType::F32, GgmlType::F16, GgmlType::BF16]) {
        let too_large = match ty {
            GgmlType::F16 => 65520.0,
            GgmlType::NVFP4 => 2700.0,
            _ => 1e30,
        };
        let mut wrong = vec![f32::NAN, f32::INFINITY, f32::NEG_INFINITY];
        if !matches!(ty, GgmlType::F32 | GgmlType::BF16 | GgmlType::MXFP4) {
            wrong.extend([too_large, -too_large]);
        }
        for value in wrong {
            let mut x = vec![0.5; 3 * 256];
            x[2 * 256 + 77] = value;
            let mut bytes = vec![0; ty.row_bytes(x.len()).unwrap()];
            let error = quant::quantize_rows(ty, &x, 256, None, &mut bytes).unwrap_err();
            let named = matches!(
                error,
                Error::Unrepresentable {
                    row: 2,
                    column: 77,
                    ..
                }
            );
            assert!(named, "{}: {error}", ty.name());
        }
    }
}

#[test]
fn rejects_invalid_lengths_and_weights() {
    let (x, mut bytes) = ([0.5; 512], [0; 288]);
    let mut quantize = |n_values: usize, row_len, importance: Option<&[f32]>, n_bytes: usize| {
        let bytes = &mut bytes[..n_bytes];
        quant::quantize_rows(GgmlType::Q4_K, &x[..n_values], row_len, importance, bytes)
    };
    quantize(512, 256, Some(&[1.0; 256]), 288).unwrap();
    quantize(512, 512, None, 288).unwrap();
    quantize(0, 0, None, 0).unwrap();
    for (n_values, row_len) in [(512, 128), (512, 384), (512, 1024), (512, 0), (256, 512)] {
        let error = quantize(n_values, row_len, None, 288).unwrap_err();
        assert!(matches!(error, Error::NotWholeRows { .. }), "{error}");
    }
    let error = quantize(512, 256, None, 144).unwrap_err();
    assert!(matches!(error, Error::LengthMismatch { .. }), "{error}");
    let error = quantize(512, 256, Some(&[1.0; 512]), 288).unwrap_err();
    assert!(matches!(error, Error::ImportanceLength { .. }), "{error}");
    for wrong in [-1.0, f32::NAN, f32::INFINITY] {
        let mut importance = [1.0; 256];
        importance[99] = wrong;
        let error = quantize(512, 256, Some(&importance), 288).unwrap_err();
        assert!(
            matches!(error, Error::Importance { column: 99, .. }),
            "{error}"
        );
    }
}

/// Splitting a tensor by rows gives the same bytes.
#[test]
fn rows_are_quantized_independently() {
    let (_, x) = inputs::inputs().swap_remove(1);
    let importance = inputs::importance(ROW);
    for ty in searched() {
        let row_bytes = ty.row_bytes(ROW).unwrap();
        let mut all = vec![0; row_bytes * (x.len() / ROW)];
        quant::quantize_rows(ty, &x, ROW, Some(&importance), &mut all).unwrap();
        for (x, expected) in x.chunks(ROW).zip(all.chunks(row_bytes)) {
            let mut one = vec![0; row_bytes];
            quant::quantize_rows(ty, x, ROW, Some(&importance), &mut one).unwrap();
            assert_eq!(one, expected, "{}", ty.name());
        }
    }
}
