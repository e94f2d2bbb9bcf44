// Chunks of weights on their way to the threads that multiply them: each thread copies its own to shared memory,
// several rounds ahead (PTX ISA, 9.7.9.25.3). In registers, loads of several rounds would wait for one another.
//
// The chunks of four neighbouring threads follow one another: what they share of a block is copied once, by the first.
#pragma once
#include "gemm/wgmma.h"
#include "quant.h"
#include "team.h"

// Chunks of format F in two rows for each of THREADS threads and DEPTH rounds: N of each row, of which the next one is four chunks
// further.
template <typename F, u32 THREADS, u32 DEPTH, u32 N = 1> struct Chunks {
    // Bytes of a field: smaller ones are copied with their neighbours.
    template <typename P> static constexpr u32 SIZE = sizeof(P) < 4 ? 4 : sizeof(P);
    static constexpr u32 size(u32 k) { return F::PLANES[k].bytes < 4 ? 4 : F::PLANES[k].bytes; }
    static constexpr u32 sharers(u32 k) { return min_of(4u, F::PLANES[k].values / 32); }
    // How many fields of a plane a thread has, and the bytes of one of each thread.
    static constexpr u32 fields(u32 k) { return F::PLANES[k].values < 128 * N ? N : 1; }
    static constexpr u32 bytes(u32 k) { return THREADS / sharers(k) * size(k); }
    // Where the fields of a plane are, of all threads.
    static constexpr u32 offset(u32 k) { return k == 0 ? 0 : offset(k - 1) + fields(k - 1) * bytes(k - 1); }
    static constexpr u32 ROW_BYTES = offset(F::N_PLANES), SHARED = DEPTH * 2 * ROW_BYTES;
    template <u32 K> static constexpr u32 SHARERS = sharers(K);
    template <u32 K> static constexpr u32 OFFSET = offset(K);
    template <u32 K> static constexpr u32 FIELDS_OF = fields(K);
    template <u32 K> static constexpr u32 BYTES_OF = bytes(K);

    u8* memory;
    // Which of the THREADS this one is.
    u32 thread;

    // Begins to copy a chunk if `any`; zeros if not `valid`.
    struct Begin {
        const Block<F, Planes>& row;
        u32 chunk;
        u8* to;
        u32 thread;
        bool valid, any;
        template <u32 K, typename P> DEV_MEMBER void on(P&) const {
            const bool mine = any && lane() % SHARERS<K> == 0;
#pragma unroll
            for (u32 i = 0; i < FIELDS_OF<K>; i++) {
                const u64 at = (u64)row.template field<K>(chunk + 4 * i), from = sizeof(P) < 4 ? at & ~3ull : at;
                copy<SIZE<P>>(to + OFFSET<K> + i * BYTES_OF<K> + thread / SHARERS<K> * SIZE<P>, (const void*)from,
                              valid, mine);
            }
        }
    };
    // Makes the shared fields of a wave visible to all its lanes.
    struct Show {
        u8* memory;
        u32 thread;
        template <u32 K, typename P> DEV_MEMBER void on(P&) const {
            constexpr u32 BYTES = WARP_SIZE / SHARERS<K> * SIZE<P>;
            if constexpr (SHARERS<K> > 1)
#pragma unroll
                for (u32 i = 0; i < FIELDS_OF<K>; i++)
                    wave_barrier(memory + OFFSET<K> + i * BYTES_OF<K> + thread / WARP_SIZE * BYTES, BYTES);
        }
    };
    struct Take {
        const Block<F, Planes>& row;
        u32 chunk;
        const u8* from;
        u32 thread, n_th;
        template <u32 K, typename P> DEV_MEMBER void on(P& field) const {
            const u8* at = from + OFFSET<K> + n_th % FIELDS_OF<K> * BYTES_OF<K> + thread / SHARERS<K> * SIZE<P>;
            if constexpr (sizeof(P) == 16) field = bits<P>(*(const u32_vec4*)at);
            else if constexpr (sizeof(P) == 8) field = bits<P>(*(const u32_vec2*)at);
            else if constexpr (sizeof(P) == 4) field = *(const P*)at;
            else field = (P)(*(const u32*)at >> 8 * ((u64)row.template field<K>(chunk) & 3));
        }
    };

    // Begins to copy the chunks of a round, if any, to a place. end() follows.
    DEV_MEMBER void begin(const Block<F, Planes> (&rows)[2], u32 place, u32 chunk, bool valid, bool any) const {
#pragma unroll
        for (u32 i = 0; i < 2; i++) {
            F none;
            none.fields(Begin{rows[i], valid ? chunk : 0, memory + (2 * place + i) * ROW_BYTES, thread, valid, any});
        }
    }
    // Waits for the round after which DEPTH - 1 others ended.
    DEV_MEMBER void arrive(u32 place) const {
        wait();
#pragma unroll
        for (u32 i = 0; i < 2; i++) {
            F none;
            none.fields(Show{memory + (2 * place + i) * ROW_BYTES, thread});
        }
    }
    // Returns its chunks, the n-th of each row.
    DEV_MEMBER void take(F (&to)[2], const Block<F, Planes> (&rows)[2], u32 place, u32 chunk, u32 n_th = 0) const {
#pragma unroll
        for (u32 i = 0; i < 2; i++)
            to[i].fields(Take{rows[i], chunk, memory + (2 * place + i) * ROW_BYTES, thread, n_th});
    }

#if defined(GPU_NV)
    // Predicated: a branch in the loop costs more than the copy.
    template <u32 BYTES> DEV_MEMBER static void copy(void* to, const void* from, bool valid, bool any) {
        const u32 at = wgmma::shared_address(to), n = valid ? BYTES : 0;
        if constexpr (BYTES == 16)
            asm volatile("{ .reg .pred p; setp.ne.b32 p, %3, 0; @p cp.async.cg.shared.global [%0], [%1], 16, %2; }"
                         :
                         : "r"(at), "l"(from), "r"(n), "r"((u32)any)
                         : "memory");
        else
            asm volatile("{ .reg .pred p; setp.ne.b32 p, %4, 0; @p cp.async.ca.shared.global [%0], [%1], %2, %3; }"
                         :
                         : "r"(at), "l"(from), "n"(BYTES), "r"(n), "r"((u32)any)
                         : "memory");
    }
    // Ends the copies of a round, if any.
    DEV_MEMBER static void end() { asm volatile("cp.async.commit_group;" ::: "memory"); }
    DEV_MEMBER static void wait() { asm volatile("cp.async.wait_group %0;" : : "n"(DEPTH - 1) : "memory"); }
#else
    template <u32 BYTES> DEV_MEMBER static void copy(void* to, const void* from, bool valid, bool any) {
        if (!any) return;
        if constexpr (BYTES == 16) store16(to, valid ? load16(from) : u32x4{});
        else if constexpr (BYTES == 8) store8(to, valid ? stream8(from) : u32x2{});
        else *(u32*)to = valid ? stream4(from) : 0;
    }
    DEV_MEMBER static void end() {}
    DEV_MEMBER static void wait() {}
#endif
};
