// Codes as f16 activations, and their places (half_acts.hip, half_rows.hip).
#pragma once
#include "gemm/wgmma.h"

// What to multiply a row with: a power of two, so that 127 times its largest scale becomes a number below 2^15. `largest`:
// the bits of that scale without the sign's.
DEV float up_of_scales(u32 largest) {
    const u32 exponent = largest >> 23;
    return exponent == 0xff ? 1.0f : bits<float>((261 - max_of(exponent, 8u)) << 23);
}

// The f16 numbers of four codes: the pairs of both halves of a product's k.
DEV u32x2 halves_of(u32 codes, float scale) {
    float v[4];
#pragma unroll
    for (u32 j = 0; j < 4; j++) v[j] = (float)(i8)(codes >> 8 * j) * scale;
    return {{pack_halves(v[0], v[2]), pack_halves(v[1], v[3])}};
}

// What lanes 0 .. 3 have of a row in a product: the pairs of both halves of its k.
struct Pairs {
    u32x4 first, second;
};

// Where product s of 128 values of k has its part of an octet of rows.
DEV u8* place_of_product(u8* x, u32 n_octets, u32 octet, u32 block, u32 s, u32 n_parts = 1, u32 part = 0) {
    return x + ((u64)((2 * block + s / 4) * n_parts + part) * n_octets + octet) * wgmma::OCTET_BYTES;
}

// Writes a row's pairs of product s to that place, in the order of B of wgmma.
DEV void store_of_b(u8* place, u32 row, u32 s, const Pairs& v) {
    u8* to = place + s % 4 * wgmma::ALONG_STEP + row * 16;
    store16(to, v.first);
    store16(to + wgmma::ALONG_K, v.second);
}
