// GEMM of up to eight rows of codes (gemm/octet.h), for each format that it knows: dense ones, those of experts, and those of experts
// with rows so short that a block takes several tiles. All weights lie in tiles.
//
// The blocks of experts are mostly single waves. With registers for 20 of them on a processor instead of 16, a step takes 2 to 5 % less
// (H200). Dense products take longer then.
#define ROWS_IN_TILES
#include "gemm/octet.h"

#if defined(GPU_NV)
#define OCTET_KERNEL(NAME, THREADS) ENTRY(NAME, HalfParams, launch_bounds(THREADS, NAME##_loop::BLOCKS))
#else
#define OCTET_KERNEL(NAME, THREADS) KERNEL_THAT_BEGINS(NAME, HalfParams, THREADS)
#endif
#define OCTET(NAME, FORMAT, SEVERAL, THREADS)                                                                          \
    using NAME##_loop = octet::Product<FORMAT, SEVERAL>;                                                               \
    HALF_TILE(NAME)                                                                                                    \
    OCTET_KERNEL(NAME, THREADS) {                                                                                      \
        DYNAMIC_SHARED(u8, shared);                                                                                    \
        NAME##_loop(p, shared).run();                                                                                  \
    }
OCTET(gemm_octet_q4_k, Q4_K, false, 256)
OCTET(gemm_octet_q6_k, Q6_K, false, 256)
OCTET(gemm_octet_experts_q4_k, Q4_K, false, 320)
OCTET(gemm_octet_experts_q6_k, Q6_K, false, 320)
OCTET(gemm_octet_short_q4_k, Q4_K, true, 320)
OCTET(gemm_octet_short_q6_k, Q6_K, true, 320)
