//! SmallThinker: the router reads the residual stream before the norm of attention, experts have a gate with ReLU, and
//! all but the first of every four layers have windows; only these rotate.

use rocmforge_plan::{Activation, ExpertWeights, Mask, Value};

use crate::blocks::{attention, chosen_experts, embeddings, logits, routing};
use crate::builder::Builder;
use crate::error::LoadError;
use crate::experts::stated_experts;
use crate::facts::{FeedForward, KeyFacts, ModelConfig, RMS_EPS};
use crate::keys::{Keys, MAX_DIM};
use crate::windows::{set_windows_after_first, with_window_base};

/// The width of windows: llama.cpp ignores that of the file.
const WINDOW: u32 = 4096;

/// The first of so many layers has no window.
const PERIOD: usize = 4;

pub(crate) fn facts(keys: &Keys<'_>, family: &KeyFacts) -> Result<ModelConfig, LoadError> {
    let mut experts = stated_experts(keys, None)?;
    experts.n_ff = keys.size("expert_feed_forward_length", MAX_DIM)?;
    experts.router.weights = ExpertWeights::Normalized;
    experts.router.scale = 1.0;
    let mut config = ModelConfig::read(keys, family, RMS_EPS, FeedForward::Mixture(experts))?;
    let in_window = with_window_base(keys, config.ropes[0])?;
    set_windows_after_first(keys, &mut config, in_window, PERIOD)?;
    let window = keys.opt_count("attention.sliding_window", u32::MAX as usize)?;
    if window.is_none_or(|window| window == 0) {
        return Ok(config);
    }
    for (index, layer) in config.layers.iter_mut().enumerate() {
        if let Mask::Window(_) = layer.mask {
            layer.mask = Mask::Window(WINDOW);
        }
        if index.is_multiple_of(PERIOD) {
            layer.rope = None;
        }
    }
    Ok(config)
}

pub(crate) fn record(m: &mut Builder<'_>) -> Result<Value, LoadError> {
    let eps = m.config.norm_eps;
    let mut x = embeddings(m, 1.0)?;
    for layer in m.config.layers() {
        m.plan.begin_layer();
        let FeedForward::Mixture(experts) = &layer.facts.feed_forward else {
            unreachable!("every layer has experts");
        };
        let chosen = routing(m, layer, experts, x)?;
        let normed = m.rms_norm(x, &layer.tensor("attn_norm"), eps)?;
        let out = attention(m, layer, normed)?;
        x = m.plan.add(out, x);
        let normed = m.rms_norm(x, &layer.tensor("ffn_norm"), eps)?;
        let out = chosen_experts(m, layer, (Activation::Relu, experts), (chosen, normed))?;
        x = m.plan.add(out, x);
    }
    let x = m.plan.select_rows(x);
    let x = m.rms_norm(x, "output_norm", eps)?;
    logits(m, x, 1.0)
}
