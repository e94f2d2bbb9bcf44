//! DeciLM and Llama-Nemotron 49B, 51B and 253B: Llama from which a search has removed parts. Some layers have no
//! attention, or one projection in its place, and some have no network.

use rocmforge_plan::{Activation, Value};

use crate::blocks::{attention, embeddings, feed_forward, logits};
use crate::builder::Builder;
use crate::error::LoadError;
use crate::facts::{FeedForward, KeyFacts, Layer, ModelConfig, RMS_EPS};
use crate::keys::{Keys, MAX_DIM};

pub(crate) fn facts(keys: &Keys<'_>, family: &KeyFacts) -> Result<ModelConfig, LoadError> {
    let n_ff = keys.counts("feed_forward_length", keys.n_layers()?, MAX_DIM)?;
    let none = FeedForward::Dense { n_ff: 0 };
    let (mut config, heads) = ModelConfig::read_with_zeros(keys, (family, RMS_EPS), none)?;
    let scale = keys.positive_or_zero("attention.scale")?;
    for (index, layer) in config.layers.iter_mut().enumerate() {
        layer.feed_forward = FeedForward::Dense { n_ff: n_ff[index] };
        if let Some(scale) = scale {
            layer.scores.scale = scale as f32;
        }
        let [n_heads, n_kv_heads] = heads[index];
        if n_kv_heads == 0 {
            (layer.n_heads, layer.n_kv_heads) = (n_heads, 0);
            layer.rope = None;
        }
        // llama.cpp leaves such a layer out.
        if n_heads > 0 && n_ff[index] == 0 {
            return Err(keys.unsupported(format!("attention without a network (layer {index})")));
        }
    }
    Ok(config)
}

pub(crate) fn record(m: &mut Builder<'_>) -> Result<Value, LoadError> {
    let eps = m.config.norm_eps;
    let mut x = embeddings(m, 1.0)?;
    for layer in m.config.layers() {
        m.plan.begin_layer();
        if layer.facts.n_heads > 0 {
            let normed = m.rms_norm(x, &layer.tensor("attn_norm"), eps)?;
            let out = attention_or_projection(m, layer, normed)?;
            x = m.plan.add(out, x);
        }
        if layer.facts.feed_forward.n_ff() > 0 {
            let normed = m.rms_norm(x, &layer.tensor("ffn_norm"), eps)?;
            let out = feed_forward(m, layer, Activation::Silu, normed)?;
            x = m.plan.add(out, x);
        }
    }
    let x = m.plan.select_rows(x);
    let x = m.rms_norm(x, "output_norm", eps)?;
    logits(m, x, 1.0)
}

fn attention_or_projection(
    m: &mut Builder<'_>,
    layer: Layer<'_>,
    x: Value,
) -> Result<Value, LoadError> {
    match layer.facts.n_kv_heads {
        0 => m.linear(x, &layer.tensor("attn_output"), m.config.n_embd),
        _ => attention(m, layer, x),
    }
}
