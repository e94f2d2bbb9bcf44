// A ring of slots in shared memory: the first wave of a block begins copies from device memory that the others wait for
// (PTX ISA, 9.7.9.25 and 9.7.13.15). All waves go through the same sequence of fills and waits; `pass` counts how
// often the sequence has gone around the ring.
//
// Blocks of a cluster go through it together: each copies its share of a slot's bytes to all of them, and fills a slot
// when all have read it.
#pragma once
#include "gemm/wgmma.h"

// The slots, and behind them two barriers for each: whether it is full, and whether it is free.
template <u32 SLOTS, u32 BYTES, u32 CLUSTER = 1> struct Ring {
    static constexpr u32 SHARED = SLOTS * (BYTES + 16);
    // Bytes that shares consist of.
    static constexpr u32 UNIT = 1024;
    u8* slots;

    DEV_MEMBER u8* slot(u32 i) const { return slots + i * BYTES; }
    // The index of this block in its cluster.
    DEV_MEMBER static u32 rank() { return CLUSTER == 1 ? 0 : bid_x() % CLUSTER; }

#if defined(GPU_NV)
    DEV_MEMBER u32 full(u32 i) const { return wgmma::shared_address(slots) + SLOTS * BYTES + i * 8; }
    DEV_MEMBER u32 free(u32 i) const { return full(SLOTS + i); }

    DEV_MEMBER static void wait_for(u32 barrier, u32 parity) {
        u32 over = 0;
        while (!over)
            asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                         : "=r"(over)
                         : "r"(barrier), "r"(parity)
                         : "memory");
    }

    // Waits for the threads of all blocks of the cluster.
    DEV_MEMBER static void meet() {
        if constexpr (CLUSTER == 1) barrier();
        else asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
    }

    // Called by all threads before anything else. A slot is read by `n_waves` waves of each block.
    DEV_MEMBER void start(u32 n_waves) const {
        if (tid() == 0) {
            for (u32 i = 0; i < SLOTS; i++) {
                asm volatile("mbarrier.init.shared.b64 [%0], 1;" : : "r"(full(i)) : "memory");
                asm volatile("mbarrier.init.shared.b64 [%0], %1;" : : "r"(free(i)), "r"(n_waves * CLUSTER) : "memory");
            }
            asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        }
        meet();
    }
    // Called by all threads after everything else: the memory of a block is there while others use it.
    DEV_MEMBER static void finish() {
        if constexpr (CLUSTER > 1) meet();
    }
    // Called by the first wave: waits until the slot is free and begins to fill it: of each of its PARTS equal parts,
    // the first `n` bytes, at least one piece of 16; of a cluster, a multiple of UNIT. `stride`: bytes from what a part
    // gets to what the next one gets.
    template <u32 PARTS> DEV_MEMBER void fill(u32 i, u32 pass, const u8* from, u64 stride, u32 n) const {
        wait_for(free(i), ~pass & 1);
        if (lane() > 0) return;
        asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" : : "r"(full(i)), "r"(PARTS * n) : "memory");
        const u32 share = div_up(n, CLUSTER * UNIT) * UNIT, first = rank() * share;
        if (CLUSTER > 1 && first >= n) return;
#pragma unroll
        for (u32 part = 0; part < PARTS; part++) {
            const u32 to = wgmma::shared_address(slot(i)) + part * (BYTES / PARTS);
            const u8* of_part = from + part * stride;
            if constexpr (CLUSTER == 1)
                asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                             :
                             : "r"(to), "l"(of_part), "r"(n), "r"(full(i))
                             : "memory");
            else
                asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
                             "[%0], [%1], %2, [%3], %4;"
                             :
                             : "r"(to + first), "l"(of_part + first), "r"(min_of(share, n - first)), "r"(full(i)),
                               "h"((u16)((1 << CLUSTER) - 1))
                             : "memory");
        }
    }
    DEV_MEMBER void wait(u32 i, u32 pass) const { wait_for(full(i), pass & 1); }
    // Called by each wave that reads the slot, when it has done so.
    DEV_MEMBER void release(u32 i) const {
        if (lane() >= CLUSTER) return;
        if constexpr (CLUSTER == 1)
            asm volatile("mbarrier.arrive.shared.b64 _, [%0];" : : "r"(free(i)) : "memory");
        else
            asm volatile("{ .reg .b32 there; mapa.shared::cluster.u32 there, %0, %1; "
                         "mbarrier.arrive.shared::cluster.b64 _, [there]; }"
                         :
                         : "r"(free(i)), "r"(lane())
                         : "memory");
    }
#else
    // In the emulator copies are done at once, all waves wait together, and each block copies everything.
    DEV_MEMBER void start(u32) const {}
    DEV_MEMBER static void finish() {}
    template <u32 PARTS> DEV_MEMBER void fill(u32 i, u32, const u8* from, u64 stride, u32 n) const {
        for (u32 part = 0; part < PARTS; part++)
            for (u32 at = lane() * 16; at < n; at += WARP_SIZE * 16)
                store16(slot(i) + part * (BYTES / PARTS) + at, load16(from + part * stride + at));
    }
    DEV_MEMBER void wait(u32, u32) const { barrier(); }
    DEV_MEMBER void release(u32) const {}
#endif
};
