//! Kimi Linear and Ling 3: gated delta nets with a decay of each channel, and latent attention in some layers; some dense
//! layers, then mixtures of experts with a shared one. The layers of Kimi Linear do not rotate.

use rocmforge_gguf::Value as Number;
use rocmforge_plan::{Activation, ExpertWeights, RopeStyle};

use crate::error::LoadError;
use crate::experts::{lead_with_dense, stated_experts, with_shared, with_stated_shared};
use crate::facts::{Experts, FeedForward, KeyFacts, ModelConfig, RMS_EPS, scale_of_width};
use crate::families::deepseek2::set_latent;
use crate::keys::Keys;
use crate::recurrent::{ChannelDecay, Recurrent, channel_layer, set_recurrent};

pub(crate) fn facts(keys: &Keys<'_>, family: &KeyFacts) -> Result<ModelConfig, LoadError> {
    let mut experts = stated_experts(keys, None)?;
    experts.router.weights = ExpertWeights::Normalized;
    let experts = with_shared(keys, experts, experts.n_ff)?;
    let mut config = read(keys, family, experts, ChannelDecay::Softplus)?;
    for layer in &mut config.layers {
        layer.rope = None;
    }
    Ok(config)
}

/// Ling 3 (`bailingmoe3`), whose latent attention has a gate for each head.
pub(crate) fn ling3(keys: &Keys<'_>, family: &KeyFacts) -> Result<ModelConfig, LoadError> {
    const BOUND: &str = "kda.gate_lower_bound";
    if keys.meta.opt_bool(&keys.key("kda.safe_gate"))? == Some(false) {
        return Err(keys.unsupported("a decay without a lower bound"));
    }
    let bound = keys.meta.f32(&keys.key(BOUND))?;
    if !(bound.is_finite() && bound < 0.0) {
        return Err(keys.bad(BOUND, bound, "less than 0"));
    }
    let experts = stated_experts(keys, None)?;
    let of_all = with_shared(keys, experts, experts.n_ff)?.shared;
    let n_ff_shared = of_all.map_or(experts.n_ff, |shared| shared.n_ff);
    let experts = with_stated_shared(keys, experts, Some(n_ff_shared))?;
    let mut config = read(keys, family, experts, ChannelDecay::Bounded(bound))?;
    // Sections of a head, which vision models have, all rotate by the position of the token in a text.
    if let Some(Number::Array(sections)) = keys.meta.get(&keys.key("rope.dimension_sections")) {
        let is_there = |section: Number<'_>| section.as_int().is_some_and(|n| n > 0);
        if sections.iter().take(2).filter(|n| is_there(*n)).count() == 2 {
            config.ropes[0].style = RopeStyle::Neox;
        }
    }
    let n_blocks = config.n_layers() + config.n_nextn;
    let limits = |key| keys.positives_or_zeros(key, n_blocks);
    let of_experts = limits("swiglu_clamp_exp")?;
    let of_networks = limits("swiglu_clamp_shexp")?;
    for (index, layer) in config.layers.iter_mut().enumerate() {
        layer.gate = Some(Activation::Sigmoid);
        layer.limit = of_networks[index];
        if let FeedForward::Mixture(experts) = &mut layer.feed_forward {
            experts.limit = of_experts[index];
        }
    }
    Ok(config)
}

/// Reads what both have. Layers without heads of K and V are recurrent.
fn read(
    keys: &Keys<'_>,
    family: &KeyFacts,
    experts: Experts,
    decay: ChannelDecay,
) -> Result<ModelConfig, LoadError> {
    let feed_forward = FeedForward::Mixture(experts);
    let (mut config, heads) = ModelConfig::read_with_zeros(keys, (family, RMS_EPS), feed_forward)?;
    lead_with_dense(keys, &mut config)?;
    set_latent(keys, &mut config)?;
    for layer in &mut config.layers {
        layer.scores.scale = scale_of_width(layer.k_dim);
    }
    let linear = channel_layer(keys, config.layers[0].n_heads)?;
    let recurrent = Recurrent::ChannelDelta(linear, decay);
    set_recurrent(&mut config, recurrent, |layer| heads[layer][1] == 0);
    Ok(config)
}
