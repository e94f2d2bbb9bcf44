// The kernels of hopper/format/gemv_wide.hip for matrices whose rows lie in tiles (quant.h).
#define ROWS_IN_TILES
#include "hopper/format/gemv_wide.hip"
