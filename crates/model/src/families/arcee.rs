//! Arcee's AFM: Llama with a feed-forward network without a gate, and squared ReLU. Nemotron 3 and 4 (not H) have layer
//! norms instead of RMS norms.

use rocmforge_plan::{Activation, Value};

use crate::blocks::{attention, embeddings, logits, plain_feed_forward};
use crate::builder::Builder;
use crate::error::LoadError;

pub(crate) fn record(m: &mut Builder<'_>) -> Result<Value, LoadError> {
    let eps = m.config.norm_eps;
    let mut x = embeddings(m, 1.0)?;
    for layer in m.config.layers() {
        m.plan.begin_layer();
        let normed = m.rms_norm(x, &layer.tensor("attn_norm"), eps)?;
        let out = attention(m, layer, normed)?;
        x = m.plan.add(out, x);
        let normed = m.rms_norm(x, &layer.tensor("ffn_norm"), eps)?;
        let out = plain_feed_forward(m, layer, Activation::ReluSquared, normed)?;
        x = m.plan.add(out, x);
    }
    let x = m.plan.select_rows(x);
    let x = m.rms_norm(x, "output_norm", eps)?;
    logits(m, x, 1.0)
}

pub(crate) fn record_nemotron(m: &mut Builder<'_>) -> Result<Value, LoadError> {
    let mut x = embeddings(m, 1.0)?;
    for layer in m.config.layers() {
        m.plan.begin_layer();
        let normed = m.layer_norm(x, &layer.tensor("attn_norm"))?;
        let out = attention(m, layer, normed)?;
        x = m.plan.add(out, x);
        let normed = m.layer_norm(x, &layer.tensor("ffn_norm"))?;
        let out = plain_feed_forward(m, layer, Activation::ReluSquared, normed)?;
        x = m.plan.add(out, x);
    }
    let x = m.plan.select_rows(x);
    let x = m.layer_norm(x, "output_norm")?;
    logits(m, x, 1.0)
}
