//! GEMV with 1 to 8 rows of activations, against sums in f64 over the same quantized activations.

use crate::common;
use crate::common::activations::{JOINING, activated, of_up};
use crate::common::acts::TestActs;
use crate::common::any_order;
use crate::common::formats::for_each_format;
use crate::common::weights::{Fill, Packed, Random, blocks, values};
use rocmforge_gguf::GgmlType;
use rocmforge_gpu::ops::{self, Gated, Product};
use rocmforge_gpu::{Gpu, OutMode};
use rocmforge_plan::act_format;

/// An expected value, and the root of the sum of its squared terms.
#[derive(Clone, Copy)]
struct Expected {
    value: f64,
    size: f64,
}

/// `x * w + bias` in f64, `[n_rows, n_out]`.
fn product(x: &[f64], w: &[f32], bias: Option<&[f32]>, n_in: usize) -> Vec<Expected> {
    let mut all = Vec::new();
    for x in x.chunks_exact(n_in) {
        for (o, w) in w.chunks_exact(n_in).enumerate() {
            let terms = || x.iter().zip(w).map(|(x, &w)| x * f64::from(w));
            let bias = bias.map_or(0.0, |bias| f64::from(bias[o]));
            all.push(Expected {
                value: terms().sum::<f64>() + bias,
                size: (terms().map(|term| term * term).sum::<f64>() + bias * bias).sqrt(),
            });
        }
    }
    all
}

/// Asserts an error of at most 1e-5 of the row's size. The kernels add some thousand f32 numbers in 32 lanes or more:
/// less than 100 roundings of 6e-8 of the largest partial sum. The row's largest output estimates that sum, or, if
/// terms cancel and outputs are few, the root of the sum of the squared terms.
fn assert_close(found: &[f32], expected: &[Expected], n_out: usize, what: &str) {
    assert_eq!(found.len(), expected.len());
    let rows = found.chunks_exact(n_out).zip(expected.chunks_exact(n_out));
    for (n, (found, expected)) in rows.enumerate() {
        let largest = expected
            .iter()
            .fold(0.0f64, |m, e| m.max(e.value.abs()).max(e.size));
        for (o, (&found, expected)) in found.iter().zip(expected).enumerate() {
            let error = (f64::from(found) - expected.value).abs();
            assert!(
                error <= 1e-5 * largest,
                "{what}: row {n}, output {o}: {found} for {} (largest {largest})",
                expected.value
            );
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum X {
    Random,
    /// One nonzero value in each row, at another place in each.
    OneHot,
    /// Codes of 127 and -127.
    Largest,
}

fn activations(kind: X, n_rows: usize, n_in: usize, random: &mut Random) -> Vec<f32> {
    let mut x = random.values(n_rows * n_in);
    for (i, x) in x.iter_mut().enumerate() {
        let (row, at) = (i / n_in, i % n_in);
        match kind {
            X::Random => *x *= 1.0 + (at % 7) as f32,
            X::OneHot => {
                *x = if at == (row * 97 + 31) % n_in {
                    *x
                } else {
                    0.0
                }
            }
            X::Largest => *x = if *x < -0.5 { -3.0 } else { 3.0 },
        }
    }
    x
}

#[derive(Clone, Copy, Debug)]
enum W {
    /// Quantized random numbers.
    Quantized,
    Blocks(Fill),
}

fn file(ty: GgmlType, weights: W, n_out: usize, n_in: usize, random: &mut Random) -> Vec<u8> {
    match weights {
        W::Blocks(fill) => blocks(ty, n_out * n_in, fill, random),
        W::Quantized => {
            let mut file = vec![0; n_out * ty.row_bytes(n_in).unwrap()];
            let w = random.values(n_out * n_in);
            rocmforge_gguf::quant::quantize_rows(ty, &w, n_in, None, &mut file).unwrap();
            file
        }
    }
}

/// n_rows, n_out, n_in (of quantized and of float formats), weights, activations.
const CASES: [(usize, usize, [usize; 2], W, X); 10] = [
    (1, 144, [2304, 2304], W::Blocks(Fill::Random), X::Random),
    (1, 7, [512, 100], W::Quantized, X::Random),
    (2, 7, [512, 100], W::Blocks(Fill::Ones), X::Largest),
    (3, 130, [256, 256], W::Blocks(Fill::Random), X::OneHot),
    (4, 1, [2304, 2303], W::Blocks(Fill::Random), X::Largest),
    (5, 7, [256, 33], W::Blocks(Fill::TinyScales), X::Random),
    (6, 1, [256, 4], W::Blocks(Fill::ZeroScales), X::Random),
    (7, 144, [512, 512], W::Blocks(Fill::Random), X::Random),
    (8, 7, [2304, 1000], W::Blocks(Fill::Random), X::Random),
    (1, 1, [256, 1], W::Blocks(Fill::Ones), X::OneHot),
];

for_each_format!(products);

fn products(ty: GgmlType) {
    let gpus = common::gpus_of(ty);
    for gpu in gpus.flat_map(|gpu| common::with_variants(&gpu, &["splits=off"])) {
        for (i, &(n_rows, n_out, n_in, w, x)) in CASES.iter().enumerate() {
            let n_in = n_in[usize::from(ty.block_len() == 1)];
            let what = format!(
                "{} {} [{n_rows}, {n_in}] x [{n_out}, {n_in}] {w:?} {x:?}",
                common::name(&gpu),
                ty.name()
            );
            let random = &mut Random(i as u64);
            let file = file(ty, w, n_out, n_in, random);
            let packed = Packed::new(&gpu, ty, n_out, n_in, &file);
            let x = activations(x, n_rows, n_in, random);
            let x = TestActs::new(&gpu, act_format(ty), n_in, &x);
            let bias = (i % 2 == 0).then(|| random.values(n_out));
            let before = random.values(n_rows * n_out);
            let mut expected = product(&x.exact, &values(ty, &file), bias.as_deref(), n_in);
            let mode = if i % 3 == 0 {
                OutMode::Add
            } else {
                OutMode::Store
            };
            if mode == OutMode::Add {
                for (expected, before) in expected.iter_mut().zip(&before) {
                    expected.value += f64::from(*before);
                    expected.size = expected.size.max(f64::from(before.abs()));
                }
            }
            let bias = bias.map(|bias| gpu.upload(&bias).unwrap());
            let run = || {
                let out = gpu.upload(&before).unwrap();
                let product = Product {
                    matrix: packed.matrix(),
                    bias: bias.as_ref().map(|bias| bias.as_slice()),
                    mode,
                    out: out.as_slice(),
                };
                ops::matvec(&gpu, &x.acts(), &[product]).unwrap();
                gpu.read(out.as_slice::<f32>()).unwrap()
            };
            let found = match gpu.variants().is_empty() {
                true => any_order(run),
                false => run(),
            };
            assert_close(&found, &expected, n_out, &what);
        }
    }
}

/// Computes one product in a launch of its own.
fn alone(gpu: &Gpu, x: &TestActs, packed: &Packed) -> Vec<f32> {
    let out = gpu.alloc::<f32>(x.acts().n_rows * packed.n_out).unwrap();
    let product = Product {
        matrix: packed.matrix(),
        bias: None,
        mode: OutMode::Store,
        out: out.as_slice(),
    };
    ops::matvec(gpu, &x.acts(), &[product]).unwrap();
    gpu.read(out.as_slice::<f32>()).unwrap()
}

/// Neither the number of rows nor other products in the launch change the bits of an output.
#[test]
fn results_do_not_depend_on_other_rows_or_products() {
    for gpu in common::gpus() {
        for types in [
            [GgmlType::Q4_K, GgmlType::Q6_K, GgmlType::Q4_K],
            [GgmlType::Q8_0, GgmlType::Q8_0, GgmlType::Q8_0],
            [GgmlType::Q2_K, GgmlType::IQ4_XS, GgmlType::Q3_K],
            [GgmlType::F16, GgmlType::F32, GgmlType::F16],
        ] {
            if !types.iter().all(|ty| common::has_format(&gpu, *ty)) {
                continue;
            }
            let (n_in, random) = (1024, &mut Random(9));
            let [q, k, v] = [(0, 130), (1, 33), (2, 64)].map(|(i, n_out): (usize, usize)| {
                let file = file(types[i], W::Blocks(Fill::Random), n_out, n_in, random);
                Packed::new(&gpu, types[i], n_out, n_in, &file)
            });
            let form = act_format(types[0]);
            let x = activations(X::Random, 8, n_in, random);
            for n_rows in [1, 2, 8] {
                let rows = TestActs::new(&gpu, form, n_in, &x[..n_rows * n_in]);
                let outs = [&q, &k, &v].map(|w| gpu.alloc::<f32>(n_rows * w.n_out).unwrap());
                let products = [&q, &k, &v].map(|w| w.matrix());
                let products: Vec<Product<'_>> = products
                    .iter()
                    .zip(&outs)
                    .map(|(matrix, out)| Product {
                        matrix: *matrix,
                        bias: None,
                        mode: OutMode::Store,
                        out: out.as_slice(),
                    })
                    .collect();
                ops::matvec(&gpu, &rows.acts(), &products).unwrap();
                for (w, out) in [&q, &k, &v].into_iter().zip(&outs) {
                    let together = gpu.read(out.as_slice::<f32>()).unwrap();
                    let one_by_one: Vec<f32> = x[..n_rows * n_in]
                        .chunks_exact(n_in)
                        .flat_map(|x| alone(&gpu, &TestActs::new(&gpu, form, n_in, x), w))
                        .collect();
                    let bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
                    let what = format!("{} {} {n_rows} rows", gpu.target(), w.ty.name());
                    assert_eq!(bits(&together), bits(&one_by_one), "{what}");
                }
            }
        }
    }
}

for_each_format!(gate_and_up);

fn gate_and_up(ty: GgmlType) {
    let i = GgmlType::COMPUTED.iter().position(|format| *format == ty);
    check_gate_and_up(i.expect("it is a format"), [ty, ty]);
}

#[test]
fn gate_and_up_of_mixed_formats() {
    check_gate_and_up(16, [GgmlType::Q4_K, GgmlType::Q6_K]);
    check_gate_and_up(17, [GgmlType::Q8_0, GgmlType::Q4_0]);
}

/// Shapes and activations follow from `i`.
fn check_gate_and_up(i: usize, types: [GgmlType; 2]) {
    for gpu in common::gpus_of_all(types) {
        let (n_in, n_rows, random) = (512, [1, 2, 4, 7][i % 4], &mut Random(3));
        let n_out = if i.is_multiple_of(3) { 144 } else { 7 };
        let form = act_format(types[0]);
        let x = activations(X::Random, n_rows, n_in, random);
        let x: Vec<f32> = x.iter().map(|x| x * 0.05).collect();
        let x = TestActs::new(&gpu, form, n_in, &x);
        let biases = [random.values(n_out), random.values(n_out)];
        let files = types.map(|ty| file(ty, W::Blocks(Fill::Random), n_out, n_in, random));
        let [gate, up] = [0, 1].map(|k| Packed::new(&gpu, types[k], n_out, n_in, &files[k]));
        let [expected_gate, expected_up] = [0, 1].map(|k| {
            product(
                &x.exact,
                &values(types[k], &files[k]),
                Some(&biases[k]),
                n_in,
            )
        });
        let device_biases = [0, 1].map(|k| gpu.upload(&biases[k]).unwrap());
        let activation = JOINING[i % JOINING.len()];
        // An error of the gate is multiplied by up, and the other way round.
        let expected: Vec<Expected> = expected_gate
            .iter()
            .zip(&expected_up)
            .map(|(gate, up)| Expected {
                value: activated(activation, gate.value) * of_up(activation, up.value),
                size: gate.size.max(gate.value.abs()) * up.size.max(up.value.abs() + 1.0),
            })
            .collect();
        let run = |gpu: &Gpu, gated: &dyn Fn(&Gpu, &Gated<'_>)| {
            let out = gpu.alloc::<f32>(n_rows * n_out).unwrap();
            let operands = Gated {
                matrices: [gate.matrix(), up.matrix()],
                biases: [0, 1].map(|k| Some(device_biases[k].as_slice())),
                activation,
                out: out.as_slice(),
            };
            gated(gpu, &operands);
            gpu.read(out.as_slice::<f32>()).unwrap()
        };
        let what = format!("{} {types:?} {activation:?}", gpu.target());
        let matvec = |gpu: &Gpu, gated: &Gated<'_>| {
            ops::matvec_gated(gpu, &x.acts(), gated).unwrap();
        };
        let found = any_order(|| run(&gpu, &matvec));
        assert_close(&found, &expected, n_out, &what);
        // The same by the op that chooses between GEMV and GEMM.
        let beside = gpu.alloc::<f32>(n_rows * n_out).unwrap();
        let chosen = |gpu: &Gpu, gated: &Gated<'_>| {
            ops::gated_products(gpu, &x.acts(), gated, beside.as_slice()).unwrap();
        };
        assert_eq!(run(&gpu, &chosen), found, "{what}");
        let matmul = gpu.with_variants("products=matmul".parse().unwrap());
        assert_close(&run(&matmul, &chosen), &expected, n_out, &what);
    }
}
