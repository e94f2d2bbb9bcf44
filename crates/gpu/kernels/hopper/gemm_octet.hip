// GEMM of up to eight rows of codes (gemm/octet.h), for each format that it knows. All weights lie in tiles.
#define ROWS_IN_TILES
#include "gemm/octet.h"

#if defined(GPU_NV)
#define OCTET_KERNEL(NAME) ENTRY(NAME, HalfParams, launch_bounds(NAME##_loop::THREADS, NAME##_loop::BLOCKS))
#else
#define OCTET_KERNEL(NAME) KERNEL_THAT_BEGINS(NAME, HalfParams, NAME##_loop::THREADS)
#endif
#define OCTET(NAME, FORMAT)                                                                                            \
    using NAME##_loop = octet::Product<FORMAT>;                                                                        \
    HALF_TILE(NAME)                                                                                                    \
    OCTET_KERNEL(NAME) {                                                                                               \
        DYNAMIC_SHARED(u8, shared);                                                                                    \
        NAME##_loop(p, shared).run();                                                                                  \
    }
OCTET(gemm_octet_q4_k, Q4_K)
OCTET(gemm_octet_q6_k, Q6_K)
