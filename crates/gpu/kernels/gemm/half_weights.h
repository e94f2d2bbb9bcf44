// Weights of a thread as pairs of f16 numbers, for half.h and half_few.h. Of a round of 128 values of k, lane q of four has a
// chunk of 32 weights. Word w of it has four of them: pair(w, 0) is two of these, pair(w, 1) the other two.
// hopper/half_acts.hip writes x in the order that follows from this.
#pragma once
#include "range.h"

// Quantized weights. Word w has the values 4w .. 4w + 3 of the chunk: pairs are 0 and 2, then 1 and 3.
template <typename F> struct HalfWeights {
    // Codes are bytes: from 0 on, or with a sign.
    static constexpr bool SIGNED = F::OFFSET == 0 && !F::HAS_MIN;
    static constexpr u32 BIAS = SIGNED ? 128 : F::OFFSET;

    // Scales and minimums as pairs of equal numbers, for both groups of 16 values.
    u32 factor[2], term[2];
    u32 codes[8];

    HalfWeights() = default;
    // `up` is 2^(24 + b) of range.h.
    DEV_MEMBER HalfWeights(const F& f, u32 at, float up) {
#pragma unroll
        for (u32 h = 0; h < 2; h++) {
            const u32 group = h * 16 / F::GROUP;
            float scale = f.scale(at, group) * up;
            // The second half of a chunk are the high nibbles: 16 times the codes.
            const float of_codes = F::NIBBLES && h > 0 ? scale * (1.0f / 16) : scale;
            factor[h] = pack_halves(of_codes, of_codes);
            // Of the rounded scale: zero is zero. A power of two times either is rounded alike.
            if constexpr (BIAS & (BIAS - 1)) scale = h2f((u16)factor[h]);
            float term_of = -scale * ((float)BIAS / CODE_ONE);
            if constexpr (F::HAS_MIN) term_of = -f.minimum(at, group) * (up / CODE_ONE);
            term[h] = pack_halves(term_of, term_of);
        }
        if constexpr (F::NIBBLES) {
#pragma unroll
            for (u32 w = 0; w < 8; w++) codes[w] = f.low[w % 4];
        } else {
            f.codes(codes);
        }
    }
    DEV_MEMBER u32 pair(u32 w, u32 odd) const {
        const u32 mask = !F::NIBBLES ? 0x00ff00ffu : w < 4 ? 0x000f000fu : 0x00f000f0u;
        const u32 bytes = SIGNED ? codes[w] ^ 0x80808080u : codes[w];
        return fma_halves(bytes >> 8 * odd & mask, factor[w / 4], term[w / 4]);
    }
    DEV_MEMBER static float up(const Weights& w) { return ((const Range*)Block<F, Planes>::end(w))->up(); }
    DEV_MEMBER static float down(float up) { return CODE_ONE / up; }
};

// 32 weights of the float format F, F16 or BF16. So that four lanes read neighbouring bytes, lane q has the values 32 i + 8 q ..
// 32 i + 8 q + 7 of a round, i = 0 .. 3.
template <typename F> struct Floats {
    static constexpr u32 LEN = 128, CHUNK = 32, N_PLANES = 4;
    static constexpr Plane PLANES[] = {{32, 16}, {32, 16}, {32, 16}, {32, 16}};
    u32x4 part[4];
    template <typename V> DEV_MEMBER void fields(V v) {
        v.template on<0>(part[0]), v.template on<1>(part[1]), v.template on<2>(part[2]), v.template on<3>(part[3]);
    }
};

template <typename F> struct Block<Floats<F>, Planes> {
    const u8* row;
    // Pieces of 16 bytes.
    u32 n_pieces;

    DEV_MEMBER static Block of(const Weights& w, u32 row) {
        return {Block<F, Planes>::of(w, row).plane[0], n_chunks<F>(w.n_in)};
    }
    DEV_MEMBER void move(u64 bytes) { row = (const u8*)((u64)row + bytes); }
    // Past the end of a row any of its values, since activations there are zeros.
    template <u32 K> DEV_MEMBER const u8* field(u32 chunk) const {
        return row + min_of(chunk / 4 * 16 + 4 * K + chunk % 4, n_pieces - 1) * 16;
    }
    DEV_MEMBER Floats<F> load(u32 chunk) const {
        return {stream16(field<0>(chunk)), stream16(field<1>(chunk)), stream16(field<2>(chunk)),
                stream16(field<3>(chunk))};
    }
};

// Word w has the values 4 (w % 2) .. 4 (w % 2) + 3 of part w / 2: pairs are 0 and 1, then 2 and 3.
template <typename F> struct HalfWeights<Floats<F>> {
    // BF16 numbers may be too large or too small for f16.
    static constexpr bool SCALED = __is_same(F, BF16);
    u32x4 part[4];
    float factor;

    HalfWeights() = default;
    DEV_MEMBER HalfWeights(const Floats<F>& f, u32, float up) : factor(up) {
#pragma unroll
        for (u32 i = 0; i < 4; i++) part[i] = f.part[i];
    }
    DEV_MEMBER u32 pair(u32 w, u32 odd) const {
        const u32 two = part[w / 2].v[w % 2 * 2 + odd];
        if constexpr (SCALED)
            return pack_halves(bits<float>(two << 16) * factor, bits<float>(two & 0xffff0000u) * factor);
        // A number of its own: units read the registers of operands while the next weights are loaded.
        else return two ^ (bits<u32>(factor) ^ bits<u32>(1.0f));
    }
    // A power of two that makes the largest weight a number below 2^15. Of F16 it is 1, which the compiler does not know.
    DEV_MEMBER static float up(const Weights& w) {
        if constexpr (SCALED) return ((const Range*)Block<F, Planes>::end(w))->up();
        else return bits<float>(bits<u32>(1.0f) + (w.n_in >> 31));
    }
    DEV_MEMBER static float down(float up) { return 1.0f / up; }
};

// How the kernels read FORMAT, and of how many f16 numbers x is the sum: two for weights that are not rounded.
template <typename F> struct HalfForm {
    using Read = F;
};
template <> struct HalfForm<F16> {
    using Read = Floats<F16>;
};
template <> struct HalfForm<BF16> {
    using Read = Floats<BF16>;
};
template <typename F> constexpr u32 X_PARTS = 1;
template <typename F> constexpr u32 X_PARTS<Floats<F>> = 2;
// Whether the GEMM of few rows may take codes in place of f16 numbers.
template <typename F> constexpr bool takes_codes() {
    if constexpr (X_PARTS<F> > 1) return false;
    else return F::ACT_BLOCK == 256;
}
