// What a kernel may read before begin() besides weights: what a kernel before its predecessor wrote, since each waits for the one
// before it. Such are words of a step (a kernel runs between begin_step and each that reads them early), a router's choices
// (the next kernel waits for them), and states of former steps. Loads bypass the L1 cache, which may hold older values.
#pragma once
#include "gpu.h"

DEV u32 early_word(const u32* at) {
#if defined(GPU_NV)
    u32 word;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(word) : "l"(at));
    return word;
#else
    return *at;
#endif
}

// For a kernel that never waited for what it reads: later loads see what was complete when it started, not what the L1 cache holds.
DEV void see_what_was_written() {
#if defined(GPU_NV)
    asm volatile("fence.acq_rel.gpu;" ::: "memory");
#endif
}

// 16 bytes at an aligned address.
DEV u32x4 early16(const void* at) {
#if defined(GPU_NV)
    u32x4 words;
    asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
        : "=r"(words.v[0]), "=r"(words.v[1]), "=r"(words.v[2]), "=r"(words.v[3])
        : "l"(at));
    return words;
#else
    return load16(at);
#endif
}
