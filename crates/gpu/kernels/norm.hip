// Normalization of rows, and quantization of activations (forms: acts.h).
//
//     rms_norm:   y = x / sqrt(mean(x^2) + eps) * weight
//     rms_norm_groups: the same of groups of a row, each with weights of its own
//     rms_norms:  the same of three inputs, of which two are written in f32
//     layer_norm: y = (x - mean(x)) / sqrt(mean((x - mean(x))^2) + eps) * weight + bias
//     quantize:   y = x
//     quantize_gated: y = f(gate) * g(up), as `gated` in elementwise.hip
//
// x [n_rows, width], weight and bias [width]; of groups x [n_rows, n_groups, width], weight [n_groups, width]; out: y in one of
// the forms, and if `normed` is not null in f32, too.
//
// One team of threads per row: a block of 512 (`block`), or 32 lanes of a block of 256 (`team`) for short rows such as
// heads. Each thread loads 8 neighbouring values at a time and keeps one or two such octets in registers. Values of a row
// beyond these (4096 of a block, 512 of a team) are loaded again for the output. The code is kept short, because a step of
// one token waits until instructions are loaded. Sums are in f32: over a thread's octets, then
// over the threads in a fixed order.
// Shared memory: one f32 per wave and sum, at most 128 bytes.
#include "activation.h"
#include "norm.h"

template <typename Norm, typename Form> DEV void norm_block(const NormParams& p) {
    SHARED(float, part, 2 * BLOCK_THREADS / WARP_SIZE);
    norm_row<Norm, Form, BLOCK_THREADS>(p, bid_x(), tid(), part);
}

template <typename Norm, typename Form> DEV void norm_team(const NormParams& p) {
    norm_row<Norm, Form, TEAM>(p, bid_x() * (TEAM_THREADS / TEAM) + tid() / TEAM, tid() % TEAM, nullptr);
}

KERNEL_THAT_BEGINS(rms_norm_block_f32, NormParams, BLOCK_THREADS) { norm_block<Rms, FormF32>(p); }
KERNEL_THAT_BEGINS(rms_norm_block_q8x32, NormParams, BLOCK_THREADS) { norm_block<Rms, FormQ8x32>(p); }
KERNEL_THAT_BEGINS(rms_norm_block_q8x256, NormParams, BLOCK_THREADS) { norm_block<Rms, FormQ8x256>(p); }
KERNEL_THAT_BEGINS(rms_norm_team_f32, NormParams, TEAM_THREADS) { norm_team<Rms, FormF32>(p); }
KERNEL_THAT_BEGINS(rms_norm_team_q8x32, NormParams, TEAM_THREADS) { norm_team<Rms, FormQ8x32>(p); }
KERNEL_THAT_BEGINS(rms_norm_team_q8x256, NormParams, TEAM_THREADS) { norm_team<Rms, FormQ8x256>(p); }
KERNEL_THAT_BEGINS(layer_norm_block_f32, NormParams, BLOCK_THREADS) { norm_block<Layer, FormF32>(p); }
KERNEL_THAT_BEGINS(layer_norm_team_f32, NormParams, TEAM_THREADS) { norm_team<Layer, FormF32>(p); }

// A block has a row of three inputs, each by a team. All are read before a result is written, which may be in the place of one.
constexpr u32 NORMS_THREADS = 4 * TEAM;

struct RmsNormsParams {
    NormParams norms[3];
    FIELDS(norms)
};

template <typename Form> DEV void norm_of_block(const NormParams& p, u32 row) {
    const float* x = p.x + (u64)row * p.width;
    Octet second;
    norm_row<Rms, Form, TEAM>(p, row, tid() % TEAM, nullptr, [&](u32 at, u32 end) {
        if (at >= TEAM * OCTET) return second;
        const Octet octet = load_octet(x, at, end, p.aligned);
        second = load_octet(x, at + TEAM * OCTET, end, p.aligned);
        shared_barrier();
        return octet;
    });
}

template <typename Form> DEV void rms_norms(const RmsNormsParams& p) {
    const u32 team = tid() / TEAM;
    // Teams that share a wave have the same form.
    if (uniform(wave()) < 2 * TEAM / WARP_SIZE) {
        NormParams norm = p.norms[0];
        const NormParams& other = p.norms[1];
        const bool is_other = team == 1;
        norm.x = choose_loaded(is_other, norm.x, other.x);
        norm.weight = choose_loaded(is_other, norm.weight, other.weight);
        norm.out.values = choose_loaded(is_other, norm.out.values, other.out.values);
        norm.width = choose_loaded(is_other, norm.width, other.width);
        norm.aligned = choose_loaded(is_other, norm.aligned, other.aligned);
        norm.eps = is_other ? other.eps : norm.eps;
        norm_of_block<FormF32>(norm, bid_x());
    } else {
        // The fourth team has no row.
        norm_of_block<Form>(p.norms[2], team == 2 ? bid_x() : p.norms[2].n_rows);
    }
}

KERNEL_THAT_BEGINS(rms_norms_f32, RmsNormsParams, NORMS_THREADS) { rms_norms<FormF32>(p); }
KERNEL_THAT_BEGINS(rms_norms_q8x32, RmsNormsParams, NORMS_THREADS) { rms_norms<FormQ8x32>(p); }
KERNEL_THAT_BEGINS(rms_norms_q8x256, RmsNormsParams, NORMS_THREADS) { rms_norms<FormQ8x256>(p); }

// A block of 128 threads, whose octets are 1024 values, for each group.
constexpr u32 GROUP_THREADS = 128;

struct NormGroupsParams {
    // Rows are groups.
    NormParams norm;
    u32 n_groups;
    u32 pad;
    FIELDS(norm, n_groups, pad)
};

template <typename Form> DEV void norm_groups(const NormGroupsParams& p) {
    SHARED(float, part, 2 * GROUP_THREADS / WARP_SIZE);
    NormParams norm = p.norm;
    norm.weight += (u64)bid_y() * norm.width;
    norm_row<Rms, Form, GROUP_THREADS>(norm, bid_x() * p.n_groups + bid_y(), tid(), part);
}

KERNEL_THAT_BEGINS(rms_norm_groups_f32, NormGroupsParams, GROUP_THREADS) { norm_groups<FormF32>(p); }
KERNEL_THAT_BEGINS(rms_norm_groups_q8x32, NormGroupsParams, GROUP_THREADS) { norm_groups<FormQ8x32>(p); }
KERNEL_THAT_BEGINS(rms_norm_groups_q8x256, NormGroupsParams, GROUP_THREADS) { norm_groups<FormQ8x256>(p); }

struct QuantizeParams {
    const float* x;
    ActsOut out;
    // x and out as one long row; rows are whole blocks.
    u32 n;
    u32 aligned;
    FIELDS(x, out, n, aligned)
};

template <typename Form> DEV void quantize(const QuantizeParams& p) {
    u32 at = (bid_x() * TEAM_THREADS + tid()) * OCTET;
    Form::put(p.out, 0, at, p.n, p.aligned, load_octet(p.x, at, p.n, p.aligned));
}

KERNEL(quantize_f32, QuantizeParams, TEAM_THREADS) { quantize<FormF32>(p); }
KERNEL(quantize_q8x32, QuantizeParams, TEAM_THREADS) { quantize<FormQ8x32>(p); }
KERNEL(quantize_q8x256, QuantizeParams, TEAM_THREADS) { quantize<FormQ8x256>(p); }

struct QuantizeGatedParams {
    const float* gate;
    const float* up;
    ActsOut out;
    // All as one long row; rows are whole blocks.
    u32 n;
    u32 aligned;
    float numbers[4];
    ActivationKind kind;
    u32 pad;
    FIELDS(gate, up, out, n, aligned, numbers, kind, pad)
};

template <typename Form> DEV void quantize_gated(const QuantizeGatedParams& p) {
    const u32 at = (bid_x() * TEAM_THREADS + tid()) * OCTET;
    Octet x = load_octet(p.gate, at, p.n, p.aligned);
    const Octet up = load_octet(p.up, at, p.n, p.aligned);
#pragma unroll
    for (u32 i = 0; i < OCTET; i++) x.v[i] = activated(p.kind, p.numbers, x.v[i]) * of_up(p.kind, p.numbers, up.v[i]);
    Form::put(p.out, 0, at, p.n, p.aligned, x);
}

KERNEL(quantize_gated_f32, QuantizeGatedParams, TEAM_THREADS) { quantize_gated<FormF32>(p); }
KERNEL(quantize_gated_q8x32, QuantizeGatedParams, TEAM_THREADS) { quantize_gated<FormQ8x32>(p); }
KERNEL(quantize_gated_q8x256, QuantizeGatedParams, TEAM_THREADS) { quantize_gated<FormQ8x256>(p); }
