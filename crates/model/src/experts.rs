//! What the metadata says about the second half of a layer: a feed-forward network, or a mixture of experts.

use rocmforge_plan::{ExpertWeights, Router};

use crate::error::LoadError;
use crate::facts::{Experts, FeedForward};
use crate::keys::{Keys, MAX_DIM, MAX_EXPERTS};

/// Returns the number of experts in the file; 0 for a dense model.
pub(crate) fn n_experts(keys: &Keys<'_>) -> Result<u64, LoadError> {
    Ok(keys.meta.opt_u64(&keys.key("expert_count"))?.unwrap_or(0))
}

/// Reads the width of a feed-forward network.
pub(crate) fn n_ff(keys: &Keys<'_>) -> Result<usize, LoadError> {
    keys.size("feed_forward_length", MAX_DIM)
}

/// Reads the feed-forward network of a family without experts.
pub(crate) fn dense(keys: &Keys<'_>) -> Result<FeedForward, LoadError> {
    match n_experts(keys)? {
        0 => Ok(FeedForward::Dense { n_ff: n_ff(keys)? }),
        n => Err(keys.unsupported(format!("a mixture of {n} experts"))),
    }
}

/// Reads the mixture of experts, without a shared one.
pub(crate) fn experts(keys: &Keys<'_>, weights: ExpertWeights) -> Result<Experts, LoadError> {
    const USED: &str = "expert_used_count";
    let n_experts = keys.size("expert_count", MAX_EXPERTS)?;
    let n_used = keys.meta.u64(&keys.key(USED))?;
    let n_used = usize::try_from(n_used)
        .ok()
        .filter(|n| (1..=n_experts).contains(n))
        .ok_or_else(|| keys.bad(USED, n_used, "at least 1 and at most the number of experts"))?;
    let n_groups = keys.opt_size("expert_group_count", MAX_EXPERTS)?;
    if n_groups.is_some_and(|n| n > 1) {
        return Err(keys.unsupported("groups of experts"));
    }
    // Qwen files without the key divide the width of the feed-forward network among the used experts.
    let n_ff = match keys.opt_size("expert_feed_forward_length", MAX_DIM)? {
        Some(width) => width,
        None => (n_ff(keys)? / n_used).max(1),
    };
    Ok(Experts {
        n_experts,
        n_ff,
        router: Router {
            n_used,
            weights,
            scale: keys
                .positive_or_zero("expert_weights_scale")?
                .unwrap_or(1.0) as f32,
        },
        n_ff_shared: None,
    })
}
