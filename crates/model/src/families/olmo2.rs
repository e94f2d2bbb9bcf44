//! OLMo 2 and 3: norms after attention and feed-forward instead of before; norms of Q and K span all heads. In OLMo 3
//! three of four layers have a window.

use rocmforge_plan::{Activation, Value};

use crate::blocks::{attention, embeddings, feed_forward, last_norm, logits};
use crate::builder::Builder;
use crate::error::LoadError;
use crate::experts;
use crate::facts::{KeyFacts, ModelConfig, RMS_EPS};
use crate::keys::Keys;
use crate::windows::set_windows;

pub(crate) fn facts(keys: &Keys<'_>, family: &KeyFacts) -> Result<ModelConfig, LoadError> {
    let mut config = ModelConfig::read(keys, family, RMS_EPS, experts::dense(keys)?)?;
    let in_window = config.ropes[0].unscaled();
    set_windows(keys, &mut config, in_window, (None, 4))?;
    Ok(config)
}

pub(crate) fn record(m: &mut Builder<'_>) -> Result<Value, LoadError> {
    let eps = m.config.norm_eps;
    let mut x = embeddings(m, 1.0)?;
    for layer in m.config.layers() {
        m.begin_layer(x);
        let out = attention(m, layer, x)?;
        let out = m.rms_norm(out, &layer.tensor("post_attention_norm"), eps)?;
        x = m.plan.add(out, x);
        let out = feed_forward(m, layer, Activation::Silu, x)?;
        let out = m.rms_norm(out, &layer.tensor("post_ffw_norm"), eps)?;
        x = m.plan.add(out, x);
    }
    let x = last_norm(m, x, "output_norm")?;
    logits(m, x, 1.0)
}
