//! Gemma: scaled embeddings, GELU. Gemma 2 and 3 have norms before and after each block. In Gemma 2 every other layer has a
//! window, and scores and logits have soft caps; in Gemma 3 five of six layers have a window and RoPE frequencies of
//! their own, and heads of Q and K are normed.

use rocmforge_plan::{Activation, Value};

use crate::blocks::{attention, embedding, embeddings, feed_forward, last_norm, logits};
use crate::builder::Builder;
use crate::error::LoadError;
use crate::experts;
use crate::facts::{KeyFacts, ModelConfig, RMS_EPS, scale_of_width};
use crate::keys::Keys;
use crate::rope::{FrequencyFactors, Rope};
use crate::windows::{require_window, set_windows, with_window_base};

/// Metadata key of the soft cap of the logits.
const LOGITS_CAP: &str = "final_logit_softcapping";

pub(crate) fn facts1(keys: &Keys<'_>, family: &KeyFacts) -> Result<ModelConfig, LoadError> {
    ModelConfig::read(keys, family, RMS_EPS, experts::dense(keys)?)
}

pub(crate) fn facts2(keys: &Keys<'_>, family: &KeyFacts) -> Result<ModelConfig, LoadError> {
    let mut config = ModelConfig::read(keys, family, RMS_EPS, experts::dense(keys)?)?;
    let in_window = Rope {
        factors: FrequencyFactors::Never,
        ..config.ropes[0]
    };
    let in_window = with_window_base(keys, in_window)?;
    set_windows(keys, &mut config, in_window, (Some(4096), 2))?;
    if config.n_layers() == 46 {
        scale_by_embedding(&mut config);
    }
    // These caps apply even if a file does not state them.
    let cap = keys.positive("attn_logit_softcapping")?.unwrap_or(50.0);
    for layer in &mut config.layers {
        layer.scores.soft_cap = Some(cap as f32);
    }
    config.logits_cap = Some(keys.positive(LOGITS_CAP)?.unwrap_or(30.0) as f32);
    Ok(config)
}

pub(crate) fn facts3(keys: &Keys<'_>, family: &KeyFacts) -> Result<ModelConfig, LoadError> {
    let mut config = ModelConfig::read(keys, family, RMS_EPS, experts::dense(keys)?)?;
    let in_window = Rope {
        base: 10_000.0,
        ..config.ropes[0].unscaled()
    };
    let in_window = with_window_base(keys, in_window)?;
    set_windows(keys, &mut config, in_window, (None, 6))?;
    if config.n_layers() == 62 {
        scale_by_embedding(&mut config);
    }
    config.logits_cap = keys.positive_or_zero(LOGITS_CAP)?.map(|cap| cap as f32);
    Ok(config)
}

/// EmbeddingGemma: Gemma 3 with attention to both sides.
pub(crate) fn embedding_facts(
    keys: &Keys<'_>,
    family: &KeyFacts,
) -> Result<ModelConfig, LoadError> {
    require_window(keys)?;
    let mut config = ModelConfig::read(keys, family, RMS_EPS, experts::dense(keys)?)?;
    let in_window = Rope {
        base: 10_000.0,
        ..config.ropes[0].unscaled()
    };
    let in_window = with_window_base(keys, in_window)?;
    set_windows(keys, &mut config, in_window, (None, 6))?;
    Ok(config)
}

/// The two largest models scale scores by `n_embd / n_heads` instead of the head size; llama.cpp also recognizes them by
/// their number of layers.
fn scale_by_embedding(config: &mut ModelConfig) {
    for layer in &mut config.layers {
        layer.scores.scale = scale_of_width((config.n_embd / layer.n_heads).max(1));
    }
}

pub(crate) fn record1(m: &mut Builder<'_>) -> Result<Value, LoadError> {
    let eps = m.config.norm_eps;
    let mut x = embeddings(m, (m.config.n_embd as f64).sqrt())?;
    for layer in m.config.layers() {
        m.plan.begin_layer();
        let normed = m.rms_norm(x, &layer.tensor("attn_norm"), eps)?;
        let out = attention(m, layer, normed)?;
        x = m.plan.add(out, x);
        let normed = m.rms_norm(x, &layer.tensor("ffn_norm"), eps)?;
        let out = feed_forward(m, layer, Activation::GeluTanh, normed)?;
        x = m.plan.add(out, x);
    }
    let x = m.plan.select_rows(x);
    let x = m.rms_norm(x, "output_norm", eps)?;
    logits(m, x, 1.0)
}

pub(crate) fn record(m: &mut Builder<'_>) -> Result<Value, LoadError> {
    let x = hidden(m)?;
    logits(m, x, 1.0)
}

/// As `record`, with two projections of the hidden values in place of the logits, if the file has them.
pub(crate) fn record_embedding(m: &mut Builder<'_>) -> Result<Value, LoadError> {
    let mut x = hidden(m)?;
    // A mean over tokens may follow the projections as well as precede them.
    if let Some(n_wide) = m.loader.n_rows("dense_2.weight") {
        let n_wide = usize::try_from(n_wide).unwrap_or(usize::MAX);
        x = m.linear(x, "dense_2", n_wide)?;
        x = m.linear(x, "dense_3", m.config.n_embd)?;
    }
    embedding(m, x)
}

fn hidden(m: &mut Builder<'_>) -> Result<Value, LoadError> {
    let eps = m.config.norm_eps;
    let mut x = embeddings(m, (m.config.n_embd as f64).sqrt())?;
    for layer in m.config.layers() {
        m.begin_layer(x);
        let normed = m.rms_norm(x, &layer.tensor("attn_norm"), eps)?;
        let out = attention(m, layer, normed)?;
        let out = m.rms_norm(out, &layer.tensor("post_attention_norm"), eps)?;
        x = m.plan.add(out, x);
        let normed = m.rms_norm(x, &layer.tensor("ffn_norm"), eps)?;
        let out = feed_forward(m, layer, Activation::GeluTanh, normed)?;
        let out = m.rms_norm(out, &layer.tensor("post_ffw_norm"), eps)?;
        x = m.plan.add(out, x);
    }
    last_norm(m, x, "output_norm")
}
