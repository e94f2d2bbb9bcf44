//! What the metadata says about the second half of a layer: a feed-forward network, or a mixture of experts.

use rocmforge_plan::{ExpertGroups, ExpertScores, ExpertWeights, Router, Weighed};

use crate::error::LoadError;
use crate::facts::{Experts, FeedForward, ModelConfig, SharedExpert};
use crate::keys::{Keys, MAX_DIM, MAX_EXPERTS, MAX_LAYERS};

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

/// Reads the mixture of experts, without a shared one, with a softmax over the experts.
pub(crate) fn experts(keys: &Keys<'_>, weights: ExpertWeights) -> Result<Experts, LoadError> {
    const USED: &str = "expert_used_count";
    let n_experts = keys.size("expert_count", MAX_EXPERTS)?;
    let n_used = keys.meta.u64(&keys.key(USED))?;
    let n_used = usize::try_from(n_used)
        .ok()
        .filter(|n| (1..=n_experts).contains(n))
        .ok_or_else(|| keys.bad(USED, n_used, "at least 1 and at most the number of experts"))?;
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
            scores: ExpertScores::Softmax,
            weights,
            groups: groups(keys, [n_experts, n_used])?,
            scale: keys
                .positive_or_zero("expert_weights_scale")?
                .unwrap_or(1.0) as f32,
        },
        weighed: Weighed::Outputs,
        limit: None,
        n_latent: None,
        shared: None,
    })
}

/// Reads the groups of experts; a single one is none.
fn groups(
    keys: &Keys<'_>,
    [n_experts, n_used]: [usize; 2],
) -> Result<Option<ExpertGroups>, LoadError> {
    const COUNT: &str = "expert_group_count";
    const USED: &str = "expert_group_used_count";
    let n = keys.opt_count(COUNT, MAX_EXPERTS)?.unwrap_or(0);
    if n <= 1 {
        return Ok(None);
    }
    if !n_experts.is_multiple_of(n) || n_experts == n {
        return Err(keys.bad(COUNT, n, "groups of at least two experts, of equal size"));
    }
    let n_groups_used = keys.size(USED, MAX_EXPERTS)?;
    if n_groups_used > n || n_experts / n * n_groups_used < n_used {
        return Err(keys.bad(USED, n_groups_used, "groups with all experts of a token"));
    }
    Ok(Some(ExpertGroups {
        n,
        n_used: n_groups_used,
    }))
}

/// As [`experts`], with scores and weights as the file states them; scores are `default` if it does not.
pub(crate) fn stated_experts(
    keys: &Keys<'_>,
    default: Option<ExpertScores>,
) -> Result<Experts, LoadError> {
    const KEY: &str = "expert_gating_func";
    let normalized = keys.meta.opt_bool(&keys.key("expert_weights_norm"))?;
    let weights = match normalized {
        Some(true) => ExpertWeights::Normalized,
        Some(false) | None => ExpertWeights::Scores,
    };
    let stated = keys.opt_count(KEY, u32::MAX as usize)?;
    let (scores, weights) = match (stated.filter(|&kind| kind != 0), default) {
        (None, Some(scores)) => (scores, weights),
        (None, None) => return Err(keys.bad(KEY, "missing", "a kind of router scores")),
        (Some(1), _) => (ExpertScores::Softmax, weights),
        (Some(2), _) => (ExpertScores::Sigmoid, weights),
        // A softmax over the chosen experts.
        (Some(3), _) => (ExpertScores::Softmax, ExpertWeights::Normalized),
        (Some(4), _) => (ExpertScores::SqrtSoftplus, weights),
        (Some(kind), _) => return Err(keys.unsupported(format!("router scores of kind {kind}"))),
    };
    let mut experts = experts(keys, weights)?;
    experts.router.scores = scores;
    Ok(experts)
}

/// Adds the shared experts of the file, which are one wider network, each of `n_ff` values. The error names the missing
/// number of them.
pub(crate) fn with_shared(
    keys: &Keys<'_>,
    experts: Experts,
    n_ff: usize,
) -> Result<Experts, LoadError> {
    const COUNT: &str = "expert_shared_count";
    let count = keys.opt_count(COUNT, MAX_EXPERTS)?;
    let count = count.ok_or_else(|| keys.bad(COUNT, "missing", "a number of shared experts"))?;
    Ok(Experts {
        shared: (count > 0).then_some(SharedExpert {
            n_ff: n_ff.saturating_mul(count),
            is_gated: false,
        }),
        ..experts
    })
}

/// Adds a shared expert of the stated width, if the file has one; else of width `default`. A width of zero is none.
pub(crate) fn with_stated_shared(
    keys: &Keys<'_>,
    experts: Experts,
    default: Option<usize>,
) -> Result<Experts, LoadError> {
    let stated = keys.opt_count("expert_shared_feed_forward_length", MAX_DIM)?;
    let n_ff = stated.filter(|&n_ff| n_ff > 0).or(default);
    let n_ff = n_ff.filter(|&n_ff| n_ff > 0);
    Ok(Experts {
        shared: n_ff.map(|n_ff| SharedExpert {
            n_ff,
            is_gated: false,
        }),
        ..experts
    })
}

/// Gives the first layers, as many as the file states, dense networks.
pub(crate) fn lead_with_dense(keys: &Keys<'_>, config: &mut ModelConfig) -> Result<(), LoadError> {
    let n = keys.opt_count("leading_dense_block_count", MAX_LAYERS)?;
    make_dense(keys, config, |layer| layer < n.unwrap_or(0))
}

/// Gives the layers without a router dense networks.
pub(crate) fn make_unrouted_dense(
    keys: &Keys<'_>,
    config: &mut ModelConfig,
) -> Result<(), LoadError> {
    make_dense(keys, config, |layer| {
        let router = format!("blk.{layer}.ffn_gate_inp.weight");
        keys.gguf.tensor(&router).is_none()
    })
}

/// Gives the layers that `is_dense` selects dense networks.
pub(crate) fn make_dense(
    keys: &Keys<'_>,
    config: &mut ModelConfig,
    is_dense: impl Fn(usize) -> bool,
) -> Result<(), LoadError> {
    for (i, layer) in config.layers.iter_mut().enumerate() {
        if is_dense(i) {
            layer.feed_forward = FeedForward::Dense { n_ff: n_ff(keys)? };
        }
    }
    Ok(())
}
