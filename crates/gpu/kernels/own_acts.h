// Activations that a block of a product makes for itself, in shared memory, so that they take no launch of their own. They
// have the bits that quantize_rows, quantize and split_heads give them.
#pragma once
#include "acts.h"
#include "jobs.h"

// The values that are converted: row r at x + r * stride.
struct Source {
    const float* x;
    u32 stride;
    // Whether rows are whole octets, and their addresses multiples of 16.
    u32 aligned;
    FIELDS(x, stride, aligned)
};

struct OwnFew {
    Few few;
    Source source;
    // log2 of the lanes that share a row of weights: all of a wave, or of short rows fewer. With fewer, there is no list of
    // tiles, and the products are not gated.
    u32 lanes_log;
    u32 pad;
    FIELDS(few, source, lanes_log, pad)
};

// Lets a job read activations at `memory`, which is shared.
template <typename T> DEV void place_acts(u8* memory, Job& job) {
    const u32 width = job.w.n_in;
    job.x = memory;
    if constexpr (!T::FLOAT) {
        float* scales = (float*)(memory + width);
        job.scales = scales, job.sums = (i16*)(scales + width / T::ACT_BLOCK);
    }
}

// Makes the activations of a row there: thread `thread` of THREADS, whole waves. The caller waits for the others.
template <typename T, u32 THREADS> DEV void put_acts(const Source& source, u32 row, u32 thread, const Job& job) {
    const u32 width = job.w.n_in;
    const float* x = source.x + (u64)row * source.stride;
    const auto make = [&](auto form, const ActsOut& acts) {
        for (u32 start = 0; start < width; start += THREADS * OCTET) {
            const u32 at = start + thread * OCTET;
            form.put(acts, 0, at, width, source.aligned, load_octet(x, at, width, source.aligned));
        }
    };
    if constexpr (T::FLOAT) make(FormF32{}, {(float*)job.x, nullptr, nullptr, nullptr});
    else make(FormQ8<T::ACT_BLOCK>{}, {nullptr, (i8*)job.x, (float*)job.scales, (i16*)job.sums});
}

// Makes them in shared memory of the launch. All threads of a block of THREADS must call it.
template <typename T, u32 THREADS> DEV void own_acts(const Source& source, u32 row, Job& job) {
    DYNAMIC_SHARED(u8, memory);
    place_acts<T>(memory, job);
    put_acts<T, THREADS>(source, row, tid(), job);
    shared_barrier();
}
