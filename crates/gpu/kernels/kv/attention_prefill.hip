// Attention of many rows per sequence on the matrix units (FlashAttention-2, Dao 2023), and of few rows of latent
// layers.
//
//     out[row, head] = sum_pos softmax_pos(q[row, head] . k[pos, head / group]) v[pos, head / group]
//
// Shapes and masks as in attention_decode.hip; rows come from `seqs`. One block per (tile of queries, KV head,
// sequence). The queries of a tile are `tile_rows` consecutive rows with `tile_heads` heads of a group each, so that a
// key loaded once serves all of them. Blocks walk KEYS positions at a time, from the first to the last that a row of
// the tile sees.
//
// prefill_DIM, prefill_192_128: keys and values of up to 256 values, 16 queries per wave; see prefill_rows.h.
// prefill_512, prefill_latent_K_V: wide heads, and keys of K values whose first V are the value, 16 or 32 queries per
// block; see prefill_columns.h.
//
// Queries and weights are each the sum of two f16, the second being the rounding error of the first: two products
// instead of one, with an error near that of f32.
//
// A long context is divided into splits, so that few rows keep the device busy, too. A block then has the positions of
// one split and writes a partial result; combine_rows combines them.
#include "prefill_rows.h"
#if !defined(MMA_DOT)
#include "prefill_columns.h"
#endif

#define PREFILL_OF(NAME, K_DIM, V_DIM, WAVES, KEYS)                                                                    \
    KERNEL(NAME, PrefillParams, (WAVES * WARP_SIZE)) { PrefillRows<K_DIM, V_DIM, WAVES, KEYS>::run(p); }
#define PREFILL(DIM, WAVES, KEYS) PREFILL_OF(prefill_##DIM, DIM, DIM, WAVES, KEYS)
// Also exports the dynamic shared memory of the kernel's blocks. Latent layers have caches of one type only.
#define PREFILL_COLUMNS(NAME, K_DIM, V_DIM, VALUES)                                                                    \
    EXPORT_U32(NAME##_bytes, (PrefillColumns<K_DIM, V_DIM, VALUES>::BYTES))                                            \
    KERNEL(NAME, PrefillParams, (PrefillColumns<K_DIM, V_DIM, VALUES>::THREADS)) {                                     \
        if constexpr (ONE_TYPE || VALUES == Values::Apart) {                                                           \
            DYNAMIC_SHARED(u8, memory);                                                                                \
            PrefillColumns<K_DIM, V_DIM, VALUES>::run(p, memory);                                                      \
        }                                                                                                              \
    }
EXPORT_U32(wave_size, WARP_SIZE)

// Combines the splits that a row sees; one block per head and row.
KERNEL(combine_rows, PrefillParams, THREADS) {
    u32 head = bid_x(), row = bid_y(), seq = uniform(p.seq_of_row[row]);
    if (seq == NO_ROW) return;
    SeqRows rows = rows_of(p, seq);
    Splits splits = Splits::of(p, rows);
    if (splits.n_used == 1) return;
    u32 pos = rows.first_pos + row - rows.first_row;
    u32 first = (p.scores.first_seen(pos) - splits.start) / splits.len;
    u32 last = (p.scores.last_seen(pos, rows.first_pos + rows.n_rows - 1) - splits.start) / splits.len;
    u64 of_row = (u64)row * p.n_heads + head;
    Parts parts{p.partial, (u64)p.n_rows * p.n_heads * p.n_splits, p.v_dim};
    float* out = p.out + of_row * p.v_dim;
    parts.combine(p.scores, head, of_row * p.n_splits + first, last - first + 1, [&](u32 i, float x) { out[i] = x; });
    if constexpr (ValueType::ROTATES)
        if (p.v_hadamard > 1) rotate_rows<THREADS>(1, p.v_dim, p.v_hadamard, [&](u32) { return out; });
}

// WAVES as in src/ops/attention/prefill.rs.
// The smallest BERT models; only for rows that see positions after their own.
PREFILL(32, 4, LONG_BLOCK)
PREFILL(64, 4, LONG_BLOCK)
PREFILL(80, 4, LONG_BLOCK)
PREFILL(96, 4, LONG_BLOCK)
PREFILL(128, 4, LONG_BLOCK)
// With dot product instructions a lane's part of wider heads does not fit into registers.
#if defined(MMA_DOT)
EXPORT_U32(widest, 128)
EXPORT_U32(column_queries, 0)
#else
EXPORT_U32(widest, 576)
EXPORT_U32(column_queries, (PrefillColumns<512, 512, Values::Apart>::QUERIES))
// RDNA has no registers for longer blocks where eight codes take three.
#if defined(GPU_GFX11) || defined(GPU_GFX12)
constexpr bool ARE_SMALL = sizeof(KeyType::Eight) < 12 && sizeof(ValueType::Eight) < 12;
PREFILL_OF(prefill_192_128, 192, 128, 2, (ARE_SMALL ? LONG_BLOCK : 16))
#else
PREFILL_OF(prefill_192_128, 192, 128, 2, LONG_BLOCK)
#endif
PREFILL(256, 2, 16)
PREFILL_COLUMNS(prefill_512, 512, 512, Values::Apart)
// DeepSeek V2 and V3, Kimi K2, GLM 4.7 Flash; Mistral 4; MiniCPM 3.
PREFILL_COLUMNS(prefill_latent_576_512, 576, 512, Values::InKeys)
PREFILL_COLUMNS(prefill_latent_320_256, 320, 256, Values::InKeys)
PREFILL_COLUMNS(prefill_latent_288_256, 288, 256, Values::InKeys)
#endif
