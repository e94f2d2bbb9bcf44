//! Apertus: Llama with norms of heads and a feed-forward network without a gate, whose function, xIELU, has four numbers
//! in each layer.

use rocmforge_plan::{Activation, Value};

use crate::blocks::{attention, embeddings, logits, plain_feed_forward};
use crate::builder::Builder;
use crate::error::LoadError;
use crate::experts;
use crate::facts::{KeyFacts, ModelConfig, RMS_EPS};
use crate::keys::Keys;

pub(crate) fn facts(keys: &Keys<'_>, family: &KeyFacts) -> Result<ModelConfig, LoadError> {
    let mut config = ModelConfig::read(keys, family, RMS_EPS, experts::dense(keys)?)?;
    let n_layers = config.n_layers();
    let numbers = |key| keys.unprefixed_numbers(key, n_layers);
    let alpha_n = numbers("xielu.alpha_n")?;
    let alpha_p = numbers("xielu.alpha_p")?;
    let beta = numbers("xielu.beta")?;
    let eps = numbers("xielu.eps")?;
    for (index, layer) in config.layers.iter_mut().enumerate() {
        layer.activation = Some(Activation::Xielu {
            alpha_n: beta[index] + softplus(alpha_n[index]),
            alpha_p: softplus(alpha_p[index]),
            beta: beta[index],
            eps: eps[index],
        });
    }
    Ok(config)
}

/// `ln(1 + e^x)`.
fn softplus(x: f32) -> f32 {
    let x = f64::from(x);
    (x.max(0.0) + (-x.abs()).exp().ln_1p()) as f32
}

pub(crate) fn record(m: &mut Builder<'_>) -> Result<Value, LoadError> {
    let eps = m.config.norm_eps;
    let mut x = embeddings(m, 1.0)?;
    for layer in m.config.layers() {
        m.plan.begin_layer();
        let normed = m.rms_norm(x, &layer.tensor("attn_norm"), eps)?;
        let out = attention(m, layer, normed)?;
        x = m.plan.add(out, x);
        let normed = m.rms_norm(x, &layer.tensor("ffn_norm"), eps)?;
        let activation = layer.facts.activation.expect("every layer has a function");
        let out = plain_feed_forward(m, layer, activation, normed)?;
        x = m.plan.add(out, x);
    }
    let x = m.plan.select_rows(x);
    let x = m.rms_norm(x, "output_norm", eps)?;
    logits(m, x, 1.0)
}
