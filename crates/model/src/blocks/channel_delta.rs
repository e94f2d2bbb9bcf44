//! Gated delta nets with a decay of each channel of keys (Kimi Team 2025, "Kimi Linear"): queries, keys and values each have
//! a convolution of their own, and the gate of the output is a sigmoid.

use rocmforge_plan::{Activation, ConvForm, Decay, Factor, LinearInputs, StateRule, Value};

use crate::blocks::recurrent::{normed_and_gated, unit_keys};
use crate::builder::Builder;
use crate::error::LoadError;
use crate::facts::Layer;
use crate::recurrent::{ChannelDecay, LinearLayer};

/// Records the layer.
pub(super) fn channel_delta(
    m: &mut Builder<'_>,
    layer: Layer<'_>,
    (linear, decay): (&LinearLayer, ChannelDecay),
    x: Value,
) -> Result<Value, LoadError> {
    let heads = linear.heads;
    let beta = m.linear(x, &layer.tensor("ssm_beta"), heads.n_heads)?;
    let beta = m.plan.activate(Activation::Sigmoid, beta);
    let (decay, gate) = decay_and_gate(m, layer, (linear, decay), x)?;
    let [q, k, v] = convolved_parts(m, layer, linear, x)?;
    let [q, k] = unit_keys(m, &heads, [q, k]);
    let inputs = LinearInputs {
        q,
        k,
        v,
        decay,
        beta,
    };
    let how = (StateRule::Delta, Decay::Channel);
    let out = m.plan.linear_attention(heads, how, inputs);
    let out = normed_and_gated(m, layer, (Activation::Sigmoid, gate), linear, out)?;
    m.linear(out, &layer.tensor("attn_output"), m.config.n_embd)
}

/// Records the logarithms of the factors on the state, and the gate of the output. With a softplus, both are projections of
/// narrow vectors.
fn decay_and_gate(
    m: &mut Builder<'_>,
    layer: Layer<'_>,
    (linear, decay): (&LinearLayer, ChannelDecay),
    x: Value,
) -> Result<(Value, Value), LoadError> {
    let (n, k_dim, n_heads) = (linear.n_k(), linear.heads.k_dim, linear.heads.n_heads);
    let dt = m.loader.required_values(&layer.tensor("ssm_dt.bias"), n)?;
    let rates = m
        .loader
        .required_rows(&layer.tensor("ssm_a"), [n_heads, 1])?;
    let rates = rates.iter().flat_map(|&a| vec![a; k_dim]).collect();
    let rates = Factor::Vector(m.loader.push_vector(rates));
    let [of_decay, of_gate] = ["ssm_f_a", "ssm_g_a"].map(|name| layer.tensor(name));
    match decay {
        ChannelDecay::Softplus => {
            let low = m.linear(x, &of_decay, k_dim)?;
            let decay = m.linear_plus(low, &layer.tensor("ssm_f_b"), (n, 0..n), dt)?;
            let decay = m.plan.activate(Activation::Softplus, decay);
            let low = m.linear(x, &of_gate, k_dim)?;
            let gate = m.linear(low, &layer.tensor("ssm_g_b"), n)?;
            Ok((m.plan.scale(rates, decay), gate))
        }
        ChannelDecay::Bounded(bound) => {
            let decay = m.linear_plus(x, &of_decay, (n, 0..n), dt)?;
            let decay = m.plan.scale(rates, decay);
            let decay = m.plan.activate(Activation::Sigmoid, decay);
            let gate = m.linear(x, &of_gate, n)?;
            Ok((m.plan.scale(Factor::Constant(bound), decay), gate))
        }
    }
}

/// Records `silu(conv(x))` of queries, keys and values, whose matrices are one tensor if the file has it.
fn convolved_parts(
    m: &mut Builder<'_>,
    layer: Layer<'_>,
    linear: &LinearLayer,
    x: Value,
) -> Result<[Value; 3], LoadError> {
    let n = linear.n_k();
    let all = layer.tensor("attn_qkv");
    let is_fused = m.loader.has(&format!("{all}.weight"));
    let mut part = |index: usize, name: &str| -> Result<Value, LoadError> {
        let value = match is_fused {
            true => m.linear_rows(x, &all, 3 * n, index * n..(index + 1) * n)?,
            false => m.linear(x, &layer.tensor(&format!("attn_{name}")), n)?,
        };
        let kernel = layer.tensor(&format!("ssm_conv1d_{name}.weight"));
        let kernel = m.loader.separate_conv_kernel(&kernel, n, linear.n_conv)?;
        let conv = (kernel, None, linear.n_conv);
        let out = m.plan.causal_conv(value, conv, ConvForm::Plain, n);
        Ok(m.plan.activate(Activation::Silu, out))
    };
    Ok([part(0, "q")?, part(1, "k")?, part(2, "v")?])
}
