// Rotary position embedding (Su et al. 2021) of queries and keys, and the append of keys and values to the paged KV
// cache.
//
// Pair i of a head (i < n_rot / 2) is its values 2i and 2i + 1 (norm) or i and i + n_rot / 2 (neox), counted from
// first_rot on. With (cos, sin) = table[position][i], (a, b) becomes (a cos - b sin, a sin + b cos); other values are
// unchanged. With norm weights, the head is first x / sqrt(mean(x^2) + eps) * weight.
//
// With tails (latent attention), the rotated values are the last ones of a head, and come from elsewhere: those of
// queries from the end of heads of q_tail [n_rows, n_q_heads, q_tail_dim], whose other values are not touched; those of
// keys from k_tail [n_rows, n_kv_heads, n_rot], and the others from k [n_rows, n_kv_heads, first_rot]. The norm of keys
// is that of the others.
//
// q [n_rows, n_q_heads, k_dim] goes to q_out, which may be q; k [n_rows, n_kv_heads, k_dim] and v [n_rows, n_kv_heads,
// v_dim] go to k_cache and v_cache [n_blocks, n_kv_heads, page, dim], stored as in kv_type.h, at slots[row] = block *
// page + offset. Rows whose slot is outside the cache (NO_ROW) append nothing. table [n_ctx, n_rot / 2, 2].
//
// Block (row, eight heads) of 256 threads: a team of 32 lanes per head, queries first, then keys, then values. A lane
// handles W pairs at a time, in two runs of W neighbouring values: W is 4 if everything is aligned to 16 bytes and
// whole runs, else 1. For types with scales, the values of a head are collected in shared memory, widest * 4 bytes per
// head; otherwise there is none.
#include "early.h"
#include "kv_type.h"
#include "step.h"

constexpr u32 THREADS = 256;

struct RopeKvParams {
    const float* q;
    float* q_out;
    const float* k;
    const float* v;
    kv::Planes k_cache;
    kv::Planes v_cache;
    const float* table;
    // Weights of the norms of heads, or null.
    const float* q_norm;
    const float* k_norm;
    // Or null, both.
    const float* q_tail;
    const float* k_tail;
    const u32* positions;
    const u32* slots;
    u32 n_q_heads;
    u32 n_kv_heads;
    u32 k_dim;
    u32 v_dim;
    u32 n_rot;
    u32 n_ctx;
    u32 page;
    u32 n_slots;
    float eps;
    // The larger of k_dim and v_dim, in whole eights. v_dim is 0 if values are parts of keys.
    u32 widest;
    u32 first_rot;
    u32 q_tail_dim;
    // Values that hadamard.h rotates together; 1 for none.
    u32 k_hadamard;
    u32 v_hadamard;
    FIELDS(q, q_out, k, v, k_cache, v_cache, table, q_norm, k_norm, q_tail, k_tail, positions, slots, n_q_heads,
           n_kv_heads, k_dim, v_dim, n_rot, n_ctx, page, n_slots, eps, widest, first_rot, q_tail_dim, k_hadamard,
           v_hadamard)
};

template <u32 W> struct Run {
    float v[W];
};

template <u32 W> DEV Run<W> load_run(const float* x) {
    if constexpr (W == 4) return bits<Run<4>>(load16(x));
    else return {{x[0]}};
}

template <u32 W> DEV void store_run(float* out, const Run<W>& x) {
    if constexpr (W == 4) store16(out, bits<u32x4>(x));
    else out[0] = x.v[0];
}

template <u32 W> DEV void store_run_f16(u16* out, const Run<W>& x) {
    if constexpr (W == 4) {
        *(u32x2*)out = {{pack_halves(x.v[0], x.v[1]), pack_halves(x.v[2], x.v[3])}};
    } else {
        out[0] = f2h(x.v[0]);
    }
}

// Rotates (a, b) by the angle with this cosine and sine.
DEV void turn(float& a, float& b, const float* angle) {
    float cos = angle[0], sin = angle[1], x = a, y = b;
    a = x * cos - y * sin;
    b = x * sin + y * cos;
}

struct Neox {
    static constexpr bool HALVES = true;
};
struct Norm {
    static constexpr bool HALVES = false;
};

// W pairs of a head.
template <u32 W> struct Unit {
    bool turns;
    // The first values of its two runs.
    u32 first, second;
    Run<W> a, b;
    // The norm's weights of both runs.
    Run<W> weight_a, weight_b;
    // Cosine and sine of each pair.
    Run<W> angles[2];
};

template <typename Style, u32 W> DEV void turn(Unit<W>& u) {
    float t[2 * W];
#pragma unroll
    for (u32 i = 0; i < W; i++) t[i] = u.angles[0].v[i], t[W + i] = u.angles[1].v[i];
    if constexpr (Style::HALVES || W == 1) {
#pragma unroll
        for (u32 i = 0; i < W; i++) turn(u.a.v[i], u.b.v[i], t + 2 * i);
    } else {
        turn(u.a.v[0], u.a.v[1], t), turn(u.a.v[2], u.a.v[3], t + 2);
        turn(u.b.v[0], u.b.v[1], t + 4), turn(u.b.v[2], u.b.v[3], t + 6);
    }
}

template <typename Style, u32 W> DEV void rope_kv(const RopeKvParams& p) {
    const u32 row = bid_x(), lane_of_team = tid() % TEAM, n_heads = p.n_q_heads + 2 * p.n_kv_heads;
    // The time of a step with few rows is its longest chain of dependent loads: those of the values alone follow begin().
    const u32 position = early_word(p.positions + row), slot = early_word(p.slots + row);
    const u32 job = bid_y() * (THREADS / TEAM) + tid() / TEAM;
    const bool is_q = job < p.n_q_heads, is_v = job >= p.n_q_heads + p.n_kv_heads;
    // Selects by query, key or value without a branch.
    auto of = [&](auto query, auto key, auto value) { return is_q ? query : is_v ? value : key; };
    const u32 head = of(job, job - p.n_q_heads, job - p.n_q_heads - p.n_kv_heads);
    const u32 dim = is_v ? p.v_dim : p.k_dim, n_rot = is_v ? 0 : p.n_rot;
    const u32 n_units = job < n_heads ? dim / (2 * W) : 0;
    const u64 at = (u64)row * of(p.n_q_heads, p.n_kv_heads, p.n_kv_heads) + head, base = at * dim;
    const bool has_tail = p.k_tail && !is_v;
    const float* x = global(of(p.q, p.k, p.v) + (has_tail && !is_q ? at * p.first_rot : base));
    // What is rotated, from value `turned_from` of the head on.
    const float* turned = x;
    const u32 turned_from = has_tail ? p.first_rot : 0;
    if (has_tail) turned = global(is_q ? p.q_tail + (at + 1) * p.q_tail_dim - n_rot : p.k_tail + at * n_rot);
    const u32 first_unit = has_tail && is_q ? p.first_rot / (2 * W) : 0;
    const float* weight = global(of(p.q_norm, p.k_norm, (const float*)nullptr));

    auto place = [&](Unit<W>& u, u32 unit) {
        // Wraps around before the first rotated value.
        u.turns = unit * 2 * W - p.first_rot < n_rot;
        u.first = Style::HALVES && u.turns ? unit * W + p.first_rot / 2 : unit * 2 * W;
        u.second = u.first + (Style::HALVES && u.turns ? n_rot / 2 : W);
    };
    auto load_values = [&](Unit<W>& u, u32 unit) {
        u.a = u.b = {};
        const float* from = u.turns ? turned : x;
        const u32 start = u.turns ? turned_from : 0;
        if (unit < n_units) u.a = load_run<W>(from + (u.first - start)), u.b = load_run<W>(from + (u.second - start));
    };
    auto load_factors = [&](Unit<W>& u, u32 unit) {
        if (unit >= n_units) return;
        if (weight && !(has_tail && u.turns))
            u.weight_a = load_run<W>(weight + u.first), u.weight_b = load_run<W>(weight + u.second);
        if (u.turns) {
            const float* angles = p.table + (u64)min_of(position, p.n_ctx - 1) * n_rot + (unit * 2 * W - p.first_rot);
            u.angles[0] = load_run<W>(angles), u.angles[1] = load_run<W>(angles + W);
        }
    };
    // Nearly always the lane's only unit.
    Unit<W> u;
    place(u, first_unit + lane_of_team);
    load_factors(u, first_unit + lane_of_team);
    begin();
    load_values(u, first_unit + lane_of_team);

    float scale = 1;
    if (p.q_norm || p.k_norm) {
        float sum = 0;
        auto add = [&](const Unit<W>& u) {
            if (has_tail && u.turns) return;
#pragma unroll
            for (u32 i = 0; i < W; i++) sum = fma(u.a.v[i], u.a.v[i], fma(u.b.v[i], u.b.v[i], sum));
        };
        add(u);
#pragma unroll 1
        for (u32 unit = lane_of_team + TEAM; unit < n_units; unit += TEAM) {
            Unit<W> more;
            place(more, unit);
            load_values(more, unit);
            add(more);
        }
        scale = 1.0f / sqrt_of(group_reduce<Sum, TEAM>(sum) / (float)(has_tail ? p.first_rot : dim) + p.eps);
    }

    constexpr bool KEY_SCALES = KeyType::SCALES != kv::Scales::None, VALUE_SCALES = ValueType::SCALES != kv::Scales::None;
    // Values collected to compute their scales.
    [[maybe_unused]] float* gathered = nullptr;
    if constexpr (KEY_SCALES || VALUE_SCALES) {
        DYNAMIC_SHARED(float, memory);
        gathered = memory + tid() / TEAM * p.widest;
    }
    const bool is_cached = !is_q && job < n_heads && slot < p.n_slots;
    // page is a power of two: (slot / page * n_kv_heads + head) * page + slot % page.
    const u32 offset = slot & (p.page - 1);
    const u64 cached = (u64)(slot - offset) * p.n_kv_heads + head * p.page + offset;
    const kv::Planes& cache = is_v ? p.v_cache : p.k_cache;
#pragma unroll 1
    for (u32 unit = first_unit + lane_of_team; unit < n_units; unit += TEAM) {
        if (unit != first_unit + lane_of_team) place(u, unit), load_factors(u, unit), load_values(u, unit);
        if (weight && !(has_tail && u.turns)) {
#pragma unroll
            for (u32 i = 0; i < W; i++)
                u.a.v[i] = u.a.v[i] * scale * u.weight_a.v[i], u.b.v[i] = u.b.v[i] * scale * u.weight_b.v[i];
        }
        if (u.turns) turn<Style, W>(u);
        if (is_q) {
            float* out = global(p.q_out + base);
            store_run<W>(out + u.first, u.a), store_run<W>(out + u.second, u.b);
        }
        // Queries too, although unused: with a branch here, both stores would become one that serves either kind of
        // memory.
        if constexpr (KEY_SCALES || VALUE_SCALES)
            store_run<W>(gathered + u.first, u.a), store_run<W>(gathered + u.second, u.b);
        if constexpr (!KEY_SCALES || !VALUE_SCALES) {
            if (is_cached && (is_v ? !VALUE_SCALES : !KEY_SCALES)) {
                u16* to = (u16*)cache.codes + cached * dim;
                store_run_f16<W>(to + u.first, u.a), store_run_f16<W>(to + u.second, u.b);
            }
        }
    }
    if constexpr (KEY_SCALES || VALUE_SCALES) wave_barrier(gathered, p.widest * 4);
    constexpr u32 V = W == 4 ? 8 : 1;
    if constexpr (ONE_TYPE && KEY_SCALES) {
        const u32 len = is_v ? p.v_hadamard : p.k_hadamard, longest = max_of(p.k_hadamard, p.v_hadamard);
        kv::rotate_and_store<KeyType, V>(cache, cached, is_cached ? dim : 0, p.widest, len, longest, gathered);
    } else {
        // A wave may have a key and a value.
        if constexpr (KEY_SCALES)
            kv::rotate_and_store<KeyType, V>(p.k_cache, cached, is_cached && !is_v ? dim : 0, p.widest, p.k_hadamard,
                                             p.k_hadamard, gathered);
        if constexpr (VALUE_SCALES)
            kv::rotate_and_store<ValueType, V>(p.v_cache, cached, is_cached && is_v ? dim : 0, p.widest, p.v_hadamard,
                                               p.v_hadamard, gathered);
    }
}

KERNEL_THAT_BEGINS(rope_kv_norm_4, RopeKvParams, THREADS) { rope_kv<Norm, 4>(p); }
KERNEL_THAT_BEGINS(rope_kv_norm_1, RopeKvParams, THREADS) { rope_kv<Norm, 1>(p); }
KERNEL_THAT_BEGINS(rope_kv_neox_4, RopeKvParams, THREADS) { rope_kv<Neox, 4>(p); }
KERNEL_THAT_BEGINS(rope_kv_neox_1, RopeKvParams, THREADS) { rope_kv<Neox, 1>(p); }
