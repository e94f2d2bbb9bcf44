//! RoPE and the append to the KV cache, against formulas in f64 and the rounding of each cache type.

use crate::common;
use crate::common::any_order;
use crate::common::kv::{self, Stored};
use crate::common::values::{Random, assert_close};
use half::{bf16, f16};
use rocmforge_gguf::quant::f8;
use rocmforge_gpu::ops::{HeadNorms, LatentRopeKv, RopeKv, RopeStyle, Rotation};
use rocmforge_gpu::{Buffer, Gpu, KvLayer, KvShape, KvType, KvTypes, SeqRows, Step, ops};
use rocmforge_plan::Values;

const N_CTX: usize = 50;
const EPS: f32 = 1e-5;
const STYLES: [RopeStyle; 2] = [RopeStyle::Norm, RopeStyle::Neox];

/// The slot of a padding row.
const NO_ROW: u32 = u32::MAX;

/// The byte that fills the cache before an append.
const OLD: u8 = 0x12;

/// Blocks of the cache.
const N_BLOCKS: usize = 3;

#[derive(Clone, Copy)]
struct Shape {
    n_heads: usize,
    n_kv_heads: usize,
    k_dim: usize,
    v_dim: usize,
    n_rot: usize,
    /// The first rotated value of a head.
    start: usize,
    page: usize,
}

/// Heads, KV heads, K and V dimensions, rotated values, page size. Some dimensions are no multiple of four.
const SHAPES: [[usize; 6]; 7] = [
    [4, 2, 64, 64, 64, 16],
    [3, 1, 128, 128, 128, 32],
    [2, 2, 256, 128, 64, 64],
    [9, 3, 80, 96, 80, 16],
    [1, 1, 576, 512, 64, 16],
    [2, 1, 10, 6, 6, 16],
    [2, 2, 80, 80, 20, 32],
];

/// All shapes with rotated values at the start of heads, and where not all rotate, also at their end.
fn shapes() -> impl Iterator<Item = Shape> {
    SHAPES
        .iter()
        .flat_map(|&[n_heads, n_kv_heads, k_dim, v_dim, n_rot, page]| {
            let end = (n_rot < k_dim).then_some(k_dim - n_rot);
            [Some(0), end]
                .into_iter()
                .flatten()
                .map(move |start| Shape {
                    n_heads,
                    n_kv_heads,
                    k_dim,
                    v_dim,
                    n_rot,
                    start,
                    page,
                })
        })
}

/// Rows with their positions and slots; the last position is past the end of the RoPE table.
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
        // Three blocks, a padding row, and a slot past the end of the cache.
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
            longest: usize::MAX,
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

/// The heads of each row of `x`, normalized if there is a weight, and rotated.
fn expected(
    x: &[f32],
    dim: usize,
    rows: &Rows,
    (style, n_rot, start): (RopeStyle, usize, usize),
    weight: Option<&[f32]>,
) -> Vec<f64> {
    let mut out: Vec<f64> = x.iter().map(|&x| f64::from(x)).collect();
    let width = x.len() / rows.n();
    for (row, &position) in out.chunks_mut(width).zip(&rows.positions) {
        for head in row.chunks_mut(dim) {
            if let Some(weight) = weight {
                normed(head, weight);
            }
            rotated(&mut head[start..], style, n_rot, position);
        }
    }
    out
}

/// The cache row of each head `[n_rows, n_heads]`; `None` for rows that are not stored.
fn places(rows: &Rows, n_heads: usize, page: usize) -> Vec<Option<usize>> {
    let mut places = Vec::new();
    for &slot in &rows.slots {
        for head in 0..n_heads {
            let (block, offset) = (slot as usize / page, slot as usize % page);
            let at = (block * n_heads + head) * page + offset;
            places.push((block < N_BLOCKS).then_some(at));
        }
    }
    places
}

fn kv_shape(shape: &Shape, types: KvTypes) -> KvShape {
    KvShape {
        types,
        n_blocks: N_BLOCKS,
        n_kv_heads: shape.n_kv_heads,
        page: shape.page,
        k_dim: shape.k_dim,
        v_dim: shape.v_dim,
        values: Values::Apart,
    }
}

/// Key and value caches filled with [`OLD`].
fn caches(gpu: &Gpu, shape: &KvShape) -> [Buffer; 2] {
    shape.n_bytes().map(|n| gpu.upload(&vec![OLD; n]).unwrap())
}

/// The expected cache after an append of `x` `[n_rows, n_kv_heads * dim]`.
fn appended(shape: &KvShape, which: usize, rows: &Rows, x: &[f32]) -> Vec<u8> {
    let (dim, n_bytes) = ([shape.k_dim, shape.v_dim][which], shape.n_bytes()[which]);
    let ty = [shape.types.keys(), shape.types.values()][which];
    let mut stored = Stored::of_bytes(shape, which, &vec![OLD; n_bytes]);
    let places = places(rows, shape.n_kv_heads, shape.page);
    for (place, head) in places.iter().zip(x.chunks(dim)) {
        if let Some(at) = *place {
            let head = kv::rotated(head, shape.hadamard_lens()[which]);
            let [codes, scales] = &kv::encode(ty, &head);
            stored.set(at, [codes, scales]);
        }
    }
    stored.bytes()
}

/// Adds values that are hard to round to f16.
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

/// Replaces every f16 NaN by the same one.
fn with_one_nan(ty: KvType, mut bytes: Vec<u8>) -> Vec<u8> {
    if ty == KvType::F16 {
        for bytes in bytes.chunks_exact_mut(2) {
            if f16::from_le_bytes([bytes[0], bytes[1]]).is_nan() {
                bytes.copy_from_slice(&f16::NAN.to_le_bytes());
            }
        }
    }
    bytes
}

#[test]
fn append_rounds_to_nearest_and_writes_nothing_else() {
    let mut random = Random(1);
    for gpu in common::gpus() {
        let types = KvTypes::ALL.iter();
        for (shape, &types) in shapes().flat_map(|shape| types.clone().map(move |t| (shape, t))) {
            let rows = Rows::new(&gpu, shape.page as u32);
            let n = rows.n() * shape.n_kv_heads;
            let mut k = random.normals(n * shape.k_dim);
            for (i, head) in k.chunks_mut(shape.k_dim).enumerate() {
                let magnitude = [1.0, 1e-3, 300.0, 1e-30, 0.0, 1e37, 1e-38][i % 7];
                head.iter_mut().for_each(|x| *x *= magnitude);
            }
            let k = with_specials(k);
            let v = random.normals(n * shape.v_dim);
            let (dk, dv) = (gpu.upload(&k).unwrap(), gpu.upload(&v).unwrap());
            let kv_shape = kv_shape(&shape, types);
            for (which, ty, x) in [(0, types.keys(), &k), (1, types.values(), &v)] {
                let got = any_order(|| {
                    let caches = caches(&gpu, &kv_shape);
                    let layer = KvLayer::new(kv_shape, &caches);
                    ops::kv_append(&gpu, &layer, dk.as_slice(), dv.as_slice(), &rows.step())
                        .unwrap();
                    gpu.read(caches[which].as_slice::<u8>()).unwrap()
                });
                let got = with_one_nan(ty, got);
                let wanted = with_one_nan(ty, appended(&kv_shape, which, &rows, x));
                let differs = got.iter().zip(&wanted).position(|(a, b)| a != b);
                assert_eq!(
                    differs,
                    None,
                    "{types:?} {} on {}",
                    shape.k_dim,
                    gpu.target()
                );
            }
        }
    }
}

/// Magnitudes from the smallest number to the largest, including those where a quotient is subnormal or its divisor
/// scaled.
#[test]
fn rows_of_every_magnitude() {
    let mut random = Random(4);
    let edges = [
        -149, -148, -140, -128, -127, -126, -125, -122, -121, -120, -119, -118, -58, -57, -56, -55,
        120, 125, 126,
    ];
    let exponents: Vec<i32> = edges.into_iter().chain((-145..126).step_by(9)).collect();
    let mut shape = shapes().next().unwrap();
    // Longer than one step of a team, with a partial last block.
    (shape.n_kv_heads, shape.k_dim, shape.v_dim) = (exponents.len(), 296, 64);
    let heads_of = |dim: usize, random: &mut Random| {
        let heads = exponents.iter().flat_map(|&exponent| {
            let normals = random.normals(dim).into_iter();
            normals
                .map(move |x| (f64::from(x).clamp(-3.9, 3.9) * 2f64.powi(exponent)) as f32)
                .collect::<Vec<_>>()
        });
        heads.collect::<Vec<f32>>()
    };
    let [k, v] = [shape.k_dim, shape.v_dim].map(|dim| heads_of(dim, &mut random));
    for gpu in common::gpus_with(&["loads=narrow"]) {
        let rows = Rows::new(&gpu, shape.page as u32);
        let [k, v] = [&k, &v].map(|row| row.repeat(rows.n()));
        let [dk, dv] = [&k, &v].map(|x| gpu.upload(x).unwrap());
        let types = KvTypes::ALL.iter();
        for &types in types.filter(|&&types| types != KvType::F16.into()) {
            let kv_shape = kv_shape(&shape, types);
            let caches = caches(&gpu, &kv_shape);
            let layer = KvLayer::new(kv_shape, &caches);
            ops::kv_append(&gpu, &layer, dk.as_slice(), dv.as_slice(), &rows.step()).unwrap();
            for (which, x) in [(0, &k), (1, &v)] {
                let got = gpu.read(caches[which].as_slice::<u8>()).unwrap();
                let wanted = appended(&kv_shape, which, &rows, x);
                let differs = got.iter().zip(&wanted).position(|(a, b)| a != b);
                assert_eq!(differs, None, "{types:?} {which} on {}", common::name(&gpu));
            }
        }
    }
}

/// Every F8 number, the midpoints between neighbours and the floats next to those, times scales with few and many bits,
/// the smallest and largest included.
#[test]
fn f8_rounds_to_nearest() {
    let mut heads = Vec::new();
    let scales = [
        (128, 0),
        (221, -20),
        (128, -126),
        (255, -126),
        (197, -65),
        (197, -64),
        (146, 119),
    ];
    for scale in scales.map(|(bits, exponent)| bits as f32 / 128.0 * 2f32.powi(exponent)) {
        let mut values = Vec::new();
        for code in 0..0x7e {
            let (a, b) = (f8::number(code) * scale, f8::number(code + 1) * scale);
            let middle = a / 2.0 + b / 2.0;
            let near = |by: i32| f32::from_bits(middle.to_bits().wrapping_add_signed(by));
            values.extend([a, middle, near(1), near(-1)]);
        }
        values.extend(values.clone().iter().map(|x| -x));
        for values in values.chunks(63) {
            heads.push(448.0 * scale);
            heads.extend(values);
            heads.resize(heads.len().next_multiple_of(64), 0.0);
        }
    }
    let mut shape = shapes().next().unwrap();
    (shape.n_kv_heads, shape.k_dim, shape.v_dim) = (heads.len() / 64, 64, 64);
    let kv_shape = kv_shape(&shape, KvType::F8E4M3.into());
    for gpu in common::gpus() {
        let rows = Rows::new(&gpu, shape.page as u32);
        let x = gpu.upload(&heads.repeat(rows.n())).unwrap();
        let caches = caches(&gpu, &kv_shape);
        let layer = KvLayer::new(kv_shape, &caches);
        ops::kv_append(&gpu, &layer, x.as_slice(), x.as_slice(), &rows.step()).unwrap();
        let stored = Stored::of_bytes(&kv_shape, 0, &gpu.read(layer.k).unwrap());
        let places = places(&rows, shape.n_kv_heads, shape.page);
        for (head, place) in heads.chunks(64).zip(places) {
            let [codes, scale] = stored.row(place.unwrap());
            let factor = bf16::from_le_bytes([scale[0], scale[1]]).to_f32();
            assert_eq!(factor, head[0] / 448.0);
            for (&x, &code) in head.iter().zip(codes) {
                assert_eq!(code, f8::nearest(x / factor), "{x} on {}", gpu.target());
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
            // Also at an address that is not 16-byte aligned.
            for skip in [0, 1] {
                let x = random.normals(n);
                let angles = gpu.upload(&table(shape.n_rot)).unwrap();
                let got = any_order(|| {
                    let dx = gpu.alloc::<f32>(n + skip).unwrap();
                    let dx = dx.as_slice::<f32>().part(skip..n + skip);
                    gpu.write(dx, &x).unwrap();
                    let rotation = Rotation {
                        style,
                        table: angles.as_slice(),
                        n_rot: shape.n_rot,
                        start: shape.start,
                    };
                    ops::rope(&gpu, dx, shape.k_dim, &rotation, &rows.step()).unwrap();
                    gpu.read(dx).unwrap()
                });
                let wanted = expected(
                    &x,
                    shape.k_dim,
                    &rows,
                    (style, shape.n_rot, shape.start),
                    None,
                );
                let what = format!(
                    "{style:?} {} from {} of {} on {}",
                    shape.n_rot,
                    shape.start,
                    shape.k_dim,
                    gpu.target()
                );
                assert_close(&got, &wanted, 1e-6, &what);
            }
        }
    }
}

/// Asserts that the cache has the keys of `rows`, rounded.
fn assert_keys(gpu: &Gpu, layer: &KvLayer<'_>, rows: &Rows, wanted: &[f64], what: &str) {
    let shape = &layer.shape;
    let got = Stored::of_bytes(shape, 0, &gpu.read(layer.k).unwrap()).values();
    let places = places(rows, shape.n_kv_heads, shape.page);
    for (place, wanted) in places.iter().zip(wanted.chunks(shape.k_dim)) {
        let Some(at) = *place else { continue };
        let mut wanted = wanted.to_vec();
        kv::hadamard(&mut wanted, shape.hadamard_lens()[0]);
        let largest = wanted.iter().fold(0.0f64, |max, x| max.max(x.abs()));
        for (got, wanted) in got[at * shape.k_dim..].iter().zip(&wanted) {
            // Half a unit in the last place of F16 and F8 (whose smallest numbers are at most 2^-18 of the largest), or
            // half a step of types with blocks; plus f32's error.
            let rounding = match shape.types.keys() {
                KvType::F16 => wanted.abs() / 2048.0 * 1.001,
                ty @ (KvType::Q8_0 | KvType::Q5_1 | KvType::Q4_0) => kv::block_error(ty, largest),
                KvType::F8E4M3 => wanted.abs() / 16.0 * 1.001 + largest / 200_000.0,
            };
            assert!(
                (got - wanted).abs() <= rounding + 1e-5,
                "{what}: key {got}, not {wanted}"
            );
        }
    }
}

#[test]
fn fused_rotation_and_append() {
    let mut random = Random(3);
    for gpu in common::gpus_with(&["loads=narrow"]) {
        let cases = shapes().flat_map(|shape| STYLES.map(|style| (shape, style)));
        for (i, (shape, style)) in cases.enumerate() {
            let kv_shape = kv_shape(&shape, KvTypes::ALL[(i / 2 + i) % KvTypes::ALL.len()]);
            let rows = Rows::new(&gpu, shape.page as u32);
            let q = random.normals(rows.n() * shape.n_heads * shape.k_dim);
            let k = random.normals(rows.n() * shape.n_kv_heads * shape.k_dim);
            let v = random.normals(rows.n() * shape.n_kv_heads * shape.v_dim);
            let weights = [random.normals(shape.k_dim), random.normals(shape.k_dim)];
            let [dk, dv, dt] = [&k, &v, &table(shape.n_rot)].map(|x| gpu.upload(x).unwrap());
            let d_weights = [&weights[0], &weights[1]].map(|w| gpu.upload(w).unwrap());
            // Normalized queries go to another buffer, as in models.
            for (has_norms, in_place) in [(false, true), (true, true), (true, false)] {
                let dq = gpu.upload(&q).unwrap();
                let elsewhere = gpu.alloc::<f32>(q.len()).unwrap();
                let q_out = if in_place { &dq } else { &elsewhere };
                let caches = caches(&gpu, &kv_shape);
                let layer = KvLayer::new(kv_shape, &caches);
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
                        start: shape.start,
                    },
                    norms,
                };
                ops::rope_kv(&gpu, &operands, &layer, &rows.step()).unwrap();
                let what = format!(
                    "{style:?}, head {}, {}, norms {has_norms}, {}",
                    shape.k_dim,
                    kv_shape.types.name(),
                    common::name(&gpu)
                );
                let [wq, wk] = [0, 1].map(|i| has_norms.then_some(&weights[i][..]));
                let turn = (style, shape.n_rot, shape.start);
                let wanted = expected(&q, shape.k_dim, &rows, turn, wq);
                assert_close(
                    &gpu.read(q_out.as_slice::<f32>()).unwrap(),
                    &wanted,
                    2e-6,
                    &what,
                );
                let kept = in_place || gpu.read(dq.as_slice::<f32>()).unwrap() == q;
                assert!(kept, "{what}: what is read stays");

                let wanted = expected(&k, shape.k_dim, &rows, turn, wk);
                assert_keys(&gpu, &layer, &rows, &wanted, &what);
                let places = places(&rows, shape.n_kv_heads, shape.page);
                assert_eq!(places.iter().flatten().count(), 4 * shape.n_kv_heads);
                assert_eq!(
                    gpu.read(layer.v).unwrap(),
                    appended(&kv_shape, 1, &rows, &v),
                    "{what}: values"
                );
            }
        }
    }
}

/// Queries and keys of latent attention, whose ends come from elsewhere: heads, values before the rotated ones, rotated
/// values, and values of a head of the queries' ends.
#[test]
fn ends_from_elsewhere() {
    let mut random = Random(6);
    let shapes = [[3, 512, 64, 192], [20, 64, 32, 32], [2, 6, 4, 7]];
    for gpu in common::gpus_with(&["loads=narrow"]) {
        for (i, (shape, style)) in { shapes.into_iter() }
            .flat_map(|shape| STYLES.map(|style| (shape, style)))
            .enumerate()
        {
            let [n_heads, start, n_rot, tail_dim] = shape;
            let k_dim = start + n_rot;
            let kv_shape = KvShape {
                types: KvType::ALL[i % KvType::ALL.len()].into(),
                n_blocks: N_BLOCKS,
                n_kv_heads: 1,
                page: 16,
                k_dim,
                v_dim: start,
                values: Values::InKeys,
            };
            let rows = Rows::new(&gpu, 16);
            let n_queries = rows.n() * n_heads;
            let q = random.normals(n_queries * k_dim);
            let q_tail = random.normals(n_queries * tail_dim);
            let k = random.normals(rows.n() * start);
            let k_tail = random.normals(rows.n() * n_rot);
            let weight = random.normals(start);
            let angles = table(n_rot);
            let [dq, dq_tail, dk, dk_tail, dw, dt] =
                [&q, &q_tail, &k, &k_tail, &weight, &angles].map(|x| gpu.upload(x).unwrap());
            let caches = caches(&gpu, &kv_shape);
            let layer = KvLayer::new(kv_shape, &caches);
            let operands = LatentRopeKv {
                q: dq.as_slice(),
                q_tail: dq_tail.as_slice(),
                k: dk.as_slice(),
                k_tail: dk_tail.as_slice(),
                rotation: Rotation {
                    style,
                    table: dt.as_slice(),
                    n_rot,
                    start,
                },
                norm: dw.as_slice(),
                eps: EPS,
            };
            ops::latent_rope_kv(&gpu, &operands, &layer, &rows.step()).unwrap();
            let what = format!("{style:?}, {shape:?}, {}", common::name(&gpu));
            let turn = (style, n_rot, start);
            let ends = q_tail
                .chunks(tail_dim)
                .map(|head| &head[tail_dim - n_rot..]);
            let joined = q.chunks(k_dim).zip(ends);
            let joined: Vec<f32> = joined
                .flat_map(|(head, end)| [&head[..start], end].concat())
                .collect();
            let wanted = expected(&joined, k_dim, &rows, turn, None);
            let got = gpu.read(dq.as_slice::<f32>()).unwrap();
            assert_close(&got, &wanted, 2e-6, &what);
            for (got, q) in got.chunks(k_dim).zip(q.chunks(k_dim)) {
                assert_eq!(got[..start], q[..start], "{what}: what is not rotated");
            }
            let keys = k.chunks(start).zip(k_tail.chunks(n_rot));
            let mut wanted = Vec::new();
            for ((key, end), &position) in keys.zip(&rows.positions) {
                let mut key: Vec<f64> = key.iter().map(|&x| f64::from(x)).collect();
                normed(&mut key, &weight);
                key.extend(end.iter().map(|&x| f64::from(x)));
                rotated(&mut key[start..], style, n_rot, position);
                wanted.extend(key);
            }
            assert_keys(&gpu, &layer, &rows, &wanted, &what);
        }
    }
}

/// Values that are parts of keys have no memory of their own.
#[test]
fn keys_that_hold_the_values() {
    let mut random = Random(5);
    for gpu in common::gpus() {
        for (ty, [k_dim, v_dim]) in KvType::ALL
            .into_iter()
            .flat_map(|ty| [[96, 64], [576, 512], [10, 6]].map(|dims| (ty, dims)))
        {
            let shape = KvShape {
                types: ty.into(),
                n_blocks: N_BLOCKS,
                n_kv_heads: 1,
                page: 16,
                k_dim,
                v_dim,
                values: Values::InKeys,
            };
            let rows = Rows::new(&gpu, 16);
            let k = random.normals(rows.n() * k_dim);
            let x = gpu.upload(&k).unwrap();
            let caches = caches(&gpu, &shape);
            let layer = KvLayer::new(shape, &caches);
            assert!(layer.v.is_empty());
            ops::kv_append(&gpu, &layer, x.as_slice(), x.as_slice(), &rows.step()).unwrap();
            let wanted = appended(&shape, 0, &rows, &k);
            let what = format!("{ty:?}, {k_dim} with {v_dim} on {}", gpu.target());
            assert!(gpu.read(layer.k).unwrap() == wanted, "{what}");
        }
    }
}
