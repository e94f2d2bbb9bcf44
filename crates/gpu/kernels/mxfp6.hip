// Dequantizes MXFP6 blocks: blocks [n / 32] of 25 bytes in host layout, out [n]. Four values per thread in blocks of
// 256 threads; no shared memory.
#include "quant.h"

constexpr u32 THREADS = 256;

template <typename Out> struct Params {
    const u8* blocks;
    Out* out;
    u32 n_blocks;
    u32 pad;
    FIELDS(blocks, out, n_blocks, pad)
};

template <u32 MANTISSA, typename Out, typename F> DEV void dequantize(const Params<Out>& p, F convert) {
    typedef MXFP6<MANTISSA> Format;
    u64 i = (u64)bid_x() * THREADS + tid();
    u64 block = i / (Format::LEN / 4);
    if (block >= p.n_blocks) return;
    float values[4];
    Format::dequantize_four(p.blocks + block * Format::FILE_BYTES, i % (Format::LEN / 4), values);
#pragma unroll
    for (u32 k = 0; k < 4; k++) p.out[4 * i + k] = convert(values[k]);
}

template <u32 MANTISSA> DEV void to_f32(const Params<float>& p) {
    dequantize<MANTISSA>(p, [](float v) __attribute__((always_inline)) { return v; });
}
template <u32 MANTISSA> DEV void to_f16(const Params<u16>& p) {
    dequantize<MANTISSA>(p, [](float v) __attribute__((always_inline)) { return f2h(v); });
}

KERNEL(e2m3, Params<float>, THREADS) { to_f32<3>(p); }
KERNEL(e3m2, Params<float>, THREADS) { to_f32<2>(p); }
KERNEL(e2m3_f16, Params<u16>, THREADS) { to_f16<3>(p); }
KERNEL(e3m2_f16, Params<u16>, THREADS) { to_f16<2>(p); }
