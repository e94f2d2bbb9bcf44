//! Granite 3 and 4 (not H), with and without experts, and MiniCPM: Llama with constant factors.
//!
//! The factors cost nothing at run time. With a residual factor `r`, the residual stream is kept divided by `r`: each
//! block then adds its output unscaled, and a norm gives the same values if its epsilon is divided by `r * r`. The
//! factor on the logits is folded into the last norm's weight.

use rocmforge_plan::{Activation, ExpertWeights, Value};

use crate::blocks::{attention, embeddings, feed_forward, logits};
use crate::builder::Builder;
use crate::error::LoadError;
use crate::experts;
use crate::facts::{Experts, FeedForward, KeyFacts, ModelConfig, RMS_EPS, Scales};
use crate::keys::Keys;

pub(crate) fn facts(keys: &Keys<'_>, family: &KeyFacts) -> Result<ModelConfig, LoadError> {
    read(keys, family, experts::dense(keys)?)
}

pub(crate) fn mixture(keys: &Keys<'_>, family: &KeyFacts) -> Result<ModelConfig, LoadError> {
    read(keys, family, FeedForward::Mixture(experts_of(keys)?))
}

pub(super) fn experts_of(keys: &Keys<'_>) -> Result<Experts, LoadError> {
    let experts = Experts {
        // Its files state the width of each expert here.
        n_ff: experts::n_ff(keys)?,
        ..experts::experts(keys, ExpertWeights::Normalized)?
    };
    experts::with_stated_shared(keys, experts, None)
}

/// MiniCPM 1 to 5 (not 3). Old files have no factors; these are those of the first models.
pub(crate) fn minicpm(keys: &Keys<'_>, family: &KeyFacts) -> Result<ModelConfig, LoadError> {
    let mut config = ModelConfig::read(keys, family, RMS_EPS, experts::dense(keys)?)?;
    let residual = 1.4 / (config.n_layers() as f64).sqrt();
    let logits = config.n_embd as f64 / 256.0;
    config.scales = Scales {
        embedding: keys.positive_or_zero("embedding_scale")?.unwrap_or(12.0),
        residual: keys.positive_or_zero("residual_scale")?.unwrap_or(residual),
        logits: keys.positive_or_zero("logit_scale")?.unwrap_or(logits),
        ..config.scales
    };
    Ok(config)
}

fn read(
    keys: &Keys<'_>,
    family: &KeyFacts,
    feed_forward: FeedForward,
) -> Result<ModelConfig, LoadError> {
    let mut config = ModelConfig::read(keys, family, RMS_EPS, feed_forward)?;
    let logits = keys.required_positive("logit_scale")?;
    set_factors(keys, &mut config, logits)?;
    Ok(config)
}

/// Reads the constant factors; that on the logits divides them.
pub(super) fn set_factors(
    keys: &Keys<'_>,
    config: &mut ModelConfig,
    logits: f64,
) -> Result<(), LoadError> {
    let deepstack = keys.key("deepstack_mapping");
    if keys.meta.get(&deepstack).is_some() {
        return Err(keys.unsupported(format!("inputs of a vision model (`{deepstack}`)")));
    }
    config.scales = Scales {
        embedding: keys.positive_or_zero("embedding_scale")?.unwrap_or(1.0),
        residual: keys.positive_or_zero("residual_scale")?.unwrap_or(1.0),
        logits,
        ..config.scales
    };
    let rotates = keys.meta.opt_bool(&keys.key("rope.scaling.finetuned"))?;
    let scale = keys.positive_or_zero("attention.scale")?;
    for layer in &mut config.layers {
        layer.rope = layer.rope.filter(|_| rotates.unwrap_or(true));
        layer.scores.scale = scale.map_or(layer.scores.scale, |scale| scale as f32);
    }
    Ok(())
}

pub(crate) fn record(m: &mut Builder<'_>) -> Result<Value, LoadError> {
    let Scales {
        embedding,
        residual,
        logits: divisor,
        ..
    } = m.config.scales;
    let eps = (f64::from(m.config.norm_eps) / (residual * residual)) as f32;
    let mut x = embeddings(m, embedding / residual)?;
    for layer in m.config.layers() {
        m.plan.begin_layer();
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
