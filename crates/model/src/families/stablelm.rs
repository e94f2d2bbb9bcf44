//! StableLM 2 and 3: layer norms with biases and a gated feed-forward network, which reads attention's input where a layer
//! has no second norm.

use rocmforge_plan::{Activation, Value};

use crate::blocks::{attention, embeddings, feed_forward, logits};
use crate::builder::Builder;
use crate::error::LoadError;

pub(crate) fn record(m: &mut Builder<'_>) -> Result<Value, LoadError> {
    let mut x = embeddings(m, 1.0)?;
    for layer in m.config.layers() {
        m.plan.begin_layer();
        let normed = m.layer_norm(x, &layer.tensor("attn_norm"))?;
        let heads = attention(m, layer, normed)?;
        x = m.plan.add(heads, x);
        let second = layer.tensor("ffn_norm");
        let normed = match m.loader.has(&format!("{second}.weight")) {
            true => m.layer_norm(x, &second)?,
            false => normed,
        };
        let out = feed_forward(m, layer, Activation::Silu, normed)?;
        x = m.plan.add(out, x);
    }
    let x = m.plan.select_rows(x);
    let x = m.layer_norm(x, "output_norm")?;
    logits(m, x, 1.0)
}
