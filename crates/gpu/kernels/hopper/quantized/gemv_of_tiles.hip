// The kernels of format/gemv.hip for matrices whose rows lie in tiles (quant.h).
#define ROWS_IN_TILES
#include "format/gemv.hip"
