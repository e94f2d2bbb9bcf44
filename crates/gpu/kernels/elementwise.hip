// Elementwise operations, and copies of rows.
//
// add:         out[i] += x[i]
// add_gated:   out[row][i] += x[row][i] / (1 + e^-gate[row])
// activate:    out[i] = f(x[i])
// gated:       out[i] = f(x[i]) * g(up[i]); g is not the identity where the activation has a limit
// gated_rows:  out[row][i] = f(x[row]) * g(up[row][i])
// scale:       out[i] *= numbers[0]
// scale_rows:  out[row][i] *= x[i]
// soft_cap:    out[i] = cap * tanh(out[i] / cap)
// select_rows: out[row][i] = x[rows[row]][i]; indices past the end use the last row
// copy_part:   out[row][i] = x[row][first + i], rows of x having x_width values
//
// add_gated, gated_rows, scale_rows, select_rows and copy_part have [n_rows, width]; the others treat the data as one
// long row of n values. Blocks of 256 threads, four neighbouring values per thread, moved as 16 bytes if `aligned`. No
// shared memory.
#include "activation.h"
#include "quad.h"

constexpr u32 THREADS = 256;

struct Params {
    const float* x;
    // up, gate or rows.
    const void* other;
    float* out;
    u32 n;
    u32 width;
    u32 n_x_rows;
    // Whether rows are whole quads and all addresses multiples of 16.
    u32 aligned;
    // The cap, the factor, or the numbers of the activation.
    float numbers[4];
    ActivationKind kind;
    u32 first;
    u32 x_width;
    u32 pad;
    FIELDS(x, other, out, n, width, n_x_rows, aligned, numbers, kind, first, x_width, pad)
};

// The first value of this thread if blocks lie side by side in one long row.
DEV u32 first_value() { return (bid_x() * THREADS + tid()) * QUAD; }

// The first value of this thread within the row bid_x().
DEV u32 first_of_row() { return (bid_y() * THREADS + tid()) * QUAD; }

KERNEL(add, Params, THREADS) {
    u32 at = first_value();
    if (at >= p.n) return;
    Quad x = load_quad(p.x, at, p.n, p.aligned), y = load_quad(p.out, at, p.n, p.aligned);
#pragma unroll
    for (u32 i = 0; i < QUAD; i++) y.v[i] += x.v[i];
    store_quad(p.out, at, p.n, p.aligned, y);
}

KERNEL(add_gated, Params, THREADS) {
    u32 at = first_of_row(), row = bid_x();
    if (at >= p.width) return;
    float factor = 1.0f / (1.0f + exp_of(-((const float*)p.other)[row]));
    const float* x = p.x + (u64)row * p.width;
    float* out = p.out + (u64)row * p.width;
    Quad a = load_quad(x, at, p.width, p.aligned), y = load_quad(out, at, p.width, p.aligned);
#pragma unroll
    for (u32 i = 0; i < QUAD; i++) y.v[i] = fma(a.v[i], factor, y.v[i]);
    store_quad(out, at, p.width, p.aligned, y);
}

KERNEL(activate, Params, THREADS) {
    u32 at = first_value();
    if (at >= p.n) return;
    Quad x = load_quad(p.x, at, p.n, p.aligned);
#pragma unroll
    for (u32 i = 0; i < QUAD; i++) x.v[i] = activated(p.kind, p.numbers, x.v[i]);
    store_quad(p.out, at, p.n, p.aligned, x);
}

KERNEL(gated, Params, THREADS) {
    u32 at = first_value();
    if (at >= p.n) return;
    Quad x = load_quad(p.x, at, p.n, p.aligned), up = load_quad((const float*)p.other, at, p.n, p.aligned);
#pragma unroll
    for (u32 i = 0; i < QUAD; i++) x.v[i] = activated(p.kind, p.numbers, x.v[i]) * of_up(p.kind, p.numbers, up.v[i]);
    store_quad(p.out, at, p.n, p.aligned, x);
}

KERNEL(gated_rows, Params, THREADS) {
    u32 at = first_of_row(), row = bid_x();
    if (at >= p.width) return;
    const float factor = activated(p.kind, p.numbers, p.x[row]);
    Quad up = load_quad((const float*)p.other + (u64)row * p.width, at, p.width, p.aligned);
#pragma unroll
    for (u32 i = 0; i < QUAD; i++) up.v[i] = factor * of_up(p.kind, p.numbers, up.v[i]);
    store_quad(p.out + (u64)row * p.width, at, p.width, p.aligned, up);
}

KERNEL(scale, Params, THREADS) {
    u32 at = first_value();
    if (at >= p.n) return;
    Quad x = load_quad(p.out, at, p.n, p.aligned);
#pragma unroll
    for (u32 i = 0; i < QUAD; i++) x.v[i] *= p.numbers[0];
    store_quad(p.out, at, p.n, p.aligned, x);
}

KERNEL(scale_rows, Params, THREADS) {
    u32 at = first_of_row(), row = bid_x();
    if (at >= p.width) return;
    float* out = p.out + (u64)row * p.width;
    Quad by = load_quad(p.x, at, p.width, p.aligned), x = load_quad(out, at, p.width, p.aligned);
#pragma unroll
    for (u32 i = 0; i < QUAD; i++) x.v[i] *= by.v[i];
    store_quad(out, at, p.width, p.aligned, x);
}

KERNEL(soft_cap, Params, THREADS) {
    u32 at = first_value();
    if (at >= p.n) return;
    Quad x = load_quad(p.out, at, p.n, p.aligned);
#pragma unroll
    for (u32 i = 0; i < QUAD; i++) x.v[i] = p.numbers[0] * tanh_of(x.v[i] / p.numbers[0]);
    store_quad(p.out, at, p.n, p.aligned, x);
}

KERNEL(select_rows, Params, THREADS) {
    u32 at = first_of_row(), row = bid_x();
    if (at >= p.width) return;
    u32 from = min_of(((const u32*)p.other)[row], p.n_x_rows - 1);
    Quad x = load_quad(p.x + (u64)from * p.width, at, p.width, p.aligned);
    store_quad(p.out + (u64)row * p.width, at, p.width, p.aligned, x);
}

KERNEL(copy_part, Params, THREADS) {
    u32 at = first_of_row(), row = bid_x();
    if (at >= p.width) return;
    Quad x = load_quad(p.x + (u64)row * p.x_width + p.first, at, p.width, p.aligned);
    store_quad(p.out + (u64)row * p.width, at, p.width, p.aligned, x);
}
