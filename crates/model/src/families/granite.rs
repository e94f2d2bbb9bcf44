//! Granite 3 and 4 dense: Llama with constant factors.
//!
//! The factors cost nothing at run time. With a residual factor `r`, the residual stream is kept divided by `r`: each
//! block then adds its output unscaled, and a norm gives the same values if its epsilon is divided by `r * r`. The
//! factor on the logits is folded into the last norm's weight.

use rocmforge_gguf::Error;
use rocmforge_plan::{Activation, Value};

use crate::blocks::{attention, embeddings, feed_forward, logits};
use crate::builder::Builder;
use crate::error::LoadError;
use crate::experts;
use crate::facts::{KeyFacts, ModelConfig, RMS_EPS, Scales};
use crate::keys::Keys;

pub(crate) fn facts(keys: &Keys<'_>, family: &KeyFacts) -> Result<ModelConfig, LoadError> {
    let mut config = ModelConfig::read(keys, family, RMS_EPS, experts::dense(keys)?)?;
    let deepstack = keys.key("deepstack_mapping");
    if keys.meta.get(&deepstack).is_some() {
        return Err(keys.unsupported(format!("inputs of a vision model (`{deepstack}`)")));
    }
    let logits = keys
        .positive("logit_scale")?
        .ok_or_else(|| Error::MissingKey {
            key: keys.key("logit_scale"),
        })?;
    config.scales = Scales {
        embedding: keys.positive_or_zero("embedding_scale")?.unwrap_or(1.0),
        residual: keys.positive_or_zero("residual_scale")?.unwrap_or(1.0),
        logits,
    };
    let rotates = keys.meta.opt_bool(&keys.key("rope.scaling.finetuned"))?;
    let scale = keys.positive_or_zero("attention.scale")?;
    for layer in &mut config.layers {
        layer.rope = layer.rope.filter(|_| rotates.unwrap_or(true));
        layer.scores.scale = scale.map_or(layer.scores.scale, |scale| scale as f32);
    }
    Ok(config)
}

pub(crate) fn record(m: &mut Builder<'_>) -> Result<Value, LoadError> {
    let Scales {
        embedding,
        residual,
        logits: divisor,
    } = m.config.scales;
    let eps = (f64::from(m.config.norm_eps) / (residual * residual)) as f32;
    let mut x = embeddings(m, embedding / residual)?;
    for layer in m.config.layers() {
        let normed = m.rms_norm(x, &layer.tensor("attn_norm"), eps)?;
        let out = attention(m, layer, normed)?;
        x = m.plan.add(out, x);
        let normed = m.rms_norm(x, &layer.tensor("ffn_norm"), eps)?;
        let out = feed_forward(m, layer, Activation::Silu, normed)?;
        x = m.plan.add(out, x);
    }
    let x = m.plan.select_rows(x);
    let x = m.scaled_rms_norm(x, "output_norm", eps, 1.0 / divisor)?;
    logits(m, x, 1.0 / divisor)
}
