// GEMM of up to eight rows of codes (gemm/octet.h), for each format that it knows. All weights lie in tiles.
#define ROWS_IN_TILES
#include "gemm/octet.h"

#if defined(GPU_NV)
#define OCTET_KERNEL(NAME, BLOCKS) ENTRY(NAME, HalfParams, launch_bounds(octet::NAME::THREADS, BLOCKS))
#else
#define OCTET_KERNEL(NAME, BLOCKS) KERNEL_THAT_BEGINS(NAME, HalfParams, octet::NAME::THREADS)
#endif
#define OCTET(NAME, FORMAT)                                                                                            \
    namespace octet {                                                                                                  \
    using NAME = Product<FORMAT>;                                                                                      \
    }                                                                                                                  \
    EXPORT_U32(NAME##_wave_bytes, octet::NAME::WAVE_BYTES)                                                             \
    OCTET_KERNEL(NAME, octet::NAME::BLOCKS) {                                                                          \
        DYNAMIC_SHARED(u8, shared);                                                                                    \
        octet::NAME(p, shared).run();                                                                                  \
    }
OCTET(gemm_octet_q4_k, Q4_K)
OCTET(gemm_octet_q6_k, Q6_K)
