// Operations on one value at a time.
//
// add: out[i] += x[i], i < n. One thread for each value; no shared memory.
#include "gpu.h"

constexpr u32 THREADS = 256;

struct AddParams {
    const float* x;
    float* out;
    u32 n;
};

KERNEL(add, AddParams, THREADS) {
    u32 i = bid_x() * THREADS + tid();
    if (i < p.n) p.out[i] += p.x[i];
}
