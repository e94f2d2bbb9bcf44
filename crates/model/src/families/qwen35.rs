//! Qwen3-Next and Qwen 3.5 to 3.8, recorded like Seed-OSS: gated delta nets in most layers, and in the others attention
//! whose output has a gate; with and without experts.

use rocmforge_gguf::Value as Number;
use rocmforge_plan::{Activation, ExpertWeights, KeySharing};

use crate::error::LoadError;
use crate::experts::{self, experts};
use crate::facts::{Experts, FeedForward, KeyFacts, ModelConfig, RMS_EPS, SharedExpert};
use crate::keys::{Keys, MAX_DIM, MAX_LAYERS};
use crate::recurrent::{Recurrent, linear_layer, set_recurrent};

/// The last layer of each so many has attention, if the file does not say which ones.
const INTERVAL: usize = 4;

pub(crate) fn dense(keys: &Keys<'_>, family: &KeyFacts) -> Result<ModelConfig, LoadError> {
    read(keys, family, experts::dense(keys)?, KeySharing::Strided)
}

pub(crate) fn mixture(keys: &Keys<'_>, family: &KeyFacts) -> Result<ModelConfig, LoadError> {
    let experts = with_gated_expert(keys)?;
    read(keys, family, experts, KeySharing::Strided)
}

pub(crate) fn next(keys: &Keys<'_>, family: &KeyFacts) -> Result<ModelConfig, LoadError> {
    let experts = with_gated_expert(keys)?;
    read(keys, family, experts, KeySharing::Neighbours)
}

/// Reads the mixture, whose shared expert has a gate.
fn with_gated_expert(keys: &Keys<'_>) -> Result<FeedForward, LoadError> {
    let experts = experts(keys, ExpertWeights::Normalized)?;
    let stated = keys.opt_count("expert_shared_feed_forward_length", MAX_DIM)?;
    let n_ff = match stated.filter(|&n_ff| n_ff > 0) {
        Some(n_ff) => n_ff,
        None => experts::n_ff(keys)?,
    };
    Ok(FeedForward::Mixture(Experts {
        shared: Some(SharedExpert {
            n_ff,
            is_gated: true,
        }),
        ..experts
    }))
}

fn read(
    keys: &Keys<'_>,
    family: &KeyFacts,
    feed_forward: FeedForward,
    sharing: KeySharing,
) -> Result<ModelConfig, LoadError> {
    let linear = linear_layer(keys, sharing)?;
    if linear.heads.k_dim != linear.heads.v_dim {
        let wanted = "the values of a head, `ssm.inner_size / ssm.time_step_rank`";
        return Err(keys.bad("ssm.state_size", linear.heads.k_dim, wanted));
    }
    let mut config = ModelConfig::read(keys, family, RMS_EPS, feed_forward)?;
    for layer in &mut config.layers {
        // The queries of a head have as many gates as values.
        if layer.v_dim != layer.k_dim {
            let wanted = "the length of keys";
            return Err(keys.bad("attention.value_length", layer.v_dim, wanted));
        }
        layer.gate = Some(Activation::Sigmoid);
        layer.has_gates_in_q = true;
    }
    let n_blocks = config.n_layers() + config.n_nextn;
    let is_recurrent = recurrent_layers(keys, n_blocks)?;
    let recurrent = Recurrent::GatedDelta(linear);
    // Layers that predict further tokens ahead have attention.
    let n_of_text = n_blocks - keys.n_nextn()?;
    set_recurrent(&mut config, recurrent, |layer| {
        layer < n_of_text && is_recurrent[layer]
    });
    Ok(config)
}

/// Returns which of the file's layers are recurrent.
fn recurrent_layers(keys: &Keys<'_>, n_layers: usize) -> Result<Vec<bool>, LoadError> {
    const LISTED: &str = "attention.recurrent_layers";
    let wanted = "true or false for each layer";
    match keys.meta.get(&keys.key(LISTED)) {
        None => {
            let interval = keys.opt_size("full_attention_interval", MAX_LAYERS)?;
            let interval = interval.unwrap_or(INTERVAL);
            Ok((1..=n_layers)
                .map(|n| !n.is_multiple_of(interval))
                .collect())
        }
        Some(Number::Bool(all)) => Ok(vec![all; n_layers]),
        Some(Number::Array(list)) if list.len() == n_layers => {
            let number = |value: Number<'_>| match value {
                Number::Bool(is_recurrent) => Some(is_recurrent),
                value => value.as_int().map(|n| n != 0),
            };
            let listed: Option<Vec<bool>> = list.iter().map(number).collect();
            listed.ok_or_else(|| keys.bad(LISTED, "another kind of list", wanted))
        }
        Some(_) => Err(keys.bad(LISTED, "another value", wanted)),
    }
}
