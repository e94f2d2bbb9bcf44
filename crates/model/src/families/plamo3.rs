//! PLaMo 3: norms before and after each block, fused projections; seven of eight layers have a window, and
//! RoPE frequencies of their own.

use rocmforge_plan::{Activation, Value};

use crate::blocks::{attention, embeddings, fused_feed_forward, logits};
use crate::builder::Builder;
use crate::error::LoadError;
use crate::experts;
use crate::facts::{KeyFacts, ModelConfig, RMS_EPS};
use crate::keys::Keys;
use crate::rope::Rope;
use crate::windows::{set_windows, with_window_base};

pub(crate) fn facts(keys: &Keys<'_>, family: &KeyFacts) -> Result<ModelConfig, LoadError> {
    let mut config = ModelConfig::read(keys, family, RMS_EPS, experts::dense(keys)?)?;
    // Only layers without a window scale their rotation.
    let in_window = Rope {
        base: 10_000.0,
        ..config.ropes[0].unscaled()
    };
    let in_window = with_window_base(keys, in_window)?;
    set_windows(keys, &mut config, in_window, (None, 8))?;
    Ok(config)
}

pub(crate) fn record(m: &mut Builder<'_>) -> Result<Value, LoadError> {
    let eps = m.config.norm_eps;
    let mut x = embeddings(m, 1.0)?;
    for layer in m.config.layers() {
        m.plan.begin_layer();
        let normed = m.rms_norm(x, &layer.tensor("attn_norm"), eps)?;
        let out = attention(m, layer, normed)?;
        let out = m.rms_norm_by(out, &layer.tensor("post_attention_norm"))?;
        x = m.plan.add(out, x);
        let normed = m.rms_norm(x, &layer.tensor("ffn_norm"), eps)?;
        let out = fused_feed_forward(m, layer, Activation::Silu, normed)?;
        let out = m.rms_norm_by(out, &layer.tensor("post_ffw_norm"))?;
        x = m.plan.add(out, x);
    }
    let x = m.plan.select_rows(x);
    let x = m.rms_norm(x, "output_norm", eps)?;
    logits(m, x, 1.0)
}
