// The mainloop of F16 weights and f16 activations on Hopper: 128 threads multiply 64 outputs by 64 rows of x. Weights
// go from device memory to registers (A of wgmma), x through shared memory (B): while the matrix units work on a step
// of 64 values of k, the copies of the next steps are under way.
//
// x is f16, aligned to 16 bytes, and n_in is a multiple of 8. Jobs have no tiles. Shared memory: 8 KB for each of STAGES steps.
#pragma once
#include "gemm/gemm.h"
#include "gemm/wgmma.h"

struct Hopper {
    static constexpr u32 ROWS = 64, OUTS = 64, THREADS = wgmma::THREADS, ELEMENTS = ROWS * OUTS / THREADS;
    static constexpr u32 STEP = 64, STAGES = 4, STAGE_BYTES = ROWS * STEP * 2;
    static constexpr u32 SHARED = STAGES * STAGE_BYTES;
    // Each sum is added 16 values of k at a time.
    static constexpr u32 ORDER = 1;

    float acc[ELEMENTS];

    // Begins the copies of x [first_row.., k..] to a stage. What is past the end is zero.
    DEV_MEMBER static void load(const One& one, u32 first_row, u32 k, u8* stage) {
        constexpr u32 PIECES = STEP / 8;
#pragma unroll
        for (u32 i = 0; i < ROWS * PIECES / THREADS; i++) {
            const u32 piece = i * THREADS + tid(), row = piece / PIECES, k8 = piece % PIECES, at = k + k8 * 8;
            const bool valid = at < one.w.n_in;
            const u16* from = (const u16*)one.x + (u64)min_of(first_row + row, one.n_rows - 1) * one.w.n_in + (valid ? at : 0);
            wgmma::copy16(stage + wgmma::place<ROWS>(row, k8), from, valid);
        }
        wgmma::end_copies();
    }

    DEV_MEMBER bool run(const One& one, const Tile& t) {
        SHARED(u8, stages, SHARED);
        // Rows of weights are padded with zeros to whole units.
        const u32 width = div_up(one.w.n_in, UNIT) * UNIT, at = lane() % 4 * 2;
        const u16* rows[2];
#pragma unroll
        for (u32 i = 0; i < 2; i++) {
            const u32 o = min_of(t.first_out + 16 * wave() + lane() / 4 + 8 * i, one.w.n_out - 1);
            rows[i] = (const u16*)one.w.data + (u64)o * width + at;
        }
#pragma unroll
        for (u32 i = 0; i < ELEMENTS; i++) acc[i] = 0.0f;
#pragma unroll
        for (u32 i = 0; i + 1 < STAGES; i++) load(one, t.first_row, i * STEP, stages + i * STAGE_BYTES);
        for (u32 k = 0; k < one.w.n_in; k += STEP) {
            u32 a[STEP / 16][4];
#pragma unroll
            for (u32 s = 0; s < STEP / 16; s++)
#pragma unroll
                for (u32 i = 0; i < 4; i++) {
                    const u32 from = k + 16 * s + i / 2 * 8;
                    a[s][i] = from < width ? *(const u32*)(rows[i % 2] + from) : 0;
                }
            wgmma::wait_for_copies<STAGES - 2>();
            // Also: all threads have waited for the units, so that the stage of the step before is free.
            barrier();
            const u32 later = k / STEP + STAGES - 1;
            load(one, t.first_row, later * STEP, stages + later % STAGES * STAGE_BYTES);
            const u8* b = stages + k / STEP % STAGES * STAGE_BYTES;
            wgmma::begin();
#pragma unroll
            for (u32 s = 0; s < STEP / 16; s++) wgmma::mac(acc, a[s], b + s * (ROWS * 32));
            wgmma::wait();
        }
        return true;
    }

    DEV_MEMBER u32 row(u32 e) const { return 8 * (e / 4) + lane() % 4 * 2 + e % 2; }
    DEV_MEMBER u32 col(u32 e) const { return 16 * wave() + lane() / 4 + 8 * (e / 2 % 2); }
    DEV_MEMBER float value(u32 e) const { return acc[e]; }
};
