// GEMV: products of weight matrices with 1 to 8 rows of activations (matvec.h), for each FORMAT. Decoding spends most
// of its time here. bid_x() counts the blocks of all jobs.
#include "matvec.h"

template <u32 ROWS, u32 N, bool IN_TURNS = false> DEV void all_rows(const MatvecParams& p) {
    products<ROWS, N, AllRows, IN_TURNS>(p, {bid_x(), 0, p.n_rows, 0});
}

// The numbers in the names are the rows of w per wave and the maximum number of rows of activations.
GEMV_KERNEL(matvec_1_1, MatvecParams, BLOCKS_ONE_ROW) { all_rows<1, 1>(p); }
GEMV_KERNEL(matvec_1_1_turns, MatvecParams, BLOCKS_ONE_ROW) { all_rows<1, 1, true>(p); }
GEMV_KERNEL(matvec_2_1, MatvecParams, BLOCKS_ONE_ROW) { all_rows<2, 1>(p); }
GEMV_KERNEL(matvec_2_2, MatvecParams, BLOCKS_ROWS) { all_rows<2, 2>(p); }
GEMV_KERNEL(matvec_2_4, MatvecParams, BLOCKS_ROWS) { all_rows<2, 4>(p); }
GEMV_KERNEL(matvec_2_8, MatvecParams, BLOCKS_ROWS) { all_rows<2, 8>(p); }
