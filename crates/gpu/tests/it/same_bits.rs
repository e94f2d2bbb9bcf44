//! The variants `rows=prompt` and `rows=answer`: a row has the same bits whatever the number of rows.

use rocmforge_gguf::GgmlType;
use rocmforge_gpu::ops::{self, Product};
use rocmforge_gpu::{ActsBuffer, Gpu, OutMode};
use rocmforge_plan::act_format;

use crate::common;
use crate::common::weights::{Fill, Packed, Random, blocks};

/// Products of the first rows of `x` [most, n_in].
fn of_rows(gpu: &Gpu, weights: &Packed, x: &[f32], [n_rows, most]: [usize; 2]) -> Vec<f32> {
    let matrix = weights.matrix();
    let acts = ActsBuffer::new(gpu, act_format(matrix.ty), most, matrix.n_in).unwrap();
    let x = gpu.upload(&x[..n_rows * matrix.n_in]).unwrap();
    ops::quantize(gpu, x.as_slice(), &acts.rows(n_rows)).unwrap();
    let out = gpu.alloc::<f32>(n_rows * matrix.n_out).unwrap();
    let product = Product {
        matrix,
        bias: None,
        mode: OutMode::Store,
        out: out.as_slice(),
    };
    ops::products(gpu, &acts.rows(n_rows), &[product]).unwrap();
    gpu.read(out.as_slice::<f32>()).unwrap()
}

#[test]
fn of_products() {
    let types = [GgmlType::F32, GgmlType::F16, GgmlType::Q8_0, GgmlType::Q4_K];
    let [n_out, n_in] = [144, 1280];
    for (turn, gpu) in common::gpus_of_all(types).enumerate() {
        for ty in common::every_second(types, turn) {
            let random = &mut Random(ty as u64);
            let file = blocks(ty, n_out * n_in, Fill::Random, random);
            let weights = Packed::new(&gpu, ty, n_out, n_in, &file);
            for (variant, most, fewer) in [
                ("rows=prompt", 150, [1, 9, 40]),
                ("rows=answer", 64, [1, 9, 33]),
            ] {
                let gpu = gpu.with_variants(variant.parse().unwrap());
                let x = random.values(most * n_in);
                let all = of_rows(&gpu, &weights, &x, [most; 2]);
                for n_rows in fewer {
                    let found = of_rows(&gpu, &weights, &x, [n_rows, most]);
                    let name = format!("{}, {variant}, {n_rows} rows", common::name(&gpu));
                    assert!(found == all[..n_rows * n_out], "{}: {name}", ty.name());
                }
            }
        }
    }
}
