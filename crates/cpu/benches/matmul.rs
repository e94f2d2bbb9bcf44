//! Speed of matrix products by format: decode from memory, decode from cache, prefill.
//!
//! `cargo bench -p rocmforge-cpu --bench matmul [-- FILTER]`, e.g. `-- Q4_K`. `ROCMFORGE_THREADS` sets the number of
//! threads. Decode throughput is bytes of weights, comparable with "read from memory", or with the peak bandwidth printed
//! first; prefill throughput is operations (two per product), comparable with the peak of int8 or f32.

mod common;

use std::hint::black_box;

use criterion::{BenchmarkGroup, BenchmarkId, Criterion, Throughput};
use rocmforge_cpu::{Acts, Product, is_fast, matmul};
use rocmforge_gguf::GgmlType;
use rocmforge_plan::{OutMode, Weight, act_format};

use common::Machine;

/// The feed-forward matrix of a 1B model.
const N_IN: usize = 2048;
const N_OUT: usize = 8192;
/// A matrix that stays in the L2 cache, to show the kernel's speed without the limit of memory.
const N_OUT_CACHED: usize = 64;
const N_OUT_PREFILL: usize = 2048;
const PREFILL_TOKENS: [usize; 2] = [8, 128];

/// Larger than any cache; decode reads it matrix by matrix.
const BUFFER_BYTES: usize = 1 << 30;

type Group<'a> = BenchmarkGroup<'a, criterion::measurement::WallTime>;

fn main() {
    let machine = Machine::new();
    let mut criterion = common::criterion();
    // Any codes will do. As f16 or f32 the pattern is a number of typical size.
    let buffer: Vec<u8> = (0..BUFFER_BYTES)
        .map(|i| [0x11, 0x2c, 0x3d][i % 3])
        .collect();
    read(&mut criterion, &machine, &buffer);
    in_each_format(
        &mut criterion,
        "decode from memory",
        &machine,
        |group, ty| {
            decode(group, &machine, ty, &buffer, N_OUT);
        },
    );
    in_each_format(
        &mut criterion,
        "decode from cache",
        &machine,
        |group, ty| {
            let data = &buffer[..matrix_bytes(ty, N_OUT_CACHED)];
            decode(group, &machine, ty, data, N_OUT_CACHED);
        },
    );
    for n_tokens in PREFILL_TOKENS {
        let name = format!("prefill of {n_tokens} tokens");
        in_each_format(&mut criterion, &name, &machine, |group, ty| {
            prefill(group, &machine, ty, &buffer, n_tokens);
        });
    }
    criterion.final_summary();
}

fn in_each_format(
    criterion: &mut Criterion,
    name: &str,
    machine: &Machine,
    bench: impl Fn(&mut Group<'_>, GgmlType),
) {
    let mut group = criterion.benchmark_group(name);
    for ty in GgmlType::ALL.iter().copied() {
        if is_fast(machine.isa, ty) {
            bench(&mut group, ty);
        }
    }
    group.finish();
}

fn store<'a>(w: Weight<'a>, out: &'a mut [f32]) -> Product<'a> {
    Product {
        w,
        bias: None,
        mode: OutMode::Store,
        out,
    }
}

fn matrix_bytes(ty: GgmlType, n_out: usize) -> usize {
    n_out * ty.row_bytes(N_IN).expect("N_IN is whole blocks")
}

/// Reads what a decode from memory reads, in tasks of a decode's size, and computes almost nothing.
fn read(criterion: &mut Criterion, machine: &Machine, buffer: &[u8]) {
    const TASK_BYTES: usize = 256 * 1024;
    let bytes = matrix_bytes(GgmlType::F16, N_OUT);
    let mut matrices = buffer.chunks_exact(bytes).cycle();
    let mut group = criterion.benchmark_group("read from memory");
    group.throughput(Throughput::Bytes(bytes as u64));
    group.bench_function("bytes", |b| {
        b.iter(|| {
            let (words, _) = matrices.next().unwrap_or_default().as_chunks::<8>();
            let tasks: Vec<_> = words.chunks(TASK_BYTES / 8).collect();
            machine.pool.run(tasks.len(), &|i| {
                let words = tasks[i].iter().map(|word| u64::from_le_bytes(*word));
                black_box(words.fold(0, |bits, word| bits | word));
            });
        });
    });
    group.finish();
}

/// Multiplies one token with each matrix in `buffer` in turn.
fn decode(group: &mut Group<'_>, machine: &Machine, ty: GgmlType, buffer: &[u8], n_out: usize) {
    let acts = acts(machine, ty, 1);
    let mut out = vec![0.0; n_out];
    let bytes = matrix_bytes(ty, n_out);
    let mut matrices = buffer.chunks_exact(bytes).cycle();
    group.throughput(Throughput::Bytes(bytes as u64));
    group.bench_function(BenchmarkId::from_parameter(ty.name()), |b| {
        b.iter(|| {
            let w = Weight {
                ty,
                n_out,
                n_in: N_IN,
                data: matrices.next().unwrap_or_default(),
            };
            matmul(machine.isa, &machine.pool, &acts, store(w, &mut out));
        });
    });
}

fn prefill(group: &mut Group<'_>, machine: &Machine, ty: GgmlType, buffer: &[u8], n_tokens: usize) {
    let acts = acts(machine, ty, n_tokens);
    let mut out = vec![0.0; n_tokens * N_OUT_PREFILL];
    let w = Weight {
        ty,
        n_out: N_OUT_PREFILL,
        n_in: N_IN,
        data: &buffer[..matrix_bytes(ty, N_OUT_PREFILL)],
    };
    let operations = 2 * n_tokens * N_OUT_PREFILL * N_IN;
    group.throughput(Throughput::Elements(operations as u64));
    group.bench_function(BenchmarkId::from_parameter(ty.name()), |b| {
        b.iter(|| {
            matmul(machine.isa, &machine.pool, &acts, store(w, &mut out));
        });
    });
}

fn acts(machine: &Machine, ty: GgmlType, n_tokens: usize) -> Acts {
    let x: Vec<f32> = (0..n_tokens * N_IN)
        .map(|i| (i * 37 % 100) as f32 / 50.0 - 1.0)
        .collect();
    let mut acts = Acts::new();
    acts.quantize(
        machine.isa,
        &machine.pool,
        &x,
        [n_tokens, N_IN],
        act_format(ty),
    );
    acts
}
