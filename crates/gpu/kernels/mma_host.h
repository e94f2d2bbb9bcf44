// The matrix instructions in the CPU emulator: a lane's words are sent to the other lanes, and each lane sums its
// elements as the instruction's documentation defines them. The layouts are spelled out here a second time, value by
// value, so that a wrong index in mma.h gives wrong products. Sources: see mma.h.
#pragma once
#include "gpu.h"

namespace host {

extern "C" __attribute__((visibility("hidden"))) void __tsan_read4(void* p);
extern "C" __attribute__((visibility("hidden"))) void __tsan_read16(void* p);

// The emulator's own values need no checks. Operands in memory do: they are read through `checked`.
#pragma clang attribute push(__attribute__((disable_sanitizer_instrumentation)), apply_to = function)

template <u32 BYTES> static const u8* checked(const void* p) {
    static_assert(BYTES == 4 || BYTES == 16, "there is a check for it");
    if constexpr (BYTES == 4) __tsan_read4((void*)p);
    else __tsan_read16((void*)p);
    return (const u8*)p;
}

// The words of all lanes of the wave: those of `a`, then those of `b`. Valid until the second next collective.
using Words = u32[MAX_WORDS];
template <u32 N_A, u32 N_B> static const Words* gather(const u32* a, const u32* b, u32 site) {
    static_assert(N_A + N_B <= MAX_WORDS, "there is room for the words");
    Block& block = here();
    Fibre& f = *block.running;
    Words* all = block.words[f.n_collectives++ & 1];
    memcpy(all[f.tid], a, N_A * sizeof(u32));
    memcpy(all[f.tid] + N_A, b, N_B * sizeof(u32));
    pause(State::AtWave, site);
    return all + (f.tid & ~(WARP_SIZE - 1));
}
template <u32 N> static const Words* gather(const u32* words, u32 site) { return gather<N, 0>(words, words, site); }

template <typename T, u32 N> struct Vector {
    typedef T Type __attribute__((ext_vector_type(N)));
};
// What products of values are added to.
template <typename T> struct SumOf;
template <> struct SumOf<i8> {
    using Type = i32;
};
template <> struct SumOf<f16> {
    using Type = float;
};
template <> struct SumOf<float> {
    using Type = float;
};

// Converts N values to the type of their sums.
template <typename T, u32 N> static void widen(const void* from, typename SumOf<T>::Type* to) {
    constexpr u32 LANES = N < 4 ? N : 4;
    using Sums = typename Vector<typename SumOf<T>::Type, LANES>::Type;
    for (u32 i = 0; i < N; i += LANES) {
        typename Vector<T, LANES>::Type values;
        memcpy(&values, (const T*)from + i, sizeof values);
        const Sums sums = __builtin_convertvector(values, Sums);
        memcpy(to + i, &sums, sizeof sums);
    }
}

// ldmatrix: lane l gives the address of row l % 8 of matrix l / 8 and receives word l % 4 of row l / 4 of each matrix.
template <typename W, u32 N> static W load_matrices(const void* p) {
    const u64* at = lanes_of((u64)p, __LINE__);
    W w;
    for (u32 m = 0; m < N; m++) memcpy(&w.v[m], checked<4>((const u8*)at[8 * m + lane() / 4] + lane() % 4 * 4), 4);
    return w;
}
// ldmatrix.trans: lane l receives halves 2 (l % 4) and the next one of column l / 4.
template <typename W> static W load_matrices_transposed(const void* p) {
    const u64* at = lanes_of((u64)p, __LINE__);
    W w;
    for (u32 m = 0; m < 4; m++)
        for (u32 i = 0; i < 2; i++) {
            // The pair of halves with this one.
            const u8* pair = checked<4>((const u8*)at[8 * m + lane() % 4 * 2 + i] + lane() / 8 * 4);
            memcpy((u8*)&w.v[m] + 2 * i, pair + lane() / 4 % 2 * 2, 2);
        }
    return w;
}

// Adds the products of two rows and two columns of N_K values: elements 0 and 1 are those of the first row.
template <u32 N_K, typename Sum> static void add_products(Sum* c, const Sum (*rows)[N_K], const Sum (*cols)[N_K]) {
    using Four = typename Vector<Sum, 4>::Type;
    Four sums;
    memcpy(&sums, c, sizeof sums);
#pragma unroll 8
    for (u32 k = 0; k < N_K; k++)
        sums +=
            Four{rows[0][k], rows[0][k], rows[1][k], rows[1][k]} * Four{cols[0][k], cols[1][k], cols[0][k], cols[1][k]};
    memcpy(c, &sums, sizeof sums);
}

// mma.m16n8 with HALVES * 16 bytes of k. Each half has 4 words, one per lane % 4, with 4 / sizeof(T) values each.
template <typename T, u32 HALVES> static void mma_m16n8(typename SumOf<T>::Type* c, const u32* a, const u32* b) {
    constexpr u32 N_K = HALVES * 16 / sizeof(T);
    const Words* all = gather<2 * HALVES, HALVES>(a, b, __LINE__);
    typename SumOf<T>::Type rows[2][N_K], cols[2][N_K];
    for (u32 i = 0; i < 2; i++) {
        u32 row[4 * HALVES], col[4 * HALVES];
        for (u32 word = 0; word < 4 * HALVES; word++) {
            row[word] = all[lane() / 4 * 4 + word % 4][i + word / 4 * 2];
            col[word] = all[(lane() % 4 * 2 + i) * 4 + word % 4][2 * HALVES + word / 4];
        }
        widen<T, N_K>(row, rows[i]);
        widen<T, N_K>(col, cols[i]);
    }
    add_products<N_K>(c, rows, cols);
}

#if defined(GPU_NVIDIA)
// The two rows of A of a lane for wgmma with A in registers, as for mma.m16n8k16.
static void gather_rows(const u32* a, float (*rows)[16], u32 site) {
    const Words* all = gather<4>(a, site);
    for (u32 i = 0; i < 2; i++) {
        u32 row[8];
        for (u32 word = 0; word < 8; word++) row[word] = all[lane() / 4 * 4 + word % 4][i + word / 4 * 2];
        widen<f16, 16>(row, rows[i]);
    }
}

// wgmma.m64nNk16, a wave's 16 rows: A in registers, B in shared memory in blocks of 8 rows by 16 bytes, 128 bytes from the
// first 8 values of k to the others and 1,024 bytes from 8 rows to the next.
template <u32 N> static void wgmma_f16(float* c, const u32* a, const void* b) {
    float rows[2][16], cols[2][16];
    gather_rows(a, rows, __LINE__);
    for (u32 e = 0; e < N / 2; e += 4) {
        for (u32 i = 0; i < 2; i++) {
            const u8* col = (const u8*)b + e / 4 * 1024 + (lane() % 4 * 2 + i) * 16;
            for (u32 k = 0; k < 16; k += 8) widen<f16, 8>(checked<16>(col + k / 8 * 128), cols[i] + k);
        }
        add_products<16>(c + e, rows, cols);
    }
}
#endif

// WMMA and MFMA of 16x16: a lane has row lane % 16 of A and column lane % 16 of B, N words of each. Groups of 16 lanes
// have consecutive ranges of k, except on GFX11, where all lanes have all k.
template <typename T, u32 N> static void mma_16x16(typename SumOf<T>::Type* c, const u32* a, const u32* b) {
    using Sum = typename SumOf<T>::Type;
    constexpr u32 VALUES = N * 4 / sizeof(T);
    const Words* all = gather<N, N>(a, b, __LINE__);
#if defined(GPU_GFX11)
    constexpr u32 N_K = VALUES;
#else
    constexpr u32 N_K = VALUES * (WARP_SIZE / 16);
#endif
    u32 col = lane() % 16;
    Sum of_row[N_K], of_col[N_K];
    for (u32 k = 0; k < N_K; k += VALUES) widen<T, VALUES>(all[col + k / VALUES * 16] + N, of_col + k);
    for (u32 e = 0; e < 256 / WARP_SIZE; e++) {
#if defined(GPU_GFX11)
        u32 row = 2 * e + lane() / 16;
        // The instruction is defined only if lanes 16 to 31 repeat lanes 0 to 15.
        if (memcmp(all[row], all[row + 16], N * 4) || memcmp(all[col] + N, all[col + 16] + N, N * 4))
            c[e] += (Sum)0x10000000;
#elif defined(GPU_GFX12)
        u32 row = 8 * (lane() / 16) + e;
#else
        u32 row = 4 * (lane() / 16) + e;
#endif
        for (u32 k = 0; k < N_K; k += VALUES) widen<T, VALUES>(all[row + k / VALUES * 16], of_row + k);
        for (u32 k = 0; k < N_K; k++) c[e] += of_row[k] * of_col[k];
    }
}

#pragma clang attribute pop

} // namespace host
