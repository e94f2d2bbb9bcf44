// Attention of prompts, and of few rows of latent layers, on Hopper's matrix units, for caches in f16. Shapes and masks
// as in kv/attention_prefill.hip, whose combine_rows combines splits. Queries and weights are f16, once: the error is
// that of f16.
//
// attend_DIM, attend_192_128: hopper/attend_rows.h. attend_latent_K_V: keys whose first V values are the value, see
// hopper/attend_latent.h.
#define KEY_TYPE F16
#define VALUE_TYPE F16
#include "hopper/attend_latent.h"
#include "hopper/attend_rows.h"

#if defined(GPU_NV)
#define ATTEND_ENTRY(NAME) ENTRY(NAME, PrefillParams, launch_bounds(NAME##_tile::THREADS, NAME##_tile::BLOCKS))
#else
#define ATTEND_ENTRY(NAME) KERNEL(NAME, PrefillParams, NAME##_tile::THREADS)
#endif
// Also exports the dynamic shared memory of the kernel's blocks, which begins anywhere, and their queries.
#define ATTEND(NAME, ...)                                                                                              \
    using NAME##_tile = __VA_ARGS__;                                                                                   \
    EXPORT_U32(NAME##_bytes, NAME##_tile::BYTES + wgmma::EIGHT_ROWS)                                                   \
    EXPORT_U32(NAME##_queries, NAME##_tile::QUERIES)                                                                   \
    ATTEND_ENTRY(NAME) {                                                                                               \
        DYNAMIC_SHARED(u8, memory);                                                                                    \
        wait_for_predecessor();                                                                                        \
        let_successor_start();                                                                                         \
        attend<NAME##_tile>(p, memory);                                                                                \
    }

ATTEND(attend_64, AttendRows<64, 64>)
ATTEND(attend_128, AttendRows<128, 128>)
ATTEND(attend_192_128, AttendRows<192, 128>)
ATTEND(attend_256, AttendRows<256, 256>)
ATTEND(attend_latent_576_512, AttendLatent<576, 512>)
ATTEND(attend_latent_320_256, AttendLatent<320, 256>)
