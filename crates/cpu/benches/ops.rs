//! Speed of dispatch, attention and the small ops, with the shapes of Llama 3.2 1B.
//!
//! `cargo bench -p rocmforge-cpu --bench ops [-- THREADS]`. Bandwidth is compared with that of
//! touching every cache line of a large buffer with the same threads, measured in the same run.

use std::hint::black_box;
use std::time::Instant;

use half::f16;
use rocmforge_cpu::{
    Activation, AttnSeq, AttnShape, Isa, KvSlice, KvSliceMut, Pool, RopeStyle, attention,
    gated_activation, kv_append, log_sum_exp, rms_norm, rope,
};
use rocmforge_gguf::quant::QuantizeBlock;
use rocmforge_gguf::quant::legacy::Q8_0;

const SHAPE: AttnShape = AttnShape {
    n_heads: 32,
    n_kv_heads: 8,
    k_dim: 64,
    v_dim: 64,
    page: 32,
    scale: 0.125,
    soft_cap: None,
    window: None,
};
const DEPTH: usize = 4096;
/// Caches of this many layers are read in turn, so that none is found in L2.
const N_LAYERS: usize = 16;
const N_SAMPLES: usize = 31;

struct Report {
    isa: Isa,
    pool: Pool,
    read_gb_s: f64,
}

fn main() {
    let n_threads = std::env::args().skip(1).find_map(|arg| arg.parse().ok());
    let n_threads =
        n_threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, |n| n.get()));
    let mut report = Report {
        isa: Isa::detect(),
        pool: Pool::new(n_threads),
        read_gb_s: 0.0,
    };
    println!("{}, {n_threads} threads, n = {N_SAMPLES}", report.isa);
    println!("{:32} {:>12} {:>8} {:>10}", "", "median", "spread", "");
    read_bandwidth(&mut report);
    dispatch(&report);
    decode(&report);
    prefill(&report);
    small_ops(&report);
}

/// Median seconds of `op`, printed with half the range of the middle half of samples.
fn measure(name: &str, per_sample: usize, mut op: impl FnMut(usize)) -> f64 {
    op(0);
    let mut i = 1;
    let mut samples: Vec<f64> = (0..N_SAMPLES)
        .map(|_| {
            let start = Instant::now();
            for _ in 0..per_sample {
                op(i);
                i += 1;
            }
            start.elapsed().as_secs_f64() / per_sample as f64
        })
        .collect();
    samples.sort_by(f64::total_cmp);
    let median = samples[N_SAMPLES / 2];
    let spread = (samples[N_SAMPLES * 3 / 4] - samples[N_SAMPLES / 4]) / 2.0 / median * 100.0;
    let noisy = if spread > 5.0 { " (noisy)" } else { "" };
    print!("{name:32} {:>9.2} us {spread:>6.1} %{noisy}", median * 1e6);
    median
}

impl Report {
    fn bandwidth(&self, bytes: usize, seconds: f64) {
        let gb_s = bytes as f64 / seconds / 1e9;
        let share = gb_s / self.read_gb_s * 100.0;
        println!("  {gb_s:>7.2} GB/s, {share:.0} % of the read bandwidth");
    }
}

/// What all threads together can read: several streams each, more than one prefetcher follows.
fn read_bandwidth(report: &mut Report) {
    const LEN: usize = 32 << 20;
    const N_TASKS: usize = 64;
    const N_STREAMS: usize = 4;
    let data = vec![1u64; LEN];
    let seconds = measure("read 256 MiB", 1, |_| {
        report.pool.run(N_TASKS, &|task| {
            let part = &data[task * (LEN / N_TASKS)..(task + 1) * (LEN / N_TASKS)];
            let streams: [&[u64]; N_STREAMS] = std::array::from_fn(|i| {
                &part[i * part.len() / N_STREAMS..][..part.len() / N_STREAMS]
            });
            let mut sums = [0u64; N_STREAMS];
            // One value of each cache line.
            for i in (0..streams[0].len()).step_by(8) {
                for (sum, stream) in sums.iter_mut().zip(streams) {
                    *sum = sum.wrapping_add(stream[i]);
                }
            }
            black_box(sums);
        });
    });
    report.read_gb_s = (LEN * 8) as f64 / seconds / 1e9;
    println!("  {:>7.2} GB/s", report.read_gb_s);
}

fn dispatch(report: &Report) {
    for n_tasks in [2, 64] {
        measure(
            &format!("dispatch of {n_tasks} empty tasks"),
            10_000,
            |_| {
                report.pool.run(n_tasks, &|task| {
                    black_box(task);
                });
            },
        );
        println!();
    }
}

/// Numbers that are cheap to make and not all alike.
fn noise(n: usize) -> Vec<f32> {
    (0..n)
        .map(|i| (i.wrapping_mul(2_654_435_761) >> 7 & 0xff) as f32 / 128.0 - 1.0)
        .collect()
}

fn decode(report: &Report) {
    let n_blocks = DEPTH / SHAPE.page;
    // Blocks in an order that no prefetcher follows.
    let block_table: Vec<u32> = (0..n_blocks).map(|i| (i * 37 % n_blocks) as u32).collect();
    let seq = AttnSeq {
        first_row: 0,
        n_rows: 1,
        first_pos: DEPTH - 1,
        block_table: &block_table,
    };
    for (n_heads, n_kv_heads, dim) in [(32, 8, 64), (32, 8, 128), (14, 2, 64), (8, 8, 64)] {
        let shape = AttnShape {
            n_heads,
            n_kv_heads,
            k_dim: dim,
            v_dim: dim,
            ..SHAPE
        };
        let f32s: Vec<Vec<f32>> = (0..2 * N_LAYERS)
            .map(|_| noise(n_kv_heads * DEPTH * dim))
            .collect();
        let f16s: Vec<Vec<u16>> = f32s.iter().map(|x| to_f16(x)).collect();
        let q8s: Vec<Vec<Q8_0>> = f32s.iter().map(|x| to_q8_0(x)).collect();
        let q = noise(n_heads * dim);
        let mut out = vec![0.0; q.len()];
        let dtypes: [(&str, usize, Vec<KvSlice<'_>>); 3] = [
            ("f16", 64, f16s.iter().map(|x| KvSlice::F16(x)).collect()),
            ("f32", 128, f32s.iter().map(|x| KvSlice::F32(x)).collect()),
            ("q8_0", 34, q8s.iter().map(|x| KvSlice::Q8_0(x)).collect()),
        ];
        for (dtype, bytes_per_32, layers) in dtypes {
            let seconds = measure(
                &format!("decode {n_heads}/{n_kv_heads} x {dim} {dtype}"),
                4,
                |i| {
                    let (k, v) = (layers[2 * (i % N_LAYERS)], layers[2 * (i % N_LAYERS) + 1]);
                    attention(report.isa, &report.pool, &shape, &q, k, v, &[seq], &mut out);
                },
            );
            report.bandwidth(2 * n_kv_heads * dim * DEPTH / 32 * bytes_per_32, seconds);
        }
    }
}

fn to_f16(x: &[f32]) -> Vec<u16> {
    x.iter().map(|&x| f16::from_f32(x).to_bits()).collect()
}

fn to_q8_0(x: &[f32]) -> Vec<Q8_0> {
    x.chunks_exact(32).map(Q8_0::quantize).collect()
}

fn prefill(report: &Report) {
    const N_TOKENS: usize = 512;
    let n_blocks = N_TOKENS / SHAPE.page;
    let block_table: Vec<u32> = (0..n_blocks as u32).rev().collect();
    let kv = to_f16(&noise(N_TOKENS * SHAPE.n_kv_heads * SHAPE.k_dim));
    let width = SHAPE.n_heads * SHAPE.k_dim;
    let q = noise(N_TOKENS * width);
    let mut out = vec![0.0; N_TOKENS * width];
    let seq = AttnSeq {
        first_row: 0,
        n_rows: N_TOKENS,
        first_pos: 0,
        block_table: &block_table,
    };
    let seconds = measure("prefill of 512 tokens", 1, |_| {
        let (k, v) = (KvSlice::F16(&kv), KvSlice::F16(&kv));
        attention(report.isa, &report.pool, &SHAPE, &q, k, v, &[seq], &mut out);
    });
    let pairs = N_TOKENS * (N_TOKENS + 1) / 2;
    let flops = SHAPE.n_heads * pairs * (SHAPE.k_dim + SHAPE.v_dim) * 2;
    println!("  {:>7.2} GFLOP/s", flops as f64 / seconds / 1e9);
}

fn small_ops(report: &Report) {
    let (isa, pool) = (report.isa, &report.pool);
    for n_tokens in [1, 512] {
        let (x, weight) = (noise(n_tokens * 2048), noise(2048));
        let mut out = vec![0.0; x.len()];
        measure(&format!("rms_norm {n_tokens} x 2048"), 20, |_| {
            rms_norm(isa, pool, &x, &weight, 1e-5, &mut out);
        });
        println!();
        let (gate, up) = (noise(n_tokens * 8192), noise(n_tokens * 8192));
        let mut out = vec![0.0; gate.len()];
        measure(&format!("gated silu {n_tokens} x 8192"), 20, |_| {
            gated_activation(isa, pool, Activation::Silu, &gate, &up, &mut out);
        });
        println!();
        let mut x = noise(n_tokens * 2048);
        // Turned by nothing, so that values keep their size however often they are turned.
        let angles = [1.0, 0.0].repeat(n_tokens * 32);
        for style in [RopeStyle::Norm, RopeStyle::Neox] {
            measure(&format!("rope {style:?} {n_tokens} x 32 x 64"), 20, |_| {
                rope(isa, pool, &mut x, n_tokens, 64, 64, style, &angles);
            });
            println!();
        }
        let rows = noise(n_tokens * 512);
        let slots: Vec<u32> = (0..n_tokens as u32).collect();
        let mut cache = vec![0u16; 512 * 512];
        measure(&format!("kv_append {n_tokens} x 8 x 64"), 20, |_| {
            kv_append(
                isa,
                pool,
                &rows,
                8,
                64,
                32,
                &slots,
                KvSliceMut::F16(&mut cache),
            );
        });
        println!();
    }
    let logits = noise(151_936);
    measure("log_sum_exp of 151936", 20, |_| {
        black_box(log_sum_exp(isa, &logits));
    });
    println!();
}
