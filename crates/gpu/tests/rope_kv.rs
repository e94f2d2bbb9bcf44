//! Rotation by position and the append to the cache, against the formulas in f64 and `half`'s rounding.

mod common;

use common::three_orders;
use common::values::{Random, assert_close};
use half::f16;
use rocmforge_gpu::ops::{HeadNorms, RopeKv, RopeStyle, Rotation};
use rocmforge_gpu::{Buffer, Gpu, KvLayer, SeqRows, Step, ops};

const N_CTX: usize = 50;
const EPS: f32 = 1e-5;
const STYLES: [RopeStyle; 2] = [RopeStyle::Norm, RopeStyle::Neox];

/// A row that only fills up a step.
const NO_ROW: u32 = u32::MAX;

/// What was in the cache before.
const OLD: u16 = 0x1234;

#[derive(Clone, Copy)]
struct Shape {
    n_heads: usize,
    n_kv_heads: usize,
    k_dim: usize,
    v_dim: usize,
    n_rot: usize,
    page: usize,
}

/// Heads, KV heads, K and V dimensions, values that turn, page. The last ones are not whole runs of four.
const SHAPES: [[usize; 6]; 7] = [
    [4, 2, 64, 64, 64, 16],
    [3, 1, 128, 128, 128, 32],
    [2, 2, 256, 128, 64, 64],
    [9, 3, 80, 96, 80, 16],
    [1, 1, 576, 512, 64, 16],
    [2, 1, 10, 6, 6, 16],
    [2, 2, 80, 80, 20, 32],
];

fn shapes() -> impl Iterator<Item = Shape> {
    SHAPES
        .iter()
        .map(|&[n_heads, n_kv_heads, k_dim, v_dim, n_rot, page]| Shape {
            n_heads,
            n_kv_heads,
            k_dim,
            v_dim,
            n_rot,
            page,
        })
}

/// Rows at these positions and slots; the last position is past the end of the table.
struct Rows {
    positions: Vec<u32>,
    slots: Vec<u32>,
    d_positions: Buffer,
    d_slots: Buffer,
    seqs: Buffer,
}

impl Rows {
    fn new(gpu: &Gpu, page: u32) -> Rows {
        let positions = vec![0, 1, 49, 17, 3, 1000];
        // In three blocks; two rows that fill up, one slot that no cache has.
        let slots = vec![2 * page, 2 * page + 1, NO_ROW, page - 1, 3 * page, page];
        Rows {
            d_positions: gpu.upload(&positions).unwrap(),
            d_slots: gpu.upload(&slots).unwrap(),
            positions,
            slots,
            seqs: gpu.upload(&[SeqRows::default()]).unwrap(),
        }
    }

    fn step(&self) -> Step<'_> {
        Step {
            positions: self.d_positions.as_slice(),
            slots: self.d_slots.as_slice(),
            seq_of_row: self.d_slots.as_slice(),
            seqs: self.seqs.as_slice(),
            block_tables: self.d_slots.as_slice(),
            max_pages: 1,
            max_rows_of_seq: 1,
        }
    }

    fn n(&self) -> usize {
        self.positions.len()
    }
}

fn table(n_rot: usize) -> Vec<f32> {
    let pairs = (0..N_CTX).flat_map(|position| (0..n_rot / 2).map(move |i| (position, i)));
    pairs
        .flat_map(|(position, i)| {
            let frequency = 10000f64.powf(-2.0 * i as f64 / n_rot as f64);
            let (sin, cos) = (position as f64 * frequency).sin_cos();
            [cos as f32, sin as f32]
        })
        .collect()
}

fn normed(head: &mut [f64], weight: &[f32]) {
    let mean = head.iter().map(|x| x * x).sum::<f64>() / head.len() as f64;
    let scale = 1.0 / (mean + f64::from(EPS)).sqrt();
    head.iter_mut()
        .zip(weight)
        .for_each(|(x, &w)| *x *= scale * f64::from(w));
}

fn rotated(head: &mut [f64], style: RopeStyle, n_rot: usize, position: u32) {
    let angles = table(n_rot);
    let row = &angles[(position as usize).min(N_CTX - 1) * n_rot..];
    for i in 0..n_rot / 2 {
        let (cos, sin) = (f64::from(row[2 * i]), f64::from(row[2 * i + 1]));
        let (first, second) = match style {
            RopeStyle::Norm => (2 * i, 2 * i + 1),
            RopeStyle::Neox => (i, i + n_rot / 2),
        };
        let (a, b) = (head[first], head[second]);
        head[first] = a * cos - b * sin;
        head[second] = a * sin + b * cos;
    }
}

/// The heads of each row of `x`, normed if there is a weight, and rotated.
fn expected(
    x: &[f32],
    dim: usize,
    rows: &Rows,
    turn: (RopeStyle, usize),
    weight: Option<&[f32]>,
) -> Vec<f64> {
    let mut out: Vec<f64> = x.iter().map(|&x| f64::from(x)).collect();
    let width = x.len() / rows.n();
    for (row, &position) in out.chunks_mut(width).zip(&rows.positions) {
        for head in row.chunks_mut(dim) {
            if let Some(weight) = weight {
                normed(head, weight);
            }
            rotated(head, turn.0, turn.1, position);
        }
    }
    out
}

/// Where the cache has each value of `[n_rows, n_heads, dim]`, if anywhere.
fn places(rows: &Rows, n_heads: usize, dim: usize, page: usize) -> Vec<Option<usize>> {
    let mut places = Vec::new();
    for &slot in &rows.slots {
        for head in 0..n_heads {
            let (block, offset) = (slot as usize / page, slot as usize % page);
            let at = ((block * n_heads + head) * page + offset) * dim;
            places.extend((0..dim).map(|i| (block < 3).then_some(at + i)));
        }
    }
    places
}

/// Both caches of three blocks.
fn caches(gpu: &Gpu, shape: &Shape) -> [Buffer; 2] {
    [shape.k_dim, shape.v_dim].map(|dim| {
        let n = 3 * shape.n_kv_heads * shape.page * dim;
        gpu.upload(&vec![OLD; n]).unwrap()
    })
}

fn layer<'a>(shape: &Shape, [k, v]: &'a [Buffer; 2]) -> KvLayer<'a> {
    KvLayer {
        k: k.as_slice(),
        v: v.as_slice(),
        n_kv_heads: shape.n_kv_heads,
        k_dim: shape.k_dim,
        v_dim: shape.v_dim,
        page: shape.page,
    }
}

/// Values that are hard to round to f16.
fn with_specials(mut x: Vec<f32>) -> Vec<f32> {
    let specials = [
        f32::NAN,
        f32::INFINITY,
        f32::NEG_INFINITY,
        65519.9,
        65520.0,
        -1e9,
        1.0 + 1.0 / 2048.0,
        1.0 + 3.0 / 2048.0,
        6e-8,
        2.9e-8,
        -1e-20,
        -0.0,
    ];
    for (x, special) in x.iter_mut().zip(specials) {
        *x = special;
    }
    x
}

#[test]
fn append_writes_the_nearest_f16_and_nothing_else() {
    let mut random = Random(1);
    for gpu in common::gpus() {
        for shape in shapes() {
            let rows = Rows::new(&gpu, shape.page as u32);
            let n = rows.n() * shape.n_kv_heads;
            let k = with_specials(random.normals(n * shape.k_dim));
            let v = with_specials(random.normals(n * shape.v_dim));
            let (dk, dv) = (gpu.upload(&k).unwrap(), gpu.upload(&v).unwrap());
            let run = |which: usize| {
                three_orders(|| {
                    let caches = caches(&gpu, &shape);
                    let layer = layer(&shape, &caches);
                    ops::kv_append(&gpu, &layer, dk.as_slice(), dv.as_slice(), &rows.step())
                        .unwrap();
                    gpu.read(caches[which].as_slice::<u16>()).unwrap()
                })
            };
            for (which, x, dim) in [(0, &k, shape.k_dim), (1, &v, shape.v_dim)] {
                let mut wanted = vec![OLD; 3 * shape.n_kv_heads * shape.page * dim];
                for (place, &x) in places(&rows, shape.n_kv_heads, dim, shape.page)
                    .iter()
                    .zip(x)
                {
                    if let Some(at) = *place {
                        wanted[at] = f16::from_f32(x).to_bits();
                    }
                }
                let got = run(which);
                for (i, (&got, &wanted)) in got.iter().zip(&wanted).enumerate() {
                    let both_nan = f16::from_bits(got).is_nan() && f16::from_bits(wanted).is_nan();
                    assert!(
                        got == wanted || both_nan,
                        "{i}: {got:#x}, not {wanted:#x}, on {}",
                        gpu.target()
                    );
                }
            }
        }
    }
}

#[test]
fn rotation_in_place() {
    let mut random = Random(2);
    for gpu in common::gpus() {
        for (shape, style) in shapes().flat_map(|shape| STYLES.map(|style| (shape, style))) {
            let rows = Rows::new(&gpu, 16);
            let n = rows.n() * shape.n_heads * shape.k_dim;
            // One off the alignment of 16 bytes as well.
            for skip in [0, 1] {
                let x = random.normals(n);
                let angles = gpu.upload(&table(shape.n_rot)).unwrap();
                let got = three_orders(|| {
                    let dx = gpu.alloc::<f32>(n + skip).unwrap();
                    let dx = dx.as_slice::<f32>().part(skip..n + skip);
                    gpu.write(dx, &x).unwrap();
                    let rotation = Rotation {
                        style,
                        table: angles.as_slice(),
                        n_rot: shape.n_rot,
                    };
                    ops::rope(&gpu, dx, shape.k_dim, &rotation, &rows.step()).unwrap();
                    gpu.read(dx).unwrap()
                });
                let wanted = expected(&x, shape.k_dim, &rows, (style, shape.n_rot), None);
                let what = format!(
                    "{style:?} {} of {} on {}",
                    shape.n_rot,
                    shape.k_dim,
                    gpu.target()
                );
                assert_close(&got, &wanted, 1e-6, &what);
            }
        }
    }
}

#[test]
fn rotation_and_append_in_one() {
    let mut random = Random(3);
    for gpu in common::gpus_with(&["loads=narrow"]) {
        for (shape, style) in shapes().flat_map(|shape| STYLES.map(|style| (shape, style))) {
            let rows = Rows::new(&gpu, shape.page as u32);
            let q = random.normals(rows.n() * shape.n_heads * shape.k_dim);
            let k = random.normals(rows.n() * shape.n_kv_heads * shape.k_dim);
            let v = random.normals(rows.n() * shape.n_kv_heads * shape.v_dim);
            let weights = [random.normals(shape.k_dim), random.normals(shape.k_dim)];
            let [dk, dv, dt] = [&k, &v, &table(shape.n_rot)].map(|x| gpu.upload(x).unwrap());
            let d_weights = [&weights[0], &weights[1]].map(|w| gpu.upload(w).unwrap());
            // Normed queries go elsewhere, as a model's do.
            for (has_norms, in_place) in [(false, true), (true, true), (true, false)] {
                let dq = gpu.upload(&q).unwrap();
                let elsewhere = gpu.alloc::<f32>(q.len()).unwrap();
                let q_out = if in_place { &dq } else { &elsewhere };
                let caches = caches(&gpu, &shape);
                let norms = has_norms.then(|| HeadNorms {
                    q: d_weights[0].as_slice(),
                    k: d_weights[1].as_slice(),
                    eps: EPS,
                });
                let operands = RopeKv {
                    q: dq.as_slice(),
                    q_out: q_out.as_slice(),
                    k: dk.as_slice(),
                    v: dv.as_slice(),
                    rotation: Rotation {
                        style,
                        table: dt.as_slice(),
                        n_rot: shape.n_rot,
                    },
                    norms,
                };
                ops::rope_kv(&gpu, &operands, &layer(&shape, &caches), &rows.step()).unwrap();
                let what = format!(
                    "{style:?}, head {}, norms {has_norms}, {}",
                    shape.k_dim,
                    common::name(&gpu)
                );
                let [wq, wk] = [0, 1].map(|i| has_norms.then_some(&weights[i][..]));
                let turn = (style, shape.n_rot);
                let wanted = expected(&q, shape.k_dim, &rows, turn, wq);
                assert_close(
                    &gpu.read(q_out.as_slice::<f32>()).unwrap(),
                    &wanted,
                    2e-6,
                    &what,
                );
                let kept = in_place || gpu.read(dq.as_slice::<f32>()).unwrap() == q;
                assert!(kept, "{what}: what is read stays");

                let got_k: Vec<u16> = gpu.read(caches[0].as_slice()).unwrap();
                let mut n_written = 0;
                let wanted = expected(&k, shape.k_dim, &rows, turn, wk);
                let places_k = places(&rows, shape.n_kv_heads, shape.k_dim, shape.page);
                for (place, wanted) in places_k.iter().zip(&wanted) {
                    if let Some(at) = *place {
                        let got = f64::from(f16::from_bits(got_k[at]).to_f32());
                        // Half a unit in the last place of f16, and f32's error.
                        let allowed = wanted.abs() / 2048.0 * 1.001 + 1e-5;
                        assert!(
                            (got - wanted).abs() <= allowed,
                            "{what}: key {got}, not {wanted}"
                        );
                        n_written += 1;
                    }
                }
                assert_eq!(n_written, 4 * shape.n_kv_heads * shape.k_dim);

                let mut wanted = vec![OLD; 3 * shape.n_kv_heads * shape.page * shape.v_dim];
                let places_v = places(&rows, shape.n_kv_heads, shape.v_dim, shape.page);
                for (place, &v) in places_v.iter().zip(&v) {
                    if let Some(at) = *place {
                        wanted[at] = f16::from_f32(v).to_bits();
                    }
                }
                assert_eq!(
                    gpu.read(caches[1].as_slice::<u16>()).unwrap(),
                    wanted,
                    "{what}: values"
                );
            }
        }
    }
}
