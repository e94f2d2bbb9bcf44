// Products of Hopper's matrix units with operands in shared memory, for a warpgroup of 128 threads; see gemm/wgmma.h.
//
//     C[64, N] += A[64, 16] B[16, N]     f16 x f16 -> f32
//
// Rows of f16 lie in panels of 64 values, 128 bytes a row, whose pieces of 16 bytes are exchanged: that of values 8 i of
// row r is at place i ^ r % 8 ("128-byte swizzle"). So eight lanes that write neighbours of a row, or rows of a column,
// reach all banks. A row is one of A; or a column of B, whose k lies along it; or a value of k of B, whose columns lie
// along it ("transposed").
#pragma once
#include "gemm/wgmma.h"

namespace wgmma {

constexpr u32 PANEL = 64, ROW_BYTES = 128, EIGHT_ROWS = 8 * ROW_BYTES;
DEV u32 exchange(u32 offset) { return offset ^ (offset / ROW_BYTES % 8) * 16; }

// N rows of DIM values in shared memory, multiples of 8 and 64, from an address that is a multiple of 1,024.
template <u32 N, u32 DIM> struct Rows {
    static constexpr u32 PANEL_BYTES = N * ROW_BYTES, BYTES = N * DIM * 2;
    static_assert(N % 8 == 0 && DIM % PANEL == 0, "whole panels");
    u8* memory;

    static DEV_MEMBER u32 offset(u32 row, u32 value) {
        return value / PANEL * PANEL_BYTES + row * ROW_BYTES + value % PANEL * 2;
    }
    // Of a value; up to eight from a multiple of 8 on are neighbours.
    DEV_MEMBER u8* at(u32 row, u32 value) const { return memory + exchange(offset(row, value)); }
};

// An operand in shared memory, and where in it a product begins. Bytes between panels.
struct Operand {
    u8* memory;
    u32 offset, panel_bytes;
};
// From a row, a multiple of 8, and 16 values along rows on.
template <u32 N, u32 DIM> DEV Operand along(const Rows<N, DIM>& rows, u32 row, u32 k) {
    return {rows.memory, rows.offset(row, k), rows.PANEL_BYTES};
}
// From 16 rows and a column, a multiple of 64, on.
template <u32 N, u32 DIM> DEV Operand transposed(const Rows<N, DIM>& rows, u32 k, u32 column) {
    return {rows.memory, rows.offset(k, column), rows.PANEL_BYTES};
}

#if defined(GPU_NV)
DEV u64 descriptor(const Operand& x) {
    const u32 first = shared_address(x.memory) / 16 + x.offset / 16;
    return first | (x.panel_bytes / 16) << 16 | (u64)(EIGHT_ROWS / 16 | 1u << 30) << 32;
}

DEV u8* aligned(u8* p) { return p + (0 - shared_address(p)) % EIGHT_ROWS; }

// What this thread wrote to shared memory is seen by the units after a barrier.
DEV void publish() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

#define TEN(T) "%" T "0, %" T "1, %" T "2, %" T "3, %" T "4, %" T "5, %" T "6, %" T "7, %" T "8, %" T "9, "
#define EIGHT(I)                                                                                                       \
    "+f"(c[I]), "+f"(c[I + 1]), "+f"(c[I + 2]), "+f"(c[I + 3]), "+f"(c[I + 4]), "+f"(c[I + 5]), "+f"(c[I + 6]),        \
        "+f"(c[I + 7])
#define SIXTEEN(I) EIGHT(I), EIGHT(I + 8)
#define THIRTY_TWO(I) SIXTEEN(I), SIXTEEN(I + 16)
// The instruction of N columns with the registers of C, and the places of up to five others.
#define PRODUCTS(N, REGISTERS, A0, A1, A2, A3, B, ...)                                                                 \
    DEV void product(float(&c)[N / 2], const Operand& a, const Operand& b) {                                           \
        asm volatile("wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.f16.f16 {" REGISTERS "}, " A0 ", " A1             \
                     ", 1, 1, 1, 0, 0;"                                                                                \
                     : __VA_ARGS__                                                                                     \
                     : "l"(descriptor(a)), "l"(descriptor(b))                                                          \
                     : "memory");                                                                                      \
    }                                                                                                                  \
    DEV void product_transposed(float(&c)[N / 2], const Operand& a, const Operand& b) {                                \
        asm volatile("wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.f16.f16 {" REGISTERS "}, " A0 ", " A1             \
                     ", 1, 1, 1, 0, 1;"                                                                                \
                     : __VA_ARGS__                                                                                     \
                     : "l"(descriptor(a)), "l"(descriptor(b))                                                          \
                     : "memory");                                                                                      \
    }                                                                                                                  \
    DEV void product_transposed(float(&c)[N / 2], const u32(&a)[4], const Operand& b) {                                \
        asm volatile("wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.f16.f16 {" REGISTERS "}, {" A0 ", " A1 ", " A2     \
                     ", " A3 "}, " B ", 1, 1, 1, 1;"                                                                   \
                     : __VA_ARGS__                                                                                     \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(descriptor(b))                                  \
                     : "memory");                                                                                      \
    }
PRODUCTS(32, TEN("") "%10, %11, %12, %13, %14, %15", "%16", "%17", "%18", "%19", "%20", SIXTEEN(0))
PRODUCTS(64, TEN("") TEN("1") TEN("2") "%30, %31", "%32", "%33", "%34", "%35", "%36", THIRTY_TWO(0))
PRODUCTS(128, TEN("") TEN("1") TEN("2") TEN("3") TEN("4") TEN("5") "%60, %61, %62, %63", "%64", "%65", "%66", "%67",
         "%68", THIRTY_TWO(0), THIRTY_TWO(32))
PRODUCTS(256,
         TEN("") TEN("1") TEN("2") TEN("3") TEN("4") TEN("5") TEN("6") TEN("7") TEN("8") TEN("9") TEN("10")
             TEN("11") "%120, %121, %122, %123, %124, %125, %126, %127",
         "%128", "%129", "%130", "%131", "%132", THIRTY_TWO(0), THIRTY_TWO(32), THIRTY_TWO(64), THIRTY_TWO(96))
#undef PRODUCTS
#undef THIRTY_TWO
#undef SIXTEEN
#undef EIGHT
#undef TEN
#else
DEV u8* aligned(u8* p) { return p; }
DEV void publish() {}

// The emulator multiplies at once.
#pragma clang attribute push(__attribute__((disable_sanitizer_instrumentation)), apply_to = function)
static const u8* piece(const Operand& x, u32 offset) { return x.memory + exchange(x.offset + offset); }
// Sixteen values of k of a row, or of a column whose k lies along it.
static void along_row(const Operand& x, u32 row, float* to) {
    for (u32 k = 0; k < 16; k += 8) host::widen<f16, 8>(host::checked<16>(piece(x, row * ROW_BYTES + k * 2)), to + k);
}
// Sixteen values of k of a column, a multiple of 2, and of the next one.
static void across_rows(const Operand& x, u32 column, float (*to)[16]) {
    for (u32 k = 0; k < 16; k++) {
        const u32 offset = column / PANEL * x.panel_bytes + k * ROW_BYTES + column % PANEL * 2;
        const f16* pair = (const f16*)host::checked<4>(piece(x, offset));
        for (u32 i = 0; i < 2; i++) to[i][k] = (float)pair[i];
    }
}
template <bool TRANSPOSED, u32 M> static void multiply(float (&c)[M], const float (*rows)[16], const Operand& b) {
    float cols[2][16];
    for (u32 e = 0; e < M; e += 4) {
        const u32 column = e / 4 * 8 + lane() % 4 * 2;
        if constexpr (TRANSPOSED) across_rows(b, column, cols);
        else
            for (u32 i = 0; i < 2; i++) along_row(b, column + i, cols[i]);
        host::add_products<16>(c + e, rows, cols);
    }
}
template <bool TRANSPOSED, u32 M> static void multiply(float (&c)[M], const Operand& a, const Operand& b) {
    float rows[2][16];
    for (u32 i = 0; i < 2; i++) along_row(a, wave() % 4 * 16 + lane() / 4 + 8 * i, rows[i]);
    multiply<TRANSPOSED>(c, rows, b);
}
template <u32 M> static void product(float (&c)[M], const Operand& a, const Operand& b) { multiply<false>(c, a, b); }
template <u32 M> static void product_transposed(float (&c)[M], const Operand& a, const Operand& b) {
    multiply<true>(c, a, b);
}
template <u32 M> static void product_transposed(float (&c)[M], const u32 (&a)[4], const Operand& b) {
    float rows[2][16];
    host::gather_rows(a, rows, __LINE__);
    multiply<true>(c, rows, b);
}
#pragma clang attribute pop
#endif

} // namespace wgmma
