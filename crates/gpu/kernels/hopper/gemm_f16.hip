// GEMM with F16 weights and f16 activations on Hopper's matrix units (gemm/hopper.h): out[row, o] (+)= sum_i x[row, i]
// w[o, i] + bias[o]. Blocks of 128 threads, tiles of 64 rows by 64 outputs, 32 KB of shared memory.
#define FORMAT F16
#include "gemm/hopper.h"

EXPORT_TILE(gemm_f16, Hopper)
GEMM_KERNEL(gemm_f16, Hopper::THREADS) { gemm<Hopper, Store, Dense>(p); }
