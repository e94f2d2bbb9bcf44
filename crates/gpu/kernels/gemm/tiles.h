// The tiles of GEMM: one row for each kernel of format/gemm.hip, for each class of format and generation of GPUs. The
// image exports what each mainloop says about its tile; src/ops/select.rs chooses from that.
#pragma once
#include "gemm/codes.h"
#include "gemm/exact.h"
#include "gemm/split.h"

// The kernels. Large tiles have the fewest loads per product. Small ones are for shapes that would leave most of the
// device idle, or fill large tiles with padding rows; those of codes also split k. Flat ones have as few rows, and do
// not split k: for experts, of which there are enough to keep the device busy.
enum Row : u32 { LARGE, SMALL, FLAT, N_ROWS };

// What multiplies weights of a format.
enum class Class { Codes, Halves, Exact };
#if defined(MMA_DOT)
// No units for halves.
template <typename F> constexpr Class CLASS = F::FLOAT ? Class::Exact : Class::Codes;
#else
template <typename F> constexpr Class CLASS = !F::FLOAT ? Class::Codes : F::CHUNK == 8 ? Class::Halves : Class::Exact;
#endif

// Arguments of Codes and Split; m counts rows of x, n outputs. A wave multiplies m_tiles by n_tiles tiles of 16 by 16.
struct Shape {
    u32 step, m_tiles, n_tiles, m_waves, n_waves, k_waves, depth;
};

#if defined(GPU_CDNA)
// Four waves of 64.
constexpr Shape CODES[N_ROWS] = {
#if defined(MMA_DOT)
    // 128 x 64 needs more registers than gfx906 has: the formats with minimums used scratch memory.
    {128, 2, 2, 2, 2, 1, 1}, // 64 x 64
#else
    {128, 4, 2, 2, 2, 1, 1}, // 128 x 64
#endif
    {256, 2, 1, 1, 2, 2, 2}, // 32 x 32
    {128, 1, 2, 2, 2, 1, 1}, // 32 x 64
};
constexpr Shape HALVES[N_ROWS] = {
    {32, 4, 2, 2, 2, 1, 1}, // 128 x 64
    {32, 1, 2, 2, 2, 1, 1}, // 32 x 64
    {32, 1, 2, 2, 2, 1, 1}, // 32 x 64
};
#else
// Eight waves of 32.
constexpr Shape CODES[N_ROWS] = {
    {128, 2, 2, 4, 2, 1, 1}, // 128 x 64
    {256, 2, 1, 1, 2, 4, 2}, // 32 x 32
    {128, 1, 2, 2, 2, 2, 1}, // 32 x 64
};
constexpr Shape HALVES[N_ROWS] = {
    {32, 2, 2, 4, 2, 1, 1}, // 128 x 64
    {32, 1, 1, 2, 4, 1, 1}, // 32 x 64
    {32, 1, 1, 2, 4, 1, 1}, // 32 x 64
};
#endif
// Arguments of Exact. The smaller a tile, the more groups of threads split k.
struct ExactShape {
    u32 rows, outs, step;
};
constexpr ExactShape EXACT[N_ROWS] = {
    {64, 64, 16},
    {16, 32, 64},
    {32, 32, 32},
};
// Small tiles of F32. Most F32 matrices belong to routers and have few outputs.
constexpr ExactShape FEW_OUTPUTS = {8, 32, 128};

// The mainloop of a format in a row of its class's table.
template <typename F, Row ROW, Class C = CLASS<F>> struct TileOf;
template <typename F, Row ROW> struct TileOf<F, ROW, Class::Codes> {
    static constexpr Shape S = CODES[ROW];
    using Mainloop = Codes<F, S.step, S.m_tiles, S.n_tiles, S.m_waves, S.n_waves, S.k_waves, S.depth>;
};
template <typename F, Row ROW> struct TileOf<F, ROW, Class::Halves> {
    static constexpr Shape S = HALVES[ROW];
    using Mainloop = Split<F, S.m_tiles, S.n_tiles, S.m_waves, S.n_waves>;
};
template <typename F, Row ROW> struct TileOf<F, ROW, Class::Exact> {
    static constexpr ExactShape S = ROW == SMALL && __is_same(F, F32) ? FEW_OUTPUTS : EXACT[ROW];
    using Mainloop = Exact<F, S.rows, S.outs, S.step>;
};
template <typename F, Row ROW> using Mainloop = typename TileOf<F, ROW>::Mainloop;
