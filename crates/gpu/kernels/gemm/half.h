// Products with f16 activations on Hopper: weights become f16 in registers (A of wgmma), x comes through a ring in shared
// memory (B) as half_acts.hip writes it. With F16 and BF16 weights, x is the sum of two f16 numbers, and each is multiplied.
//
// A block has two groups of 128 threads, with 64 outputs each. In a round it multiplies 128 values of k, or twice as many. Of
// each 128, lane q of four has its own chunk of 32 weights, so that it needs the scales of one chunk. The order of k that follows
// from this is that of x. The weights of DEPTH rounds are under way.
//
// Tiles that do not fill the device are divided: blocks take equal numbers of rounds, of one tile or of parts of two,
// and write their sums to device memory. The last block of a tile adds them in the order of k.
//
// With 256 rows, two blocks of neighbouring processors (a cluster) share x, each for half of a tile's outputs: what
// processors read from L2 would limit. Below, "block" means the cluster where tiles and rounds are distributed.
//
// Of an MoE layer, each block takes tiles of rows of experts, one after the other, whole. All outputs of some rows come
// before those of the next rows, so that activations are read once. With 128 rows, a tile with few of them multiplies no
// more than 32 or 64. With 64 rows, the tiles of the list have 128 rows and are taken in two parts. All first parts come
// before the second ones, many of which are empty: in turn, some blocks would get only empty ones.
//
// Shared memory: SLOTS * PER_SLOT * ROWS * 128 bytes for x; for each round, 10 to 20 KB of quantized weights, or 32 KB of others;
// 96 bytes for each of a wave's places.
#pragma once
#include "gemm/chunks.h"
#include "gemm/half_tile.h"
#include "gemm/half_weights.h"
#include "gemm/ring.h"
#include "jobs.h"

struct HalfProduct {
    Weights w;
    const float* bias;
    float* out;
    // Of an MoE layer: [n_experts], or null.
    const float* scales;
    const u8* shared;
    // Tiles of products follow one another.
    u32 first_tile;
    Mode mode;
    FIELDS(w, bias, out, scales, shared, first_tile, mode)
};

// How a kernel overlaps with the one before it. AFTER: it waits before it reads what kernels wrote. EARLY: it reads the tiles of experts
// before it waits; the kernel that wrote them has ended. BESIDE: it runs at the same time as a GEMM of the same activations, and waits
// only at its end. That GEMM waited for the activations before it let this one start; the outputs of both are apart, and no tiles of
// this one are divided.
enum Start : u32 { AFTER, EARLY, BESIDE };

struct HalfParams {
    // [n_in / 64, parts of x, n_octets], 1,024 bytes each, and what to multiply the sums of each row with; or
    // codes [n_rows, n_in] and their scales [n_rows, n_in / 256] (half_few.h, octet.h).
    const u8* x;
    const float* factors;
    // Sums of 16 codes, [n_rows, n_in / 16] (octet.h).
    const i16* x_sums;
    // Sums of divided tiles, two for each block, and for each block's share of these tiles the number of parts that are
    // done: zero before and after the launch.
    float* parts;
    u64* counters;
    // Of an MoE layer, or null; and the bytes from an expert's matrix to the next one's.
    const ExpertTile* tiles;
    u64 expert_bytes;
    // Of an MoE layer: row r of expert e is at r * out_stride + e * out_skip floats of out, modulo 2^64.
    u64 out_skip;
    u32 out_stride;
    u32 n_rows;
    u32 n_octets;
    // Tiles of rows of each block of outputs; all tiles, of an MoE layer of one tile of rows; those that are not
    // divided.
    u32 n_row_tiles;
    u32 n_tiles;
    u32 n_whole;
    u32 n_blocks;
    // Of an MoE layer: how many experts' matrices follow one another. That of the expert after them is a product's `shared`.
    u32 n_stacked;
    // A Start.
    u32 start;
    // log2 of the tiles of outputs that a block of octet.h takes: they count as one.
    u32 out_shift;
    // Unused ones begin after the last tile. All have the same n_in. Of a gated product, the second one is up: it has the shape of the
    // first one, and is marked as unused. Neither has a bias or scales.
    HalfProduct products[FEW];
    FIELDS(x, factors, x_sums, parts, counters, tiles, expert_bytes, out_skip, out_stride, n_rows, n_octets, n_row_tiles, n_tiles,
           n_whole, n_blocks, n_stacked, start, out_shift, products)
};

// GATED: the products are gate and up, and the output is silu(gate) * up. A thread has one output of each in place of two of one
// matrix. These are separate kernels because their instructions alone would slow the others.
template <typename F, u32 N, u32 SLOTS, u32 DEPTH, bool GATED = false> struct Half {
    static constexpr u32 CLUSTER = N > 128 ? 2 : 1;
    static constexpr u32 GROUPS = 2, ROWS = N, OUTS = 64 * GROUPS * CLUSTER, THREADS = 128 * GROUPS, ELEMENTS = N / 2;
    // Steps of x in a slot of the ring: of few rows both of a chunk, because waiting costs more than multiplying.
    static constexpr u32 PER_SLOT = N <= 64 ? 2 : 1, STEP_BYTES = N * wgmma::STEP * 2;
    // Chunks of a thread in a round. Two share what belongs to a block of 256 values, which saves instructions; they limit products
    // of few rows.
    static constexpr u32 N_CHUNKS = N <= 64 && F::LEN % 256 == 0 && F::N_PLANES == 2 ? 2 : 1;
    using Slots = Ring<SLOTS, PER_SLOT * STEP_BYTES, CLUSTER>;
    using Coming = Chunks<F, THREADS, DEPTH, N_CHUNKS>;
    // Steps of x in a round, and those of a chunk.
    static constexpr u32 OF_CHUNK = 2 * X_PARTS<F>, STEPS = N_CHUNKS * OF_CHUNK;
    // Blocks that a processor runs at once.
    static constexpr u32 BLOCKS = N <= 64 ? 2 : 1;
    static constexpr u32 SHARED_BYTES = Slots::SHARED + Coming::SHARED;
    // Values of k of a round, and floats of the sums of a tile.
    static constexpr u32 ROUND = 128 * N_CHUNKS, SUMS = THREADS * ELEMENTS;
    // Parts of a tile that are loaded together when it is joined.
    static constexpr u32 PARTS_AT_ONCE = ELEMENTS <= 64 ? 2 : 1;
    // Elements whose loads are under way together when a tile is stored.
    static constexpr u32 BATCH = min_of(ELEMENTS, 32u);
    // Elements that are stored if the tile has the first row of them. A branch for fewer costs whole tiles more than it saves.
    static constexpr u32 AT_ONCE = 16;
    // Whether tiles of experts may be smaller.
    static constexpr bool MANY = N == 128;
    // Tiles of experts in a tile of the list.
    static constexpr u32 PARTS = N == 64 ? 2 : 1;
    // A slot is filled again two steps after its last use, so that the first wave need not wait for the others.
    static constexpr u32 FILLED = SLOTS - 2 / PER_SLOT;
    static_assert(FILLED >= 2, "copies are under way while a step is multiplied");

    // Rounds [first, end) of a tile, or of a part of a tile of experts; and which of a wave's two places it has.
    struct Segment {
        u32 tile, part, first, end, place;
    };
    // The rows of a tile: the first one, how many, and where their octets are.
    struct Rows {
        u32 first, n, octet;
    };

    // The factor on weights or sums; gate and up have one each.
    struct Factors {
        static constexpr u32 N_SIDES = GATED ? 2 : 1;
        float of[N_SIDES];
    };

    const HalfParams& p;
    Slots ring;
    Coming coming;
    // The rows of weights of a segment, how many chunks they have, and the segment's end.
    Block<F, Planes> rows[2];
    u32 n, last_round;
    // The places in the ring of the slot that is read next and of the one that is filled next.
    u32 at = 0, pass = 0, filled = 0, filled_pass = 0;
    float acc[ELEMENTS];

    DEV_MEMBER Half(const HalfParams& params, u8* shared)
        : p(params), ring{shared}, coming{shared + Slots::SHARED, tid()} {
        if constexpr (KEEPS) {
            SHARED(Place, of_waves, 2 * THREADS / WARP_SIZE);
            places = of_waves;
        }
    }

    // Fills the next slot with the steps of slot `i` of the segment.
    DEV_MEMBER void fill(const Segment& s, const Rows& x, u32 i) {
        const u64 octet = (u64)(STEPS * s.first + PER_SLOT * i) * p.n_octets + x.octet;
        ring.template fill<PER_SLOT>(filled, filled_pass, p.x + octet * wgmma::OCTET_BYTES,
                                     (u64)p.n_octets * wgmma::OCTET_BYTES, div_up(x.n, 8) * wgmma::OCTET_BYTES);
        if (++filled == SLOTS) filled = 0, filled_pass++;
    }

    // The first output of a thread.
    DEV_MEMBER static u32 first_out(u32 out_tile) {
        const u32 of_wave = out_tile * OUTS + Slots::rank() * (OUTS / CLUSTER) + wave() * 16;
        return of_wave / (GATED ? 2 : 1) + lane() / 4;
    }
    DEV_MEMBER static u32 cluster() { return bid_x() / CLUSTER; }

    // A tile's product with its matrix, the first of its outputs' tiles, its rows, the factor on its sums, and the bytes from gate
    // to up.
    struct alignas(16) Place {
        HalfProduct product;
        u32 out_tile;
        Rows rows;
        float scale;
        u64 to_up;
    };
    // Of experts with quantized weights, each wave keeps those of its segment and of the next one in shared memory. Others are found
    // again, so that they take no registers before; the memory of two blocks with F16 or BF16 weights leaves no room.
    static constexpr bool KEEPS = X_PARTS<F> == 1;
    Place* places;
    DEV_MEMBER Place place(const Segment& s) const {
        return KEEPS && p.tiles ? places[2 * wave() + s.place] : place_of(s);
    }
    DEV_MEMBER void find(const Segment& s) const {
        if (!KEEPS || !p.tiles) return;
        Place* to = places + 2 * wave() + s.place;
        const Place found = place_of(s);
        if (lane() == 0) *to = found;
        wave_barrier(to, sizeof(Place));
    }
    DEV_MEMBER Place place_of(const Segment& s) const {
        const u32 tile = s.tile;
        const u32 of_rows = p.tiles ? tile % p.n_tiles : tile;
        HalfProduct product = p.products[0];
        if (of_rows >= p.products[1].first_tile) product = p.products[1];
        if (of_rows >= p.products[2].first_tile) product = p.products[2];
        const u32 in_product = of_rows - product.first_tile;
        if (p.tiles) {
            const u32 at = tile / p.n_tiles, first = s.part * N;
            const ExpertTile e = early_tile(p.tiles, at);
            product.w.data = matrix_of(e.expert, product.w.data, p.expert_bytes, p.n_stacked, product.shared);
            if (product.bias) product.bias += e.expert * product.w.n_out;
            product.out = moved(product.out, e.expert * p.out_skip);
            const float scale = product.scales ? product.scales[e.expert] : 1.0f;
            const Rows rows = {e.first_row + first, min_of(N, e.n_rows - first), first_octet(e, at) + first / 8};
            return {product, in_product, rows, scale, to_up(product, e.expert)};
        }
        const u32 row_tile = in_product % p.n_row_tiles, first = row_tile * N;
        const Rows rows = {first, min_of(N, p.n_rows - first), row_tile * (N / 8)};
        return {product, in_product / p.n_row_tiles, rows, 1.0f, to_up(product, 0)};
    }
    DEV_MEMBER u64 to_up(const HalfProduct& gate, u32 expert) const {
        if constexpr (!GATED) return 0;
        const HalfProduct& other = p.products[1];
        const u8* data = other.w.data;
        if (p.tiles) data = matrix_of(expert, data, p.expert_bytes, p.n_stacked, other.shared);
        return (u64)data - (u64)gate.w.data;
    }

    // Begins the copies of a segment's weights: those of the first rounds.
    DEV_MEMBER void start(const Segment& s) {
        find(s);
        const Place at = place(s);
        const Weights& w = at.product.w;
        n = n_chunks<F>(w.n_in);
        last_round = s.end;
#pragma unroll
        for (u32 i = 0; i < 2; i++)
            rows[i] = Block<F, Planes>::of(w, min_of(first_out(at.out_tile) + (GATED ? 0 : 8 * i), w.n_out - 1));
        if constexpr (GATED) rows[1].move(at.to_up);
#pragma unroll
        for (u32 d = 0; d + 1 < DEPTH; d++) begin(s.first + d, d);
    }
    DEV_MEMBER void begin(u32 round, u32 place) const {
        const u32 chunk = 4 * N_CHUNKS * round + lane() % 4;
        // Rows of long blocks are whole rounds.
        constexpr bool WHOLE = F::LEN % ROUND == 0;
        coming.begin(rows, place, chunk, WHOLE || chunk < n, round < last_round);
        coming.end();
    }

    // Begins the copies of a segment's first steps of x.
    DEV_MEMBER void start_rows(const Segment& s) {
        if (uniform(wave()) > 0) return;
        const Rows x = place(s).rows;
        for (u32 i = 0; i < min_of(FILLED, STEPS / PER_SLOT * (s.end - s.first)); i++) fill(s, x, i);
    }

    // acc = the product of a segment whose weights and rows are on their way, of M rows.
    template <u32 M> DEV_MEMBER void multiply(const Rows& x, const Segment& s, const Factors& up) {
        // Slots that the first wave still fills.
        u32 n_fills = STEPS / PER_SLOT * (s.end - s.first);
        n_fills = uniform(wave()) == 0 && n_fills > FILLED ? n_fills - FILLED : 0;
        u32 next_fill = FILLED;
        float(&sums)[M / 2] = (float(&)[M / 2]) acc;
#pragma unroll
        for (u32 e = 0; e < M / 2; e++) sums[e] = 0.0f;

        u32 a[2][4][4], before = 0, place = 0;
        wgmma::Place x_slot = {};
        for (u32 round = s.first; round < s.end; round++) {
            begin(round + DEPTH - 1, place == 0 ? DEPTH - 1 : place - 1);
            coming.arrive(place);
            HalfWeights<F> weights[2];
#pragma unroll
            for (u32 step = 0; step < STEPS; step++) {
                const u32 h = step % OF_CHUNK / X_PARTS<F>, in_slot = step % PER_SLOT;
                if (in_slot == 0) x_slot = wgmma::place(ring.slot(at));
                if (step % OF_CHUNK == 0) {
                    const u32 n_th = step / OF_CHUNK, chunk = 4 * (N_CHUNKS * round + n_th) + lane() % 4;
                    F raw[2];
                    coming.take(raw, rows, place, chunk, n_th);
#pragma unroll
                    for (u32 i = 0; i < 2; i++) weights[i] = {raw[i], place_in_block<F>(chunk), up.of[GATED ? i : 0]};
                }
                if (step % X_PARTS<F> == 0) {
#pragma unroll
                    for (u32 i = 0; i < 16; i++) a[h][i / 4][i % 4] = weights[i % 2].pair(4 * h + i / 4, i % 4 / 2);
                }
                if (in_slot == 0) ring.wait(at, pass);
                wgmma::begin();
#pragma unroll
                for (u32 i = 0; i < 4; i++)
                    wgmma::mac(sums, a[h][i], x_slot, in_slot * STEP_BYTES + i * wgmma::ALONG_STEP);
                wgmma::end();
                // The step before is done.
                wgmma::wait<1>();
                if (in_slot == 0 && (step > 0 || round > s.first)) ring.release(before);
                if (in_slot + 1 < PER_SLOT) continue;
                before = at;
                if (n_fills > 0) fill(s, x, next_fill++), n_fills--;
                if (++at == SLOTS) at = 0, pass++;
            }
            if (++place == DEPTH) place = 0;
        }
        wgmma::wait<0>();
        ring.release(before);
    }

    // The rounds of divided tiles before those of a block.
    DEV_MEMBER u32 n_rounds() const { return div_up(p.products[0].w.n_in, ROUND); }
    DEV_MEMBER u32 rounds_before(u32 block) const {
        return (u32)((u64)block * ((p.n_tiles - p.n_whole) * n_rounds()) / p.n_blocks);
    }
    // The block that has a round of the divided tiles.
    DEV_MEMBER u32 block_of(u32 round) const {
        return (u32)(((u64)(round + 1) * p.n_blocks - 1) / ((p.n_tiles - p.n_whole) * n_rounds()));
    }

    // Adds one. What this block wrote before is seen by the blocks that arrive later. Returns how many arrived before.
    DEV_MEMBER static u64 arrive(u64* counter) {
#if defined(GPU_NV)
        u64 before;
        asm volatile("atom.add.acq_rel.gpu.global.u64 %0, [%1], 1;" : "=l"(before) : "l"(counter) : "memory");
        return before;
#else
        return fetch_add(counter, 1);
#endif
    }

    // Writes this block's part of a divided tile. If it is the last one, acc becomes the sum of all parts. Returns
    // whether it is.
    DEV_MEMBER bool join_blocks(const Segment& s) {
        SHARED(u32, is_last, 1);
        const u32 divided = s.tile - p.n_whole, first_round = divided * n_rounds();
        const u32 first = block_of(first_round), last = block_of(first_round + n_rounds() - 1);
        const auto part_of = [&](u32 block) __attribute__((always_inline)) {
            // Blocks that begin before the tile have another part first.
            const u32 second = rounds_before(block) < first_round;
            return p.parts + (u64)((2 * block + second) * CLUSTER + Slots::rank()) * SUMS + 4 * tid();
        };
        float* mine = part_of(cluster());
#pragma unroll
        for (u32 e = 0; e < ELEMENTS; e += 4) {
            const u32x4 four = {{bits<u32>(acc[e]), bits<u32>(acc[e + 1]), bits<u32>(acc[e + 2]), bits<u32>(acc[e + 3])}};
            store16(mine + e * THREADS, four);
        }
        barrier();
        if (tid() == 0) {
            u64* counter = p.counters + divided * CLUSTER + Slots::rank();
            const u64 done = arrive(counter);
            *is_last = done == last - first;
            if (*is_last) *counter = 0;
        }
        barrier();
        const bool sums = *is_last;
        // The next tile writes it again.
        barrier();
        if (!sums) return false;
#pragma unroll
        for (u32 e = 0; e < ELEMENTS; e++) acc[e] = 0.0f;
#pragma unroll PARTS_AT_ONCE
        for (u32 block = first; block <= last; block++) {
            const float* part = part_of(block);
            u32x4 four[ELEMENTS / 4];
#pragma unroll
            for (u32 i = 0; i < ELEMENTS / 4; i++) four[i] = load16(part + i * 4 * THREADS);
#pragma unroll
            for (u32 e = 0; e < ELEMENTS; e++) acc[e] += bits<float>(four[e / 4][e % 4]);
        }
        return true;
    }

    // The row of an element in its tile, and its output after a thread's first.
    DEV_MEMBER static u32 row_of(u32 e) { return lane() % 4 * 2 + e / 4 * 8 + e % 2; }
    DEV_MEMBER static u32 out_of(u32 e) { return e / 2 % 2 * 8; }

    DEV_MEMBER void store(const Place& at, const Factors& down) {
        const HalfProduct& product = at.product;
        const u32 own_out = first_out(at.out_tile);
        float bias[2];
#pragma unroll
        for (u32 i = 0; i < 2; i++)
            bias[i] = !GATED && product.bias && own_out + 8 * i < product.w.n_out ? product.bias[own_out + 8 * i] : 0.0f;
        const u32 n_out = product.w.n_out, last_row = at.rows.n - 1, stride = p.tiles ? p.out_stride : n_out;
        float* const out = product.out + (u64)at.rows.first * stride;
        const float* factors = p.factors + at.rows.first;
        // Loads are not conditional, and come before the stores of a batch, so that none waits for another: of what is
        // not there, the last one is loaded.
#pragma unroll
        for (u32 first = 0; first < ELEMENTS; first += BATCH) {
#pragma unroll
            for (u32 e = first; e < first + BATCH; e++)
                acc[e] = fma(acc[e] * down.of[GATED ? e / 2 % 2 : 0], factors[min_of(row_of(e), last_row)], bias[e / 2 % 2]);
            if (!GATED && product.mode & ADD) {
#pragma unroll
                for (u32 e = first; e < first + BATCH; e++)
                    acc[e] += out[(u64)min_of(row_of(e), last_row) * stride + min_of(own_out + out_of(e), n_out - 1)];
            }
            if constexpr (GATED) {
#pragma unroll
                for (u32 e = first; e < first + BATCH; e++)
                    if (out_of(e) == 0) acc[e] = silu_fast(acc[e]) * acc[e + 2];
            }
#pragma unroll
            for (u32 some = first; some < first + BATCH; some += AT_ONCE) {
                if (some / 4 * 8 > last_row) return;
#pragma unroll
                for (u32 e = some; e < some + AT_ONCE; e++)
                    if (row_of(e) <= last_row && own_out + out_of(e) < n_out && !(GATED && out_of(e) > 0))
                        out[(u64)row_of(e) * stride + own_out + out_of(e)] = acc[e];
            }
        }
    }

    // acc = the product of a segment, with weights times powers of two, which `up` gets.
    DEV_MEMBER void multiply(const Segment& s, Factors& up) {
        const Place at = place(s);
        Weights w = at.product.w;
        up.of[0] = HalfWeights<F>::up(w);
        if constexpr (GATED) w.data = (u8*)((u64)w.data + at.to_up), up.of[1] = HalfWeights<F>::up(w);
        if (MANY && p.tiles && at.rows.n <= 32) multiply<32>(at.rows, s, up);
        else if (MANY && p.tiles && at.rows.n <= 64) multiply<64>(at.rows, s, up);
        else multiply<N>(at.rows, s, up);
    }
    DEV_MEMBER void finish(const Segment& s, const Factors& up) {
        const bool whole = s.first == 0 && s.end == n_rounds();
        if (!whole && !join_blocks(s)) return;
        const Place at = place(s);
        Factors down;
#pragma unroll
        for (u32 i = 0; i < Factors::N_SIDES; i++) down.of[i] = HalfWeights<F>::down(up.of[i]) * at.scale;
        store(at, down);
    }

    // The next segment of this block: whole tiles, then those that blocks share. `s` is the one before; `tile` and `round`
    // count what is done.
    DEV_MEMBER bool next(Segment& s, u32& tile, u32& round, u32 end, u32 n_whole) const {
        for (;; tile += p.n_blocks) {
            for (; PARTS > 1 && p.tiles && tile >= n_whole && s.part + 1 < PARTS; tile -= n_whole) s.part++;
            if (tile >= n_whole) break;
            if (PARTS > 1 && s.part > 0 && early_tile(p.tiles, tile / p.n_tiles).n_rows <= s.part * N) continue;
            s = {tile, s.part, 0, n_rounds(), 1 - s.place};
            tile += p.n_blocks;
            return true;
        }
        if (round >= end) return false;
        const u32 first = round % n_rounds();
        s = {p.n_whole + round / n_rounds(), 0, first, min_of(n_rounds(), first + end - round), 1 - s.place};
        round += s.end - s.first;
        return true;
    }

    DEV_MEMBER void run() {
        // Of experts, which weights a block takes depends on the tiles.
        if (p.tiles && p.start != EARLY) wait_for_predecessor();
        const u32 n_whole = p.tiles ? early_tile(p.tiles, 0).n_tiles * p.n_tiles : p.n_whole;
        u32 tile = cluster(), round = rounds_before(tile), end = rounds_before(tile + 1);
        Segment s = {};
        if (!next(s, tile, round, end, n_whole)) {
            // The kernel must not end before its predecessor, even if no block has work.
            if (p.start == EARLY) wait_for_predecessor();
            return;
        }
        start(s);
        ring.start(THREADS / WARP_SIZE);
        if (p.start != BESIDE) wait_for_predecessor(), let_successor_start();
        else see_what_was_written();
        start_rows(s);
        for (;;) {
            Factors up;
            multiply(s, up);
            Segment after = s;
            const bool is_last = !next(after, tile, round, end, n_whole);
            // Its weights and rows come while the sums are stored.
            if (!is_last) start(after), start_rows(after);
            finish(s, up);
            if (is_last) break;
            s = after;
        }
        ring.finish();
        // The next kernel may read early what the one before this writes.
        if (p.start == BESIDE) wait_for_predecessor(), let_successor_start();
    }
};

// Exports the tile of the kernel NAME, which NAME_loop describes.
#define HALF_TILE(NAME)                                                                                                \
    EXPORT_U32(NAME##_tile_rows, NAME##_loop::ROWS)                                                                    \
    EXPORT_U32(NAME##_tile_outs, NAME##_loop::OUTS)                                                                    \
    EXPORT_U32(NAME##_tile_threads, NAME##_loop::THREADS)                                                              \
    EXPORT_U32(NAME##_tile_shared, NAME##_loop::SHARED_BYTES)                                                          \
    EXPORT_U32(NAME##_tile_blocks, NAME##_loop::BLOCKS)                                                                \
    EXPORT_U32(NAME##_tile_cluster, NAME##_loop::CLUSTER)                                                              \
    EXPORT_U32(NAME##_tile_round, NAME##_loop::ROUND)
