// How cached keys and values are stored: the templates that write a head and read it again, one struct for each type.
// The modules of kernels/kv are compiled once for each, with -DKV_TYPE=F16 and so on, and name theirs `Kv`.
//
// K and V of a layer are two planes each, so that every load is of whole aligned words: codes [n_rows, dim], then scales
// [n_rows, n_scales]. A row is one head at one position: n_rows counts [n_blocks, n_kv_heads, page].
//
//     type     code               scales of a row                     value
//     F16      f16                none                                the code; nearest even
//     Q8_0     int8               f16, one for 32 values              code * scale, as blocks of gguf's Q8_0 bit by bit
//     F8E4M3   e4m3fn of OCP 1.0  bf16, one                           code * scale, as rows of gguf's f8 bit by bit
//
// Why F8E4M3 has a scale: a code ends at 448 and has its three bits of mantissa down to 2^-6 only. Keys of models whose
// projections have a bias (Qwen2) have values of several hundreds in a few dimensions, which would saturate, and values
// of early layers lie below 2^-6, where what is left of a code is one bit or none. It brings the largest magnitude of the
// row to 448, for two bytes of a head and one multiplication of a score. The product of a code, 4 bits, and a scale, 8, is
// exact. One for a head of a token rather than a constant of the layer: there is nothing to calibrate, and a token's bits
// do not depend on others. Bits are the same on every device and on the CPU.
//
// A row with a value that is not finite has scales that are not numbers, so that its attention is none, as with F16.
// The codes 0x7f, 0x80 and 0xff are never stored: they are NaN, -0 and NaN in OCP's e4m3fn, and 240, NaN and -240 in the
// FNUZ form that gfx942 converts.
#pragma once
#include "team.h"

#if defined(GPU_HOST)
namespace host {
// What a GPU's instructions make of an fp8 code, by the formats' definitions: bias 7 is OCP's e4m3fn, 8 the FNUZ form.
static float float_of_fp8(u8 code, u32 bias) {
    if (bias == 8 ? code == 0x80 : (code & 0x7f) == 0x7f) return __builtin_nanf("");
    i32 exponent = code >> 3 & 15, mantissa = code & 7;
    i32 lowest = exponent ? exponent : 1;
    float magnitude = __builtin_ldexpf(exponent ? 8 + mantissa : mantissa, lowest - (i32)bias - 3);
    return code & 0x80 ? -magnitude : magnitude;
}
} // namespace host
#endif

DEV u32 pack_halves(float low, float high) {
#if defined(GPU_NV)
    u32 both;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
#else
    return f2h(low) | (u32)f2h(high) << 16;
#endif
}

namespace kv {

struct Planes {
    u8* codes;
    u8* scales;
};

// What a scale belongs to.
enum class Scales { None, Block, Row };

// Values of a block with a scale of its own.
constexpr u32 BLOCK = 32;

constexpr u32 FINITE = 0x7f800000u, NOT_A_NUMBER = 0x7fc00000u;

// ---------------------------------------------------------------------------------------------- conversions
// Eight int8, exactly.
DEV void unpack_i8(u32x2 codes, float* to) {
#pragma unroll
    for (u32 i = 0; i < 8; i++) {
#if defined(GPU_NV)
        // 2^23 + 128 + code by its bits: conversions of bytes are slow.
        u32 biased = __nvvm_prmt(codes[i / 4] ^ 0x80808080u, 0x4b000000u, 0x7440 + i % 4);
        to[i] = bits<float>(biased) - 8388736.0f;
#else
        // Fewer instructions on AMD GPUs than to extend the sign of each.
        to[i] = (float)((codes[i / 4] ^ 0x80808080u) >> i % 4 * 8 & 0xff) - 128.0f;
#endif
    }
}

// Eight e4m3 codes as values that are 2^E4M3_SHIFT times too small; exactly.
#if defined(GPU_NV) && __CUDA_ARCH__ >= 890
constexpr u32 E4M3_SHIFT = 0;
DEV u32 e4m3_pair(u16 codes) {
    u32 halves;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(codes));
    return halves;
}
#elif defined(GPU_HOST) && defined(GPU_NVIDIA)
constexpr u32 E4M3_SHIFT = 0;
DEV u32 e4m3_pair(u16 codes) {
    return f2h(host::float_of_fp8((u8)codes, 7)) | (u32)f2h(host::float_of_fp8((u8)(codes >> 8), 7)) << 16;
}
#elif defined(__gfx1200__) || defined(__gfx1201__)
#define E4M3_TO_FLOATS
constexpr u32 E4M3_SHIFT = 0;
#elif defined(__gfx942__)
// FNUZ: the same bits are half as much.
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
#if defined(E4M3_TO_FLOATS) && defined(GPU_AMD)
        auto low = __builtin_amdgcn_cvt_pk_f32_fp8((i32)word, false);
        auto high = __builtin_amdgcn_cvt_pk_f32_fp8((i32)word, true);
        v[0] = low[0], v[1] = low[1], v[2] = high[0], v[3] = high[1];
#elif defined(E4M3_TO_FLOATS)
        for (u32 j = 0; j < 4; j++) v[j] = host::float_of_fp8((u8)(word >> 8 * j), 7 + E4M3_SHIFT);
#elif defined(E4M3_BY_BITS)
        // An f16 with the same exponent and mantissa bits, two at a time: its bias is 8 more, subnormal numbers as well.
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
// For matrix units: halves() gives the codes of a word in their order as f16, exactly, two to a word.

// Nibbles of `select`, the lowest first, choose among the eight bytes of low and high.
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
    // 1024 + 128 + code by its bits.
    u32 biased = codes ^ 0x80808080u;
    f16_vec2 bias = {1152.0f16, 1152.0f16};
    to[0] = bits<u32>(bits<f16_vec2>(pick_bytes(biased, THOUSANDS, 0x4140)) - bias);
    to[1] = bits<u32>(bits<f16_vec2>(pick_bytes(biased, THOUSANDS, 0x4342)) - bias);
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

// The low bytes of four words.
DEV u32 pack_bytes(u32 a, u32 b, u32 c, u32 d) {
#if defined(GPU_NV)
    return __nvvm_prmt(__nvvm_prmt(a, b, 0x0040), __nvvm_prmt(c, d, 0x0040), 0x5410);
#else
    return (a & 0xff) | (b & 0xff) << 8 | (c & 0xff) << 16 | d << 24;
#endif
}

// 1 / x to nearest even, for x from 2^-125 to 2^125.
DEV float inverse_of(float x) {
#if defined(GPU_NV)
    // What rcp.rn.f32 does with such numbers, without its branch for others.
    float r;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    return fma(r, fma(-x, r, 1.0f), r);
#else
    return 1.0f / x;
#endif
}

// x / divisor to nearest even, for a divisor of at most 8 bits whose inverse is given, within two units in the last place;
// x / divisor is normal. No branch, unlike `/`.
//
// The first quotient is wrong by a few units in its last place, so what remains of x has few bits and is exact. The sum
// before it is rounded is wrong by less than 2^-16 of a unit, and x / divisor is at least 2^-9 of one from the middle of two
// numbers: the middle times the divisor has more bits than x has.
DEV float quotient_of(float x, float divisor, float inverse) {
    float quotient = x * inverse;
    return fma(fma(-quotient, divisor, x), inverse, quotient);
}

// Small numbers are multiplied with this before they are divided, exactly, so that nothing underflows.
constexpr float UP = 18446744073709551616.0f;
DEV float up_of(u32 max_bits) { return max_bits < bits<u32>(1.0f / (1ull << 56)) ? UP : 1.0f; }

// The int8 code of x in its low byte: x * inverse, rounded to f32, to nearest even.
DEV u32 to_i8(float x, float inverse) {
#if defined(GPU_NV)
    // Conversions are slow. In a product that the compiler fuses with the sum, the first rounding would be missing.
    float product;
    asm("mul.rn.f32 %0, %1, %2;" : "=f"(product) : "f"(x), "f"(inverse));
    return bits<u32>(product + 12582912.0f);
#else
    return (u32)(i32)round_even(x * inverse);
#endif
}

// The e4m3 code nearest to x, ties to even, at most 448; zeros have the sign of x.
DEV u32 to_e4m3(float x) {
    u32 sign = bits<u32>(x) >> 24 & 0x80, magnitude = bits<u32>(x) & 0x7fffffffu;
    // Below 2^-6 in steps of 2^-9, those of f32 at 2^14; above, three bits of mantissa.
    u32 subnormal = bits<u32>(bits<float>(magnitude) + 16384.0f) - bits<u32>(16384.0f);
    u32 normal = ((magnitude + 0x7ffffu + (magnitude >> 20 & 1)) >> 20) - (120u << 3);
    return sign | min_of(magnitude < bits<u32>(0.015625f) ? subnormal : normal, 0x7eu);
}

// Those of four numbers; never -0.
DEV u32 to_e4m3x4(const float* x) {
#if defined(GPU_NV) && __CUDA_ARCH__ >= 890
    u16 low, high;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(low) : "f"(x[1]), "f"(x[0]));
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(high) : "f"(x[3]), "f"(x[2]));
    u32 word = low | (u32)high << 16;
#else
    u32 word = pack_bytes(to_e4m3(x[0]), to_e4m3(x[1]), to_e4m3(x[2]), to_e4m3(x[3]));
#endif
    // A magnitude carries into the sign unless it is 0.
    u32 carried = (word & 0x7f7f7f7fu) + 0x7f7f7f7fu;
    return word & (carried | 0x7f7f7f7fu);
}

DEV float of_bf16(u32 code) { return bits<float>(code << 16); }

// The scale, as bf16, of a row whose largest magnitude has these bits: that over 448, to nearest even, at least 2^-126. The
// largest is 146 * 2^112: 448 times as much is finite, and so is the factor that loads need.
DEV u32 e4m3_scale(u32 max_bits) {
    u32 quotient = bits<u32>(quotient_of(bits<float>(max_bits), 448.0f, 1.0f / 448.0f));
    u32 scale = max_of((quotient + 0x7fffu + (quotient >> 16 & 1)) >> 16, 0x0080u);
    return max_bits < FINITE ? scale : NOT_A_NUMBER >> 16;
}

// ---------------------------------------------------------------------------------------------- values of a lane
// V neighbouring ones, 1 or 8, of a row in shared memory; 0 past its end.
template <u32 V> DEV void read(const float* x, u32 at, u32 dim, float* v) {
    const bool is_in = at < dim;
    if constexpr (V == 1) {
        v[0] = is_in ? x[at] : 0.0f;
    } else {
#pragma unroll
        for (u32 i = 0; i < V; i += 4) {
            u32x4 four = is_in ? load16(x + at + i) : u32x4{};
#pragma unroll
            for (u32 j = 0; j < 4; j++) v[i + j] = bits<float>(four[j]);
        }
    }
}

// The bits of the largest magnitude.
template <u32 V> DEV u32 largest(const float* v) {
    u32 max_bits[V];
#pragma unroll
    for (u32 i = 0; i < V; i++) max_bits[i] = bits<u32>(v[i]) & 0x7fffffffu;
#pragma unroll
    for (u32 n = V / 2; n > 0; n /= 2)
#pragma unroll
        for (u32 i = 0; i < n; i++) max_bits[i] = max_of(max_bits[i], max_bits[i + n]);
    return max_bits[0];
}

template <u32 V> DEV void write_codes(u8* to, const u32* codes) {
    if constexpr (V == 1) *to = (u8)codes[0];
    else *(u32x2*)to = {{codes[0], codes[1]}};
}

// ---------------------------------------------------------------------------------------------- types
// Each has
//   SCALES, CODE_BYTES;
//   Eight, eight neighbouring codes of a row as loaded, and load() of those from value `at` on, a multiple of 8;
//     unpack() gives them as f32, to be multiplied with
//   factor(load_scale()), the scale of value `at` of a row; 1 where there are none.
struct F16 {
    static constexpr Scales SCALES = Scales::None;
    static constexpr u32 CODE_BYTES = 2;
    struct Eight {
        u32x4 raw;
        DEV_MEMBER void unpack(float* to) const {
#pragma unroll
            for (u32 i = 0; i < 8; i++) to[i] = h2f((u16)(raw.v[i / 2] >> (i % 2 * 16)));
        }
    };
    typedef u16 Scale;
    DEV_MEMBER static Eight load(const Planes& from, u64 row, u32 dim, u32 at) {
        return {load16((const u16*)from.codes + row * dim + at)};
    }
    DEV_MEMBER static Scale load_scale(const Planes&, u64, u32, u32) { return 0; }
    DEV_MEMBER static float factor(Scale) { return 1.0f; }
#if defined(GPU_NVIDIA)
    DEV_MEMBER static void halves(u32 word, u32* to) { to[0] = word; }
#endif
    DEV_MEMBER static float one(const Planes& from, u64 row, u32 dim, u32 at) {
        return h2f(((const u16*)from.codes)[row * dim + at]);
    }
};

struct Bytes {
    static constexpr u32 CODE_BYTES = 1;
    DEV_MEMBER static u32x2 load8(const Planes& from, u64 row, u32 dim, u32 at) {
        return *(const u32x2*)(from.codes + row * dim + at);
    }
};

struct Q8_0 : Bytes {
    static constexpr Scales SCALES = Scales::Block;
    struct Eight {
        u32x2 raw;
        DEV_MEMBER void unpack(float* to) const { unpack_i8(raw, to); }
    };
#if defined(GPU_NVIDIA)
    DEV_MEMBER static void halves(u32 word, u32* to) { halves_of_i8(word, to); }
#endif
    typedef u16 Scale;
    DEV_MEMBER static Eight load(const Planes& from, u64 row, u32 dim, u32 at) { return {load8(from, row, dim, at)}; }
    DEV_MEMBER static Scale load_scale(const Planes& from, u64 row, u32 dim, u32 at) {
        return ((const u16*)from.scales)[row * div_up(dim, BLOCK) + at / BLOCK];
    }
    DEV_MEMBER static float factor(Scale scale) { return h2f(scale); }
    DEV_MEMBER static float one(const Planes& from, u64 row, u32 dim, u32 at) {
        return (float)(i8)from.codes[row * dim + at] * factor(load_scale(from, row, dim, at));
    }
    // See store_row(). Divisions by 127 are right for every number: subnormal quotients are multiples of the least f32, and
    // so is what remains.
    template <u32 V> DEV_MEMBER static void store(const Planes& to, u64 row, u32 dim, u32 n, const float* x) {
        for (u32 first = 0; first < n; first += TEAM * V) {
            const u32 at = first + tid() % TEAM * V;
            float v[V];
            read<V>(x, at, dim, v);
            const u32 max_bits = group_reduce<Max, BLOCK / V>(largest<V>(v));
            const bool is_number = max_bits < FINITE;
            const float d = quotient_of(bits<float>(max_bits), 127.0f, 1.0f / 127.0f), up = up_of(max_bits);
            // 1 / d is this times `up`, and infinite from there on.
            const float inverse = inverse_of(d * up);
            if (at >= dim) continue;
            u32 codes[(V + 3) / 4] = {};
            if (is_number && inverse < UP) {
#pragma unroll
                for (u32 i = 0; i < V; i += 4) {
                    u32 byte[4] = {};
#pragma unroll
                    for (u32 j = 0; j < 4 && i + j < V; j++) byte[j] = to_i8(v[i + j] * up, inverse);
                    codes[i / 4] = pack_bytes(byte[0], byte[1], byte[2], byte[3]);
                }
            }
            write_codes<V>(to.codes + row * dim + at, codes);
            if (at % BLOCK == 0)
                ((u16*)to.scales)[row * div_up(dim, BLOCK) + at / BLOCK] = is_number ? f2h(d) : 0x7e00;
        }
    }
};

struct F8E4M3 : Bytes {
    static constexpr Scales SCALES = Scales::Row;
    struct Eight {
        u32x2 raw;
        DEV_MEMBER void unpack(float* to) const { unpack_e4m3(raw, to); }
    };
#if defined(GPU_NVIDIA)
    DEV_MEMBER static void halves(u32 word, u32* to) { halves_of_e4m3(word, to); }
#endif
    typedef u16 Scale;
    DEV_MEMBER static Eight load(const Planes& from, u64 row, u32 dim, u32 at) { return {load8(from, row, dim, at)}; }
    DEV_MEMBER static Scale load_scale(const Planes& from, u64 row, u32, u32) { return ((const u16*)from.scales)[row]; }
    DEV_MEMBER static float factor(Scale scale) { return of_bf16(scale) * (float)(1u << E4M3_SHIFT); }
    DEV_MEMBER static float one(const Planes& from, u64 row, u32 dim, u32 at) {
        float values[8];
        unpack_e4m3({{from.codes[row * dim + at], 0}}, values);
        return values[0] * factor(load_scale(from, row, dim, at));
    }
    // See store_row().
    template <u32 V> DEV_MEMBER static void store(const Planes& to, u64 row, u32 dim, u32, const float* x) {
        const u32 first = tid() % TEAM * V;
        float v[V];
        read<V>(x, first, dim, v);
        u32 max_bits = largest<V>(v);
#pragma unroll 1
        for (u32 at = first + TEAM * V; at < dim; at += TEAM * V) {
            float more[V];
            read<V>(x, at, dim, more);
            max_bits = max_of(max_bits, largest<V>(more));
        }
        max_bits = group_reduce<Max, TEAM>(max_bits);
        const u32 scale = e4m3_scale(max_bits);
        // Divided, not multiplied with an inverse: so the code is the nearest to the exact quotient (gguf's f8). Quotients
        // that are not normal have code 0.
        const float up = up_of(max_bits), divisor = of_bf16(scale) * up, inverse = inverse_of(divisor);
        for (u32 at = first; at < dim; at += TEAM * V) {
            if (at != first) read<V>(x, at, dim, v);
            u32 codes[(V + 3) / 4] = {};
            if (max_bits < FINITE) {
#pragma unroll
                for (u32 i = 0; i < V; i += 4) {
                    float quotients[4] = {};
#pragma unroll
                    for (u32 j = 0; j < 4 && i + j < V; j++) quotients[j] = quotient_of(v[i + j] * up, divisor, inverse);
                    codes[i / 4] = to_e4m3x4(quotients);
                }
            }
            write_codes<V>(to.codes + row * dim + at, codes);
            if (at == 0) ((u16*)to.scales)[row] = (u16)scale;
        }
    }
};

// Writes x [dim], which is in shared memory, to a row of a type with scales: by a team of 32 lanes (team.h), V neighbouring
// values each: 1, or 8 of rows of whole eights at addresses of whole 16 bytes. All lanes of the wave arrive, with the same
// n, the largest dim among them; a team with nothing to write has a dim of 0.
template <typename Type, u32 V> DEV void store_row(const Planes& to, u64 row, u32 dim, u32 n, const float* x) {
    // Where a wave is one team, it need not meet another.
    if (WARP_SIZE == TEAM && uniform(dim) == 0) return;
    Type::template store<V>(to, row, dim, n, x);
}

// Eight values of a row and their scale, on their way to memory as f16.
template <typename Type> struct Piece {
    typename Type::Eight eight;
    typename Type::Scale scale;

    DEV_MEMBER static Piece load(const Planes& from, u64 row, u32 dim, u32 at) {
        return {Type::load(from, row, dim, at), Type::load_scale(from, row, dim, at)};
    }
    // Values of types with scales have up to 15 and 12 bits and are rounded to nearest even.
    DEV_MEMBER u32x4 halves() const {
        if constexpr (Type::SCALES == Scales::None) {
            return eight.raw;
        } else {
            float v[8], factor = Type::factor(scale);
            eight.unpack(v);
            u32x4 packed;
#pragma unroll
            for (u32 i = 0; i < 4; i++) packed.v[i] = pack_halves(v[2 * i] * factor, v[2 * i + 1] * factor);
            return packed;
        }
    }
};

} // namespace kv

#if defined(KV_TYPE)
using Kv = kv::KV_TYPE;
#endif
