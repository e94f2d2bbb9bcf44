// Quantizes several activations in one launch, each to its own form (forms: acts.h; launch: group.h).
//
// x [n] f32 -> codes, scales and sums of an 8-bit form. Blocks of 256 threads, eight values per thread; no shared
// memory.
#include "acts.h"
#include "group.h"

constexpr u32 THREADS = 256;

enum Form : u32 { Q8X32 = 0, Q8X256 = 1 };

struct Conversion {
    const float* x;
    ActsOut out;
    u32 n;
    u32 aligned;
    Form form;
    u32 first_block;
    FIELDS(x, out, n, aligned, form, first_block)
};

KERNEL(quantize_group, GroupParams<Conversion>, THREADS) {
    const Conversion c = p.ops[group_op(p.first_blocks, p.n_ops)];
    const ActsOut out = {nullptr, global(c.out.codes), global(c.out.scales), global(c.out.sums)};
    u32 at = ((bid_x() - c.first_block) * THREADS + tid()) * OCTET;
    Octet o = load_octet(global(c.x), at, c.n, c.aligned);
    if (uniform(c.form) == Q8X32) FormQ8x32::put(out, 0, at, c.n, c.aligned, o);
    else FormQ8x256::put(out, 0, at, c.n, c.aligned, o);
}
