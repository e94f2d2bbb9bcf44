//! Mixtures of experts, with or without an expert that every token uses.

use rocmforge_plan::{Activation, ExpertVectors, Value, WeightId};

use crate::builder::Builder;
use crate::error::LoadError;
use crate::facts::{Experts, Layer, SharedExpert};

/// Records `sum(weight * expert(x))` over the experts of each token, plus the shared expert if there is one.
pub(crate) fn mixture(
    m: &mut Builder<'_>,
    layer: Layer<'_>,
    (activation, experts): (Activation, &Experts),
    x: Value,
) -> Result<Value, LoadError> {
    let n_embd = m.config.n_embd;
    let scores = m.linear(x, &layer.tensor("ffn_gate_inp"), experts.n_experts)?;
    let scales = layer.tensor("ffn_down_exps.scale");
    let n_experts = experts.n_experts;
    let vectors = ExpertVectors {
        bias: selection_bias(m, layer, n_experts)?,
        // A factor on an expert's output is one on its weight.
        scales: m.loader.opt_part(&scales, n_experts, 0..n_experts, 1.0)?,
    };
    let routing = m.plan.route(scores, vectors, experts.router);
    let chosen = (routing, experts);
    let gate = m.expert_linear(x, &layer.tensor("ffn_gate_exps"), chosen, experts.n_ff)?;
    let up = m.expert_linear(x, &layer.tensor("ffn_up_exps"), chosen, experts.n_ff)?;
    let activated = m.plan.gated_activation(activation, gate, up);
    let out = m.expert_linear(activated, &layer.tensor("ffn_down_exps"), chosen, n_embd)?;
    let sum = m.plan.combine_experts(out, routing);
    match experts.shared {
        Some(shared) => add_shared_expert(m, layer, (activation, shared), x, sum),
        None => Ok(sum),
    }
}

/// Returns what is added to the experts' scores for the choice, if the file has it, under either of its names.
fn selection_bias(
    m: &mut Builder<'_>,
    layer: Layer<'_>,
    n_experts: usize,
) -> Result<Option<WeightId>, LoadError> {
    let names = ["exp_probs_b.bias", "exp_probs_b"].map(|name| layer.tensor(name));
    for name in names {
        if m.loader.has(&name) {
            return m.loader.opt_part(&name, n_experts, 0..n_experts, 1.0);
        }
    }
    Ok(None)
}

/// Adds the output of the shared expert to `sum`, times a gate if it has one.
fn add_shared_expert(
    m: &mut Builder<'_>,
    layer: Layer<'_>,
    (activation, expert): (Activation, SharedExpert),
    x: Value,
    sum: Value,
) -> Result<Value, LoadError> {
    let (n_embd, n_ff) = (m.config.n_embd, expert.n_ff);
    let shared = match expert.is_gated {
        true => Some(m.linear(x, &layer.tensor("ffn_gate_inp_shexp"), 1)?),
        false => None,
    };
    let gate = m.linear(x, &layer.tensor("ffn_gate_shexp"), n_ff)?;
    let up = m.linear(x, &layer.tensor("ffn_up_shexp"), n_ff)?;
    let activated = m.plan.gated_activation(activation, gate, up);
    let out = m.linear(activated, &layer.tensor("ffn_down_shexp"), n_embd)?;
    Ok(match shared {
        Some(shared) => m.plan.add_gated(shared, out, sum),
        None => m.plan.add(out, sum),
    })
}
