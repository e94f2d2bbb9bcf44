// What a kernel may read before it begins (gpu.h) besides weights: what an earlier kernel than the one before wrote, for which the
// one before has waited. These are words of the step, since no kernel that takes rows follows begin_step at once, routings,
// and what former steps wrote. Not from the L1 cache, which may still have what was there before.
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
