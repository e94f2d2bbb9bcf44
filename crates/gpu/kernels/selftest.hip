// Kernels for tests of the drivers: gpu.h's functions, and, on the CPU emulator only, kernels with one fault each,
// which the emulator must report.
//
// functions: out[function, i] from x[i] and its neighbours, i < n; one thread per i, whole blocks of 128. Shared
// memory: THREADS / WARP_SIZE words. The outputs of the kernels with faults do not matter.
#include "gpu.h"
#if defined(GPU_HOST)
#include "mma.h"
#if defined(GPU_NVIDIA)
#include "gemm/wgmma.h"
#endif
#endif

constexpr u32 THREADS = 128;

struct Params {
    const u32* x;
    u32* out;
    u32 n;
    u32 which;
    FIELDS(x, out, n, which)
};

KERNEL(functions, Params, THREADS) {
    u32 i = bid_x() * THREADS + tid();
    u32 v = p.x[i];
    float f = bits<float>(v);
    SHARED(float, part, THREADS / WARP_SIZE);
    u32* out = p.out + i;
    u32 stride = p.n, k = 0;
    auto give = [&](u32 result) { out[stride * k++] = result; };
    give(bits<u32>(wave_sum(f)));
    give(bits<u32>(wave_max(f)));
    give(bits<u32>(block_reduce<Sum, THREADS>(f, part)));
    give(shuffle(v, (lane() * 5 + 3) % WARP_SIZE));
    give(shuffle_xor(v, 1));
    give(shuffle_xor(v, WARP_SIZE / 2));
    give((u32)dot4(v, v * 2654435761u, (i32)(v >> 9)));
    give(bits<u32>(exp_of(f)));
    give(bits<u32>(tanh_of(f)));
    give(bits<u32>(log_of(__builtin_fabsf(f))));
    give(bits<u32>(round_even(f)));
    give(bits<u32>(sqrt_of(__builtin_fabsf(f))));
    give(f2h(f));
    give(bits<u32>(h2f((u16)v)));
    give(wave_sum(v % 1000));
    give(uniform(wave_max(v)));
}
EXPORT_U32(n_functions, 16)

#if defined(GPU_HOST)

// To measure the cost of a fibre switch: 128 switches for each of n.
KERNEL(many_collectives, Params, THREADS) {
    u32 v = p.x[tid()];
    for (u32 i = 0; i < p.n; i++) v += shuffle_xor(v, 1);
    p.out[tid()] = v;
}
KERNEL(many_barriers, Params, THREADS) {
    for (u32 i = 0; i < p.n; i++) barrier();
    p.out[tid()] = p.n;
}

KERNEL(good, Params, THREADS) {
    SHARED(u32, values, THREADS);
    values[tid()] = p.x[tid()];
    barrier();
    p.out[tid()] = values[THREADS - 1 - tid()];
}

KERNEL(missed_barrier, Params, THREADS) {
    if (tid() != p.which) barrier();
    p.out[tid()] = 1;
}

KERNEL(two_barriers, Params, THREADS) {
    if (wave() == p.which) barrier();
    else barrier();
    p.out[tid()] = 1;
}

KERNEL(shuffle_in_branch, Params, THREADS) {
    u32 v = tid();
    if (lane() < p.which) v = shuffle_xor(v, 1);
    p.out[tid()] = v;
}

KERNEL(reduce_in_branch, Params, THREADS) {
    u32 v = tid();
    if (lane() < p.which) v = wave_sum(v);
    else v = wave_max(v);
    p.out[tid()] = v;
}

KERNEL(not_uniform, Params, THREADS) { p.out[tid()] = uniform(tid() == p.which); }

// Thread i reads what thread i + 1 wrote.
KERNEL(race, Params, THREADS) {
    SHARED(u32, values, THREADS);
    values[tid()] = tid();
    p.out[tid()] = values[(tid() + 1) % THREADS];
}

// The second round overwrites values that the first may still read.
KERNEL(race_of_rounds, Params, THREADS) {
    SHARED(u8, bytes, THREADS);
    for (u32 i = 0; i < 2; i++) {
        bytes[tid()] = i;
        barrier();
        p.out[tid()] = bytes[tid() ^ 1];
    }
}

// Matrix units read operands that other threads write: those of a wave, or of a warpgroup.
KERNEL(matrix_race, Params, THREADS) {
    SHARED(u32, values, THREADS * 8);
    for (u32 i = 0; i < 8; i++) values[tid() * 8 + i] = tid();
#if defined(GPU_NVIDIA)
    if (p.which) {
        float c[16] = {};
        const u32 a[4] = {};
        wgmma::mac(c, a, wgmma::place(values), 0);
        p.out[tid()] = bits<u32>(c[0]);
        return;
    }
#endif
    using Tile = mma::F16<16>;
    Tile::Acc c = Tile::zero();
    Tile::mac(c, Tile::load_a(values, 32), Tile::load_b(values, 32));
    p.out[tid()] = bits<u32>((float)c.v[0]);
}

// Waves read what the next wave wrote.
KERNEL(device_race, Params, THREADS) {
    p.out[tid()] = tid();
    shared_barrier();
    const u32 v = p.out[(tid() + WARP_SIZE) % THREADS];
    barrier();
    p.out[tid()] = v;
}

KERNEL(device_exchange, Params, THREADS) {
    p.out[tid()] = tid();
    barrier();
    const u32 v = p.out[(tid() + WARP_SIZE) % THREADS];
    barrier();
    p.out[tid()] = v;
}

KERNEL(all_write, Params, THREADS) {
    SHARED(u32, total, 1);
    total[0] = tid();
    barrier();
    p.out[tid()] = total[0];
}

KERNEL(shared_overrun, Params, THREADS) {
    SHARED(u32, values, THREADS);
    SHARED(u32, others, THREADS);
    others[tid()] = 0;
    values[tid() + p.which] = 0;
    barrier();
    p.out[tid()] = values[tid()] + others[tid()];
}

KERNEL(dynamic_overrun, Params, THREADS) {
    DYNAMIC_SHARED(u32, values);
    values[tid()] = 0;
    barrier();
    p.out[tid()] = values[0];
}

KERNEL(too_much_shared, Params, THREADS) {
    SHARED(u32, values, 13000);
    values[tid()] = 0;
    p.out[tid()] = values[tid()];
}

KERNEL(read_outside, Params, THREADS) { p.out[tid()] = p.x[tid() + p.which]; }

KERNEL(write_outside, Params, THREADS) { p.out[tid() + p.which] = 1; }

KERNEL(write_far, Params, THREADS) { ((u32*)0)[tid() + p.which] = 1; }

KERNEL(misaligned, Params, THREADS) { store16(p.out + tid() / 4 * 4 + p.which, load16(p.x + tid() / 4 * 4)); }

// A kernel whose result depends on the order of blocks.
KERNEL(order_of_blocks, Params, THREADS) { p.out[tid()] = bid_x(); }

KERNEL(unwritten_shared, Params, THREADS) {
    SHARED(float, values, THREADS);
    SHARED(float, sums, THREADS);
    if (tid() != p.which) values[tid()] = 1.0f;
    barrier();
    sums[tid()] = values[tid()] + values[0];
    p.out[tid()] = bits<u32>(sums[tid()]);
}

#endif
