// Activations quantized as norm.hip and experts.hip do it, and the same as f16 for GEMM (gemm/half.h, gemm/half_few.h), with
// the bits and in the orders that half_acts.hip gives them. That saves a launch for each product. What is in place of rows past
// the last one is not written; it reaches sums that are not stored.
//
// rms_norm_half:     rms_norm.      combine_norm_half: combine_norm.
// quantize_half:     quantize, or quantize_rows without weights.
// gated_half:        quantize_gated.
//
// quantize_octets:   the same as quantize_half for experts' rows in the order of B of wgmma. A block has an octet of rows of a tile,
//                    each of them a wave, and writes 128 bytes at a time.
//
// Else a block has a row. Of a wide one that is not of an expert, quantize_half and gated_half give equal parts to the blocks of a
// cluster. Codes are in shared memory at first, since the row's factor follows from all scales.
// Shared memory: a block's number of values * (1 + 4 / block + 2 / 16) bytes; of octets, `row_bytes` for each row.
#include "activation.h"
#include "combine.h"
#include "gemm/half_tile.h"
#include "hopper/half_acts.h"

// The most threads of quantize_half and gated_half, and blocks of a row. In the emulator a block shares its memory with none.
constexpr u32 MAX_THREADS = 1024;
#if defined(GPU_NV)
constexpr u32 MAX_CLUSTER = 8;
#else
constexpr u32 MAX_CLUSTER = 1;
#endif
EXPORT_U32(half_rows_cluster, MAX_CLUSTER)

struct HalfOut {
    // As in HalfParams (gemm/half.h).
    u8* x;
    float* factors;
    const ExpertTile* tiles;
    u32 n_octets;
    u32 n_tiles;
    // Whether the order is that of the GEMM of few rows; else it is that of B of wgmma.
    u32 is_few;
    u32 pad;
    FIELDS(x, factors, tiles, n_octets, n_tiles, is_few, pad)
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

// The blocks of a row meet twice: before one writes to the memory of another, and when all have.
DEV void arrive_in_cluster([[maybe_unused]] u32 n_blocks) {
#if defined(GPU_NV)
    if (n_blocks > 1) asm volatile("barrier.cluster.arrive.aligned;" ::: "memory");
#endif
}
DEV void wait_for_cluster([[maybe_unused]] u32 n_blocks) {
#if defined(GPU_NV)
    if (n_blocks > 1) asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
#endif
}

// Returns the largest number of the blocks of a cluster, which have arrived once; `v` is the same in all threads of a block.
DEV u32 cluster_max(u32 v, [[maybe_unused]] u32 n_blocks) {
#if defined(GPU_NV)
    if (n_blocks == 1) return v;
    SHARED(u32, of_blocks, MAX_CLUSTER);
    wait_for_cluster(n_blocks);
    if (tid() < n_blocks)
        asm volatile("{ .reg .b32 there; mapa.shared::cluster.u32 there, %0, %1; st.shared::cluster.u32 [there], %2; }"
                     :
                     : "r"(wgmma::shared_address(of_blocks + bid_x() % n_blocks)), "r"(tid()), "r"(v)
                     : "memory");
    arrive_in_cluster(n_blocks);
    wait_for_cluster(n_blocks);
    for (u32 i = 0; i < n_blocks; i++) v = max_of(v, of_blocks[i]);
#endif
    return v;
}

// The codes of a block's values of a row.
template <u32 BLOCK> struct RowCodes {
    // Of `first` and the values after it.
    ActsOut here;
    u32 first, n_blocks;

    DEV_MEMBER static RowCodes of(u8* memory, u32 n, u32 first = 0, u32 n_blocks = 1) {
        float* scales = (float*)(memory + n);
        return {{nullptr, (i8*)memory, scales, (i16*)(scales + n / BLOCK)}, first, n_blocks};
    }

    // Writes values first .. end - 1 of the row to `out` and `half`. All threads of the block must call it after a barrier.
    DEV_MEMBER void store(const ActsOut& out, const HalfOut& half, u32 row, u32 place, u32 width, u32 end) const {
        u32 largest = 0;
        for (u32 i = lane(); i < (min_of(end, width) - first) / BLOCK; i += WARP_SIZE)
            largest = max_of(largest, bits<u32>(here.scales[i]) & 0x7fffffffu);
        const float up = up_of_scales(cluster_max(wave_max(largest), n_blocks));
        if (tid() == 0) half.factors[row] = 1.0f / up;
        const u64 base = (u64)row * width;
        u8* x = half.x + place / 8 * wgmma::OCTET_BYTES + place % 8 * 64;
        for (u32 at = first + tid() * OCTET; at < end; at += n_waves() * WARP_SIZE * OCTET) {
            u32x4 piece = {};
            if (at < width) {
                const u32x2 codes = *(const u32x2*)(here.codes + at - first);
                const float scale = here.scales[(at - first) / BLOCK];
                const u32x2 low = halves_of(codes.v[0], scale * up), high = halves_of(codes.v[1], scale * up);
                piece = {{low.v[0], low.v[1], high.v[0], high.v[1]}};
                copy(out, base, at);
            }
            if (!half.is_few) continue;
            // Of 128 values a lane multiplies 32, in two blocks of 64 values of k, and in each half of a block two products.
            const u64 block = (u64)(at / 128 * 2 + at % 32 / 16) * half.n_octets;
            store16(x + block * wgmma::OCTET_BYTES + at % 16 / 8 * (WARP_SIZE * 16) + at % 128 / 32 * 16, piece);
        }
        if (!half.is_few) store_wide(half, up, place, width, end);
    }

    // Writes the codes of eight values, and what belongs to them.
    DEV_MEMBER void copy(const ActsOut& out, u64 base, u32 at) const {
        *(u32x2*)(out.codes + base + at) = *(const u32x2*)(here.codes + at - first);
        if (at % 16 == 0) out.sums[(base + at) / 16] = here.sums[(at - first) / 16];
        if (at % BLOCK == 0) out.scales[(base + at) / BLOCK] = here.scales[(at - first) / BLOCK];
    }

    // Writes the values, multiplied by `up`, in the order of B of wgmma.
    DEV_MEMBER void store_wide(const HalfOut& half, float up, u32 place, u32 width, u32 end) const {
        for (u32 i = first / 16 + tid(); i < end / 16; i += n_waves() * WARP_SIZE)
            store_product(half, up, place, width, i);
    }
    // The same of those of a product of 16 values of k.
    DEV_MEMBER void store_product(const HalfOut& half, float up, u32 place, u32 width, u32 i) const {
        const u32 block = i / 8, s = i % 8;
        Pairs pairs = {};
#pragma unroll
        for (u32 q = 0; q < 4; q++) {
            const u32 at = block * 128 + 32 * q + 4 * s;
            if (at >= width) continue;
            const u32x2 halves = halves_of(*(const u32*)(here.codes + at - first), here.scales[(at - first) / BLOCK] * up);
            pairs.first.v[q] = halves.v[0], pairs.second.v[q] = halves.v[1];
        }
        store_of_b(place_of_product(half.x, half.n_octets, place / 8, block, s), place % 8, s, pairs);
    }
};

// Rows are padded to whole rounds of the product.
DEV u32 padded(u32 width) { return div_up(width, 128u) * 128; }

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
    codes.store(p.norm.out, p.half, row, row, norm.width, padded(norm.width));
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
    codes.store(out, p.half, bid_x(), bid_x(), width, padded(width));
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
    // Blocks of a row, one if the rows are of experts, and the most values of each: whole blocks of 256.
    u32 n_blocks;
    u32 n_values;
    u32 pad;
    FIELDS(x, up, n_rows, tokens, out, half, width, aligned, numbers, kind, n_blocks, n_values, pad)
};

template <u32 BLOCK, bool GATED> DEV void quantize_half(const QuantizeHalfParams& p) {
    DYNAMIC_SHARED(u8, memory);
    const u32 row = bid_x() / p.n_blocks, width = p.width;
    if (p.n_rows && row >= uniform(*p.n_rows)) return;
    arrive_in_cluster(p.n_blocks);
    const u32 first = min_of(bid_x() % p.n_blocks * p.n_values, width), end = min_of(first + p.n_values, padded(width));
    const u32 place = place_of(p.half, row);
    const auto codes = RowCodes<BLOCK>::of(memory, p.n_values, first, p.n_blocks);
    const u64 from = (u64)(p.tokens ? uniform(p.tokens[row]) : row) * width;
    for (u32 start = first; start < end; start += n_waves() * WARP_SIZE * OCTET) {
        const u32 at = start + tid() * OCTET, until = min_of(end, width);
        Octet x = load_octet(p.x + from, at, until, p.aligned);
        if constexpr (GATED) {
            const Octet up = load_octet(p.up + from, at, until, p.aligned);
#pragma unroll
            for (u32 i = 0; i < OCTET; i++)
                x.v[i] = activated(p.kind, p.numbers, x.v[i]) * of_up(p.kind, p.numbers, up.v[i]);
        }
        FormQ8<BLOCK>::put(codes.here, 0, at - first, until - first, p.aligned, x);
    }
    shared_barrier();
    codes.store(p.out, p.half, row, place, width, end);
}

KERNEL(quantize_half_q8x32, QuantizeHalfParams, MAX_THREADS) { quantize_half<32, false>(p); }
KERNEL(quantize_half_q8x256, QuantizeHalfParams, MAX_THREADS) { quantize_half<256, false>(p); }
KERNEL(gated_half_q8x32, QuantizeHalfParams, MAX_THREADS) { quantize_half<32, true>(p); }
KERNEL(gated_half_q8x256, QuantizeHalfParams, MAX_THREADS) { quantize_half<256, true>(p); }

constexpr u32 ROWS = 8, OCTETS_THREADS = ROWS * WARP_SIZE;

// Bytes of a row of n values in shared memory. Rows begin in different banks.
template <u32 BLOCK> DEV u32 row_bytes(u32 n) { return div_up(n + n / BLOCK * 4 + n / 16 * 2 - 16, 128u) * 128 + 16; }

template <u32 BLOCK> DEV void quantize_octets(const QuantizeHalfParams& p) {
    DYNAMIC_SHARED(u8, memory);
    SHARED(float, ups, ROWS);
    // The octet's first row, and the end of its tile's.
    SHARED(u32, of_tile, 2);
    const u32 octet = bid_x(), width = p.width;
    if (tid() == 0) of_tile[1] = 0;
    shared_barrier();
    for (u32 t = tid(); t < p.half.n_tiles; t += OCTETS_THREADS) {
        const auto tile = bits<ExpertTile>(load16(p.half.tiles + t));
        const u32 in_tile = octet - first_octet(tile, t);
        if (in_tile >= div_up(tile.n_rows, ROWS)) continue;
        of_tile[0] = tile.first_row + ROWS * in_tile, of_tile[1] = tile.first_row + tile.n_rows;
    }
    shared_barrier();
    const u32 end_row = of_tile[1];
    if (end_row == 0) return;
    const u32 first_row = of_tile[0], stride = row_bytes<BLOCK>(p.n_values), mine = uniform(wave()),
              row = first_row + mine;
    if (row < end_row) {
        const auto codes = RowCodes<BLOCK>::of(memory + mine * stride, p.n_values);
        const u64 from = (u64)(p.tokens ? uniform(p.tokens[row]) : row) * width;
        // Loads that are under way together.
        constexpr u32 AT_ONCE = 2, OF_WAVE = WARP_SIZE * OCTET;
        for (u32 start = 0; start < p.n_values; start += AT_ONCE * OF_WAVE) {
            Octet values[AT_ONCE];
#pragma unroll
            for (u32 i = 0; i < AT_ONCE; i++)
                values[i] = load_octet(p.x + from, start + i * OF_WAVE + lane() * OCTET, width, p.aligned);
#pragma unroll
            for (u32 i = 0; i < AT_ONCE; i++) {
                const u32 first = start + i * OF_WAVE;
                if (first < p.n_values)
                    FormQ8<BLOCK>::put(codes.here, 0, first + lane() * OCTET, width, p.aligned, values[i]);
            }
        }
        wave_barrier(memory + mine * stride, stride);
        // Of a member that store() called, too, that would take more registers.
        u32 largest = 0;
        for (u32 i = lane(); i < width / BLOCK; i += WARP_SIZE)
            largest = max_of(largest, bits<u32>(codes.here.scales[i]) & 0x7fffffffu);
        const float up = up_of_scales(wave_max(largest));
        if (lane() == 0) ups[mine] = up, p.half.factors[row] = 1.0f / up;
        for (u32 at = lane() * OCTET; at < width; at += WARP_SIZE * OCTET) codes.copy(p.out, (u64)row * width, at);
    }
    shared_barrier();
    const u32 of_thread = tid() % ROWS;
    if (first_row + of_thread >= end_row) return;
    const auto codes = RowCodes<BLOCK>::of(memory + of_thread * stride, p.n_values);
    for (u32 i = tid() / ROWS; i < padded(width) / 16; i += OCTETS_THREADS / ROWS)
        codes.store_product(p.half, ups[of_thread], octet * ROWS + of_thread, width, i);
}

// So few registers that a processor runs five blocks.
#if defined(GPU_NV)
#define OCTETS_KERNEL(NAME)                                                                                            \
    KERNEL_WITH(NAME, QuantizeHalfParams, launch_bounds(OCTETS_THREADS, 5), let_successor_start())
#else
#define OCTETS_KERNEL(NAME) KERNEL(NAME, QuantizeHalfParams, OCTETS_THREADS)
#endif
OCTETS_KERNEL(quantize_octets_q8x32) { quantize_octets<32>(p); }
OCTETS_KERNEL(quantize_octets_q8x256) { quantize_octets<256>(p); }
