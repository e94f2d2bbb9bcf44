//! Mixtures of experts (Mixtral, Qwen).

use rocmforge_plan::{Activation, Value};

use crate::builder::Builder;
use crate::error::LoadError;
use crate::facts::{Experts, Layer};

/// Records `sum(weight * expert(x))` over the experts of each token, plus the shared expert if there is one.
pub(crate) fn mixture(
    m: &mut Builder<'_>,
    layer: Layer<'_>,
    (activation, experts): (Activation, &Experts),
    x: Value,
) -> Result<Value, LoadError> {
    let n_embd = m.config.n_embd;
    let scores = m.linear(x, &layer.tensor("ffn_gate_inp"), experts.n_experts)?;
    let routing = m.plan.route(scores, experts.router);
    let chosen = (routing, experts);
    let gate = m.expert_linear(x, &layer.tensor("ffn_gate_exps"), chosen, experts.n_ff)?;
    let up = m.expert_linear(x, &layer.tensor("ffn_up_exps"), chosen, experts.n_ff)?;
    let activated = m.plan.gated_activation(activation, gate, up);
    let out = m.expert_linear(activated, &layer.tensor("ffn_down_exps"), chosen, n_embd)?;
    let sum = m.plan.combine_experts(out, routing);
    match experts.n_ff_shared {
        Some(n_ff) => add_shared_expert(m, layer, (activation, n_ff), x, sum),
        None => Ok(sum),
    }
}

/// Adds the output of the shared expert, times a gate of its own, to `sum`.
fn add_shared_expert(
    m: &mut Builder<'_>,
    layer: Layer<'_>,
    (activation, n_ff): (Activation, usize),
    x: Value,
    sum: Value,
) -> Result<Value, LoadError> {
    let n_embd = m.config.n_embd;
    let shared = m.linear(x, &layer.tensor("ffn_gate_inp_shexp"), 1)?;
    let gate = m.linear(x, &layer.tensor("ffn_gate_shexp"), n_ff)?;
    let up = m.linear(x, &layer.tensor("ffn_up_shexp"), n_ff)?;
    let activated = m.plan.gated_activation(activation, gate, up);
    let out = m.linear(activated, &layer.tensor("ffn_down_shexp"), n_embd)?;
    Ok(m.plan.add_gated(shared, out, sum))
}
