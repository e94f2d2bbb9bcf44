//! Attention against its definition in f64, and bit-equality for every way of splitting the work.

use half::f16;
use rocmforge_cpu::{
    AttnInputs, AttnSeq, AttnShape, HeadCode, Isa, KvSlice, Pool, attention, hadamard,
};
use rocmforge_gguf::GgmlType;
use rocmforge_gguf::quant::f8;
use rocmforge_gguf::quant::legacy::Q8_0;
use rocmforge_gguf::quant::plain::F16;
use rocmforge_gguf::quant::{QuantizeBlock, dequantize};
use rocmforge_plan::{Alibi, Growth, KvType, Mask, Values};

use crate::random::Rng;

const LLAMA_1B: AttnShape = AttnShape {
    n_heads: 32,
    n_kv_heads: 8,
    k_dim: 64,
    v_dim: 64,
    k_hadamard: 1,
    v_hadamard: 1,
    page: 32,
    scale: 0.125,
    soft_cap: None,
    growth: None,
    alibi: None,
    mask: Mask::All,
};

#[derive(Clone, Copy, Debug, PartialEq)]
enum Dtype {
    F16,
    F32,
    Q8,
    Heads(HeadCode),
}

/// The cache types that can hold heads of `shape`.
fn dtypes(shape: &AttnShape) -> Vec<Dtype> {
    let blocks = shape.k_dim.is_multiple_of(32) && shape.v_dim.is_multiple_of(32);
    let q8 = blocks.then_some(Dtype::Q8);
    let small = (shape.k_dim < 32 && shape.v_dim < 32).then_some(Dtype::Heads(HeadCode::Q8_0));
    let is_coded = blocks || small.is_some();
    let few_bits =
        [HeadCode::Q5_1, HeadCode::Q4_0].map(|code| is_coded.then_some(Dtype::Heads(code)));
    let any = [Dtype::F16, Dtype::F32, Dtype::Heads(HeadCode::F8E4M3)];
    let any = any.into_iter().chain(q8).chain(small);
    any.chain(few_bits.into_iter().flatten()).collect()
}

/// Types of keys and of values.
type Types = [Dtype; 2];

/// The shape with keys and values rotated as a cache of these types has them.
fn in_cache(shape: &AttnShape, values: Values, types: Types) -> AttnShape {
    let len = |dtype, dims: &[usize]| {
        let Dtype::Heads(code) = dtype else {
            return 1;
        };
        let kv_type = match code {
            HeadCode::F8E4M3 => KvType::F8E4M3,
            HeadCode::Q8_0 => KvType::Q8_0,
            HeadCode::Q5_1 => KvType::Q5_1,
            HeadCode::Q4_0 => KvType::Q4_0,
        };
        kv_type.hadamard_len(dims)
    };
    let (k_dim, v_dim) = (shape.k_dim, shape.v_dim);
    let [k_hadamard, v_hadamard] = match values {
        Values::Apart => [len(types[0], &[k_dim]), len(types[1], &[v_dim])],
        Values::InKeys => [len(types[0], &[k_dim, v_dim]); 2],
    };
    AttnShape {
        k_hadamard,
        v_hadamard,
        ..*shape
    }
}

/// A sequence whose content depends only on its seed.
struct Seq {
    /// [len, n_heads * k_dim], [len, n_kv_heads, k_dim], [len, n_kv_heads, v_dim]
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    /// [n_heads]
    sinks: Option<Vec<f32>>,
    values: Values,
    len: usize,
}

impl Seq {
    /// Generates values that all cache types except `Heads` hold exactly: each run of 32 consists of integers up to
    /// 127, which occurs, times a power of two.
    fn new(shape: &AttnShape, len: usize, seed: u64) -> Seq {
        let mut rng = Rng(seed);
        let mut coded = |n: usize, factor: f32| -> Vec<f32> {
            let mut values = rng.vec(n);
            for block in values.chunks_mut(32) {
                let scale = factor / 128.0 / (1 << rng.below(3)) as f32;
                block
                    .iter_mut()
                    .for_each(|x| *x = (*x * 127.0).round() * scale);
                block[rng.below(block.len())] = 127.0 * scale;
            }
            values
        };
        Seq {
            k: coded(len * shape.n_kv_heads * shape.k_dim, 2.0),
            v: coded(len * shape.n_kv_heads * shape.v_dim, 1.0),
            q: (0..len * shape.n_heads * shape.k_dim)
                .map(|_| rng.unit() * 4.0)
                .collect(),
            sinks: None,
            values: Values::Apart,
            len,
        }
    }

    /// Gives every head a sink: below, among and above the scores.
    fn with_sinks(self, shape: &AttnShape) -> Seq {
        let sinks = (0..shape.n_heads).map(|head| [-3.0, 0.5, 8.0, 2.5][head % 4]);
        Seq {
            sinks: Some(sinks.collect()),
            ..self
        }
    }

    /// Rounds the keys and values as a cache of these types does.
    fn rounded(mut self, shape: &AttnShape, types: Types) -> Seq {
        let shape = &in_cache(shape, self.values, types);
        for (dtype, x, dim, len) in [
            (types[0], &mut self.k, shape.k_dim, shape.k_hadamard),
            (types[1], &mut self.v, shape.v_dim, shape.v_hadamard),
        ] {
            let Dtype::Heads(code) = dtype else { continue };
            for row in x.chunks_exact_mut(dim) {
                let head = stored(row, code, len);
                let (scale, codes) = head.split_at(2);
                let half = f16::from_le_bytes([scale[0], scale[1]]).to_f32();
                let in_blocks = |ty: GgmlType| {
                    let mut values = vec![0.0; dim.next_multiple_of(32)];
                    dequantize(ty, &head, &mut values).unwrap();
                    values
                };
                let values: Vec<f32> = match code {
                    HeadCode::F8E4M3 => {
                        let scale = f8::load(&head).0;
                        codes.iter().map(|&byte| f8::number(byte) * scale).collect()
                    }
                    HeadCode::Q8_0 => codes
                        .iter()
                        .map(|&byte| f32::from(byte as i8) * half)
                        .collect(),
                    HeadCode::Q5_1 => in_blocks(GgmlType::Q5_1),
                    HeadCode::Q4_0 => in_blocks(GgmlType::Q4_0),
                };
                row.copy_from_slice(&values[..dim]);
                hadamard(row, len);
            }
        }
        match self.values {
            Values::Apart => self,
            Values::InKeys => self.with_values_in_keys(shape),
        }
    }

    /// Replaces the values by the first parts of the keys, which are then read from there.
    fn with_values_in_keys(mut self, shape: &AttnShape) -> Seq {
        let keys = self.k.chunks_exact(shape.k_dim);
        self.v = keys.flat_map(|key| &key[..shape.v_dim]).copied().collect();
        self.values = Values::InKeys;
        self
    }

    fn q_row(&self, shape: &AttnShape, pos: usize) -> &[f32] {
        let width = shape.n_heads * shape.k_dim;
        &self.q[pos * width..(pos + 1) * width]
    }

    /// Computes one row of output by the definition.
    fn expected(&self, shape: &AttnShape, pos: usize) -> Vec<f64> {
        let first = match shape.mask {
            Mask::All => 0,
            Mask::Window(n) => (pos + 1).saturating_sub(n as usize),
            Mask::Chunk(n) => pos / n as usize * n as usize,
            Mask::Both => 0,
            Mask::Near(n) => pos.saturating_sub(n as usize),
        };
        let last = match shape.mask {
            Mask::All | Mask::Window(_) | Mask::Chunk(_) => pos,
            Mask::Both => self.len - 1,
            Mask::Near(n) => (pos + n as usize).min(self.len - 1),
        };
        let growth = shape.growth.map_or(1.0, |growth| {
            let steps = (pos + growth.offset as usize) / growth.step as usize;
            1.0 + f64::from(growth.slope) * (1.0 + steps as f64).ln()
        });
        let mut out = Vec::new();
        for head in 0..shape.n_heads {
            let kv_head = head / (shape.n_heads / shape.n_kv_heads);
            let q = &self.q_row(shape, pos)[head * shape.k_dim..][..shape.k_dim];
            let score = |t: usize| -> f64 {
                let k = &self.k[(t * shape.n_kv_heads + kv_head) * shape.k_dim..];
                let dot: f64 = q
                    .iter()
                    .zip(k)
                    .map(|(&a, &b)| f64::from(a) * f64::from(b))
                    .sum();
                let score = dot * f64::from(shape.scale) * growth;
                let score = shape.soft_cap.map_or(score, |cap| {
                    let cap = f64::from(cap);
                    cap * (score / cap).tanh()
                });
                let slope = shape.alibi.map_or(0.0, |alibi| {
                    alibi_slope(alibi.max_bias, head, shape.n_heads)
                });
                score - slope * pos.abs_diff(t) as f64
            };
            let scores: Vec<f64> = (first..=last).map(score).collect();
            let max = scores.iter().copied().fold(f64::MIN, f64::max);
            let weights: Vec<f64> = scores.iter().map(|s| (s - max).exp()).collect();
            let sink = self.sinks.as_ref().map(|sinks| f64::from(sinks[head]));
            let sum = weights.iter().sum::<f64>() + sink.map_or(0.0, |sink| (sink - max).exp());
            for d in 0..shape.v_dim {
                let value =
                    |t| f64::from(self.v[(t * shape.n_kv_heads + kv_head) * shape.v_dim + d]);
                let total: f64 = weights.iter().zip(first..).map(|(w, t)| w * value(t)).sum();
                out.push(total / sum);
            }
        }
        out
    }
}

/// The slope of a head as Press et al. 2021 and llama.cpp define it.
fn alibi_slope(max_bias: f32, head: usize, n_heads: usize) -> f64 {
    let n = f64::from(n_heads as u32).log2().floor().exp2();
    let [of_powers, of_others] = [1.0, 2.0].map(|k| (-f64::from(max_bias) / (k * n)).exp2());
    match head < n as usize {
        true => of_powers.powi(head as i32 + 1),
        false => of_others.powi(2 * (head as i32 - n as i32) + 1),
    }
}

/// A paged cache. Slots without a position are NaN.
struct Cache {
    k: Vec<f32>,
    v: Vec<f32>,
    tables: Vec<Vec<u32>>,
    types: Types,
    k16: Vec<u16>,
    v16: Vec<u16>,
    k8: Vec<Q8_0>,
    v8: Vec<Q8_0>,
    k_heads: Vec<u8>,
    v_heads: Vec<u8>,
    dims: [usize; 2],
}

/// Quantizes whole rows to blocks. Slots without a position get a NaN scale.
fn blocks(x: &[f32]) -> Vec<Q8_0> {
    x.chunks_exact(32)
        .map(|x| match x[0].is_nan() {
            true => Q8_0 {
                d: F16::from_f32(f32::NAN),
                qs: [1; 32],
            },
            false => Q8_0::quantize(x),
        })
        .collect()
}

/// Scales and codes of a row, `len` values of which are rotated together.
fn stored(row: &[f32], code: HeadCode, len: usize) -> Vec<u8> {
    let mut head = vec![0; code.head_bytes(row.len())];
    match code {
        HeadCode::Q5_1 | HeadCode::Q4_0 => {
            let mut row = row.to_vec();
            hadamard(&mut row, len);
            code.store(&row, &mut head);
        }
        HeadCode::F8E4M3 => f8::store(row, &mut head),
        // A block padded with zeros, which do not change the scale.
        HeadCode::Q8_0 => {
            let mut x = [0.0; 32];
            x[..row.len()].copy_from_slice(row);
            let block = blocks(&x)[0];
            head[..2].copy_from_slice(&block.d.0);
            let codes = block.qs.map(|code| code as u8);
            head[2..].copy_from_slice(&codes[..row.len()]);
        }
    }
    head
}

/// Scale and codes of each row.
fn heads(x: &[f32], dim: usize, code: HeadCode, len: usize) -> Vec<u8> {
    x.chunks_exact(dim)
        .flat_map(|row| stored(row, code, len))
        .collect()
}

impl Cache {
    /// Stores the first `lens[i]` positions of each sequence in randomly ordered blocks.
    fn new(shape: &AttnShape, seqs: &[&Seq], lens: &[usize], types: Types, rng: &mut Rng) -> Cache {
        let n_pages: Vec<usize> = lens.iter().map(|len| len.div_ceil(shape.page)).collect();
        let n_blocks = n_pages.iter().sum::<usize>() + 3;
        let mut free: Vec<u32> = (0..n_blocks as u32).collect();
        let mut k = vec![f32::NAN; n_blocks * shape.n_kv_heads * shape.page * shape.k_dim];
        let mut v = vec![f32::NAN; n_blocks * shape.n_kv_heads * shape.page * shape.v_dim];
        let mut tables = Vec::new();
        for ((seq, &len), &n_pages) in seqs.iter().zip(lens).zip(&n_pages) {
            let table: Vec<u32> = (0..n_pages)
                .map(|_| free.swap_remove(rng.below(free.len())))
                .collect();
            for pos in 0..len {
                for head in 0..shape.n_kv_heads {
                    let block = table[pos / shape.page] as usize;
                    let slot = (block * shape.n_kv_heads + head) * shape.page + pos % shape.page;
                    let from = pos * shape.n_kv_heads + head;
                    let (kd, vd) = (shape.k_dim, shape.v_dim);
                    k[slot * kd..][..kd].copy_from_slice(&seq.k[from * kd..][..kd]);
                    v[slot * vd..][..vd].copy_from_slice(&seq.v[from * vd..][..vd]);
                }
            }
            tables.push(table);
        }
        let bits = |x: &[f32]| x.iter().map(|&x| f16::from_f32(x).to_bits()).collect();
        let (k16, v16) = (bits(&k), bits(&v));
        let in_blocks = |x: &[f32], dtype| match dtype {
            Dtype::Q8 => blocks(x),
            Dtype::F16 | Dtype::F32 | Dtype::Heads(_) => Vec::new(),
        };
        let in_heads = |x: &[f32], dtype, dim, len| match dtype {
            Dtype::Heads(code) => heads(x, dim, code, len),
            Dtype::F16 | Dtype::F32 | Dtype::Q8 => Vec::new(),
        };
        Cache {
            k8: in_blocks(&k, types[0]),
            v8: in_blocks(&v, types[1]),
            k_heads: in_heads(&k, types[0], shape.k_dim, shape.k_hadamard),
            v_heads: in_heads(&v, types[1], shape.v_dim, shape.v_hadamard),
            dims: [shape.k_dim, shape.v_dim],
            k,
            v,
            tables,
            types,
            k16,
            v16,
        }
    }

    fn slices(&self) -> (KvSlice<'_>, KvSlice<'_>) {
        let k = match self.types[0] {
            Dtype::F16 => KvSlice::F16(&self.k16),
            Dtype::F32 => KvSlice::F32(&self.k),
            Dtype::Q8 => KvSlice::Q8_0(&self.k8),
            Dtype::Heads(code) => KvSlice::Heads {
                code,
                heads: &self.k_heads,
                dim: self.dims[0],
            },
        };
        let v = match self.types[1] {
            Dtype::F16 => KvSlice::F16(&self.v16),
            Dtype::F32 => KvSlice::F32(&self.v),
            Dtype::Q8 => KvSlice::Q8_0(&self.v8),
            Dtype::Heads(code) => KvSlice::Heads {
                code,
                heads: &self.v_heads,
                dim: self.dims[1],
            },
        };
        (k, v)
    }
}

/// Runs positions `from..to` of each sequence in one call, with a cache that ends with them. Returns the output rows of
/// each.
fn attend(
    isa: Isa,
    pool: &Pool,
    shape: &AttnShape,
    parts: &[(&Seq, usize, usize)],
    types: Types,
    rng: &mut Rng,
) -> Vec<Vec<f32>> {
    let shape = &in_cache(shape, parts[0].0.values, types);
    let seqs: Vec<&Seq> = parts.iter().map(|p| p.0).collect();
    let lens: Vec<usize> = parts.iter().map(|p| p.2).collect();
    let cache = Cache::new(shape, &seqs, &lens, types, rng);
    attend_in(&cache, isa, pool, shape, parts)
}

/// Like [`attend`], with the given cache of the sequences of `parts`.
fn attend_in(
    cache: &Cache,
    isa: Isa,
    pool: &Pool,
    shape: &AttnShape,
    parts: &[(&Seq, usize, usize)],
) -> Vec<Vec<f32>> {
    let mut q = Vec::new();
    let mut attn_seqs = Vec::new();
    let mut first_row = 0;
    for (&(seq, from, to), table) in parts.iter().zip(&cache.tables) {
        (from..to).for_each(|pos| q.extend(seq.q_row(shape, pos)));
        attn_seqs.push(AttnSeq {
            first_row,
            n_rows: to - from,
            first_pos: from,
            block_table: table,
        });
        first_row += to - from;
    }
    let width = shape.n_heads * shape.v_dim;
    let mut out = vec![f32::NAN; first_row * width];
    let (k, v) = cache.slices();
    let sinks = parts.first().and_then(|(seq, ..)| seq.sinks.as_deref());
    let v = (parts[0].0.values == Values::Apart).then_some(v);
    let inputs = AttnInputs { q: &q, k, v, sinks };
    attention(isa, pool, shape, inputs, &attn_seqs, &mut out);
    attn_seqs
        .iter()
        .map(|s| out[s.first_row * width..][..s.n_rows * width].to_vec())
        .collect()
}

fn check_against_definition(shape: &AttnShape, from: usize, to: usize) {
    check_sequence(shape, [from, to], &|| Seq::new(shape, to, 7));
}

fn check_sequence(shape: &AttnShape, [from, to]: [usize; 2], seq: &dyn Fn() -> Seq) {
    let pool = Pool::new(2);
    let all = dtypes(shape);
    let next = all.iter().cycle().skip(1);
    let mut pairs: Vec<Types> = all.iter().map(|&dtype| [dtype; 2]).collect();
    // Each type also with values of the next.
    if seq().values == Values::Apart {
        pairs.extend(all.iter().zip(next).map(|(&keys, &values)| [keys, values]));
    }
    for types in pairs {
        let seq = seq().rounded(shape, types);
        let expected: Vec<f64> = (from..to)
            .flat_map(|pos| seq.expected(shape, pos))
            .collect();
        for isa in Isa::available() {
            let out = attend(isa, &pool, shape, &[(&seq, from, to)], types, &mut Rng(1)).remove(0);
            assert_eq!(out.len(), expected.len());
            for (i, (&got, &want)) in out.iter().zip(&expected).enumerate() {
                assert!(
                    (f64::from(got) - want).abs() < 1e-5,
                    "{isa} {types:?} {shape:?} {from}..{to}: element {i} is {got}, not {want}"
                );
            }
        }
    }
}

fn shape(
    [n_heads, n_kv_heads]: [usize; 2],
    [k_dim, v_dim]: [usize; 2],
    page: usize,
    window: Option<u32>,
) -> AttnShape {
    AttnShape {
        n_heads,
        n_kv_heads,
        k_dim,
        v_dim,
        k_hadamard: 1,
        v_hadamard: 1,
        page,
        scale: 1.0 / (k_dim as f32).sqrt(),
        soft_cap: None,
        growth: None,
        alibi: None,
        mask: window.map_or(Mask::All, Mask::Window),
    }
}

/// A shape, and the ranges of positions to compute.
type Case = (AttnShape, &'static [(usize, usize)]);

fn check_all(cases: &[Case]) {
    for (shape, ranges) in cases {
        for &(from, to) in *ranges {
            check_against_definition(shape, from, to);
        }
    }
}

fn heads_of_64() -> [Case; 3] {
    [
        (
            LLAMA_1B,
            &[(0, 1), (0, 5), (0, 70), (15, 18), (63, 64), (200, 231)],
        ),
        (
            shape([14, 2], [64, 64], 16, None),
            &[(0, 1), (0, 40), (100, 101)],
        ),
        (shape([9, 3], [64, 64], 64, None), &[(0, 90), (127, 129)]),
    ]
}

fn large_heads() -> [Case; 5] {
    [
        (shape([4, 4], [128, 128], 32, None), &[(0, 66), (95, 96)]),
        (
            shape([8, 4], [256, 256], 16, Some(20)),
            &[(0, 60), (300, 301), (300, 340)],
        ),
        (shape([4, 1], [192, 128], 32, None), &[(0, 20), (40, 41)]),
        (shape([5, 1], [96, 160], 32, None), &[(0, 20), (40, 41)]),
        (shape([3, 3], [160, 96], 16, None), &[(0, 20), (40, 41)]),
    ]
}

fn small_and_odd_heads() -> [Case; 5] {
    [
        (shape([2, 1], [32, 32], 16, Some(1)), &[(0, 40)]),
        (shape([6, 2], [40, 24], 16, Some(33)), &[(0, 80), (64, 65)]),
        (shape([3, 3], [37, 5], 48, None), &[(0, 50), (96, 97)]),
        (shape([2, 2], [1, 1], 16, None), &[(0, 20)]),
        (shape([8, 2], [8, 16], 16, None), &[(0, 40), (70, 71)]),
    ]
}

/// Several segments, without and with a window.
fn long_sequences() -> [Case; 2] {
    [
        (
            shape([2, 1], [32, 32], 64, None),
            &[(1020, 1030), (2047, 2049), (3100, 3101)],
        ),
        (
            shape([2, 1], [32, 32], 64, Some(1100)),
            &[(1020, 1060), (2100, 2200), (3100, 3101)],
        ),
    ]
}

#[test]
fn heads_of_64_match_the_definition() {
    check_all(&heads_of_64());
}

#[test]
fn large_heads_match_the_definition() {
    check_all(&large_heads());
}

#[test]
fn small_and_odd_heads_match_the_definition() {
    check_all(&small_and_odd_heads());
}

#[test]
fn long_sequences_match_the_definition() {
    check_all(&long_sequences());
}

/// Scores reach 8: the first bound changes most of them, the second hardly any.
const SOFT_CAPS: [f32; 2] = [1.5, 50.0];

fn check_soft_caps(cases: &[Case]) {
    for &(shape, ranges) in cases {
        check_all(&SOFT_CAPS.map(|cap| {
            let soft_cap = Some(cap);
            (AttnShape { soft_cap, ..shape }, ranges)
        }));
    }
}

/// Every cache type, blocks seen in full and in part, and several segments.
#[test]
fn soft_caps_match_the_definition() {
    let cases: [Case; 4] = [
        (shape([4, 2], [64, 64], 16, None), &[(0, 20), (40, 41)]),
        (shape([6, 2], [40, 24], 16, Some(33)), &[(30, 50)]),
        (shape([8, 2], [8, 16], 16, None), &[(0, 20)]),
        (shape([2, 1], [32, 32], 64, None), &[(1020, 1030)]),
    ];
    check_soft_caps(&cases);
}

#[test]
#[ignore = "exhaustive: run by .ci/run --full"]
fn soft_caps_match_the_definition_for_all_shapes() {
    check_soft_caps(&heads_of_64());
    check_soft_caps(&large_heads());
    check_soft_caps(&small_and_odd_heads());
    check_soft_caps(&long_sequences());
}

#[test]
fn sinks_match_the_definition() {
    for (shape, [from, to]) in [
        (shape([8, 2], [64, 64], 16, None), [0, 40]),
        (shape([7, 1], [40, 24], 16, Some(33)), [30, 50]),
        (shape([2, 1], [32, 32], 64, Some(1100)), [2100, 2130]),
    ] {
        check_sequence(&shape, [from, to], &|| {
            Seq::new(&shape, to, 7).with_sinks(&shape)
        });
    }
}

/// A sink far above all scores leaves nothing of the values, and one far below changes nothing.
#[test]
fn extreme_sinks_are_limits() {
    let shape = shape([2, 1], [64, 64], 16, None);
    for isa in Isa::available() {
        let run = |sinks: Option<Vec<f32>>| {
            let seq = Seq {
                sinks,
                ..Seq::new(&shape, 30, 7)
            };
            let parts = [(&seq, 0, 30)];
            attend(
                isa,
                &Pool::new(1),
                &shape,
                &parts,
                [Dtype::F16; 2],
                &mut Rng(1),
            )
            .remove(0)
        };
        assert_eq!(run(Some(vec![-1e30; 2])), run(None), "{isa}");
        assert!(run(Some(vec![1e30; 2])).iter().all(|x| *x == 0.0), "{isa}");
    }
}

#[test]
fn chunks_match_the_definition() {
    for (chunk, n_heads, ranges) in [
        (16, 4, [[0, 40], [63, 66]]),
        (64, 3, [[40, 140], [191, 193]]),
        (2048, 1, [[2040, 2060], [4100, 4101]]),
    ] {
        let shape = AttnShape {
            mask: Mask::Chunk(chunk),
            ..shape([n_heads, 1], [32, 32], 32, None)
        };
        for [from, to] in ranges {
            check_against_definition(&shape, from, to);
        }
    }
}

#[test]
fn positions_ahead_match_the_definition() {
    for (mask, n_heads, len) in [
        (Mask::Both, [4, 2], 50),
        (Mask::Both, [1, 1], 1),
        (Mask::Both, [2, 1], 1100),
        (Mask::Near(0), [2, 2], 20),
        (Mask::Near(3), [3, 1], 65),
        (Mask::Near(40), [4, 4], 130),
        (Mask::Near(u32::MAX), [1, 1], 30),
    ] {
        let shape = AttnShape {
            mask,
            ..shape(n_heads, [32, 32], 16, None)
        };
        check_against_definition(&shape, 0, len);
    }
}

#[test]
fn linear_biases_match_the_definition() {
    for (mask, n_heads, soft_cap) in [
        (Mask::Both, [6, 2], None),
        (Mask::All, [4, 4], None),
        (Mask::Near(9), [3, 3], Some(0.5)),
    ] {
        let shape = AttnShape {
            mask,
            soft_cap,
            alibi: Some(Alibi { max_bias: 8.0 }),
            ..shape(n_heads, [64, 64], 32, None)
        };
        check_against_definition(&shape, 0, 77);
    }
}

#[test]
fn growing_scores_match_the_definition() {
    for (offset, soft_cap) in [(0, None), (1, None), (0, Some(1.5))] {
        let shape = AttnShape {
            soft_cap,
            growth: Some(Growth {
                slope: 0.4,
                step: 8,
                offset,
            }),
            ..shape([4, 2], [64, 64], 16, None)
        };
        check_against_definition(&shape, 0, 50);
        check_against_definition(&shape, 70, 71);
    }
}

#[test]
fn heads_of_512_match_the_definition() {
    check_all(&[
        (shape([4, 2], [512, 512], 16, None), &[(0, 20), (40, 41)]),
        (shape([3, 1], [576, 512], 16, None), &[(0, 20), (40, 41)]),
    ]);
}

/// Computes every row of `seq` in a call of its own, on one thread.
fn row_by_row(isa: Isa, shape: &AttnShape, seq: &Seq, types: Types) -> Vec<Vec<f32>> {
    let pool = Pool::new(1);
    let shape = &in_cache(shape, seq.values, types);
    let cache = Cache::new(shape, &[seq], &[seq.len], types, &mut Rng(3));
    let row = |pos| attend_in(&cache, isa, &pool, shape, &[(seq, pos, pos + 1)]).remove(0);
    (0..seq.len).map(row).collect()
}

/// Compares random batches of chunks of sequences, on random numbers of threads and with random page sizes, with the
/// same rows computed one by one.
fn check_batches(types: Types) {
    let pools = [Pool::new(1), Pool::new(2), Pool::new(7)];
    let mut rng = Rng(11);
    let mut n_checked = 0;
    for (n_heads, n_kv_heads, k_dim, v_dim, window) in [
        (8, 2, 64, 64, None),
        (7, 1, 32, 48, None),
        (6, 2, 96, 32, Some(50)),
        (3, 3, 40, 40, Some(37)),
        (4, 2, 128, 128, Some(64)),
        (4, 2, 24, 8, None),
    ] {
        let growth = Growth {
            slope: 0.3,
            step: 20,
            offset: 0,
        };
        let mut shape = AttnShape {
            scale: 0.1,
            soft_cap: (n_heads == 4).then_some(0.7),
            growth: (n_heads == 8).then_some(growth),
            ..shape([n_heads, n_kv_heads], [k_dim, v_dim], 16, window)
        };
        if !types.iter().all(|dtype| dtypes(&shape).contains(dtype)) {
            continue;
        }
        let seqs: Vec<Seq> = [150, 1, 33, 97]
            .iter()
            .zip(1..)
            .map(|(&n, i)| Seq::new(&shape, n, i))
            .map(|seq| match n_heads {
                7 | 6 => seq.with_sinks(&shape),
                _ => seq,
            })
            .collect();
        for isa in Isa::available() {
            shape.page = 16;
            let expected: Vec<_> = seqs
                .iter()
                .map(|seq| row_by_row(isa, &shape, seq, types))
                .collect();
            let n_rounds = if isa == Isa::Scalar { 3 } else { 40 };
            for _ in 0..n_rounds {
                shape.page = [16, 32, 64][rng.below(3)];
                let pool = &pools[rng.below(3)];
                let n_parts = 1 + rng.below(seqs.len());
                let mut picks: Vec<usize> = (0..seqs.len()).collect();
                let parts: Vec<(usize, usize, usize)> = (0..n_parts)
                    .map(|_| {
                        let i = picks.swap_remove(rng.below(picks.len()));
                        let from = rng.below(seqs[i].len);
                        (i, from, from + rng.below(seqs[i].len - from + 1))
                    })
                    .collect();
                let args: Vec<_> = parts.iter().map(|&(i, a, b)| (&seqs[i], a, b)).collect();
                let out = attend(isa, pool, &shape, &args, types, &mut rng);
                for (&(i, from, to), out) in parts.iter().zip(&out) {
                    let expected = expected[i][from..to].concat();
                    let same = out
                        .iter()
                        .zip(&expected)
                        .all(|(a, b)| a.to_bits() == b.to_bits());
                    assert!(
                        same && out.len() == expected.len(),
                        "{isa} {types:?} {shape:?} {parts:?}, {} threads",
                        pool.n_threads()
                    );
                }
                n_checked += 1;
            }
        }
    }
    assert!(n_checked > 0, "no shape has heads of {types:?}");
}

#[test]
fn bits_do_not_depend_on_batching_with_f16() {
    check_batches([Dtype::F16; 2]);
}

#[test]
fn bits_do_not_depend_on_batching_with_f32() {
    check_batches([Dtype::F32; 2]);
}

#[test]
fn bits_do_not_depend_on_batching_with_q8_0() {
    check_batches([Dtype::Q8; 2]);
}

#[test]
fn bits_do_not_depend_on_batching_with_fp8() {
    check_batches([Dtype::Heads(HeadCode::F8E4M3); 2]);
}

#[test]
fn bits_do_not_depend_on_batching_with_small_q8_0_heads() {
    check_batches([Dtype::Heads(HeadCode::Q8_0); 2]);
}

#[test]
fn bits_do_not_depend_on_batching_in_few_bits() {
    check_batches([Dtype::Heads(HeadCode::Q5_1); 2]);
    check_batches([Dtype::Heads(HeadCode::Q4_0); 2]);
}

#[test]
fn bits_do_not_depend_on_batching_with_two_types() {
    check_batches([Dtype::Q8, Dtype::Heads(HeadCode::Q4_0)]);
    check_batches([Dtype::F16, Dtype::Q8]);
}

#[test]
fn bits_do_not_depend_on_how_segments_run() {
    for mask in [Mask::All, Mask::Window(1500), Mask::Chunk(512)] {
        let mut shape = AttnShape {
            n_heads: 4,
            n_kv_heads: 2,
            k_dim: 32,
            v_dim: 32,
            k_hadamard: 1,
            v_hadamard: 1,
            page: 64,
            scale: 0.2,
            soft_cap: None,
            growth: None,
            alibi: None,
            mask,
        };
        let seq = Seq::new(&shape, 3500, 5).with_sinks(&shape);
        let isa = Isa::detect();
        // One thread processes the segments in order; eight threads share them.
        for (from, to) in [
            (3499, 3500),
            (1023, 1024),
            (1024, 1025),
            (2040, 2060),
            (1490, 1510),
        ] {
            let one = attend(
                isa,
                &Pool::new(1),
                &shape,
                &[(&seq, from, to)],
                [Dtype::F16; 2],
                &mut Rng(1),
            );
            shape.page = 16;
            let many = attend(
                isa,
                &Pool::new(8),
                &shape,
                &[(&seq, from, to)],
                [Dtype::F16; 2],
                &mut Rng(2),
            );
            shape.page = 64;
            let bits = |x: &[Vec<f32>]| x[0].iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            assert_eq!(bits(&one), bits(&many), "{from}..{to} {mask:?}");
            for pos in from..to {
                let alone = attend(
                    isa,
                    &Pool::new(8),
                    &shape,
                    &[(&seq, pos, pos + 1)],
                    [Dtype::F16; 2],
                    &mut Rng(4),
                );
                let width = shape.n_heads * shape.v_dim;
                let row = [one[0][(pos - from) * width..][..width].to_vec()];
                assert_eq!(bits(&alone), bits(&row), "{pos} of {from}..{to} {mask:?}");
            }
        }
    }
}

#[test]
fn accepts_empty_batches_and_sequences() {
    let pool = Pool::new(2);
    for isa in Isa::available() {
        let inputs = |q| AttnInputs {
            q,
            k: KvSlice::F16(&[]),
            v: Some(KvSlice::F16(&[])),
            sinks: None,
        };
        attention(isa, &pool, &LLAMA_1B, inputs(&[]), &[], &mut []);
        let seq = AttnSeq {
            first_row: 0,
            n_rows: 0,
            first_pos: 0,
            block_table: &[],
        };
        attention(isa, &pool, &LLAMA_1B, inputs(&[]), &[seq], &mut []);
        // A row that belongs to no sequence is left alone.
        let q = vec![1.0; 32 * 64];
        let mut out = vec![5.0; 32 * 64];
        attention(isa, &pool, &LLAMA_1B, inputs(&q), &[seq], &mut out);
        assert!(out.iter().all(|&x| x == 5.0));
    }
}

#[test]
fn large_scores_do_not_overflow() {
    let shape = AttnShape {
        scale: 40.0,
        soft_cap: None,
        ..LLAMA_1B
    };
    let seq = Seq::new(&shape, 40, 2);
    for isa in Isa::available() {
        let out = attend(
            isa,
            &Pool::new(1),
            &shape,
            &[(&seq, 0, 40)],
            [Dtype::F16; 2],
            &mut Rng(1),
        );
        assert!(out[0].iter().all(|x| x.is_finite() && x.abs() <= 1.0));
    }
}

/// Latent attention: many query heads, one key head, and values that are its first part.
#[test]
fn values_in_keys_match_the_definition() {
    let cases: [Case; 5] = [
        (
            shape([8, 1], [96, 64], 32, None),
            &[(0, 37), (70, 71), (1020, 1023)],
        ),
        (
            shape([3, 1], [288, 256], 32, Some(20)),
            &[(0, 37), (1020, 1030)],
        ),
        (shape([20, 1], [576, 512], 32, None), &[(0, 3), (70, 71)]),
        (shape([4, 2], [40, 24], 32, None), &[(0, 37), (70, 71)]),
        (
            shape([1, 1], [20, 12], 32, Some(5)),
            &[(0, 37), (1020, 1030)],
        ),
    ];
    for (shape, ranges) in &cases {
        for &(from, to) in *ranges {
            let seq = || Seq::new(shape, to, 7).with_values_in_keys(shape);
            check_sequence(shape, [from, to], &seq);
            check_sequence(shape, [from, to], &|| seq().with_sinks(shape));
        }
    }
}
