//! Muse Glimmer: normed embeddings, norms before and after each block, and a gate for each value of attention's output.
//! Three of four layers have a window, and only these rotate.

use rocmforge_plan::{Activation, Value};

use crate::blocks::{attention, embeddings, feed_forward, logits};
use crate::builder::Builder;
use crate::error::LoadError;
use crate::experts;
use crate::facts::{KeyFacts, ModelConfig, RMS_EPS};
use crate::keys::Keys;
use crate::rope::Rope;
use crate::windows::{require_window, rotate_windows_only, set_windows};

/// Epsilon of the norms after each block, for which files have no key.
const POST_NORM_EPS: f32 = 1e-8;

pub(crate) fn facts(keys: &Keys<'_>, family: &KeyFacts) -> Result<ModelConfig, LoadError> {
    let mut config = ModelConfig::read(keys, family, RMS_EPS, experts::dense(keys)?)?;
    let rope = config.ropes[0].unscaled();
    let base = keys.positive("rope.freq_base_swa")?.unwrap_or(rope.base);
    require_window(keys)?;
    set_windows(keys, &mut config, Rope { base, ..rope }, (None, 4))?;
    rotate_windows_only(&mut config);
    for layer in &mut config.layers {
        layer.gate = Some(Activation::Sigmoid);
    }
    config.scales.logits = 1.0 / keys.required_positive("logit_scale")?;
    let cap = keys.positive_or_zero("final_logit_softcapping")?;
    config.logits_cap = cap.map(|cap| cap as f32);
    Ok(config)
}

pub(crate) fn record(m: &mut Builder<'_>) -> Result<Value, LoadError> {
    let eps = m.config.norm_eps;
    let x = embeddings(m, 1.0)?;
    let mut x = m.plain_rms_norm(x);
    for layer in m.config.layers() {
        m.begin_layer(x);
        let normed = m.rms_norm(x, &layer.tensor("attn_norm"), eps)?;
        let out = attention(m, layer, normed)?;
        let out = m.rms_norm(out, &layer.tensor("post_attention_norm"), POST_NORM_EPS)?;
        x = m.plan.add(out, x);
        let normed = m.rms_norm(x, &layer.tensor("ffn_norm"), eps)?;
        let out = feed_forward(m, layer, Activation::Silu, normed)?;
        let out = m.rms_norm(out, &layer.tensor("post_ffw_norm"), POST_NORM_EPS)?;
        x = m.plan.add(out, x);
    }
    let factor = 1.0 / m.config.scales.logits;
    m.tap(x);
    let x = m.plan.select_rows(x);
    let x = m.scaled_rms_norm(x, "output_norm", eps, factor)?;
    logits(m, x, factor)
}
