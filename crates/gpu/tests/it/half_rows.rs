//! Activations of few rows that are written as f16 where they are quantized: products of them have the bits of those that a
//! launch of their own converts.

use rocmforge_gguf::GgmlType;
use rocmforge_gpu::ops::{self, Gated, Product, RoutingBuffer, Weighed};
use rocmforge_gpu::{Activation, Acts, ActsBuffer, Event, Gpu, OutMode, Slice, Trace};
use rocmforge_plan::act_format;

use crate::common;
use crate::common::any_order;
use crate::common::mixture::{Logits, NONE, Step};
use crate::common::weights::{Fill, Packed, Random, blocks};

const TYPES: [GgmlType; 3] = [GgmlType::Q4_K, GgmlType::Q8_0, GgmlType::Q4_0];

/// The devices that have these kernels, and the same without them.
fn gpus(ty: GgmlType) -> impl Iterator<Item = [Gpu; 2]> {
    let has_kernels = |gpu: &Gpu| matches!(gpu.target(), "sm_90a" | "host-nv");
    let gpus = common::gpus_of(ty).filter(has_kernels);
    gpus.map(|gpu| {
        let apart = gpu.with_variants("products=codes".parse().unwrap());
        [gpu, apart]
    })
}

/// Runs launches, and returns whether one converts activations.
fn converts(gpu: &Gpu, run: impl FnOnce()) -> bool {
    let kernels = kernels(gpu, run);
    kernels.iter().any(|kernel| kernel.starts_with("half_acts"))
}

/// Runs launches, and returns their kernels.
fn kernels(gpu: &Gpu, run: impl FnOnce()) -> Vec<&'static str> {
    let mut trace = Trace::new(gpu);
    let origin = Event::new(gpu).unwrap();
    origin.record().unwrap();
    trace
        .record(|| {
            run();
            Ok(())
        })
        .unwrap();
    gpu.synchronize().unwrap();
    let times = trace.times(&origin).unwrap();
    times.iter().map(|time| time.kernel).collect()
}

/// Returns whether a product converts activations, and its bits.
fn multiply(gpu: &Gpu, acts: &Acts<'_>, matrix: &Packed) -> (bool, Vec<u32>) {
    let out = gpu.alloc::<f32>(acts.n_rows * matrix.n_out).unwrap();
    let product = Product {
        matrix: matrix.matrix(),
        bias: None,
        mode: OutMode::Store,
        out: out.as_slice(),
    };
    let is_converted = converts(gpu, || ops::products(gpu, acts, &[product]).unwrap());
    (is_converted, gpu.read(out.as_slice()).unwrap())
}

/// Asserts that `fill` by either GPU leads to the same codes and the same products, and that only one of the products converts.
fn check(
    [gpu, apart]: &[Gpu; 2],
    what: &str,
    acts: &Acts<'_>,
    matrix: &Packed,
    fill: &dyn Fn(&Gpu, &Acts<'_>),
) {
    let run = |filled_by: &Gpu| {
        any_order(|| {
            fill(filled_by, acts);
            let (is_converted, bits) = multiply(gpu, acts, matrix);
            assert_eq!(
                is_converted,
                filled_by.variants() == apart.variants(),
                "{what}"
            );
            [bits, read_codes(gpu, acts)].concat()
        })
    };
    let expected = run(apart);
    assert!(expected.iter().any(|word| *word != 0));
    assert!(run(gpu) == expected, "{what}");
}

/// Codes, scales and sums.
fn read_codes(gpu: &Gpu, acts: &Acts<'_>) -> Vec<u32> {
    let codes = gpu.read(acts.codes).unwrap().into_iter();
    let sums = gpu.read(acts.sums).unwrap().into_iter();
    let scales = gpu.read(acts.scales.cast::<u32>()).unwrap();
    let words = codes.map(|v| v as u32).chain(sums.map(|v| v as u32));
    words.chain(scales).collect()
}

fn matrix(gpu: &Gpu, ty: GgmlType, [n_out, n_in]: [usize; 2], random: &mut Random) -> Packed {
    let file = blocks(ty, n_out * n_in, Fill::Random, random);
    Packed::new(gpu, ty, n_out, n_in, &file)
}

/// Rows that differ in magnitude by powers of 32, of which one is zeros and one has a value that is not finite.
fn rows(gpu: &Gpu, [n_rows, width]: [usize; 2], random: &mut Random) -> rocmforge_gpu::Buffer {
    let size = |row: usize| match row % 7 {
        6 => 0.0,
        at => f32::powi(32.0, at as i32 - 3),
    };
    let mut x: Vec<f32> = (0..n_rows * width)
        .map(|i| size(i / width) * random.value())
        .collect();
    x[2 * width + 5] = f32::INFINITY;
    gpu.upload(&x).unwrap()
}

#[test]
fn few_rows_are_quantized_and_normalized() {
    for ty in TYPES {
        for gpus in gpus(ty) {
            let [gpu, _] = &gpus;
            // Widths of whole rounds and of one that is not filled. Of rows that several blocks of a GPU divide: with an empty
            // last part, whole rounds or not; with a round that is not filled; and, for an emulated GPU, of more octets than a
            // block has threads.
            let shapes = [
                (9, 768),
                (32, 1024 + 32),
                (9, 8448),
                (9, 8448 + 32),
                (10, 4096 + 32),
                (11, 16384 + 256),
            ];
            for (n_rows, n_in) in shapes {
                let n_in = n_in / ty.block_len() * ty.block_len();
                let random = &mut Random(n_in as u64);
                let matrix = matrix(gpu, ty, [19, n_in], random);
                let x = rows(gpu, [n_rows, n_in], random);
                let weight = gpu.upload(&random.values(n_in)).unwrap();
                let acts = ActsBuffer::new(gpu, act_format(ty), n_rows, n_in).unwrap();
                let acts = acts.rows(n_rows);
                let what = format!("{} [{n_rows}, {n_in}]", ty.name());
                check(
                    &gpus,
                    &format!("{what} quantize"),
                    &acts,
                    &matrix,
                    &|gpu, to| {
                        ops::quantize(gpu, x.as_slice(), to).unwrap();
                    },
                );
                let normed = gpu.alloc::<f32>(n_rows * n_in).unwrap();
                let (weight, normed) = (weight.as_slice(), normed.as_slice());
                check(
                    &gpus,
                    &format!("{what} norm"),
                    &acts,
                    &matrix,
                    &|gpu, to| {
                        ops::rms_norm_quantize(gpu, x.as_slice(), weight, 1e-5, Some(normed), to)
                            .unwrap();
                    },
                );
            }
        }
    }
}

#[test]
fn few_rows_are_gated() {
    for ty in TYPES {
        for gpus in gpus(ty) {
            let [gpu, apart] = &gpus;
            let activation = match ty {
                GgmlType::Q4_K => Activation::Silu,
                _ => Activation::GeluTanh,
            };
            let (n_rows, n_in, n_out) = (10, 256, 4608);
            let random = &mut Random(3);
            let sides = [(); 2].map(|()| matrix(gpu, ty, [n_out, n_in], random));
            let down = matrix(gpu, ty, [21, n_out], random);
            let form = act_format(ty);
            let x = ActsBuffer::new(gpu, form, n_rows, n_in).unwrap();
            let x = x.rows(n_rows);
            let values = gpu.upload(&random.values(n_rows * n_in)).unwrap();
            ops::quantize(gpu, values.as_slice(), &x).unwrap();
            let acts = ActsBuffer::new(gpu, form, n_rows, n_out).unwrap();
            let [out, scratch] = [(); 2].map(|()| gpu.alloc::<f32>(n_rows * n_out).unwrap());
            let gated = Gated {
                matrices: [sides[0].matrix(), sides[1].matrix()],
                biases: [None; 2],
                activation,
                out: out.as_slice(),
            };
            let fill = |filled_by: &Gpu, to: &Acts<'_>| {
                let scratch: Slice<'_, f32> = scratch.as_slice();
                if filled_by.variants() == apart.variants() {
                    ops::gated_products(gpu, &x, &gated, scratch).unwrap();
                    ops::quantize(apart, gated.out, to).unwrap();
                } else {
                    ops::gated_products_quantized(gpu, &x, &gated, scratch, to).unwrap();
                }
            };
            check(&gpus, ty.name(), &acts.rows(n_rows), &down, &fill);
        }
    }
}

#[test]
fn sums_of_experts_are_normalized() {
    for ty in TYPES {
        for gpus in gpus(ty) {
            let [gpu, _] = &gpus;
            let (n_tokens, width) = (12, 768);
            let random = &mut Random(4);
            let mut step = Step::new([n_tokens, 5, 3], Logits::Random, random);
            step.seq_of_row[7] = NONE;
            let buffer: RoutingBuffer = step.route(gpu);
            let routing = buffer.of(n_tokens);
            let matrix = matrix(gpu, ty, [19, width], random);
            let x = gpu.upload(&random.values(n_tokens * 3 * width)).unwrap();
            let before = random.values(n_tokens * width);
            let weight = gpu.upload(&random.values(width)).unwrap();
            let acts = ActsBuffer::new(gpu, act_format(ty), n_tokens, width).unwrap();
            let fill = |gpu: &Gpu, to: &Acts<'_>| {
                let sum = gpu.upload(&before).unwrap();
                let norm = (weight.as_slice(), 1e-5);
                let experts = (&routing, Weighed::Outputs);
                let (x, sum) = (x.as_slice(), sum.as_slice());
                ops::combine_and_norm(gpu, x, experts, sum, norm, (None, to)).unwrap();
                gpu.synchronize().unwrap();
            };
            check(&gpus, ty.name(), &acts.rows(n_tokens), &matrix, &fill);
        }
    }
}

/// Where all steps of answers take the same tiles, single rows and more than a tile's are written so, too.
#[test]
fn any_rows_of_answers_are_quantized() {
    for ty in TYPES {
        for [gpu, _] in gpus(ty) {
            let answers = ["rows=answer", "rows=answer,products=codes"]
                .map(|variants| gpu.with_variants(variants.parse().unwrap()));
            for n_rows in [3, 40, 64] {
                let random = &mut Random(8);
                let matrix = matrix(&gpu, ty, [19, 768], random);
                let x = rows(&gpu, [n_rows, 768], random);
                let acts = ActsBuffer::new(&gpu, act_format(ty), 64, 768).unwrap();
                let what = format!("{} {n_rows} rows", ty.name());
                let fill = |gpu: &Gpu, to: &Acts<'_>| {
                    ops::quantize(gpu, x.as_slice(), to).unwrap();
                };
                check(&answers, &what, &acts.rows(n_rows), &matrix, &fill);
            }
        }
    }
}

/// What is written anew is converted anew, also in part.
#[test]
fn other_activations_are_converted() {
    for [gpu, apart] in gpus(GgmlType::Q4_K) {
        let (n_rows, n_in) = (20, 256);
        let random = &mut Random(5);
        let matrix = matrix(&gpu, GgmlType::Q4_K, [19, n_in], random);
        let x = gpu.upload(&random.values(n_rows * n_in)).unwrap();
        let buffer = ActsBuffer::new(&gpu, act_format(GgmlType::Q4_K), n_rows, n_in).unwrap();
        let all = buffer.rows(n_rows);
        let multiply = |acts: &Acts<'_>| multiply(&gpu, acts, &matrix).0;
        ops::quantize(&gpu, x.as_slice(), &all).unwrap();
        assert!(!multiply(&all));
        assert!(multiply(&all.part(0..10)));
        assert!(multiply(&all.part(10..20)));
        assert!(!multiply(&all.part(10..20)), "what was converted is kept");
        assert!(multiply(&all));
        ops::quantize(&apart, x.as_slice(), &all).unwrap();
        assert!(multiply(&all));
    }
}

/// What a recorded graph converts is not there for the launches after it.
#[test]
fn activations_of_a_graph_are_converted_again() {
    let ty = GgmlType::Q4_K;
    for [gpu, apart] in gpus(ty) {
        let (n_rows, n_in) = (12, 512);
        let random = &mut Random(6);
        let matrix = matrix(&gpu, ty, [19, n_in], random);
        let x = gpu.upload(&random.values(n_rows * n_in)).unwrap();
        let buffer = ActsBuffer::new(&gpu, act_format(ty), n_rows, n_in).unwrap();
        let acts = buffer.rows(n_rows);
        let out = gpu.alloc::<f32>(n_rows * matrix.n_out).unwrap();
        let product = Product {
            matrix: matrix.matrix(),
            bias: None,
            mode: OutMode::Store,
            out: out.as_slice(),
        };
        let multiply = || ops::products(&gpu, &acts, &[product]);
        // Constants of kernels are read at their first use.
        multiply().unwrap();
        ops::quantize(&apart, x.as_slice(), &acts).unwrap();
        let graph = gpu.capture(multiply).unwrap();
        assert!(converts(&gpu, || multiply().unwrap()), "it never ran");
        graph.launch().unwrap();
        assert!(converts(&gpu, || multiply().unwrap()));
        assert!(!converts(&gpu, || multiply().unwrap()));
        gpu.load_kernels(multiply).unwrap();
        assert!(converts(&gpu, || multiply().unwrap()));
    }
}

/// A step of few tokens has few rows of experts, whose products are GEMVs: nothing is written as f16.
#[test]
fn rows_of_gemvs_are_quantized_alone() {
    let ty = GgmlType::Q4_K;
    for [gpu, _] in gpus(ty) {
        let (n_tokens, n_used, width) = (2, 8, 512);
        let random = &mut Random(7);
        let step = Step::new([n_tokens, 16, n_used], Logits::Random, random);
        let buffer: RoutingBuffer = step.route(&gpu);
        let n_rows = n_tokens * n_used;
        let shape = [n_rows, width];
        let acts = ActsBuffer::of_experts(&gpu, act_format(ty), shape, Some(16)).unwrap();
        let x = gpu.upload(&random.values(n_rows * width)).unwrap();
        let routing = buffer.of(n_tokens);
        let kernels = kernels(&gpu, || {
            ops::quantize_choices(&gpu, x.as_slice(), &routing, &acts.rows(n_rows)).unwrap();
        });
        assert_eq!(kernels, ["quantize_q8x256"]);
    }
}

/// Tokens for many rows of experts are converted by eight rows at a time, if shared memory has room for these.
#[test]
fn tokens_of_wide_rows_are_quantized_alone() {
    let ty = GgmlType::Q4_K;
    for [gpu, _] in gpus(ty) {
        let n_tokens = 40;
        let random = &mut Random(7);
        let step = Step::new([n_tokens, 2, 1], Logits::Random, random);
        let buffer: RoutingBuffer = step.route(&gpu);
        let routing = buffer.of(n_tokens);
        for (width, kernel) in [
            (512, "quantize_octets_q8x256"),
            (11008, "quantize_rows_q8x256"),
        ] {
            let shape = [n_tokens, width];
            let acts = ActsBuffer::of_experts(&gpu, act_format(ty), shape, Some(2)).unwrap();
            let x = gpu.upload(&random.values(n_tokens * width)).unwrap();
            let kernels = kernels(&gpu, || {
                let experts = (&routing, Weighed::Outputs);
                let acts = acts.rows(n_tokens);
                ops::quantize_experts(&gpu, x.as_slice(), experts, &acts).unwrap();
            });
            assert_eq!(kernels, [kernel]);
        }
    }
}
