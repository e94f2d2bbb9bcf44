//! GEMM in every format, against f64 loops over the same weights and activations.

use crate::common;
use crate::common::formats::for_each_format;
use crate::common::weights::{Fill, Packed, Random, blocks, values};
use rocmforge_gguf::GgmlType;
use rocmforge_gpu::ops::{self, Product, matmul, matmul_tiled};
use rocmforge_gpu::{ActFormat, Acts, Buffer, Event, Gpu, MatmulTiles, OutMode, Trace};
use rocmforge_plan::act_format;
use std::ops::Range;

const TILES: [MatmulTiles; 2] = [MatmulTiles::Large, MatmulTiles::Small];

/// How the activations' codes are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Codes {
    Random,
    /// 127 or -127, by row.
    Extreme,
    /// One nonzero value in each row.
    OneHot,
}

/// Activations on the host, quantized and as numbers.
struct HostActs {
    form: ActFormat,
    n_rows: usize,
    width: usize,
    codes: Vec<i8>,
    scales: Vec<f32>,
    /// `[n_rows, width]`.
    values: Vec<f32>,
}

impl HostActs {
    fn new(form: ActFormat, [n_rows, width]: [usize; 2], kind: Codes, random: &mut Random) -> Self {
        let n = n_rows * width;
        let code = |i: usize, random: &mut Random| {
            let (row, at) = (i / width, i % width);
            match kind {
                Codes::Random => (random.bits() % 255) as i32 - 127,
                Codes::Extreme => [127, -127][row % 2],
                Codes::OneHot => i32::from(at == row * 37 % width) * 100,
            }
        };
        let codes: Vec<i8> = (0..n).map(|i| code(i, random) as i8).collect();
        // Rows of floats differ in magnitude.
        let size = |i: usize| match form {
            ActFormat::F32 => f32::powi(2.0, (i / width % 5) as i32 * 20 - 40),
            _ => 1.0,
        };
        let scales: Vec<f32> = (0..n / form.block_len())
            .map(|i| size(i) * (0.01 + 0.01 * random.value().abs()))
            .collect();
        let value = |(i, &code): (usize, &i8)| f32::from(code) * scales[i / form.block_len()];
        let values = codes.iter().enumerate().map(value).collect();
        HostActs {
            form,
            n_rows,
            width,
            codes,
            scales,
            values,
        }
    }

    /// Some of the rows.
    fn rows(&self, rows: Range<usize>) -> HostActs {
        let at = rows.start * self.width..rows.end * self.width;
        let block = self.form.block_len();
        HostActs {
            form: self.form,
            n_rows: rows.len(),
            width: self.width,
            codes: self.codes[at.clone()].to_vec(),
            scales: self.scales[at.start / block..at.end / block].to_vec(),
            values: self.values[at].to_vec(),
        }
    }

    fn upload(&self, gpu: &Gpu) -> DeviceActs {
        let sums: Vec<i16> = self
            .codes
            .chunks(16)
            .map(|codes| codes.iter().map(|&c| i16::from(c)).sum())
            .collect();
        DeviceActs {
            form: self.form,
            shape: [self.n_rows, self.width],
            values: gpu.upload(&self.values).unwrap(),
            codes: gpu.upload(&self.codes).unwrap(),
            scales: gpu.upload(&self.scales).unwrap(),
            sums: gpu.upload(&sums).unwrap(),
        }
    }
}

struct DeviceActs {
    form: ActFormat,
    shape: [usize; 2],
    values: Buffer,
    codes: Buffer,
    scales: Buffer,
    sums: Buffer,
}

impl DeviceActs {
    fn acts(&self) -> Acts<'_> {
        Acts {
            form: self.form,
            n_rows: self.shape[0],
            width: self.shape[1],
            values: self.values.as_slice(),
            codes: self.codes.as_slice(),
            scales: self.scales.as_slice(),
            sums: self.sums.as_slice(),
            half: None,
            source: None,
        }
    }
}

/// A way to compute products of the same activations.
type Multiply<'a> = dyn Fn(&Acts<'_>, &[Product<'_>]) + 'a;

/// A product to test.
#[derive(Clone, Copy, Debug)]
struct Case {
    ty: GgmlType,
    /// `[n_rows, n_out, n_in]`.
    shape: [usize; 3],
    fill: Fill,
    codes: Codes,
}

/// The operands of a case and the result in f64.
struct Problem {
    file: Vec<u8>,
    x: HostActs,
    bias: Vec<f32>,
    before: Vec<f32>,
    /// Without bias and `before`, `[n_rows, n_out]`.
    product: Vec<f64>,
    /// The sum of the terms' magnitudes for the first output, `[n_rows]`.
    terms: Vec<f64>,
}

impl Case {
    fn problem(&self) -> Problem {
        let [n_rows, n_out, n_in] = self.shape;
        let mut random = Random((n_rows * n_out * n_in) as u64);
        let file = blocks(self.ty, n_out * n_in, self.fill, &mut random);
        let w = values(self.ty, &file);
        let form = act_format(self.ty);
        let x = HostActs::new(form, [n_rows, n_in], self.codes, &mut random);
        let scale = |row: usize, i: usize| match form {
            ActFormat::F32 => f64::from(x.values[row * n_in + i]),
            _ => {
                let at = row * n_in + i;
                f64::from(x.codes[at]) * f64::from(x.scales[at / form.block_len()])
            }
        };
        let mut product = Vec::with_capacity(n_rows * n_out);
        let mut terms = Vec::with_capacity(n_rows);
        for row in 0..n_rows {
            let values: Vec<f64> = (0..n_in).map(|i| scale(row, i)).collect();
            let magnitude = |(x, &w): (&f64, &f32)| (x * f64::from(w)).abs();
            terms.push(values.iter().zip(&w).map(magnitude).sum());
            for w in w.chunks(n_in) {
                product.push(values.iter().zip(w).map(|(x, &w)| x * f64::from(w)).sum());
            }
        }
        Problem {
            bias: random.values(n_out),
            before: random.values(n_rows * n_out),
            file,
            x,
            product,
            terms,
        }
    }

    /// Checks the product stored without bias and added with bias, and returns the latter.
    fn check(&self, gpu: &Gpu, problem: &Problem, multiply: &Multiply<'_>) -> Vec<f32> {
        let mut last = Vec::new();
        let [n_rows, n_out, n_in] = self.shape;
        let packed = Packed::new(gpu, self.ty, n_out, n_in, &problem.file);
        let x = problem.x.upload(gpu);
        let bias = gpu.upload(&problem.bias).unwrap();
        for (bias, mode) in [
            (None, OutMode::Store),
            (Some(bias.as_slice()), OutMode::Add),
        ] {
            let run = || {
                let out = gpu.upload(&problem.before).unwrap();
                let product = Product {
                    matrix: packed.matrix(),
                    bias,
                    mode,
                    out: out.as_slice(),
                };
                multiply(&x.acts(), &[product]);
                gpu.read(out.as_slice::<f32>()).unwrap()
            };
            let found = match (mode, self.codes) {
                (OutMode::Add, Codes::Random) => common::any_order(run),
                _ => run(),
            };
            for row in 0..n_rows {
                let at = |o: usize| {
                    let mut y = problem.product[row * n_out + o];
                    if mode == OutMode::Add {
                        y += f64::from(problem.before[row * n_out + o]);
                        y += f64::from(problem.bias[o]);
                    }
                    y
                };
                let largest = (0..n_out).map(|o| at(o).abs()).fold(0.0, f64::max);
                // A single output may be small because its terms cancel.
                let terms = if n_out == 1 { problem.terms[row] } else { 0.0 };
                let size = largest.max(0.1 * terms);
                let bound = 1e-5 * size + f64::from(f32::MIN_POSITIVE) * n_in as f64;
                for o in 0..n_out {
                    let error = (f64::from(found[row * n_out + o]) - at(o)).abs();
                    assert!(
                        error <= bound,
                        "{} {self:?} {mode:?}: [{row}, {o}] is {}, not {}",
                        common::name(gpu),
                        found[row * n_out + o],
                        at(o)
                    );
                }
            }
            last = found;
        }
        last
    }
}

/// `n_in` rounded up to whole blocks of `ty`.
fn whole_blocks(ty: GgmlType, n_in: usize) -> usize {
    n_in.next_multiple_of(ty.block_len())
}

fn check_all(cases: impl Iterator<Item = Case>, tiles: &[MatmulTiles]) {
    let problems: Vec<(Case, Problem)> = cases.map(|case| (case, case.problem())).collect();
    for gpu in common::gpus_of(problems[0].0.ty) {
        for (case, problem) in &problems {
            for &tiles in tiles {
                let run = |x: &Acts<'_>, products: &[Product<'_>]| {
                    let products = products.iter();
                    products.for_each(|product| matmul_tiled(&gpu, tiles, x, product).unwrap());
                };
                case.check(&gpu, problem, &run);
            }
        }
    }
}

for_each_format!(products);

fn products(ty: GgmlType) {
    let shapes = [[9, 17, 512], [16, 130, 256], [33, 70, 100], [130, 1, 288]];
    let case = |[n_rows, n_out, n_in]: [usize; 3]| Case {
        ty,
        shape: [n_rows, n_out, whole_blocks(ty, n_in)],
        fill: Fill::Random,
        codes: Codes::Random,
    };
    check_all(shapes.map(case).into_iter(), &TILES);
}

for_each_format!(extreme_values);

fn extreme_values(ty: GgmlType) {
    let kinds = [
        (Fill::Ones, Codes::Extreme),
        (Fill::Random, Codes::OneHot),
        (Fill::ZeroScales, Codes::Extreme),
        (Fill::TinyScales, Codes::Random),
    ];
    let case = |(fill, codes)| Case {
        ty,
        shape: [17, 33, whole_blocks(ty, 256)],
        fill,
        codes,
    };
    check_all(kinds.map(case).into_iter(), &TILES);
}

/// Float formats take rows of any length: fewer values than a step has, no multiple of four, a step more than whole
/// rounds. The last shape is a router's. The emulator is slow at products in f16.
#[test]
fn rows_of_any_length() {
    let small = [[18, 20, 3], [9, 9, 37]];
    let more = [[9, 35, 130], [17, 33, 327], [50, 64, 1096]];
    for (ty, shapes) in [
        (GgmlType::F16, &small[..]),
        (GgmlType::F32, &small),
        (GgmlType::F32, &more),
    ] {
        let case = |&shape: &[usize; 3]| Case {
            ty,
            shape,
            fill: Fill::Random,
            codes: Codes::Random,
        };
        check_all(shapes.iter().map(case), &TILES);
    }
}

/// Returns the bits of the product of some rows.
fn bits_of(
    gpu: &Gpu,
    matrix: &Packed,
    x: &HostActs,
    multiply: &dyn Fn(&Acts<'_>, &Product<'_>),
) -> Vec<u32> {
    let x = x.upload(gpu);
    let out = gpu.alloc::<f32>(x.shape[0] * matrix.n_out).unwrap();
    let product = Product {
        matrix: matrix.matrix(),
        bias: None,
        mode: OutMode::Store,
        out: out.as_slice(),
    };
    multiply(&x.acts(), &product);
    gpu.read(out.as_slice()).unwrap()
}

/// The bits of a row depend neither on the other rows of a launch nor on its place among them.
#[test]
fn rows_alone_have_the_same_bits() {
    const ROWS: usize = 70;
    let n_out = 40;
    for (ty, n_in) in [
        (GgmlType::Q4_K, 256),
        (GgmlType::F16, 36),
        (GgmlType::F32, 300),
    ] {
        let case = Case {
            ty,
            shape: [ROWS, n_out, n_in],
            fill: Fill::Random,
            codes: Codes::Random,
        };
        let problem = case.problem();
        for gpu in common::gpus() {
            let packed = Packed::new(&gpu, ty, n_out, n_in, &problem.file);
            for tiles in TILES {
                let run = |rows: Range<usize>| {
                    bits_of(&gpu, &packed, &problem.x.rows(rows), &|x, product| {
                        matmul_tiled(&gpu, tiles, x, product).unwrap();
                    })
                };
                let all = run(0..ROWS);
                for rows in [0..9, 21..58, 69..70] {
                    let expected = &all[rows.start * n_out..rows.end * n_out];
                    let what = format!("{} {} {tiles:?} {rows:?}", gpu.target(), ty.name());
                    assert!(run(rows) == expected, "{what}");
                }
            }
        }
    }
}

/// Checks a product with a small F32 matrix by `kernel`, in which the bits of rows depend on no others: all rows, and parts of them.
fn check_small_f32(gpu: &Gpu, shape: [usize; 3], kernel: &str, parts: &[Range<usize>]) {
    let case = Case {
        ty: GgmlType::F32,
        shape,
        fill: Fill::Random,
        codes: Codes::Random,
    };
    let problem = case.problem();
    let [n_rows, n_out, n_in] = shape;
    let run = |x: &Acts<'_>, products: &[Product<'_>]| {
        let mut trace = Trace::new(gpu);
        let origin = Event::new(gpu).unwrap();
        origin.record().unwrap();
        let run = || matmul(gpu, x, &products[0]);
        trace.record(run).unwrap();
        gpu.synchronize().unwrap();
        let times = trace.times(&origin).unwrap();
        assert_eq!(times[0].kernel, kernel);
    };
    case.check(gpu, &problem, &run);
    let packed = Packed::new(gpu, case.ty, n_out, n_in, &problem.file);
    let bits = |rows: Range<usize>| {
        bits_of(gpu, &packed, &problem.x.rows(rows), &|x, product| {
            matmul(gpu, x, product).unwrap();
        })
    };
    let all = bits(0..n_rows);
    for rows in parts {
        let expected = &all[rows.start * n_out..rows.end * n_out];
        assert!(bits(rows.clone()) == expected, "{shape:?} {rows:?}");
    }
}

#[test]
fn few_rows_of_f32() {
    for shape in [[9, 35, 130], [17, 33, 327], [64, 9, 1096], [1, 8, 4]] {
        let [n_rows, ..] = shape;
        for gpu in common::gpus() {
            let parts = [0..n_rows / 2, n_rows / 3..n_rows];
            check_small_f32(&gpu, shape, "few_floats", &parts);
        }
    }
}

/// Of 65 rows or more, on Hopper.
#[test]
fn many_rows_of_f32() {
    let has_units = |gpu: &Gpu| matches!(gpu.target(), "sm_90a" | "host-nv");
    for shape in [[66, 35, 130], [129, 33, 327], [70, 128, 1096], [80, 8, 4]] {
        let [n_rows, ..] = shape;
        for gpu in common::gpus().filter(has_units) {
            let parts = [0..65, n_rows - 65..n_rows];
            check_small_f32(&gpu, shape, "many_floats", &parts);
        }
    }
}

/// The same products by every kernel choice, below and above the largest number of GEMV rows.
#[test]
fn every_kernel_choice() {
    const VARIANTS: [&str; 5] = [
        "products=matvec",
        "products=matmul",
        "products=matvec,splits=off",
        "products=matmul,tiles=small",
        "products=matmul,tiles=large",
    ];
    for (ty, n_rows) in [
        (GgmlType::Q4_K, 19),
        (GgmlType::Q4_K, 8),
        (GgmlType::F16, 9),
        (GgmlType::Q8_0, 1),
    ] {
        let case = Case {
            ty,
            shape: [n_rows, 40, 512],
            fill: Fill::Random,
            codes: Codes::Random,
        };
        let problem = case.problem();
        for gpu in common::gpus() {
            let mut found = Vec::new();
            for gpu in common::with_variants(&gpu, &VARIANTS) {
                let run = |x: &Acts<'_>, products: &[Product<'_>]| {
                    ops::products(&gpu, x, products).unwrap();
                };
                found.push(case.check(&gpu, &problem, &run));
            }
            // The default is one of the two.
            let usual = if n_rows <= ops::MAX_ROWS { 1 } else { 2 };
            assert_eq!(found[0], found[usual], "{} {case:?}", gpu.target());
        }
    }
}

#[test]
fn large_products_choose_large_tiles() {
    let case = Case {
        ty: GgmlType::Q4_0,
        shape: [130, 4096, 32],
        fill: Fill::Random,
        codes: Codes::Random,
    };
    let problem = case.problem();
    for gpu in &common::gpus().take(1).collect::<Vec<_>>() {
        let packed = Packed::new(gpu, case.ty, 4096, 32, &problem.file);
        let x = problem.x.upload(gpu);
        let run = |how: &dyn Fn(&Product<'_>)| {
            let out = gpu.alloc::<f32>(130 * 4096).unwrap();
            how(&Product {
                matrix: packed.matrix(),
                bias: None,
                mode: OutMode::Store,
                out: out.as_slice(),
            });
            gpu.read(out.as_slice::<f32>()).unwrap()
        };
        let chosen = run(&|product| matmul(gpu, &x.acts(), product).unwrap());
        let large =
            run(&|product| matmul_tiled(gpu, MatmulTiles::Large, &x.acts(), product).unwrap());
        assert_eq!(chosen, large);
    }
}
