//! GLM 4 (dense): norms before and after each block, a fused feed-forward network.

use rocmforge_gguf::Value as Stored;
use rocmforge_plan::{Activation, RopeStyle, Value};

use crate::blocks::{attention, embeddings, fused_feed_forward, last_norm, logits};
use crate::builder::Builder;
use crate::error::LoadError;
use crate::experts;
use crate::facts::{KeyFacts, ModelConfig, RMS_EPS};
use crate::keys::Keys;

pub(crate) fn facts(keys: &Keys<'_>, family: &KeyFacts) -> Result<ModelConfig, LoadError> {
    let mut config = ModelConfig::read(keys, family, RMS_EPS, experts::dense(keys)?)?;
    // The files of models with vision have their pairs in halves.
    if has_sections(keys) {
        config.ropes[0].style = RopeStyle::Neox;
    }
    Ok(config)
}

/// Whether RoPE has a position of its own for each section of a head (M-RoPE), which are equal in text.
fn has_sections(keys: &Keys<'_>) -> bool {
    match keys.meta.get(&keys.key("rope.dimension_sections")) {
        Some(Stored::Array(sections)) => {
            let mut sections = sections.iter().take(4);
            sections.any(|section| section.as_int() != Some(0))
        }
        _ => false,
    }
}

pub(crate) fn record(m: &mut Builder<'_>) -> Result<Value, LoadError> {
    let eps = m.config.norm_eps;
    let mut x = embeddings(m, 1.0)?;
    for layer in m.config.layers() {
        m.begin_layer(x);
        let normed = m.rms_norm(x, &layer.tensor("attn_norm"), eps)?;
        let out = attention(m, layer, normed)?;
        let out = m.rms_norm(out, &layer.tensor("post_attention_norm"), eps)?;
        x = m.plan.add(out, x);
        let normed = m.rms_norm(x, &layer.tensor("ffn_norm"), eps)?;
        let out = fused_feed_forward(m, layer, Activation::Silu, normed)?;
        let out = m.rms_norm(out, &layer.tensor("post_ffw_norm"), eps)?;
        x = m.plan.add(out, x);
    }
    let x = last_norm(m, x, "output_norm")?;
    logits(m, x, 1.0)
}
