// One interface for the tiles of all matrix units: one wave computes C[16, 16] += A[16, K] B[16, K]^T.
//
//     mma::I8<32>   int8 x int8 -> i32, K = 16 or 32          mma::F16<16>   f16 x f16 -> f32, K = 8 or 16
//
//     Tile::A a = Tile::load_a(p, stride);    // 16 rows of K values in shared memory, `stride` BYTES apart
//     Tile::B b = Tile::load_b(p, stride);    // F16<16> also: load_b_transposed, from K rows of 16 columns
//     Tile::Acc c = Tile::zero();             // ELEMENTS = 256 / WARP_SIZE of the 256 values
//     Tile::mac(c, a, b);                     // a wave operation
//
// `p` and `stride` are multiples of 16 bytes; an odd multiple as stride avoids bank conflicts. Element e of a lane's
// accumulator is C[row(e), col(e)], the same for both kinds of tile: a lane has ROWS rows and COLS columns of C,
// lane_row(row_index(e)) and lane_col(col_index(e)).
//
// The instructions determine which values of A and B a lane holds. The order of k is free as long as A and B agree.
// Layouts, with r = lane % 16 and h = lane / 16:
//
// GFX11: v_wmma_i32_16x16x16_iu8, v_wmma_f32_16x16x16_f16 (RDNA3 ISA guide, 7.9). A lane: row r, all 16 k. B lane:
// column r, all 16 k. Lanes 16-31 repeat 0-15. C element e: row 2e + h, column r.
//
// GFX12: the same names (RDNA4 ISA guide, 7.12). A, B lane: row or column r, k of its half: 8h + 0..7. C element e: row
// 8h + e, column r.
//
// CDNA: v_mfma_i32_16x16x32_i8 (gfx942), v_mfma_i32_16x16x16i8 (gfx908, gfx90a), v_mfma_f32_16x16x16f16 (CDNA3 ISA
// guide, 7.1). 64 lanes. A, B lane: row or column r, k of its quarter h: 8h + 0..7, or 4h + 0..3. C element e: row 4h +
// e, column r. gfx906 has none: dot product instructions with the same C.
//
// NVIDIA: mma.sync.m16n8k32 and m16n8k16 .s8, m16n8k16 and m16n8k8 .f16 (PTX ISA, 9.7.14). With g = lane / 4, q = lane % 4 and
// words of 4 bytes: A: rows g, g + 8 at words q, then the same at words q + 4. B: column g, words q and q + 4. C: rows
// g, g, g + 8, g + 8 at columns 2q, 2q + 1 twice. Two instructions for 16 columns. (Half of K: words q only.)
//
// GFX10: none, dot product instructions. Lane: 4 rows 4 (lane / 8) + 0..3 by 2 columns lane % 8 + 0, 8.
#pragma once
#include "gpu.h"
#if defined(GPU_HOST)
#include "mma_host.h"
#endif

#if defined(GPU_GFX10) || defined(__gfx906__)
#define MMA_DOT 1
#endif

namespace mma {

constexpr u32 ELEMENTS = 256 / WARP_SIZE;

#if defined(GPU_NVIDIA)
constexpr u32 ROWS = 2, COLS = 4;
DEV u32 lane_row(u32 i) { return lane() / 4 + 8 * i; }
DEV u32 lane_col(u32 i) { return lane() % 4 * 2 + i % 2 + i / 2 * 8; }
DEV constexpr u32 row_index(u32 e) { return e / 2 % 2; }
DEV constexpr u32 col_index(u32 e) { return e / 4 * 2 + e % 2; }
#else
#if defined(GPU_GFX11)
constexpr u32 ROWS = 8, COLS = 1;
DEV u32 lane_row(u32 i) { return 2 * i + lane() / 16; }
DEV u32 lane_col(u32) { return lane() % 16; }
#elif defined(GPU_GFX12)
constexpr u32 ROWS = 8, COLS = 1;
DEV u32 lane_row(u32 i) { return i + lane() / 16 * 8; }
DEV u32 lane_col(u32) { return lane() % 16; }
#elif defined(GPU_CDNA)
constexpr u32 ROWS = 4, COLS = 1;
DEV u32 lane_row(u32 i) { return i + lane() / 16 * 4; }
DEV u32 lane_col(u32) { return lane() % 16; }
#else
constexpr u32 ROWS = 4, COLS = 2;
DEV u32 lane_row(u32 i) { return i + lane() / 8 * 4; }
DEV u32 lane_col(u32 i) { return lane() % 8 + 8 * i; }
#endif
DEV constexpr u32 row_index(u32 e) { return e / COLS; }
DEV constexpr u32 col_index(u32 e) { return e % COLS; }
#endif
static_assert(ROWS * COLS == ELEMENTS, "a lane's part of the tile");

DEV u32 row(u32 e) { return lane_row(row_index(e)); }
DEV u32 col(u32 e) { return lane_col(col_index(e)); }

// Per-row numbers of a tile are read fastest if those of a lane's ROWS rows are adjacent: the number of row r is in
// slot row_slot(r), and the lane reads ROWS of them from first_row_slot(). The same for columns.
#if defined(GPU_NVIDIA)
DEV u32 row_slot(u32 r) { return r % 8 * 2 + r / 8; }
DEV u32 col_slot(u32 c) { return c % 8 / 2 * 4 + c / 8 * 2 + c % 2; }
DEV u32 first_row_slot() { return lane() / 4 * ROWS; }
DEV u32 first_col_slot() { return lane() % 4 * COLS; }
#elif defined(GPU_GFX10)
DEV u32 row_slot(u32 r) { return r; }
DEV u32 col_slot(u32 c) { return c % 8 * 2 + c / 8; }
DEV u32 first_row_slot() { return lane() / 8 * ROWS; }
DEV u32 first_col_slot() { return lane() % 8 * COLS; }
#else
#if defined(GPU_GFX11)
DEV u32 row_slot(u32 r) { return r % 2 * 8 + r / 2; }
#else
DEV u32 row_slot(u32 r) { return r; }
#endif
DEV u32 col_slot(u32 c) { return c; }
DEV u32 first_row_slot() { return lane() / 16 * ROWS; }
DEV u32 first_col_slot() { return lane() % 16; }
#endif

template <u32 N> struct Words {
    u32 v[N];
};
template <typename T> struct Accumulator {
    T v[ELEMENTS];
};

// Loads N words from shared memory; N is 1, 2 or a multiple of 4; `p` is aligned to N words, up to 16 bytes.
template <u32 N> DEV void load_words(u32* to, const void* p) {
    if constexpr (N % 4 == 0) {
#pragma unroll
        for (u32 i = 0; i < N; i += 4) {
            u32x4 w = load16((const u8*)p + 4 * i);
            for (u32 j = 0; j < 4; j++) to[i + j] = w.v[j];
        }
    } else if constexpr (N == 2) {
        u32x2 w = *(const u32x2*)p;
        to[0] = w.v[0];
        to[1] = w.v[1];
    } else {
        static_assert(N == 1, "1, 2 or a multiple of 4");
        to[0] = *(const u32*)p;
    }
}

#if defined(GPU_NVIDIA)
#if defined(GPU_NV)
// Loads 8 rows of 16 bytes per word of the result. Lane 8m + i gives the address of row i of word m.
template <u32 N> DEV Words<N> load_matrices(const void* p) {
    Words<N> w;
    u32 at = (u32)(u64)(__attribute__((address_space(3))) const void*)p;
    if constexpr (N == 4)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(w.v[0]), "=r"(w.v[1]), "=r"(w.v[2]), "=r"(w.v[3])
                     : "r"(at)
                     : "memory");
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
                     : "=r"(w.v[0]), "=r"(w.v[1])
                     : "r"(at)
                     : "memory");
    return w;
}
DEV Words<4> load_matrices_transposed(const void* p) {
    Words<4> w;
    u32 at = (u32)(u64)(__attribute__((address_space(3))) const void*)p;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(w.v[0]), "=r"(w.v[1]), "=r"(w.v[2]), "=r"(w.v[3])
                 : "r"(at)
                 : "memory");
    return w;
}
#else
template <u32 N> DEV Words<N> load_matrices(const void* p) { return host::load_matrices<Words<N>, N>(p); }
DEV Words<4> load_matrices_transposed(const void* p) { return host::load_matrices_transposed<Words<4>>(p); }
#endif

// Rows 0-7 and 8-15 of the first 16 bytes; with N = 4 also of the next 16. The same for A and B.
template <u32 N> DEV Words<N> load_rows(const void* p, u32 stride) {
    return load_matrices<N>((const u8*)p + lane() % 16 * stride + (N == 4 ? lane() / 16 * 16 : 0));
}
DEV Words<4> load_columns(const void* p, u32 stride) {
    return load_matrices_transposed((const u8*)p + (lane() % 8 + lane() / 16 * 8) * stride + lane() / 8 % 2 * 16);
}

#if defined(GPU_NV)
DEV void mma_s8(i32* c, Words<4> a, u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a.v[0]), "r"(a.v[1]), "r"(a.v[2]), "r"(a.v[3]), "r"(b0), "r"(b1));
}
DEV void mma_s8(i32* c, Words<2> a, u32 b0) {
    asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a.v[0]), "r"(a.v[1]), "r"(b0));
}
// f32 numbers, of whose mantissas 11 bits count.
DEV void mma_tf32(float* c, Words<4> a, u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a.v[0]), "r"(a.v[1]), "r"(a.v[2]), "r"(a.v[3]), "r"(b0), "r"(b1));
}
DEV void mma_f16(float* c, Words<4> a, u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a.v[0]), "r"(a.v[1]), "r"(a.v[2]), "r"(a.v[3]), "r"(b0), "r"(b1));
}
DEV void mma_f16(float* c, Words<2> a, u32 b0) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a.v[0]), "r"(a.v[1]), "r"(b0));
}
#else
DEV void mma_s8(i32* c, Words<4> a, u32 b0, u32 b1) {
    u32 b[2] = {b0, b1};
    host::mma_m16n8<i8, 2>(c, a.v, b);
}
DEV void mma_s8(i32* c, Words<2> a, u32 b0) { host::mma_m16n8<i8, 1>(c, a.v, &b0); }
DEV void mma_tf32(float* c, Words<4> a, u32 b0, u32 b1) {
    constexpr u32 COUNTS = 0xffffe000u;
    u32 b[2] = {b0 & COUNTS, b1 & COUNTS};
    for (u32& word : a.v) word &= COUNTS;
    host::mma_m16n8<float, 2>(c, a.v, b);
}
DEV void mma_f16(float* c, Words<4> a, u32 b0, u32 b1) {
    u32 b[2] = {b0, b1};
    host::mma_m16n8<f16, 2>(c, a.v, b);
}
DEV void mma_f16(float* c, Words<2> a, u32 b0) { host::mma_m16n8<f16, 1>(c, a.v, &b0); }
#endif

template <u32 K> struct I8 {
    using A = Words<K / 8>;
    using B = Words<K / 8>;
    using Acc = Accumulator<i32>;
    DEV_MEMBER static A load_a(const void* p, u32 stride) { return load_rows<K / 8>(p, stride); }
    DEV_MEMBER static B load_b(const void* p, u32 stride) { return load_rows<K / 8>(p, stride); }
    DEV_MEMBER static void mac(Acc& c, const A& a, const B& b) {
#pragma unroll
        for (u32 n = 0; n < 2; n++) {
            if constexpr (K == 32) mma_s8(c.v + 4 * n, a, b.v[n], b.v[2 + n]);
            else mma_s8(c.v + 4 * n, a, b.v[n]);
        }
    }
    // Sums that start as the bits of 1.5 * 2^23 read as floats that are too large by exactly that, as long as the sums
    // stay under 2^22: one subtraction at full rate replaces a conversion at a quarter of the rate.
    DEV_MEMBER static Acc start() {
        Acc c;
        for (u32 e = 0; e < ELEMENTS; e++) c.v[e] = 0x4b400000;
        return c;
    }
    DEV_MEMBER static float value(i32 started) { return bits<float>(started) - 12582912.0f; }
    DEV_MEMBER static Acc zero() { return Acc{}; }
};

template <u32 K> struct F16 {
    using A = Words<K / 4>;
    using B = Words<K / 4>;
    using Acc = Accumulator<float>;
    DEV_MEMBER static A load_a(const void* p, u32 stride) { return load_rows<K / 4>(p, stride); }
    DEV_MEMBER static B load_b(const void* p, u32 stride) { return load_rows<K / 4>(p, stride); }
    DEV_MEMBER static B load_b_transposed(const void* p, u32 stride) { return load_columns(p, stride); }
    DEV_MEMBER static void mac(Acc& c, const A& a, const B& b) {
#pragma unroll
        for (u32 n = 0; n < 2; n++) {
            if constexpr (K == 16) mma_f16(c.v + 4 * n, a, b.v[n], b.v[2 + n]);
            else mma_f16(c.v + 4 * n, a, b.v[n]);
        }
    }
    DEV_MEMBER static Acc zero() { return Acc{}; }
};

#else // not NVIDIA

#if defined(MMA_DOT)
// Whole rows of A and of B that a lane holds.
constexpr u32 A_ROWS = ROWS, B_ROWS = COLS;
DEV u32 operand_row_a(u32 i) { return lane_row(i); }
DEV u32 operand_row_b(u32 i) { return lane_col(i); }
constexpr u32 K_PARTS = 1;
#else
constexpr u32 A_ROWS = 1, B_ROWS = 1;
DEV u32 operand_row_a(u32) { return lane() % 16; }
DEV u32 operand_row_b(u32) { return lane() % 16; }
// Groups of lanes with different k.
#if defined(GPU_GFX11)
constexpr u32 K_PARTS = 1;
#else
constexpr u32 K_PARTS = WARP_SIZE / 16;
#endif
#endif

// Words of a lane's part of a row with BYTES of k.
template <u32 BYTES> constexpr u32 PART_WORDS = BYTES / 4 / K_PARTS;

DEV i32 dot_words(i32 c, u32 a, u32 b) { return dot4(a, b, c); }
DEV float dot_words(float c, u32 a, u32 b) {
#if defined(GPU_AMD) && defined(MMA_DOT)
    typedef f16 f16_vec2 __attribute__((ext_vector_type(2)));
    return __builtin_amdgcn_fdot2(bits<f16_vec2>(a), bits<f16_vec2>(b), c, false);
#else
    return c + h2f((u16)a) * h2f((u16)b) + h2f((u16)(a >> 16)) * h2f((u16)(b >> 16));
#endif
}

#if defined(GPU_AMD)
typedef i32 i32_vec2 __attribute__((ext_vector_type(2)));
typedef i32 i32_vec4 __attribute__((ext_vector_type(4)));
typedef i32 i32_vec8 __attribute__((ext_vector_type(8)));
typedef float f32_vec4 __attribute__((ext_vector_type(4)));
typedef float f32_vec8 __attribute__((ext_vector_type(8)));
typedef f16 f16_vec4 __attribute__((ext_vector_type(4)));
typedef f16 f16_vec8 __attribute__((ext_vector_type(8)));
typedef f16 f16_vec16 __attribute__((ext_vector_type(16)));
#endif

// One instruction with N words of each operand.
#if defined(MMA_DOT)
#elif defined(GPU_HOST)
template <u32 N> DEV void multiply(Accumulator<i32>& c, Words<N> a, Words<N> b) {
    host::mma_16x16<i8, N>(c.v, a.v, b.v);
}
template <u32 N> DEV void multiply(Accumulator<float>& c, Words<N> a, Words<N> b) {
    host::mma_16x16<f16, N>(c.v, a.v, b.v);
}
#elif defined(GPU_GFX11)
DEV void multiply(Accumulator<i32>& c, Words<4> a, Words<4> b) {
    c = bits<Accumulator<i32>>(__builtin_amdgcn_wmma_i32_16x16x16_iu8_w32(true, bits<i32_vec4>(a), true,
                                                                          bits<i32_vec4>(b), bits<i32_vec8>(c), false));
}
DEV void multiply(Accumulator<float>& c, Words<8> a, Words<8> b) {
    c = bits<Accumulator<float>>(
        __builtin_amdgcn_wmma_f32_16x16x16_f16_w32(bits<f16_vec16>(a), bits<f16_vec16>(b), bits<f32_vec8>(c)));
}
#elif defined(GPU_GFX12)
DEV void multiply(Accumulator<i32>& c, Words<2> a, Words<2> b) {
    c = bits<Accumulator<i32>>(__builtin_amdgcn_wmma_i32_16x16x16_iu8_w32_gfx12(
        true, bits<i32_vec2>(a), true, bits<i32_vec2>(b), bits<i32_vec8>(c), false));
}
DEV void multiply(Accumulator<float>& c, Words<4> a, Words<4> b) {
    c = bits<Accumulator<float>>(
        __builtin_amdgcn_wmma_f32_16x16x16_f16_w32_gfx12(bits<f16_vec8>(a), bits<f16_vec8>(b), bits<f32_vec8>(c)));
}
#else
#if defined(__gfx942__) || defined(__gfx950__)
DEV void multiply(Accumulator<i32>& c, Words<2> a, Words<2> b) {
    c = bits<Accumulator<i32>>(
        __builtin_amdgcn_mfma_i32_16x16x32_i8(bits<long>(a), bits<long>(b), bits<i32_vec4>(c), 0, 0, 0));
}
#endif
DEV void multiply(Accumulator<i32>& c, Words<1> a, Words<1> b) {
#if defined(__gfx942__) || defined(__gfx950__)
    // No instruction for 16 values of k: the other 16 are zeros.
    multiply(c, Words<2>{a.v[0], 0}, Words<2>{b.v[0], 0});
#else
    c = bits<Accumulator<i32>>(
        __builtin_amdgcn_mfma_i32_16x16x16i8((i32)a.v[0], (i32)b.v[0], bits<i32_vec4>(c), 0, 0, 0));
#endif
}
DEV void multiply(Accumulator<float>& c, Words<2> a, Words<2> b) {
    c = bits<Accumulator<float>>(
        __builtin_amdgcn_mfma_f32_16x16x16f16(bits<f16_vec4>(a), bits<f16_vec4>(b), bits<f32_vec4>(c), 0, 0, 0));
}
#endif

#if !defined(MMA_DOT) && !defined(GPU_HOST)
// Half of an instruction's values of k: the others are zeros.
DEV void multiply(Accumulator<float>& c, Words<PART_WORDS<16>> a, Words<PART_WORDS<16>> b) {
    Words<PART_WORDS<32>> x = {}, y = {};
    for (u32 w = 0; w < PART_WORDS<16>; w++) x.v[w] = a.v[w], y.v[w] = b.v[w];
    multiply(c, x, y);
}
#endif

// Words of an operand per instruction.
template <typename T, u32 BYTES> constexpr u32 STEP_WORDS = PART_WORDS<BYTES>;
#if defined(GPU_GFX11) || defined(GPU_GFX12)
template <> constexpr u32 STEP_WORDS<i32, 32> = PART_WORDS<16>;
#elif defined(GPU_CDNA) && !defined(MMA_DOT) && !defined(__gfx942__) && !defined(__gfx950__) && !defined(GPU_HOST)
template <> constexpr u32 STEP_WORDS<i32, 32> = 1;
#endif

// T: type of the sums; BYTES: bytes of k per row of an operand.
template <typename T, u32 BYTES> struct Tile {
    static constexpr u32 N = PART_WORDS<BYTES>;
    using A = Words<N * A_ROWS>;
    using B = Words<N * B_ROWS>;
    using Acc = Accumulator<T>;
    DEV_MEMBER static u32 k_word() { return K_PARTS == 1 ? 0 : lane() / 16 * N; }
    DEV_MEMBER static A load_a(const void* p, u32 stride) {
        A a;
#pragma unroll
        for (u32 i = 0; i < A_ROWS; i++)
            load_words<N>(a.v + N * i, (const u8*)p + operand_row_a(i) * stride + 4 * k_word());
        return a;
    }
    DEV_MEMBER static B load_b(const void* p, u32 stride) {
        B b;
#pragma unroll
        for (u32 i = 0; i < B_ROWS; i++)
            load_words<N>(b.v + N * i, (const u8*)p + operand_row_b(i) * stride + 4 * k_word());
        return b;
    }
    DEV_MEMBER static void mac(Acc& c, const A& a, const B& b) {
#if defined(MMA_DOT)
#pragma unroll
        for (u32 e = 0; e < ELEMENTS; e++)
#pragma unroll
            for (u32 w = 0; w < N; w++)
                c.v[e] = dot_words(c.v[e], a.v[N * row_index(e) + w], b.v[N * col_index(e) + w]);
#else
        constexpr u32 STEP = STEP_WORDS<T, BYTES>;
#pragma unroll
        for (u32 at = 0; at < N; at += STEP) {
            Words<STEP> x, y;
#pragma unroll
            for (u32 w = 0; w < STEP; w++) {
                x.v[w] = a.v[at + w];
                y.v[w] = b.v[at + w];
            }
            multiply(c, x, y);
        }
#endif
    }
    DEV_MEMBER static Acc zero() { return Acc{}; }
};

template <u32 K> struct I8 : Tile<i32, K> {
    static_assert(K == 16 || K == 32, "as the instructions");
    // Accumulators whose elements are converted by value().
    DEV_MEMBER static Accumulator<i32> start() { return Accumulator<i32>{}; }
    DEV_MEMBER static float value(i32 started) { return (float)started; }
};

template <u32 K> struct F16 : Tile<float, 2 * K> {
    static_assert(K == 8 || K == 16, "as the instructions, or half");
    using Base = Tile<float, 2 * K>;
    DEV_MEMBER static typename Base::B load_b_transposed(const void* p, u32 stride) {
        typename Base::B b;
#pragma unroll
        for (u32 i = 0; i < B_ROWS; i++)
#pragma unroll
            for (u32 w = 0; w < Base::N; w++) {
                const u8* at = (const u8*)p + 2 * (Base::k_word() + w) * stride + 2 * operand_row_b(i);
                b.v[Base::N * i + w] = *(const u16*)at | (u32)(*(const u16*)(at + stride)) << 16;
            }
        return b;
    }
};
#endif

} // namespace mma
