//! Gate and up projections with their activation.

use rocmforge_gguf::GgmlType;
use rocmforge_gpu::ops::{self, Gated};
use rocmforge_gpu::{Activation, ActsBuffer, Gpu};
use rocmforge_plan::{ActFormat, act_format};

use crate::common;
use crate::common::weights::{Fill, Packed, Random, blocks};

/// The bits of activations.
pub(crate) fn bits_of(
    gpu: &Gpu,
    acts: &ActsBuffer,
    n_rows: usize,
) -> (Vec<u32>, Vec<i8>, Vec<u32>, Vec<i16>) {
    let acts = acts.rows(n_rows);
    let bits = |values: Vec<f32>| values.into_iter().map(f32::to_bits).collect();
    (
        bits(gpu.read(acts.values).unwrap()),
        gpu.read(acts.codes).unwrap(),
        bits(gpu.read(acts.scales).unwrap()),
        gpu.read(acts.sums).unwrap(),
    )
}

/// The conversion within has the bits of one after it, of products by GEMV and by GEMM.
#[test]
fn converted_results_have_the_same_bits() {
    let [n_in, n_out] = [256, 768];
    for (turn, gpu) in common::all_gpus().into_iter().enumerate() {
        let types = [GgmlType::Q4_K, GgmlType::Q8_0, GgmlType::F16];
        for ty in common::every_second(types, turn) {
            let random = &mut Random(5);
            let [gate, up] = [(); 2].map(|()| {
                let file = blocks(ty, n_out * n_in, Fill::Random, random);
                Packed::new(&gpu, ty, n_out, n_in, &file)
            });
            let bias = gpu.upload(&random.values(n_out)).unwrap();
            let forms = [ActFormat::Q8x256, ActFormat::Q8x32, ActFormat::F32];
            for (n_rows, activation, forms) in [
                (3, Activation::Silu, &forms[..]),
                (20, Activation::Silu, &forms[..1]),
                (40, Activation::Silu, &forms[1..2]),
                (40, Activation::GeluTanh, &forms[2..]),
                (40, Activation::SiluClamped { limit: 0.5 }, &forms[..1]),
            ] {
                // Of so many rows, gate and up without a bias are one GEMM where there is a kernel.
                let are_many = n_rows == 40;
                let gpu = &match are_many {
                    true => gpu.with_variants("splits=off".parse().unwrap()),
                    false => gpu.clone(),
                };
                let x = gpu.upload(&random.values(n_rows * n_in)).unwrap();
                let acts = ActsBuffer::new(gpu, act_format(ty), n_rows, n_in).unwrap();
                ops::quantize(gpu, x.as_slice(), &acts.rows(n_rows)).unwrap();
                let x = acts.rows(n_rows);
                let [out, scratch] = [(); 2].map(|()| gpu.alloc::<f32>(n_rows * n_out).unwrap());
                let gated = Gated {
                    matrices: [gate.matrix(), up.matrix()],
                    biases: [(!are_many).then_some(bias.as_slice()), None],
                    activation,
                    out: out.as_slice(),
                };
                for form in forms {
                    let [one, two] =
                        [(); 2].map(|()| ActsBuffer::new(gpu, *form, n_rows, n_out).unwrap());
                    ops::gated_products(gpu, &x, &gated, scratch.as_slice()).unwrap();
                    ops::quantize(gpu, out.as_slice(), &one.rows(n_rows)).unwrap();
                    let to = two.rows(n_rows);
                    ops::gated_products_quantized(gpu, &x, &gated, scratch.as_slice(), &to)
                        .unwrap();
                    assert!(
                        bits_of(gpu, &one, n_rows) == bits_of(gpu, &two, n_rows),
                        "{} {} {n_rows} rows {form:?}",
                        common::name(gpu),
                        ty.name()
                    );
                }
            }
        }
    }
}
