//! Checks a plan against the limits of the GPU kernels before anything is allocated: a file may contain any lengths and
//! a request any number of rows.

use rocmforge_gpu::{Gpu, KvShape, Limit, ops};

use super::{bucket, kv_types};
use crate::config::EngineConfig;
use crate::error::{ConfigError, RuntimeError};
use rocmforge_plan::{Op, Plan};

/// Checks that `gpu` can run `plan` in steps of `max_tokens` tokens and `max_logits` rows of logits, with the KV cache
/// of `config`.
///
/// # Errors
/// [`ConfigError::GpuLimit`], [`ConfigError::GpuKvType`].
pub(crate) fn check(
    gpu: &Gpu,
    plan: &Plan,
    config: &EngineConfig,
    [max_tokens, max_logits]: [usize; 2],
) -> Result<(), RuntimeError> {
    let types = kv_types(config.kv_types)?;
    // Decode steps are padded to the size of a graph.
    let padded = bucket(config.max_seqs);
    let [max_tokens, max_logits] = [max_tokens, max_logits].map(|n| n.max(padded));
    check_plan(gpu, plan, [max_tokens, max_logits], |layer| {
        let spec = &plan.kv[layer];
        KvShape {
            types,
            n_blocks: 0,
            n_kv_heads: spec.n_kv_heads,
            page: config.page,
            k_dim: spec.k_dim,
            v_dim: spec.v_dim,
            values: spec.values,
        }
    })
    .map_err(|limit| ConfigError::GpuLimit(limit).into())
}

fn check_plan(
    gpu: &Gpu,
    plan: &Plan,
    [max_tokens, max_logits]: [usize; 2],
    cache: impl Fn(usize) -> KvShape,
) -> Result<(), Limit> {
    ops::check_rows(max_tokens)?;
    ops::check_rows(max_logits)?;
    for op in &plan.ops {
        match *op {
            Op::Attention { layer, n_heads, .. } => cache(layer).check(gpu, n_heads)?,
            Op::Route {
                logits, ref router, ..
            } => {
                let n_experts = plan.buffers[logits.0 as usize].width;
                ops::check_router(router, n_experts)?;
                if let Some([n_experts, n_used, _]) = op.routing_shape(&plan.buffers) {
                    ops::check_experts([n_experts, n_used])?;
                }
            }
            Op::HeadMatMul { n_heads, .. } => ops::check_split(n_heads)?,
            Op::LinearAttention {
                ref heads, decay, ..
            } => ops::check_linear_heads(heads, decay)?,
            _ => {}
        }
    }
    let buffers = plan.buffers.iter().map(|info| (info.rows, info.width));
    let acts = plan.acts.iter().map(|info| (info.rows, info.width));
    for (rows, width) in buffers.chain(acts) {
        ops::check_values(rows.rows(max_tokens, max_logits).saturating_mul(width))?;
    }
    Ok(())
}
