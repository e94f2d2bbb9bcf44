// Hopper's asynchronous matrix units and copies (PTX ISA, 9.7.9 and 9.7.15), for a warpgroup of 128 threads.
//
//     C[64, N] += A[64, 16] B[N, 16]^T     f16 x f16 -> f32
//
// A is in registers: with g = lane % 32 / 4 and q = lane % 4, wave w has rows 16 w + g and 16 w + g + 8, words q and q
// + 4 of each (rows g, g + 8 at word q, then both at word q + 4), as in mma.h. C: element e is row 16 w + g + 8 (e / 2
// % 2), column 8 (e / 4) + 2 q + e % 2.
//
// B is in shared memory, in blocks of 8 rows by 16 bytes without swizzle ("core matrices"): [k / 16][N / 8][2][8]
// pieces of 16 bytes. B stays in place until wait() returns.
#pragma once
#include "mma.h"

namespace wgmma {

constexpr u32 THREADS = 128;
// Distances in bytes between blocks along k, and along N.
constexpr u32 ALONG_K = 128, ALONG_N = 256;

// Where piece k8 (8 values of k) of a row of B is. B has N rows.
template <u32 N> DEV u32 place(u32 row, u32 k8) {
    return k8 / 2 * (N * 32) + row / 8 * ALONG_N + k8 % 2 * ALONG_K + row % 8 * 16;
}

#if defined(GPU_NV)
DEV u32 shared_address(const void* p) { return (u32)(u64)(__attribute__((address_space(3))) const void*)p; }

// Begins to copy 16 bytes from device memory to shared memory, or to fill with zeros if not `valid`.
DEV void copy16(void* to, const void* from, bool valid) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :
                 : "r"(shared_address(to)), "l"(from), "r"(valid ? 16 : 0)
                 : "memory");
}
// Ends a group of copies.
DEV void end_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until at most LATER groups of this thread's copies are under way. After the next barrier, the matrix units see
// those of all threads that are done.
template <u32 LATER> DEV void wait_for_copies() {
    asm volatile("cp.async.wait_group %0;\nfence.proxy.async.shared::cta;" : : "n"(LATER) : "memory");
}

// Before the first mac of a group: registers that were written are read by the units.
DEV void begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
// Ends a group of macs, and waits until all are done.
DEV void wait() { asm volatile("wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;" ::: "memory"); }

DEV u64 descriptor(const void* b) {
    return (u64)((shared_address(b) & 0x3ffff) >> 4) | (u64)(ALONG_K >> 4) << 16 | (u64)(ALONG_N >> 4) << 32;
}

// N = 64.
DEV void mac(float (&c)[32], const u32 (&a)[4], const void* b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 "
                 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
                 "{%32, %33, %34, %35}, %36, 1, 1, 1, 0;"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]), "+f"(c[4]), "+f"(c[5]), "+f"(c[6]), "+f"(c[7]),
                   "+f"(c[8]), "+f"(c[9]), "+f"(c[10]), "+f"(c[11]), "+f"(c[12]), "+f"(c[13]), "+f"(c[14]), "+f"(c[15]),
                   "+f"(c[16]), "+f"(c[17]), "+f"(c[18]), "+f"(c[19]), "+f"(c[20]), "+f"(c[21]), "+f"(c[22]),
                   "+f"(c[23]), "+f"(c[24]), "+f"(c[25]), "+f"(c[26]), "+f"(c[27]), "+f"(c[28]), "+f"(c[29]),
                   "+f"(c[30]), "+f"(c[31])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(descriptor(b))
                 : "memory");
}
#else
// The emulator copies and multiplies at once.
DEV void copy16(void* to, const void* from, bool valid) { store16(to, valid ? load16(from) : u32x4{}); }
DEV void end_copies() {}
template <u32 LATER> DEV void wait_for_copies() {}
DEV void begin() {}
DEV void wait() {}
template <u32 N> DEV void mac(float (&c)[N], const u32 (&a)[4], const void* b) { host::wgmma_f16<2 * N>(c, a, b); }
#endif

} // namespace wgmma
