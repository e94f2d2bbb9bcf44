//! Hunyuan, recorded like Llama: norms of heads after the rotation, whose base grows with a factor `alpha`; a mixture
//! with a shared expert.

use rocmforge_plan::ExpertWeights;

use crate::error::LoadError;
use crate::experts::{experts, n_experts, n_ff, with_stated_shared};
use crate::facts::{Experts, FeedForward, KeyFacts, ModelConfig, RMS_EPS};
use crate::keys::Keys;

pub(crate) fn dense(keys: &Keys<'_>, family: &KeyFacts) -> Result<ModelConfig, LoadError> {
    // Files of dense models may count one expert.
    let n = n_experts(keys)?;
    if n > 1 {
        return Err(keys.unsupported(format!("a mixture of {n} experts")));
    }
    let dense = FeedForward::Dense { n_ff: n_ff(keys)? };
    let mut config = ModelConfig::read(keys, family, RMS_EPS, dense)?;
    let head_dim = config.layers.first().map_or(0, |layer| layer.k_dim) as f64;
    if let Some(alpha) = keys.positive_or_zero("rope.scaling.alpha")?
        && head_dim > 2.0
    {
        config.ropes[0].base *= alpha.powf(head_dim / (head_dim - 2.0));
    }
    Ok(config)
}

pub(crate) fn mixture(keys: &Keys<'_>, family: &KeyFacts) -> Result<ModelConfig, LoadError> {
    let n_ff = n_ff(keys)?;
    let experts = Experts {
        n_ff,
        ..experts(keys, ExpertWeights::Normalized)?
    };
    let experts = with_stated_shared(keys, experts, Some(n_ff))?;
    ModelConfig::read(keys, family, RMS_EPS, FeedForward::Mixture(experts))
}
