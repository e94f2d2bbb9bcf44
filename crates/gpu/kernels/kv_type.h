// Storage types of the KV cache: templates that write and read a head, one struct per type. The modules of kernels/kv
// are compiled once per types of keys and values (src/kv_types.rs), with -DKEY_TYPE=F16 -DVALUE_TYPE=F16 and so on, and
// call these `KeyType` and `ValueType`.
//
// K and V of a layer are two planes each, so that all loads are whole aligned words: codes [n_rows, dim], then scales
// [n_rows, n_scales]. A row is one head at one position: n_rows counts [n_blocks, n_kv_heads, page].
//
//     type     code               scales of a row                     value
//     F16      f16                none                                the code; nearest even
//     Q8_0     int8               f16, one per 32 values              code * scale, bit for bit as gguf's Q8_0 blocks
//     F8E4M3   e4m3fn of OCP 1.0  bf16, one                           code * scale, bit for bit as gguf's f8 rows
//     Q5_1     lower 4 of 5 bits  8 bytes per 32 values: f16 scale,   code * scale + minimum, as gguf's Q5_1 blocks
//                                 f16 minimum, and 32 fifth bits
//     Q4_0     4 bits             f16, one per 32 values              (code - 8) * scale, as gguf's Q4_0 blocks
//
// Codes of 4 bits are eight in a word: value i of a row is nibble i % 8 of word i / 8, counted from the lowest, and bit
// i % 32 is its fifth bit. Their rows are whole blocks of 16 bytes. Before values become such codes, hadamard.h rotates
// their head.
//
// Why F8E4M3 has a scale: codes end at 448 and have all three mantissa bits only down to 2^-6. Keys of models whose
// projections have a bias (Qwen2) contain values of several hundreds in a few dimensions, which would saturate, and
// values of early layers lie below 2^-6, where a code has one significant bit or none. The scale maps the largest
// magnitude of the row to 448; it costs two bytes per head and one multiplication per score. The product of a code (4
// bits) and a scale (8 bits) is exact. One scale per head and token instead of a constant per layer: there is nothing
// to calibrate, and a token's bits do not depend on other tokens. Bits are the same on every device and on the CPU.
//
// A row with a value that is not finite has NaN scales, so that its attention is NaN, as with F16. The codes 0x7f, 0x80
// and 0xff are never stored: they are NaN, -0 and NaN in OCP e4m3fn, but 240, NaN and -240 in the FNUZ form that gfx942
// converts.
#pragma once
#include "hadamard.h"
#include "kv_codes.h"

namespace kv {

struct Planes {
    u8* codes;
    u8* scales;
    FIELDS(codes, scales)
};

// What a scale covers. Within: a block with more than a scale, which is part of `Eight`.
enum class Scales { None, Block, Row, Within };

// Values per block, for types with one scale per block.
constexpr u32 BLOCK = 32;

// ---------------------------------------------------------------------------------------------- values of a lane
// Reads V neighbouring values, 1 or 8, of a row in shared memory; 0 past its end.
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
// Each type has
// - SCALES, whether it ROTATES heads, CODE_BITS of a value in the first plane, and the bytes of a row's codes and
//   scales;
// - Eight: eight neighbouring codes of a row as loaded, and load() of those from value `at` on, a multiple of 8;
//   unpack() converts them to f32, to be multiplied with
// - factor(load_scale()), the scale of value `at` of a row; 1 for types without scales apart from `Eight`;
// - one(), the value `at` of a row.
struct F16 {
    static constexpr Scales SCALES = Scales::None;
    static constexpr bool ROTATES = false;
    static constexpr u32 CODE_BITS = 16;
    DEV_MEMBER static u32 code_bytes(u32 dim) { return 2 * dim; }
    DEV_MEMBER static u32 scale_bytes(u32) { return 0; }
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
    static constexpr bool ROTATES = false;
    static constexpr u32 CODE_BITS = 8;
    DEV_MEMBER static u32 code_bytes(u32 dim) { return dim; }
    DEV_MEMBER static u32x2 load8(const Planes& from, u64 row, u32 dim, u32 at) {
        return *(const u32x2*)(from.codes + row * dim + at);
    }
};

struct Q8_0 : Bytes {
    static constexpr Scales SCALES = Scales::Block;
    DEV_MEMBER static u32 scale_bytes(u32 dim) { return 2 * div_up(dim, BLOCK); }
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
    // See store_row(). Divisions by 127 are exact for every number: subnormal quotients are multiples of the least f32,
    // and so are remainders.
    template <u32 V> DEV_MEMBER static void store(const Planes& to, u64 row, u32 dim, u32 n, const float* x) {
        for (u32 first = 0; first < n; first += TEAM * V) {
            const u32 at = first + tid() % TEAM * V;
            float v[V];
            read<V>(x, at, dim, v);
            const u32 max_bits = group_reduce<Max, BLOCK / V>(largest<V>(v));
            const bool is_number = max_bits < FINITE;
            const float d = quotient_of(bits<float>(max_bits), 127.0f, 1.0f / 127.0f), up = up_of(max_bits);
            // 1 / d is this times `up`; it is infinite from UP on.
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
            if (at % BLOCK == 0) ((u16*)to.scales)[row * div_up(dim, BLOCK) + at / BLOCK] = is_number ? f2h(d) : 0x7e00;
        }
    }
};

struct F8E4M3 : Bytes {
    static constexpr Scales SCALES = Scales::Row;
    DEV_MEMBER static u32 scale_bytes(u32) { return 2; }
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
        // Divided, not multiplied by an inverse, so that the code is the nearest to the exact quotient (gguf's f8).
        // Quotients that are not normal have code 0.
        const float up = up_of(max_bits), divisor = of_bf16(scale) * up, inverse = inverse_of(divisor);
        for (u32 at = first; at < dim; at += TEAM * V) {
            if (at != first) read<V>(x, at, dim, v);
            u32 codes[(V + 3) / 4] = {};
            if (max_bits < FINITE) {
#pragma unroll
                for (u32 i = 0; i < V; i += 4) {
                    float quotients[4] = {};
#pragma unroll
                    for (u32 j = 0; j < 4 && i + j < V; j++)
                        quotients[j] = quotient_of(v[i + j] * up, divisor, inverse);
                    codes[i / 4] = to_e4m3x4(quotients);
                }
            }
            write_codes<V>(to.codes + row * dim + at, codes);
            if (at == 0) ((u16*)to.scales)[row] = (u16)scale;
        }
    }
};

struct Nibbles {
    static constexpr bool ROTATES = true;
    static constexpr u32 CODE_BITS = 4;
    typedef u16 Scale;
    DEV_MEMBER static u32 whole(u32 dim) { return div_up(dim, BLOCK) * BLOCK; }
    DEV_MEMBER static u32 code_bytes(u32 dim) { return whole(dim) / 2; }
    // The codes of the eight values from `at` on.
    DEV_MEMBER static u32 load_word(const Planes& from, u64 row, u32 dim, u32 at) {
        return *(const u32*)(from.codes + row * code_bytes(dim) + at / 8 * 4);
    }
    // Block of value `at`, counted over all rows.
    DEV_MEMBER static u64 block_of(u64 row, u32 dim, u32 at) { return row * div_up(dim, BLOCK) + at / BLOCK; }

    // Writes the codes of V values from `at` on; those past the end of the row, up to whole blocks, are 0. All lanes of the
    // wave must call it.
    template <u32 V> DEV_MEMBER static void write(const Planes& to, u64 row, u32 dim, u32 at, const u32* codes) {
        u8* place = to.codes + row * code_bytes(dim) + at / 2;
        if constexpr (V == 1) {
            // Neighbouring lanes share a byte; heads have an even number of values.
            const u32 next = shuffle_xor(codes[0], 1);
            if (at < whole(dim) && at % 2 == 0) *place = (u8)(codes[0] | next << 4);
        } else {
            u32 word = 0;
#pragma unroll
            for (u32 i = 0; i < 8; i++) word |= codes[i] << 4 * i;
            if (at < whole(dim)) *(u32*)place = word;
        }
    }
};

// From this magnitude on, a difference of two values may not be finite.
constexpr u32 TOO_LARGE = 0x7f000000u;

// The code of x, the multiple of 1 / inverse and a half more, rounded down and at most `most`; x and the inverse as in
// store(), which is infinite from UP on.
DEV u32 small_code(float x, float inverse, float half, u32 most) {
    const float multiple = __builtin_fabsf(inverse) < UP ? product(x, inverse) : x * (inverse * UP * UP);
    const float rounded = multiple + half;
    // Not a number: 0.
    return rounded >= (float)most ? most : rounded > 0.0f ? (u32)rounded : 0;
}

struct Q4_0 : Nibbles {
    static constexpr Scales SCALES = Scales::Block;
    DEV_MEMBER static u32 scale_bytes(u32 dim) { return 2 * div_up(dim, BLOCK); }
    struct Eight {
        u32 codes;
        DEV_MEMBER void unpack(float* to) const {
#pragma unroll
            for (u32 i = 0; i < 8; i++) to[i] = of_nibble(codes, i) - 8.0f;
        }
    };
#if defined(GPU_NVIDIA)
    DEV_MEMBER static void halves(u32 word, u32* to) { halves_of_nibbles(word, to); }
#endif
    DEV_MEMBER static Eight load(const Planes& from, u64 row, u32 dim, u32 at) { return {load_word(from, row, dim, at)}; }
    DEV_MEMBER static Scale load_scale(const Planes& from, u64 row, u32 dim, u32 at) {
        return ((const u16*)from.scales)[block_of(row, dim, at)];
    }
    DEV_MEMBER static float factor(Scale scale) { return h2f(scale); }
    DEV_MEMBER static float one(const Planes& from, u64 row, u32 dim, u32 at) {
        const u32 codes = load_word(from, row, dim, at);
        return ((float)(codes >> at % 8 * 4 & 15) - 8.0f) * factor(load_scale(from, row, dim, at));
    }
    // See store_row(). The value of largest magnitude, the first of equals, becomes -8.
    template <u32 V> DEV_MEMBER static void store(const Planes& to, u64 row, u32 dim, u32 n, const float* x) {
        for (u32 first = 0; first < n; first += TEAM * V) {
            const u32 at = first + tid() % TEAM * V;
            float v[V];
            read<V>(x, at, dim, v);
            const u32 max_bits = group_reduce<Max, BLOCK / V>(largest<V>(v));
            const bool is_number = max_bits < TOO_LARGE;
            // How far from the end of the block, and its sign.
            u32 extreme = 0;
#pragma unroll
            for (u32 i = 0; i < V; i++) {
                const u32 b = bits<u32>(v[i]), place = (BLOCK - 1 - (at + i) % BLOCK) * 2 | b >> 31;
                if ((b & 0x7fffffffu) == max_bits && max_bits != 0) extreme = max_of(extreme, place);
            }
            extreme = group_reduce<Max, BLOCK / V>(extreme);
            const float magnitude = bits<float>(max_bits) * 0.125f, d = extreme & 1 ? magnitude : -magnitude;
            const float up = up_of(max_bits), inverse = d == 0.0f ? 0.0f : inverse_of(d * up);
            u32 codes[V] = {};
#pragma unroll
            for (u32 i = 0; i < V; i++)
                if (is_number && at < dim) codes[i] = small_code(v[i] * up, inverse, 8.5f, 15);
            write<V>(to, row, dim, at, codes);
            if (at < dim && at % BLOCK == 0) ((u16*)to.scales)[block_of(row, dim, at)] = is_number ? f2h(d) : 0x7e00;
        }
    }
};

struct Q5_1 : Nibbles {
    static constexpr Scales SCALES = Scales::Within;
    DEV_MEMBER static Scale load_scale(const Planes&, u64, u32, u32) { return 0; }
    DEV_MEMBER static float factor(Scale) { return 1.0f; }
    DEV_MEMBER static u32 scale_bytes(u32 dim) { return 8 * div_up(dim, BLOCK); }
    struct Eight {
        u32 codes;
        // Scale and minimum, and the fifth bits.
        u32 scales;
        u32 high;
        DEV_MEMBER void unpack(float* to) const {
            const float d = h2f((u16)scales), min = h2f((u16)(scales >> 16));
#pragma unroll
            for (u32 i = 0; i < 8; i++)
                to[i] = fma(of_nibble(codes, i) + (high >> i & 1 ? 16.0f : 0.0f), d, min);
        }
    };
    DEV_MEMBER static Eight load(const Planes& from, u64 row, u32 dim, u32 at) {
        const u32x2 scales = ((const u32x2*)from.scales)[block_of(row, dim, at)];
        return {load_word(from, row, dim, at), scales[0], scales[1] >> at % BLOCK};
    }
    DEV_MEMBER static float one(const Planes& from, u64 row, u32 dim, u32 at) {
        const Eight eight = load(from, row, dim, at & ~7u);
        const u32 code = (eight.codes >> at % 8 * 4 & 15) | (eight.high >> at % 8 & 1) << 4;
        return fma((float)code, h2f((u16)eight.scales), h2f((u16)(eight.scales >> 16)));
    }
    // See store_row(). Quotients by 31 as those by 127 of Q8_0.
    template <u32 V> DEV_MEMBER static void store(const Planes& to, u64 row, u32 dim, u32 n, const float* x) {
        for (u32 first = 0; first < n; first += TEAM * V) {
            const u32 at = first + tid() % TEAM * V;
            float v[V];
            read<V>(x, at, dim, v);
            const bool is_number = group_reduce<Max, BLOCK / V>(largest<V>(v)) < TOO_LARGE;
            constexpr float LOWEST = -3.402823466e38f;
            float greatest = LOWEST, negated = LOWEST;
#pragma unroll
            for (u32 i = 0; i < V; i++)
                if (at < dim) greatest = max_of(greatest, v[i]), negated = max_of(negated, -v[i]);
            greatest = group_reduce<Max, BLOCK / V>(greatest);
            // Never -0.
            const float min = -group_reduce<Max, BLOCK / V>(negated) + 0.0f;
            const float range = greatest - min, d = quotient_of(range, 31.0f, 1.0f / 31.0f);
            const float up = up_of(bits<u32>(range)), inverse = d == 0.0f ? 0.0f : inverse_of(d * up);
            u32 low[V] = {}, high = 0;
#pragma unroll
            for (u32 i = 0; i < V; i++) {
                const u32 code = is_number && at < dim ? small_code((v[i] - min) * up, inverse, 0.5f, 31) : 0;
                low[i] = code & 15;
                high |= code >> 4 << (at + i) % BLOCK;
            }
            write<V>(to, row, dim, at, low);
            high = group_reduce<Or, BLOCK / V>(high);
            if (at < dim && at % BLOCK == 0)
                ((u32x2*)to.scales)[block_of(row, dim, at)] = {
                    {is_number ? f2h(d) | (u32)f2h(min) << 16 : 0x7e00u, high}};
        }
    }
};

// Writes x [dim] from shared memory to a row of a type with scales, by a team of 32 lanes (team.h). Each lane writes V
// neighbouring values: 1, or 8 if rows are whole eights and 16-byte aligned. All lanes of the wave must call it with
// the same n, the largest dim among them; a team with nothing to write has a dim of 0.
template <typename Type, u32 V> DEV void store_row(const Planes& to, u64 row, u32 dim, u32 n, const float* x) {
    // A wave that is one team need not wait for another.
    if (WARP_SIZE == TEAM && uniform(dim) == 0) return;
    Type::template store<V>(to, row, dim, n, x);
}

// Rotates x [dim] in shared memory, parts of `len` values, and writes it to a row, as store_row(). `longest` is the largest
// `len` of all lanes: if it is more than 1, rows are aligned whole eights.
template <typename Type, u32 V>
DEV void rotate_and_store(const Planes& to, u64 row, u32 dim, u32 n, u32 len, u32 longest, float* x) {
    if constexpr (Type::ROTATES) {
        if (WARP_SIZE == TEAM && uniform(dim) == 0) return;
        if (longest > 1) rotate_row(x, len > 1 ? dim : 0, n, len);
        wave_barrier(x, n * 4);
    }
    store_row<Type, V>(to, row, dim, n, x);
}

// Eight values of a row and their scale, on their way to shared memory as f16.
template <typename Type> struct Piece {
    typename Type::Eight eight;
    typename Type::Scale scale;

    DEV_MEMBER static Piece load(const Planes& from, u64 row, u32 dim, u32 at) {
        return {Type::load(from, row, dim, at), Type::load_scale(from, row, dim, at)};
    }
    // Values of types with scales have more significant bits than f16 and are rounded to nearest even.
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

#if defined(KEY_TYPE)
using KeyType = kv::KEY_TYPE;
using ValueType = kv::VALUE_TYPE;
// Values in their keys have one type with them.
constexpr bool ONE_TYPE = __is_same(KeyType, ValueType);
#endif
