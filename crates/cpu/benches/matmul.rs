//! Speed of matrix products, per format: decode from memory, decode from cache, prefill.
//!
//! `cargo bench -p rocmforge-cpu --bench matmul [-- THREADS] [FORMAT ...]`. Bandwidth is compared
//! with what a plain sum over the same buffer reads with the same threads in the same run.

use std::hint::black_box;
use std::time::Instant;

use rocmforge_cpu::{Acts, Isa, OutMode, Pool, Weight, act_format, is_fast, matmul};
use rocmforge_gguf::GgmlType;

/// The feed-forward matrix of a 1B model.
const N_IN: usize = 2048;
const N_OUT: usize = 8192;
/// A matrix that stays in the L2 cache: what the kernel could do with faster memory.
const N_OUT_CACHED: usize = 64;
const PREFILL_TOKENS: usize = 128;

/// Larger than any cache: decode goes through it matrix by matrix.
const BUFFER_BYTES: usize = 1 << 30;

const N_SAMPLES: usize = 15;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let n_threads = args.iter().find_map(|arg| arg.parse().ok());
    let n_threads =
        n_threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, |n| n.get()));
    let wanted: Vec<GgmlType> = args
        .iter()
        .filter_map(|arg| GgmlType::from_name(arg))
        .collect();
    let (isa, pool) = (Isa::detect(), Pool::new(n_threads));

    // Any codes will do; as f16 or f32 the pattern is a number of usual size.
    let buffer: Vec<u8> = (0..BUFFER_BYTES)
        .map(|i| [0x11, 0x2c, 0x3d][i % 3])
        .collect();
    let read = read_gb_s(&pool, &buffer);
    println!(
        "{}, {isa}, {n_threads} threads, n = {N_SAMPLES}, plain reads {read:.1} GB/s",
        processor()
    );
    println!(
        "{:8} {:>18} {:>14} {:>14} {:>10}",
        "", "decode GB/s", "of reads", "cached GB/s", "GFLOP/s"
    );
    for ty in GgmlType::ALL.iter().copied().filter(|ty| is_fast(isa, *ty)) {
        if !wanted.is_empty() && !wanted.contains(&ty) {
            continue;
        }
        let (decode, spread) = decode(isa, &pool, ty, &buffer, N_OUT);
        let (cached, _) = self::decode(
            isa,
            &pool,
            ty,
            &buffer[..matrix_bytes(ty, N_OUT_CACHED)],
            N_OUT_CACHED,
        );
        let (prefill, prefill_spread) = prefill(isa, &pool, ty, &buffer);
        let noisy = if spread.max(prefill_spread) > 0.05 {
            " (noisy)"
        } else {
            ""
        };
        println!(
            "{:8} {decode:>10.1} ±{:>4.0} % {:>12.0} % {cached:>14.1} {prefill:>10.0} ±{:>4.0} %{noisy}",
            ty.name(),
            100.0 * spread,
            100.0 * decode / read,
            100.0 * prefill_spread,
        );
    }
}

fn processor() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = info
        .lines()
        .find_map(|line| line.strip_prefix("model name"));
    name.map_or("unnamed processor", |name| {
        name.trim_start_matches([' ', '\t', ':'])
    })
    .to_owned()
}

fn matrix_bytes(ty: GgmlType, n_out: usize) -> usize {
    n_out * ty.row_bytes(N_IN).expect("N_IN is whole blocks")
}

/// Median seconds, and half the range of the middle half of samples relative to it.
fn measure(mut op: impl FnMut()) -> (f64, f64) {
    op();
    let mut samples: Vec<f64> = (0..N_SAMPLES)
        .map(|_| {
            let start = Instant::now();
            op();
            start.elapsed().as_secs_f64()
        })
        .collect();
    samples.sort_by(f64::total_cmp);
    let at = |part: usize| samples[part * (N_SAMPLES - 1) / 4];
    (at(2), (at(3) - at(1)) / 2.0 / at(2))
}

fn read_gb_s(pool: &Pool, buffer: &[u8]) -> f64 {
    let chunk = 1 << 20;
    let sum = |i: usize| {
        let (words, _) = buffer[i * chunk..][..chunk].as_chunks::<8>();
        black_box(words.iter().fold(0u64, |sum, word| {
            sum.wrapping_add(u64::from_le_bytes(*word))
        }));
    };
    let bytes = 256 << 20;
    let mut first = 0;
    let (seconds, _) = measure(|| {
        pool.run(bytes / chunk, &|i| sum(first / chunk + i));
        first = (first + bytes) % buffer.len();
    });
    bytes as f64 / seconds / 1e9
}

/// GB/s of weights with one token, and its spread.
fn decode(isa: Isa, pool: &Pool, ty: GgmlType, buffer: &[u8], n_out: usize) -> (f64, f64) {
    let acts = acts(isa, pool, ty, 1);
    let mut out = vec![0.0; n_out];
    let mut matrices = buffer.chunks_exact(matrix_bytes(ty, n_out)).cycle();
    // At least 128 MiB a sample, or 4096 cached matrices.
    let per_sample = ((128 << 20) / matrix_bytes(ty, n_out)).clamp(1, 1024);
    let (seconds, spread) = measure(|| {
        for data in matrices.by_ref().take(per_sample) {
            let w = Weight {
                ty,
                n_out,
                n_in: N_IN,
                data,
            };
            matmul(isa, pool, &w, &acts, None, OutMode::Store, &mut out);
        }
    });
    let bytes = (per_sample * matrix_bytes(ty, n_out)) as f64;
    (bytes / seconds / 1e9, spread)
}

/// GFLOP/s, two operations to a product, and its spread.
fn prefill(isa: Isa, pool: &Pool, ty: GgmlType, buffer: &[u8]) -> (f64, f64) {
    let n_out = 2048;
    let acts = acts(isa, pool, ty, PREFILL_TOKENS);
    let mut out = vec![0.0; PREFILL_TOKENS * n_out];
    let w = Weight {
        ty,
        n_out,
        n_in: N_IN,
        data: &buffer[..matrix_bytes(ty, n_out)],
    };
    let (seconds, spread) = measure(|| {
        matmul(isa, pool, &w, &acts, None, OutMode::Store, &mut out);
    });
    let operations = 2.0 * (PREFILL_TOKENS * n_out * N_IN) as f64;
    (operations / seconds / 1e9, spread)
}

fn acts(isa: Isa, pool: &Pool, ty: GgmlType, n_tokens: usize) -> Acts {
    let x: Vec<f32> = (0..n_tokens * N_IN)
        .map(|i| (i * 37 % 100) as f32 / 50.0 - 1.0)
        .collect();
    let mut acts = Acts::new();
    acts.quantize(isa, pool, &x, n_tokens, N_IN, act_format(ty));
    acts
}
