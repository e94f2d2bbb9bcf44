// What the kernels of the delta rule in chunks share (delta_chunks.hip, channel_chunks.hip): the matrices T and P of the 16 rows
// of a chunk, and what follows from them.
#pragma once
#include "linear_chunks.h"

constexpr u32 CHUNK = 16;
// Rows of T and P as f16, and the distance to their rounding errors.
constexpr u32 SQUARE_PITCH = CHUNK * 2 + 16, SQUARE_BYTES = CHUNK * SQUARE_PITCH;

// Both parts of T or P.
DEV Parts<KeyOperand> load_square(const u8* square) { return load_parts(square, SQUARE_PITCH, SQUARE_BYTES); }
DEV void store_square(u8* square, u32 row, u32 column, float x) {
    store_parts(square + row * SQUARE_PITCH + column * 2, SQUARE_BYTES, x);
}

// T = (1 + A)^-1 of the matrix `a` [CHUNK, CHUNK] in shared memory, of which the values below the diagonal are read. Each lane
// has a column, by substitution.
DEV void invert(const float* a, u8* to) {
    const u32 column = lane() % CHUNK;
    float t[CHUNK];
#pragma unroll
    for (u32 i = 0; i < CHUNK; i++) {
        t[i] = i == column ? 1.0f : 0.0f;
#pragma unroll
        for (u32 first = 0; first < i; first += QUAD) {
            const Quad of_row = bits<Quad>(load16(a + i * CHUNK + first));
#pragma unroll
            for (u32 j = 0; j < QUAD; j++)
                if (first + j < i) t[i] = fma(-of_row.v[j], t[first + j], t[i]);
        }
    }
    if (lane() >= CHUNK) return;
#pragma unroll
    for (u32 i = 0; i < CHUNK; i++) store_square(to, i, column, t[i]);
}

// U = T r, in place of r.
DEV void solve(const u8* t, Tile::Acc& r) {
    Product<3> u;
    u.add(parts_of(r.v), load_square(t));
#pragma unroll
    for (u32 e = 0; e < ELEMENTS; e++) r.v[e] = u.value(e);
}
// out += P U.
DEV void add_chunk(const u8* p, const Parts<QueryOperand>& u, Tile::Acc& out) {
    Product<3> of_chunk;
    of_chunk.add(u, load_square(p));
#pragma unroll
    for (u32 e = 0; e < ELEMENTS; e++) out.v[e] += of_chunk.value(e);
}
