// The mainloop of F32 weights, and of all float formats on GPUs without matrix units: exact products, f32 sums. 16 by
// 16 threads with R by R outputs each, 32 values of k at a time. Shared memory: 128 (16 R + 4) bytes per operand.
#pragma once
#include "gemm/gemm.h"

template <typename F, u32 R> struct Exact {
    static constexpr u32 TILE = 16 * R, K = 32, PER_ROW = K / F::CHUNK, STRIDE = TILE + 4;

    static constexpr u32 ROWS = TILE, OUTS = TILE, THREADS = 256, ELEMENTS = R * R;
    static constexpr u32 SHARED = 2 * K * STRIDE * sizeof(float);
    // Each sum is added from k = 0 on, whatever R is.
    static constexpr u32 ORDER = 1;

    float acc[R][R];
    u32 tx, ty;

    DEV_MEMBER bool run(const One& one, const Tile& t) {
        // [K, TILE] each.
        SHARED(float, x, K * STRIDE);
        SHARED(float, w, K * STRIDE);
        const float* x_from = (const float*)one.x;
        const u32 first_out = t.first_out, first_row = t.first_row;
        tx = tid() % 16 * R;
        ty = tid() / 16 * R;
#pragma unroll
        for (u32 i = 0; i < ELEMENTS; i++) acc[i / R][i % R] = 0.0f;
        for (u32 k = 0; k < one.w.n_in; k += K) {
            barrier();
#pragma unroll
            for (u32 i = 0; i < TILE * K / THREADS; i++) {
                u32 n = i * THREADS + tid(), row = min_of(first_row + n / K, one.n_rows - 1), at = k + n % K;
                x[n % K * STRIDE + n / K] = at < one.w.n_in ? x_from[(u64)row * one.w.n_in + at] : 0.0f;
            }
#pragma unroll
            for (u32 i = 0; i < TILE * PER_ROW; i += THREADS) {
                u32 n = i + tid(), o = n / PER_ROW, chunk = n % PER_ROW;
                if (n >= TILE * PER_ROW) break;
                const auto row = Block<F, Planes>::of(one.w, min_of(first_out + o, one.w.n_out - 1));
                const F values = row.load(k / F::CHUNK + chunk);
#pragma unroll
                for (u32 j = 0; j < F::CHUNK; j++) w[(chunk * F::CHUNK + j) * STRIDE + o] = values.value(j);
            }
            barrier();
#pragma unroll 8
            for (u32 j = 0; j < K; j++) {
                float a[R], b[R];
                load_floats<R>(a, x + j * STRIDE + ty);
                load_floats<R>(b, w + j * STRIDE + tx);
#pragma unroll
                for (u32 r = 0; r < R; r++)
#pragma unroll
                    for (u32 c = 0; c < R; c++) acc[r][c] = fma(a[r], b[c], acc[r][c]);
            }
        }
        return true;
    }

    DEV_MEMBER u32 row(u32 e) const { return ty + e / R; }
    DEV_MEMBER u32 col(u32 e) const { return tx + e % R; }
    DEV_MEMBER float value(u32 e) const { return acc[e / R][e % R]; }
};
