// Attention of few rows per sequence, split over the context (flash decoding).
//
//     out[row, head] = sum_pos softmax_pos(q[row, head] . k[pos, head / group]) v[pos, head / group]
//
// q [n_rows, n_heads * k_dim] f32, out [n_rows, n_heads * v_dim] f32, the KV cache as in attention.h. Row t sees the
// positions first_seen(positions[t])..=positions[t] of its sequence. Padding rows are skipped.
//
// decode_DIM_HEADS, decode_192_128_HEADS (keys of 192 values, and values of 128): one block of 128 threads per (up to
// HEADS query heads of a KV head, split, row), so that each key and value is loaded once for all heads that share it; by
// multiply-adds (decode_lanes.h) or on matrix units (decode_matrix.h). Waves take tiles of positions in turn and run
// independently until the end, where their results are merged in wave order. Shared memory: waves * HEADS *
// (v_dim + 2) * 4 bytes, at most 33 KB.
//
// decode_latent: values in the keys, where kv/attention_prefill.hip has no kernel for them; one block of 128 threads per
// (up to 8 query heads of a KV head, split, row); see decode_latent.h.
//
// A split is a range of positions. The host chooses the number of splits; their length follows from the row's position,
// in multiples of GRAIN. A single split writes `out`; several write `partial`: [n_rows, n_heads, n_splits, v_dim]
// sums, then [n_rows, n_heads, n_splits, 2] the exponent that weights are relative to, and their sum.
//
// combine: one block of 128 threads per (head, row) merges the splits in order. Shared memory: 2.6 KB.
//
// combine_q8x32, combine_q8x256_HEADS: the same, with the results in a form of activations too (acts.h), where values are not
// stored rotated. A block has HEADS heads with 256 values together and 128 threads for each; of Q8x32 one with up to 256 values.
//
// generic: any k_dim and v_dim, values in memory of their own or in the keys; one block of 128 threads per (head, row).
// Threads past the width of values share the positions of a tile. Shared memory: (2 TILE + k_dim + max(v_dim, 128)) * 4
// bytes. Slow. The only kernel of this file that knows positions after a row's own, and biases of distance.
#include "acts.h"
#include "decode_lanes.h"
#include "decode_latent.h"
#if defined(GPU_NVIDIA)
#include "decode_matrix.h"
#endif

#if defined(GPU_NVIDIA)
template <u32 DIM, u32 HEADS> constexpr bool fits_matrix() {
    if constexpr (!ONE_TYPE || KeyType::SCALES == kv::Scales::Within) return false;
    else return DecodeMatrix<KeyType, DIM, HEADS>::FITS;
}
template <u32 DIM, u32 HEADS, bool FITS = fits_matrix<DIM, HEADS>()>
struct Decode : DecodeMatrix<KeyType, DIM, HEADS> {};
template <u32 DIM, u32 HEADS> struct Decode<DIM, HEADS, false> : DecodeLanes<DIM, DIM, HEADS> {};
#else
template <u32 DIM, u32 HEADS> struct Decode : DecodeLanes<DIM, DIM, HEADS> {};
#endif

// One byte for each of HEADS = 1, 2, 4, 8, lowest first. Equal bytes mean that the same terms are added in the same
// order, so that results have the same bits.
template <u32 DIM>
constexpr u32 ORDERS =
    Decode<DIM, 1>::ORDER | Decode<DIM, 2>::ORDER << 8 | Decode<DIM, 4>::ORDER << 16 | Decode<DIM, 8>::ORDER << 24;

#define DECODE(DIM, HEADS)                                                                                             \
    KERNEL_THAT_BEGINS(decode_##DIM##_##HEADS, DecodeParams, THREADS) {                                                \
        DecodeJob job;                                                                                                 \
        if (DecodeJob::of_block<HEADS>(p, job)) Decode<DIM, HEADS>::run(p, job);                                       \
        else begin();                                                                                                  \
    }
#define DECODE_DIM(DIM)                                                                                                \
    EXPORT_U32(orders_##DIM, ORDERS<DIM>)                                                                              \
    DECODE(DIM, 1) DECODE(DIM, 2) DECODE(DIM, 4) DECODE(DIM, 8)
DECODE_DIM(64)
DECODE_DIM(80)
DECODE_DIM(96)
DECODE_DIM(128)
DECODE_DIM(256)
// Queries and sums of eight such heads do not fit into registers.
constexpr u32 WIDE_ORDERS = Decode<512, 1>::ORDER | Decode<512, 2>::ORDER << 8 | Decode<512, 4>::ORDER << 16;
EXPORT_U32(orders_512, WIDE_ORDERS)
DECODE(512, 1) DECODE(512, 2) DECODE(512, 4)

// Keys wider than values (MiMo 2): nor do eight of these.
#define DECODE_192_128(HEADS)                                                                                          \
    KERNEL_THAT_BEGINS(decode_192_128_##HEADS, DecodeParams, THREADS) {                                                \
        DecodeJob job;                                                                                                 \
        if (DecodeJob::of_block<HEADS>(p, job)) DecodeLanes<192, 128, HEADS>::run(p, job);                             \
        else begin();                                                                                                  \
    }
constexpr u32 ORDERS_192_128 = DecodeLanes<192, 128, 1>::ORDER | DecodeLanes<192, 128, 2>::ORDER << 8 |
                               DecodeLanes<192, 128, 4>::ORDER << 16;
EXPORT_U32(orders_192_128, ORDERS_192_128)
DECODE_192_128(1) DECODE_192_128(2) DECODE_192_128(4)

KERNEL(decode_latent, DecodeParams, THREADS) {
    if constexpr (ONE_TYPE) {
        DYNAMIC_SHARED(float, memory);
        DecodeJob job;
        if (DecodeJob::of_block<DecodeLatent::QUERIES>(p, job)) DecodeLatent::run(p, job, memory);
    }
}

KERNEL_THAT_BEGINS(combine, DecodeParams, THREADS) {
    u32 head = bid_x(), row = bid_y();
    u32 seq = uniform(early_word(p.seq_of_row + row));
    Span span = span_of(p, uniform(early_word(p.positions + row)));
    begin();
    if (seq == NO_ROW || span.n_used == 1) return;
    u64 of_row = (u64)row * p.n_heads + head;
    Parts parts{p.partial, (u64)p.n_rows * p.n_heads * p.n_splits, p.v_dim};
    float* out = p.out + of_row * p.v_dim;
    parts.combine(p.scores, head, of_row * p.n_splits, span.n_used, [&](u32 i, float x) { out[i] = x; });
    if constexpr (ValueType::ROTATES)
        if (p.v_hadamard() > 1) rotate_rows<THREADS>(1, p.v_dim, p.v_hadamard(), [&](u32) { return out; });
}

struct CombineActsParams {
    DecodeParams decode;
    ActsOut acts;
    FIELDS(decode, acts)
};

template <typename Form, u32 HEADS> DEV void combine_acts(const CombineActsParams& params) {
    SHARED(float, values, 256);
    const DecodeParams& p = params.decode;
    const u32 first_head = bid_x() * HEADS, of_block = tid() / THREADS, head = first_head + of_block, row = bid_y();
    const u32 seq = uniform(early_word(p.seq_of_row + row));
    const Span span = span_of(p, uniform(early_word(p.positions + row)));
    begin();
    if (seq == NO_ROW) return;
    const u64 of_row = (u64)row * p.n_heads + head;
    float *out = p.out + of_row * p.v_dim, *of_head = values + of_block * p.v_dim;
    if (span.n_used == 1) {
        for (u32 i = tid() % THREADS; i < p.v_dim; i += THREADS) of_head[i] = out[i];
    } else {
        const Parts parts{p.partial, (u64)p.n_rows * p.n_heads * p.n_splits, p.v_dim};
        parts.combine<HEADS>(p.scores, head, of_row * p.n_splits, span.n_used,
                             [&](u32 i, float x) { out[i] = of_head[i] = x; });
    }
    shared_barrier();
    if (uniform(wave()) != 0) return;
    const u32 width = p.n_heads * p.v_dim, begin = first_head * p.v_dim, n = HEADS * p.v_dim, at = lane() * OCTET;
    Form::put(params.acts, (u64)row * width, begin + at, begin + n, 1, load_octet(values, at, n, 1));
}
KERNEL_THAT_BEGINS(combine_q8x32, CombineActsParams, THREADS) { combine_acts<FormQ8x32, 1>(p); }
KERNEL_THAT_BEGINS(combine_q8x256_1, CombineActsParams, THREADS) { combine_acts<FormQ8x256, 1>(p); }
KERNEL_THAT_BEGINS(combine_q8x256_2, CombineActsParams, 2 * THREADS) { combine_acts<FormQ8x256, 2>(p); }
KERNEL_THAT_BEGINS(combine_q8x256_4, CombineActsParams, 4 * THREADS) { combine_acts<FormQ8x256, 4>(p); }

KERNEL(generic, DecodeParams, THREADS) {
    constexpr u32 TILE = THREADS;
    SHARED(float, weights, TILE);
    SHARED(u32, blocks, TILE);
    SHARED(float, part, N_WAVES);
    SHARED(float, part_of_sum, N_WAVES);
    DYNAMIC_SHARED(float, query);
    float* acc = query + p.k_dim;
    u32 head = bid_x(), row = bid_y(), seq = uniform(p.seq_of_row[row]);
    if (seq == NO_ROW) return;
    u32 own = uniform(p.positions[row]);
    u32 first = p.scores.first_seen(own), last = own;
    if (p.scores.ahead != 0) last = p.scores.last_seen(own, p.seqs[seq].first_pos + p.seqs[seq].n_rows - 1);
    float bias = p.scores.bias_of(head);
    u32 kv_head = head / (p.n_heads / p.cache.n_kv_heads);
    const float* q = p.q + ((u64)row * p.n_heads + head) * p.k_dim;
    for (u32 i = tid(); i < p.k_dim; i += THREADS) query[i] = q[i] * p.scores.query_factor(own);
    if constexpr (KeyType::ROTATES)
        if (p.k_hadamard() > 1) rotate_rows<THREADS>(1, p.k_dim, p.k_hadamard(), [&](u32) { return query; });
    // Of as many parts of the positions, one after the other.
    const u32 n_parts = max_of(THREADS / p.v_dim, 1u), n_sums = n_parts * p.v_dim;
    for (u32 i = tid(); i < n_sums; i += THREADS) acc[i] = 0.0f;
    float greatest = UNSEEN, sum = 0.0f;
    for (u32 tile = first; tile <= last; tile += TILE) {
        shared_barrier();
        u32 pos = tile + tid();
        float x = UNSEEN;
        if (pos <= last) {
            const u32 block = blocks[tid()] = p.cache.block(seq, pos);
            u64 row_of_k = p.cache.slot(block, kv_head, pos);
            float dot = 0.0f;
            for (u32 i = 0; i < p.k_dim; i++) dot = fma(KeyType::one(p.cache.k, row_of_k, p.k_dim, i), query[i], dot);
            x = fma(bias, Scores::distance(own, pos), p.scores.exponent(dot));
        }
        float max = max_of(greatest, block_reduce<Max, THREADS>(x, part));
        float rescale = exp2_fast(greatest - max), weight = pos <= last ? exp2_fast(x - max) : 0.0f;
        greatest = max;
        weights[tid()] = weight;
        sum = fma(sum, rescale, block_reduce<Sum, THREADS>(weight, part_of_sum));
        shared_barrier();
        u32 n = min_of(TILE, last + 1 - tile);
        for (u32 at = tid(); at < n_sums; at += THREADS) {
            float total = acc[at] * rescale;
            for (u32 j = at / p.v_dim; j < n; j += n_parts) {
                u64 row_of_v = p.cache.slot(blocks[j], kv_head, tile + j);
                total = fma(ValueType::one(p.cache.v, row_of_v, p.v_row, at % p.v_dim), weights[j], total);
            }
            acc[at] = total;
        }
    }
    sum += p.scores.sink_weight(head, greatest);
    float* out = p.out + ((u64)row * p.n_heads + head) * p.v_dim;
    shared_barrier();
    for (u32 i = tid(); i < p.v_dim; i += THREADS) {
        float total = acc[i];
        for (u32 at = i + p.v_dim; at < n_sums; at += p.v_dim) total += acc[at];
        out[i] = total / sum;
    }
    if constexpr (ValueType::ROTATES)
        if (p.v_hadamard() > 1) rotate_rows<THREADS>(1, p.v_dim, p.v_hadamard(), [&](u32) { return out; });
}
