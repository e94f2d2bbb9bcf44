//! The second half of a layer, in the forms that families use.

use rocmforge_plan::{Activation, Value};

use crate::blocks::mixture::mixture;
use crate::builder::Builder;
use crate::error::LoadError;
use crate::facts::{FeedForward, Layer};

/// Records `down(activation(gate(x)) * up(x))`, or the layer's mixture of such networks.
pub(crate) fn feed_forward(
    m: &mut Builder<'_>,
    layer: Layer<'_>,
    activation: Activation,
    x: Value,
) -> Result<Value, LoadError> {
    let n_ff = match &layer.facts.feed_forward {
        FeedForward::Mixture(experts) => return mixture(m, layer, (activation, experts), x),
        FeedForward::Dense { n_ff } => *n_ff,
    };
    let activation = limited(activation, layer.facts.limit);
    gated_feed_forward(m, layer, (activation, n_ff), x)
}

/// Returns what SwiGLU becomes with this limit.
pub(crate) fn limited(activation: Activation, limit: Option<f32>) -> Activation {
    limit.map_or(activation, |limit| Activation::SiluClamped { limit })
}

/// Records `down(activation(gate(x)) * up(x))` of width `n_ff`.
pub(crate) fn gated_feed_forward(
    m: &mut Builder<'_>,
    layer: Layer<'_>,
    (activation, n_ff): (Activation, usize),
    x: Value,
) -> Result<Value, LoadError> {
    let gate = m.linear(x, &layer.tensor("ffn_gate"), n_ff)?;
    let up = m.linear(x, &layer.tensor("ffn_up"), n_ff)?;
    let activated = m.plan.gated_activation(activation, gate, up);
    down(m, layer, activated)
}

/// As the network of [`feed_forward`], with the rows of the gate and then those of the up projection in one tensor,
/// `ffn_up`.
pub(crate) fn fused_feed_forward(
    m: &mut Builder<'_>,
    layer: Layer<'_>,
    activation: Activation,
    x: Value,
) -> Result<Value, LoadError> {
    let n_ff = layer.facts.feed_forward.n_ff();
    let both = layer.tensor("ffn_up");
    let gate = m.linear_rows(x, &both, 2 * n_ff, 0..n_ff)?;
    let up = m.linear_rows(x, &both, 2 * n_ff, n_ff..2 * n_ff)?;
    let activated = m.plan.gated_activation(activation, gate, up);
    down(m, layer, activated)
}

/// Records `down(activation(up(x)))`.
pub(crate) fn plain_feed_forward(
    m: &mut Builder<'_>,
    layer: Layer<'_>,
    activation: Activation,
    x: Value,
) -> Result<Value, LoadError> {
    let n_ff = layer.facts.feed_forward.n_ff();
    let up = m.linear(x, &layer.tensor("ffn_up"), n_ff)?;
    let activated = m.plan.activate(activation, up);
    down(m, layer, activated)
}

fn down(m: &mut Builder<'_>, layer: Layer<'_>, x: Value) -> Result<Value, LoadError> {
    m.linear(x, &layer.tensor("ffn_down"), m.config.n_embd)
}
