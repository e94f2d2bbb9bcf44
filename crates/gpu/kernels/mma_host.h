// The matrix instructions in the CPU emulator: a lane's words are sent to the other lanes, and each lane sums its
// elements as the instruction's documentation defines them. The layouts are spelled out here a second time, value by
// value, so that a wrong index in mma.h gives wrong products. Sources: see mma.h.
#pragma once
#include "gpu.h"

namespace host {

// The values of all lanes of the wave. Valid until the second next collective.
static const u64* lanes_of(u64 value, u32 site) {
    exchange(value, 0, site);
    Block& b = here();
    const Fibre& f = *b.running;
    return b.slots[(f.n_collectives - 1) & 1] + (f.tid & ~(WARP_SIZE - 1));
}

// Gathers words[lane][i] from all lanes.
template <u32 N> static void gather(const u32* mine, u32 (*words)[N], u32 site) {
    for (u32 i = 0; i < N; i += 2) {
        const u64* lanes = lanes_of(mine[i] | (u64)(i + 1 < N ? mine[i + 1] : 0) << 32, site);
        for (u32 l = 0; l < WARP_SIZE; l++) {
            words[l][i] = (u32)lanes[l];
            if (i + 1 < N) words[l][i + 1] = (u32)(lanes[l] >> 32);
        }
    }
}

template <typename T> static T value_of(const u32* words, u32 i) {
    T v;
    memcpy(&v, (const u8*)words + i * sizeof(T), sizeof(T));
    return v;
}
template <typename T> struct SumOf;
template <> struct SumOf<i8> {
    using Type = i32;
};
template <> struct SumOf<f16> {
    using Type = float;
};

// ldmatrix: lane l gives the address of row l % 8 of matrix l / 8 and receives word l % 4 of row l / 4 of each matrix.
template <typename W, u32 N> static W load_matrices(const void* p) {
    const u64* at = lanes_of((u64)p, __LINE__);
    W w;
    for (u32 m = 0; m < N; m++) memcpy(&w.v[m], (const u8*)at[8 * m + lane() / 4] + lane() % 4 * 4, 4);
    return w;
}
// ldmatrix.trans: lane l receives halves 2 (l % 4) and the next one of column l / 4.
template <typename W> static W load_matrices_transposed(const void* p) {
    const u64* at = lanes_of((u64)p, __LINE__);
    W w;
    for (u32 m = 0; m < 4; m++)
        for (u32 i = 0; i < 2; i++)
            memcpy((u8*)&w.v[m] + 2 * i, (const u8*)at[8 * m + lane() % 4 * 2 + i] + lane() / 4 * 2, 2);
    return w;
}

// mma.m16n8 with HALVES * 16 bytes of k. Each half has 4 words, one per lane % 4, with 4 / sizeof(T) values each.
template <typename T, u32 HALVES> static void mma_m16n8(typename SumOf<T>::Type* c, const u32* a, const u32* b) {
    constexpr u32 PER_WORD = 4 / sizeof(T);
    u32 all_a[WARP_SIZE][2 * HALVES], all_b[WARP_SIZE][HALVES];
    gather<2 * HALVES>(a, all_a, __LINE__);
    gather<HALVES>(b, all_b, __LINE__);
    for (u32 e = 0; e < 4; e++) {
        u32 row = lane() / 4 + (e >= 2 ? 8 : 0), col = lane() % 4 * 2 + e % 2;
        for (u32 k = 0; k < 4 * HALVES * PER_WORD; k++) {
            u32 half = k / (4 * PER_WORD), word = k / PER_WORD % 4;
            T x = value_of<T>(&all_a[row % 8 * 4 + word][row / 8 + 2 * half], k % PER_WORD);
            T y = value_of<T>(&all_b[col * 4 + word][half], k % PER_WORD);
            c[e] += (typename SumOf<T>::Type)x * (typename SumOf<T>::Type)y;
        }
    }
}

#if defined(GPU_NVIDIA)
// wgmma.m64nNk16, a wave's 16 rows: A in registers as for mma.m16n8k16, B in shared memory in blocks of 8 rows by 16
// bytes, 128 bytes from the first 8 values of k to the others and 1,024 bytes from 8 rows to the next.
template <u32 N> static void wgmma_f16(float* c, const u32* a, const void* b) {
    u32 all_a[WARP_SIZE][4];
    gather<4>(a, all_a, __LINE__);
    for (u32 e = 0; e < N / 2; e++) {
        u32 row = lane() / 4 + (e & 2 ? 8 : 0), col = e / 4 * 8 + lane() % 4 * 2 + e % 2;
        for (u32 k = 0; k < 16; k++) {
            f16 x = value_of<f16>(&all_a[row % 8 * 4 + k % 8 / 2][row / 8 + k / 8 * 2], k % 2);
            f16 y = *(const f16*)((const u8*)b + col / 8 * 1024 + k / 8 * 128 + col % 8 * 16 + k % 8 * 2);
            c[e] += (float)x * (float)y;
        }
    }
}
#endif

// WMMA and MFMA of 16x16: a lane has row lane % 16 of A and column lane % 16 of B, N words of each. Groups of 16 lanes
// have consecutive ranges of k, except on GFX11, where all lanes have all k.
template <typename T, u32 N> static void mma_16x16(typename SumOf<T>::Type* c, const u32* a, const u32* b) {
    constexpr u32 VALUES = N * 4 / sizeof(T);
    u32 all_a[WARP_SIZE][N], all_b[WARP_SIZE][N];
    gather<N>(a, all_a, __LINE__);
    gather<N>(b, all_b, __LINE__);
#if defined(GPU_GFX11)
    constexpr u32 N_K = VALUES;
#else
    constexpr u32 N_K = VALUES * (WARP_SIZE / 16);
#endif
    for (u32 e = 0; e < 256 / WARP_SIZE; e++) {
        u32 col = lane() % 16;
#if defined(GPU_GFX11)
        u32 row = 2 * e + lane() / 16;
        // The instruction is defined only if lanes 16 to 31 repeat lanes 0 to 15.
        if (memcmp(all_a[row], all_a[row + 16], sizeof all_a[0]) ||
            memcmp(all_b[col], all_b[col + 16], sizeof all_b[0]))
            c[e] += (typename SumOf<T>::Type)0x10000000;
#elif defined(GPU_GFX12)
        u32 row = 8 * (lane() / 16) + e;
#else
        u32 row = 4 * (lane() / 16) + e;
#endif
        for (u32 k = 0; k < N_K; k++) {
            T x = value_of<T>(all_a[row + k / VALUES * 16], k % VALUES);
            T y = value_of<T>(all_b[col + k / VALUES * 16], k % VALUES);
            c[e] += (typename SumOf<T>::Type)x * (typename SumOf<T>::Type)y;
        }
    }
}

} // namespace host
