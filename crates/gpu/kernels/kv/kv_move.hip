// Context shifting: moves cached tokens to other slots. Keys that move to lower positions are rotated back: rotations
// add up, so R(-d) R(p) k = R(p - d) k, whatever magnitude R(p) k was scaled with.
//
// k_cache and v_cache [n_blocks, n_kv_heads, page, dim] as stored by kv_type.h. runs [n_runs]: `n_tokens` tokens move
// from slot `first` on to `first_to` on; neither range crosses a cache block. Keys of runs from n_copied on are rotated
// back by `back_by` positions, by the angles of that row of table [n_ctx, n_rot / 2, 2], which holds cosines and sines
// times 1 / inverse_magnitude; pairs as in rope_kv.hip. Values that are not rotated keep their bits. A run may stay in
// place. No run reads a slot that another run writes, so their order does not matter. Runs outside the cache move
// nothing.
//
// Block (run, eight rows) of 256 threads: a team of 32 lanes per head of a token, keys first, then values. Each lane
// has whole pairs. For types with scales, rotated values are collected in shared memory, k_dim * 4 bytes per row;
// otherwise there is no shared memory, and lanes only read what they write themselves.
#include "kv_type.h"

constexpr u32 THREADS = 256;

struct SlotRun {
    u32 first;
    u32 first_to;
    u32 n_tokens;
    FIELDS(first, first_to, n_tokens)
};

struct KvMoveParams {
    kv::Planes k_cache;
    kv::Planes v_cache;
    const float* table;
    const SlotRun* runs;
    u32 n_copied;
    u32 n_kv_heads;
    u32 k_dim;
    u32 v_dim;
    u32 n_rot;
    u32 page;
    u32 n_slots;
    u32 back_by;
    float inverse_magnitude;
    // The first rotated value of a head.
    u32 first_rot;
    // Values of a key that hadamard.h rotates together; 1 for none.
    u32 k_hadamard;
    u32 pad;
    FIELDS(k_cache, v_cache, table, runs, n_copied, n_kv_heads, k_dim, v_dim, n_rot, page, n_slots, back_by,
           inverse_magnitude, first_rot, k_hadamard, pad)
};

struct Neox {
    // The first value of pair i, and the distance to the second.
    DEV_MEMBER static u32 first(u32 i) { return i; }
    DEV_MEMBER static u32 stride(u32 n_rot) { return n_rot / 2; }
};
struct Norm {
    DEV_MEMBER static u32 first(u32 i) { return 2 * i; }
    DEV_MEMBER static u32 stride(u32) { return 1; }
};

DEV void copy_row(const kv::Planes& cache, u64 from, u64 to, u32 n_codes, u32 n_scales) {
    for (u32 i = tid() % TEAM; i < n_codes; i += TEAM) cache.codes[to * n_codes + i] = cache.codes[from * n_codes + i];
    for (u32 i = tid() % TEAM; i < n_scales; i += TEAM)
        cache.scales[to * n_scales + i] = cache.scales[from * n_scales + i];
}

template <typename Style> DEV void kv_move(const KvMoveParams& p) {
    constexpr bool HAS_SCALES = KeyType::SCALES != kv::Scales::None;
    const SlotRun run = p.runs[bid_x()];
    const u32 row = bid_y() * (THREADS / TEAM) + tid() / TEAM, lane_of_team = tid() % TEAM;
    const u32 head = row / p.page % p.n_kv_heads, token = row % p.page;
    const bool is_v = row >= p.n_kv_heads * p.page;
    const u32 from_slot = run.first + token, to_slot = run.first_to + token;
    const bool moves =
        row < 2 * p.n_kv_heads * p.page && token < run.n_tokens && max_of(from_slot, to_slot) < p.n_slots;
    const u32 n_rot = !moves || is_v || bid_x() < p.n_copied ? 0 : p.n_rot;

    const kv::Planes& cache = is_v ? p.v_cache : p.k_cache;
    const u32 dim = is_v ? p.v_dim : p.k_dim;
    auto place = [&](u32 slot) { return ((u64)(slot / p.page) * p.n_kv_heads + head) * p.page + slot % p.page; };
    const u64 from = place(from_slot), to = place(to_slot);
    if (moves && n_rot == 0 && from != to) {
        const u32 n_codes = is_v ? ValueType::code_bytes(dim) : KeyType::code_bytes(dim);
        const u32 n_scales = is_v ? ValueType::scale_bytes(dim) : KeyType::scale_bytes(dim);
        copy_row(cache, from, to, n_codes, n_scales);
    }

    [[maybe_unused]] float* gathered = nullptr;
    if constexpr (HAS_SCALES) {
        DYNAMIC_SHARED(float, memory);
        gathered = memory + tid() / TEAM * p.k_dim;
    }
    // A key that hadamard.h has rotated is first rotated back as a whole.
    if constexpr (KeyType::ROTATES) {
        for (u32 i = lane_of_team; i < (n_rot != 0 ? dim : 0); i += TEAM)
            gathered[i] = KeyType::one(cache, from, dim, i);
        wave_barrier(gathered, p.k_dim * 4);
        if (p.k_hadamard > 1) rotate_row(gathered, n_rot != 0 ? dim : 0, p.k_dim, p.k_hadamard);
        wave_barrier(gathered, p.k_dim * 4);
    }
    auto get = [&](u32 i) {
        if constexpr (KeyType::ROTATES) return gathered[i];
        else return KeyType::one(cache, from, dim, i);
    };
    auto put = [&](u32 i, float x) {
        if constexpr (HAS_SCALES) gathered[i] = x;
        else ((u16*)cache.codes)[to * dim + i] = f2h(x);
    };
    const float* angles = p.table + (u64)p.back_by * n_rot;
    for (u32 i = lane_of_team; i < n_rot / 2; i += TEAM) {
        const u32 first = p.first_rot + Style::first(i), second = first + Style::stride(n_rot);
        const float a = get(first), b = get(second);
        const float cos = angles[2 * i] * p.inverse_magnitude, sin = angles[2 * i + 1] * p.inverse_magnitude;
        put(first, a * cos + b * sin);
        put(second, b * cos - a * sin);
    }
    if (n_rot != 0)
        for (u32 i = lane_of_team; i < dim - n_rot; i += TEAM) {
            const u32 at = i < p.first_rot ? i : i + n_rot;
            put(at, get(at));
        }
    if constexpr (HAS_SCALES) {
        wave_barrier(gathered, p.k_dim * 4);
        kv::rotate_and_store<KeyType, 1>(cache, to, n_rot != 0 ? dim : 0, p.k_dim, p.k_hadamard, p.k_hadamard,
                                         gathered);
    }
}

KERNEL(kv_move_norm, KvMoveParams, THREADS) { kv_move<Norm>(p); }
KERNEL(kv_move_neox, KvMoveParams, THREADS) { kv_move<Neox>(p); }
