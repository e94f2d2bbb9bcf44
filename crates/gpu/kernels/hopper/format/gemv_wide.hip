// GEMV with 1 to 4 rows of activations for each FORMAT (gemv.h), in other shapes than those of format/gemv.hip: with one row,
// more chunks are in flight; with more rows, more waves, each with one chunk of a row in flight, for matrices that the device
// does not compute at once. The numbers are the rows of weights of a wave and the most rows of activations. The bits are those
// of the other kernels.
#if !defined(ROWS_IN_TILES)
#define ROWS_APART
#endif
#include "gemv.h"

GEMV_KERNEL(gemv_wide_2_1, Few, 3) { gemv<2, 1, false, 2>(p); }
GEMV_KERNEL(gemv_wide_2_2, Few, 4) { gemv<2, 2, false, 1>(p); }
GEMV_KERNEL(gemv_wide_2_4, Few, 3) { gemv<2, 4, false, 1>(p); }
GEMV_KERNEL(gemv_wide_4_4, Few, 2) { gemv<4, 4, false, 1>(p); }
