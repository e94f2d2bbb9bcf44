// Codes as f16 activations (half_acts.hip, half_rows.hip).
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
