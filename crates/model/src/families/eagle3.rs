//! The drafter EAGLE-3 (Li et al. 2025), in a file of its own (llama.cpp's `eagle3`). Its only layer takes the embedding of a token
//! and the hidden values of the token before, side by side. These are made of the values of three layers of the model that checks
//! its drafts (`taps`); for further tokens of a draft, they are what the layer returned. Logits may be of a part of the vocabulary.

use std::sync::Arc;

use rocmforge_gguf::Gguf;
use rocmforge_plan::{Activation, Value};

use crate::blocks::{attention, drafter_embeddings, drafter_logits, feed_forward};
use crate::builder::Builder;
use crate::error::LoadError;
use crate::experts::n_ff;
use crate::facts::{FeedForward, KeyFacts, ModelConfig, RMS_EPS};
use crate::keys::{Keys, MAX_DIM, MAX_LAYERS};
use crate::taps::{self, TARGET_LAYERS, Taps};
use crate::target::Target;

/// Metadata key of the width of the model.
const TARGET_WIDTH: &str = "target_hidden_size";
/// The number of layers whose values are taken, and the norm of these.
const N_TAPS: usize = 3;
const NORM: &str = "enc.output_norm.weight";

pub(crate) fn facts(keys: &Keys<'_>, family: &KeyFacts) -> Result<ModelConfig, LoadError> {
    let feed_forward = FeedForward::Dense { n_ff: n_ff(keys)? };
    let mut config = ModelConfig::read(keys, family, RMS_EPS, feed_forward)?;
    if config.n_layers() != 1 {
        return Err(keys.bad("block_count", config.n_layers(), "1"));
    }
    config.n_target = Some(keys.size(TARGET_WIDTH, MAX_DIM)?);
    let is_normed = keys.meta.opt_bool(&keys.key("norm_before_residual"))?;
    config.has_normed_residual = is_normed.unwrap_or(false);
    Ok(config)
}

/// Reads what the plan of a model exports for the drafter of a file, by the configurations of this drafter and of the model.
pub(crate) fn taps(
    keys: &Keys<'_>,
    gguf: &Arc<Gguf>,
    configs: [&ModelConfig; 2],
) -> Result<Taps, LoadError> {
    let layers = keys.counts(TARGET_LAYERS, N_TAPS, MAX_LAYERS)?;
    let is_normed = keys.meta.opt_bool(&keys.key("norm_before_fc"))?;
    let norm = is_normed.unwrap_or(false).then_some(NORM);
    Taps::read((keys, gguf), configs, layers, norm)
}

pub(crate) fn record(m: &mut Builder<'_>) -> Result<Value, LoadError> {
    let model = m.target.expect("the model for which it drafts");
    let target = Target::new(m.config, model);
    taps::skip(&mut m.loader);
    let reason = "the model for which it drafts computes with it";
    m.loader.skip(reason, |name| name == NORM);
    let (n_embd, eps) = (m.config.n_embd, m.config.norm_eps);
    let hidden = m.plan.import(n_embd);
    let tokens = drafter_embeddings(m, &target, 1.0)?;
    let layer = m.config.layer(0);
    m.plan.begin_layer();
    let tokens = m.rms_norm(tokens, &layer.tensor("attn_norm"), eps)?;
    let normed = m.rms_norm(hidden, &layer.tensor("attn_norm_2"), eps)?;
    let both = m.plan.join_heads(1, tokens, Some((normed, n_embd)));
    let out = attention(m, layer, both)?;
    let residual = match m.config.has_normed_residual {
        true => normed,
        false => hidden,
    };
    let x = m.plan.add(out, residual);
    let normed = m.rms_norm(x, &layer.tensor("ffn_norm"), eps)?;
    let out = feed_forward(m, layer, Activation::Silu, normed)?;
    let x = m.plan.add(out, x);
    m.export = Some(x);
    let x = m.plan.select_rows(x);
    let normed = m.rms_norm(x, "output_norm", eps)?;
    drafter_logits(m, &target, normed)
}
