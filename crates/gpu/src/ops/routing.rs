//! Routing of mixture-of-experts (MoE) layers: chooses the experts of each token, sorts rows by expert, and combines
//! the results (`kernels/experts.hip`). All of it stays on the device; the host knows only the number of choices.

pub(super) mod buffer;

use self::buffer::{MAX_EXPERTS, Routing, TILE_ROWS, TileList, check_experts};
use super::half::HalfRows;
use super::norm::{
    ActsOut, BLOCK_THREADS, NormParams, OCTET, acts_out, aligned, is_of_block, quantize_alone,
    rms_norm_params, rms_norm_quantize,
};
use crate::error::GpuError;
use crate::gpu::Gpu;
use crate::kernel::{kernels, layout};
use crate::limit::Limit;
use crate::memory::{Address, Slice};
use crate::operands::{ActFormat, Acts, OutMode};
pub use rocmforge_plan::{
    ExpertGroups, ExpertScores, ExpertVectors, ExpertWeights, Router, SharedWeight, Weighed,
};

/// Threads per block of `route`, of `sort`, of both in one, and of the kernels that move rows.
const ROUTE_THREADS: u32 = 256;
const SORT_THREADS: u32 = 256;
const ROUTE_SORT_THREADS: u32 = MAX_EXPERTS as u32;
const ROW_THREADS: usize = 256;

/// Maximum number of groups of experts: one lane of `route` each.
const MAX_GROUPS: usize = 32;

/// With up to this many choices of a token, steps of few tokens are routed by one block.
pub(super) const MAX_FEW_CHOICES: u32 = 32;

/// Up to this many tokens are routed and sorted by one block.
const MAX_SINGLE_BLOCK_TOKENS: usize = 64;

/// Values that a thread of `combine` handles at a time.
const QUAD: usize = 4;

/// Checks that the kernels can choose as `router` says among `n_experts` experts.
pub fn check_router(router: &Router, n_experts: usize) -> Result<(), Limit> {
    check_experts([n_experts, router.n_used])?;
    let Some(ExpertGroups { n, n_used }) = router.groups else {
        return Ok(());
    };
    let is_whole = (2..=MAX_GROUPS).contains(&n) && n_experts.is_multiple_of(n) && n_experts > n;
    Limit::check(is_whole, n, || {
        format!("2 to {MAX_GROUPS} groups of at least two experts, of equal size")
    })?;
    let fits = (1..=n).contains(&n_used) && n_experts / n * n_used >= router.n_used;
    Limit::check(fits, n_used, || {
        format!("groups with the {} experts of a token", router.n_used)
    })
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct RouteParams {
    logits: Address,
    seq_of_row: Address,
    experts: Address,
    weights: Address,
    rows: Address,
    tokens: Address,
    n_rows: Address,
    lists: [TileList; TILE_ROWS.len()],
    bias: Address,
    expert_scales: Address,
    gate: Address,
    n_tokens: u32,
    n_experts: u32,
    n_used: u32,
    n_choices: u32,
    scores: u32,
    normalized: u32,
    n_groups: u32,
    n_groups_used: u32,
    scale: f32,
    pad: u32,
}

layout!(RouteParams {
    logits,
    seq_of_row,
    experts,
    weights,
    rows,
    tokens,
    n_rows,
    lists,
    bias,
    expert_scales,
    gate,
    n_tokens,
    n_experts,
    n_used,
    n_choices,
    scores,
    normalized,
    n_groups,
    n_groups_used,
    scale,
    pad
});

#[repr(C)]
#[derive(Clone, Copy)]
struct QuantizeRowsParams {
    x: Address,
    tokens: Address,
    n_rows: Address,
    rows: Address,
    weights: Address,
    out: ActsOut,
    width: u32,
    n_used: u32,
    aligned: u32,
    pad: u32,
}

layout!(QuantizeRowsParams {
    x,
    tokens,
    n_rows,
    rows,
    weights,
    out,
    width,
    n_used,
    aligned,
    pad
});

#[repr(C)]
#[derive(Clone, Copy)]
struct CombineParams {
    x: Address,
    rows: Address,
    weights: Address,
    out: Address,
    width: u32,
    n_used: u32,
    add: u32,
    aligned: u32,
}

layout!(CombineParams {
    x,
    rows,
    weights,
    out,
    width,
    n_used,
    add,
    aligned
});

const _: () = assert!(size_of::<RouteParams>() == 168);
const _: () = assert!(size_of::<QuantizeRowsParams>() == 88);
const _: () = assert!(size_of::<CombineParams>() == 48);

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct CombineNormParams {
    combine: CombineParams,
    norm: NormParams,
}

layout!(CombineNormParams { combine, norm });

kernels! {
    struct ExpertsKernels {
        route: RouteParams,
        sort: RouteParams,
        route_sort: RouteParams,
        route_few: RouteParams,
        route_one: RouteParams,
        quantize_rows_f32: QuantizeRowsParams,
        quantize_rows_q8x32: QuantizeRowsParams,
        quantize_rows_q8x256: QuantizeRowsParams,
        combine: CombineParams,
        combine_norm_f32: CombineNormParams,
        combine_norm_q8x32: CombineNormParams,
        combine_norm_q8x256: CombineNormParams,
    }
}

/// Chooses the experts of each token by `logits` [n_tokens, n_experts]: the largest scores, the first of equals; NaN
/// counts as negative infinity. Vectors are [n_experts]. Assigns a row to every choice. Tokens with `u32::MAX` in
/// `seq_of_row` [n_tokens] are padding rows and choose nothing. A shared expert is the last one of `routing`, and the last
/// choice of every other token; its gate is [n_tokens].
///
/// # Panics
/// If the shapes do not match, or [`check_router`] fails.
pub fn route(
    gpu: &Gpu,
    (logits, vectors): (Slice<'_, f32>, ExpertVectors<Slice<'_, f32>>),
    (router, shared): (Router, Option<SharedWeight<Slice<'_, f32>>>),
    seq_of_row: Slice<'_, u32>,
    routing: &Routing<'_>,
) -> Result<(), GpuError> {
    let n_tokens = routing.n_tokens;
    let is_simple = is_simple(&router, vectors.bias.is_some());
    let params = route_params(logits, vectors, (router, shared), seq_of_row, routing);
    if n_tokens == 0 {
        return Ok(());
    }
    let kernels = &gpu.kernels().experts;
    let tokens_of_block = ROUTE_THREADS / super::formats::warp_size(gpu) as u32;
    let is_small = params.n_experts <= ROUTE_THREADS && params.n_choices <= MAX_FEW_CHOICES;
    if n_tokens == 1 && is_simple && is_small {
        return gpu.launch(&kernels.route_one, [1, 1, 1], ROUTE_THREADS, 0, &params);
    }
    let are_few = params.n_tokens <= tokens_of_block
        && params.n_tokens * params.n_choices <= ROUTE_THREADS
        && routing.n_experts <= ROUTE_THREADS as usize;
    if are_few {
        return gpu.launch(&kernels.route_few, [1, 1, 1], ROUTE_THREADS, 0, &params);
    }
    if n_tokens <= MAX_SINGLE_BLOCK_TOKENS && params.n_choices <= MAX_FEW_CHOICES {
        return gpu.launch(
            &kernels.route_sort,
            [1, 1, 1],
            ROUTE_SORT_THREADS,
            0,
            &params,
        );
    }
    let grid = [params.n_tokens.div_ceil(tokens_of_block), 1, 1];
    gpu.launch(&kernels.route, grid, ROUTE_THREADS, 0, &params)?;
    let grid = [routing.n_experts as u32, 1, 1];
    gpu.launch(&kernels.sort, grid, SORT_THREADS, 0, &params)
}

/// The parameters of a routing. [`route`] says more.
///
/// # Panics
/// As [`route`].
pub(super) fn route_params(
    logits: Slice<'_, f32>,
    vectors: ExpertVectors<Slice<'_, f32>>,
    (router, shared): (Router, Option<SharedWeight<Slice<'_, f32>>>),
    seq_of_row: Slice<'_, u32>,
    routing: &Routing<'_>,
) -> RouteParams {
    let n_tokens = routing.n_tokens;
    let n_shared = usize::from(shared.is_some());
    let n_experts = routing.n_experts - n_shared;
    assert_eq!(
        [router.n_used + n_shared, n_shared],
        [routing.n_used, routing.n_shared],
        "a shared expert is a choice"
    );
    let gate = shared.and_then(SharedWeight::gate);
    assert!(
        gate.is_none_or(|gate| gate.len() == n_tokens),
        "a gate for each token"
    );
    assert_eq!(logits.len(), n_tokens * n_experts, "[n_tokens, n_experts]");
    assert_eq!(seq_of_row.len(), n_tokens, "one sequence per token");
    assert_eq!(check_router(&router, n_experts), Ok(()));
    let are_whole = vectors.map(|vector| vector.len() == n_experts);
    assert!(
        are_whole.bias != Some(false) && are_whole.scales != Some(false),
        "a number for each expert"
    );
    let vectors = vectors.map(|vector| vector.address());
    let groups = router.groups.unwrap_or(ExpertGroups { n: 1, n_used: 1 });
    RouteParams {
        logits: logits.address(),
        seq_of_row: seq_of_row.address(),
        experts: routing.experts.address(),
        weights: routing.weights.address(),
        rows: routing.rows.address(),
        tokens: routing.tokens.address(),
        n_rows: routing.n_rows.address(),
        lists: routing.lists(),
        bias: vectors.bias.unwrap_or(Address::NULL),
        expert_scales: vectors.scales.unwrap_or(Address::NULL),
        gate: gate.map_or(Address::NULL, |gate| gate.address()),
        n_tokens: u32::try_from(n_tokens).expect("the number of rows fits 32 bits"),
        n_experts: n_experts as u32,
        n_used: router.n_used as u32,
        n_choices: routing.n_used as u32,
        scores: match router.scores {
            ExpertScores::Softmax => 0,
            ExpertScores::Sigmoid => 1,
            ExpertScores::SqrtSoftplus => 2,
        },
        normalized: u32::from(router.weights == ExpertWeights::Normalized),
        n_groups: groups.n as u32,
        n_groups_used: groups.n_used as u32,
        scale: router.scale,
        pad: 0,
    }
}

/// Whether a single token's experts can be chosen without groups, and without the sum over all scores, which probabilities
/// with a bias need first.
pub(super) fn is_simple(router: &Router, has_bias: bool) -> bool {
    router.groups.is_none() && (router.scores != ExpertScores::Softmax || !has_bias)
}

/// `out[row] = x[token of row]` in the form of `out`, for each row of `routing`; `x` [n_tokens, width]. Weights that
/// multiply inputs are applied. Unused rows keep their old values.
///
/// # Panics
/// If the shapes do not match.
pub fn quantize_experts(
    gpu: &Gpu,
    x: Slice<'_, f32>,
    (routing, weighed): (&Routing<'_>, Weighed),
    out: &Acts<'_>,
) -> Result<(), GpuError> {
    let width = out.width;
    assert_eq!(x.len(), routing.n_tokens * width, "[n_tokens, width]");
    assert_eq!(out.n_rows, routing.max_rows(), "one row per choice");
    if weighed == Weighed::Outputs
        && let Some(rows) = HalfRows::of_tokens(gpu, out, routing)
    {
        return rows.quantize_tokens(gpu, x);
    }
    let kernels = &gpu.kernels().experts;
    let kernel = match out.form {
        ActFormat::F32 => &kernels.quantize_rows_f32,
        ActFormat::Q8x32 => &kernels.quantize_rows_q8x32,
        ActFormat::Q8x256 => &kernels.quantize_rows_q8x256,
    };
    let params = QuantizeRowsParams {
        x: x.address(),
        tokens: routing.tokens.address(),
        n_rows: routing.n_rows.address(),
        rows: routing.rows.address(),
        weights: match weighed {
            Weighed::Inputs => routing.weights.address(),
            Weighed::Outputs => Address::NULL,
        },
        out: acts_out(out),
        width: width as u32,
        n_used: routing.n_used as u32,
        aligned: aligned(gpu, width, &[x.address(), out.values.address()]),
        pad: 0,
    };
    let n_blocks = width.div_ceil(ROW_THREADS * OCTET);
    let grid = [out.n_rows as u32, n_blocks as u32, 1];
    gpu.launch(kernel, grid, ROW_THREADS as u32, 0, &params)
}

/// Converts rows of experts, `x` [n_tokens * n_used, width], to the form of `out`. Unused rows may keep their old values.
///
/// # Panics
/// If the shapes do not match.
pub fn quantize_choices(
    gpu: &Gpu,
    x: Slice<'_, f32>,
    routing: &Routing<'_>,
    out: &Acts<'_>,
) -> Result<(), GpuError> {
    assert_eq!(x.len(), out.n_rows * out.width, "out has the shape of x");
    assert_eq!(out.n_rows, routing.max_rows(), "one row per choice");
    match HalfRows::new(gpu, out, Some(routing)) {
        Some(rows) => rows.quantize(gpu, x),
        None => quantize_alone(gpu, x, out),
    }
}

/// `out[token] (+)= sum(weight * x[row])` over the choices of each token, best first; `x` [n_tokens * n_used, width],
/// `out` [n_tokens, width]. Weights that multiply inputs count as 1. The sum of padding rows is 0.
///
/// # Panics
/// If the shapes do not match.
pub fn combine_experts(
    gpu: &Gpu,
    x: Slice<'_, f32>,
    (routing, weighed): (&Routing<'_>, Weighed),
    mode: OutMode,
    out: Slice<'_, f32>,
) -> Result<(), GpuError> {
    if routing.n_tokens == 0 {
        return Ok(());
    }
    let params = CombineParams::new(gpu, x, (routing, weighed), mode, out);
    let n_blocks = (params.width as usize).div_ceil(ROW_THREADS * QUAD);
    let grid = [routing.n_tokens as u32, n_blocks as u32, 1];
    let kernel = &gpu.kernels().experts.combine;
    gpu.launch(kernel, grid, ROW_THREADS as u32, 0, &params)
}

/// [`combine_experts`] that adds to `sum`, then [`rms_norm_quantize`](super::rms_norm_quantize) of it. One launch has a block
/// for each token. If the device does not run all of them at once, two launches take less time: 18 instead of 30 us for 512
/// tokens of qwen3-30b-a3b (H200).
///
/// # Panics
/// As both.
pub fn combine_and_norm(
    gpu: &Gpu,
    x: Slice<'_, f32>,
    experts: (&Routing<'_>, Weighed),
    sum: Slice<'_, f32>,
    norm: (Slice<'_, f32>, f32),
    (normed, out): (Option<Slice<'_, f32>>, &Acts<'_>),
) -> Result<(), GpuError> {
    let apart = || {
        let (weight, eps) = norm;
        combine_experts(gpu, x, experts, OutMode::Add, sum)?;
        rms_norm_quantize(gpu, sum, weight, eps, normed, out)
    };
    let n_tokens = experts.0.n_tokens;
    if n_tokens == 0 || !is_of_block(gpu, norm.0.len()) {
        return apart();
    }
    let params = CombineNormParams {
        combine: CombineParams::new(gpu, x, experts, OutMode::Add, sum),
        norm: rms_norm_params(gpu, sum, norm, normed, out),
    };
    if let Some(rows) = HalfRows::new(gpu, out, None) {
        return rows.combine_norm(gpu, params);
    }
    let kernels = &gpu.kernels().experts;
    let kernel = match out.form {
        ActFormat::F32 => &kernels.combine_norm_f32,
        ActFormat::Q8x32 => &kernels.combine_norm_q8x32,
        ActFormat::Q8x256 => &kernels.combine_norm_q8x256,
    };
    if n_tokens > gpu.n_concurrent_blocks(kernel, (BLOCK_THREADS, 0))? {
        return apart();
    }
    gpu.launch(kernel, [out.n_rows as u32, 1, 1], BLOCK_THREADS, 0, &params)
}

impl CombineParams {
    fn new(
        gpu: &Gpu,
        x: Slice<'_, f32>,
        (routing, weighed): (&Routing<'_>, Weighed),
        mode: OutMode,
        out: Slice<'_, f32>,
    ) -> CombineParams {
        assert!(
            out.len().is_multiple_of(routing.n_tokens),
            "out is not whole rows"
        );
        let width = out.len() / routing.n_tokens;
        assert_eq!(x.len(), routing.max_rows() * width, "one row per choice");
        CombineParams {
            x: x.address(),
            rows: routing.rows.address(),
            weights: match weighed {
                Weighed::Outputs => routing.weights.address(),
                Weighed::Inputs => Address::NULL,
            },
            out: out.address(),
            width: width as u32,
            n_used: routing.n_used as u32,
            add: u32::from(mode == OutMode::Add),
            aligned: aligned(gpu, width, &[x.address(), out.address()]),
        }
    }
}
