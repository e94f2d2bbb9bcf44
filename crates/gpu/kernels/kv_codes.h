// Conversions between numbers and the codes of KV caches. Bits are the same on every device and on the CPU.
#pragma once
#include "gpu.h"

#if defined(GPU_HOST)
namespace host {
// Converts an fp8 code as a GPU's instructions do, by the formats' definitions: bias 7 is OCP e4m3fn, bias 8 FNUZ.
static float float_of_fp8(u8 code, u32 bias) {
    if (bias == 8 ? code == 0x80 : (code & 0x7f) == 0x7f) return __builtin_nanf("");
    i32 exponent = code >> 3 & 15, mantissa = code & 7;
    i32 lowest = exponent ? exponent : 1;
    float magnitude = __builtin_ldexpf(exponent ? 8 + mantissa : mantissa, lowest - (i32)bias - 3);
    return code & 0x80 ? -magnitude : magnitude;
}
} // namespace host
#endif

namespace kv {

constexpr u32 FINITE = 0x7f800000u, NOT_A_NUMBER = 0x7fc00000u;

// Unpacks eight int8, exactly.
DEV void unpack_i8(u32x2 codes, float* to) {
#pragma unroll
    for (u32 i = 0; i < 8; i++) {
#if defined(GPU_NV)
        // 2^23 + 128 + code, assembled from bits: conversions of bytes are slow.
        u32 biased = __nvvm_prmt(codes[i / 4] ^ 0x80808080u, 0x4b000000u, 0x7440 + i % 4);
        to[i] = bits<float>(biased) - 8388736.0f;
#else
        // Fewer instructions on AMD GPUs than sign-extending each code.
        to[i] = (float)((codes[i / 4] ^ 0x80808080u) >> i % 4 * 8 & 0xff) - 128.0f;
#endif
    }
}

// Unpacks eight e4m3 codes as values that are 2^E4M3_SHIFT times too small, exactly.
#if defined(GPU_NV) && __CUDA_ARCH__ >= 890
constexpr u32 E4M3_SHIFT = 0;
DEV u32 e4m3_pair(u16 codes) {
    u32 halves;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(codes));
    return halves;
}
#elif defined(__gfx1200__) || defined(__gfx1201__)
#define E4M3_TO_FLOATS
constexpr u32 E4M3_SHIFT = 0;
#elif defined(__gfx942__)
// FNUZ: the same bits are half the value.
#define E4M3_TO_FLOATS
constexpr u32 E4M3_SHIFT = 1;
#elif defined(GPU_HOST) && (defined(GPU_GFX12) || defined(GPU_CDNA))
#define E4M3_TO_FLOATS
#if defined(GPU_CDNA)
constexpr u32 E4M3_SHIFT = 1;
#else
constexpr u32 E4M3_SHIFT = 0;
#endif
#else
#define E4M3_BY_BITS
constexpr u32 E4M3_SHIFT = 8;
#endif

DEV void unpack_e4m3(u32x2 codes, float* to) {
#pragma unroll
    for (u32 i = 0; i < 2; i++) {
        u32 word = codes[i];
        float* v = to + 4 * i;
#if defined(E4M3_TO_FLOATS) && defined(GPU_GFX12) && defined(GPU_AMD)
        // One at a time. v_cvt_pk_f32_fp8 is unreliable on gfx12: AMD's Composable Kernel avoids it (SWDEV-532959), and
        // the source of its short encoding can only be v0 to v127, which clang 19 ignores.
        v[0] = __builtin_amdgcn_cvt_f32_fp8((i32)word, 0), v[1] = __builtin_amdgcn_cvt_f32_fp8((i32)word, 1);
        v[2] = __builtin_amdgcn_cvt_f32_fp8((i32)word, 2), v[3] = __builtin_amdgcn_cvt_f32_fp8((i32)word, 3);
#elif defined(E4M3_TO_FLOATS) && defined(GPU_AMD)
        auto low = __builtin_amdgcn_cvt_pk_f32_fp8((i32)word, false);
        auto high = __builtin_amdgcn_cvt_pk_f32_fp8((i32)word, true);
        v[0] = low[0], v[1] = low[1], v[2] = high[0], v[3] = high[1];
#elif defined(E4M3_TO_FLOATS)
        for (u32 j = 0; j < 4; j++) v[j] = host::float_of_fp8((u8)(word >> 8 * j), 7 + E4M3_SHIFT);
#elif defined(E4M3_BY_BITS)
        // An f16 with the same exponent and mantissa bits, two at a time: its bias is 8 more, also for subnormal
        // numbers.
        u32 evens = (word << 8 & 0x80008000u) | (word << 7 & 0x3f803f80u);
        u32 odds = (word & 0x80008000u) | (word >> 1 & 0x3f803f80u);
        v[0] = h2f((u16)evens), v[1] = h2f((u16)odds), v[2] = h2f((u16)(evens >> 16)), v[3] = h2f((u16)(odds >> 16));
#else
        u32 low = e4m3_pair((u16)word), high = e4m3_pair((u16)(word >> 16));
        v[0] = h2f((u16)low), v[1] = h2f((u16)(low >> 16)), v[2] = h2f((u16)high), v[3] = h2f((u16)(high >> 16));
#endif
    }
}

#if defined(GPU_NVIDIA)
// For matrix units: halves() converts codes of a word to f16, exactly, two per word; those of bytes in order.

// Nibbles of `select`, lowest first, select from the eight bytes of low and high.
DEV u32 pick_bytes(u32 low, u32 high, u32 select) {
#if defined(GPU_NV)
    return __nvvm_prmt(low, high, select);
#else
    u64 both = (u64)high << 32 | low;
    u32 r = 0;
    for (u32 i = 0; i < 4; i++) r |= (u32)(both >> (select >> 4 * i & 7) * 8 & 0xff) << 8 * i;
    return r;
#endif
}

DEV void halves_of_i8(u32 codes, u32* to) {
    typedef f16 f16_vec2 __attribute__((ext_vector_type(2)));
    constexpr u32 THOUSANDS = 0x64646464;
    // 1024 + 128 + code, assembled from bits.
    u32 biased = codes ^ 0x80808080u;
    f16_vec2 bias = {1152.0f16, 1152.0f16};
    to[0] = bits<u32>(bits<f16_vec2>(pick_bytes(biased, THOUSANDS, 0x4140)) - bias);
    to[1] = bits<u32>(bits<f16_vec2>(pick_bytes(biased, THOUSANDS, 0x4342)) - bias);
}

// Nibbles 0 and 4 of a word, then 1 and 5, less 8.
DEV void halves_of_nibbles(u32 codes, u32* to) {
    typedef f16 f16_vec2 __attribute__((ext_vector_type(2)));
    // 1024 + code, assembled from bits.
    f16_vec2 bias = {1032.0f16, 1032.0f16};
    to[0] = bits<u32>(bits<f16_vec2>((codes & 0x000f000fu) | 0x64006400u) - bias);
    to[1] = bits<u32>(bits<f16_vec2>((codes >> 4 & 0x000f000fu) | 0x64006400u) - bias);
}

DEV void halves_of_e4m3(u32 codes, u32* to) {
#if defined(E4M3_BY_BITS)
#pragma unroll
    for (u32 i = 0; i < 2; i++) {
        u32 high_bytes = pick_bytes(codes, 0, i ? 0x3424 : 0x1404);
        to[i] = (high_bytes & 0x80008000u) | (high_bytes >> 1 & 0x3f803f80u);
    }
#else
    to[0] = e4m3_pair((u16)codes);
    to[1] = e4m3_pair((u16)(codes >> 16));
#endif
}
#endif

// Nibble i of a word, as f32.
DEV float of_nibble(u32 codes, u32 i) {
#if defined(GPU_NV)
    // 2^23 + code, assembled from bits: conversions are slow.
    return bits<float>((codes >> 4 * i & 15) | 0x4b000000u) - 8388608.0f;
#else
    return (float)(codes >> 4 * i & 15);
#endif
}

// Packs the low bytes of four words.
DEV u32 pack_bytes(u32 a, u32 b, u32 c, u32 d) {
#if defined(GPU_NV)
    return __nvvm_prmt(__nvvm_prmt(a, b, 0x0040), __nvvm_prmt(c, d, 0x0040), 0x5410);
#else
    return (a & 0xff) | (b & 0xff) << 8 | (c & 0xff) << 16 | d << 24;
#endif
}

// 1 / x rounded to nearest even, for x from 2^-125 to 2^125.
DEV float inverse_of(float x) {
#if defined(GPU_NV)
    // As rcp.rn.f32 for such numbers, without its branch for others.
    const float r = inverse_fast(x);
    return fma(r, fma(-x, r, 1.0f), r);
#else
    return 1.0f / x;
#endif
}

// x / divisor rounded to nearest even, for a divisor of at most 8 bits whose inverse is given within two units in the
// last place; x / divisor must be normal. No branch, unlike `/`.
//
// The first quotient is wrong by a few units in its last place, so the remainder of x has few bits and is exact. Before
// rounding, the sum is wrong by less than 2^-16 of a unit, and x / divisor is at least 2^-9 of a unit away from the
// midpoint of two numbers: the midpoint times the divisor has more bits than x.
DEV float quotient_of(float x, float divisor, float inverse) {
    float quotient = x * inverse;
    return fma(fma(-quotient, divisor, x), inverse, quotient);
}

// Factor that small numbers are multiplied with before they are divided, exactly, so that nothing underflows.
constexpr float UP = 18446744073709551616.0f;
DEV float up_of(u32 max_bits) { return max_bits < bits<u32>(1.0f / (1ull << 56)) ? UP : 1.0f; }

// a * b, rounded; never fused with an addition, which would skip the rounding.
DEV float product(float a, float b) {
#if defined(GPU_NV)
    float r;
    asm("mul.rn.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
    return r;
#else
#pragma clang fp contract(off)
    return a * b;
#endif
}

// The int8 code of x in the low byte: x * inverse, rounded to f32, then to nearest even.
DEV u32 to_i8(float x, float inverse) {
#if defined(GPU_NV)
    // Conversions are slow.
    return bits<u32>(product(x, inverse) + 12582912.0f);
#else
    return (u32)(i32)round_even(x * inverse);
#endif
}

// The e4m3 code nearest to x, ties to even, magnitude at most 448. Zeros keep the sign of x.
DEV u32 to_e4m3(float x) {
    u32 sign = bits<u32>(x) >> 24 & 0x80, magnitude = bits<u32>(x) & 0x7fffffffu;
    // Below 2^-6 the steps are 2^-9, as those of f32 at 2^14; above, the mantissa has three bits.
    u32 subnormal = bits<u32>(bits<float>(magnitude) + 16384.0f) - bits<u32>(16384.0f);
    u32 normal = ((magnitude + 0x7ffffu + (magnitude >> 20 & 1)) >> 20) - (120u << 3);
    return sign | min_of(magnitude < bits<u32>(0.015625f) ? subnormal : normal, 0x7eu);
}

// The codes of four numbers; never -0.
DEV u32 to_e4m3x4(const float* x) {
#if defined(GPU_NV) && __CUDA_ARCH__ >= 890
    u16 low, high;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(low) : "f"(x[1]), "f"(x[0]));
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(high) : "f"(x[3]), "f"(x[2]));
    u32 word = low | (u32)high << 16;
#else
    u32 word = pack_bytes(to_e4m3(x[0]), to_e4m3(x[1]), to_e4m3(x[2]), to_e4m3(x[3]));
#endif
    // Adding 0x7f to a magnitude carries into the sign bit unless the magnitude is 0.
    u32 carried = (word & 0x7f7f7f7fu) + 0x7f7f7f7fu;
    return word & (carried | 0x7f7f7f7fu);
}

DEV float of_bf16(u32 code) { return bits<float>(code << 16); }

// The scale, as bf16, of a row whose largest magnitude has these bits: that magnitude over 448, rounded to nearest
// even, at least 2^-126. The largest scale is 146 * 2^112: 448 times as much is finite, and so is the factor for loads.
DEV u32 e4m3_scale(u32 max_bits) {
    u32 quotient = bits<u32>(quotient_of(bits<float>(max_bits), 448.0f, 1.0f / 448.0f));
    u32 scale = max_of((quotient + 0x7fffu + (quotient >> 16 & 1)) >> 16, 0x0080u);
    return max_bits < FINITE ? scale : NOT_A_NUMBER >> 16;
}

} // namespace kv
