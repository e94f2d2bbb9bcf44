//! Families that differ from Llama in their mixtures of experts: what their files say about these.

use rocmforge_plan::{ExpertScores, ExpertWeights};

use crate::error::LoadError;
use crate::experts::{
    experts, lead_with_dense, make_unrouted_dense, n_ff, stated_experts, with_shared,
    with_stated_shared,
};
use crate::facts::{Experts, FeedForward, KeyFacts, ModelConfig, RMS_EPS};
use crate::keys::{Keys, MAX_DIM, MAX_LAYERS};

/// DeepSeek (first version).
pub(crate) fn deepseek(keys: &Keys<'_>, family: &KeyFacts) -> Result<ModelConfig, LoadError> {
    let experts = experts(keys, ExpertWeights::Scores)?;
    let experts = with_shared(keys, experts, experts.n_ff)?;
    read_with_dense_lead(keys, family, experts)
}

/// OLMoE.
pub(crate) fn olmoe(keys: &Keys<'_>, family: &KeyFacts) -> Result<ModelConfig, LoadError> {
    let experts = Experts {
        // Its files state the width of each expert here.
        n_ff: n_ff(keys)?,
        ..experts(keys, ExpertWeights::Scores)?
    };
    ModelConfig::read(keys, family, RMS_EPS, FeedForward::Mixture(experts))
}

/// The text part of DeepSeek OCR. Its rotation is never scaled.
pub(crate) fn deepseek_ocr(keys: &Keys<'_>, family: &KeyFacts) -> Result<ModelConfig, LoadError> {
    let experts = stated_experts(keys, Some(ExpertScores::Softmax))?;
    let experts = with_shared(keys, experts, experts.n_ff)?;
    let mut config = read_with_dense_lead(keys, family, experts)?;
    config.ropes[0] = config.ropes[0].unscaled();
    Ok(config)
}

/// GLM 4.5 to 4.7.
pub(crate) fn glm4moe(keys: &Keys<'_>, family: &KeyFacts) -> Result<ModelConfig, LoadError> {
    let experts = stated_experts(keys, Some(ExpertScores::Sigmoid))?;
    let experts = with_shared(keys, experts, experts.n_ff)?;
    read_with_dense_lead(keys, family, experts)
}

/// dots.llm1.
pub(crate) fn dots1(keys: &Keys<'_>, family: &KeyFacts) -> Result<ModelConfig, LoadError> {
    let experts = stated_experts(keys, None)?;
    let experts = with_shared(keys, experts, experts.n_ff)?;
    read_with_dense_lead(keys, family, experts)
}

/// MiniMax M2.
pub(crate) fn minimax_m2(keys: &Keys<'_>, family: &KeyFacts) -> Result<ModelConfig, LoadError> {
    let mut experts = stated_experts(keys, None)?;
    experts.router.weights = ExpertWeights::Normalized;
    ModelConfig::read(keys, family, RMS_EPS, FeedForward::Mixture(experts))
}

/// Ling 1 (`bailingmoe`).
pub(crate) fn bailingmoe(keys: &Keys<'_>, family: &KeyFacts) -> Result<ModelConfig, LoadError> {
    let mut experts = stated_experts(keys, Some(ExpertScores::Softmax))?;
    experts.router.scores = ExpertScores::Softmax;
    let experts = with_shared(keys, experts, experts.n_ff)?;
    ModelConfig::read(keys, family, RMS_EPS, FeedForward::Mixture(experts))
}

/// Ling 2 and Ring 2 (`bailingmoe2`).
pub(crate) fn bailingmoe2(keys: &Keys<'_>, family: &KeyFacts) -> Result<ModelConfig, LoadError> {
    let experts = stated_experts(keys, None)?;
    let shared = keys.opt_count("expert_shared_feed_forward_length", MAX_DIM)?;
    let n_ff = shared.filter(|&n_ff| n_ff > 0).unwrap_or(experts.n_ff);
    let experts = with_shared(keys, experts, n_ff)?;
    read_with_dense_lead(keys, family, experts)
}

/// ERNIE 4.5 with experts.
pub(crate) fn ernie(keys: &Keys<'_>, family: &KeyFacts) -> Result<ModelConfig, LoadError> {
    let experts = experts(keys, ExpertWeights::Normalized)?;
    let experts = with_stated_shared(keys, experts, None)?;
    match keys.size("interleave_moe_layer_step", MAX_LAYERS)? {
        1 => read_with_dense_lead(keys, family, experts),
        step => Err(keys.unsupported(format!("experts in every {step} layers"))),
    }
}

/// Hunyuan 3 (`hy_v3`). Layers without a router are dense.
pub(crate) fn hy_v3(keys: &Keys<'_>, family: &KeyFacts) -> Result<ModelConfig, LoadError> {
    let experts = stated_experts(keys, Some(ExpertScores::Sigmoid))?;
    let experts = with_stated_shared(keys, experts, Some(experts.n_ff))?;
    let mut config = ModelConfig::read(keys, family, RMS_EPS, FeedForward::Mixture(experts))?;
    make_unrouted_dense(keys, &mut config)?;
    Ok(config)
}

/// Reads a model whose first layers have networks instead of experts.
pub(crate) fn read_with_dense_lead(
    keys: &Keys<'_>,
    family: &KeyFacts,
    experts: Experts,
) -> Result<ModelConfig, LoadError> {
    let mut config = ModelConfig::read(keys, family, RMS_EPS, FeedForward::Mixture(experts))?;
    lead_with_dense(keys, &mut config)?;
    Ok(config)
}
