//! Falcon (not H1) and Phi 2: attention and a feed-forward network without a gate read the same normed values, and both
//! are added to the residual stream. Falcon 40B has a norm of its own for attention.

use rocmforge_plan::{Activation, Value};

use crate::blocks::{attention, embeddings, logits, plain_feed_forward};
use crate::builder::Builder;
use crate::error::LoadError;

pub(crate) fn record(m: &mut Builder<'_>) -> Result<Value, LoadError> {
    let mut x = embeddings(m, 1.0)?;
    for layer in m.config.layers() {
        m.plan.begin_layer();
        let normed = m.layer_norm(x, &layer.tensor("attn_norm"))?;
        let own = layer.tensor("attn_norm_2");
        let attended = match m.loader.has(&format!("{own}.weight")) {
            true => m.layer_norm(x, &own)?,
            false => normed,
        };
        let heads = attention(m, layer, attended)?;
        let out = plain_feed_forward(m, layer, Activation::GeluTanh, normed)?;
        x = m.plan.add(heads, x);
        x = m.plan.add(out, x);
    }
    let x = m.plan.select_rows(x);
    let x = m.layer_norm(x, "output_norm")?;
    logits(m, x, 1.0)
}
