// GEMM of up to eight rows of codes (gemm/octet.h), for each format that it knows: dense ones, those of experts, and those of experts
// with rows so short that a block takes several tiles. All weights lie in tiles.
//
// The blocks of experts are mostly single waves. With so few registers that a processor runs 20 of them at once instead of 16, a step
// takes 2 to 5 % less time (H200). Dense products take more then. A processor has the registers for two blocks of THREADS.
#define ROWS_IN_TILES
#include "gemm/octet.h"

#if defined(GPU_NV)
#define OCTET(NAME, LOOP, THREADS) ENTRY(NAME, HalfParams, launch_bounds(THREADS, LOOP::BLOCKS)) OCTET_BODY(LOOP)
#else
#define OCTET(NAME, LOOP, THREADS) KERNEL_THAT_BEGINS(NAME, HalfParams, THREADS) OCTET_BODY(LOOP)
#endif
#define OCTET_BODY(LOOP)                                                                                               \
    {                                                                                                                  \
        DYNAMIC_SHARED(u8, shared);                                                                                    \
        LOOP(p, shared).run();                                                                                         \
    }
#define OCTETS(FORMAT, NAME)                                                                                           \
    using gemm_octet_##NAME##_loop = octet::Product<FORMAT, false>;                                                    \
    using gemm_octet_short_##NAME##_loop = octet::Product<FORMAT, true>;                                               \
    HALF_TILE(gemm_octet_##NAME)                                                                                       \
    OCTET(gemm_octet_##NAME, gemm_octet_##NAME##_loop, 256)                                                            \
    OCTET(gemm_octet_experts_##NAME, gemm_octet_##NAME##_loop, 320)                                                    \
    OCTET(gemm_octet_short_##NAME, gemm_octet_short_##NAME##_loop, 320)
OCTETS(Q4_K, q4_k)
OCTETS(Q6_K, q6_k)
