// Activations of few rows, quantized as norm.hip and experts.hip do it, and the same as f16 for the GEMM of few rows
// (gemm/half_few.h), with the bits and in the order that half_acts.hip gives them. That saves a launch for each product. What
// is in place of rows past the last one is not written; it reaches sums that are not stored.
//
// rms_norm_half:     rms_norm.      combine_norm_half: combine_norm.
// quantize_half:     quantize, or quantize_rows without weights.
// gated_half:        quantize_gated.
//
// A block has a row. Its codes are in shared memory at first, since the row's factor follows from all scales.
// Shared memory: width * (1 + 4 / block + 2 / 16) bytes.
#include "activation.h"
#include "combine.h"
#include "gemm/half_tile.h"
#include "hopper/half_acts.h"

// The most threads of quantize_half and gated_half.
constexpr u32 MAX_THREADS = 1024;

struct HalfOut {
    // As in HalfParams (gemm/half.h).
    u8* x;
    float* factors;
    const ExpertTile* tiles;
    u32 n_octets;
    u32 n_tiles;
    FIELDS(x, factors, tiles, n_octets, n_tiles)
};

// Returns where a row is in the octets. All threads of the block must call it.
DEV u32 place_of(const HalfOut& half, u32 row) {
    if (!half.tiles) return row;
    SHARED(u32, place, 1);
    for (u32 t = tid(); t < half.n_tiles; t += n_waves() * WARP_SIZE) {
        const auto tile = bits<ExpertTile>(load16(half.tiles + t));
        if (row - tile.first_row < tile.n_rows) *place = first_octet(tile, t) * 8 + row - tile.first_row;
    }
    shared_barrier();
    return *place;
}

// The codes of the block's row.
template <u32 BLOCK> struct RowCodes {
    ActsOut here;

    DEV_MEMBER static RowCodes of(u8* memory, u32 width) {
        float* scales = (float*)(memory + width);
        return {{nullptr, (i8*)memory, scales, (i16*)(scales + width / BLOCK)}};
    }

    // Writes the row to `out` and `half`. All threads of the block must call it after a barrier.
    DEV_MEMBER void store(const ActsOut& out, const HalfOut& half, u32 row, u32 place, u32 width) const {
        u32 largest = 0;
        for (u32 i = lane(); i < width / BLOCK; i += WARP_SIZE)
            largest = max_of(largest, bits<u32>(here.scales[i]) & 0x7fffffffu);
        const float up = up_of_scales(wave_max(largest));
        if (tid() == 0) half.factors[row] = 1.0f / up;
        const u64 base = (u64)row * width;
        u8* x = half.x + place / 8 * wgmma::OCTET_BYTES + place % 8 * 64;
        // Rows are padded to whole rounds of the product.
        for (u32 at = tid() * OCTET; at < div_up(width, 128u) * 128; at += n_waves() * WARP_SIZE * OCTET) {
            u32x4 piece = {};
            if (at < width) {
                const u32x2 codes = *(const u32x2*)(here.codes + at);
                const float scale = here.scales[at / BLOCK];
                const u32x2 low = halves_of(codes.v[0], scale * up), high = halves_of(codes.v[1], scale * up);
                piece = {{low.v[0], low.v[1], high.v[0], high.v[1]}};
                *(u32x2*)(out.codes + base + at) = codes;
                if (at % 16 == 0) out.sums[(base + at) / 16] = here.sums[at / 16];
                if (at % BLOCK == 0) out.scales[(base + at) / BLOCK] = scale;
            }
            // Of 128 values a lane multiplies 32, in two blocks of 64 values of k, and in each half of a block two products.
            const u64 block = (u64)(at / 128 * 2 + at % 32 / 16) * half.n_octets;
            store16(x + block * wgmma::OCTET_BYTES + at % 16 / 8 * (WARP_SIZE * 16) + at % 128 / 32 * 16, piece);
        }
    }
};

// Puts octets in the block's own row.
template <u32 BLOCK> struct FormHere {
    DEV_MEMBER static void put(const ActsOut& out, u64, u32 at, u32 end, u32 aligned, const Octet& o) {
        FormQ8<BLOCK>::put(out, 0, at, end, aligned, o);
    }
};

struct NormHalfParams {
    NormParams norm;
    HalfOut half;
    FIELDS(norm, half)
};

template <u32 BLOCK> DEV void norm_half(const NormHalfParams& p) {
    SHARED(float, part, BLOCK_THREADS / WARP_SIZE);
    DYNAMIC_SHARED(u8, memory);
    const u32 row = bid_x();
    const auto codes = RowCodes<BLOCK>::of(memory, p.norm.width);
    NormParams norm = p.norm;
    norm.out = codes.here;
    norm_row<Rms, FormHere<BLOCK>, BLOCK_THREADS>(norm, row, tid(), part);
    shared_barrier();
    codes.store(p.norm.out, p.half, row, row, norm.width);
}

KERNEL_THAT_BEGINS(rms_norm_half_q8x32, NormHalfParams, BLOCK_THREADS) { norm_half<32>(p); }
KERNEL_THAT_BEGINS(rms_norm_half_q8x256, NormHalfParams, BLOCK_THREADS) { norm_half<256>(p); }

struct CombineHalfParams {
    CombineNormParams combine_norm;
    HalfOut half;
    FIELDS(combine_norm, half)
};

template <u32 BLOCK> DEV void combine_half(const CombineHalfParams& p) {
    DYNAMIC_SHARED(u8, memory);
    const ActsOut& out = p.combine_norm.norm.out;
    const u32 width = p.combine_norm.norm.width;
    const auto codes = RowCodes<BLOCK>::of(memory, width);
    CombineNormParams params = p.combine_norm;
    params.norm.out = codes.here;
    combine_norm<FormHere<BLOCK>>(params);
    shared_barrier();
    codes.store(out, p.half, bid_x(), bid_x(), width);
}

KERNEL_THAT_BEGINS(combine_norm_half_q8x32, CombineHalfParams, BLOCK_THREADS) { combine_half<32>(p); }
KERNEL_THAT_BEGINS(combine_norm_half_q8x256, CombineHalfParams, BLOCK_THREADS) { combine_half<256>(p); }

struct QuantizeHalfParams {
    // Of gated_half: the gate.
    const float* x;
    const float* up;
    // Of experts: how many rows there are, and the token of each, whose x it has. Without tokens, row r has row r of x.
    const u32* n_rows;
    const u32* tokens;
    ActsOut out;
    HalfOut half;
    u32 width;
    u32 aligned;
    float numbers[4];
    ActivationKind kind;
    u32 pad;
    FIELDS(x, up, n_rows, tokens, out, half, width, aligned, numbers, kind, pad)
};

template <u32 BLOCK, bool GATED> DEV void quantize_half(const QuantizeHalfParams& p) {
    DYNAMIC_SHARED(u8, memory);
    const u32 row = bid_x(), width = p.width;
    if (p.n_rows && row >= uniform(*p.n_rows)) return;
    const u32 place = place_of(p.half, row);
    const auto codes = RowCodes<BLOCK>::of(memory, width);
    const u64 from = (u64)(p.tokens ? uniform(p.tokens[row]) : row) * width;
    for (u32 start = 0; start < width; start += n_waves() * WARP_SIZE * OCTET) {
        const u32 at = start + tid() * OCTET;
        Octet x = load_octet(p.x + from, at, width, p.aligned);
        if constexpr (GATED) {
            const Octet up = load_octet(p.up + from, at, width, p.aligned);
#pragma unroll
            for (u32 i = 0; i < OCTET; i++)
                x.v[i] = activated(p.kind, p.numbers, x.v[i]) * of_up(p.kind, p.numbers, up.v[i]);
        }
        FormQ8<BLOCK>::put(codes.here, 0, at, width, p.aligned, x);
    }
    shared_barrier();
    codes.store(p.out, p.half, row, place, width);
}

KERNEL(quantize_half_q8x32, QuantizeHalfParams, MAX_THREADS) { quantize_half<32, false>(p); }
KERNEL(quantize_half_q8x256, QuantizeHalfParams, MAX_THREADS) { quantize_half<256, false>(p); }
KERNEL(gated_half_q8x32, QuantizeHalfParams, MAX_THREADS) { quantize_half<32, true>(p); }
KERNEL(gated_half_q8x256, QuantizeHalfParams, MAX_THREADS) { quantize_half<256, true>(p); }
