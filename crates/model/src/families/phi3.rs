//! Phi 3 and 4: fused projections, and for long contexts a second set of frequency factors (LongRoPE). The window in
//! their files is a converter's mistake; llama.cpp ignores it as well.

use rocmforge_plan::{Activation, Value};

use crate::blocks::{attention, embeddings, fused_feed_forward, last_norm, logits};
use crate::builder::Builder;
use crate::error::LoadError;
use crate::experts;
use crate::facts::{KeyFacts, ModelConfig, RMS_EPS};
use crate::keys::Keys;
use crate::rope;

pub(crate) fn facts(keys: &Keys<'_>, family: &KeyFacts) -> Result<ModelConfig, LoadError> {
    let mut config = ModelConfig::read(keys, family, RMS_EPS, experts::dense(keys)?)?;
    scale_untyped(keys, &mut config)?;
    Ok(config)
}

/// Scales the rotation if the file has factors for long contexts: the converter writes them without a scaling type.
pub(crate) fn scale_untyped(keys: &Keys<'_>, config: &mut ModelConfig) -> Result<(), LoadError> {
    let has_type = keys.meta.get(&keys.key("rope.scaling.type")).is_some();
    if !has_type && keys.gguf.tensor("rope_factors_long.weight").is_some() {
        config.ropes[0].scaling = rope::scaling(keys, Some("longrope"), config.n_ctx_train)?;
    }
    Ok(())
}

pub(crate) fn record(m: &mut Builder<'_>) -> Result<Value, LoadError> {
    let eps = m.config.norm_eps;
    let mut x = embeddings(m, 1.0)?;
    for layer in m.config.layers() {
        m.begin_layer(x);
        let normed = m.rms_norm(x, &layer.tensor("attn_norm"), eps)?;
        let out = attention(m, layer, normed)?;
        x = m.plan.add(out, x);
        let normed = m.rms_norm(x, &layer.tensor("ffn_norm"), eps)?;
        let out = fused_feed_forward(m, layer, Activation::Silu, normed)?;
        x = m.plan.add(out, x);
    }
    let x = last_norm(m, x, "output_norm")?;
    logits(m, x, 1.0)
}
