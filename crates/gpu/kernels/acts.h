// Eight f32 values of a row per thread, and their conversion to the forms of activations (src/operands.rs: ActForm).
//
// Bit for bit what the CPU backend computes from the same values. The scale of a block follows from its largest
// magnitude:
//     Q8x32:  d = max / 127 in f32; codes are round(x * (1 / d)), ties to even; the scale is d rounded to f16
//     Q8x256: f = 127 / max in f32; codes are round(x * f), ties to even; the scale is 1 / f
// Codes are zero if 1 / d or f is infinite (a block of zeros, or too small to divide by), or if the block has a value
// that is not finite; the scale of such a block is NaN.
#pragma once
#include "team.h"

constexpr u32 OCTET = 8;

struct Octet {
    float v[OCTET];
};

// Destination of activations; the fields of `Acts` in src/operands.rs.
struct ActsOut {
    float* values;
    i8* codes;
    float* scales;
    i16* sums;
    FIELDS(values, codes, scales, sums)
};

// Loads the values at `x + at`, zero past `end`. `aligned`: rows are whole octets and 16-byte aligned.
DEV Octet load_octet(const float* x, u32 at, u32 end, u32 aligned) {
    Octet o = {};
    if (aligned) {
        if (at < end) {
            f32x4 a = bits<f32x4>(load16(x + at)), b = bits<f32x4>(load16(x + at + 4));
#pragma unroll
            for (u32 i = 0; i < 4; i++) o.v[i] = a[i], o.v[4 + i] = b[i];
        }
    } else {
#pragma unroll
        for (u32 i = 0; i < OCTET; i++)
            if (at + i < end) o.v[i] = x[at + i];
    }
    return o;
}

DEV void store_octet(float* out, u32 at, u32 end, u32 aligned, const Octet& o) {
    if (aligned) {
        if (at < end) {
            store16(out + at, bits<u32x4>(f32x4{{o.v[0], o.v[1], o.v[2], o.v[3]}}));
            store16(out + at + 4, bits<u32x4>(f32x4{{o.v[4], o.v[5], o.v[6], o.v[7]}}));
        }
    } else {
#pragma unroll
        for (u32 i = 0; i < OCTET; i++)
            if (at + i < end) out[at + i] = o.v[i];
    }
}

// The forms. put() writes the octet at `at` of a row that starts at value `base`. All lanes of a wave must call it;
// those at or past `end` have zeros in `o` and write nothing.
struct FormF32 {
    DEV_MEMBER static void put(const ActsOut& out, u64 base, u32 at, u32 end, u32 aligned, const Octet& o) {
        store_octet(out.values + base, at, end, aligned, o);
    }
};

template <u32 BLOCK> struct FormQ8 {
    DEV_MEMBER static void put(const ActsOut& out, u64 base, u32 at, u32 end, u32, const Octet& o) {
        constexpr u32 FINITE = 0x7f800000u;
        u32 max_bits = 0;
#pragma unroll
        for (u32 i = 0; i < OCTET; i++) max_bits = max_of(max_bits, bits<u32>(o.v[i]) & 0x7fffffffu);
        max_bits = group_reduce<Max, BLOCK / OCTET>(max_bits);
        float max = bits<float>(max_bits), factor, scale;
        if constexpr (BLOCK == 32) {
            float d = max / 127.0f;
            factor = 1.0f / d;
            scale = h2f(f2h(d));
        } else {
            factor = 127.0f / max;
            scale = 1.0f / factor;
        }
        if (max_bits >= FINITE) scale = bits<float>(0x7fc00000u);
        bool zero = max_bits >= FINITE || bits<u32>(factor) == FINITE;
        u32x2 codes = {};
        i32 sum = 0;
#pragma unroll
        for (u32 i = 0; i < OCTET; i++) {
            i32 code = zero ? 0 : (i32)round_even(o.v[i] * factor);
            sum += code;
            codes.v[i / 4] |= ((u32)code & 0xff) << i % 4 * 8;
        }
        sum += shuffle_xor(sum, 1);
        if (at >= end) return;
        u64 to = base + at;
        *(u32x2*)(out.codes + to) = codes;
        if (at % 16 == 0) out.sums[to / 16] = (i16)sum;
        if (at % BLOCK == 0) out.scales[to / BLOCK] = scale;
    }
};
typedef FormQ8<32> FormQ8x32;
typedef FormQ8<256> FormQ8x256;
