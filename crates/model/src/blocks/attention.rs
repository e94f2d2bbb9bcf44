//! Softmax attention with heads of keys and values that query heads share (MHA, GQA, MQA).

use rocmforge_plan::{Factor, KvSpec, Value, Values};

use crate::blocks::latent::latent_attention;
use crate::blocks::recurrent::recurrent_layer;
use crate::builder::Builder;
use crate::error::LoadError;
use crate::facts::{HeadNorm, Layer, LayerFacts};

/// Records `attn_output(attention(x))`, with the layer's heads, norms of heads, rotation and window; or what the layer has
/// in place of attention.
pub(crate) fn attention(
    m: &mut Builder<'_>,
    layer: Layer<'_>,
    x: Value,
) -> Result<Value, LoadError> {
    match layer.facts.recurrent {
        Some(recurrent) => recurrent_layer(m, layer, recurrent, x),
        None => own_attention(m, layer, x),
    }
}

/// Records the attention of a layer, whatever else it has.
pub(super) fn own_attention(
    m: &mut Builder<'_>,
    layer: Layer<'_>,
    x: Value,
) -> Result<Value, LoadError> {
    let facts = layer.facts;
    if let Some(latent) = &facts.latent {
        return latent_attention(m, layer, latent, x);
    }
    let heads = attention_heads(m, layer, x)?;
    m.linear(heads, &layer.tensor("attn_output"), m.config.n_embd)
}

/// Records the outputs of a layer's heads, side by side.
pub(crate) fn attention_heads(
    m: &mut Builder<'_>,
    layer: Layer<'_>,
    x: Value,
) -> Result<Value, LoadError> {
    let facts = layer.facts;
    let ([q, k, v], gate) = projections(m, layer, x)?;
    let is_normed_last = matches!(
        facts.head_norm,
        HeadNorm::EachAfterRope | HeadNorm::PlainAfterRope
    );
    let [mut q, mut k] = match is_normed_last {
        true => [q, k],
        false => normed_heads(m, layer, [q, k])?,
    };
    if let Some(rope) = facts.rope {
        q = m.rotate(q, [facts.k_dim, 0], rope);
        k = m.rotate(k, [facts.k_dim, 0], rope);
    }
    if is_normed_last {
        [q, k] = normed_heads(m, layer, [q, k])?;
    }
    let cache = m.plan.kv_layer(KvSpec {
        n_kv_heads: facts.n_kv_heads,
        k_dim: facts.k_dim,
        v_dim: facts.v_dim,
        mask: facts.mask,
        values: Values::Apart,
        heads: None,
    });
    m.plan.kv_append(cache, k, v);
    let sinks = match facts.has_sinks {
        true => {
            let tensor = layer.tensor("attn_sinks.weight");
            Some(m.loader.vector(&tensor, facts.n_heads, 1.0)?)
        }
        false => None,
    };
    let heads = m
        .plan
        .attention(cache, (facts.n_heads, sinks), facts.scores, q);
    gated(m, layer, (x, gate), heads)
}

/// Records Q, K and V, whose matrices are one tensor if the file has it, and the gates if they are among the queries.
fn projections(
    m: &mut Builder<'_>,
    layer: Layer<'_>,
    x: Value,
) -> Result<([Value; 3], Option<Value>), LoadError> {
    let facts = layer.facts;
    let n_q = facts.n_heads * facts.k_dim;
    let n_k = facts.n_kv_heads * facts.k_dim;
    let n_v = facts.n_kv_heads * facts.v_dim;
    let all = layer.tensor("attn_qkv");
    let n_first = match facts.has_gates_in_q {
        true => 2 * n_q,
        false => n_q,
    };
    let [q, k, v] = match m.loader.has(&format!("{all}.weight")) {
        true => {
            let n = n_first + n_k + n_v;
            [
                m.linear_rows(x, &all, n, 0..n_first)?,
                m.linear_rows(x, &all, n, n_first..n_first + n_k)?,
                m.linear_rows(x, &all, n, n_first + n_k..n)?,
            ]
        }
        false => [
            m.linear(x, &layer.tensor("attn_q"), n_first)?,
            m.linear(x, &layer.tensor("attn_k"), n_k)?,
            m.linear(x, &layer.tensor("attn_v"), n_v)?,
        ],
    };
    if !facts.has_gates_in_q {
        return Ok(([q, k, v], None));
    }
    let parts = [0, facts.k_dim].map(|first| m.plan.part(q, facts.n_heads, first, n_q));
    Ok(([parts[0], k, v], Some(parts[1])))
}

/// Records the norms of the heads of Q and K, if the layer has them.
fn normed_heads(
    m: &mut Builder<'_>,
    layer: Layer<'_>,
    [q, k]: [Value; 2],
) -> Result<[Value; 2], LoadError> {
    let q = normed(m, q, &layer.tensor("attn_q_norm.weight"), layer.facts)?;
    let k = normed(m, k, &layer.tensor("attn_k_norm.weight"), layer.facts)?;
    Ok([q, k])
}

/// Records the norm `tensor` of the heads of `x`, if the layer has one.
pub(crate) fn normed(
    m: &mut Builder<'_>,
    x: Value,
    tensor: &str,
    facts: &LayerFacts,
) -> Result<Value, LoadError> {
    if facts.head_norm == HeadNorm::TogetherCentered {
        return match m.loader.has(tensor) {
            true => m.layer_norm(x, tensor.trim_end_matches(".weight")),
            false => Ok(x),
        };
    }
    if facts.head_norm == HeadNorm::OwnCentered {
        return match m.loader.has(tensor) {
            true => own_centered(m, x, tensor, facts.k_dim),
            false => Ok(x),
        };
    }
    if facts.head_norm == HeadNorm::Own {
        let n_heads = x.width() / facts.k_dim;
        let weights = m.loader.required_rows(tensor, [n_heads, facts.k_dim])?;
        let weights = m.loader.push_vector(weights);
        let ones = m.loader.push_constant(facts.k_dim, 1.0);
        let x = m.plan.rms_norm(x, ones, m.config.norm_eps);
        return Ok(m.plan.scale(Factor::Vector(weights), x));
    }
    let width = match facts.head_norm {
        HeadNorm::IfPresent if !m.loader.has(tensor) => return Ok(x),
        HeadNorm::PlainAfterRope => {
            let ones = m.loader.push_constant(facts.k_dim, 1.0);
            return Ok(m.plan.rms_norm(x, ones, m.config.norm_eps));
        }
        HeadNorm::IfPresent | HeadNorm::Each | HeadNorm::EachAfterRope => facts.k_dim,
        HeadNorm::Together | HeadNorm::TogetherCentered | HeadNorm::Own | HeadNorm::OwnCentered => {
            x.width()
        }
    };
    let weight = m.loader.vector(tensor, width, 1.0)?;
    Ok(m.plan.rms_norm(x, weight, m.config.norm_eps))
}

/// Records layer norms of heads of `head_dim` values, each with a row of the tensor as its weight.
fn own_centered(
    m: &mut Builder<'_>,
    x: Value,
    tensor: &str,
    head_dim: usize,
) -> Result<Value, LoadError> {
    let n_heads = x.width() / head_dim;
    let weights = m.loader.required_rows(tensor, [n_heads, head_dim])?;
    let weights = m.loader.push_vector(weights);
    let normed = m.plain_layer_norm(x, head_dim);
    Ok(m.plan.scale(Factor::Vector(weights), normed))
}

/// Multiplies attention's output `heads` by the layer's gate of `x`, which has a value for each value or for each head, and
/// may have been recorded already.
pub(super) fn gated(
    m: &mut Builder<'_>,
    layer: Layer<'_>,
    (x, gate): (Value, Option<Value>),
    heads: Value,
) -> Result<Value, LoadError> {
    let Some(activation) = layer.facts.gate else {
        return Ok(heads);
    };
    if let Some(gate) = gate {
        return Ok(m.plan.gated_activation(activation, gate, heads));
    }
    let tensor = layer.tensor("attn_gate");
    let n_rows = m.loader.n_rows(&format!("{tensor}.weight"));
    let n_gates = match n_rows {
        Some(n) if n == layer.facts.n_heads as u64 => layer.facts.n_heads,
        _ => heads.width(),
    };
    let gate = m.linear(x, &tensor, n_gates)?;
    Ok(m.plan.gated_activation(activation, gate, heads))
}
