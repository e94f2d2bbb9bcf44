//! Products of heads with matrices of their own: rows sorted by head, as those of experts, and back
//! (`kernels/heads.hip`).

use super::norm::{ActsOut, OCTET, acts_out, aligned};
use super::routing::buffer::{MAX_EXPERTS, Routing, TileList};
use crate::error::GpuError;
use crate::gpu::Gpu;
use crate::kernel::{kernels, layout};
use crate::limit::Limit;
use crate::memory::{Address, Slice};
use crate::operands::{ActFormat, Acts};
use crate::variant::Variant;

const THREADS: usize = 256;
/// Values that a thread of `join_heads` handles.
const QUAD: usize = 4;

#[repr(C)]
#[derive(Clone, Copy)]
struct SplitHeadsParams {
    x: Address,
    out: ActsOut,
    lists: [TileList; 3],
    n_tokens: u32,
    n_heads: u32,
    head_dim: u32,
    start: u32,
    width: u32,
    aligned: u32,
}

layout!(SplitHeadsParams {
    x,
    out,
    lists,
    n_tokens,
    n_heads,
    head_dim,
    start,
    width,
    aligned
});

#[repr(C)]
#[derive(Clone, Copy)]
struct JoinHeadsParams {
    x: Address,
    rest: Address,
    out: Address,
    n_tokens: u32,
    n_heads: u32,
    width: u32,
    rest_dim: u32,
    out_dim: u32,
    aligned: u32,
}

layout!(JoinHeadsParams {
    x,
    rest,
    out,
    n_tokens,
    n_heads,
    width,
    rest_dim,
    out_dim,
    aligned
});

kernels! {
    struct HeadsKernels {
        split_heads_f32: SplitHeadsParams,
        split_heads_q8x32: SplitHeadsParams,
        split_heads_q8x256: SplitHeadsParams,
        join_heads: JoinHeadsParams,
    }
}

/// Checks that there are kernels for products of `n_heads` heads with matrices of their own.
pub fn check_split(n_heads: usize) -> Result<(), Limit> {
    Limit::check((1..=MAX_EXPERTS).contains(&n_heads), n_heads, || {
        format!("1 to {MAX_EXPERTS} heads with matrices of their own")
    })
}

/// `out[head, token] = x[token, head]` in the form of `out`: as many values of each head as `out` is wide, from `start`
/// on; `x` [n_tokens, n_heads * head_dim]. Also makes `routing` that of every token to every head, as far as
/// [`super::expert_products`] needs it.
///
/// # Panics
/// If the shapes do not match, or the routing is not of all experts.
pub fn quantize_heads(
    gpu: &Gpu,
    x: Slice<'_, f32>,
    start: usize,
    routing: &Routing<'_>,
    out: &Acts<'_>,
) -> Result<(), GpuError> {
    let Routing {
        n_tokens,
        n_experts: n_heads,
        n_used,
        ..
    } = *routing;
    assert_eq!(n_used, n_heads, "all heads of each token");
    assert_eq!(out.n_rows, routing.max_rows(), "one row per token and head");
    if n_tokens == 0 {
        return Ok(());
    }
    assert!(x.len().is_multiple_of(out.n_rows), "x is whole heads");
    let (width, head_dim) = (out.width, x.len() / out.n_rows);
    assert!(start + width <= head_dim, "the values are in a head");
    let are_octets = [width, start, head_dim]
        .iter()
        .all(|n| n.is_multiple_of(OCTET));
    let params = SplitHeadsParams {
        x: x.address(),
        out: acts_out(out),
        lists: routing.lists(),
        n_tokens: n_tokens as u32,
        n_heads: n_heads as u32,
        head_dim: head_dim as u32,
        start: start as u32,
        width: width as u32,
        aligned: match are_octets {
            true => aligned(gpu, width, &[x.address(), out.values.address()]),
            false => 0,
        },
    };
    let kernels = &gpu.kernels().heads;
    let kernel = match out.form {
        ActFormat::F32 => &kernels.split_heads_f32,
        ActFormat::Q8x32 => &kernels.split_heads_q8x32,
        ActFormat::Q8x256 => &kernels.split_heads_q8x256,
    };
    let n_blocks = width.div_ceil(THREADS * OCTET);
    let grid = [out.n_rows as u32, n_blocks as u32, 1];
    gpu.launch(kernel, grid, THREADS as u32, 0, &params)
}

/// `out[token, head] = x[head, token]`, followed by as many of the last values of `rest[token, head]` as fill the head:
/// `x` [n_heads, n_tokens, width], `rest` [n_tokens, n_heads * rest_dim], `out` [n_tokens, n_heads * out_dim].
///
/// # Panics
/// If the shapes do not match.
pub fn join_heads(
    gpu: &Gpu,
    [n_heads, n_tokens]: [usize; 2],
    x: Slice<'_, f32>,
    rest: Option<Slice<'_, f32>>,
    out: Slice<'_, f32>,
) -> Result<(), GpuError> {
    let n_rows = n_heads * n_tokens;
    if n_rows == 0 {
        return Ok(());
    }
    let width_of = |values: Slice<'_, f32>| {
        assert!(values.len().is_multiple_of(n_rows), "whole heads");
        values.len() / n_rows
    };
    let (width, out_dim) = (width_of(x), width_of(out));
    let rest_dim = rest.map_or(0, width_of);
    assert!(
        width <= out_dim && out_dim - width <= rest_dim,
        "heads of {out_dim} values from {width} and {rest_dim}"
    );
    let rest = rest.map_or(Address::NULL, |rest| rest.address());
    let is_aligned = [width, rest_dim, out_dim]
        .iter()
        .all(|n| n.is_multiple_of(QUAD))
        && [x.address(), rest, out.address()]
            .iter()
            .all(|address| address.is_aligned_to(16))
        && !gpu.takes(Variant::LoadsNarrow);
    let params = JoinHeadsParams {
        x: x.address(),
        rest,
        out: out.address(),
        n_tokens: n_tokens as u32,
        n_heads: n_heads as u32,
        width: width as u32,
        rest_dim: rest_dim as u32,
        out_dim: out_dim as u32,
        aligned: u32::from(is_aligned),
    };
    let n_blocks = out_dim.div_ceil(THREADS * QUAD);
    let grid = [n_rows as u32, n_blocks as u32, 1];
    let kernel = &gpu.kernels().heads.join_heads;
    gpu.launch(kernel, grid, THREADS as u32, 0, &params)
}
