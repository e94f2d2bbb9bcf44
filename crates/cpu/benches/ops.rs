//! Speed of dispatch, attention and the small ops, with the shapes of Llama 3.2 1B.
//!
//! `cargo bench -p rocmforge-cpu --bench ops [-- FILTER]`, e.g. `-- attention`. `ROCMFORGE_THREADS` sets the number
//! of threads. Throughput of attention decode is bytes of keys and values, comparable with the read bandwidth printed
//! first; of attention prefill, operations (two per product); of the small ops, bytes of the f32 buffers read and
//! written.

mod common;

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput};
use half::f16;
use rocmforge_cpu::{
    AttnInputs, AttnSeq, AttnShape, HeadCode, KvLayout, KvSlice, KvSliceMut, Rotation, attention,
    gated_activation, kv_append, log_sum_exp, rms_norm, rope,
};
use rocmforge_gguf::quant::QuantizeBlock;
use rocmforge_gguf::quant::f8;
use rocmforge_gguf::quant::legacy::Q8_0;
use rocmforge_plan::{Activation, Mask, RopeStyle};

use common::Machine;

const SHAPE: AttnShape = AttnShape {
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
/// Query heads, KV heads, values per head.
const DECODE_SHAPES: [(usize, usize, usize); 4] =
    [(32, 8, 64), (32, 8, 128), (14, 2, 64), (8, 8, 64)];
const DEPTHS: [usize; 3] = [512, 4096, 16_384];
/// KV caches are read in turn, with this many bytes before one comes again, so that none is in a processor cache.
const COLD_BYTES: usize = 512 << 20;
const MAX_LAYERS: usize = 64;

fn main() {
    let machine = Machine::new();
    let mut criterion = common::criterion();
    dispatch(&mut criterion, &machine);
    decode_shapes(&mut criterion, &machine);
    decode_depths(&mut criterion, &machine);
    prefill(&mut criterion, &machine);
    small_ops(&mut criterion, &machine);
    criterion.final_summary();
}

fn dispatch(criterion: &mut Criterion, machine: &Machine) {
    let mut group = criterion.benchmark_group("dispatch of empty tasks");
    for n_tasks in [2, 64] {
        group.bench_function(BenchmarkId::from_parameter(n_tasks), |b| {
            b.iter(|| {
                machine.pool.run(n_tasks, &|task| {
                    black_box(task);
                });
            });
        });
    }
}

/// Values that are cheap to generate and vary.
fn noise(n: usize) -> Vec<f32> {
    (0..n)
        .map(|i| (i.wrapping_mul(2_654_435_761) >> 7 & 0xff) as f32 / 128.0 - 1.0)
        .collect()
}

fn to_f16(x: &[f32]) -> Vec<u16> {
    x.iter().map(|&x| f16::from_f32(x).to_bits()).collect()
}

/// Scale and codes of each head.
fn to_f8(values: &[f32], dim: usize) -> Vec<u8> {
    let len = dim + f8::SCALE_BYTES;
    let mut heads = vec![0; values.len() / dim * len];
    for (row, head) in values.chunks_exact(dim).zip(heads.chunks_exact_mut(len)) {
        f8::store(row, head);
    }
    heads
}

fn to_q8_0(x: &[f32]) -> Vec<Q8_0> {
    x.chunks_exact(32).map(Q8_0::quantize).collect()
}

/// Every cache type at a depth of 4096.
fn decode_shapes(criterion: &mut Criterion, machine: &Machine) {
    let mut group = criterion.benchmark_group("attention decode at 4096");
    for (n_heads, n_kv_heads, dim) in DECODE_SHAPES {
        let shape = AttnShape {
            n_heads,
            n_kv_heads,
            k_dim: dim,
            v_dim: dim,
            ..SHAPE
        };
        let values = noise(n_kv_heads * 4096 * dim);
        let (f16s, q8s) = (to_f16(&values), to_q8_0(&values));
        let f8s = to_f8(&values, dim);
        for (name, cache) in [
            ("f16", KvSlice::F16(&f16s)),
            ("f32", KvSlice::F32(&values)),
            ("q8_0", KvSlice::Q8_0(&q8s)),
            (
                "fp8",
                KvSlice::Heads {
                    code: HeadCode::F8E4M3,
                    heads: &f8s,
                    dim,
                },
            ),
        ] {
            let id = BenchmarkId::new(name, format!("{n_heads}/{n_kv_heads}x{dim}"));
            decode(&mut group, machine, id, (&shape, 4096), cache);
        }
    }
}

/// Decode time by the number of cached tokens.
fn decode_depths(criterion: &mut Criterion, machine: &Machine) {
    let mut group = criterion.benchmark_group("attention decode by depth");
    for depth in DEPTHS {
        let f16s = to_f16(&noise(SHAPE.n_kv_heads * depth * SHAPE.k_dim));
        let id = BenchmarkId::new("f16", depth);
        decode(
            &mut group,
            machine,
            id,
            (&SHAPE, depth),
            KvSlice::F16(&f16s),
        );
    }
}

/// Decodes one token of a sequence of `depth` tokens, with copies of `cache` as the keys and values of many layers.
fn decode(
    group: &mut criterion::BenchmarkGroup<'_, criterion::measurement::WallTime>,
    machine: &Machine,
    id: BenchmarkId,
    (shape, depth): (&AttnShape, usize),
    cache: KvSlice<'_>,
) {
    let n_blocks = depth / shape.page;
    // An order of blocks that no prefetcher follows.
    let block_table: Vec<u32> = (0..n_blocks).map(|i| (i * 37 % n_blocks) as u32).collect();
    let seq = AttnSeq {
        first_row: 0,
        n_rows: 1,
        first_pos: depth - 1,
        block_table: &block_table,
    };
    let q = noise(shape.n_heads * shape.k_dim);
    let mut out = vec![0.0; shape.n_heads * shape.v_dim];
    let bytes = match cache {
        KvSlice::F16(x) => size_of_val(x),
        KvSlice::F32(x) => size_of_val(x),
        KvSlice::Q8_0(x) => size_of_val(x),
        KvSlice::Heads { heads, .. } => heads.len(),
    };
    let n_copies = (COLD_BYTES / bytes).clamp(2, 2 * MAX_LAYERS);
    let copies = Copies::new(cache, n_copies);
    group.throughput(Throughput::Bytes(2 * bytes as u64));
    let mut i = 0;
    group.bench_function(id, |b| {
        b.iter(|| {
            let inputs = AttnInputs {
                q: &q,
                k: copies.get(i % n_copies),
                v: Some(copies.get((i + 1) % n_copies)),
                sinks: None,
            };
            i += 2;
            attention(machine.isa, &machine.pool, shape, inputs, &[seq], &mut out);
        });
    });
}

/// Copies of a KV cache.
enum Copies {
    F16(Vec<Vec<u16>>),
    F32(Vec<Vec<f32>>),
    Q8_0(Vec<Vec<Q8_0>>),
    Heads {
        code: HeadCode,
        heads: Vec<Vec<u8>>,
        dim: usize,
    },
}

impl Copies {
    fn new(cache: KvSlice<'_>, n: usize) -> Copies {
        match cache {
            KvSlice::F16(x) => Copies::F16(vec![x.to_vec(); n]),
            KvSlice::F32(x) => Copies::F32(vec![x.to_vec(); n]),
            KvSlice::Q8_0(x) => Copies::Q8_0(vec![x.to_vec(); n]),
            KvSlice::Heads { code, heads, dim } => Copies::Heads {
                code,
                heads: vec![heads.to_vec(); n],
                dim,
            },
        }
    }

    fn get(&self, i: usize) -> KvSlice<'_> {
        match self {
            Copies::F16(copies) => KvSlice::F16(&copies[i]),
            Copies::F32(copies) => KvSlice::F32(&copies[i]),
            Copies::Q8_0(copies) => KvSlice::Q8_0(&copies[i]),
            Copies::Heads { code, heads, dim } => KvSlice::Heads {
                code: *code,
                heads: &heads[i],
                dim: *dim,
            },
        }
    }
}

fn prefill(criterion: &mut Criterion, machine: &Machine) {
    let mut group = criterion.benchmark_group("attention prefill of 512");
    for depth in [0, 4096] {
        let n_tokens = 512;
        let n_blocks = (depth + n_tokens) / SHAPE.page;
        let block_table: Vec<u32> = (0..n_blocks as u32).rev().collect();
        let kv = to_f16(&noise((depth + n_tokens) * SHAPE.n_kv_heads * SHAPE.k_dim));
        let width = SHAPE.n_heads * SHAPE.k_dim;
        let q = noise(n_tokens * width);
        let mut out = vec![0.0; n_tokens * width];
        let seq = AttnSeq {
            first_row: 0,
            n_rows: n_tokens,
            first_pos: depth,
            block_table: &block_table,
        };
        let pairs = n_tokens * depth + n_tokens * (n_tokens + 1) / 2;
        let operations = 2 * SHAPE.n_heads * pairs * (SHAPE.k_dim + SHAPE.v_dim);
        group.throughput(Throughput::Elements(operations as u64));
        group.bench_function(BenchmarkId::new("after", depth), |b| {
            b.iter(|| {
                let inputs = AttnInputs {
                    q: &q,
                    k: KvSlice::F16(&kv),
                    v: Some(KvSlice::F16(&kv)),
                    sinks: None,
                };
                attention(machine.isa, &machine.pool, &SHAPE, inputs, &[seq], &mut out);
            });
        });
    }
}

fn small_ops(criterion: &mut Criterion, machine: &Machine) {
    let (isa, pool) = (machine.isa, &machine.pool);
    for n_tokens in [1, 512] {
        let mut group = criterion.benchmark_group(format!("ops on {n_tokens} tokens"));
        let bytes = |values: usize| Throughput::Bytes(4 * (n_tokens * values) as u64);

        let (x, weight) = (noise(n_tokens * 2048), noise(2048));
        let mut out = vec![0.0; x.len()];
        group.throughput(bytes(2 * 2048));
        group.bench_function("rms_norm 2048", |b| {
            b.iter(|| rms_norm(isa, pool, &x, &weight, 1e-5, &mut out));
        });

        let (gate, up) = (noise(n_tokens * 8192), noise(n_tokens * 8192));
        let mut out = vec![0.0; gate.len()];
        group.throughput(bytes(3 * 8192));
        group.bench_function("gated silu 8192", |b| {
            b.iter(|| gated_activation(isa, pool, Activation::Silu, &gate, &up, &mut out));
        });

        let mut x = noise(n_tokens * 2048);
        // Rotations by zero, so that values keep their size.
        let angles = [1.0, 0.0].repeat(n_tokens * 32);
        group.throughput(bytes(2 * 2048));
        for style in [RopeStyle::Norm, RopeStyle::Neox] {
            let rotation = Rotation {
                style,
                start: 0,
                head_dim: 64,
                n_rot: 64,
                cos_sin: &angles,
            };
            group.bench_function(format!("rope {style:?} 32 x 64"), |b| {
                b.iter(|| rope(isa, pool, n_tokens, &rotation, &mut x));
            });
        }

        let rows = noise(n_tokens * 512);
        let slots: Vec<u32> = (0..n_tokens as u32).collect();
        let mut cache = vec![0u16; 512 * 512];
        let layout = KvLayout {
            n_kv_heads: 8,
            dim: 64,
            page: 32,
            hadamard: 1,
        };
        // Read as f32, written as f16.
        group.throughput(bytes(512 + 256));
        group.bench_function("kv_append 8 x 64", |b| {
            b.iter(|| {
                let to = KvSliceMut::F16(&mut cache);
                kv_append(isa, pool, &layout, &rows, &slots, to);
            });
        });
    }
    let logits = noise(151_936);
    let mut group = criterion.benchmark_group("logits");
    group.throughput(Throughput::Bytes(4 * logits.len() as u64));
    group.bench_function("log_sum_exp 151936", |b| {
        b.iter(|| log_sum_exp(isa, &logits));
    });
}
