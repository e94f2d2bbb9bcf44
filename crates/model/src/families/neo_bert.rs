//! NeoBERT: as Phi 3, with attention to both sides. The last norm has a name of its own.

use rocmforge_plan::{Activation, Value};

use crate::blocks::{attention, embedding, embeddings, fused_feed_forward};
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
        let out = fused_feed_forward(m, layer, Activation::Silu, normed)?;
        x = m.plan.add(out, x);
    }
    let x = m.plan.select_rows(x);
    let x = m.rms_norm(x, "enc.output_norm", eps)?;
    embedding(m, x)
}
