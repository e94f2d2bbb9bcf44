//! Expert products of mixture-of-experts models, against sums in f64.

use std::rc::Rc;

use crate::common;
use crate::common::activations::{JOINING, activated, of_up};
use crate::common::acts::TestActs;
use crate::common::any_order;
use crate::common::formats::for_each_format;
use crate::common::mixture::{Choices, Logits, NONE, Step};
use crate::common::weights::{Fill, Packed, Random, blocks, order_of, values};
use rocmforge_gguf::GgmlType;
use rocmforge_gpu::ops::{self, ExpertGated, ExpertProduct, ExpertSum, SharedWeight};
use rocmforge_gpu::{
    ActFormat, Activation, Acts, ActsBuffer, Buffer, Event, ExpertMatrices, Gpu, Matrix, OutMode,
    RowOrder, Source, SourceRows, Trace,
};
use rocmforge_plan::Weighed;
use rocmforge_plan::{ExpertStack, act_format};

/// The matrices of all experts on the device.
struct Experts {
    ty: GgmlType,
    stack: ExpertStack,
    n_out: usize,
    n_in: usize,
    order: RowOrder,
    data: Rc<Buffer>,
    /// `[n_experts, n_out, n_in]`.
    values: Vec<f32>,
    /// `[n_experts, n_out]`, if they have biases.
    biases: Option<(Vec<f32>, Buffer)>,
    /// `[n_experts]`, if they have factors.
    scales: Option<(Vec<f32>, Buffer)>,
    /// The last expert's matrix, if it is apart from the others.
    last: Option<Buffer>,
}

impl Experts {
    fn new(gpu: &Gpu, ty: GgmlType, shape: [usize; 3], random: &mut Random) -> Experts {
        let [experts] = Experts::parts(gpu, ty, shape, random);
        experts
    }

    /// Several matrices of each expert in one tensor.
    fn parts<const N: usize>(
        gpu: &Gpu,
        ty: GgmlType,
        [n_experts, n_out, n_in]: [usize; 3],
        random: &mut Random,
    ) -> [Experts; N] {
        let n_bytes = ops::packed_bytes(gpu, ty, n_out, n_in).unwrap();
        let data = Rc::new(gpu.alloc::<u8>(n_experts * N * n_bytes).unwrap());
        std::array::from_fn(|part| {
            let stack = ExpertStack {
                n_experts,
                n_parts: N,
                part,
            };
            Experts::part(gpu, (ty, stack, [n_out, n_in]), data.clone(), random)
        })
    }

    fn part(
        gpu: &Gpu,
        (ty, stack, [n_out, n_in]): (GgmlType, ExpertStack, [usize; 2]),
        data: Rc<Buffer>,
        random: &mut Random,
    ) -> Experts {
        let mut experts = Experts {
            ty,
            stack,
            n_out,
            n_in,
            order: order_of(gpu, ty, n_out, n_in),
            data,
            values: Vec::new(),
            biases: None,
            scales: None,
            last: None,
        };
        for expert in 0..stack.n_experts {
            let file = blocks(ty, n_out * n_in, Fill::Random, random);
            experts.values.extend(values(ty, &file));
            let packed = Packed::new(gpu, ty, n_out, n_in, &file);
            let to: Matrix<'_> = experts.matrices().matrix(expert);
            let bytes = gpu.read(packed.matrix().data).unwrap();
            gpu.write(to.data, &bytes).unwrap();
        }
        experts
    }

    fn with_biases(self, gpu: &Gpu, random: &mut Random) -> Experts {
        let values = random.values(self.stack.n_experts * self.n_out);
        let buffer = gpu.upload(&values).unwrap();
        Experts {
            biases: Some((values, buffer)),
            ..self
        }
    }

    fn with_scales(self, gpu: &Gpu, random: &mut Random) -> Experts {
        let values = random.values(self.stack.n_experts);
        let buffer = gpu.upload(&values).unwrap();
        Experts {
            scales: Some((values, buffer)),
            ..self
        }
    }

    /// Moves the last expert's matrix.
    fn with_last_apart(self, gpu: &Gpu) -> Experts {
        let last = self.matrices().matrix(self.stack.n_experts - 1);
        let bytes = gpu.read(last.data).unwrap();
        gpu.write(last.data, &vec![0xff; bytes.len()]).unwrap();
        let stack = ExpertStack {
            n_experts: self.stack.n_experts - 1,
            ..self.stack
        };
        Experts {
            stack,
            last: Some(gpu.upload(&bytes).unwrap()),
            ..self
        }
    }

    fn product_of_rows(&self) -> ExpertProduct<'_> {
        ExpertProduct {
            shared: self.last.as_ref().map(|last| Matrix {
                ty: self.ty,
                n_out: self.n_out,
                n_in: self.n_in,
                order: self.order,
                data: last.as_slice(),
            }),
            matrices: self.matrices(),
            scales: self.scales.as_ref().map(|(_, buffer)| buffer.as_slice()),
            bias: self.biases.as_ref().map(|(_, buffer)| buffer.as_slice()),
        }
    }

    fn matrices(&self) -> ExpertMatrices<'_> {
        let n_matrices = self.stack.n_matrices();
        let all = n_matrices + self.last.iter().len() * self.stack.n_parts;
        let n_bytes = self.data.as_slice::<u8>().len() / all * n_matrices;
        ExpertMatrices {
            ty: self.ty,
            stack: self.stack,
            n_out: self.n_out,
            n_in: self.n_in,
            order: self.order,
            data: self.data.as_slice().part(0..n_bytes),
        }
    }

    /// The product of a row with an expert's matrix: (value, root of the sum of the squared terms) for each output.
    fn product(&self, x: &[f64], expert: u32) -> Vec<(f64, f64)> {
        let n = self.n_out * self.n_in;
        let w = &self.values[expert as usize * n..][..n];
        let scales = self.scales.as_ref();
        let scale = scales.map_or(1.0, |(scales, _)| f64::from(scales[expert as usize]));
        let rows = w.chunks_exact(self.n_in).enumerate().map(|(o, w)| {
            let terms = || x.iter().zip(w).map(|(x, &w)| x * f64::from(w) * scale);
            let bias = self.biases.as_ref().map_or(0.0, |(biases, _)| {
                f64::from(biases[expert as usize * self.n_out + o])
            });
            (
                terms().sum::<f64>() + bias,
                (terms().map(|term| term * term).sum::<f64>() + bias * bias).sqrt(),
            )
        });
        rows.collect()
    }
}

/// Ragged loads: `[n_tokens, n_experts, n_used]`, the logits (with `Crowd` one expert gets all tokens and another
/// none), whether the last token is padding, and variants to run as well.
const LOADS: [([usize; 3], Logits, bool, &[&str]); 3] = [
    ([1, 4, 2], Logits::Random, false, &[]),
    ([6, 5, 2], Logits::Crowd, true, &["products=matmul"]),
    (
        [37, 3, 2],
        Logits::Crowd,
        false,
        &["products=matvec,splits=off", "products=matmul,tiles=large"],
    ),
];

fn step_of(i: usize, random: &mut Random) -> Step {
    let (shape, kind, filled, _) = LOADS[i];
    let mut step = Step::new(shape, kind, random);
    if filled {
        *step.seq_of_row.last_mut().unwrap() = NONE;
    }
    step
}

/// Largest error of a product, relative to the largest of its row: of sums in f32, and of terms rounded to f16.
const BOUND: f64 = 1e-5;
const HALF_BOUND: f64 = 4e-3;

/// Asserts the products of each row to `bound`, and that rows without an expert keep the value `before`.
fn assert_rows(
    found: &[f32],
    expected: &[Vec<(f64, f64)>],
    (before, bound): (f32, f64),
    what: &str,
) {
    let n_out = expected[0].len();
    for (row, found) in found.chunks(n_out).enumerate() {
        let Some(expected) = expected.get(row) else {
            assert!(found.iter().all(|x| *x == before), "{what}: row {row}");
            continue;
        };
        let size = |(value, terms): &(f64, f64)| value.abs().max(*terms);
        let largest = expected.iter().map(size).fold(0.0, f64::max);
        for (o, (&found, (value, _))) in found.iter().zip(expected).enumerate() {
            let error = (f64::from(found) - value).abs();
            assert!(
                error <= bound * largest,
                "{what}: row {row}, output {o}: {found}, not {value} (largest {largest})"
            );
        }
    }
}

for_each_format!(products);

fn products(ty: GgmlType) {
    let f = GgmlType::COMPUTED.iter().position(|format| *format == ty);
    let f = f.expect("it is a format");
    for gpu in common::gpus_of(ty) {
        let random = &mut Random(f as u64);
        let n_in = [256, 512][f % 2] + usize::from(ty.block_len() == 1) * (f % 3 * 2 + 1);
        for (i, load) in LOADS.iter().enumerate() {
            let mut step = step_of(i, random);
            let is_shared = (f + i) % 3 == 2;
            if is_shared {
                step = step.with_shared(SharedWeight::One);
            }
            let choices = step.choices();
            let n_out = [48, 33, 7][(f + i) % 3];
            let mut experts = Experts::new(&gpu, ty, [step.n_experts, n_out, n_in], random);
            if is_shared {
                experts = experts.with_last_apart(&gpu);
            } else {
                experts = experts.with_biases(&gpu, random);
                if (f + i) % 4 != 2 {
                    experts = experts.with_scales(&gpu, random);
                }
            }
            let max_rows = step.n_tokens() * step.n_used;
            let x = TestActs::new(&gpu, act_format(ty), n_in, &random.values(max_rows * n_in));
            let rows = x.exact.chunks_exact(n_in).zip(&choices.of_row);
            let expected: Vec<Vec<(f64, f64)>> = rows
                .map(|(x, (_, expert))| experts.product(x, *expert))
                .collect();
            let buffer = step.route(&gpu);
            let routing = buffer.of(step.n_tokens());
            for (v, gpu) in common::with_variants(&gpu, load.3).iter().enumerate() {
                let run = || {
                    let out = gpu.upload(&vec![0.5f32; max_rows * n_out]).unwrap();
                    let product = experts.product_of_rows();
                    ops::expert_products(gpu, &x.acts(), &routing, &product, out.as_slice())
                        .unwrap();
                    gpu.read(out.as_slice::<f32>()).unwrap()
                };
                let found = match v == f % 3 {
                    true => any_order(run),
                    false => run(),
                };
                let what = format!("{} {} {:?}", common::name(gpu), ty.name(), load);
                assert_rows(&found, &expected, (0.5, BOUND), &what);
            }
        }
    }
}

/// The gated products of each row `[n_rows, n_in]` with the expert that was chosen for it, and their sizes.
fn gated_rows(
    [gate, up]: [&Experts; 2],
    activation: Activation,
    x: &[f64],
    choices: &Choices,
) -> Vec<Vec<(f64, f64)>> {
    let rows = x.chunks_exact(gate.n_in).zip(&choices.of_row);
    let gated = rows.map(|(x, (_, expert))| {
        let sides = gate.product(x, *expert).into_iter();
        let sides = sides.zip(up.product(x, *expert));
        let gated = |((gate, of_gate), (up, size_up)): ((f64, f64), (f64, f64))| {
            let size = of_gate.max(gate.abs()) * size_up.max(up.abs() + 1.0);
            (activated(activation, gate) * of_up(activation, up), size)
        };
        sides.map(gated).collect()
    });
    gated.collect()
}

#[test]
fn gate_and_up() {
    let pairs = [
        [GgmlType::Q4_K, GgmlType::Q4_K],
        [GgmlType::Q4_K, GgmlType::Q6_K],
        [GgmlType::Q8_0, GgmlType::Q8_0],
        [GgmlType::F16, GgmlType::F16],
    ];
    for gpu in common::gpus() {
        let is_built = |types: &[GgmlType; 2]| types.iter().all(|&ty| common::has_format(&gpu, ty));
        let built = pairs.into_iter().enumerate();
        for (k, types) in built.filter(|(_, types)| is_built(types)) {
            let (n_in, random) = (256, &mut Random(k as u64));
            let activation = JOINING[k % JOINING.len()];
            for (i, load) in LOADS.iter().enumerate() {
                let mut step = step_of(i, random);
                let is_shared = (i + k) % 3 == 1;
                let n_out = [48, 33][(i + k) % 2];
                if is_shared {
                    step = step.with_shared(SharedWeight::One);
                }
                let choices = step.choices();
                let shape = [step.n_experts, n_out, n_in];
                // Of the same format, both may be in one tensor.
                let sides = match types[0] == types[1] && (i + k) % 2 == 0 {
                    true => Experts::parts(&gpu, types[0], shape, random),
                    false => types.map(|ty| Experts::new(&gpu, ty, shape, random)),
                };
                let [gate, up] = sides.map(|experts| {
                    if is_shared {
                        return experts.with_last_apart(&gpu);
                    }
                    let experts = experts.with_biases(&gpu, random);
                    match i {
                        0 => experts,
                        _ => experts.with_scales(&gpu, random),
                    }
                });
                let max_rows = step.n_tokens() * step.n_used;
                let x: Vec<f32> = random.values(max_rows * n_in);
                let x: Vec<f32> = x.iter().map(|x| x * 0.05).collect();
                let x = TestActs::new(&gpu, act_format(types[0]), n_in, &x);
                let expected = gated_rows([&gate, &up], activation, &x.exact, &choices);
                let buffer = step.route(&gpu);
                let routing = buffer.of(step.n_tokens());
                for gpu in common::with_variants(&gpu, load.3) {
                    let found = any_order(|| {
                        let [out, beside] =
                            [0; 2].map(|_| gpu.alloc::<f32>(max_rows * n_out).unwrap());
                        let gated = ExpertGated {
                            sides: [gate.product_of_rows(), up.product_of_rows()],
                            activation,
                            out: out.as_slice(),
                        };
                        let beside = beside.as_slice();
                        ops::expert_gated_products(&gpu, &x.acts(), &routing, &gated, beside)
                            .unwrap();
                        let rows = 0..choices.of_row.len() * n_out;
                        gpu.read(out.as_slice::<f32>().part(rows)).unwrap()
                    });
                    let what = format!("{} {types:?} {:?}", common::name(&gpu), load);
                    assert_rows(&found, &expected, (0.0, BOUND), &what);
                }
            }
        }
    }
}

/// Products of one token that convert its activations themselves have the bits of those with converted ones.
#[test]
fn products_of_their_own_activations() {
    let types = [
        GgmlType::Q4_K,
        GgmlType::Q6_K,
        GgmlType::Q8_0,
        GgmlType::F16,
    ];
    for gpu in common::gpus() {
        let built = types.into_iter().enumerate();
        for (k, ty) in built.filter(|&(_, ty)| common::has_format(&gpu, ty)) {
            let random = &mut Random(k as u64);
            // Rows of two rounds of a block, and some that are not whole octets.
            let n_in = if ty == GgmlType::F16 { 2307 } else { 2304 };
            let (n_out, form) = ([48, 33][k % 2], act_format(ty));
            let is_shared = k % 2 == 0;
            let mut step = Step::new([1, 5, 3], Logits::Random, random);
            if is_shared {
                step = step.with_shared(SharedWeight::One);
            }
            let shape = [step.n_experts, n_out, n_in];
            // Gate and up of one format are in one launch.
            let of_up = if ty == GgmlType::Q6_K { types[0] } else { ty };
            let [gate, up] =
                [ty, of_up].map(|ty| Experts::new(&gpu, ty, shape, random).with_last_apart(&gpu));
            let (max_rows, buffer) = (step.n_used, step.route(&gpu));
            let routing = buffer.of(1);
            let x = gpu.upload(&random.values(max_rows * n_in)).unwrap();
            for rows in [SourceRows::One, SourceRows::Each] {
                let made = ActsBuffer::new(&gpu, form, max_rows, n_in).unwrap();
                let made = made.rows(max_rows);
                let unmade = ActsBuffer::new(&gpu, form, max_rows, n_in).unwrap();
                let mut own = unmade.rows(max_rows);
                let x = x.as_slice::<f32>();
                let x = match rows {
                    SourceRows::One => {
                        let x = x.part(0..n_in);
                        ops::quantize_experts(&gpu, x, (&routing, Weighed::Outputs), &made)
                            .unwrap();
                        x
                    }
                    _ => {
                        ops::quantize(&gpu, x, &made).unwrap();
                        x
                    }
                };
                own.source = Some(Source { x, rows });
                let run = |gpu: &Gpu, acts: &Acts<'_>, gated: bool, kernel: Option<&str>| {
                    let [out, beside] = [0; 2].map(|_| gpu.alloc::<f32>(max_rows * n_out).unwrap());
                    let (out, beside) = (out.as_slice::<f32>(), beside.as_slice::<f32>());
                    let kernels = common::kernels(gpu, || {
                        if !gated {
                            let product = gate.product_of_rows();
                            return ops::expert_products(gpu, acts, &routing, &product, out);
                        }
                        let gated = ExpertGated {
                            sides: [gate.product_of_rows(), up.product_of_rows()],
                            activation: JOINING[0],
                            out,
                        };
                        ops::expert_gated_products(gpu, acts, &routing, &gated, beside)
                    });
                    let is_usual = |name: &&str| kernel.is_none_or(|kernel| *name == kernel);
                    assert!(kernels.iter().all(is_usual), "{kernels:?}");
                    gpu.read(out).unwrap()
                };
                for gated in [false, true] {
                    let expected = run(&gpu, &made, gated, None);
                    assert!(expected.iter().any(|x| *x != 0.0));
                    for (variants, kernel) in [
                        ("tiles=small", "gemv_own_tiled_2"),
                        ("tiles=large", "gemv_own_tiled_4"),
                    ] {
                        let gpu = gpu.with_variants(variants.parse().unwrap());
                        let found = any_order(|| run(&gpu, &own, gated, Some(kernel)));
                        let what = common::name(&gpu);
                        assert_eq!(found, expected, "{what} {} {rows:?} {gated}", ty.name());
                    }
                }
            }
        }
    }
}

/// Experts and those of a token, values of a row, and outputs: rows of less than a chunk for each lane and of several; as many
/// choices as waves, more and fewer.
const SUMS: [([usize; 2], [usize; 2]); 5] = [
    ([9, 8], [768, 20]),
    ([5, 3], [512, 48]),
    ([40, 31], [256, 7]),
    ([2, 1], [1280, 64]),
    ([6, 4], [256, 8]),
];

for_each_format!(sums_of_own_activations);

/// The sum of one token's experts that is computed with their products has the bits of one that is computed apart.
fn sums_of_own_activations(ty: GgmlType) {
    let f = GgmlType::COMPUTED.iter().position(|format| *format == ty);
    let f = f.unwrap();
    for gpu in common::gpus_of(ty) {
        // Rows have no sums of several waves; of so few, floats would.
        let gpu = gpu.with_variants("splits=off".parse().unwrap());
        for (i, &([n_experts, n_used], [n_in, n_out])) in SUMS.iter().enumerate() {
            let random = &mut Random((f * SUMS.len() + i) as u64);
            let mut step = Step::new([1, n_experts, n_used], Logits::Random, random);
            let is_padding = i + 1 == SUMS.len();
            if is_padding {
                step.seq_of_row[0] = NONE;
            }
            let is_shared = (f + i) % 2 == 0;
            if is_shared {
                step = step.with_shared(SharedWeight::One);
            }
            let mut experts = Experts::new(&gpu, ty, [step.n_experts, n_out, n_in], random);
            experts = match (is_shared, (f + i) % 3) {
                (true, _) => experts.with_last_apart(&gpu),
                (false, 0) => experts.with_biases(&gpu, random),
                (false, 1) => experts.with_scales(&gpu, random),
                (false, _) => experts.with_biases(&gpu, random).with_scales(&gpu, random),
            };
            let (n_rows, buffer) = (step.n_used, step.route(&gpu));
            let (routing, product) = (buffer.of(1), experts.product_of_rows());
            let x = gpu.upload(&random.values(n_rows * n_in)).unwrap();
            let made = ActsBuffer::new(&gpu, act_format(ty), n_rows, n_in).unwrap();
            let made = made.rows(n_rows);
            ops::quantize(&gpu, x.as_slice(), &made).unwrap();
            let unmade = ActsBuffer::new(&gpu, act_format(ty), n_rows, n_in).unwrap();
            let mut own = unmade.rows(n_rows);
            own.source = Some(Source {
                x: x.as_slice(),
                rows: SourceRows::Each,
            });
            let before = random.values(n_out);
            let what = format!("{} {} {:?}", common::name(&gpu), ty.name(), SUMS[i]);
            for weighed in [Weighed::Outputs, Weighed::Inputs] {
                let choices = (&routing, weighed);
                let products = gpu.alloc::<f32>(n_rows * n_out).unwrap();
                let apart = gpu.upload(&before).unwrap();
                ops::expert_products(&gpu, &made, &routing, &product, products.as_slice()).unwrap();
                let to = apart.as_slice();
                ops::combine_experts(&gpu, products.as_slice(), choices, OutMode::Add, to).unwrap();
                let expected = gpu.read(apart.as_slice::<u32>()).unwrap();
                let found = any_order(|| {
                    let sum = gpu.upload(&before).unwrap();
                    let out = [products.as_slice(), sum.as_slice()];
                    let at_once = ExpertSum::new(&gpu, &own, choices, &product, out);
                    let at_once = at_once.unwrap().expect("one launch computes them");
                    let kernels = common::kernels(&gpu, || at_once.launch(&gpu));
                    assert_eq!(kernels, ["gemv_summed_8"], "{what}");
                    gpu.read(sum.as_slice::<u32>()).unwrap()
                });
                assert_eq!(found, expected, "{what} {weighed:?}");
                let before = before.iter().map(|x| x.to_bits());
                let is_changed = expected.into_iter().ne(before);
                assert_eq!(is_changed, !is_padding, "{what}");
            }
        }
    }
}

/// Sums that one launch does not compute: of too many choices, of rows that shared memory has no room for, and of several waves.
#[test]
fn sums_of_other_shapes_are_apart() {
    for gpu in common::gpus() {
        for (ty, n_used, n_in) in [
            (GgmlType::Q8_0, 33, 64),
            (GgmlType::F32, 2, 1536),
            (GgmlType::Q8_0, 2, 4096),
        ] {
            let random = &mut Random(5);
            let (n_experts, n_out) = (n_used + 1, 4);
            let step = Step::new([1, n_experts, n_used], Logits::Random, random);
            let experts = Experts::new(&gpu, ty, [n_experts, n_out, n_in], random);
            let buffer = step.route(&gpu);
            let x = gpu.alloc::<f32>(n_used * n_in).unwrap();
            let acts = ActsBuffer::new(&gpu, act_format(ty), n_used, n_in).unwrap();
            let mut own = acts.rows(n_used);
            own.source = Some(Source {
                x: x.as_slice(),
                rows: SourceRows::Each,
            });
            let [products, sum] = [n_used * n_out, n_out].map(|n| gpu.alloc::<f32>(n).unwrap());
            let (routing, product) = (buffer.of(1), experts.product_of_rows());
            let out = [products.as_slice(), sum.as_slice()];
            let at_once = ExpertSum::new(&gpu, &own, (&routing, Weighed::Outputs), &product, out);
            assert!(at_once.unwrap().is_none(), "{} {n_used}", ty.name());
        }
    }
}

/// Loads for products in f16, and their kernels: tiles of few rows, of up to 64, of few rows by eight, one of which has more,
/// of up to 128, and two of up to 64 in one of the list; and of few rows, one of more than 16.
const HALF_LOADS: [([usize; 3], Logits, &str); 6] = [
    ([10, 3, 2], Logits::Random, "gemm_half_few"),
    ([37, 3, 2], Logits::Crowd, "gemm_half_64"),
    ([18, 9, 2], Logits::Crowd, "gemm_half_octet"),
    ([150, 4, 2], Logits::Crowd, "gemm_half_128"),
    ([90, 6, 2], Logits::Crowd, "gemm_half_64"),
    ([45, 9, 2], Logits::Crowd, "gemm_half_few"),
];

/// A load of few tokens, whose codes may be taken as they are, with one expert of more than eight.
fn load_of_codes(ty: GgmlType) -> ([usize; 3], Logits, &'static str) {
    let kernel = match act_format(ty) {
        ActFormat::Q8x256 => "gemm_half_codes",
        _ => "gemm_half_octet",
    };
    ([12, 6, 2], Logits::Crowd, kernel)
}

/// Two products of the same activations, rounded to f16, the second one of a matrix with other experts' between. With a
/// shared expert, its matrices are apart.
fn check_in_f16(
    gpu: &Gpu,
    ty: GgmlType,
    (shape, kind, kernel): ([usize; 3], Logits, &str),
    (n_in, is_shared): (usize, bool),
) {
    let random = &mut Random(n_in as u64);
    let mut step = Step::new(shape, kind, random);
    *step.seq_of_row.last_mut().unwrap() = NONE;
    if is_shared {
        step = step.with_shared(SharedWeight::One);
    }
    let choices = step.choices();
    let n_out = if is_shared { 144 } else { 135 };
    let max_rows = step.n_tokens() * step.n_used;
    let shape = [step.n_experts, n_out, n_in];
    let sides = Experts::parts(gpu, ty, shape, random);
    let [gate, up] = match is_shared {
        true => sides.map(|experts| experts.with_last_apart(gpu)),
        false => {
            let [gate, up] = sides.map(|experts| experts.with_scales(gpu, random));
            [gate, up.with_biases(gpu, random)]
        }
    };
    let form = act_format(ty);
    let acts = ActsBuffer::of_experts(gpu, form, [max_rows, n_in], Some(step.n_experts)).unwrap();
    let values = gpu.upload(&random.values(max_rows * n_in)).unwrap();
    ops::quantize(gpu, values.as_slice(), &acts.rows(max_rows)).unwrap();
    let x = acts.rows(max_rows);
    let codes = gpu.read(x.codes).unwrap();
    let scales = gpu.read(x.scales).unwrap();
    let codes = codes.iter().enumerate();
    let exact: Vec<f64> = codes
        .map(|(i, &code)| f64::from(code) * f64::from(scales[i / form.block_len()]))
        .collect();
    let buffer = step.route(gpu);
    let routing = buffer.of(step.n_tokens());
    assert!(ops::takes_halves_of_experts(gpu, &x, &routing, ty));
    let activation = JOINING[0];
    let expected = gated_rows([&gate, &up], activation, &exact, &choices);
    // Whether a launch converts activations, and the products of all rows: those without an expert stay zeros.
    let run = || {
        let [out, beside] = [0; 2].map(|_| gpu.upload(&vec![0.0f32; max_rows * n_out]).unwrap());
        let gated = ExpertGated {
            sides: [gate.product_of_rows(), up.product_of_rows()],
            activation,
            out: out.as_slice(),
        };
        let mut trace = Trace::new(gpu);
        let origin = Event::new(gpu).unwrap();
        origin.record().unwrap();
        let run = || ops::expert_gated_products(gpu, &x, &routing, &gated, beside.as_slice());
        trace.record(run).unwrap();
        gpu.synchronize().unwrap();
        let times = trace.times(&origin).unwrap();
        // Without biases and scales, gate and up are one launch.
        let is_large = ["gemm_half_64", "gemm_half_128"].contains(&kernel);
        let name = match is_large && is_shared {
            true => format!("{kernel}_gated"),
            false => kernel.to_string(),
        };
        assert!(times.iter().any(|time| time.kernel == name), "{times:?}");
        let is_converted = times
            .iter()
            .any(|time| time.kernel.starts_with("half_acts"));
        (is_converted, gpu.read(out.as_slice::<f32>()).unwrap())
    };
    let found = any_order(|| run().1);
    let what = format!("{} {} {shape:?} {n_in}", common::name(gpu), ty.name());
    assert_rows(&found, &expected, (0.0, HALF_BOUND), &what);

    // Of small tiles, f16 activations are written where rows are quantized, with the same bits.
    let are_small = ["gemm_half_few", "gemm_half_octet"].contains(&kernel);
    let apart = gpu.with_variants("products=codes".parse().unwrap());
    let of_tokens = gpu.upload(&random.values(step.n_tokens() * n_in)).unwrap();
    let by = |gpu: &Gpu, is_of_tokens: bool| match is_of_tokens {
        true => {
            let weighed = (&routing, Weighed::Outputs);
            ops::quantize_experts(gpu, of_tokens.as_slice(), weighed, &x).unwrap();
        }
        false => ops::quantize_choices(gpu, values.as_slice(), &routing, &x).unwrap(),
    };
    for is_of_tokens in [true, false] {
        by(&apart, is_of_tokens);
        let (_, expected) = run();
        let found = any_order(|| {
            by(gpu, is_of_tokens);
            let (is_converted, found) = run();
            let takes_codes = kernel == "gemm_half_codes";
            let is_apart = !are_small && !takes_codes && !is_of_tokens;
            assert_eq!(is_converted, is_apart, "{what} {kernel}");
            found
        });
        assert!(found == expected, "{what} {is_of_tokens}");
    }
}

/// Codes of experts' rows are multiplied as they are, eight at once, with weights that have kernels for that. In a crowd, one of the
/// experts has more rows. Where there are many blocks, each takes several tiles of short rows, the last one fewer.
#[test]
fn rows_of_experts_are_multiplied_as_codes() {
    for (ty, name) in [(GgmlType::Q4_K, "q4_k"), (GgmlType::Q6_K, "q6_k")] {
        let has_units = |gpu: &Gpu| matches!(gpu.target(), "sm_90a" | "host-nv");
        for gpu in common::gpus_of(ty).filter(has_units) {
            for ((n_tokens, n_experts, kind), [n_out, n_in], is_shared, of) in [
                ((12, 6, Logits::Crowd), [48, 1792], true, "experts"),
                ((12, 6, Logits::Crowd), [48, 3328], true, "experts"),
                ((40, 30, Logits::Random), [1040, 512], false, "short"),
                // Of an odd number of units, and of one.
                ((40, 30, Logits::Crowd), [528, 768], true, "short"),
                ((12, 6, Logits::Crowd), [720, 256], false, "short"),
            ] {
                // Those of a real GPU are too many for short rows.
                let is_of = |kernel: &str| match gpu.target() {
                    "host-nv" => kernel == format!("gemm_octet_{of}_{name}"),
                    _ => kernel.starts_with("gemm_octet"),
                };
                let random = &mut Random(n_in as u64);
                let mut step = Step::new([n_tokens, n_experts, 2], kind, random);
                *step.seq_of_row.last_mut().unwrap() = NONE;
                if is_shared {
                    step = step.with_shared(SharedWeight::One);
                }
                let max_rows = n_tokens * step.n_used;
                let shape = [step.n_experts, n_out, n_in];
                let sides = Experts::parts(&gpu, ty, shape, random);
                let [gate, up] = match is_shared {
                    true => sides.map(|experts| experts.with_last_apart(&gpu)),
                    false => {
                        let [gate, up] = sides.map(|experts| experts.with_scales(&gpu, random));
                        [gate, up.with_biases(&gpu, random)]
                    }
                };
                let of_rows = [max_rows, n_in];
                let acts =
                    ActsBuffer::of_experts(&gpu, act_format(ty), of_rows, Some(step.n_experts));
                let acts = acts.unwrap().beside(&[(ty, gate.order), (ty, up.order)]);
                let buffer = step.route(&gpu);
                let routing = buffer.of(n_tokens);
                let x = acts.rows(max_rows);
                let values = gpu.upload(&random.values(max_rows * n_in)).unwrap();
                let quantized = common::kernels(&gpu, || {
                    ops::quantize_choices(&gpu, values.as_slice(), &routing, &x)
                });
                assert_eq!(quantized, ["quantize_q8x256"]);
                assert!(!ops::takes_halves_of_experts(&gpu, &x, &routing, ty));
                let codes = gpu.read(x.codes).unwrap();
                let scales = gpu.read(x.scales).unwrap();
                let exact = codes.iter().enumerate();
                let exact: Vec<f64> = exact
                    .map(|(i, &code)| f64::from(code) * f64::from(scales[i / 256]))
                    .collect();
                let activation = JOINING[0];
                let expected = gated_rows([&gate, &up], activation, &exact, &step.choices());
                let found = any_order(|| {
                    let [out, beside] =
                        [0; 2].map(|_| gpu.upload(&vec![0.0f32; max_rows * n_out]).unwrap());
                    let gated = ExpertGated {
                        sides: [gate.product_of_rows(), up.product_of_rows()],
                        activation,
                        out: out.as_slice(),
                    };
                    let kernels = common::kernels(&gpu, || {
                        ops::expert_gated_products(&gpu, &x, &routing, &gated, beside.as_slice())
                    });
                    assert!(kernels.iter().any(|kernel| is_of(kernel)), "{kernels:?}");
                    gpu.read(out.as_slice::<f32>()).unwrap()
                });
                let what = format!("{} {} {shape:?}", common::name(&gpu), ty.name());
                assert_rows(&found, &expected, (0.0, BOUND), &what);
            }
        }
    }
}

/// With `rows=answer`, an expert's row has the same bits with any number of tokens, as f16 and as codes.
#[test]
fn rows_of_answers_have_the_same_bits_in_any_company() {
    let has_units = |gpu: &Gpu| matches!(gpu.target(), "sm_90a" | "host-nv");
    // 64 tokens have up to eight rows of an expert on average, or more.
    for (ty, n_experts, kernels) in [
        (GgmlType::Q4_K, 16, &["gemm_octet_experts_q4_k"][..]),
        (GgmlType::Q6_K, 16, &["gemm_octet_experts_q6_k"]),
        (GgmlType::Q4_K, 15, &["gemm_half_octet", "gemm_half_few"]),
    ] {
        for gpu in common::gpus_of(ty).filter(has_units) {
            let gpu = gpu.with_variants("rows=answer".parse().unwrap());
            let random = &mut Random(n_experts as u64);
            let most = 70;
            let mut step = Step::new([most, n_experts, 2], Logits::Crowd, random);
            let shape @ [_, n_out, n_in] = [n_experts, 48, 768];
            let [gate, up] = Experts::parts(&gpu, ty, shape, random);
            let tokens = gpu.upload(&random.values(most * n_in)).unwrap();
            let mut run = |n_tokens: usize| {
                step.logits.truncate(n_tokens * n_experts);
                step.seq_of_row.truncate(n_tokens);
                let n_rows = 2 * n_tokens;
                let form = act_format(ty);
                let acts = ActsBuffer::of_experts(&gpu, form, [2 * most, n_in], Some(n_experts));
                let acts = acts.unwrap().beside(&[(ty, gate.order), (ty, up.order)]);
                let buffer = step.route(&gpu);
                let (routing, x) = (buffer.of(n_tokens), acts.rows(n_rows));
                let of_step = tokens.as_slice().part(0..n_tokens * n_in);
                ops::quantize_experts(&gpu, of_step, (&routing, Weighed::Outputs), &x).unwrap();
                let [out, beside] =
                    [0; 2].map(|_| gpu.upload(&vec![0.0f32; n_rows * n_out]).unwrap());
                let gated = ExpertGated {
                    sides: [gate.product_of_rows(), up.product_of_rows()],
                    activation: JOINING[0],
                    out: out.as_slice(),
                };
                let launched = common::kernels(&gpu, || {
                    ops::expert_gated_products(&gpu, &x, &routing, &gated, beside.as_slice())
                });
                let is_known = launched.iter().any(|name| kernels.contains(name));
                assert!(is_known, "{n_tokens}: {launched:?}");
                let found = gpu.read(out.as_slice::<f32>()).unwrap();
                let of_choice = |&row: &u32| found[row as usize * n_out..][..n_out].to_vec();
                let rows = step.choices().rows;
                rows.iter().map(of_choice).collect::<Vec<Vec<f32>>>()
            };
            let all = run(most);
            for n_tokens in [9, 3, 1] {
                let few = run(n_tokens);
                let what = format!("{} {n_experts} {n_tokens}", common::name(&gpu));
                assert!(few[..] == all[..few.len()], "{what}");
            }
        }
    }
}

/// There is room for f16 activations of answers of any number of tokens, also where all choose all experts, as heads.
#[test]
fn rows_of_answers_fit_the_memory() {
    let ty = GgmlType::Q8_0;
    let has_units = |gpu: &Gpu| matches!(gpu.target(), "sm_90a" | "host-nv");
    for gpu in common::gpus_of(ty).filter(has_units) {
        let gpu = gpu.with_variants("rows=answer".parse().unwrap());
        let (most, n_experts) = (128, 4);
        let shape = [most * n_experts, 256];
        let acts = ActsBuffer::of_experts(&gpu, act_format(ty), shape, Some(n_experts)).unwrap();
        for n_tokens in [1, 64, 109, most] {
            let random = &mut Random(n_tokens as u64);
            let step = Step::new([n_tokens, n_experts, n_experts], Logits::Random, random);
            let buffer = step.route(&gpu);
            let (routing, x) = (buffer.of(n_tokens), acts.rows(n_tokens * n_experts));
            let takes_halves = ops::takes_halves_of_experts(&gpu, &x, &routing, ty);
            assert!(takes_halves, "{n_tokens}");
        }
    }
}

/// Gate and up whose result is converted have the codes of those that are converted apart, and products of them the same bits.
/// No launch converts them to f16.
#[test]
fn gate_and_up_are_converted() {
    for ty in [GgmlType::Q4_K, GgmlType::Q8_0] {
        let has_kernels = |gpu: &Gpu| matches!(gpu.target(), "sm_90a" | "host-nv");
        for gpu in common::gpus_of(ty).filter(has_kernels) {
            // Of few rows, of many, of codes, and of a GEMV.
            let loads = [HALF_LOADS[0], HALF_LOADS[1], load_of_codes(ty)];
            let loads = loads.map(|(shape, kind, _)| (shape, kind, Activation::Silu));
            // And of many with a gate that no GEMM computes.
            let (shape, kind, _) = HALF_LOADS[1];
            let others = [
                ([2, 5, 2], Logits::Random, Activation::Silu),
                (shape, kind, Activation::GeluTanh),
            ];
            for (shape, kind, activation) in loads.into_iter().chain(others) {
                let random = &mut Random(11);
                let mut step = Step::new(shape, kind, random);
                *step.seq_of_row.last_mut().unwrap() = NONE;
                let n_rows = step.n_tokens() * step.n_used;
                let (n_in, n_out) = (256, 256);
                let shape = [step.n_experts, n_out, n_in];
                let [gate, up] = Experts::parts(&gpu, ty, shape, random);
                let down = Experts::new(&gpu, ty, [step.n_experts, 19, n_out], random);
                let buffer = step.route(&gpu);
                let routing = buffer.of(step.n_tokens());
                let acts = |width: usize| {
                    let shape = [n_rows, width];
                    ActsBuffer::of_experts(&gpu, act_format(ty), shape, Some(step.n_experts))
                        .unwrap()
                };
                let (x, to) = (acts(n_in), acts(n_out));
                let (x, to) = (x.rows(n_rows), to.rows(n_rows));
                let values = gpu.upload(&random.values(n_rows * n_in)).unwrap();
                ops::quantize_choices(&gpu, values.as_slice(), &routing, &x).unwrap();
                let n_valid = step.choices().of_row.len();
                let run = |is_one: bool| {
                    let [out, beside] = [0; 2].map(|_| gpu.alloc::<f32>(n_rows * n_out).unwrap());
                    let result = gpu.upload(&vec![0.0f32; n_rows * 19]).unwrap();
                    let gated = ExpertGated {
                        sides: [gate.product_of_rows(), up.product_of_rows()],
                        activation,
                        out: out.as_slice(),
                    };
                    let beside = beside.as_slice();
                    if is_one {
                        ops::expert_gated_products_quantized(
                            &gpu,
                            (&x, &routing),
                            &gated,
                            beside,
                            &to,
                        )
                        .unwrap();
                    } else {
                        ops::expert_gated_products(&gpu, &x, &routing, &gated, beside).unwrap();
                        ops::quantize_choices(&gpu, out.as_slice(), &routing, &to).unwrap();
                    }
                    let product = down.product_of_rows();
                    let kernels = common::kernels(&gpu, || {
                        ops::expert_products(&gpu, &to, &routing, &product, result.as_slice())
                    });
                    let is_converted = kernels.iter().any(|name| name.starts_with("half_acts"));
                    assert!(!is_one || !is_converted, "{kernels:?}");
                    let codes = gpu.read(to.codes).unwrap();
                    let codes = codes[..n_valid * n_out].iter().map(|&code| code as u32);
                    let products = gpu.read(result.as_slice::<u32>()).unwrap();
                    codes.chain(products).collect::<Vec<u32>>()
                };
                let expected = run(false);
                assert!(expected.iter().any(|word| *word != 0));
                let found = any_order(|| run(true));
                assert!(
                    found == expected,
                    "{} {} {shape:?}",
                    gpu.target(),
                    ty.name()
                );
            }
        }
    }
}

/// With rows long enough for two waves, which add their sums, and an expert with more rows than a round has.
#[test]
fn long_products_by_eight_in_f16() {
    for ty in [GgmlType::Q4_K, GgmlType::Q8_0] {
        for gpu in common::gpus_of(ty).filter(|gpu| gpu.target() == "host-nv") {
            for (load, is_shared) in [(load_of_codes(ty), true), (HALF_LOADS[2], false)] {
                check_in_f16(&gpu, ty, load, (1024, is_shared));
            }
        }
    }
}

for_each_format!(products_in_f16);

fn products_in_f16(ty: GgmlType) {
    let n_in = 160usize.next_multiple_of(ty.block_len());
    let f = GgmlType::COMPUTED.iter().position(|format| *format == ty);
    let f = f.expect("it is a format");
    let has_units = |gpu: &Gpu| {
        matches!(gpu.target(), "sm_90a" | "host-nv") && act_format(ty) != ActFormat::F32
    };
    for gpu in common::gpus_of(ty).filter(has_units) {
        let loads = match ty {
            GgmlType::Q4_K => &HALF_LOADS[..],
            _ => &HALF_LOADS[..3],
        };
        let loads = loads.iter().copied().chain([load_of_codes(ty)]);
        for (i, load) in loads.enumerate() {
            // Both kinds of experts with each load, of one format or another; and of one format with each tile.
            let is_shared = (f + i) % 2 == 0;
            check_in_f16(&gpu, ty, load, (n_in, is_shared));
            if ty == GgmlType::Q4_K {
                check_in_f16(&gpu, ty, load, (n_in, !is_shared));
            }
        }
    }
}
