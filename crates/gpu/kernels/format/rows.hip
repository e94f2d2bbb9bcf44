// Rows of weight matrices, for each FORMAT. One thread per chunk (quant.h) in blocks of 256.
//
// repack: blocks in file layout -> planes. file [n_rows, file row] goes to the rows first_row.. of w, and its scales
// into the matrix's range, which is zero before the first row.
//
// get_rows: out[i, :] (+)= scale * table[ids[i], :], out [n_ids, n_in]; ids are clamped to the table.
//
// dequantize, dequantize_f16: out [n_out, n_in]. The 32 values of a chunk go through 80 bytes of shared memory per
// thread, 64 bytes of values at a time: if each thread stored its own values, each store of a wave would touch as many
// cache lines as it has lanes, with one value each. Float formats have no padding if n_in is a multiple of 32: then a
// wave loads and stores neighbouring values, four per lane, regardless of rows.
#include "range.h"

constexpr u32 THREADS = 256;

// Summed up by packed_bytes in src/ops/rows.rs. Planes that a format lacks have 0 bytes.
template <typename T> constexpr Plane plane(u32 k) { return k < T::N_PLANES ? T::PLANES[k] : Plane{32, 0}; }
EXPORT_U32(plane_0_values, plane<FORMAT>(0).values)
EXPORT_U32(plane_0_bytes, plane<FORMAT>(0).bytes)
EXPORT_U32(plane_1_values, plane<FORMAT>(1).values)
EXPORT_U32(plane_1_bytes, plane<FORMAT>(1).bytes)
EXPORT_U32(plane_2_values, plane<FORMAT>(2).values)
EXPORT_U32(plane_2_bytes, plane<FORMAT>(2).bytes)
EXPORT_U32(plane_3_values, plane<FORMAT>(3).values)
EXPORT_U32(plane_3_bytes, plane<FORMAT>(3).bytes)

struct RepackParams {
    const u8* file;
    Weights w;
    u32 first_row;
    u32 n_rows;
    FIELDS(file, w, first_row, n_rows)
};

KERNEL(repack, RepackParams, THREADS) {
    u32 per_row = n_chunks<FORMAT>(p.w.n_in);
    u64 i = (u64)bid_x() * THREADS + tid();
    const bool valid = i < (u64)p.n_rows * per_row;
    u32 row = (u32)(i / per_row), chunk = (u32)(i % per_row);
    FORMAT t = {};
    if (valid) {
        u64 file_row_bytes = (u64)(p.w.n_in / FORMAT::LEN) * FORMAT::FILE_BYTES;
        Block<FORMAT, File> from = {p.file + row * file_row_bytes, p.w.n_in};
        t = from.load(chunk);
        Block<FORMAT, Planes>::of(p.w, p.first_row + row).store(chunk, t);
    }
    if constexpr (HAS_RANGE<FORMAT>) {
        Range* range = (Range*)Block<FORMAT, Planes>::end(p.w);
        range->add(t, place_in_block<FORMAT>(chunk), valid);
    }
}

// Calls `write(index in the row, value)` for each value of one chunk of row `row`.
template <typename F> DEV void each_value(const Weights& w, u32 row, u32 chunk, F write) {
    FORMAT t = Block<FORMAT, Planes>::of(w, row).load(chunk);
    float values[FORMAT::CHUNK];
    dequantize_chunk(t, place_in_block<FORMAT>(chunk), values);
#pragma unroll
    for (u32 i = 0; i < FORMAT::CHUNK; i++) {
        u32 at = chunk * FORMAT::CHUNK + i;
        if (!FORMAT::FLOAT || at < w.n_in) write(at, values[i]);
    }
}

struct GetRowsParams {
    Weights w;
    const u32* ids;
    float* out;
    u32 n_ids;
    float scale;
    u32 add;
    u32 pad;
    FIELDS(w, ids, out, n_ids, scale, add, pad)
};

KERNEL(get_rows, GetRowsParams, THREADS) {
    u32 per_row = n_chunks<FORMAT>(p.w.n_in);
    u64 i = (u64)bid_x() * THREADS + tid();
    if (i >= (u64)p.n_ids * per_row) return;
    u32 k = (u32)(i / per_row);
    u32 row = min_of(p.ids[k], p.w.n_out - 1);
    float* out = p.out + (u64)k * p.w.n_in;
    each_value(p.w, row, (u32)(i % per_row), [&](u32 at, float v) __attribute__((always_inline)) {
        v = mul_rounded(v, p.scale);
        out[at] = p.add ? out[at] + v : v;
    });
}

// The grid is [blocks of a matrix, matrices].
template <typename Out> struct DequantizeParams {
    Weights w;
    Out* out;
    // From a matrix to the next one.
    u64 matrix_bytes;
    FIELDS(w, out, matrix_bytes)
};

// For chunks of 32 values, which are consecutive in `out` as in rows; `out` is 16-byte aligned.
template <typename Out, typename F> DEV void dequantize_staged(const DequantizeParams<Out>& p, F convert) {
    // Values of a chunk staged at a time, their number of 16-byte pieces, and bytes from one thread's values to the
    // next.
    constexpr u32 PART = 64 / sizeof(Out), PIECES = 4, STRIDE = 80, PER_WORD = 4 / sizeof(Out);
    SHARED(u8, staged, THREADS * STRIDE);
    const u32 per_row = n_chunks<FORMAT>(p.w.n_in);
    const u64 n = (u64)p.w.n_out * per_row, first = (u64)bid_x() * THREADS;
    float values[32] = {};
    if (first + tid() < n) {
        u32 row = (u32)((first + tid()) / per_row), chunk = (u32)((first + tid()) % per_row);
        dequantize_chunk(Block<FORMAT, Planes>::of(p.w, row).load(chunk), place_in_block<FORMAT>(chunk), values);
    }
#pragma unroll
    for (u32 k = 0; k < 32; k += PART) {
        if (k > 0) shared_barrier();
#pragma unroll
        for (u32 i = 0; i < PIECES; i++) {
            u32x4 piece = {};
#pragma unroll
            for (u32 j = 0; j < 16 / sizeof(Out); j++)
                piece.v[j / PER_WORD] |= convert(values[k + i * (16 / sizeof(Out)) + j]) << j % PER_WORD * 16;
            store16(staged + tid() * STRIDE + i * 16, piece);
        }
        shared_barrier();
#pragma unroll
        for (u32 i = 0; i < PIECES; i++) {
            u32 at = i * THREADS + tid(), chunk = at / PIECES, piece = at % PIECES;
            Out* to = p.out + (first + chunk) * 32 + k + piece * (16 / sizeof(Out));
            if (first + chunk < n) store16(to, load16(staged + chunk * STRIDE + piece * 16));
        }
    }
}

// For float formats and rows without padding; `out` is 16-byte aligned. Each thread handles as many values as a chunk
// has.
template <typename T, typename Out, typename F> DEV void dequantize_flat(const DequantizeParams<Out>& p, F convert) {
    constexpr u32 QUADS = T::CHUNK / 4, QUAD_BYTES = 4 * T::FILE_BYTES;
    const u64 n = (u64)p.w.n_out * p.w.n_in / 4, first = (u64)bid_x() * THREADS * QUADS + tid();
    T quads[QUADS];
#pragma unroll
    for (u32 i = 0; i < QUADS; i++) {
        u64 at = first + i * THREADS;
        if (at >= n) continue;
        if constexpr (QUAD_BYTES == 16) {
            quads[i].raw = stream16(p.w.data + at * QUAD_BYTES);
        } else {
            u32x2 half = stream8(p.w.data + at * QUAD_BYTES);
            quads[i].raw = {{half[0], half[1]}};
        }
    }
#pragma unroll
    for (u32 i = 0; i < QUADS; i++) {
        u64 at = first + i * THREADS;
        if (at >= n) continue;
        u32 values[4];
#pragma unroll
        for (u32 j = 0; j < 4; j++) values[j] = convert(quads[i].value(j));
        if constexpr (sizeof(Out) == 4) store16(p.out + at * 4, {{values[0], values[1], values[2], values[3]}});
        else *(u32x2*)(p.out + at * 4) = {{values[0] | values[1] << 16, values[2] | values[3] << 16}};
    }
}

// `convert` returns the bits of a value in the output type.
template <typename Out, typename F> DEV void dequantize_all(DequantizeParams<Out> p, F convert) {
    p.w.data += bid_y() * p.matrix_bytes;
    p.out += (u64)bid_y() * p.w.n_out * p.w.n_in;
    if ((u64)p.out % 16 == 0 && p.w.n_in % UNIT == 0) {
        if constexpr (FORMAT::FLOAT) dequantize_flat<FORMAT>(p, convert);
        else dequantize_staged(p, convert);
        return;
    }
    u32 per_row = n_chunks<FORMAT>(p.w.n_in);
    u64 i = (u64)bid_x() * THREADS + tid();
    if (i >= (u64)p.w.n_out * per_row) return;
    u32 row = (u32)(i / per_row);
    Out* out = p.out + (u64)row * p.w.n_in;
    each_value(p.w, row, (u32)(i % per_row),
               [&](u32 at, float v) __attribute__((always_inline)) { out[at] = (Out)convert(v); });
}

KERNEL(dequantize, DequantizeParams<u32>, THREADS) {
    dequantize_all(p, [](float v) __attribute__((always_inline)) { return bits<u32>(v); });
}
KERNEL(dequantize_f16, DequantizeParams<u16>, THREADS) {
    dequantize_all(p, [](float v) __attribute__((always_inline)) { return (u32)f2h(v); });
}
