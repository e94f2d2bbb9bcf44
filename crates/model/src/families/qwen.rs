//! Qwen 1.5 to 3, recorded like Llama: biases of Q, K and V (2) or norms of their heads (3), with and without experts.

use rocmforge_plan::ExpertWeights;

use crate::error::LoadError;
use crate::experts::{self, experts, n_ff};
use crate::facts::{Experts, FeedForward, KeyFacts, ModelConfig, RMS_EPS, SharedExpert};
use crate::keys::{Keys, MAX_DIM};

pub(crate) fn dense(keys: &Keys<'_>, family: &KeyFacts) -> Result<ModelConfig, LoadError> {
    ModelConfig::read(keys, family, RMS_EPS, experts::dense(keys)?)
}

pub(crate) fn mixture(keys: &Keys<'_>, family: &KeyFacts) -> Result<ModelConfig, LoadError> {
    let experts = experts(keys, ExpertWeights::Normalized)?;
    ModelConfig::read(keys, family, RMS_EPS, FeedForward::Mixture(experts))
}

pub(crate) fn mixture_with_shared_expert(
    keys: &Keys<'_>,
    family: &KeyFacts,
) -> Result<ModelConfig, LoadError> {
    let experts = experts(keys, ExpertWeights::Scores)?;
    let n_ff_shared = match keys.opt_size("expert_shared_feed_forward_length", MAX_DIM)? {
        Some(width) => width,
        None => n_ff(keys)?,
    };
    let experts = Experts {
        shared: Some(SharedExpert {
            n_ff: n_ff_shared,
            is_gated: true,
        }),
        ..experts
    };
    ModelConfig::read(keys, family, RMS_EPS, FeedForward::Mixture(experts))
}
