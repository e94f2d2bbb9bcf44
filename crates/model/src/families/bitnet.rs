//! BitNet b1.58: Llama with norms before the last projection of attention and of the network. Released files of BitNet b1.58
//! 2B4T, which has squared ReLU, are of another architecture (`bitnet-b1.58`).

use rocmforge_plan::{Activation, Value};

use crate::blocks::{attention_heads, embeddings, logits};
use crate::builder::Builder;
use crate::error::LoadError;

pub(crate) fn record(m: &mut Builder<'_>) -> Result<Value, LoadError> {
    let (eps, n_embd) = (m.config.norm_eps, m.config.n_embd);
    let mut x = embeddings(m, 1.0)?;
    for layer in m.config.layers() {
        m.plan.begin_layer();
        let normed = m.rms_norm(x, &layer.tensor("attn_norm"), eps)?;
        let heads = attention_heads(m, layer, normed)?;
        let normed = m.rms_norm(heads, &layer.tensor("attn_sub_norm"), eps)?;
        let out = m.linear(normed, &layer.tensor("attn_output"), n_embd)?;
        x = m.plan.add(out, x);
        let normed = m.rms_norm(x, &layer.tensor("ffn_norm"), eps)?;
        let n_ff = layer.facts.feed_forward.n_ff();
        let gate = m.linear(normed, &layer.tensor("ffn_gate"), n_ff)?;
        let up = m.linear(normed, &layer.tensor("ffn_up"), n_ff)?;
        let activated = m.plan.gated_activation(Activation::Silu, gate, up);
        let normed = m.rms_norm(activated, &layer.tensor("ffn_sub_norm"), eps)?;
        let out = m.linear(normed, &layer.tensor("ffn_down"), n_embd)?;
        x = m.plan.add(out, x);
    }
    let x = m.plan.select_rows(x);
    let x = m.rms_norm(x, "output_norm", eps)?;
    logits(m, x, 1.0)
}
