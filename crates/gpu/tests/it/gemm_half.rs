//! GEMM with weights and activations as f16 numbers, against sums in f64 of the same weights and activations: int8 ones rounded
//! to f16, or f32 ones that are sums of two.

use std::collections::BTreeSet;

use rocmforge_gguf::GgmlType;
use rocmforge_gpu::ops::{self, Gated, Product};
use rocmforge_gpu::{Activation, ActsBuffer, Buffer, Gpu, OutMode, RowOrder};
use rocmforge_plan::{ActFormat, act_format};

use crate::common;
use crate::common::activations::{activated, of_up};
use crate::common::any_order;
use crate::common::formats::for_each_format;
use crate::common::weights::{Fill, Packed, Random, blocks, values};

/// The devices that have these kernels.
fn gpus(ty: GgmlType) -> impl Iterator<Item = Gpu> {
    let has_units = |gpu: &Gpu| matches!(gpu.target(), "sm_90a" | "host-nv");
    let all = common::all_gpus().into_iter();
    all.filter(move |gpu| ty != GgmlType::F32 && has_units(gpu) && common::has_format(gpu, ty))
}

/// The relative error of products.
fn tolerance(ty: GgmlType) -> f64 {
    match act_format(ty) {
        ActFormat::F32 => 2e-6,
        ActFormat::Q8x32 | ActFormat::Q8x256 => 1e-3,
    }
}

/// A weight matrix, on the device and as numbers.
struct Weights {
    packed: Packed,
    exact: Vec<f32>,
}

impl Weights {
    fn new(
        gpu: &Gpu,
        ty: GgmlType,
        [n_out, n_in]: [usize; 2],
        fill: Fill,
        random: &mut Random,
    ) -> Weights {
        let file = blocks(ty, n_out * n_in, fill, random);
        Weights {
            packed: Packed::new(gpu, ty, n_out, n_in, &file),
            exact: values(ty, &file),
        }
    }
}

/// Activations on the device, and the numbers that their codes mean.
struct Activations {
    acts: ActsBuffer,
    exact: Vec<f64>,
}

impl Activations {
    /// Rows of `width` values that differ in magnitude by powers of 32.
    fn new(
        gpu: &Gpu,
        ty: GgmlType,
        [n_rows, width]: [usize; 2],
        random: &mut Random,
    ) -> Activations {
        let size = |i: usize| f32::powi(32.0, (i / width % 7) as i32 - 3);
        let x: Vec<f32> = (0..n_rows * width)
            .map(|i| size(i) * random.value())
            .collect();
        Activations::of(gpu, ty, [n_rows, width], &x)
    }

    fn of(gpu: &Gpu, ty: GgmlType, [n_rows, width]: [usize; 2], x: &[f32]) -> Activations {
        let form = act_format(ty);
        let acts = ActsBuffer::new(gpu, form, n_rows, width).unwrap();
        let values = gpu.upload(x).unwrap();
        ops::quantize(gpu, values.as_slice(), &acts.rows(n_rows)).unwrap();
        if form == ActFormat::F32 {
            let exact = x.iter().map(|&x| f64::from(x)).collect();
            return Activations { acts, exact };
        }
        let codes = gpu.read(acts.rows(n_rows).codes).unwrap();
        let scales = gpu.read(acts.rows(n_rows).scales).unwrap();
        let value =
            |(i, &code): (usize, &i8)| f64::from(code) * f64::from(scales[i / form.block_len()]);
        let exact = codes.iter().enumerate().map(value).collect();
        Activations { acts, exact }
    }
}

/// Asserts that each row of `found` is near the products: to `tolerance` of the size of the row's products on average.
fn check_near(
    what: &str,
    tolerance: f64,
    found: &[f32],
    expected: &[f64],
    [n_rows, n_out]: [usize; 2],
    terms: &[f64],
) {
    for (row, &terms) in terms.iter().enumerate().take(n_rows) {
        let of_row = row * n_out..(row + 1) * n_out;
        let squares =
            |values: &mut dyn Iterator<Item = f64>| -> f64 { values.map(|v| v * v).sum() };
        let pairs = || found[of_row.clone()].iter().zip(&expected[of_row.clone()]);
        let error = squares(&mut pairs().map(|(&found, expected)| f64::from(found) - expected));
        let size = squares(&mut of_row.clone().map(|i| expected[i].abs().max(0.1 * terms)));
        assert!(
            error <= tolerance * tolerance * size + f64::from(f32::MIN_POSITIVE),
            "{what}: row {row} has a relative error of {:.1e}",
            (error / size).sqrt()
        );
    }
}

/// The product in f64, and the sum of the magnitudes of each row's first product.
fn product(x: &[f64], w: &[f32], n_in: usize) -> (Vec<f64>, Vec<f64>) {
    let (mut products, mut terms) = (Vec::new(), Vec::new());
    for x in x.chunks(n_in) {
        terms.push(
            x.iter()
                .zip(w)
                .map(|(x, &w)| (x * f64::from(w)).abs())
                .sum(),
        );
        products.extend(
            w.chunks(n_in)
                .map(|w| -> f64 { x.iter().zip(w).map(|(x, &w)| x * f64::from(w)).sum() }),
        );
    }
    (products, terms)
}

/// Three products of the same activations, stored, and added with a bias.
fn check(gpu: &Gpu, ty: GgmlType, [n_rows, n_in]: [usize; 2], n_outs: [usize; 3], fill: Fill) {
    let random = &mut Random((n_rows * n_in) as u64);
    let x = Activations::new(gpu, ty, [n_rows, n_in], random);
    let weights = n_outs.map(|n_out| Weights::new(gpu, ty, [n_out, n_in], fill, random));
    let expected = [0, 1, 2].map(|i| product(&x.exact, &weights[i].exact, n_in));
    let bias: Vec<f32> = random.values(n_outs[1]);
    let device_bias = gpu.upload(&bias).unwrap();
    let run = || {
        let outs = n_outs.map(|n_out| gpu.upload(&vec![1.0f32; n_rows * n_out]).unwrap());
        let products = [0, 1, 2].map(|i| Product {
            matrix: weights[i].packed.matrix(),
            bias: (i == 1).then_some(device_bias.as_slice()),
            mode: if i == 1 { OutMode::Add } else { OutMode::Store },
            out: outs[i].as_slice(),
        });
        ops::products(gpu, &x.acts.rows(n_rows), &products).unwrap();
        let read = |out: &Buffer| gpu.read(out.as_slice::<f32>()).unwrap();
        outs.iter().flat_map(read).collect()
    };
    let found: Vec<f32> = any_order(run);
    let mut rest = &found[..];
    for (i, (mut products, terms)) in expected.into_iter().enumerate() {
        let (of_one, others) = rest.split_at(n_rows * n_outs[i]);
        rest = others;
        if i == 1 {
            for (j, y) in products.iter_mut().enumerate() {
                *y += 1.0 + f64::from(bias[j % n_outs[1]]);
            }
        }
        let what = format!(
            "{} {} [{n_rows}, {n_in}] {fill:?} product {i}",
            common::name(gpu),
            ty.name()
        );
        check_near(
            &what,
            tolerance(ty),
            of_one,
            &products,
            [n_rows, n_outs[i]],
            &terms,
        );
    }
}

for_each_format!(products);

fn products(ty: GgmlType) {
    let whole = |n_in: usize| n_in.next_multiple_of(ty.block_len());
    for gpu in gpus(ty) {
        check(&gpu, ty, [9, whole(45)], [17, 130, 64], Fill::Random);
        check(&gpu, ty, [18, whole(352)], [17, 130, 64], Fill::Random);
        // In tiles of few rows, and not.
        check(&gpu, ty, [33, whole(352)], [40, 3, 66], Fill::Random);
        let others = gpu.with_variants("splits=off".parse().unwrap());
        check(&others, ty, [33, whole(800)], [40, 3, 129], Fill::Random);
    }
}

for_each_format!(scales_of_any_size);

fn scales_of_any_size(ty: GgmlType) {
    for gpu in gpus(ty) {
        for fill in [Fill::Ones, Fill::ZeroScales, Fill::TinyScales] {
            check(&gpu, ty, [10, 512], [33, 1, 70], fill);
            let others = gpu.with_variants("splits=off".parse().unwrap());
            check(&others, ty, [36, 512], [33, 1, 70], fill);
        }
    }
}

/// Every tile, tiles of rows and outputs at their edges, and tiles that blocks share in parts of two and more: with these
/// activations and those below.
#[test]
fn every_tile() {
    tiles(GgmlType::Q4_K, 0);
}

#[test]
fn tiles_with_activations_of_two_parts() {
    tiles(GgmlType::F16, 1);
}

/// Variants, shapes `[rows, n_in]`, and numbers of outputs.
type Tiles = (Option<&'static str>, &'static [[usize; 2]], [usize; 3]);

const TILES: [Tiles; 5] = [
    (
        None,
        &[
            [12, 1536],
            [16, 512],
            [23, 1536],
            [32, 512],
            [57, 512],
            [100, 256],
        ],
        [128, 257, 66],
    ),
    // Not in tiles of few rows.
    (
        Some("splits=off"),
        &[[64, 256], [300, 256], [129, 512], [100, 256]],
        [128, 257, 66],
    ),
    // The last rows of a tile may be so few that one block of a cluster has nothing to copy.
    (
        Some("tiles=wide"),
        &[[40, 256], [264, 512], [136, 512], [300, 256]],
        [128, 257, 66],
    ),
    (
        Some("tiles=wide,splits=on"),
        &[[300, 768], [256, 1280]],
        [20, 130, 300],
    ),
    (
        Some("splits=on"),
        &[[100, 1536], [256, 1280], [60, 1024]],
        [20, 130, 66],
    ),
];

fn tiles(ty: GgmlType, turn: usize) {
    for gpu in gpus(ty) {
        for (variants, shapes, n_outs) in TILES {
            let parsed = variants.map(|variants| variants.parse().unwrap());
            let gpu = parsed.map_or_else(|| gpu.clone(), |variants| gpu.with_variants(variants));
            for &shape in common::every_second(shapes, turn) {
                check(&gpu, ty, shape, n_outs, Fill::Random);
            }
        }
    }
}

/// Gate and up are one launch, which writes their gated product: in every tile, with tiles at their edges and tiles that blocks share.
#[test]
fn gates_are_joined() {
    const SHAPES: [(&str, [usize; 3]); 9] = [
        ("splits=off", [40, 66, 512]),
        ("splits=on", [60, 66, 1024]),
        ("splits=off", [70, 130, 256]),
        ("splits=off", [129, 64, 512]),
        ("tiles=wide", [264, 257, 256]),
        ("tiles=wide,splits=on", [300, 20, 768]),
        ("tiles=wide,splits=on", [200, 20, 1024]),
        ("splits=on", [100, 66, 1536]),
        ("splits=on", [256, 30, 1280]),
    ];
    let activation = Activation::Silu;
    for ty in [GgmlType::Q4_K, GgmlType::F16, GgmlType::BF16] {
        for gpu in gpus(ty) {
            let mut launched = BTreeSet::new();
            for (i, (variants, [n_rows, n_out, n_in])) in SHAPES.into_iter().enumerate() {
                let gpu = &gpu.with_variants(variants.parse().unwrap());
                let random = &mut Random((n_rows * n_in) as u64);
                let x = random.values(n_rows * n_in);
                let x = Activations::of(gpu, ty, [n_rows, n_in], &x);
                // Scales of both matrices differ, so that each is multiplied with another power of two.
                let mut sides = [Fill::Random, Fill::TinyScales]
                    .map(|fill| Weights::new(gpu, ty, [n_out, n_in], fill, random));
                // Up lies behind gate, or before it.
                if i % 2 == 1 {
                    sides.reverse();
                }
                let [out, scratch] = [(); 2].map(|()| gpu.alloc::<f32>(n_rows * n_out).unwrap());
                let gated = Gated {
                    matrices: [0, 1].map(|i| sides[i].packed.matrix()),
                    biases: [None; 2],
                    activation,
                    out: out.as_slice(),
                };
                let acts = x.acts.rows(n_rows);
                let run = || ops::gated_products(gpu, &acts, &gated, scratch.as_slice());
                let kernels = common::kernels(gpu, run);
                let others = kernels.iter().filter(|kernel| !kernel.contains("acts"));
                let others: Vec<_> = others.copied().collect();
                assert_eq!(others.len(), 1, "{kernels:?}");
                launched.insert(others[0]);
                let found = any_order(|| {
                    run().unwrap();
                    gpu.read(out.as_slice::<f32>()).unwrap()
                });
                let [gate, up] = [0, 1].map(|i| product(&x.exact, &sides[i].exact, n_in));
                let pairs = gate.0.iter().zip(&up.0);
                let expected: Vec<f64> = pairs
                    .map(|(&gate, &up)| activated(activation, gate) * of_up(activation, up))
                    .collect();
                // Each side counts as at least a tenth of its terms; `check_near` has the other tenth.
                let terms = gate.1.iter().zip(&up.1);
                let terms: Vec<f64> = terms.map(|(gate, up)| 0.1 * gate * up).collect();
                let name = common::name(gpu);
                check_near(
                    &format!("{name} {} {variants}", ty.name()),
                    // The errors of both sides.
                    3.0 * tolerance(ty),
                    &found,
                    &expected,
                    [n_rows, n_out],
                    &terms,
                );
            }
            let all = [
                "gemm_half_128_gated",
                "gemm_half_256_gated",
                "gemm_half_64_gated",
            ];
            assert!(launched.iter().eq(&all), "{launched:?}");
        }
    }
}

/// Sums of F16 and BF16 weights have other bits than those of the kernels for any GPU, which these devices do not take.
#[test]
fn float_weights_take_these_kernels() {
    let [n_rows, n_out, n_in] = [40, 130, 512];
    for ty in [GgmlType::F16, GgmlType::BF16] {
        for gpu in gpus(ty) {
            let random = &mut Random(5);
            let x = Activations::new(&gpu, ty, [n_rows, n_in], random);
            let weights = Weights::new(&gpu, ty, [n_out, n_in], Fill::Random, random);
            let products_on = |gpu: &Gpu| {
                let out = gpu.alloc::<f32>(n_rows * n_out).unwrap();
                let product = Product {
                    matrix: weights.packed.matrix(),
                    bias: None,
                    mode: OutMode::Store,
                    out: out.as_slice(),
                };
                ops::products(gpu, &x.acts.rows(n_rows), &[product]).unwrap();
                gpu.read(out.as_slice::<f32>()).unwrap()
            };
            let others = gpu.with_variants("products=codes".parse().unwrap());
            assert_ne!(products_on(&gpu), products_on(&others), "{}", ty.name());
        }
    }
}

/// A product whose format differs from that of the one before runs at the same time where processors are left. Its tiles are whole then.
#[test]
fn products_of_another_format_are_whole() {
    // An emulated GPU has four processors: three for whole tiles of the first product, one for the second. Others choose otherwise.
    let [n_rows, n_in] = [128, 4096];
    let has_both = |gpu: &Gpu| gpu.target() == "host-nv" && common::has_format(gpu, GgmlType::Q6_K);
    for gpu in gpus(GgmlType::Q4_K).filter(has_both) {
        let random = &mut Random(9);
        let x = Activations::new(&gpu, GgmlType::Q4_K, [n_rows, n_in], random);
        let weights = [(GgmlType::Q4_K, 260), (GgmlType::Q6_K, 20)]
            .map(|(ty, n_out)| Weights::new(&gpu, ty, [n_out, n_in], Fill::Random, random));
        let multiply = |gpu: &Gpu, weights: &[Weights]| {
            let outs = weights
                .iter()
                .map(|w| gpu.alloc::<f32>(n_rows * w.packed.n_out).unwrap());
            let outs = outs.collect::<Vec<Buffer>>();
            let products = weights.iter().zip(&outs).map(|(weights, out)| Product {
                matrix: weights.packed.matrix(),
                bias: None,
                mode: OutMode::Store,
                out: out.as_slice(),
            });
            let products = products.collect::<Vec<_>>();
            ops::products(gpu, &x.acts.rows(n_rows), &products).unwrap();
            let last = outs.last().unwrap();
            gpu.read(last.as_slice::<f32>()).unwrap()
        };
        let whole = gpu.with_variants("splits=off".parse().unwrap());
        let expected = multiply(&whole, &weights[1..]);
        assert!(any_order(|| multiply(&gpu, &weights)) == expected);
    }
}

/// A row has the same bits in the company of up to eight rows, and of more as long as reading the weights limits; or of any
/// number, if asked for.
#[test]
fn few_rows_have_the_same_bits() {
    let (ty, [n_out, n_in]) = (GgmlType::Q4_K, [36, 1280]);
    for gpu in gpus(ty) {
        let random = &mut Random(1);
        let x = Activations::new(&gpu, ty, [32, n_in], random);
        let weights = Weights::new(&gpu, ty, [n_out, n_in], Fill::Random, random);
        let invariant = gpu.with_variants("rows=answer".parse().unwrap());
        let of_rows = |gpu: &Gpu, n_rows: usize| {
            let out = gpu.alloc::<f32>(n_rows * n_out).unwrap();
            let acts = x.acts.rows(n_rows);
            assert!(ops::takes_halves(gpu, &acts, ty));
            let product = Product {
                matrix: weights.packed.matrix(),
                bias: None,
                mode: OutMode::Store,
                out: out.as_slice(),
            };
            ops::products(gpu, &acts, &[product]).unwrap();
            gpu.read(out.as_slice::<f32>()).unwrap()
        };
        let exact = product(&x.exact, &weights.exact, n_in);
        for (gpu, all, few) in [
            (&gpu, 8, &[5, 7][..]),
            (&gpu, 32, &[9, 17, 25]),
            (&invariant, 32, &[1, 5, 8, 9, 17, 25]),
        ] {
            let of_all = of_rows(gpu, all);
            let n = all * n_out;
            check_near(
                &format!("{all} rows"),
                tolerance(ty),
                &of_all,
                &exact.0[..n],
                [all, n_out],
                &exact.1[..all],
            );
            for &n_rows in few {
                let rows = of_rows(gpu, n_rows);
                assert_eq!(rows, of_all[..n_rows * n_out], "{n_rows} rows of {all}");
            }
        }
    }
}

/// Whole codes and scales of powers of two make products exact.
#[test]
fn whole_numbers_are_exact() {
    let (ty, [n_rows, n_out, n_in]) = (GgmlType::Q8_0, [70, 200, 320]);
    for gpu in gpus(ty) {
        let random = &mut Random(3);
        let mut file = blocks(ty, n_out * n_in, Fill::Random, random);
        for block in file.chunks_exact_mut(34) {
            block[..2].copy_from_slice(&half::f16::from_f32(0.25).to_le_bytes());
            block[2..]
                .iter_mut()
                .for_each(|code| *code = (*code as i8 / 16) as u8);
        }
        let packed = Packed::new(&gpu, ty, n_out, n_in, &file);
        // The largest value of each block makes its scale one.
        let value = |i: usize| if i % 32 == 5 { 127 } else { i * 31 % 15 };
        let x: Vec<f32> = (0..n_rows * n_in).map(|i| value(i) as f32).collect();
        let acts = ActsBuffer::new(&gpu, act_format(ty), n_rows, n_in).unwrap();
        let device_x = gpu.upload(&x).unwrap();
        ops::quantize(&gpu, device_x.as_slice(), &acts.rows(n_rows)).unwrap();
        let out = gpu.alloc::<f32>(n_rows * n_out).unwrap();
        let product = Product {
            matrix: packed.matrix(),
            bias: None,
            mode: OutMode::Store,
            out: out.as_slice(),
        };
        ops::matmul(&gpu, &acts.rows(n_rows), &product).unwrap();
        let found = gpu.read(out.as_slice::<f32>()).unwrap();
        let w = values(ty, &file);
        for (i, found) in found.iter().enumerate() {
            let (x, w) = (
                &x[i / n_out * n_in..][..n_in],
                &w[i % n_out * n_in..][..n_in],
            );
            let expected: f32 = x.iter().zip(w).map(|(x, w)| x * w).sum();
            assert_eq!(*found, expected, "{} at {i}", gpu.target());
        }
    }
}

/// A row that is not finite spoils no other row.
#[test]
fn rows_are_independent() {
    let (ty, [n_rows, n_out, n_in]) = (GgmlType::Q4_K, [20, 64, 256]);
    for gpu in gpus(ty) {
        let random = &mut Random(4);
        let weights = Weights::new(&gpu, ty, [n_out, n_in], Fill::Random, random);
        let run = |x: &[f32]| {
            let acts = ActsBuffer::new(&gpu, act_format(ty), n_rows, n_in).unwrap();
            let x = gpu.upload(x).unwrap();
            ops::quantize(&gpu, x.as_slice(), &acts.rows(n_rows)).unwrap();
            let out = gpu.alloc::<f32>(n_rows * n_out).unwrap();
            let product = Product {
                matrix: weights.packed.matrix(),
                bias: None,
                mode: OutMode::Store,
                out: out.as_slice(),
            };
            ops::matmul(&gpu, &acts.rows(n_rows), &product).unwrap();
            gpu.read(out.as_slice::<f32>()).unwrap()
        };
        let mut x = random.values(n_rows * n_in);
        let before = run(&x);
        x[3 * n_in + 7] = f32::INFINITY;
        let after = run(&x);
        for row in (0..n_rows).filter(|&row| row != 3) {
            let of_row = row * n_out..(row + 1) * n_out;
            assert_eq!(before[of_row.clone()], after[of_row], "row {row}");
        }
        let spoilt = &after[3 * n_out..4 * n_out];
        assert!(spoilt.iter().all(|y| y.is_nan()), "{}", gpu.target());
    }
}

/// Products of up to eight rows take codes where all weights that are multiplied with them lie in tiles and have kernels for that.
/// Their sums are those of integers, and near those of f64 numbers. A row has the same bits in any company.
#[test]
fn few_rows_are_multiplied_as_codes() {
    let types = [GgmlType::Q4_K, GgmlType::Q6_K, GgmlType::Q4_K];
    for gpu in gpus(types[0]) {
        for (n_rows, n_in, fill) in [
            (8, 256, Fill::Random),
            (3, 4608, Fill::Random),
            (5, 2304, Fill::Random),
            (3, 512, Fill::Ones),
            (4, 512, Fill::ZeroScales),
            (7, 512, Fill::TinyScales),
        ] {
            let random = &mut Random((n_rows * n_in) as u64);
            let x = Activations::new(&gpu, types[0], [n_rows, n_in], random);
            let outs_of = [48, 16, 32];
            let shapes = types.into_iter().zip(outs_of);
            let weights: Vec<Weights> = shapes
                .map(|(ty, n_out)| Weights::new(&gpu, ty, [n_out, n_in], fill, random))
                .collect();
            let beside = weights
                .iter()
                .map(|w| (w.packed.ty, w.packed.matrix().order));
            let beside: Vec<_> = beside.collect();
            let (exact, acts) = (x.exact, x.acts.beside(&beside));
            let bias: Vec<f32> = random.values(outs_of[1]);
            let device_bias = gpu.upload(&bias).unwrap();
            let run = |n_rows: usize| -> Vec<Vec<f32>> {
                let outs = outs_of.map(|n_out| gpu.upload(&vec![1.0f32; n_rows * n_out]).unwrap());
                let products = [0, 1, 2].map(|i| Product {
                    matrix: weights[i].packed.matrix(),
                    bias: (i == 1).then_some(device_bias.as_slice()),
                    mode: if i == 1 { OutMode::Add } else { OutMode::Store },
                    out: outs[i].as_slice(),
                });
                let kernels =
                    common::kernels(&gpu, || ops::products(&gpu, &acts.rows(n_rows), &products));
                assert_eq!(
                    kernels,
                    ["gemm_octet_q4_k", "gemm_octet_q6_k", "gemm_octet_q4_k"]
                );
                let read = |out: &Buffer| gpu.read(out.as_slice::<f32>()).unwrap();
                outs.iter().map(read).collect()
            };
            let what = format!("{} [{n_rows}, {n_in}] {fill:?}", common::name(&gpu));
            assert!(!ops::takes_halves(&gpu, &acts.rows(n_rows), types[0]));
            let found: Vec<f32> = any_order(|| run(n_rows).concat());
            let mut rest = &found[..];
            for (i, n_out) in outs_of.into_iter().enumerate() {
                let (of_one, others) = rest.split_at(n_rows * n_out);
                rest = others;
                let (mut products, terms) = product(&exact, &weights[i].exact, n_in);
                if i == 1 {
                    for (j, y) in products.iter_mut().enumerate() {
                        *y += 1.0 + f64::from(bias[j % n_out]);
                    }
                }
                let shape = [n_rows, n_out];
                check_near(
                    &format!("{what} {i}"),
                    1e-6,
                    of_one,
                    &products,
                    shape,
                    &terms,
                );
            }
            let fewer = run(n_rows.min(3));
            for (all, fewer) in run(n_rows).iter().zip(&fewer) {
                assert!(all[..fewer.len()] == fewer[..], "{what}");
            }
        }
    }
}

/// Other activations are rounded to f16: of more rows, with weights of another format or order of rows, and where each row is to
/// have the same bits in any number of rows.
#[test]
fn other_rows_are_not_multiplied_as_codes() {
    let (ty, other) = (GgmlType::Q4_K, GgmlType::Q2_K);
    let [tiles, apart] = [RowOrder::Tiles, RowOrder::Apart];
    for gpu in gpus(ty).filter(|gpu| common::has_format(gpu, other)) {
        let answers = gpu.with_variants("rows=answer".parse().unwrap());
        for (gpu, n_rows, beside, takes_codes) in [
            (&gpu, 8, &[(ty, tiles)][..], true),
            (&gpu, 9, &[(ty, tiles)], false),
            (&gpu, 8, &[(ty, apart)], false),
            (&gpu, 8, &[(ty, tiles), (other, tiles)], false),
            (&gpu, 8, &[], false),
            (&answers, 8, &[(ty, tiles)], false),
        ] {
            let acts = ActsBuffer::new(gpu, act_format(ty), n_rows, 256).unwrap();
            let acts = acts.beside(beside);
            let takes_halves = ops::takes_halves(gpu, &acts.rows(n_rows), ty);
            assert_eq!(takes_halves, !takes_codes, "{n_rows} {beside:?}");
        }
    }
}
