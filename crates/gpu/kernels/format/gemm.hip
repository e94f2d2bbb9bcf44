// GEMM: products with many rows of activations, for each FORMAT (gemm/gemm.h): one product in a launch, or the products
// of the rows of each expert of an MoE layer with that expert's matrix. Threads and shared memory: gemm/tiles.h.
#include "gemm/tiles.h"

#define GEMM(NAME, ROW, SCHEDULER)                                                                                     \
    using NAME##_loop = Mainloop<FORMAT, ROW>;                                                                         \
    EXPORT_TILE(NAME, NAME##_loop)                                                                                     \
    GEMM_KERNEL(NAME, GemmParams, NAME##_loop::THREADS) { gemm<NAME##_loop, Store, SCHEDULER>(p); }

GEMM(gemm_large, DENSE_LARGE, Dense)
GEMM(gemm_small, DENSE_SMALL, Dense)
GEMM(gemm_experts_large, EXPERTS_LARGE, Experts)
GEMM(gemm_experts_small, EXPERTS_SMALL, Experts)
