// Rows of weight matrices, for each FORMAT. One thread for each chunk (quant.h) in blocks of 256; no shared memory.
//
// repack: blocks as they lie in a file -> planes. file [n_rows, file row], the rows first_row.. of w.
// get_rows: out[i, :] (+)= scale * table[ids[i], :], ids beyond the table clamped. out [n_ids, n_in].
// dequantize, dequantize_f16: out [n_out, n_in].
#include "quant.h"

constexpr u32 THREADS = 256;

// What packed_bytes in src/ops/rows.rs adds up. Planes that a format lacks have no bytes.
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
};

KERNEL(repack, RepackParams, THREADS) {
    u32 per_row = n_chunks<FORMAT>(p.w.n_in);
    u64 i = (u64)bid_x() * THREADS + tid();
    if (i >= (u64)p.n_rows * per_row) return;
    u32 row = (u32)(i / per_row), chunk = (u32)(i % per_row);
    u64 file_row_bytes = (u64)(p.w.n_in / FORMAT::LEN) * FORMAT::FILE_BYTES;
    Block<FORMAT, File> from = {p.file + row * file_row_bytes, p.w.n_in};
    Block<FORMAT, Planes>::of(p.w, p.first_row + row).store(chunk, from.load(chunk));
}

// Hands the values of one chunk of row `row` to `write(index in the row, value)`.
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

template <typename Out> struct DequantizeParams {
    Weights w;
    Out* out;
};

template <typename Out, typename F> DEV void dequantize_all(const DequantizeParams<Out>& p, F convert) {
    u32 per_row = n_chunks<FORMAT>(p.w.n_in);
    u64 i = (u64)bid_x() * THREADS + tid();
    if (i >= (u64)p.w.n_out * per_row) return;
    u32 row = (u32)(i / per_row);
    Out* out = p.out + (u64)row * p.w.n_in;
    each_value(p.w, row, (u32)(i % per_row), [&](u32 at, float v) __attribute__((always_inline)) { out[at] = convert(v); });
}

KERNEL(dequantize, DequantizeParams<float>, THREADS) {
    dequantize_all(p, [](float v) __attribute__((always_inline)) { return v; });
}
KERNEL(dequantize_f16, DequantizeParams<u16>, THREADS) {
    dequantize_all(p, [](float v) __attribute__((always_inline)) { return f2h(v); });
}
