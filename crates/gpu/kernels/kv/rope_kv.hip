// Rotary position embedding (Su et al. 2021) of queries and keys, and the append of keys and values to the paged cache.
//
// Pair i of a head (i < n_rot / 2) is its values 2i and 2i + 1 (norm) or i and i + n_rot / 2 (neox). With (cos, sin) =
// table[position][i], (a, b) becomes (a cos - b sin, a sin + b cos); values from n_rot on stay. With norm weights, the head
// is first x / sqrt(mean(x^2) + eps) * weight.
//
// q [n_rows, n_q_heads, k_dim] goes to q_out, which may be q; k [n_rows, n_kv_heads, k_dim] and v [n_rows, n_kv_heads, v_dim] go, as
// kv_type.h stores them, to k_cache and v_cache [n_blocks, n_kv_heads, page, dim] at slots[row] = block * page +
// offset. A row whose slot is beyond the cache (NO_ROW) appends nothing. table [n_ctx, n_rot / 2, 2].
//
// Block (row, eight heads): a team of 32 lanes per head, queries first, then keys, then values. A lane takes W pairs at a
// time, in two runs of W neighbouring values: W is 4 where all is aligned to 16 bytes and whole runs, else 1. For types
// with scales the rows of the block's heads meet in shared memory first, widest * 4 bytes a head; else there is none.
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
    // The larger of k_dim and v_dim.
    u32 widest;
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
        u32x2 packed = {{f2h(x.v[0]) | (u32)f2h(x.v[1]) << 16, f2h(x.v[2]) | (u32)f2h(x.v[3]) << 16}};
        *(u32x2*)out = packed;
    } else {
        out[0] = f2h(x.v[0]);
    }
}

// (a, b) turned by the angle with this cosine and sine.
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

template <typename Style, u32 W> DEV void rope_kv(const RopeKvParams& p) {
    const u32 row = bid_x(), lane_of_team = tid() % TEAM, n_heads = p.n_q_heads + 2 * p.n_kv_heads;
    const u32 job = bid_y() * (THREADS / TEAM) + tid() / TEAM;
    const bool is_q = job < p.n_q_heads, is_v = job >= p.n_q_heads + p.n_kv_heads;
    const u32 head = is_q ? job : is_v ? job - p.n_q_heads - p.n_kv_heads : job - p.n_q_heads;
    const u32 dim = is_v ? p.v_dim : p.k_dim, n_rot = is_v ? 0 : p.n_rot;
    const u32 n_units = job < n_heads ? dim / (2 * W) : 0;
    const u64 base = ((u64)row * (is_q ? p.n_q_heads : p.n_kv_heads) + head) * dim;
    const float* x = (is_q ? p.q : is_v ? p.v : p.k) + base;
    const float* weight = is_q ? p.q_norm : is_v ? nullptr : p.k_norm;
    // The first values of the two runs of a unit.
    auto first_of = [&](u32 unit) {
        if (Style::HALVES && unit * 2 * W < n_rot) return unit * W;
        return unit * 2 * W;
    };
    auto second_of = [&](u32 unit) { return first_of(unit) + (Style::HALVES && unit * 2 * W < n_rot ? n_rot / 2 : W); };

    float scale = 1;
    if (p.q_norm || p.k_norm) {
        float sum = 0;
        for (u32 unit = lane_of_team; unit < n_units; unit += TEAM) {
            Run<W> a = load_run<W>(x + first_of(unit)), b = load_run<W>(x + second_of(unit));
#pragma unroll
            for (u32 i = 0; i < W; i++) sum = fma(a.v[i], a.v[i], fma(b.v[i], b.v[i], sum));
        }
        scale = 1.0f / sqrt_of(group_reduce<Sum, TEAM>(sum) / (float)dim + p.eps);
    }

    constexpr bool HAS_SCALES = Kv::SCALES != kv::Scales::None;
    // Rows that are gathered for their scales.
    [[maybe_unused]] float* gathered = nullptr;
    if constexpr (HAS_SCALES) {
        DYNAMIC_SHARED(float, memory);
        gathered = memory + tid() / TEAM * p.widest;
    }
    u64 cached = 0;
    [[maybe_unused]] bool is_cached = false;
    if (!is_q && job < n_heads) {
        u32 slot = p.slots[row];
        is_cached = slot < p.n_slots;
        if (!HAS_SCALES && !is_cached) return;
        if (is_cached) cached = ((u64)(slot / p.page) * p.n_kv_heads + head) * p.page + slot % p.page;
    }
    const kv::Planes& cache = is_v ? p.v_cache : p.k_cache;
    const float* angles = p.table;
    if (p.n_rot) angles += (u64)min_of(p.positions[row], p.n_ctx - 1) * p.n_rot;
    for (u32 unit = lane_of_team; unit < n_units; unit += TEAM) {
        u32 first = first_of(unit), second = second_of(unit);
        Run<W> a = load_run<W>(x + first), b = load_run<W>(x + second);
        if (weight) {
            Run<W> wa = load_run<W>(weight + first), wb = load_run<W>(weight + second);
#pragma unroll
            for (u32 i = 0; i < W; i++) a.v[i] = a.v[i] * scale * wa.v[i], b.v[i] = b.v[i] * scale * wb.v[i];
        }
        if (unit * 2 * W < n_rot) {
            // Cosine and sine of W pairs.
            Run<W> c0 = load_run<W>(angles + unit * 2 * W), c1 = load_run<W>(angles + unit * 2 * W + W);
            float t[2 * W];
#pragma unroll
            for (u32 i = 0; i < W; i++) t[i] = c0.v[i], t[W + i] = c1.v[i];
            if constexpr (Style::HALVES || W == 1) {
#pragma unroll
                for (u32 i = 0; i < W; i++) turn(a.v[i], b.v[i], t + 2 * i);
            } else {
                turn(a.v[0], a.v[1], t), turn(a.v[2], a.v[3], t + 2);
                turn(b.v[0], b.v[1], t + 4), turn(b.v[2], b.v[3], t + 6);
            }
        }
        if (is_q) {
            store_run<W>(p.q_out + base + first, a), store_run<W>(p.q_out + base + second, b);
        } else if constexpr (HAS_SCALES) {
            store_run<W>(gathered + first, a), store_run<W>(gathered + second, b);
        } else {
            u16* to = (u16*)cache.codes + cached * dim;
            store_run_f16<W>(to + first, a), store_run_f16<W>(to + second, b);
        }
    }
    if constexpr (HAS_SCALES) {
        barrier();
        kv::store_row<Kv>(cache, cached, is_cached ? dim : 0, p.widest, gathered);
    }
}

KERNEL(rope_kv_norm_4, RopeKvParams, THREADS) { rope_kv<Norm, 4>(p); }
KERNEL(rope_kv_norm_1, RopeKvParams, THREADS) { rope_kv<Norm, 1>(p); }
KERNEL(rope_kv_neox_4, RopeKvParams, THREADS) { rope_kv<Neox, 4>(p); }
KERNEL(rope_kv_neox_1, RopeKvParams, THREADS) { rope_kv<Neox, 1>(p); }
