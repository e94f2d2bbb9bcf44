//! MiMo 2: keys wider than values, heads that differ between layers with and without a window, sinks in some layers, a
//! factor on attention's output, and experts after leading dense layers.

use rocmforge_plan::{Activation, ExpertScores, ExpertWeights, Factor, Value};

use crate::blocks::{attention, embeddings, feed_forward, last_norm, logits};
use crate::builder::Builder;
use crate::error::LoadError;
use crate::experts::{experts, make_unrouted_dense};
use crate::facts::{FeedForward, KeyFacts, ModelConfig, RMS_EPS};
use crate::keys::Keys;
use crate::rope::Rope;
use crate::windows::{require_pattern, require_window, set_windows};

pub(crate) fn facts(keys: &Keys<'_>, family: &KeyFacts) -> Result<ModelConfig, LoadError> {
    let mut experts = experts(keys, ExpertWeights::Normalized)?;
    experts.router.scores = ExpertScores::Sigmoid;
    experts.router.scale = 1.0;
    let mut config = ModelConfig::read(keys, family, RMS_EPS, FeedForward::Mixture(experts))?;
    make_unrouted_dense(keys, &mut config)?;
    let in_window = Rope {
        base: keys.positive("rope.freq_base_swa")?.unwrap_or(10_000.0),
        ..config.ropes[0].unscaled()
    };
    require_window(keys)?;
    require_pattern(keys)?;
    set_windows(keys, &mut config, in_window, (None, 1))?;
    for (index, layer) in config.layers.iter_mut().enumerate() {
        let sinks = format!("blk.{index}.attn_sinks.weight");
        layer.has_sinks = keys.gguf.tensor(&sinks).is_some();
    }
    config.scales.attention = keys
        .positive_or_zero("attention.value_scale")?
        .unwrap_or(1.0);
    Ok(config)
}

pub(crate) fn record(m: &mut Builder<'_>) -> Result<Value, LoadError> {
    let eps = m.config.norm_eps;
    let scale = m.config.scales.attention as f32;
    let mut x = embeddings(m, 1.0)?;
    for layer in m.config.layers() {
        m.begin_layer(x);
        let normed = m.rms_norm(x, &layer.tensor("attn_norm"), eps)?;
        let mut out = attention(m, layer, normed)?;
        if scale != 1.0 {
            out = m.plan.scale(Factor::Constant(scale), out);
        }
        x = m.plan.add(out, x);
        let normed = m.rms_norm(x, &layer.tensor("ffn_norm"), eps)?;
        let out = feed_forward(m, layer, Activation::Silu, normed)?;
        x = m.plan.add(out, x);
    }
    let x = last_norm(m, x, "output_norm")?;
    logits(m, x, 1.0)
}
