// The weight formats: the only place on the GPU that knows their byte layouts. The scalar code of crates/gguf defines
// their meaning (after ggml's ggml-quants.c); values here are equal bit for bit.
//
// Kernels work on chunks: consecutive values of a row that one thread handles at a time. A format is a struct with
//
//     LEN, FILE_BYTES   values and bytes of a block in a file
//     CHUNK             values of a chunk: 32, or 16 bytes of float formats
//     PLANES            {values, bytes} of each plane: a field of `bytes` bytes per `values` values
//     fields(f)         visits the fields of the chunk in the order of the planes
//     from_file(b, j)   reads chunk j of the block at `b` (any alignment)
//
// `Block<T, Layout>` reads a row of chunks from either layout:
//
//     File     as in GGUF
//     Planes   by field: plane k of a matrix holds field k of all its blocks, row after row or in tiles, and starts at a multiple
//              of 256 bytes; rows are padded with zeros to a multiple of 32 values (float formats). Behind the planes is
//              the matrix's `Range`.
//
// Quantized rows of a matrix may lie in tiles of 16 rows (Hopper): a plane has 256 values of each of these, then the next 256 of
// each. A GEMM of few rows of activations reads 64 bytes of each row at a time, and is faster where the rows are close. A GEMV
// reads 512 bytes of a row, and is slower there. Kernels of a file that defines ROWS_APART take no matrices in tiles, as those of all
// other GPUs; kernels of a file that defines ROWS_IN_TILES take no others.
//
// In planes, the codes of 32 values are arranged so that a shift and a mask extract four at a time as bytes of a word
// (word w of 8 holds values 4w .. 4w + 3):
//
//     4 bits    16 bytes: word w % 4, low nibbles for w < 4, else high nibbles; as in the file's Q4_0
//     2 bits     8 bytes: word w / 4, bits 2 (w % 4) of each byte
//     1 bit      4 bytes: bit w of each byte
//     8 bits    two planes of 16 bytes, so that neighbouring lanes read neighbouring 16 bytes
#pragma once
#include "gpu.h"
#include "grids.h"

#if !defined(GPU_NVIDIA) || (defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900)
#define ROWS_APART
#endif
#if defined(ROWS_APART) && defined(ROWS_IN_TILES)
#error "a matrix lies in tiles or does not"
#endif

struct File {};
struct Planes {};

struct Plane {
    u32 values, bytes;
};

// Alignment of planes in bytes.
constexpr u32 PLANE_ALIGN = 256;
// Rows in planes are padded to a multiple of this many values.
constexpr u32 UNIT = 32;
// Rows of a tile, and values of a row that follow one another there.
constexpr u32 ROWS_PER_TILE = 16, RUN = 256;

// A matrix `[n_out, n_in]` in planes.
struct Weights {
    // The planes. The lowest bits are the number of the other rows of a tile: 0 if the rows do not lie in tiles.
    u8* data;
    u32 n_out;
    u32 n_in;
    FIELDS(data, n_out, n_in)
};
DEV u32 other_rows_of_tile([[maybe_unused]] const Weights& w) {
#if defined(ROWS_APART)
    return 0;
#elif defined(ROWS_IN_TILES)
    return ROWS_PER_TILE - 1;
#else
    return (u32)(u64)w.data & (PLANE_ALIGN - 1);
#endif
}
// The planes, without these bits.
DEV u8* planes_of(const Weights& w) { return w.data - other_rows_of_tile(w); }

// ---------------------------------------------------------------------------------------------- reading
template <typename P> DEV P stream(const u8* p) {
    if constexpr (sizeof(P) == 16) return stream16(p);
    else if constexpr (sizeof(P) == 8) return stream8(p);
    else if constexpr (sizeof(P) == 4) return stream4(p);
    else return *(const P*)p;
}
// Loads from any alignment.
template <typename P> DEV P unaligned(const u8* p) {
    P v;
    __builtin_memcpy(&v, p, sizeof(P));
    return v;
}

// a * b, rounded. Never part of a fused multiply-add, because dequantized values must have the bits of the scalar code.
DEV float mul_rounded(float a, float b) {
#if defined(GPU_NV)
    float r;
    asm("mul.rn.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
    return r;
#else
#pragma clang fp contract(off)
    return a * b;
#endif
}

// ---------------------------------------------------------------------------------------------- codes
// Four codes are the bytes of a word; `q` has the eight words of 32 values.
DEV u32 shifted(u32 v, i32 left) { return left >= 0 ? v << left : v >> -left; }
DEV void take_nibbles(u32x4 nibbles, u32* q) {
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
        q[i] = nibbles[i] & 0x0f0f0f0f;
        q[4 + i] = nibbles[i] >> 4 & 0x0f0f0f0f;
    }
}
// The two bits of each value, at bit `at` of its byte.
DEV u32 two_bits(u32x2 packed, u32 w, i32 at) {
    return shifted(packed[w / 4], at - 2 * (i32)(w % 4)) & 0x03030303u << at;
}
DEV u32 one_bit(u32 packed, u32 w, i32 at) { return shifted(packed, at - (i32)w) & 0x01010101u << at; }

// The same from files. `shift` selects the bits of the 32 bytes that belong to the chunk.
DEV u32x4 file_nibbles(const u8* bytes, u32 shift) {
    u32x4 r;
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
        u32 low = unaligned<u32>(bytes + 4 * i) >> shift & 0x0f0f0f0f;
        u32 high = unaligned<u32>(bytes + 16 + 4 * i) >> shift & 0x0f0f0f0f;
        r.v[i] = low | high << 4;
    }
    return r;
}
DEV u32x2 file_two_bits(const u8* bytes, u32 shift) {
    u32x2 r = {{0, 0}};
#pragma unroll
    for (u32 w = 0; w < 8; w++) r.v[w / 4] |= (unaligned<u32>(bytes + 4 * w) >> shift & 0x03030303) << 2 * (w % 4);
    return r;
}
DEV u32 file_one_bit(const u8* bytes, u32 shift) {
    u32 r = 0;
#pragma unroll
    for (u32 w = 0; w < 8; w++) r |= (unaligned<u32>(bytes + 4 * w) >> shift & 0x01010101) << w;
    return r;
}
// Moves bit j of `bits` to where value j belongs.
DEV u32 spread_bits(u32 bits) {
    u32 r = 0;
    for (u32 j = 0; j < 32; j++) r |= (bits >> j & 1) << (8 * (j % 4) + j / 4);
    return r;
}

// The values of sixteen codes, four per word.
struct Table16 {
    u32 v[4];
};
constexpr Table16 IQ4NL_VALUES = {{0xbfad9881, 0xf6eaddcf, 0x26190d01, 0x71594535}};
constexpr Table16 MXFP4_VALUES = {{0x03020100, 0x0c080604, 0xfdfeff00, 0xf4f8fafc}};

#if defined(GPU_NV)
DEV u32 permute(u32 low, u32 high, u32 select) { return __nvvm_prmt(low, high, select); }
// Nibbles of the lower half of `four` select the bytes.
DEV u32 look_up_nibbles(Table16 t, u32 four) {
    u32 below = permute(t.v[0], t.v[1], four & 0x7777);
    u32 above = permute(t.v[2], t.v[3], four & 0x7777);
    return permute(below, above, 0x3210 | (four & 0x8888) >> 1);
}
DEV void take_looked_up(Table16 t, u32x4 nibbles, u32* q) {
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
        u32 a = look_up_nibbles(t, nibbles[i]);
        u32 b = look_up_nibbles(t, nibbles[i] >> 16);
        q[i] = permute(a, b, 0x6420);
        q[4 + i] = permute(a, b, 0x7531);
    }
}
#else
// Bytes of `select` select from the eight bytes of low and high.
DEV u32 permute(u32 low, u32 high, u32 select) {
#if defined(GPU_AMD)
    return __builtin_amdgcn_perm(high, low, select);
#else
    u64 both = (u64)high << 32 | low;
    u32 r = 0;
    for (u32 i = 0; i < 4; i++) r |= (u32)(u8)(both >> 8 * (select >> 8 * i & 7)) << 8 * i;
    return r;
#endif
}
DEV u32 look_up_bytes(Table16 t, u32 codes) {
    u32 below = permute(t.v[0], t.v[1], codes & 0x07070707);
    u32 above = permute(t.v[2], t.v[3], codes & 0x07070707);
    return permute(below, above, 0x03020100 + (codes >> 1 & 0x04040404));
}
DEV void take_looked_up(Table16 t, u32x4 nibbles, u32* q) {
    take_nibbles(nibbles, q);
#pragma unroll
    for (u32 w = 0; w < 8; w++) q[w] = look_up_bytes(t, q[w]);
}
#endif

// 2^(e - 128), exact also where it is subnormal.
DEV float e8m0_half(u32 e) { return bits<float>(e < 2 ? 0x00200000u << e : (e - 1) << 23); }

// Half of an unsigned E4M3 scale, exactly. The code of NaN is 0; the highest bit means nothing.
DEV float e4m3_half(u32 code) {
    u32 exponent = code >> 3 & 15, mantissa = code & 7;
    u32 integer = code == 0x7f ? 0 : exponent ? mantissa | 8 : mantissa;
    return mul_rounded((float)(i32)integer, bits<float>((max_of(exponent, 1u) + 127 - 11) << 23));
}

// ---------------------------------------------------------------------------------------------- formats
// value = scale(h) * (code - OFFSET) - minimum(h), where h is the index of the group of GROUP values. `at` is the
// chunk's place in its block.
struct Codes32 {
    static constexpr u32 CHUNK = 32;
    static constexpr bool FLOAT = false;
    // Values per scale.
    static constexpr u32 GROUP = 32;
    // Activations per scale.
    static constexpr u32 ACT_BLOCK = 32;
    static constexpr i32 OFFSET = 0;
    static constexpr bool HAS_MIN = false;
    // Whether codes are the nibbles of a field `low`, and nothing else.
    static constexpr bool NIBBLES = false;
    DEV_MEMBER float minimum(u32, u32) const { return 0.0f; }
};

struct Q4_0 : Codes32 {
    static constexpr u32 LEN = 32, FILE_BYTES = 18, N_PLANES = 2;
    static constexpr Plane PLANES[] = {{32, 16}, {32, 2}};
    static constexpr i32 OFFSET = 8;
    static constexpr bool NIBBLES = true;
    u32x4 low;
    u16 d;
    template <typename F> DEV_MEMBER void fields(F f) { f.template on<0>(low), f.template on<1>(d); }
    DEV_MEMBER static Q4_0 from_file(const u8* b, u32) {
        Q4_0 c;
        c.d = unaligned<u16>(b);
        c.low = unaligned<u32x4>(b + 2);
        return c;
    }
    DEV_MEMBER void codes(u32* q) const { take_nibbles(low, q); }
    DEV_MEMBER float scale(u32, u32) const { return h2f(d); }
};

struct Q4_1 : Codes32 {
    static constexpr u32 LEN = 32, FILE_BYTES = 20, N_PLANES = 2;
    static constexpr Plane PLANES[] = {{32, 16}, {32, 4}};
    static constexpr bool HAS_MIN = true, NIBBLES = true;
    u32x4 low;
    // Scale in the low half, minimum in the high half.
    u32 dm;
    template <typename F> DEV_MEMBER void fields(F f) { f.template on<0>(low), f.template on<1>(dm); }
    DEV_MEMBER static Q4_1 from_file(const u8* b, u32) {
        Q4_1 c;
        c.dm = unaligned<u32>(b);
        c.low = unaligned<u32x4>(b + 4);
        return c;
    }
    DEV_MEMBER void codes(u32* q) const { take_nibbles(low, q); }
    DEV_MEMBER float scale(u32, u32) const { return h2f((u16)dm); }
    DEV_MEMBER float minimum(u32, u32) const { return -h2f((u16)(dm >> 16)); }
};

struct Q5_0 : Codes32 {
    static constexpr u32 LEN = 32, FILE_BYTES = 22, N_PLANES = 3;
    static constexpr Plane PLANES[] = {{32, 16}, {32, 4}, {32, 2}};
    static constexpr i32 OFFSET = 16;
    u32x4 low;
    u32 high;
    u16 d;
    template <typename F> DEV_MEMBER void fields(F f) {
        f.template on<0>(low), f.template on<1>(high), f.template on<2>(d);
    }
    DEV_MEMBER static Q5_0 from_file(const u8* b, u32) {
        Q5_0 c;
        c.d = unaligned<u16>(b);
        c.high = spread_bits(unaligned<u32>(b + 2));
        c.low = unaligned<u32x4>(b + 6);
        return c;
    }
    DEV_MEMBER void codes(u32* q) const {
        take_nibbles(low, q);
#pragma unroll
        for (u32 w = 0; w < 8; w++) q[w] |= one_bit(high, w, 4);
    }
    DEV_MEMBER float scale(u32, u32) const { return h2f(d); }
};

struct Q5_1 : Codes32 {
    static constexpr u32 LEN = 32, FILE_BYTES = 24, N_PLANES = 3;
    static constexpr Plane PLANES[] = {{32, 16}, {32, 4}, {32, 4}};
    static constexpr bool HAS_MIN = true;
    u32x4 low;
    u32 high;
    u32 dm;
    template <typename F> DEV_MEMBER void fields(F f) {
        f.template on<0>(low), f.template on<1>(high), f.template on<2>(dm);
    }
    DEV_MEMBER static Q5_1 from_file(const u8* b, u32) {
        Q5_1 c;
        c.dm = unaligned<u32>(b);
        c.high = spread_bits(unaligned<u32>(b + 4));
        c.low = unaligned<u32x4>(b + 8);
        return c;
    }
    DEV_MEMBER void codes(u32* q) const {
        take_nibbles(low, q);
#pragma unroll
        for (u32 w = 0; w < 8; w++) q[w] |= one_bit(high, w, 4);
    }
    DEV_MEMBER float scale(u32, u32) const { return h2f((u16)dm); }
    DEV_MEMBER float minimum(u32, u32) const { return -h2f((u16)(dm >> 16)); }
};

struct Q8_0 : Codes32 {
    static constexpr u32 LEN = 32, FILE_BYTES = 34, N_PLANES = 3;
    static constexpr Plane PLANES[] = {{32, 16}, {32, 16}, {32, 2}};
    u32x4 first, second;
    u16 d;
    template <typename F> DEV_MEMBER void fields(F f) {
        f.template on<0>(first), f.template on<1>(second), f.template on<2>(d);
    }
    DEV_MEMBER static Q8_0 from_file(const u8* b, u32) {
        Q8_0 c;
        c.d = unaligned<u16>(b);
        c.first = unaligned<u32x4>(b + 2);
        c.second = unaligned<u32x4>(b + 18);
        return c;
    }
    DEV_MEMBER void codes(u32* q) const {
#pragma unroll
        for (u32 i = 0; i < 4; i++) q[i] = first[i], q[4 + i] = second[i];
    }
    DEV_MEMBER float scale(u32, u32) const { return h2f(d); }
};

struct IQ4_NL : Codes32 {
    static constexpr u32 LEN = 32, FILE_BYTES = 18, N_PLANES = 2;
    static constexpr Plane PLANES[] = {{32, 16}, {32, 2}};
    u32x4 low;
    u16 d;
    template <typename F> DEV_MEMBER void fields(F f) { f.template on<0>(low), f.template on<1>(d); }
    DEV_MEMBER static IQ4_NL from_file(const u8* b, u32) {
        IQ4_NL c;
        c.d = unaligned<u16>(b);
        c.low = unaligned<u32x4>(b + 2);
        return c;
    }
    DEV_MEMBER void codes(u32* q) const { take_looked_up(IQ4NL_VALUES, low, q); }
    DEV_MEMBER float scale(u32, u32) const { return h2f(d); }
};

struct MXFP4 : Codes32 {
    static constexpr u32 LEN = 32, FILE_BYTES = 17, N_PLANES = 2;
    static constexpr Plane PLANES[] = {{32, 16}, {32, 1}};
    u32x4 low;
    u8 e;
    template <typename F> DEV_MEMBER void fields(F f) { f.template on<0>(low), f.template on<1>(e); }
    DEV_MEMBER static MXFP4 from_file(const u8* b, u32) {
        MXFP4 c;
        c.e = b[0];
        c.low = unaligned<u32x4>(b + 1);
        return c;
    }
    DEV_MEMBER void codes(u32* q) const { take_looked_up(MXFP4_VALUES, low, q); }
    DEV_MEMBER float scale(u32, u32) const { return e8m0_half(e); }
};

struct Q1_0 : Codes32 {
    static constexpr u32 LEN = 128, FILE_BYTES = 18, N_PLANES = 2;
    static constexpr Plane PLANES[] = {{32, 4}, {128, 2}};
    // Codes are 0 and 2.
    static constexpr i32 OFFSET = 1;
    u32 signs;
    u16 d;
    template <typename F> DEV_MEMBER void fields(F f) { f.template on<0>(signs), f.template on<1>(d); }
    DEV_MEMBER static Q1_0 from_file(const u8* b, u32 at) {
        Q1_0 c;
        c.d = unaligned<u16>(b);
        c.signs = spread_bits(unaligned<u32>(b + 2 + 4 * at));
        return c;
    }
    DEV_MEMBER void codes(u32* q) const {
#pragma unroll
        for (u32 w = 0; w < 8; w++) q[w] = one_bit(signs, w, 1);
    }
    DEV_MEMBER float scale(u32, u32) const { return h2f(d); }
};

struct Q2_0 : Codes32 {
    static constexpr u32 LEN = 64, FILE_BYTES = 18, N_PLANES = 2;
    static constexpr Plane PLANES[] = {{32, 8}, {64, 2}};
    static constexpr i32 OFFSET = 1;
    u32x2 low;
    u16 d;
    template <typename F> DEV_MEMBER void fields(F f) { f.template on<0>(low), f.template on<1>(d); }
    DEV_MEMBER static Q2_0 from_file(const u8* b, u32 at) {
        Q2_0 c;
        c.d = unaligned<u16>(b);
        c.low = u32x2{{0, 0}};
        // A byte has the codes of four values, which go to four bytes of a word.
        for (u32 w = 0; w < 8; w++) {
            u32 four = b[2 + 8 * at + w], bytes = 0;
            for (u32 k = 0; k < 4; k++) bytes |= (four >> 2 * k & 3) << 8 * k;
            c.low.v[w / 4] |= bytes << 2 * (w % 4);
        }
        return c;
    }
    DEV_MEMBER void codes(u32* q) const {
#pragma unroll
        for (u32 w = 0; w < 8; w++) q[w] = two_bits(low, w, 0);
    }
    DEV_MEMBER float scale(u32, u32) const { return h2f(d); }
};

struct NVFP4 : Codes32 {
    static constexpr u32 LEN = 64, FILE_BYTES = 36, N_PLANES = 2;
    static constexpr Plane PLANES[] = {{32, 16}, {32, 2}};
    static constexpr u32 GROUP = 16;
    u32x4 low;
    u16 scales;
    template <typename F> DEV_MEMBER void fields(F f) { f.template on<0>(low), f.template on<1>(scales); }
    DEV_MEMBER static NVFP4 from_file(const u8* b, u32 at) {
        NVFP4 c;
        c.scales = unaligned<u16>(b + 2 * at);
        c.low = u32x4{};
        // Each group of 16 has its first eight values in the low nibbles of eight bytes.
#pragma unroll
        for (u32 v = 0; v < 16; v++) {
            const u8* first = b + 4 + 16 * at + v % 8;
            u32 both = (first[0] >> v / 8 * 4 & 15) | (first[8] >> v / 8 * 4 & 15) << 4;
            c.low.v[v / 4] |= both << 8 * (v % 4);
        }
        return c;
    }
    DEV_MEMBER void codes(u32* q) const { take_looked_up(MXFP4_VALUES, low, q); }
    DEV_MEMBER float scale(u32, u32 h) const { return e4m3_half(scales >> 8 * h & 255); }
};

// Super-blocks of 256 values. The scales of their groups are integers, `level(at, h)` from -128 to 127, times unit();
// minimums are minimum_level(at, h), from 0 to 63, times minimum_unit(). Eight chunks share a header.
template <typename Format> struct CodesK : Codes32 {
    static constexpr u32 LEN = 256;
    static constexpr u32 ACT_BLOCK = 256;
    DEV_MEMBER const Format& self() const { return *(const Format*)this; }
    DEV_MEMBER float scale(u32 at, u32 h) const { return mul_rounded(self().unit(), (float)self().level(at, h)); }
    DEV_MEMBER float minimum(u32 at, u32 h) const {
        if constexpr (Format::HAS_MIN) return mul_rounded(self().minimum_unit(), (float)self().minimum_level(at, h));
        else return 0.0f;
    }
};

// The header of Q4_K and Q5_K: d and dmin, then three words with one nibble per chunk: the lower four bits of the
// scales, the lower four bits of the minimums, and the upper two bits of both.
struct HeaderK4 {
    u32x4 v;
    DEV_MEMBER static HeaderK4 from_file(const u8* b) {
        const u8* s = b + 4;
        u32 scales = 0, minimums = 0, upper = 0;
        for (u32 j = 0; j < 8; j++) {
            u32 sc = j < 4 ? s[j] & 63 : (s[j + 4] & 15) | s[j - 4] >> 6 << 4;
            u32 m = j < 4 ? s[j + 4] & 63 : s[j + 4] >> 4 | s[j] >> 6 << 4;
            scales |= (sc & 15) << 4 * j;
            minimums |= (m & 15) << 4 * j;
            upper |= (sc >> 4 | m >> 4 << 2) << 4 * j;
        }
        return {{{unaligned<u32>(b), scales, minimums, upper}}};
    }
    DEV_MEMBER float unit() const { return h2f((u16)v[0]); }
    DEV_MEMBER float minimum_unit() const { return h2f((u16)(v[0] >> 16)); }
    DEV_MEMBER i32 level(u32 at) const { return (i32)((v[1] >> 4 * at & 15) | (v[3] >> 4 * at & 3) << 4); }
    DEV_MEMBER i32 minimum_level(u32 at) const {
        return (i32)((v[2] >> 4 * at & 15) | (v[3] >> (4 * at + 2) & 3) << 4);
    }
};

struct Q4_K : CodesK<Q4_K> {
    static constexpr u32 FILE_BYTES = 144, N_PLANES = 2;
    static constexpr Plane PLANES[] = {{32, 16}, {256, 16}};
    static constexpr bool HAS_MIN = true, NIBBLES = true;
    u32x4 low;
    HeaderK4 header;
    template <typename F> DEV_MEMBER void fields(F f) { f.template on<0>(low), f.template on<1>(header.v); }
    DEV_MEMBER static Q4_K from_file(const u8* b, u32 at) {
        Q4_K c;
        c.header = HeaderK4::from_file(b);
        c.low = file_nibbles(b + 16 + at / 2 * 32, at % 2 * 4);
        return c;
    }
    DEV_MEMBER void codes(u32* q) const { take_nibbles(low, q); }
    DEV_MEMBER float unit() const { return header.unit(); }
    DEV_MEMBER float minimum_unit() const { return header.minimum_unit(); }
    DEV_MEMBER i32 level(u32 at, u32) const { return header.level(at); }
    DEV_MEMBER i32 minimum_level(u32 at, u32) const { return header.minimum_level(at); }
};

struct Q5_K : CodesK<Q5_K> {
    static constexpr u32 FILE_BYTES = 176, N_PLANES = 3;
    static constexpr Plane PLANES[] = {{32, 16}, {32, 4}, {256, 16}};
    static constexpr bool HAS_MIN = true;
    u32x4 low;
    u32 high;
    HeaderK4 header;
    template <typename F> DEV_MEMBER void fields(F f) {
        f.template on<0>(low), f.template on<1>(high), f.template on<2>(header.v);
    }
    DEV_MEMBER static Q5_K from_file(const u8* b, u32 at) {
        Q5_K c;
        c.header = HeaderK4::from_file(b);
        c.high = file_one_bit(b + 16, at);
        c.low = file_nibbles(b + 48 + at / 2 * 32, at % 2 * 4);
        return c;
    }
    DEV_MEMBER void codes(u32* q) const {
        take_nibbles(low, q);
#pragma unroll
        for (u32 w = 0; w < 8; w++) q[w] |= one_bit(high, w, 4);
    }
    DEV_MEMBER float unit() const { return header.unit(); }
    DEV_MEMBER float minimum_unit() const { return header.minimum_unit(); }
    DEV_MEMBER i32 level(u32 at, u32) const { return header.level(at); }
    DEV_MEMBER i32 minimum_level(u32 at, u32) const { return header.minimum_level(at); }
};

struct Q2_K : CodesK<Q2_K> {
    static constexpr u32 FILE_BYTES = 84, N_PLANES = 3;
    static constexpr Plane PLANES[] = {{32, 8}, {32, 2}, {256, 4}};
    static constexpr u32 GROUP = 16;
    static constexpr bool HAS_MIN = true;
    u32x2 low;
    // For each of the two groups: scale in the low nibble, minimum in the high nibble.
    u16 scales;
    // d in the low half, dmin in the high half.
    u32 dm;
    template <typename F> DEV_MEMBER void fields(F f) {
        f.template on<0>(low), f.template on<1>(scales), f.template on<2>(dm);
    }
    DEV_MEMBER static Q2_K from_file(const u8* b, u32 at) {
        Q2_K c;
        c.scales = unaligned<u16>(b + 2 * at);
        c.low = file_two_bits(b + 16 + at / 4 * 32, at % 4 * 2);
        c.dm = unaligned<u32>(b + 80);
        return c;
    }
    DEV_MEMBER void codes(u32* q) const {
#pragma unroll
        for (u32 w = 0; w < 8; w++) q[w] = two_bits(low, w, 0);
    }
    DEV_MEMBER float unit() const { return h2f((u16)dm); }
    DEV_MEMBER float minimum_unit() const { return h2f((u16)(dm >> 16)); }
    DEV_MEMBER i32 level(u32, u32 h) const { return scales >> 8 * h & 15; }
    DEV_MEMBER i32 minimum_level(u32, u32 h) const { return scales >> (8 * h + 4) & 15; }
};

struct Q3_K : CodesK<Q3_K> {
    static constexpr u32 FILE_BYTES = 110, N_PLANES = 4;
    // The scales take one byte each instead of six bits.
    static constexpr Plane PLANES[] = {{32, 8}, {32, 4}, {32, 2}, {256, 2}};
    static constexpr u32 GROUP = 16;
    static constexpr i32 OFFSET = 4;
    u32x2 low;
    u32 high;
    u16 scales;
    u16 d;
    template <typename F> DEV_MEMBER void fields(F f) {
        f.template on<0>(low), f.template on<1>(high), f.template on<2>(scales), f.template on<3>(d);
    }
    DEV_MEMBER static Q3_K from_file(const u8* b, u32 at) {
        Q3_K c;
        c.high = file_one_bit(b, at);
        c.low = file_two_bits(b + 32 + at / 4 * 32, at % 4 * 2);
        const u8* s = b + 96;
        u32 both = 0;
        for (u32 h = 0; h < 2; h++) {
            u32 j = 2 * at + h;
            u32 six = (s[j % 8] >> 4 * (j / 8) & 15) | (s[8 + j % 4] >> 2 * (j / 4) & 3) << 4;
            both |= (six - 32 & 0xff) << 8 * h;
        }
        c.scales = (u16)both;
        c.d = unaligned<u16>(b + 108);
        return c;
    }
    DEV_MEMBER void codes(u32* q) const {
#pragma unroll
        for (u32 w = 0; w < 8; w++) q[w] = two_bits(low, w, 0) | one_bit(high, w, 2);
    }
    DEV_MEMBER float unit() const { return h2f(d); }
    DEV_MEMBER i32 level(u32, u32 h) const { return (i8)(scales >> 8 * h); }
};

struct Q6_K : CodesK<Q6_K> {
    static constexpr u32 FILE_BYTES = 210, N_PLANES = 4;
    static constexpr Plane PLANES[] = {{32, 16}, {32, 8}, {32, 2}, {256, 2}};
    static constexpr u32 GROUP = 16;
    static constexpr i32 OFFSET = 32;
    u32x4 low;
    u32x2 high;
    u16 scales;
    u16 d;
    template <typename F> DEV_MEMBER void fields(F f) {
        f.template on<0>(low), f.template on<1>(high), f.template on<2>(scales), f.template on<3>(d);
    }
    DEV_MEMBER static Q6_K from_file(const u8* b, u32 at) {
        Q6_K c;
        c.low = file_nibbles(b + at / 4 * 64 + at % 2 * 32, at % 4 / 2 * 4);
        c.high = file_two_bits(b + 128 + at / 4 * 32, at % 4 * 2);
        c.scales = unaligned<u16>(b + 192 + 2 * at);
        c.d = unaligned<u16>(b + 208);
        return c;
    }
    DEV_MEMBER void codes(u32* q) const {
        take_nibbles(low, q);
#pragma unroll
        for (u32 w = 0; w < 8; w++) q[w] |= two_bits(high, w, 4);
    }
    DEV_MEMBER float unit() const { return h2f(d); }
    DEV_MEMBER i32 level(u32, u32 h) const { return (i8)(scales >> 8 * h); }
};

struct IQ4_XS : CodesK<IQ4_XS> {
    static constexpr u32 FILE_BYTES = 136, N_PLANES = 2;
    static constexpr Plane PLANES[] = {{32, 16}, {256, 8}};
    u32x4 low;
    // d in the low half with the upper two bits of the scales above it; then their lower four bits.
    u32x2 header;
    template <typename F> DEV_MEMBER void fields(F f) { f.template on<0>(low), f.template on<1>(header); }
    DEV_MEMBER static IQ4_XS from_file(const u8* b, u32 at) {
        IQ4_XS c;
        c.header = unaligned<u32x2>(b);
        c.low = unaligned<u32x4>(b + 8 + 16 * at);
        return c;
    }
    DEV_MEMBER void codes(u32* q) const { take_looked_up(IQ4NL_VALUES, low, q); }
    DEV_MEMBER float unit() const { return h2f((u16)header[0]); }
    DEV_MEMBER i32 level(u32 at, u32) const {
        return (i32)((header[1] >> 4 * at & 15) | (header[0] >> (16 + 2 * at) & 3) << 4) - 32;
    }
};

// Indices into grids of 8 or 4 magnitudes (grids.h), and signs.
template <typename Format> struct CodesGrid : CodesK<Format> {
    // 2 * nibble + 1, of nibble h of `scales`.
    DEV_MEMBER static i32 odd(u32 scales, u32 h) { return (i32)(2 * (scales >> 4 * h & 15) + 1); }
    // Negates the bytes of `magnitudes`, none of them zero, whose bit of the lowest four of `signs` is set.
    DEV_MEMBER static u32 negated(u32 magnitudes, u32 signs) {
        u32 one = (signs & 15) * 0x00204081u & 0x01010101u, mask = (one << 8) - one;
        return (magnitudes ^ mask) + one;
    }
    // The eighth sign makes the number of set bits even.
    DEV_MEMBER static u32 even_signs(u32 bits) {
        u32 seven = bits & 127;
        return seven | (u32)(__builtin_popcount(seven) & 1) << 7;
    }
};

struct IQ2_XXS : CodesGrid<IQ2_XXS> {
    static constexpr u32 FILE_BYTES = 66, N_PLANES = 2;
    static constexpr Plane PLANES[] = {{32, 8}, {256, 2}};
    // Four indices; four times seven signs, and the scale.
    u32x2 q;
    u16 d;
    template <typename F> DEV_MEMBER void fields(F f) { f.template on<0>(q), f.template on<1>(d); }
    DEV_MEMBER static IQ2_XXS from_file(const u8* b, u32 at) {
        IQ2_XXS c;
        c.d = unaligned<u16>(b);
        c.q = unaligned<u32x2>(b + 2 + 8 * at);
        return c;
    }
    template <typename Lazy = void> DEV_MEMBER void codes(u32* to) const {
#pragma unroll
        for (u32 k = 0; k < 4; k++) {
            u32x2 eight = grid::IQ2_XXS<Lazy>.v[q[0] >> 8 * k & 255];
            u32 signs = even_signs(q[1] >> 7 * k);
            to[2 * k] = negated(eight[0], signs), to[2 * k + 1] = negated(eight[1], signs >> 4);
        }
    }
    DEV_MEMBER float unit() const { return mul_rounded(h2f(d), 0.125f); }
    DEV_MEMBER i32 level(u32, u32) const { return odd(q[1], 7); }
};

struct IQ2_XS : CodesGrid<IQ2_XS> {
    static constexpr u32 FILE_BYTES = 74, N_PLANES = 3;
    static constexpr Plane PLANES[] = {{32, 8}, {32, 1}, {256, 2}};
    static constexpr u32 GROUP = 16;
    // Four times nine bits of an index and seven signs.
    u32x2 q;
    u8 scales;
    u16 d;
    template <typename F> DEV_MEMBER void fields(F f) {
        f.template on<0>(q), f.template on<1>(scales), f.template on<2>(d);
    }
    DEV_MEMBER static IQ2_XS from_file(const u8* b, u32 at) {
        IQ2_XS c;
        c.d = unaligned<u16>(b);
        c.q = unaligned<u32x2>(b + 2 + 8 * at);
        c.scales = b[66 + at];
        return c;
    }
    template <typename Lazy = void> DEV_MEMBER void codes(u32* to) const {
#pragma unroll
        for (u32 k = 0; k < 4; k++) {
            u32 both = q[k / 2] >> 16 * (k % 2);
            u32x2 eight = grid::IQ2_XS<Lazy>.v[both & 511];
            u32 signs = even_signs(both >> 9);
            to[2 * k] = negated(eight[0], signs), to[2 * k + 1] = negated(eight[1], signs >> 4);
        }
    }
    DEV_MEMBER float unit() const { return mul_rounded(h2f(d), 0.125f); }
    DEV_MEMBER i32 level(u32, u32 h) const { return odd(scales, h); }
};

struct IQ2_S : CodesGrid<IQ2_S> {
    static constexpr u32 FILE_BYTES = 82, N_PLANES = 3;
    static constexpr Plane PLANES[] = {{32, 8}, {32, 2}, {256, 2}};
    static constexpr u32 GROUP = 16;
    // Lower eight bits of four indices; signs.
    u32x2 q;
    // Upper two bits of the indices, then two scales.
    u16 more;
    u16 d;
    template <typename F> DEV_MEMBER void fields(F f) {
        f.template on<0>(q), f.template on<1>(more), f.template on<2>(d);
    }
    DEV_MEMBER static IQ2_S from_file(const u8* b, u32 at) {
        IQ2_S c;
        c.d = unaligned<u16>(b);
        c.q = u32x2{{unaligned<u32>(b + 2 + 4 * at), unaligned<u32>(b + 34 + 4 * at)}};
        c.more = (u16)(b[66 + at] | b[74 + at] << 8);
        return c;
    }
    template <typename Lazy = void> DEV_MEMBER void codes(u32* to) const {
#pragma unroll
        for (u32 k = 0; k < 4; k++) {
            u32x2 eight = grid::IQ2_S<Lazy>.v[(q[0] >> 8 * k & 255) | ((u32)more >> 2 * k & 3) << 8];
            u32 signs = q[1] >> 8 * k;
            to[2 * k] = negated(eight[0], signs), to[2 * k + 1] = negated(eight[1], signs >> 4);
        }
    }
    DEV_MEMBER float unit() const { return mul_rounded(h2f(d), 0.125f); }
    DEV_MEMBER i32 level(u32, u32 h) const { return odd(more, 2 + h); }
};

struct IQ3_XXS : CodesGrid<IQ3_XXS> {
    static constexpr u32 FILE_BYTES = 98, N_PLANES = 3;
    static constexpr Plane PLANES[] = {{32, 8}, {32, 4}, {256, 2}};
    u32x2 q;
    // Four times seven signs, and the scale.
    u32 more;
    u16 d;
    template <typename F> DEV_MEMBER void fields(F f) {
        f.template on<0>(q), f.template on<1>(more), f.template on<2>(d);
    }
    DEV_MEMBER static IQ3_XXS from_file(const u8* b, u32 at) {
        IQ3_XXS c;
        c.d = unaligned<u16>(b);
        c.q = unaligned<u32x2>(b + 2 + 8 * at);
        c.more = unaligned<u32>(b + 66 + 4 * at);
        return c;
    }
    template <typename Lazy = void> DEV_MEMBER void codes(u32* to) const {
#pragma unroll
        for (u32 w = 0; w < 8; w++) {
            u32 four = grid::IQ3_XXS<Lazy>.v[q[w / 4] >> 8 * (w % 4) & 255];
            to[w] = negated(four, even_signs(more >> 7 * (w / 2)) >> 4 * (w % 2));
        }
    }
    DEV_MEMBER float unit() const { return mul_rounded(h2f(d), 0.25f); }
    DEV_MEMBER i32 level(u32, u32) const { return odd(more, 7); }
};

struct IQ3_S : CodesGrid<IQ3_S> {
    static constexpr u32 FILE_BYTES = 110, N_PLANES = 4;
    static constexpr Plane PLANES[] = {{32, 8}, {32, 4}, {32, 1}, {256, 8}};
    // Lower eight bits of the indices.
    u32x2 q;
    u32 signs;
    // The ninth bits.
    u8 high;
    // Scales of the eight chunks, and d.
    u32x2 header;
    template <typename F> DEV_MEMBER void fields(F f) {
        f.template on<0>(q), f.template on<1>(signs), f.template on<2>(high), f.template on<3>(header);
    }
    DEV_MEMBER static IQ3_S from_file(const u8* b, u32 at) {
        IQ3_S c;
        c.q = unaligned<u32x2>(b + 2 + 8 * at);
        c.high = b[66 + at];
        c.signs = unaligned<u32>(b + 74 + 4 * at);
        c.header = u32x2{{unaligned<u32>(b + 106), unaligned<u16>(b)}};
        return c;
    }
    template <typename Lazy = void> DEV_MEMBER void codes(u32* to) const {
#pragma unroll
        for (u32 w = 0; w < 8; w++) {
            u32 four = grid::IQ3_S<Lazy>.v[(q[w / 4] >> 8 * (w % 4) & 255) | ((u32)high >> w & 1) << 8];
            to[w] = negated(four, signs >> 4 * w);
        }
    }
    DEV_MEMBER float unit() const { return h2f((u16)header[1]); }
    DEV_MEMBER i32 level(u32 at, u32) const { return odd(header[0], at); }
};

// Codes of IQ1 are eight times -1, 0 or 1, one more or less, and 9, so that they are not negative.
template <typename Format> struct CodesTernary : CodesGrid<Format> {
    static constexpr i32 OFFSET = 9;
    template <typename Lazy> DEV_MEMBER static void take_moved(u32 index, u32 down, u32* to) {
        u32 digits = grid::IQ1_S<Lazy>.v[index], move = down ? 0u : 0x02020202u;
        to[0] = ((digits & 0x03030303u) << 3) + move, to[1] = ((digits >> 4 & 0x03030303u) << 3) + move;
    }
};

struct IQ1_S : CodesTernary<IQ1_S> {
    static constexpr u32 FILE_BYTES = 50, N_PLANES = 3;
    static constexpr Plane PLANES[] = {{32, 4}, {32, 2}, {256, 2}};
    // Lower eight bits of four indices.
    u32 q;
    // Four times the upper three bits, the scale, and the direction.
    u16 high;
    u16 d;
    template <typename F> DEV_MEMBER void fields(F f) {
        f.template on<0>(q), f.template on<1>(high), f.template on<2>(d);
    }
    DEV_MEMBER static IQ1_S from_file(const u8* b, u32 at) {
        IQ1_S c;
        c.d = unaligned<u16>(b);
        c.q = unaligned<u32>(b + 2 + 4 * at);
        c.high = unaligned<u16>(b + 34 + 2 * at);
        return c;
    }
    template <typename Lazy = void> DEV_MEMBER void codes(u32* to) const {
#pragma unroll
        for (u32 k = 0; k < 4; k++)
            take_moved<Lazy>((q >> 8 * k & 255) | ((u32)high >> 3 * k & 7) << 8, high >> 15, to + 2 * k);
    }
    DEV_MEMBER float unit() const { return mul_rounded(h2f(d), 0.125f); }
    DEV_MEMBER i32 level(u32, u32) const { return 2 * (high >> 12 & 7) + 1; }
};

struct IQ1_M : CodesTernary<IQ1_M> {
    static constexpr u32 FILE_BYTES = 56, N_PLANES = 3;
    static constexpr Plane PLANES[] = {{32, 4}, {32, 2}, {256, 8}};
    static constexpr u32 GROUP = 16;
    // Lower eight bits of four indices.
    u32 q;
    // Four times the upper three bits and the direction.
    u16 high;
    // Four words of four scales of three bits and a part of d.
    u32x2 scales;
    template <typename F> DEV_MEMBER void fields(F f) {
        f.template on<0>(q), f.template on<1>(high), f.template on<2>(scales);
    }
    DEV_MEMBER static IQ1_M from_file(const u8* b, u32 at) {
        IQ1_M c;
        c.q = unaligned<u32>(b + 4 * at);
        c.high = unaligned<u16>(b + 32 + 2 * at);
        c.scales = unaligned<u32x2>(b + 48);
        return c;
    }
    template <typename Lazy = void> DEV_MEMBER void codes(u32* to) const {
#pragma unroll
        for (u32 k = 0; k < 4; k++) {
            u32 four = (u32)high >> 4 * k;
            take_moved<Lazy>((q >> 8 * k & 255) | (four & 7) << 8, four & 8, to + 2 * k);
        }
    }
    DEV_MEMBER float unit() const {
        u32 d =
            (scales[0] >> 12 & 15) | (scales[0] >> 24 & 0xf0) | (scales[1] >> 4 & 0xf00) | (scales[1] >> 16 & 0xf000);
        return mul_rounded(h2f((u16)d), 0.125f);
    }
    DEV_MEMBER i32 level(u32 at, u32 h) const {
        // A shift: of two words, clang would select the address, and keep them in scratch memory.
        u32 words = (u32)(((u64)scales[1] << 32 | scales[0]) >> at / 4 * 32);
        u32 three = words >> (16 * (at / 2 % 2) + 6 * (at % 2) + 3 * h) & 7;
        return (i32)(2 * three + 1);
    }
};

// Ternary codes of a super-block with one scale.
template <typename Format> struct Ternary : CodesK<Format> {
    static constexpr u32 N_PLANES = 2;
    static constexpr Plane PLANES[] = {{32, 8}, {256, 2}};
    static constexpr i32 OFFSET = 1;
    u32x2 low;
    u16 d;
    template <typename F> DEV_MEMBER void fields(F f) { f.template on<0>(low), f.template on<1>(d); }
    DEV_MEMBER void codes(u32* q) const {
#pragma unroll
        for (u32 w = 0; w < 8; w++) q[w] = two_bits(low, w, 0);
    }
    DEV_MEMBER float unit() const { return h2f(d); }
    DEV_MEMBER i32 level(u32, u32) const { return 1; }
};

struct TQ2_0 : Ternary<TQ2_0> {
    static constexpr u32 FILE_BYTES = 66;
    DEV_MEMBER static TQ2_0 from_file(const u8* b, u32 at) {
        TQ2_0 c;
        c.d = unaligned<u16>(b + 64);
        c.low = file_two_bits(b + at / 4 * 32, at % 4 * 2);
        return c;
    }
};

// In planes, digits take two bits each.
struct TQ1_0 : Ternary<TQ1_0> {
    static constexpr u32 FILE_BYTES = 54;
    DEV_MEMBER static TQ1_0 from_file(const u8* b, u32 at) {
        TQ1_0 c;
        c.d = unaligned<u16>(b + 52);
        c.low = u32x2{{0, 0}};
#pragma unroll
        for (u32 v = 0; v < 32; v++) {
            u32 i = 32 * at + v, byte, digit;
            if (i < 160) byte = i % 32, digit = i / 32;
            else if (i < 240) byte = 32 + i % 16, digit = (i - 160) / 16;
            else byte = 48 + i % 4, digit = (i - 240) / 4;
            u32 fraction = b[byte];
            for (u32 k = 0; k < digit; k++) fraction = fraction * 3 & 255;
            c.low.v[v / 16] |= (fraction * 3 >> 8) << (8 * (v % 4) + 2 * (v / 4 % 4));
        }
        return c;
    }
};

struct F32 {
    static constexpr u32 LEN = 1, FILE_BYTES = 4, CHUNK = 4, N_PLANES = 1;
    static constexpr Plane PLANES[] = {{4, 16}};
    static constexpr bool FLOAT = true;
    typedef u32 Value;
    u32x4 raw;
    template <typename F> DEV_MEMBER void fields(F f) { f.template on<0>(raw); }
    DEV_MEMBER float value(u32 i) const { return bits<float>(raw[i]); }
};

struct F16 {
    static constexpr u32 LEN = 1, FILE_BYTES = 2, CHUNK = 8, N_PLANES = 1;
    static constexpr Plane PLANES[] = {{8, 16}};
    static constexpr bool FLOAT = true;
    typedef u16 Value;
    u32x4 raw;
    template <typename F> DEV_MEMBER void fields(F f) { f.template on<0>(raw); }
    DEV_MEMBER float value(u32 i) const { return h2f((u16)(raw[i / 2] >> 16 * (i % 2))); }
};

struct BF16 {
    static constexpr u32 LEN = 1, FILE_BYTES = 2, CHUNK = 8, N_PLANES = 1;
    static constexpr Plane PLANES[] = {{8, 16}};
    static constexpr bool FLOAT = true;
    typedef u16 Value;
    u32x4 raw;
    template <typename F> DEV_MEMBER void fields(F f) { f.template on<0>(raw); }
    DEV_MEMBER float value(u32 i) const { return bits<float>(i % 2 ? raw[i / 2] & 0xffff0000 : raw[i / 2] << 16); }
};

// MXFP6 with MANTISSA mantissa bits (E2M3 or E3M2). GGUF has no type for it, so it has no planes.
template <u32 MANTISSA> struct MXFP6 {
    static constexpr u32 LEN = 32, FILE_BYTES = 25;
    static constexpr u32 BIAS = (1u << (4 - MANTISSA)) - 1;

    // The value of a code, exactly: an integer times a power of two. Exponent field 0 has the exponent of field 1,
    // without the leading one.
    DEV_MEMBER static float number(u32 code) {
        u32 mantissa = code & ((1u << MANTISSA) - 1), exponent = code >> MANTISSA & ((1u << (5 - MANTISSA)) - 1);
        u32 integer = exponent == 0 ? mantissa : mantissa | 1u << MANTISSA;
        float step = bits<float>((127 + max_of(exponent, 1u) - BIAS - MANTISSA) << 23);
        float magnitude = mul_rounded((float)integer, step);
        return code & 32 ? -magnitude : magnitude;
    }
    // Dequantizes values 4i .. 4i + 3 of the block at `b`: three bytes.
    DEV_MEMBER static void dequantize_four(const u8* b, u32 i, float* out) {
        float scale = b[0] == 255 ? __builtin_nanf("") : mul_rounded(2.0f, e8m0_half(b[0]));
        const u8* three = b + 1 + 3 * i;
        u32 codes = three[0] | three[1] << 8 | three[2] << 16;
#pragma unroll
        for (u32 k = 0; k < 4; k++) out[k] = mul_rounded(scale, number(codes >> 6 * k & 63));
    }
};

// ---------------------------------------------------------------------------------------------- layouts
// Values of a row in planes, and their number of chunks.
DEV u32 padded_len(u32 n_in) { return div_up(n_in, UNIT) * UNIT; }
template <typename T> DEV u32 n_chunks(u32 n_in) { return padded_len(n_in) / T::CHUNK; }
// A chunk's place in its block.
template <typename T> DEV u32 place_in_block(u32 chunk) {
    if constexpr (T::LEN > T::CHUNK) return chunk % (T::LEN / T::CHUNK);
    else return 0;
}

// A row of blocks of format T.
template <typename T, typename Layout> struct Block;

template <typename T> struct Block<T, File> {
    const u8* row;
    u32 n_in;

    DEV_MEMBER T load(u32 chunk) const {
        if constexpr (T::FLOAT) {
            typedef typename T::Value Value;
            u32x4 raw = {{0, 0, 0, 0}};
            constexpr u32 PER_WORD = 4 / sizeof(Value);
#pragma unroll
            for (u32 i = 0; i < T::CHUNK; i++) {
                u32 at = chunk * T::CHUNK + i;
                u32 v = at < n_in ? (u32)unaligned<Value>(row + (u64)at * sizeof(Value)) : 0;
                raw.v[i / PER_WORD] |= v << 8 * sizeof(Value) * (i % PER_WORD);
            }
            return T{raw};
        } else {
            constexpr u32 PER_BLOCK = T::LEN / T::CHUNK;
            return T::from_file(row + (u64)(chunk / PER_BLOCK) * T::FILE_BYTES, chunk % PER_BLOCK);
        }
    }
};

template <typename T> struct Block<T, Planes> {
    u8* plane[T::N_PLANES];
    // The other rows of a tile.
#if defined(ROWS_APART)
    static constexpr u32 n_others = 0;
#elif defined(ROWS_IN_TILES)
    static constexpr u32 n_others = ROWS_PER_TILE - 1;
#else
    u32 n_others;
#endif

    template <u32 K = 0> DEV_MEMBER static void start(Block& block, const Weights& w, u8* data, u32 row) {
        if constexpr (K < T::N_PLANES) {
            constexpr Plane P = T::PLANES[K];
            u64 row_bytes = (u64)(padded_len(w.n_in) / P.values) * P.bytes;
            const u32 in_tile = T::FLOAT ? 0 : row & block.n_others;
            block.plane[K] = data + (row - in_tile) * row_bytes + in_tile * (RUN / P.values * P.bytes);
            u64 plane_bytes = (w.n_out * row_bytes + PLANE_ALIGN - 1) / PLANE_ALIGN * PLANE_ALIGN;
            start<K + 1>(block, w, data + plane_bytes, row);
        }
    }
    DEV_MEMBER static Block of(const Weights& w, u32 row) {
        Block block;
#if !defined(ROWS_APART) && !defined(ROWS_IN_TILES)
        block.n_others = other_rows_of_tile(w);
#endif
        start(block, w, planes_of(w), row);
        return block;
    }

    // Moves to the same row of a matrix with the same shape, which is `bytes` further, modulo 2^64.
    template <u32 K = 0> DEV_MEMBER void move(u64 bytes) {
        if constexpr (K < T::N_PLANES) plane[K] = (u8*)((u64)plane[K] + bytes), move<K + 1>(bytes);
    }

    // Where the planes end.
    DEV_MEMBER static u8* end(const Weights& w) { return end_from<0>(w, planes_of(w)); }
    template <u32 K> DEV_MEMBER static u8* end_from(const Weights& w, u8* data) {
        if constexpr (K < T::N_PLANES) {
            constexpr Plane P = T::PLANES[K];
            u64 bytes = (u64)w.n_out * (padded_len(w.n_in) / P.values) * P.bytes;
            return end_from<K + 1>(w, data + (bytes + PLANE_ALIGN - 1) / PLANE_ALIGN * PLANE_ALIGN);
        }
        return data;
    }

    template <u32 K> DEV_MEMBER u8* field(u32 chunk) const {
        constexpr Plane P = T::PLANES[K];
        const u32 at = chunk * T::CHUNK / P.values * P.bytes;
        if constexpr (T::FLOAT) return plane[K] + at;
        return plane[K] + (at + n_others * (at & ~(RUN / P.values * P.bytes - 1)));
    }

    struct Load {
        const Block& block;
        u32 chunk;
        template <u32 K, typename P> DEV_MEMBER void on(P& field) const {
            static_assert(sizeof(P) == T::PLANES[K].bytes, "a field has the bytes of its plane");
            field = stream<P>(block.template field<K>(chunk));
        }
    };
    // Fields that several chunks share are written by the first chunk.
    struct Store {
        const Block& block;
        u32 chunk;
        template <u32 K, typename P> DEV_MEMBER void on(const P& field) const {
            if (chunk * T::CHUNK % T::PLANES[K].values == 0) *(P*)block.template field<K>(chunk) = field;
        }
    };

    DEV_MEMBER T load(u32 chunk) const {
        T t;
        t.fields(Load{*this, chunk});
        return t;
    }
    DEV_MEMBER void store(u32 chunk, T t) const { t.fields(Store{*this, chunk}); }
};

// Dequantizes a chunk, `out` `[CHUNK]`, with the bits of the scalar code.
template <typename T> DEV void dequantize_chunk(const T& t, u32 at, float* out) {
    if constexpr (T::FLOAT) {
        (void)at;
#pragma unroll
        for (u32 i = 0; i < T::CHUNK; i++) out[i] = t.value(i);
    } else {
        u32 q[8];
        t.codes(q);
#pragma unroll
        for (u32 i = 0; i < 32; i++) {
            i32 code = (i32)(i8)(q[i / 4] >> 8 * (i % 4)) - T::OFFSET;
            float v = mul_rounded(t.scale(at, i / T::GROUP), (float)code);
            out[i] = T::HAS_MIN ? v - t.minimum(at, i / T::GROUP) : v;
        }
    }
}
