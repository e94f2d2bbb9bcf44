//! Grok 1: norms before and after each block, soft caps of scores, and experts with GELU. Grok 2, whose experts stand beside
//! a network and whose scores grow with the position, is not computed. Converters write a cap of the router's logits, which
//! llama.cpp does not apply.

use rocmforge_plan::{Activation, ExpertWeights, Value};

use crate::blocks::{attention, embeddings, feed_forward, logits};
use crate::builder::Builder;
use crate::error::LoadError;
use crate::experts::{experts, n_ff};
use crate::facts::{Experts, FeedForward, KeyFacts, ModelConfig, RMS_EPS};
use crate::keys::{Keys, MAX_DIM};

/// What old files do not state: the factors on embeddings, logits and scores, and the cap of scores.
const EMBEDDING: f64 = 78.383_671_769_061_69;
const LOGITS: f64 = 0.577_350_269_189_625_7;
const SCORES: f64 = 0.088_388_347_648_318_45;
const CAP: f64 = 30.0;

pub(crate) fn facts(keys: &Keys<'_>, family: &KeyFacts) -> Result<ModelConfig, LoadError> {
    const GROWTH: &str = "attention.temperature_length";
    if keys.opt_count(GROWTH, u32::MAX as usize)?.unwrap_or(0) > 0 {
        let key = keys.key(GROWTH);
        return Err(keys.unsupported(format!("scores that grow with the position (`{key}`)")));
    }
    let width = keys.opt_size("expert_feed_forward_length", MAX_DIM)?;
    // The norm behind the experts makes the sum of their weights irrelevant.
    let experts = Experts {
        n_ff: width.map_or_else(|| n_ff(keys), Ok)?,
        ..experts(keys, ExpertWeights::Normalized)?
    };
    let mut config = ModelConfig::read(keys, family, RMS_EPS, FeedForward::Mixture(experts))?;
    let scale = keys.positive("attention.output_scale")?.unwrap_or(SCORES);
    let cap = keys.positive("attn_logit_softcapping")?.unwrap_or(CAP);
    for layer in &mut config.layers {
        layer.scores.scale = scale as f32;
        layer.scores.soft_cap = Some(cap as f32);
    }
    config.scales.embedding = keys.positive("embedding_scale")?.unwrap_or(EMBEDDING);
    config.scales.logits = 1.0 / keys.positive("logit_scale")?.unwrap_or(LOGITS);
    let cap = keys.positive_or_zero("final_logit_softcapping")?;
    config.logits_cap = cap.map(|cap| cap as f32);
    Ok(config)
}

pub(crate) fn record(m: &mut Builder<'_>) -> Result<Value, LoadError> {
    let eps = m.config.norm_eps;
    let mut x = embeddings(m, m.config.scales.embedding)?;
    for layer in m.config.layers() {
        m.plan.begin_layer();
        let normed = m.rms_norm(x, &layer.tensor("attn_norm"), eps)?;
        let out = attention(m, layer, normed)?;
        let out = m.rms_norm(out, &layer.tensor("attn_output_norm"), eps)?;
        x = m.plan.add(out, x);
        let normed = m.rms_norm(x, &layer.tensor("ffn_norm"), eps)?;
        let out = feed_forward(m, layer, Activation::GeluTanh, normed)?;
        let names = ["layer_output_norm", "post_ffw_norm"].map(|name| layer.tensor(name));
        let is_there = |name: &&String| m.loader.has(&format!("{name}.weight"));
        let name = names.iter().find(is_there).unwrap_or(&names[1]);
        let out = m.rms_norm(out, name, eps)?;
        x = m.plan.add(out, x);
    }
    let factor = 1.0 / m.config.scales.logits;
    let x = m.plan.select_rows(x);
    let x = m.scaled_rms_norm(x, "output_norm", eps, factor)?;
    logits(m, x, factor)
}
