//! BERT and its successors: norms after each block, attention to both sides. BERT itself, also RoBERTa and XLM-RoBERTa,
//! has learned positions; Nomic's models and Jina 3 rotate Q and K; Jina 2 has linear biases in place of positions.

use rocmforge_plan::{Activation, Alibi, ExpertWeights, Value};

use crate::blocks::{
    add_positions, add_token_type, attention, embedding, embeddings, feed_forward,
    fused_feed_forward, plain_experts, plain_feed_forward,
};
use crate::builder::Builder;
use crate::error::LoadError;
use crate::experts::{self, experts, n_experts, n_ff};
use crate::facts::{Experts, FeedForward, KeyFacts, LAYER_EPS, Layer, ModelConfig};
use crate::keys::{Keys, MAX_LAYERS};

/// Models that rotate Q and K.
pub(crate) fn facts(keys: &Keys<'_>, family: &KeyFacts) -> Result<ModelConfig, LoadError> {
    ModelConfig::read(keys, family, LAYER_EPS, experts::dense(keys)?)
}

pub(crate) fn facts_with_positions(
    keys: &Keys<'_>,
    family: &KeyFacts,
) -> Result<ModelConfig, LoadError> {
    let mut config = facts(keys, family)?;
    config.n_positions = Some(config.n_ctx_train);
    for layer in &mut config.layers {
        layer.rope = None;
    }
    Ok(config)
}

pub(crate) fn facts_with_biases(
    keys: &Keys<'_>,
    family: &KeyFacts,
) -> Result<ModelConfig, LoadError> {
    let mut config = facts(keys, family)?;
    for layer in &mut config.layers {
        layer.rope = None;
        layer.scores.alibi = Some(Alibi { max_bias: 8.0 });
    }
    Ok(config)
}

/// Some layers have experts: the second of each `moe_every_n_layers`.
pub(crate) fn facts_with_experts(
    keys: &Keys<'_>,
    family: &KeyFacts,
) -> Result<ModelConfig, LoadError> {
    let n_ff = n_ff(keys)?;
    let dense = FeedForward::Dense { n_ff };
    let mut config = ModelConfig::read(keys, family, LAYER_EPS, dense)?;
    let period = keys.opt_count("moe_every_n_layers", MAX_LAYERS)?;
    let period = period.unwrap_or(0);
    if period == 0 || n_experts(keys)? == 0 {
        return Ok(config);
    }
    let mixture = FeedForward::Mixture(Experts {
        n_ff,
        ..experts(keys, ExpertWeights::Scores)?
    });
    for (index, layer) in config.layers.iter_mut().enumerate() {
        if index % period == 1 {
            layer.feed_forward = mixture;
        }
    }
    Ok(config)
}

/// How a layer's network is computed.
type RecordNetwork = fn(&mut Builder<'_>, Layer<'_>, Value) -> Result<Value, LoadError>;

/// Networks without gates, and with GELU: of BERT and Jina 3, and of Nomic's mixtures.
pub(crate) fn record(m: &mut Builder<'_>) -> Result<Value, LoadError> {
    record_with(m, |m, layer, x| match &layer.facts.feed_forward {
        FeedForward::Mixture(experts) => {
            plain_experts(m, layer, (Activation::GeluTanh, experts), x)
        }
        FeedForward::Dense { .. } => plain_feed_forward(m, layer, Activation::GeluTanh, x),
    })
}

/// Networks with gates and SiLU.
pub(crate) fn record_nomic(m: &mut Builder<'_>) -> Result<Value, LoadError> {
    record_with(m, |m, layer, x| feed_forward(m, layer, Activation::Silu, x))
}

/// Networks with gates, which may be in one tensor with the projections, or without.
pub(crate) fn record_jina2(m: &mut Builder<'_>) -> Result<Value, LoadError> {
    record_with(m, |m, layer, x| {
        let n_ff = layer.facts.feed_forward.n_ff();
        let n_up = m.loader.n_rows(&layer.tensor("ffn_up.weight"));
        let gelu = Activation::GeluTanh;
        if m.loader.has(&layer.tensor("ffn_gate.weight")) {
            feed_forward(m, layer, gelu, x)
        } else if n_up == Some(2 * n_ff as u64) {
            fused_feed_forward(m, layer, gelu, x)
        } else {
            plain_feed_forward(m, layer, gelu, x)
        }
    })
}

fn record_with(m: &mut Builder<'_>, network: RecordNetwork) -> Result<Value, LoadError> {
    let mut x = embeddings(m, 1.0)?;
    x = add_token_type(m, x)?;
    if let Some(n_positions) = m.config.n_positions {
        x = add_positions(m, n_positions, x)?;
    }
    x = m.layer_norm(x, "token_embd_norm")?;
    for layer in m.config.layers() {
        m.plan.begin_layer();
        let out = attention(m, layer, x)?;
        let again = layer.tensor("attn_norm_2");
        let normed = match m.loader.has(&format!("{again}.weight")) {
            // The input is added once more to what is normed already.
            true => {
                let sum = m.plan.add(x, out);
                let normed = m.layer_norm(sum, &layer.tensor("attn_output_norm"))?;
                let sum = m.plan.add(normed, x);
                m.layer_norm(sum, &again)?
            }
            false => {
                let sum = m.plan.add(out, x);
                m.layer_norm(sum, &layer.tensor("attn_output_norm"))?
            }
        };
        let out = network(m, layer, normed)?;
        let sum = m.plan.add(out, normed);
        x = m.layer_norm(sum, &layer.tensor("layer_output_norm"))?;
    }
    let x = m.plan.select_rows(x);
    embedding(m, x)
}
