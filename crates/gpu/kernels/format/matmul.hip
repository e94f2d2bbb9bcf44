// GEMM: products with many rows of activations, for each FORMAT: out[row, o] (+)= sum_i x[row, i] w[o, i] + bias[o].
// Threads and shared memory: matmul_codes.h for quantized weights, matmul_float.h for floats.
#include "matmul_codes.h"
#include "matmul_float.h"

// matmul_large has the fewest loads per product. matmul_small is for shapes that would leave most of the device idle.
template <typename F, u32 LARGE> DEV void any_product(const MatmulParams& p) {
    const bool rows_first = p.flags & ROWS_FIRST;
    const Place place = {rows_first ? bid_y() : bid_x(), rows_first ? bid_x() : bid_y(), 0};
    if constexpr (SPLIT<F> && LARGE) split_product<F, WARP_SIZE / 16, 2, 128 / WARP_SIZE, 2>(p, place);
    else if constexpr (SPLIT<F>) split_product<F, 1, WARP_SIZE / 32, 2, 128 / WARP_SIZE>(p, place);
    else if constexpr (F::FLOAT) float_product<F, LARGE ? 4 : 2>(p, place);
    else if constexpr (LARGE) product<F, 128, WARP_SIZE / 16, 2, 128 / WARP_SIZE, 2, 1, 1>(p, place);
    else product<F, 256, 2, 1, 1, 2, N_WAVES / 2, 2>(p, place);
}

EXPORT_U32(n_threads, THREADS)
EXPORT_U32(large_rows, FORMAT::FLOAT && !SPLIT<FORMAT> ? 64 : 128)
EXPORT_U32(large_outs, 64)
EXPORT_U32(small_rows, 32)
EXPORT_U32(small_outs, SPLIT<FORMAT> ? 64 : 32)

MATMUL_KERNEL(matmul_large, MatmulParams) { any_product<FORMAT, 1>(p); }
MATMUL_KERNEL(matmul_small, MatmulParams) { any_product<FORMAT, 0>(p); }
