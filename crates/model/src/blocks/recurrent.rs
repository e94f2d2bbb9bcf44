//! Layers that keep a state of each sequence in place of a KV cache.

use rocmforge_plan::{
    Activation, ConvForm, Decay, Factor, LinearHeads, LinearInputs, StateRule, Value,
};

use crate::blocks::attention::own_attention;
use crate::blocks::channel_delta::channel_delta;
use crate::blocks::selective::selective;
use crate::builder::Builder;
use crate::error::LoadError;
use crate::facts::Layer;
use crate::recurrent::{LinearLayer, Recurrent};

/// Records what the layer has in place of attention.
pub(super) fn recurrent_layer(
    m: &mut Builder<'_>,
    layer: Layer<'_>,
    recurrent: Recurrent,
    x: Value,
) -> Result<Value, LoadError> {
    match recurrent {
        Recurrent::ShortConv(n) => short_conv(m, layer, n, x),
        Recurrent::GatedDelta(linear) => gated_delta(m, layer, &linear, x),
        Recurrent::ChannelDelta(linear, decay) => channel_delta(m, layer, (&linear, decay), x),
        Recurrent::Selective(scan) => selective(m, layer, &scan, x),
        Recurrent::Mamba2(linear) => mamba2(m, layer, &linear, x),
        Recurrent::BesideAttention(linear) => {
            let beside = mamba2(m, layer, &linear, x)?;
            let out = own_attention(m, layer, x)?;
            Ok(m.plan.add(beside, out))
        }
    }
}

/// Records `out_proj(c * conv(b * x))`, where b, c and x are projections.
fn short_conv(
    m: &mut Builder<'_>,
    layer: Layer<'_>,
    n: usize,
    x: Value,
) -> Result<Value, LoadError> {
    let n_embd = m.config.n_embd;
    let all = m.linear(x, &layer.tensor("shortconv.in_proj"), 3 * n_embd)?;
    let kernel = layer.tensor("shortconv.conv.weight");
    let kernel = m.loader.conv_kernel(&kernel, n_embd, n)?;
    let conv = (kernel, None, n);
    let out = m.plan.causal_conv(all, conv, ConvForm::Gated, n_embd);
    m.linear(out, &layer.tensor("shortconv.out_proj"), n_embd)
}

/// Records a gated delta net: linear attention with the delta rule over a short convolution of queries, keys and values,
/// whose queries and keys have length 1; then a norm of each head, times a gate.
fn gated_delta(
    m: &mut Builder<'_>,
    layer: Layer<'_>,
    linear: &LinearLayer,
    x: Value,
) -> Result<Value, LoadError> {
    let (n_k, n_v) = (linear.n_k(), linear.n_v());
    let (mixed, gate) = mixed_and_gate(m, layer, linear, x)?;
    let (beta, alpha) = beta_and_alpha(m, layer, linear, x)?;
    let beta = m.plan.activate(Activation::Sigmoid, beta);
    let a = layer.tensor("ssm_a");
    let a = m.loader.vector(&a, linear.heads.n_heads, 1.0)?;
    let decay = m.plan.activate(Activation::Softplus, alpha);
    let decay = m.plan.scale(Factor::Vector(a), decay);

    let mixed = convolved(m, layer, linear, mixed)?;
    let [q, k] = [0, n_k].map(|first| m.plan.part(mixed, 1, first, n_k));
    let v = m.plan.part(mixed, 1, 2 * n_k, n_v);
    let [q, k] = unit_keys(m, &linear.heads, [q, k]);
    let inputs = LinearInputs {
        q,
        k,
        v,
        decay,
        beta,
    };
    let how = (StateRule::Delta, Decay::Head);
    let out = m.plan.linear_attention(linear.heads, how, inputs);
    let out = normed_and_gated(m, layer, (Activation::Silu, gate), linear, out)?;
    m.linear(out, &layer.tensor("ssm_out"), m.config.n_embd)
}

/// Records the heads of `q` and `k` in length 1, those of `q` divided by the root of their width.
pub(super) fn unit_keys(
    m: &mut Builder<'_>,
    heads: &LinearHeads,
    [q, k]: [Value; 2],
) -> [Value; 2] {
    // The length of a row is the root of the sum of squares, not of their mean.
    let width = heads.k_dim as f32;
    let mut unit = |x: Value, factor: f32| {
        let weight = m.loader.push_constant(heads.k_dim, factor);
        m.plan.rms_norm(x, weight, m.config.norm_eps / width)
    };
    [unit(q, 1.0 / width), unit(k, 1.0 / width.sqrt())]
}

/// Records the norm of each head, times the gate.
pub(super) fn normed_and_gated(
    m: &mut Builder<'_>,
    layer: Layer<'_>,
    (activation, gate): (Activation, Value),
    linear: &LinearLayer,
    out: Value,
) -> Result<Value, LoadError> {
    let norm = layer.tensor("ssm_norm.weight");
    let norm = m.loader.vector(&norm, linear.heads.v_dim, 1.0)?;
    let out = m.plan.rms_norm(out, norm, m.config.norm_eps);
    Ok(m.plan.gated_activation(activation, gate, out))
}

/// Records the inputs of the convolution, queries, keys and values, and the gate. Old files have all in one tensor, by head
/// of keys.
fn mixed_and_gate(
    m: &mut Builder<'_>,
    layer: Layer<'_>,
    linear: &LinearLayer,
    x: Value,
) -> Result<(Value, Value), LoadError> {
    let (n_k, n_v) = (linear.n_k(), linear.n_v());
    let all = layer.tensor("ssm_in");
    if !m.loader.has(&format!("{all}.weight")) {
        let mixed = m.linear(x, &layer.tensor("attn_qkv"), 2 * n_k + n_v)?;
        let gate = m.linear(x, &layer.tensor("attn_gate"), n_v)?;
        return Ok((mixed, gate));
    }
    let (n_groups, k_dim) = (linear.heads.n_k_heads, linear.heads.k_dim);
    let all = m.linear(x, &all, 2 * (n_k + n_v))?;
    let mut first = 0;
    let [q, k, v, gate] = [n_k, n_k, n_v, n_v].map(|width| {
        let part = m.plan.part(all, n_groups, first, width);
        first += width / n_groups;
        part
    });
    assert_eq!(first, 2 * (k_dim + n_v / n_groups), "a group");
    // Side by side: rows of one head each, followed by the next.
    let mixed = m.plan.join_heads(1, q, Some((k, n_k)));
    let mixed = m.plan.join_heads(1, mixed, Some((v, n_v)));
    Ok((mixed, gate))
}

/// Records what becomes the factor on new values, and what becomes the decay.
fn beta_and_alpha(
    m: &mut Builder<'_>,
    layer: Layer<'_>,
    linear: &LinearLayer,
    x: Value,
) -> Result<(Value, Value), LoadError> {
    let n = linear.heads.n_heads;
    let dt = m.loader.required_values(&layer.tensor("ssm_dt.bias"), n)?;
    let both = layer.tensor("ssm_ba");
    if !m.loader.has(&format!("{both}.weight")) {
        let beta = m.linear(x, &layer.tensor("ssm_beta"), n)?;
        let alpha = m.linear_plus(x, &layer.tensor("ssm_alpha"), (n, 0..n), dt)?;
        return Ok((beta, alpha));
    }
    // By head of keys: the factors of its heads of values, then what becomes their decays.
    let n_groups = linear.heads.n_k_heads;
    let of_group = n / n_groups;
    let bias = dt.chunks(of_group);
    let bias = bias.flat_map(|dt| [&vec![0.0; of_group][..], dt].concat());
    let both = m.linear_plus(x, &both, (2 * n, 0..2 * n), bias.collect())?;
    let [beta, alpha] = [0, of_group].map(|first| m.plan.part(both, n_groups, first, n));
    Ok((beta, alpha))
}

/// Records a Mamba-2 layer: linear attention whose values are added as they are, over a short convolution of values, keys
/// and queries; the values times a factor of each head; a gate, and a norm of each group of heads if the layer has one.
fn mamba2(
    m: &mut Builder<'_>,
    layer: Layer<'_>,
    linear: &LinearLayer,
    x: Value,
) -> Result<Value, LoadError> {
    let (n_k, n_v, heads) = (linear.n_k(), linear.n_v(), linear.heads);
    let all = layer.tensor("ssm_in");
    let n_mixed = n_v + 2 * n_k;
    let n_all = n_v + n_mixed + heads.n_heads;
    let gate = m.linear_rows(x, &all, n_all, 0..n_v)?;
    let mixed = m.linear_rows(x, &all, n_all, n_v..n_v + n_mixed)?;
    let dt = layer.tensor("ssm_dt.bias");
    let dt = m.loader.required_values(&dt, heads.n_heads)?;
    let dt = m.linear_plus(x, &all, (n_all, n_v + n_mixed..n_all), dt)?;
    let beta = m.plan.activate(Activation::Softplus, dt);
    let decay = m.plan.activate(Activation::Softplus, dt);
    let [a, d] = ["ssm_a", "ssm_d"].map(|name| layer.tensor(name));
    let a = m.loader.required_rows(&a, [heads.n_heads, 1])?;
    let a = m.loader.push_vector(a);
    let decay = m.plan.scale(Factor::Vector(a), decay);

    let mixed = convolved(m, layer, linear, mixed)?;
    let v = m.plan.part(mixed, 1, 0, n_v);
    let [k, q] = [n_v, n_v + n_k].map(|first| m.plan.part(mixed, 1, first, n_k));
    let inputs = LinearInputs {
        q,
        k,
        v,
        decay,
        beta,
    };
    let how = (StateRule::Add, Decay::Head);
    let out = m.plan.linear_attention(heads, how, inputs);
    let d = m.loader.required_rows(&d, [heads.n_heads, 1])?;
    let d = d.iter().flat_map(|&d| vec![d; heads.v_dim]).collect();
    let d = m.loader.push_vector(d);
    let skipped = m.plan.scale(Factor::Vector(d), v);
    let out = m.plan.add(skipped, out);
    let out = m.plan.gated_activation(Activation::Silu, gate, out);
    let out = normed_groups(m, layer, linear, out)?;
    m.linear(out, &layer.tensor("ssm_out"), m.config.n_embd)
}

/// Records the norm of each group of heads, with weights of its own. Beside attention there may be none.
fn normed_groups(
    m: &mut Builder<'_>,
    layer: Layer<'_>,
    linear: &LinearLayer,
    x: Value,
) -> Result<Value, LoadError> {
    let norm = layer.tensor("ssm_norm.weight");
    let is_beside = matches!(layer.facts.recurrent, Some(Recurrent::BesideAttention(_)));
    if is_beside && !m.loader.has(&norm) {
        return Ok(x);
    }
    let n_groups = linear.heads.n_k_heads;
    let width = linear.n_v() / n_groups;
    let weight = m.loader.required_rows(&norm, [n_groups, width])?;
    let weight = m.loader.push_vector(weight);
    let eps = m.config.norm_eps;
    Ok(m.plan.rms_norm_groups(x, (weight, n_groups), eps))
}

/// Records `silu(conv(x))` of the layer's convolution, which may have a bias.
pub(super) fn convolved(
    m: &mut Builder<'_>,
    layer: Layer<'_>,
    linear: &LinearLayer,
    x: Value,
) -> Result<Value, LoadError> {
    let width = x.width();
    let kernel = layer.tensor("ssm_conv1d.weight");
    let kernel = m.loader.conv_kernel(&kernel, width, linear.n_conv)?;
    let bias = layer.tensor("ssm_conv1d.bias");
    let bias = m.loader.opt_part(&bias, width, 0..width, 1.0)?;
    let conv = (kernel, bias, linear.n_conv);
    let out = m.plan.causal_conv(x, conv, ConvForm::Plain, width);
    Ok(m.plan.activate(Activation::Silu, out))
}
