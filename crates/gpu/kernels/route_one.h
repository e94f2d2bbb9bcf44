// Routing of a single token to up to 32 experts, of as many as a block has threads, without groups, and without a bias on a
// softmax. A step waits for it, so all threads take part: an expert's rank is the number of better ones, which neighbouring lanes
// count together. The choice and the weights have the bits that route.h gives them.
#pragma once
#include "route.h"

constexpr u32 ROUTE_THREADS = 256;
// One lane each.
constexpr u32 MAX_CHOICES = 32;

// Lane k of the wave has choice k.
DEV void put_choices(const RouteParams& p, Scores scores, const u32* chosen) {
    const u32 n = p.n_used;
    const bool is_routed = lane() < n;
    const u32 expert = choose_loaded(is_routed, p.n_experts, chosen[lane() % MAX_CHOICES]);
    if (scores.by_logits) scores.max = without_nan(scores.logits[chosen[0]]);
    const float share = is_routed ? scores.of(expert) : 0.0f;
    float sum = 0.0f, weight = share;
    u32 row = 0;
    for (u32 first = 0; first < n; first += 8) {
        // Lanes without a choice have a share of 0.
#pragma unroll
        for (u32 k = first; k < first + 8; k++) {
            sum += shuffle(share, k);
            row += k < n && chosen[k] < expert;
        }
    }
    if (p.scores == SOFTMAX && !p.normalized) {
        scores.total = sum_of_shares(p, scores);
        weight = is_routed ? scores.of(expert) : 0.0f;
    }
    if (!p.normalized) sum = 1.0f;
    else if (sum < MIN_WEIGHT_SUM) sum = MIN_WEIGHT_SUM;
    weight = weight / sum * p.scale;
    if (is_routed && p.expert_scales) weight *= p.expert_scales[expert];
    if (!is_routed) weight = p.gate ? 1.0f / (1.0f + exp_of(-p.gate[0])) : 1.0f;
    if (lane() >= p.n_choices) return;
    p.experts[lane()] = expert;
    p.weights[lane()] = weight;
    p.rows[lane()] = row;
    p.tokens[row] = 0;
    const ExpertTile tile = {expert, row, 1, p.n_choices};
#pragma unroll
    for (u32 kind = 0; kind < N_KINDS; kind++) store16(p.lists[kind].tiles + row, bits<u32x4>(tile));
}

// By all THREADS of a block, at least one for each expert. `is_padding`: whether the token has no experts.
template <u32 THREADS> DEV void route_single(const RouteParams& p, bool is_padding) {
    SHARED(u32, orders, THREADS);
    SHARED(float, logits, THREADS);
    SHARED(u32, chosen, MAX_CHOICES);
    Scores scores = {p, p.logits, 0.0f, 1.0f, !p.bias};
    const u32 known = min_of(tid(), p.n_experts - 1);
    orders[tid()] = tid() == known ? order_of(without_nan(scores.key(known))) : 0;
    logits[tid()] = p.logits[known];
    shared_barrier();
    scores.logits = logits;
    // Each lane of an expert compares it with a part of the others, four at a time. An equal one is better if it comes first. In
    // the expert's own four, such are counted after the loop.
    u32 sharers_log = 0;
    while (1u << sharers_log < WARP_SIZE && p.n_experts << (sharers_log + 1) <= THREADS) sharers_log++;
    const u32 n_sharers = 1u << sharers_log, expert = tid() >> sharers_log, place = tid() & (n_sharers - 1);
    const u32 order = orders[expert], step = n_sharers * 4;
    u32 rank = 0;
    u32x4 next = load16(orders + place * 4);
    for (u32 first = place * 4; first < p.n_experts; first += step) {
        const u32x4 others = next;
        next = load16(orders + min_of(first + step, THREADS - 4));
        const u32 least = first + 3 < expert ? order : order + 1;
#pragma unroll
        for (u32 i = 0; i < 4; i++) rank += others[i] >= least;
    }
#pragma unroll
    for (u32 i = 0; i < 3; i++) rank += place == 0 && i < expert % 4 && orders[expert / 4 * 4 + i] == order;
    for (u32 mask = 1; mask < n_sharers; mask *= 2) rank += shuffle_xor(rank, mask);
    if (place == 0 && expert < p.n_experts && rank < p.n_used) chosen[rank] = expert;
    shared_barrier();
    const u32 n_rows = is_padding ? 0 : p.n_choices;
    if (tid() == 0) *p.n_rows = n_rows;
    if (uniform(wave()) == 0) {
        if (!is_padding) return put_choices(p, scores, chosen);
        for (u32 k = lane(); k < p.n_choices; k += WARP_SIZE)
            p.experts[k] = NO_EXPERT, p.weights[k] = 0.0f, p.rows[k] = NO_ROW;
        return;
    }
    const ExpertTile none = {NO_EXPERT, 0, 0, n_rows};
#pragma unroll
    for (u32 kind = 0; kind < N_KINDS; kind++) {
        const TileList& list = p.lists[kind];
        for (u32 t = n_rows + tid() - WARP_SIZE; t < list.len; t += THREADS - WARP_SIZE)
            store16(list.tiles + t, bits<u32x4>(none));
    }
}
