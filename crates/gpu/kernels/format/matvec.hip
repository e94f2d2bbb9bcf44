// Products of weight matrices with 1 to 8 rows of activations (matvec.h), for each FORMAT: what decoding spends its time
// on. Block bid_x() of the blocks of all jobs.
#include "matvec.h"

template <u32 ROWS, u32 N, bool IN_TURNS = false> DEV void all_rows(const MatvecParams& p) {
    products<ROWS, N, AllRows, IN_TURNS>(p, {bid_x(), 0, p.n_rows, 0});
}

// Named by the rows of w and the most rows of activations.
KERNEL(matvec_1_1, MatvecParams, THREADS) { all_rows<1, 1>(p); }
KERNEL(matvec_1_1_turns, MatvecParams, THREADS) { all_rows<1, 1, true>(p); }
KERNEL(matvec_2_1, MatvecParams, THREADS) { all_rows<2, 1>(p); }
KERNEL(matvec_2_2, MatvecParams, THREADS) { all_rows<2, 2>(p); }
KERNEL(matvec_2_4, MatvecParams, THREADS) { all_rows<2, 4>(p); }
KERNEL(matvec_2_8, MatvecParams, THREADS) { all_rows<2, 8>(p); }
