// GEMM with f16 activations, for each FORMAT but F32 (gemm/half.h, and of few rows gemm/half_few.h). The number of a kernel is
// that of a tile's rows. For few rows, reading the weights limits: more loads are under way.
#include "gemm/half_few.h"

#if defined(GPU_NV)
#define HALF_KERNEL(NAME) ENTRY(NAME, HalfParams, launch_bounds(NAME##_loop::THREADS, NAME##_loop::BLOCKS))
#else
#define HALF_KERNEL(NAME) KERNEL(NAME, HalfParams, NAME##_loop::THREADS)
#endif
// A kernel each of whose threads calls begin() itself.
#if defined(GPU_NV)
#define FEW_KERNEL HALF_KERNEL
#else
#define FEW_KERNEL(NAME) KERNEL_THAT_BEGINS(NAME, HalfParams, NAME##_loop::THREADS)
#endif
#define HALF_LOOP(NAME, ...)                                                                                           \
    using NAME##_loop = Half<Read, __VA_ARGS__>;                                                                       \
    HALF_KERNEL(NAME) {                                                                                                \
        DYNAMIC_SHARED(u8, shared);                                                                                    \
        NAME##_loop(p, shared).run();                                                                                  \
    }
// The kernel, and that of gated products. Half of the rows of weights in their tiles are of gate, half of up.
#define HALF(NAME, ...)                                                                                                \
    HALF_LOOP(NAME, __VA_ARGS__)                                                                                       \
    HALF_LOOP(NAME##_gated, __VA_ARGS__, true)                                                                         \
    HALF_TILE(NAME)

using Read = HalfForm<FORMAT>::Read;
// Parts of x, and rounds of weights that shared memory has room for.
EXPORT_U32(gemm_half_x_parts, X_PARTS<Read>)
constexpr bool WIDE = X_PARTS<Read> > 1;

#define HALF_FEW(NAME, MOST, CODES)                                                                                    \
    using NAME##_loop = HalfFew<Read, MOST, CODES>;                                                                    \
    HALF_TILE(NAME)                                                                                                    \
    FEW_KERNEL(NAME) {                                                                                                 \
        DYNAMIC_SHARED(u8, shared);                                                                                    \
        NAME##_loop(p, shared).run();                                                                                  \
    }

HALF_FEW(gemm_half_few, 4, false)
HALF_FEW(gemm_half_octet, 1, false)
HALF_FEW(gemm_half_codes, 1, takes_codes<Read>())
HALF(gemm_half_64, 64, 3, 2)
HALF(gemm_half_128, 128, 7, WIDE ? 3 : 5)
HALF(gemm_half_256, 256, 5, WIDE ? 2 : 3)
