// GEMV: products of weight matrices with 1 to 8 rows of activations, for each FORMAT (gemv.h). Decoding spends most of
// its time here.
//
// The numbers in the names are the rows of w per wave and the maximum number of rows of activations, of a job or of a
// tile. Equal products have equal bits in all kernels.
#if !defined(ROWS_IN_TILES)
#define ROWS_APART
#endif
#include "gemv_summed.h"

GEMV_KERNEL(gemv_1_1, Few, BLOCKS_ONE_ROW) { gemv<1, 1>(p); }
GEMV_KERNEL(gemv_1_1_turns, Few, BLOCKS_ONE_ROW) { gemv<1, 1, true>(p); }
GEMV_KERNEL(gemv_2_1, Few, BLOCKS_ONE_ROW) { gemv<2, 1>(p); }
GEMV_KERNEL(gemv_2_2, Few, BLOCKS_ROWS) { gemv<2, 2>(p); }
GEMV_KERNEL(gemv_2_4, Few, BLOCKS_ROWS) { gemv<2, 4>(p); }
GEMV_KERNEL(gemv_2_8, Few, BLOCKS_ROWS) { gemv<2, 8>(p); }

GEMV_KERNEL(gemv_tiled_2_1, Few, BLOCKS_ONE_ROW) { gemv_tiled<2, 1>(p); }
GEMV_KERNEL(gemv_tiled_2_4, Few, BLOCKS_ROWS) { gemv_tiled<2, 4>(p); }
GEMV_KERNEL(gemv_own_tiled_2, OwnFew, BLOCKS_ONE_ROW) { gemv_own_tiled<2>(p); }
GEMV_KERNEL(gemv_own_tiled_4, OwnFew, BLOCKS_LONG_ROWS) { gemv_own_tiled<4>(p); }
SUMMED_KERNEL(gemv_summed_8, SummedFew) { gemv_summed<FORMAT>(p); }

GEMV_KERNEL(gemv_listed_1_1, Listed, BLOCKS_ONE_ROW) { gemv<1, 1>(p); }
GEMV_KERNEL(gemv_listed_2_8, Listed, BLOCKS_ROWS) { gemv<2, 8>(p); }
