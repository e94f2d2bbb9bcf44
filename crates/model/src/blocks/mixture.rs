//! Mixtures of experts, with or without an expert that every token uses.

use rocmforge_plan::{Activation, ExpertStack, ExpertVectors, Routing, Value, Weighed, WeightId};

use crate::blocks::feed_forward::limited;
use crate::builder::Builder;
use crate::error::LoadError;
use crate::facts::{Experts, Layer, SharedExpert};

/// The experts' last projection.
const DOWN: &str = "ffn_down_exps";

/// Records `sum(weight * expert(x))` over the experts of each token, plus the shared expert if there is one.
pub(crate) fn mixture(
    m: &mut Builder<'_>,
    layer: Layer<'_>,
    (activation, experts): (Activation, &Experts),
    x: Value,
) -> Result<Value, LoadError> {
    let sum = routed_experts(m, layer, (activation, experts), [x, x])?;
    match experts.shared {
        Some(shared) => add_shared_expert(m, layer, (activation, shared), x, sum),
        None => Ok(sum),
    }
}

/// Records `sum(weight * expert(x))` over the experts that `of_router` chooses for each token.
pub(crate) fn routed_experts(
    m: &mut Builder<'_>,
    layer: Layer<'_>,
    (activation, experts): (Activation, &Experts),
    [of_router, x]: [Value; 2],
) -> Result<Value, LoadError> {
    let routing = routing(m, layer, experts, of_router)?;
    chosen_experts(m, layer, (activation, experts), (routing, x))
}

/// Records `sum(weight * expert(x))` over the experts of each token.
pub(crate) fn chosen_experts(
    m: &mut Builder<'_>,
    layer: Layer<'_>,
    (activation, experts): (Activation, &Experts),
    (routing, x): (Routing, Value),
) -> Result<Value, LoadError> {
    let activation = limited(activation, experts.limit);
    let [gate, up] = gate_and_up(m, layer, (routing, experts), x)?;
    let activated = m.plan.gated_activation(activation, gate, up);
    combined(m, layer, (routing, experts), activated)
}

/// As [`routed_experts`], of experts without gates: `down(activation(up(x)))`, perhaps between projections to narrower
/// vectors and back.
pub(crate) fn plain_experts(
    m: &mut Builder<'_>,
    layer: Layer<'_>,
    (activation, experts): (Activation, &Experts),
    x: Value,
) -> Result<Value, LoadError> {
    let routing = routing(m, layer, experts, x)?;
    let up = layer.tensor("ffn_up_exps");
    let x = match experts.n_latent {
        Some(n_latent) => m.linear(x, &layer.tensor("ffn_latent_down"), n_latent)?,
        None => x,
    };
    let up = m.expert_linear(x, &up, (routing, experts), experts.n_ff)?;
    let activated = m.plan.activate(activation, up);
    let out = combined(m, layer, (routing, experts), activated)?;
    match experts.n_latent {
        Some(_) => m.linear(out, &layer.tensor("ffn_latent_up"), m.config.n_embd),
        None => Ok(out),
    }
}

/// Records the choice of experts for each token.
pub(crate) fn routing(
    m: &mut Builder<'_>,
    layer: Layer<'_>,
    experts: &Experts,
    of_router: Value,
) -> Result<Routing, LoadError> {
    let n_experts = experts.n_experts;
    let scores = m.linear(of_router, &layer.tensor("ffn_gate_inp"), n_experts)?;
    let scales = match are_in_weights(m, layer, experts) {
        true => m.expert_scales(&layer.tensor(DOWN), n_experts)?,
        false => None,
    };
    let vectors = ExpertVectors {
        bias: selection_bias(m, layer, n_experts)?,
        scales,
    };
    let routing = m.plan.route(scores, vectors, experts.router);
    Ok(routing.weighing(experts.weighed))
}

/// Returns whether the factors on the experts' outputs, if the file has any, are among the router's weights, which multiply
/// the same values.
fn are_in_weights(m: &Builder<'_>, layer: Layer<'_>, experts: &Experts) -> bool {
    let bias = layer.tensor(&format!("{DOWN}.bias"));
    experts.weighed == Weighed::Outputs && !m.loader.has(&bias)
}

/// Records the sum of the experts' down projections of `activated`.
fn combined(
    m: &mut Builder<'_>,
    layer: Layer<'_>,
    chosen: (Routing, &Experts),
    activated: Value,
) -> Result<Value, LoadError> {
    let down = layer.tensor(DOWN);
    let n_out = chosen.1.n_latent.unwrap_or(m.config.n_embd);
    let scales = match are_in_weights(m, layer, chosen.1) {
        true => None,
        false => m.expert_scales(&down, chosen.1.n_experts)?,
    };
    let out = m.scaled_expert_linear(activated, (&down, scales), chosen, n_out)?;
    Ok(m.plan.combine_experts(out, chosen.0))
}

/// Records the gates and up projections of the chosen experts, whose matrices are one tensor if the file has it.
fn gate_and_up(
    m: &mut Builder<'_>,
    layer: Layer<'_>,
    chosen: (Routing, &Experts),
    x: Value,
) -> Result<[Value; 2], LoadError> {
    let n_ff = chosen.1.n_ff;
    let both = layer.tensor("ffn_gate_up_exps");
    if m.loader.has(&format!("{both}.weight")) {
        let scales = m.expert_scales(&both, chosen.1.n_experts)?;
        let mut part = |part: usize| {
            let stack = ExpertStack {
                n_experts: chosen.1.n_experts,
                n_parts: 2,
                part,
            };
            m.expert_part(x, (&both, scales), (chosen.0, stack), n_ff)
        };
        return Ok([part(0)?, part(1)?]);
    }
    Ok([
        m.expert_linear(x, &layer.tensor("ffn_gate_exps"), chosen, n_ff)?,
        m.expert_linear(x, &layer.tensor("ffn_up_exps"), chosen, n_ff)?,
    ])
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

/// Records the output of a shared expert of width `n_ff` without a gate: `down(activation(up(x)))`.
pub(crate) fn plain_shared(
    m: &mut Builder<'_>,
    layer: Layer<'_>,
    (activation, n_ff): (Activation, usize),
    x: Value,
) -> Result<Value, LoadError> {
    let up = m.linear(x, &layer.tensor("ffn_up_shexp"), n_ff)?;
    let activated = m.plan.activate(activation, up);
    m.linear(activated, &layer.tensor("ffn_down_shexp"), m.config.n_embd)
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
    let activation = limited(activation, layer.facts.limit);
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
