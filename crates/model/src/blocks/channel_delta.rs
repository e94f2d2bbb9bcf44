//! Gated delta nets with a decay of each channel of keys (Kimi Team 2025, "Kimi Linear"): queries, keys and values each have
//! a convolution of their own, and the gate of the output is a sigmoid.

use rocmforge_plan::{
    Activation, ConvForm, Decay, Factor, LinearHeads, LinearInputs, StateRule, Value,
};

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
    // All products come first: a GPU can compute what is between them and the last one in one launch.
    let parts = parts(m, layer, linear, x)?;
    let beta = m.linear(x, &layer.tensor("ssm_beta"), heads.n_heads)?;
    let (of_decay, gate) = decay_and_gate(m, layer, (linear, decay), x)?;
    let beta = m.plan.activate(Activation::Sigmoid, beta);
    let decay = decayed(m, layer, (linear, decay), of_decay)?;
    let [q, k, v] = convolved_parts(m, layer, linear, parts)?;
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

/// Records what becomes the decay, and the gate of the output. With a softplus, both are projections of narrow vectors.
fn decay_and_gate(
    m: &mut Builder<'_>,
    layer: Layer<'_>,
    (linear, decay): (&LinearLayer, ChannelDecay),
    x: Value,
) -> Result<(Value, Value), LoadError> {
    let (n, k_dim) = (linear.n_k(), linear.heads.k_dim);
    let dt = m.loader.required_values(&layer.tensor("ssm_dt.bias"), n)?;
    let [of_decay, of_gate] = ["ssm_f_a", "ssm_g_a"].map(|name| layer.tensor(name));
    match decay {
        ChannelDecay::Softplus => {
            let [low_decay, low_gate] = [
                m.linear(x, &of_decay, k_dim)?,
                m.linear(x, &of_gate, k_dim)?,
            ];
            let decay = m.linear_plus(low_decay, &layer.tensor("ssm_f_b"), (n, 0..n), dt)?;
            Ok((decay, m.linear(low_gate, &layer.tensor("ssm_g_b"), n)?))
        }
        ChannelDecay::Bounded(_) => {
            let decay = m.linear_plus(x, &of_decay, (n, 0..n), dt)?;
            Ok((decay, m.linear(x, &of_gate, n)?))
        }
    }
}

/// Records the logarithms of the factors on the state.
fn decayed(
    m: &mut Builder<'_>,
    layer: Layer<'_>,
    (linear, decay): (&LinearLayer, ChannelDecay),
    x: Value,
) -> Result<Value, LoadError> {
    let LinearHeads { n_heads, k_dim, .. } = linear.heads;
    let rates = m
        .loader
        .required_rows(&layer.tensor("ssm_a"), [n_heads, 1])?;
    let rates = rates.iter().flat_map(|&a| vec![a; k_dim]).collect();
    let rates = Factor::Vector(m.loader.push_vector(rates));
    Ok(match decay {
        ChannelDecay::Softplus => {
            let decay = m.plan.activate(Activation::Softplus, x);
            m.plan.scale(rates, decay)
        }
        ChannelDecay::Bounded(bound) => {
            let decay = m.plan.scale(rates, x);
            let decay = m.plan.activate(Activation::Sigmoid, decay);
            m.plan.scale(Factor::Constant(bound), decay)
        }
    })
}

/// Records the projections to queries, keys and values, whose matrices are one tensor if the file has it.
fn parts(
    m: &mut Builder<'_>,
    layer: Layer<'_>,
    linear: &LinearLayer,
    x: Value,
) -> Result<[Value; 3], LoadError> {
    let n = linear.n_k();
    let all = layer.tensor("attn_qkv");
    let is_fused = m.loader.has(&format!("{all}.weight"));
    let mut part = |index: usize, name: &str| match is_fused {
        true => m.linear_rows(x, &all, 3 * n, index * n..(index + 1) * n),
        false => m.linear(x, &layer.tensor(&format!("attn_{name}")), n),
    };
    Ok([part(0, "q")?, part(1, "k")?, part(2, "v")?])
}

/// Records `silu(conv(x))` of queries, keys and values.
fn convolved_parts(
    m: &mut Builder<'_>,
    layer: Layer<'_>,
    linear: &LinearLayer,
    [q, k, v]: [Value; 3],
) -> Result<[Value; 3], LoadError> {
    let n = linear.n_k();
    let mut convolved = |x: Value, name: &str| -> Result<Value, LoadError> {
        let kernel = layer.tensor(&format!("ssm_conv1d_{name}.weight"));
        let kernel = m.loader.separate_conv_kernel(&kernel, n, linear.n_conv)?;
        let conv = (kernel, None, linear.n_conv);
        let out = m.plan.causal_conv(x, conv, ConvForm::Plain, n);
        Ok(m.plan.activate(Activation::Silu, out))
    };
    Ok([convolved(q, "q")?, convolved(k, "k")?, convolved(v, "v")?])
}
