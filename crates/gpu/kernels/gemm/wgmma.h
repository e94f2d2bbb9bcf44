// Hopper's asynchronous matrix units (PTX ISA, 9.7.15), for a warpgroup of 128 threads.
//
//     C[64, N] += A[64, 16] B[N, 16]^T     f16 x f16 -> f32
//
// A is in registers: with g = lane % 32 / 4 and q = lane % 4, wave w has rows 16 w + g and 16 w + g + 8, words q and q
// + 4 of each (rows g, g + 8 at word q, then both at word q + 4), as in mma.h. C: element e is row 16 w + g + 8 (e / 2
// % 2), column 8 (e / 4) + 2 q + e % 2.
//
// B is in shared memory, in blocks of 8 rows by 16 bytes without swizzle ("core matrices"). A step of 64 values of k is
// [N / 8][4][2][8] pieces of 16 bytes: eight rows, 16 values of k, 8 of these, a row.
#pragma once
#include "mma.h"

namespace wgmma {

constexpr u32 THREADS = 128;
// Values of k of a step, and bytes of a step of 8 rows.
constexpr u32 STEP = 64, OCTET_BYTES = 1024;
// Bytes between 16 values of k and the next, between both halves of these, and between eight rows and the next.
constexpr u32 ALONG_STEP = 256, ALONG_K = 128, ALONG_N = OCTET_BYTES;

#if defined(GPU_NV)
DEV u32 shared_address(const void* p) { return (u32)(u64)(__attribute__((address_space(3))) const void*)p; }

// Before the first mac of a group: registers that were written are read by the units.
DEV void begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
// Ends a group of macs.
DEV void end() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Waits until at most LATER groups are under way. Until then their operands stay in place.
template <u32 LATER> DEV void wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" : : "n"(LATER) : "memory"); }

// The first address of operands B, in units of 16 bytes, and the distances in its other bits. In a cluster the upper
// bits of an address are the block's rank. All lanes of a wave must have the same one: the units read it from uniform
// registers.
struct Place {
    u64 first;
};
DEV Place place(const void* b) {
    const u32 first = shuffle(shared_address(b) / 16 % (1u << 14), 0);
    return {first | (ALONG_K / 16) << 16 | (u64)(ALONG_N / 16) << 32};
}
DEV u64 descriptor(Place b, u32 offset) { return b.first + offset / 16; }

#define TEN(T) "%" T "0, %" T "1, %" T "2, %" T "3, %" T "4, %" T "5, %" T "6, %" T "7, %" T "8, %" T "9, "
#define EIGHT(I)                                                                                                       \
    "+f"(c[I]), "+f"(c[I + 1]), "+f"(c[I + 2]), "+f"(c[I + 3]), "+f"(c[I + 4]), "+f"(c[I + 5]), "+f"(c[I + 6]),        \
        "+f"(c[I + 7])
#define SIXTEEN(I) EIGHT(I), EIGHT(I + 8)
#define FOUR_A "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3])
#define MAC(N, REGISTERS, A, B, ...)                                                                                   \
    DEV void mac(float(&c)[N / 2], const u32(&a)[4], Place b, u32 offset) {                                            \
        asm volatile("wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.f16.f16 {" REGISTERS "}, {" A "}, " B             \
                     ", 1, 1, 1, 0;"                                                                                   \
                     : __VA_ARGS__                                                                                     \
                     : FOUR_A, "l"(descriptor(b, offset))                                                              \
                     : "memory");                                                                                      \
    }
MAC(32, TEN("") "%10, %11, %12, %13, %14, %15", "%16, %17, %18, %19", "%20", SIXTEEN(0))
MAC(64, TEN("") TEN("1") TEN("2") "%30, %31", "%32, %33, %34, %35", "%36", SIXTEEN(0), SIXTEEN(16))
MAC(128, TEN("") TEN("1") TEN("2") TEN("3") TEN("4") TEN("5") "%60, %61, %62, %63", "%64, %65, %66, %67", "%68",
    SIXTEEN(0), SIXTEEN(16), SIXTEEN(32), SIXTEEN(48))
MAC(256,
    TEN("") TEN("1") TEN("2") TEN("3") TEN("4") TEN("5") TEN("6") TEN("7") TEN("8") TEN("9") TEN("10")
        TEN("11") "%120, %121, %122, %123, %124, %125, %126, %127",
    "%128, %129, %130, %131", "%132", SIXTEEN(0), SIXTEEN(16), SIXTEEN(32), SIXTEEN(48), SIXTEEN(64), SIXTEEN(80),
    SIXTEEN(96), SIXTEEN(112))
#undef MAC
#undef FOUR_A
#undef SIXTEEN
#undef EIGHT
#undef TEN
#else
// The emulator multiplies at once.
DEV void begin() {}
DEV void end() {}
template <u32 LATER> DEV void wait() {}
struct Place {
    const u8* first;
};
DEV Place place(const void* b) { return {(const u8*)b}; }
template <u32 M> DEV void mac(float (&c)[M], const u32 (&a)[4], Place b, u32 offset) {
    host::wgmma_f16<2 * M>(c, a, b.first + offset);
}
#endif

} // namespace wgmma
