//! The drafter EAGLE-3 (Li et al. 2025), in a file of its own (llama.cpp's `eagle3`). Its only layer takes the embedding of a token
//! and the hidden values of the token before, side by side. These are made of the values of three layers of the model that checks
//! its drafts (`taps`); for further tokens of a draft, they are what the layer returned. Logits may be of a part of the vocabulary.

use std::sync::Arc;

use rocmforge_gguf::Gguf;
use rocmforge_plan::{Activation, Projection, Value, act_format};

use crate::blocks::{attention, embeddings_by, feed_forward};
use crate::builder::Builder;
use crate::error::LoadError;
use crate::experts::n_ff;
use crate::facts::{FeedForward, KeyFacts, ModelConfig, RMS_EPS};
use crate::keys::{Keys, MAX_DIM, MAX_LAYERS};
use crate::taps::{N_TAPS, Taps};
use crate::target::{EMBEDDING, Target, same};
use crate::weights::{Faults, WeightLoader};

/// Metadata keys of the width of the model and of its layers whose values are taken.
const TARGET_WIDTH: &str = "target_hidden_size";
const TARGET_LAYERS: &str = "target_layers";
/// The matrix that makes hidden values of those of the layers, and the norm of these.
const MATRIX: &str = "fc";
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
    [own, target]: [&ModelConfig; 2],
) -> Result<Taps, LoadError> {
    let n_target = own.n_target.expect("drafters say for which width");
    same(keys.arch, "hidden width", [n_target, target.n_embd])?;
    let layers = keys.counts(TARGET_LAYERS, N_TAPS, MAX_LAYERS)?;
    let n_layers = target.n_layers();
    let last = layers.iter().fold(n_layers, |last, &at| last.max(at));
    same(keys.arch, "last layer", [last, n_layers])?;
    let n_in = N_TAPS * n_target;
    let mut loader = WeightLoader::new(Arc::clone(gguf), keys.arch, Faults::Refuse);
    let matrix = loader.matrix(&format!("{MATRIX}.weight"), own.n_embd, n_in)?;
    let scale = loader.scale_of(MATRIX)?;
    let norm = match keys.meta.opt_bool(&keys.key("norm_before_fc"))? {
        Some(true) => Some((loader.required_values(NORM, n_in)?, own.norm_eps)),
        _ => None,
    };
    loader.skip("it belongs to the drafter", |_| true);
    let (weights, _) = loader.finish()?;
    Ok(Taps {
        layers: layers.try_into().expect("as many as were read"),
        norm,
        weights: Arc::new(weights),
        matrix: (matrix, scale),
        n_seen: 0,
        values: [None; N_TAPS],
    })
}

pub(crate) fn record(m: &mut Builder<'_>) -> Result<Value, LoadError> {
    let model = m.target.expect("the model for which it drafts");
    let target = Target::new(m.config, model);
    let reason = "the model for which it drafts computes with it";
    { &mut m.loader }.skip(reason, |name| name == NORM || name.starts_with("fc."));
    let (n_embd, eps) = (m.config.n_embd, m.config.norm_eps);
    let hidden = m.plan.import(n_embd);
    let tokens = match m.loader.has(EMBEDDING) {
        true => embeddings_by(m, 1.0, EMBEDDING)?,
        false => {
            target.same("width of embeddings", n_embd, model.config.n_embd)?;
            let table = m.loader.push_shared(&model.weights, target.embedding());
            m.plan.embed(table, 1.0, n_embd)
        }
    };
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
    logits(m, &target, normed)
}

/// Records the logits of the normed rows `x`: of the tokens that the file lists, or of all.
fn logits(m: &mut Builder<'_>, target: &Target<'_>, x: Value) -> Result<Value, LoadError> {
    let model = target.model;
    let n_vocab = model.config.n_vocab;
    m.output_ids = m.loader.opt_token_ids("d2t", n_vocab)?;
    let n_logits = m.output_ids.as_ref().map_or(n_vocab, Vec::len);
    if m.loader.has("output.weight") || m.output_ids.is_some() {
        return m.linear(x, "output", n_logits);
    }
    target.same("hidden width", x.width(), model.config.n_embd)?;
    let id = target.output();
    let format = act_format(model.weights.matrix(id).ty);
    let weight = m.loader.push_shared(&model.weights, id);
    Ok(m.plan.matmul(x, Projection::of(weight, format), n_logits))
}
