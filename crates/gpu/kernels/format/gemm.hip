// GEMM: products with many rows of activations, for each FORMAT (gemm/gemm.h). Threads and shared memory: gemm/tiles.h.
#include "gemm/tiles.h"

#define GEMM(NAME, ROW, SCHEDULER)                                                                                     \
    using NAME##_loop = Mainloop<FORMAT, ROW>;                                                                         \
    EXPORT_TILE(NAME, NAME##_loop)                                                                                     \
    GEMM_KERNEL(NAME, NAME##_loop::THREADS) { gemm<NAME##_loop, Store, SCHEDULER>(p); }

GEMM(gemm_large, LARGE, Dense)
GEMM(gemm_small, SMALL, Dense)
GEMM(gemm_tiled_large, LARGE, Experts)
GEMM(gemm_tiled_flat, FLAT, Experts)
