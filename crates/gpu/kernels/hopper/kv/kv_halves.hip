// Copies of cached keys and values in f16, for prompts: hopper/attend.hip reads no other type.
//
// k [n_seqs * n_pages, n_kv_heads, page, k_dim] and v [.., v_dim]: page i of sequence s is block s * n_pages + i. What types
// with scales store is rounded to nearest even; heads that are stored rotated are rotated back before.
//
// Block (keys or values of a KV head, page, sequence) of 256 threads, eight values per thread at a time: k_dim and v_dim
// are multiples of 64. Pages that no row of the step sees are left out.
#include "attention.h"

constexpr u32 THREADS = 256;

struct KvHalvesParams {
    KvCache cache;
    Scores scores;
    const SeqRows* seqs;
    u16* k;
    u16* v;
    u32 k_dim;
    u32 v_dim;
    u32 n_pages;
    // Values of a key and of a value that hadamard.h rotates together; 1 for none.
    u32 k_hadamard;
    u32 v_hadamard;
    u32 pad;
    FIELDS(cache, scores, seqs, k, v, k_dim, v_dim, n_pages, k_hadamard, v_hadamard, pad)
};

// Eight values of a row from `at` on, as f16. All lanes of the wave must call it.
template <typename Type> DEV u32x4 halves_of(const kv::Planes& from, u64 row, u32 dim, u32 at, u32 hadamard_len) {
    const auto piece = kv::Piece<Type>::load(from, row, dim, at);
    if constexpr (Type::ROTATES) {
        float v[8];
        piece.eight.unpack(v);
#pragma unroll
        for (u32 i = 0; i < 8; i++) v[i] *= Type::factor(piece.scale);
        hadamard<MAX_HADAMARD>(v, hadamard_len);
        return {{pack_halves(v[0], v[1]), pack_halves(v[2], v[3]), pack_halves(v[4], v[5]), pack_halves(v[6], v[7])}};
    } else {
        return piece.halves();
    }
}

template <typename Type>
DEV void copy_page(const KvHalvesParams& p, const kv::Planes& from, u16* to, u32 dim, u32 hadamard_len) {
    const u32 head = bid_x() / 2, page = bid_y(), seq = bid_z(), shift = p.cache.page_shift;
    const u64 row = p.cache.slot(p.cache.block(seq, page << shift), head, 0);
    const u64 to_row = p.cache.slot(seq * p.n_pages + page, head, 0);
    for (u32 i = tid() * 8; i < dim << shift; i += THREADS * 8)
        store16(to + to_row * dim + i, halves_of<Type>(from, row + i / dim, dim, i % dim, hadamard_len));
}

KERNEL(kv_halves, KvHalvesParams, THREADS) {
    const SeqRows rows = p.seqs[bid_z()];
    const u32 first = bid_y() << p.cache.page_shift, end = (bid_y() + 1) << p.cache.page_shift;
    if (first >= rows.first_pos + rows.n_rows || end <= p.scores.first_seen(rows.first_pos) || rows.n_rows == 0) return;
    if (bid_x() % 2 == 0) copy_page<KeyType>(p, p.cache.k, p.k, p.k_dim, p.k_hadamard);
    else copy_page<ValueType>(p, p.cache.v, p.v, p.v_dim, p.v_hadamard);
}
