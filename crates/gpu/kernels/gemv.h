// GEMV: products of weight matrices with few rows of activations (format/gemv.hip). The jobs of a launch: jobs.h.
//
// A wave handles ROWS rows of w at a time (one each of gate and up when gated). Each lane loads a chunk of 16 bytes or
// more (quant.h), so that each load of the wave is contiguous; LOADS chunks are in flight before the first is used.
// Activations come through the cache. Each row is shared by `split` waves, a power of two, since a small matrix would
// otherwise leave most of the GPU idle; the split depends only on the matrix. Each lane adds its chunks in order, then
// the wave its lanes, then one thread the waves. This order does not depend on N, ROWS or the other products of the
// launch. Products and sums are fused explicitly, so that all variants round alike.
//
// IN_TURNS: the waves of a row are virtual. A wave of the device computes a power of two of them one after the other,
// each with its own sums, so that the order of additions is the same for any number of turns. The loop needs registers,
// so it is a separate kernel.
//
// Blocks of 256 threads. Shared memory: (256 / WARP_SIZE) * ROWS * N floats, with IN_TURNS (256 / WARP_SIZE) times as
// many.
#pragma once
#include "own_acts.h"

constexpr u32 THREADS = 256;
constexpr u32 N_WAVES = THREADS / WARP_SIZE;

// A GEMV kernel. On NVIDIA GPUs, BLOCKS of its blocks fit on a multiprocessor at a time. Without this bound ptxas saves
// registers: it moves each load down to its first use, and the chunks that should be in flight together are loaded one
// after the other.
#if defined(GPU_NV)
#define GEMV_KERNEL(NAME, PARAMS, BLOCKS) ENTRY(NAME, PARAMS, launch_bounds(THREADS, BLOCKS))
#else
#define GEMV_KERNEL(NAME, PARAMS, BLOCKS) KERNEL_THAT_BEGINS(NAME, PARAMS, THREADS)
#endif
// For kernels of one row of activations: 64 registers per thread.
constexpr u32 BLOCKS_ONE_ROW = 4;
// For a row of activations with more rows of weights: 80 registers per thread.
constexpr u32 BLOCKS_LONG_ROWS = 3;
// For kernels of several rows: 128 registers per thread.
constexpr u32 BLOCKS_ROWS = 2;

// What happens in each wave once its first weights are on their way: the kernel begins, or nothing if it has.
struct BeginNow {
    DEV_MEMBER void operator()() const { begin(); }
};
struct HasBegun {
    DEV_MEMBER void operator()() const {}
};

// Which of the N rows of activations exist. AllRows: all of them; missing rows repeat the last one. FirstRows: the
// first n, for jobs with different numbers of rows. The branch on it is uniform.
struct AllRows {
    DEV_MEMBER static bool has(u32) { return true; }
};
struct FirstRows {
    u32 n;
    DEV_MEMBER bool has(u32 row) const { return row < n; }
};

// Adds the products of one chunk of each of ROWS rows with the same chunk of N activation rows. `x_row[n]` is the index
// of an activation row.
template <typename T, bool ONE_LOAD, u32 ROWS, u32 N, typename Some>
DEV void add_products(const Job& job, const T* w, const u32* x_row, u32 n_in, u32 chunk, bool valid, Some some,
                      float (&acc)[ROWS][N]) {
    constexpr u32 N_GROUPS = 32 / T::GROUP;
    constexpr bool SUMS = T::OFFSET != 0 || T::HAS_MIN;
    // Of many rows, addresses are computed where they are used, and where few registers are left (ONE_LOAD). clang 22
    // would keep those of all rows in registers across the loop, for which ptxas moves loads down to their first use,
    // and spills. All rows are 8 at most: offsets of 32 bits suffice. On sm_80 it is the other way round: Q4_K spills
    // with this, and nothing without.
#if defined(GPU_NVIDIA) && (!defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900)
    constexpr bool MANY = (N > 4 || (N > 1 && ONE_LOAD)) && __is_same(Some, AllRows);
#else
    constexpr bool MANY = false;
#endif
    if constexpr (MANY) n_in = opaque(n_in);
    // Whole waves step through the chunks, so the lane number gives the place in the block.
    u32 place = place_in_block<T>(lane());
    u32 q[ROWS][8];
    float scale[ROWS][N_GROUPS], minimum[ROWS][N_GROUPS];
#pragma unroll
    for (u32 r = 0; r < ROWS; r++) {
        w[r].codes(q[r]);
#pragma unroll
        for (u32 h = 0; h < N_GROUPS; h++) scale[r][h] = w[r].scale(place, h), minimum[r][h] = w[r].minimum(place, h);
    }
#pragma unroll
    for (u32 n = 0; n < N; n++) {
        if (!some.has(n)) continue;
        const u8* codes = MANY ? job.x + (x_row[n] * n_in + chunk * 32) : job.x + (u64)x_row[n] * n_in + chunk * 32;
        u32x4 x[2] = {load16(codes), load16(codes + 16)};
        float x_scale = job.scales[x_row[n] * (n_in / T::ACT_BLOCK) + chunk * 32 / T::ACT_BLOCK];
        // Sums of the two halves of the chunk.
        i32 sums[2] = {0, 0};
        if constexpr (SUMS) {
            u32 both = *(const u32*)((const u8*)(job.sums + x_row[n] * (n_in / 16)) + chunk * 4);
            sums[0] = (i16)both, sums[1] = (i16)(both >> 16);
            if constexpr (N_GROUPS == 1) sums[0] += sums[1];
        }
#pragma unroll
        for (u32 r = 0; r < ROWS; r++) {
            float total = 0.0f;
#pragma unroll
            for (u32 h = 0; h < N_GROUPS; h++) {
                i32 dot = SUMS ? -T::OFFSET * sums[h] : 0;
#pragma unroll
                for (u32 i = 0; i < 8 / N_GROUPS; i++) {
                    u32 at = h * (8 / N_GROUPS) + i;
                    dot = dot4(q[r][at], x[at / 4][at % 4], dot);
                }
                total = fma(scale[r][h], (float)dot, total);
                if constexpr (T::HAS_MIN) total = fma(-minimum[r][h], (float)sums[h], total);
            }
            acc[r][n] = valid ? fma(x_scale, total, acc[r][n]) : acc[r][n];
        }
    }
}

// The same for float formats. ALIGNED: activation rows are 16-byte aligned and whole chunks.
template <typename T, bool ALIGNED, u32 ROWS, u32 N, typename Some>
DEV void add_float_products(const Job& job, const T* w, const u32* x_row, u32 n_in, u32 chunk, bool valid, Some some,
                            float (&acc)[ROWS][N]) {
#pragma unroll
    for (u32 n = 0; n < N; n++) {
        if (!some.has(n)) continue;
        const float* row = (const float*)job.x + (u64)x_row[n] * n_in + chunk * T::CHUNK;
        float x[T::CHUNK];
#pragma unroll
        for (u32 i = 0; i < T::CHUNK; i++) {
            if constexpr (ALIGNED) {
                if (i % 4 == 0) {
                    u32x4 four = load16(row + i);
                    for (u32 j = 0; j < 4; j++) x[i + j] = bits<float>(four[j]);
                }
            } else {
                // Weights are padded with zeros, activations are not.
                x[i] = chunk * T::CHUNK + i < n_in ? row[i] : 0.0f;
            }
        }
#pragma unroll
        for (u32 r = 0; r < ROWS; r++) {
            float total = 0.0f;
#pragma unroll
            for (u32 i = 0; i < T::CHUNK; i++) total = fma(x[i], w[r].value(i), total);
            // The loads of the next row are conditional. Without this, BF16 needs 166 instead of 63 registers on
            // gfx942.
            if constexpr (!ALIGNED) total = computed_here(total);
            acc[r][n] = valid ? acc[r][n] + total : acc[r][n];
        }
    }
}

// How many chunks of each row a lane has in flight. Of more, some would be past the end of short rows. Those of F32 are many.
template <typename T, u32 ROWS, u32 N>
constexpr u32 USUAL_LOADS = N > 4 || (ROWS == 2 && N == 1 && !T::FLOAT) ? 1 : T::CHUNK == 4 && ROWS * N == 1 ? 4 : 2;

// Adds this lane's part of the products of the rows: chunk first + lane, then every `step` chunks.
template <typename T, bool ALIGNED, u32 MOST, u32 ROWS, u32 N, typename Some, typename Then>
DEV void dot_rows(const Job& job, const Block<T, Planes>* rows, const u32* x_row, u32 n_in, u32 first, u32 step,
                  Some some, Then then, float (&acc)[ROWS][N]) {
    constexpr u32 LOADS = ALIGNED ? MOST : 1;
    u32 n = div_up(n_in, T::CHUNK);
    for (u32 base = first; base < n; base += step * LOADS) {
        T w[LOADS][ROWS];
#pragma unroll
        for (u32 u = 0; u < LOADS; u++) {
            // Lanes past the end load the last chunk and add nothing.
            u32 chunk = min_of(base + u * step + lane(), n - 1);
#pragma unroll
            for (u32 r = 0; r < ROWS; r++) w[u][r] = rows[r].load(chunk);
        }
        if (base == first) then();
#pragma unroll
        for (u32 u = 0; u < LOADS; u++) {
            u32 chunk = base + u * step + lane();
            bool valid = chunk < n;
            chunk = min_of(chunk, n - 1);
            if constexpr (T::FLOAT) add_float_products<T, ALIGNED>(job, w[u], x_row, n_in, chunk, valid, some, acc);
            else add_products<T, MOST == 1>(job, w[u], x_row, n_in, chunk, valid, some, acc);
        }
    }
}

#if defined(GPU_NVIDIA)
// The sum over the wave of one of N values, N a power of two: the value with the number index_of_sum(). In each step a
// lane gives half of its values away, until it has one. The additions are those of wave_sum(), but 16 values take 16
// shuffles instead of 80.
template <u32 N, u32 MASK = 1> DEV float scattered_sum(const float* v) {
    if constexpr (N == 1) {
        float sum = v[0];
#pragma unroll
        for (u32 mask = MASK; mask < WARP_SIZE; mask *= 2) sum += shuffle_xor(sum, mask);
        return sum;
    } else {
        const bool upper = lane() & MASK;
        float half[N / 2];
#pragma unroll
        for (u32 i = 0; i < N / 2; i++) {
            float low = v[i], high = v[i + N / 2];
            half[i] = (upper ? high : low) + shuffle_xor(upper ? low : high, MASK);
        }
        return scattered_sum<N / 2, MASK * 2>(half);
    }
}
template <u32 N> DEV u32 index_of_sum() {
    u32 index = 0;
#pragma unroll
    for (u32 bit = 1; bit < N; bit *= 2) index = index * 2 + (lane() & bit ? 1 : 0);
    return index;
}
#endif

// Writes the sums of a wave over its lanes.
template <u32 ROWS, u32 N> DEV void put_sums(float* to, const float (&acc)[ROWS][N]) {
#if defined(GPU_NVIDIA)
    // Two values are not worth it: gemv_tiled_2_1 of Q4_K would spill.
    if constexpr (ROWS * N > 2) {
        float values[ROWS * N];
#pragma unroll
        for (u32 r = 0; r < ROWS; r++)
#pragma unroll
            for (u32 n = 0; n < N; n++) values[r * N + n] = acc[r][n];
        float sum = scattered_sum<ROWS * N>(values);
        if (lane() < ROWS * N) to[index_of_sum<ROWS * N>()] = sum;
        return;
    }
#endif
#pragma unroll
    for (u32 r = 0; r < ROWS; r++)
#pragma unroll
        for (u32 n = 0; n < N; n++) {
            float sum = wave_sum(acc[r][n]);
            if (lane() == 0) to[r * N + n] = sum;
        }
}

// Computes the products of up to N rows of activations with the weight rows of the block's waves. Gated, the first half of
// a wave's ROWS rows are of the gate, and the others the same rows of up.
template <u32 ROWS, u32 N, bool IN_TURNS, u32 LOADS, typename Some, typename Then = HasBegun>
DEV void compute(const Job& job, Some some, Then then = {}) {
    SHARED(float, part, N_WAVES * (IN_TURNS ? N_WAVES : 1) * ROWS * N);
    constexpr u32 PAIRS = ROWS > 1 ? ROWS / 2 : 1;
    const bool gated = ROWS > 1 && job.gated;
    // Groups of waves that share rows of w, or pairs of rows of gate and up.
    const u32 turns_log = IN_TURNS ? job.turns_log : 0, waves_log = job.split_log - turns_log;
    u32 n_groups = N_WAVES >> waves_log, per_group = gated ? PAIRS : ROWS;
    u32 first_row = job.block * n_groups * per_group;
    u32 w = uniform(wave());
    u32 first_of_wave = first_row + (w >> waves_log) * per_group;

    Block<FORMAT, Planes> rows[ROWS];
#pragma unroll
    for (u32 r = 0; r < ROWS; r++) {
        Weights from = job.w;
        if (r >= PAIRS && gated) from.data = (u8*)job.up;
        u32 row = first_of_wave + (gated ? r % PAIRS : r);
        rows[r] = Block<FORMAT, Planes>::of(from, min_of(row, from.n_out - 1));
    }
    u32 x_row[N];
#pragma unroll
    for (u32 n = 0; n < N; n++) x_row[n] = N == 1 ? 0 : min_of(n, job.n_rows - 1);

    const u32 step = WARP_SIZE << job.split_log;
#pragma unroll 1
    for (u32 turn = 0; turn < 1u << turns_log; turn++) {
        // Number of the virtual wave in the block.
        const u32 virtual_wave = (w << turns_log) + turn;
        float acc[ROWS][N];
#pragma unroll
        for (u32 r = 0; r < ROWS; r++)
#pragma unroll
            for (u32 n = 0; n < N; n++) acc[r][n] = 0.0f;
        u32 first = (virtual_wave & ((1u << job.split_log) - 1)) * WARP_SIZE;
        if (!FORMAT::FLOAT || job.w.n_in % FORMAT::CHUNK == 0)
            dot_rows<FORMAT, true, LOADS>(job, rows, x_row, job.w.n_in, first, step, some, then, acc);
        else if constexpr (FORMAT::FLOAT)
            dot_rows<FORMAT, false, LOADS>(job, rows, x_row, job.w.n_in, first, step, some, then, acc);

        put_sums(part + virtual_wave * ROWS * N, acc);
    }
    shared_barrier();

    // One thread per output, adjacent rows in adjacent threads, so that stores are contiguous.
    u32 n_outputs = n_groups * per_group, n = tid() / n_outputs, at = tid() % n_outputs;
    u32 row = first_row + at;
    if (n >= min_of(N, job.n_rows) || row >= job.w.n_out) return;
    // By constants.
    const u32 group = gated ? at / PAIRS : at / ROWS, place = gated ? at % PAIRS : at % ROWS;
    float value[2] = {0.0f, 0.0f};
    for (u32 k = 0; k < 1u << job.split_log; k++) {
        const float* of_wave = part + ((group << job.split_log) + k) * ROWS * N;
        value[0] += of_wave[place * N + n];
        if (gated) value[1] += of_wave[(PAIRS + place) * N + n];
    }
    value[0] *= job.scale;
    if (job.bias) value[0] += job.bias[row];
    float* out = job.out + (u64)n * job.out_stride + row;
    if (gated) {
        value[1] *= job.up_scale;
        if (job.up_bias) value[1] += job.up_bias[row];
        *out = gated_value(job.mode, value[0], value[1]);
    } else if (job.mode == STORE) {
        *out = value[0];
    } else {
        *out = job.mode == ADD ? *out + value[0] : gated_value(job.mode, *out, value[0]);
    }
}

// Products in the parameters.
template <u32 ROWS, u32 N, bool IN_TURNS = false, u32 LOADS = USUAL_LOADS<FORMAT, ROWS, N>> DEV void gemv(const Few& p) {
    const Job job = job_of<(ROWS > 1)>(p, bid_x());
    if constexpr (IN_TURNS) {
        begin();
        compute<ROWS, N, true, LOADS>(job, AllRows{});
    } else {
        compute<ROWS, N, false, LOADS>(job, AllRows{}, BeginNow{});
    }
}

// Skips n activations, whole rows.
template <typename T> DEV void skip_values(Job& job, u64 n) {
    if constexpr (T::FLOAT) {
        job.x += n * sizeof(float);
    } else {
        job.x += n;
        job.scales += n / T::ACT_BLOCK;
        job.sums += n / 16;
    }
}

// The job of a block of a tile.
template <u32 ROWS> DEV Job job_of_tile(const Few& p, const ExpertTile& tile) {
    Job job = job_of<(ROWS > 1)>(p, bid_y());
    job.w.data = matrix_of(tile.expert, job.w.data, p.expert_bytes, p.n_stacked, p.shared);
    job.up = matrix_of(tile.expert, job.up, p.expert_bytes, p.n_stacked, p.up_shared);
    if (job.bias) job.bias += tile.expert * job.w.n_out;
    if (job.up_bias) job.up_bias += tile.expert * job.w.n_out;
    if (p.expert_scales) job.scale = p.expert_scales[tile.expert];
    if (p.up_scales) job.up_scale = p.up_scales[tile.expert];
    job.out += (u64)tile.first_row * p.out_stride + tile.expert * p.out_skip;
    job.out_stride = p.out_stride;
    return job;
}

// Tiles of the experts of an MoE layer. The grid is [tiles, blocks of outputs].
template <u32 ROWS, u32 N> DEV void gemv_tiled(const Few& p) {
    begin();
    const ExpertTile tile = tile_at(p.tiles, bid_x());
    if (tile.expert == NO_EXPERT) return;
    Job job = job_of_tile<ROWS>(p, tile);
    skip_values<FORMAT>(job, (u64)tile.first_row * job.w.n_in);
    job.n_rows = N == 1 ? 1 : tile.n_rows;
    constexpr u32 LOADS = USUAL_LOADS<FORMAT, ROWS, N>;
    if constexpr (N == 1) compute<ROWS, N, false, LOADS>(job, AllRows{});
    else compute<ROWS, N, false, LOADS>(job, FirstRows{job.n_rows});
}

// Products with short rows of weights: fewer lanes than a wave has share a row, and each has at most one chunk. A row's sum has
// the order of wave_sum(), whose other lanes have zeros.
template <typename T> DEV void short_products(const OwnFew& p, Job& job, u32 x_row) {
    const u32 n_lanes = 1u << p.lanes_log, of_wave = WARP_SIZE >> p.lanes_log;
    const u32 row = (job.block * N_WAVES + wave()) * of_wave + (lane() >> p.lanes_log);
    const u32 n = div_up(job.w.n_in, T::CHUNK), place = lane() & (n_lanes - 1), chunk = min_of(place, n - 1);
    const T w = Block<T, Planes>::of(job.w, min_of(row, job.w.n_out - 1)).load(chunk);
    begin();
    own_acts<T, THREADS>(p.source, x_row, job);
    const u32 first = 0;
    float acc[1][1] = {};
    add_products<T, false>(job, &w, &first, job.w.n_in, chunk, place < n, AllRows{}, acc);
    float sum = acc[0][0];
    for (u32 mask = 1; mask < n_lanes; mask *= 2) sum += shuffle_xor(sum, mask);
    if (place > 0 || row >= job.w.n_out) return;
    sum *= job.scale;
    if (job.bias) sum += job.bias[row];
    job.out[row] = sum;
}

// Products of a single token; each block converts the activations itself. Without a list of tiles, every expert has one row:
// then a block knows its weights from the start, and loads short rows before the kernels before have ended.
template <u32 ROWS> DEV void gemv_own_tiled(const OwnFew& p) {
    ExpertTile tile = {bid_x(), bid_x(), 1, 0};
    if (p.few.tiles) {
        begin();
        tile = tile_at(p.few.tiles, bid_x());
        if (tile.expert == NO_EXPERT) return;
    }
    Job job = job_of_tile<ROWS>(p.few, tile);
    job.n_rows = 1;
    if constexpr (!FORMAT::FLOAT)
        if (1u << p.lanes_log < WARP_SIZE) return short_products<FORMAT>(p, job, tile.first_row);
    if (!p.few.tiles) begin();
    own_acts<FORMAT, THREADS>(p.source, tile.first_row, job);
    compute<ROWS, 1, false, USUAL_LOADS<FORMAT, ROWS, 1>>(job, AllRows{});
}

// Products of a table. The first thread of each block takes the time: the earliest start and the latest end of all
// blocks of a product are kept.
template <u32 ROWS, u32 N> DEV void gemv(const Listed& p) {
    begin();
    const One one = find(p);
    const Job job = job_of(one, bid_x());
    u64* start = p.times && tid() == 0 ? p.times + one.timed : nullptr;
    u64* end = p.times + p.n_timed + one.timed;
    if (start) atomic_min(start, device_clock());
    constexpr u32 LOADS = USUAL_LOADS<FORMAT, ROWS, N>;
    if constexpr (N == 1) compute<ROWS, N, false, LOADS>(job, AllRows{});
    else compute<ROWS, N, false, LOADS>(job, FirstRows{job.n_rows});
    if (start) atomic_max(end, device_clock());
}
