//! Command R and Command A: attention and feed-forward network read the same normed values, and both are added to the
//! residual stream; layer norms without biases; a factor on the logits. In Command R7B and A (`cohere2`), three of four
//! layers have a window, and only these rotate.

use rocmforge_plan::{Activation, Value};

use crate::blocks::{attention, embeddings, feed_forward, logits};
use crate::builder::Builder;
use crate::error::LoadError;
use crate::experts;
use crate::facts::{KeyFacts, LAYER_EPS, ModelConfig};
use crate::keys::Keys;
use crate::windows::{require_window, rotate_windows_only, set_windows};

/// Metadata key of the factor on the logits.
const LOGIT_SCALE: &str = "logit_scale";

pub(crate) fn facts(keys: &Keys<'_>, family: &KeyFacts) -> Result<ModelConfig, LoadError> {
    let mut config = ModelConfig::read(keys, family, LAYER_EPS, experts::dense(keys)?)?;
    config.scales.logits = 1.0 / keys.positive_or_zero(LOGIT_SCALE)?.unwrap_or(1.0);
    Ok(config)
}

pub(crate) fn facts2(keys: &Keys<'_>, family: &KeyFacts) -> Result<ModelConfig, LoadError> {
    let mut config = facts(keys, family)?;
    require_window(keys)?;
    let rope = config.ropes[0];
    set_windows(keys, &mut config, rope, (None, 4))?;
    rotate_windows_only(&mut config);
    Ok(config)
}

pub(crate) fn record(m: &mut Builder<'_>) -> Result<Value, LoadError> {
    let mut x = embeddings(m, 1.0)?;
    for layer in m.config.layers() {
        let normed = m.scaled_layer_norm(x, &layer.tensor("attn_norm"), 1.0)?;
        let heads = attention(m, layer, normed)?;
        let out = feed_forward(m, layer, Activation::Silu, normed)?;
        x = m.plan.add(out, x);
        x = m.plan.add(heads, x);
    }
    let factor = 1.0 / m.config.scales.logits;
    let x = m.plan.select_rows(x);
    let x = m.scaled_layer_norm(x, "output_norm", factor)?;
    logits(m, x, factor)
}
