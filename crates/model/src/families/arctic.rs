//! Snowflake Arctic: experts beside a narrow network. They read the residual stream before attention.

use rocmforge_plan::{Activation, ExpertWeights, Value};

use crate::blocks::{attention, embeddings, gated_feed_forward, logits, routed_experts};
use crate::builder::Builder;
use crate::error::LoadError;
use crate::experts::{experts, n_ff};
use crate::facts::{Experts, FeedForward, KeyFacts, ModelConfig, RMS_EPS};
use crate::keys::Keys;

pub(crate) fn facts(keys: &Keys<'_>, family: &KeyFacts) -> Result<ModelConfig, LoadError> {
    let experts = Experts {
        // Its files state the width of each expert here; that of the other network is the model's.
        n_ff: n_ff(keys)?,
        ..experts(keys, ExpertWeights::Normalized)?
    };
    ModelConfig::read(keys, family, RMS_EPS, FeedForward::Mixture(experts))
}

pub(crate) fn record(m: &mut Builder<'_>) -> Result<Value, LoadError> {
    let (eps, n_embd) = (m.config.norm_eps, m.config.n_embd);
    let silu = Activation::Silu;
    let mut x = embeddings(m, 1.0)?;
    for layer in m.config.layers() {
        m.plan.begin_layer();
        let FeedForward::Mixture(experts) = &layer.facts.feed_forward else {
            unreachable!("every layer has experts");
        };
        let normed = m.rms_norm(x, &layer.tensor("ffn_norm_exps"), eps)?;
        let of_experts = routed_experts(m, layer, (silu, experts), [normed, normed])?;
        let normed = m.rms_norm(x, &layer.tensor("attn_norm"), eps)?;
        let out = attention(m, layer, normed)?;
        x = m.plan.add(out, x);
        let normed = m.rms_norm(x, &layer.tensor("ffn_norm"), eps)?;
        let out = gated_feed_forward(m, layer, (silu, n_embd), normed)?;
        x = m.plan.add(out, x);
        x = m.plan.add(of_experts, x);
    }
    let x = m.plan.select_rows(x);
    let x = m.rms_norm(x, "output_norm", eps)?;
    logits(m, x, 1.0)
}
