// The choice of a token's experts by a wave, and their weights (experts.hip).
#pragma once
#include "activation.h"
#include "expert_tiles.h"
#include "logits.h"
#include "step.h"

// `ExpertScores` in src/ops/routing.rs.
enum ScoreKind : u32 { SOFTMAX = 0, SIGMOID = 1, SQRT_SOFTPLUS = 2 };
// One lane per group.
constexpr u32 MAX_GROUPS = 32;
static_assert(MAX_GROUPS <= WARP_SIZE);
// The sum that divides weights is at least this, the smallest normal number of F16.
constexpr float MIN_WEIGHT_SUM = 6.103515625e-5f;

struct RouteParams {
    const float* logits;
    // [n_tokens]
    const u32* seq_of_row;
    // [n_tokens, n_choices]
    u32* experts;
    float* weights;
    u32* rows;
    // [n_rows]
    u32* tokens;
    // Number of rows, [1].
    u32* n_rows;
    TileList lists[N_KINDS];
    // [n_experts], or null.
    const float* bias;
    const float* expert_scales;
    // Of the shared expert: [n_tokens], or null.
    const float* gate;
    u32 n_tokens;
    // The router's, without a shared one.
    u32 n_experts;
    u32 n_used;
    // One more than n_used with a shared expert.
    u32 n_choices;
    ScoreKind scores;
    // Whether weights are normalized to a sum of 1.
    u32 normalized;
    // 1 group if there are none.
    u32 n_groups;
    u32 n_groups_used;
    float scale;
    u32 pad;
    FIELDS(logits, seq_of_row, experts, weights, rows, tokens, n_rows, lists, bias, expert_scales, gate, n_tokens,
           n_experts, n_used, n_choices, scores, normalized, n_groups, n_groups_used, scale, pad)

    // All experts.
    DEV_MEMBER u32 n_all() const { return n_experts + n_choices - n_used; }
};

// The largest key of a wave.
DEV u64 wave_best(u64 key) {
#if defined(GPU_NV)
    u32 high = (u32)(key >> 32), low;
    asm volatile("redux.sync.max.u32 %0, %1, 0xffffffff;" : "=r"(high) : "r"(high));
    low = (u32)(key >> 32) == high ? (u32)key : 0;
    asm volatile("redux.sync.max.u32 %0, %1, 0xffffffff;" : "=r"(low) : "r"(low));
    return (u64)high << 32 | low;
#else
#pragma unroll
    for (u32 mask = 1; mask < WARP_SIZE; mask *= 2) {
        u32 low = shuffle_xor((u32)key, mask), high = shuffle_xor((u32)(key >> 32), mask);
        key = max_of(key, (u64)high << 32 | low);
    }
    return key;
#endif
}

DEV float without_nan(float x) { return (bits<u32>(x) & 0x7fffffffu) > 0x7f800000u ? -__builtin_inff() : x; }

// What the logits of a token become. `of` is for the weights, `key` for the choice.
struct Scores {
    const RouteParams& p;
    const float* logits;
    // Of the softmax: the largest logit, and the sum that divides.
    float max, total;
    bool by_logits;

    DEV_MEMBER float of(u32 expert) const {
        const float x = logits[expert];
        if (p.scores == SOFTMAX) return exp_of(x - max) / total;
        if (p.scores == SIGMOID) return 1.0f / (1.0f + exp_of(-x));
        return sqrt_of(softplus(x));
    }
    DEV_MEMBER float key(u32 expert) const {
        if (by_logits) return logits[expert];
        return of(expert) + (p.bias ? p.bias[expert] : 0.0f);
    }
};

// The sum that divides the softmax; run by a whole wave.
DEV float sum_of_shares(const RouteParams& p, const Scores& scores) {
    float total = 0.0f;
    for (u32 e = lane(); e < p.n_experts; e += WARP_SIZE) total += exp_of(scores.logits[e] - scores.max);
    return wave_sum(total);
}

// Returns the groups of experts that take part in the choice, one bit each; run by a whole wave.
DEV u32 groups_of(const RouteParams& p, const Scores& scores) {
    const u32 length = p.n_experts / p.n_groups;
    // Lane g keeps the sum of group g.
    u64 own = 0;
    for (u32 g = 0; g < p.n_groups; g++) {
        u64 best[2] = {0, 0};
#pragma unroll
        for (u32 k = 0; k < 2; k++) {
            for (u32 e = g * length + lane(); e < (g + 1) * length; e += WARP_SIZE) {
                const u64 key = key_of(without_nan(scores.key(e)), e);
                if (key > best[k] && (k == 0 || key < best[0])) best[k] = key;
            }
            best[k] = wave_best(best[k]);
        }
        const u64 sum = key_of(without_nan(logit_of(best[0]) + logit_of(best[1])), g);
        if (lane() == g) own = sum;
    }
    u32 taken = 0;
    for (u32 k = 0; k < p.n_groups_used; k++) {
        const u32 group = id_of(wave_best(own));
        taken |= 1u << group;
        if (lane() == group) own = 0;
    }
    return taken;
}

// The keys of a token's experts that may be chosen. They are kept in registers, unless there are too many; not on AMD, whose
// compiler then has shuffles where lanes may be off.
enum class Keep { No, Few };
#if defined(GPU_AMD)
constexpr Keep KEEP_KEYS = Keep::No;
#else
constexpr Keep KEEP_KEYS = Keep::Few;
#endif
template <Keep KEEP> struct Keys {
    static constexpr u32 MOST = 256 / WARP_SIZE;
    const RouteParams& p;
    const Scores& scores;
    // One bit each.
    u32 groups;
    u64 own[MOST];

    DEV_MEMBER Keys(const RouteParams& params, const Scores& of) : p(params), scores(of) {
        groups = p.n_groups == 1 ? 1 : groups_of(p, scores);
        if (!are_kept()) return;
#pragma unroll
        for (u32 i = 0; i < MOST; i++) own[i] = key(i * WARP_SIZE + lane());
    }
    DEV_MEMBER bool are_kept() const { return KEEP == Keep::Few && p.n_experts <= MOST * WARP_SIZE; }
    // 0 if the expert may not be chosen.
    DEV_MEMBER u64 key(u32 expert) const {
        const u32 known = min_of(expert, p.n_experts - 1);
        bool may = known == expert;
        if (p.n_groups > 1) may &= groups >> known / (p.n_experts / p.n_groups) & 1;
        const u64 of_expert = key_of(without_nan(scores.key(known)), expert);
        return may ? of_expert : 0;
    }
    // Keys are distinct, so the next choice is the largest below the last.
    DEV_MEMBER u64 next(u64 last) {
        // Most models have up to 128 experts: half of the keys.
        constexpr u32 HALF = MOST / 2;
        if (are_kept()) return wave_best(p.n_experts <= HALF * WARP_SIZE ? kept_below<HALF>(last) : kept_below<MOST>(last));
        u64 best = 0;
        for (u32 e = lane(); e < p.n_experts; e += WARP_SIZE) {
            const u64 other = key(e);
            if (other < last && other > best) best = other;
        }
        return wave_best(best);
    }
    // The largest of the lane's first N keys below `last`.
    template <u32 N> DEV_MEMBER u64 kept_below(u64 last) const {
        u64 best = 0;
#pragma unroll
        for (u32 i = 0; i < N; i++) best = max_of(best, own[i] < last ? own[i] : 0);
        return best;
    }
};

// Chooses the experts of a token; run by a whole wave. Lane k % WARP_SIZE stores choice k, and its expert to `also`.
template <Keep KEEP> DEV void route_token(const RouteParams& p, u32 token, u32* also) {
    const float* logits = p.logits + (u64)token * p.n_experts;
    u32* experts = p.experts + token * p.n_choices;
    float* weights = p.weights + token * p.n_choices;
    if (also) also += token * p.n_choices;
    if (uniform(p.seq_of_row[token]) == NO_ROW) {
        for (u32 k = lane(); k < p.n_choices; k += WARP_SIZE) {
            experts[k] = NO_EXPERT, weights[k] = 0.0f;
            if (also) also[k] = NO_EXPERT;
        }
        return;
    }
    Scores scores = {p, logits, 0.0f, 1.0f, !p.bias && p.n_groups == 1};
    if (p.scores == SOFTMAX && !scores.by_logits) {
        u64 best = 0;
        for (u32 e = lane(); e < p.n_experts; e += WARP_SIZE) best = max_of(best, key_of(without_nan(logits[e]), e));
        scores.max = logit_of(wave_best(best));
        scores.total = sum_of_shares(p, scores);
    }
    Keys<KEEP> keys(p, scores);
    u64 last = ~0ull;
    u32 mine = 0;
    float share = 0.0f, sum = 0.0f;
    for (u32 first = 0; first < p.n_used; first += WARP_SIZE) {
        const u32 n = min_of(WARP_SIZE, p.n_used - first);
        for (u32 k = 0; k < n; k++) {
            last = keys.next(last);
            if (first + k == 0 && scores.by_logits) scores.max = logit_of(last);
            if (lane() == k) mine = id_of(last);
        }
        share = lane() < n ? scores.of(mine) : 0.0f;
        for (u32 k = 0; k < n; k++) sum += shuffle(share, k);
        if (lane() < n) {
            experts[first + lane()] = mine;
            if (also) also[first + lane()] = mine;
        }
    }
    // Weights that are normalized need no sum over all experts.
    const bool divide = p.scores == SOFTMAX && scores.by_logits && !p.normalized;
    if (divide) scores.total = sum_of_shares(p, scores);
    if (!p.normalized) sum = 1.0f;
    else if (sum < MIN_WEIGHT_SUM) sum = MIN_WEIGHT_SUM;
    for (u32 k = lane(); k < p.n_used; k += WARP_SIZE) {
        const bool is_known = KEEP == Keep::Few && p.n_used <= WARP_SIZE;
        const u32 expert = is_known ? mine : experts[k];
        const float weight = (is_known && !divide ? share : scores.of(expert)) / sum * p.scale;
        weights[k] = p.expert_scales ? weight * p.expert_scales[expert] : weight;
    }
}

// Adds the shared expert to the choices of a token; run by one thread. `also` as in route_token.
DEV void add_shared(const RouteParams& p, u32 token, u32* also) {
    if (p.n_choices == p.n_used || p.seq_of_row[token] == NO_ROW) return;
    const u32 choice = token * p.n_choices + p.n_used;
    p.experts[choice] = p.n_experts;
    p.weights[choice] = p.gate ? 1.0f / (1.0f + exp_of(-p.gate[token])) : 1.0f;
    if (also) also[choice] = p.n_experts;
}
