//! Arcee's Trinity (`afmoe`): scaled embeddings, norms before and after each block, a gate for each value of attention's
//! output, and experts after leading dense layers. Three of four layers have a window; the fourth does not rotate.

use rocmforge_plan::{Activation, ExpertScores, Value};

use crate::blocks::{attention, embeddings, feed_forward, last_norm, logits};
use crate::builder::Builder;
use crate::error::LoadError;
use crate::experts::{stated_experts, with_shared};
use crate::facts::{KeyFacts, ModelConfig};
use crate::families::mixtures::read_with_dense_lead;
use crate::keys::Keys;
use crate::windows::{set_windows, with_window_base};

/// Of as many layers the last does not rotate, wherever the windows are.
const PERIOD: usize = 4;

pub(crate) fn facts(keys: &Keys<'_>, family: &KeyFacts) -> Result<ModelConfig, LoadError> {
    let experts = stated_experts(keys, Some(ExpertScores::Sigmoid))?;
    let experts = with_shared(keys, experts, experts.n_ff)?;
    let mut config = read_with_dense_lead(keys, family, experts)?;
    let rope = with_window_base(keys, config.ropes[0])?;
    set_windows(keys, &mut config, rope, (None, PERIOD))?;
    for (i, layer) in config.layers.iter_mut().enumerate() {
        layer.gate = Some(Activation::Sigmoid);
        if i % PERIOD == PERIOD - 1 {
            layer.rope = None;
        }
    }
    config.scales.embedding = (config.n_embd as f64).sqrt();
    Ok(config)
}

pub(crate) fn record(m: &mut Builder<'_>) -> Result<Value, LoadError> {
    let eps = m.config.norm_eps;
    let mut x = embeddings(m, m.config.scales.embedding)?;
    for layer in m.config.layers() {
        m.begin_layer(x);
        let normed = m.rms_norm(x, &layer.tensor("attn_norm"), eps)?;
        let out = attention(m, layer, normed)?;
        let out = m.rms_norm(out, &layer.tensor("post_attention_norm"), eps)?;
        x = m.plan.add(out, x);
        let normed = m.rms_norm(x, &layer.tensor("ffn_norm"), eps)?;
        let out = feed_forward(m, layer, Activation::Silu, normed)?;
        let out = m.rms_norm(out, &layer.tensor("post_ffw_norm"), eps)?;
        x = m.plan.add(out, x);
    }
    let x = last_norm(m, x, "output_norm")?;
    logits(m, x, 1.0)
}
