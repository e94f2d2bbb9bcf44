//! Gemma 4: Gemma 3 with wider heads in layers without a window, values that are normed without weights and may be the
//! keys, scores that are not scaled, last layers that use the KV cache of earlier ones, (E2B, E4B) inputs of every
//! layer: a row of a second embedding plus a projection of the first, and (26B) experts beside each network.

use rocmforge_plan::{Activation, ExpertWeights, Factor, KvSpec, Router, Value, Values};

use crate::blocks::{embeddings, gated_feed_forward, last_norm, logits, normed, routed_experts};
use crate::builder::Builder;
use crate::error::LoadError;
use crate::experts;
use crate::facts::{Experts, FeedForward, KeyFacts, Layer, ModelConfig, RMS_EPS, SharedExpert};
use crate::keys::{Keys, MAX_DIM};
use crate::rope::Rope;
use crate::windows::{require_pattern, require_window, set_windows};

/// Metadata key of the number of last layers without a KV cache of their own.
const SHARED: &str = "attention.shared_kv_layers";

/// The embedding with the tokens' inputs of all layers.
const LAYER_INPUTS: &str = "per_layer_token_embd.weight";

pub(crate) fn facts(keys: &Keys<'_>, family: &KeyFacts) -> Result<ModelConfig, LoadError> {
    let mut config = layers(keys, family)?;
    share_caches(keys, &mut config, 0)?;
    config.n_layer_inputs = keys.size_or_zero("embedding_length_per_layer_input", MAX_DIM)?;
    let cap = keys.positive_or_zero("final_logit_softcapping")?;
    config.logits_cap = cap.map(|cap| cap as f32);
    Ok(config)
}

/// Reads what the file says about each layer, except whose cache it uses.
pub(super) fn layers(keys: &Keys<'_>, family: &KeyFacts) -> Result<ModelConfig, LoadError> {
    let n_layers = keys.n_layers()?;
    let n_ff = keys.sizes("feed_forward_length", n_layers, MAX_DIM)?;
    let mut config =
        ModelConfig::read(keys, family, RMS_EPS, FeedForward::Dense { n_ff: n_ff[0] })?;
    let experts = match experts::n_experts(keys)? {
        0 => None,
        _ => Some(experts::experts(keys, ExpertWeights::Normalized)?),
    };
    for (index, (layer, n_ff)) in config.layers.iter_mut().zip(n_ff).enumerate() {
        let router = format!("blk.{index}.ffn_gate_inp.weight");
        layer.feed_forward = match experts {
            Some(experts) if keys.gguf.tensor(&router).is_some() => {
                FeedForward::Mixture(beside_network(experts, n_ff))
            }
            _ => FeedForward::Dense { n_ff },
        };
        layer.scores.scale = 1.0;
    }
    let global = config.ropes[0];
    let in_window = Rope {
        base: keys.positive("rope.freq_base_swa")?.unwrap_or(10_000.0),
        n_rot: keys
            .opt_size("rope.dimension_count_swa", MAX_DIM)?
            .unwrap_or(global.n_rot),
        ..global.unscaled()
    };
    require_window(keys)?;
    require_pattern(keys)?;
    set_windows(keys, &mut config, in_window, (None, 1))?;
    let dim = keys.opt_size("attention.key_length_swa", MAX_DIM)?;
    for layer in config
        .layers
        .iter_mut()
        .filter(|layer| layer.rope != Some(0))
    {
        layer.k_dim = dim.unwrap_or(layer.k_dim);
    }
    for (key, has_window) in [("value_length", false), ("value_length_swa", true)] {
        let mut layers = config.layers.iter();
        let alike = layers.find(|layer| (layer.rope != Some(0)) == has_window);
        let (key, k_dim) = (format!("attention.{key}"), alike.map(|layer| layer.k_dim));
        let v_dim = keys.opt_size(&key, MAX_DIM)?;
        if v_dim.is_some() && k_dim.is_some() && v_dim != k_dim {
            return Err(keys.bad(&key, v_dim.unwrap_or(0), "the length of keys"));
        }
    }
    for layer in &mut config.layers {
        layer.v_dim = layer.k_dim;
    }
    Ok(config)
}

/// Returns the experts of a layer whose network is `n_ff` wide. Their weights are not scaled.
fn beside_network(experts: Experts, n_ff: usize) -> Experts {
    Experts {
        router: Router {
            scale: 1.0,
            ..experts.router
        },
        shared: Some(SharedExpert {
            n_ff,
            is_gated: false,
        }),
        ..experts
    }
}

/// Lets each of the last layers, `default` of them if the file does not say how many, use the cache of the last layer
/// before them that has the same kind of attention.
pub(crate) fn share_caches(
    keys: &Keys<'_>,
    config: &mut ModelConfig,
    default: usize,
) -> Result<(), LoadError> {
    let n_shared = match keys.meta.get(&keys.key(SHARED)) {
        None => default,
        Some(_) => keys.size_or_zero(SHARED, config.n_layers())?.unwrap_or(0),
    };
    let n_own = config.n_layers() - n_shared;
    let (own, shared) = config.layers.split_at_mut(n_own);
    for layer in shared {
        let alike = own.iter().rposition(|it| it.rope == layer.rope);
        let alike = alike.filter(|&at| own[at].n_kv_heads == layer.n_kv_heads);
        if alike.is_none() {
            let wanted = "fewer layers than those after the first of each kind";
            return Err(keys.bad(SHARED, n_shared, wanted));
        }
        layer.kv_of = alike;
    }
    Ok(())
}

pub(crate) fn record(m: &mut Builder<'_>) -> Result<Value, LoadError> {
    let eps = m.config.norm_eps;
    let mut x = embeddings(m, (m.config.n_embd as f64).sqrt())?;
    let inputs = match m.config.n_layer_inputs {
        Some(n_inputs) => Some(layer_inputs(m, n_inputs, x)?),
        None => None,
    };
    let mut caches = Vec::new();
    for (index, layer) in m.config.layers().enumerate() {
        m.begin_layer(x);
        let normed = m.rms_norm(x, &layer.tensor("attn_norm"), eps)?;
        let out = attention(m, layer, &mut caches, normed)?;
        x = after_attention(m, layer, out, x)?;
        if let (Some(inputs), Some(n_inputs)) = (inputs, m.config.n_layer_inputs) {
            let input = m.plan.part(inputs, 1, index * n_inputs, n_inputs);
            let gate = m.linear(x, &layer.tensor("inp_gate"), n_inputs)?;
            let gated = m.plan.gated_activation(Activation::GeluTanh, gate, input);
            let out = m.linear(gated, &layer.tensor("proj"), m.config.n_embd)?;
            let out = m.rms_norm(out, &layer.tensor("post_norm"), eps)?;
            x = m.plan.add(out, x);
        }
        x = scaled(m, layer, x)?;
    }
    let x = last_norm(m, x, "output_norm")?;
    logits(m, x, 1.0)
}

/// Records what follows attention in a layer: its output `out` is added to `x`, and that of the network.
pub(super) fn after_attention(
    m: &mut Builder<'_>,
    layer: Layer<'_>,
    out: Value,
    x: Value,
) -> Result<Value, LoadError> {
    let eps = m.config.norm_eps;
    let out = m.rms_norm(out, &layer.tensor("post_attention_norm"), eps)?;
    let x = m.plan.add(out, x);
    let out = network(m, layer, x)?;
    let out = m.rms_norm(out, &layer.tensor("post_ffw_norm"), eps)?;
    Ok(m.plan.add(out, x))
}

/// Records the factor on the output `x` of a layer, if the file has one.
pub(super) fn scaled(m: &mut Builder<'_>, layer: Layer<'_>, x: Value) -> Result<Value, LoadError> {
    let scale = layer.tensor("layer_output_scale.weight");
    Ok(match m.loader.opt_values(&scale, 1)? {
        Some(scale) => m.plan.scale(Factor::Constant(scale[0]), x),
        None => x,
    })
}

/// Records the feed-forward network of `x`, plus the experts if the layer has them. Both have norms of their own.
fn network(m: &mut Builder<'_>, layer: Layer<'_>, x: Value) -> Result<Value, LoadError> {
    let (eps, activation) = (m.config.norm_eps, Activation::GeluTanh);
    let normed = m.rms_norm(x, &layer.tensor("ffn_norm"), eps)?;
    let n_ff = match layer.facts.feed_forward {
        FeedForward::Mixture(Experts {
            shared: Some(shared),
            ..
        }) => shared.n_ff,
        feed_forward => feed_forward.n_ff(),
    };
    let out = gated_feed_forward(m, layer, (activation, n_ff), normed)?;
    let FeedForward::Mixture(experts) = &layer.facts.feed_forward else {
        return Ok(out);
    };
    let out = m.rms_norm(out, &layer.tensor("post_ffw_norm_1"), eps)?;
    let scale = layer.tensor("ffn_gate_inp.scale");
    let factor = 1.0 / (m.config.n_embd as f64).sqrt();
    let scale = m.loader.vector(&scale, m.config.n_embd, factor)?;
    let of_router = m.plan.rms_norm(x, scale, eps);
    let normed = m.rms_norm(x, &layer.tensor("pre_ffw_norm_2"), eps)?;
    let of_experts = routed_experts(m, layer, (activation, experts), [of_router, normed])?;
    let of_experts = m.rms_norm(of_experts, &layer.tensor("post_ffw_norm_2"), eps)?;
    Ok(m.plan.add(of_experts, out))
}

/// Records the inputs of all layers, `n_inputs` values each: the normed projection of the embeddings `x`, plus the
/// tokens' rows of a table, the mean of both being weighted so that the variance stays.
pub(crate) fn layer_inputs(
    m: &mut Builder<'_>,
    n_inputs: usize,
    x: Value,
) -> Result<Value, LoadError> {
    let (n_embd, n_vocab) = (m.config.n_embd, m.config.n_vocab);
    let width = n_inputs * m.config.n_layers();
    let both = 0.5f64.sqrt();
    let scale = ((n_inputs as f64).sqrt() * both) as f32;
    let table = m.loader.matrix(LAYER_INPUTS, n_vocab, width)?;
    let of_tokens = m.plan.embed(table, scale, width);
    let of_tokens = m.adapt_embedding(LAYER_INPUTS, scale, of_tokens)?;
    let projected = m.linear(x, "per_layer_model_proj", width)?;
    // The projection is divided by the root of the embedding's length, which only changes the meaning of epsilon.
    let eps = f64::from(m.config.norm_eps) * n_embd as f64;
    let norm = m
        .loader
        .vector("per_layer_proj_norm.weight", n_inputs, both)?;
    let normed = m.plan.rms_norm(projected, norm, eps as f32);
    Ok(m.plan.add(of_tokens, normed))
}

/// Records `attn_output(attention(x))`. `caches` has the cache of each layer so far.
pub(crate) fn attention(
    m: &mut Builder<'_>,
    layer: Layer<'_>,
    caches: &mut Vec<usize>,
    x: Value,
) -> Result<Value, LoadError> {
    let facts = layer.facts;
    if let Some(other) = facts.kv_of {
        let reason = "its layer uses the KV cache of an earlier one";
        for unused in ["attn_k", "attn_v", "attn_k_norm"] {
            let unused = format!("{}.weight", layer.tensor(unused));
            m.loader.skip(reason, |name| name == unused);
        }
        let cache = caches[other];
        caches.push(cache);
        return attention_to(m, layer, cache, x);
    }
    let n_kv = facts.n_kv_heads * facts.k_dim;
    let q = m.linear(x, &layer.tensor("attn_q"), facts.n_heads * facts.k_dim)?;
    let k = m.linear(x, &layer.tensor("attn_k"), n_kv)?;
    // Without a matrix of their own, values are the keys before norm and rotation.
    let v = match m.loader.has(&layer.tensor("attn_v.weight")) {
        true => m.linear(x, &layer.tensor("attn_v"), n_kv)?,
        false => k,
    };
    let v = {
        let ones = m.loader.push_constant(facts.v_dim, 1.0);
        m.plan.rms_norm(v, ones, m.config.norm_eps)
    };
    let q = normed(m, q, &layer.tensor("attn_q_norm.weight"), facts)?;
    let k = normed(m, k, &layer.tensor("attn_k_norm.weight"), facts)?;
    let (q, k) = (rotated(m, layer, q), rotated(m, layer, k));
    let cache = m.plan.kv_layer(KvSpec {
        n_kv_heads: facts.n_kv_heads,
        k_dim: facts.k_dim,
        v_dim: facts.v_dim,
        mask: facts.mask,
        values: Values::Apart,
        heads: None,
    });
    m.plan.kv_append(cache, k, v);
    caches.push(cache);
    attended(m, layer, cache, q)
}

/// As [`attention`], to what another layer has in the KV cache.
pub(super) fn attention_to(
    m: &mut Builder<'_>,
    layer: Layer<'_>,
    cache: usize,
    x: Value,
) -> Result<Value, LoadError> {
    let facts = layer.facts;
    let q = m.linear(x, &layer.tensor("attn_q"), facts.n_heads * facts.k_dim)?;
    let q = normed(m, q, &layer.tensor("attn_q_norm.weight"), facts)?;
    let q = rotated(m, layer, q);
    attended(m, layer, cache, q)
}

fn rotated(m: &mut Builder<'_>, layer: Layer<'_>, x: Value) -> Value {
    match layer.facts.rope {
        Some(rope) => m.rotate(x, [layer.facts.k_dim, 0], rope),
        None => x,
    }
}

/// Records what the queries `q` find in the cache, times `attn_output`.
fn attended(
    m: &mut Builder<'_>,
    layer: Layer<'_>,
    cache: usize,
    q: Value,
) -> Result<Value, LoadError> {
    let facts = layer.facts;
    let heads = (facts.n_heads, None);
    let heads = m.plan.attention(cache, heads, facts.scores, q);
    m.linear(heads, &layer.tensor("attn_output"), m.config.n_embd)
}
