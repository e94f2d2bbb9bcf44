//! Command R and Command A: attention and feed-forward network read the same normed values, and both are added to the
//! residual stream; layer norms without biases; a factor on the logits. In Command R7B and A (`cohere2`), three of four
//! layers have a window, and only these rotate. With experts (`cohere2moe`), the routed and the shared ones are averaged.

use rocmforge_plan::{Activation, ExpertScores, Factor, Value};

use crate::blocks::{attention, embeddings, feed_forward, logits};
use crate::builder::Builder;
use crate::error::LoadError;
use crate::experts::{self, lead_with_dense, stated_experts, with_stated_shared};
use crate::facts::{FeedForward, KeyFacts, LAYER_EPS, ModelConfig, RMS_EPS};
use crate::keys::{Keys, MAX_EXPERTS};
use crate::windows::{require_window, rotate_windows_only, set_windows, set_windows_after_first};

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

pub(crate) fn mixture(keys: &Keys<'_>, family: &KeyFacts) -> Result<ModelConfig, LoadError> {
    if keys.positive_or_zero(RMS_EPS)?.is_some() {
        return Err(keys.unsupported("RMS norms instead of layer norms"));
    }
    let experts = stated_experts(keys, Some(ExpertScores::Sigmoid))?;
    let experts = match keys.opt_count("expert_shared_count", MAX_EXPERTS)? {
        None | Some(0) => experts,
        Some(n) => {
            let n_ff = experts.n_ff.saturating_mul(n);
            with_stated_shared(keys, experts, Some(n_ff))?
        }
    };
    let mut config = ModelConfig::read(keys, family, LAYER_EPS, FeedForward::Mixture(experts))?;
    config.scales.logits = 1.0 / keys.required_positive(LOGIT_SCALE)?;
    lead_with_dense(keys, &mut config)?;
    require_window(keys)?;
    let rope = config.ropes[0];
    set_windows_after_first(keys, &mut config, rope, 4)?;
    rotate_windows_only(&mut config);
    for layer in &mut config.layers {
        if matches!(layer.feed_forward, FeedForward::Dense { .. }) {
            layer.rope = Some(0);
        }
    }
    Ok(config)
}

pub(crate) fn record(m: &mut Builder<'_>) -> Result<Value, LoadError> {
    let mut x = embeddings(m, 1.0)?;
    for layer in m.config.layers() {
        m.plan.begin_layer();
        let normed = m.scaled_layer_norm(x, &layer.tensor("attn_norm"), 1.0)?;
        let heads = attention(m, layer, normed)?;
        let mut out = feed_forward(m, layer, Activation::Silu, normed)?;
        if has_shared_expert(&layer.facts.feed_forward) {
            out = m.plan.scale(Factor::Constant(0.5), out);
        }
        x = m.plan.add(out, x);
        x = m.plan.add(heads, x);
    }
    let factor = 1.0 / m.config.scales.logits;
    let x = m.plan.select_rows(x);
    let x = m.scaled_layer_norm(x, "output_norm", factor)?;
    logits(m, x, factor)
}

fn has_shared_expert(feed_forward: &FeedForward) -> bool {
    matches!(feed_forward, FeedForward::Mixture(experts) if experts.shared.is_some())
}
