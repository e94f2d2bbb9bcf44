//! Gemma 3n (E2B, E4B): Gemma 3 with several residual streams, of which the first passes through the layer and corrects a
//! prediction of all (AltUp), a low-rank layer beside attention (LAuReL), sparse gates in the first layers, and what
//! Gemma 4 also has: inputs of every layer, and last layers that use the KV cache of earlier ones.

use rocmforge_gguf::Value as Number;
use rocmforge_plan::{Activation, Factor, Mixing, Projection, Value, WeightId};

use crate::blocks::{embeddings, logits};
use crate::builder::Builder;
use crate::error::LoadError;
use crate::facts::{FeedForward, KeyFacts, Layer, ModelConfig, RMS_EPS};
use crate::families::gemma4::{attention, layer_inputs, share_caches};
use crate::keys::{Keys, MAX_DIM};
use crate::rope::Rope;
use crate::windows::{require_window, set_windows};

/// Values of a layer's input in files that do not state it.
const N_INPUTS: usize = 256;
/// Layers with a KV cache of their own in files that do not state it.
const N_OWN_CACHES: usize = 20;
/// Layers with sparse gates in files that do not state them, and how far a value must exceed the mean to be kept, in
/// standard deviations: 5 % of a normal distribution do.
const N_SPARSE: usize = 10;
const SPARSITY: f32 = 1.644_853_6;

const MAX_STREAMS: usize = 16;

/// The projections of the first stream to the others, and those of the others back.
const SPREAD: &str = "altup_proj.weight";
const GATHER: &str = "altup_unembd_proj.weight";

pub(crate) fn facts(keys: &Keys<'_>, family: &KeyFacts) -> Result<ModelConfig, LoadError> {
    let n_layers = keys.n_layers()?;
    let n_ff = keys.sizes("feed_forward_length", n_layers, MAX_DIM)?;
    let mut config =
        ModelConfig::read(keys, family, RMS_EPS, FeedForward::Dense { n_ff: n_ff[0] })?;
    let sparsity = sparsity(keys, n_layers)?;
    for (index, layer) in config.layers.iter_mut().enumerate() {
        layer.feed_forward = FeedForward::Dense { n_ff: n_ff[index] };
        layer.sparsity = sparsity[index];
        layer.scores.scale = 1.0;
        if layer.v_dim != layer.k_dim {
            let wanted = "the length of keys";
            return Err(keys.bad("attention.value_length", layer.v_dim, wanted));
        }
    }
    let in_window = Rope {
        base: keys.positive("rope.freq_base_swa")?.unwrap_or(10_000.0),
        ..config.ropes[0].unscaled()
    };
    require_window(keys)?;
    set_windows(keys, &mut config, in_window, (None, 5))?;
    share_caches(keys, &mut config, n_layers.saturating_sub(N_OWN_CACHES))?;
    let n_inputs = keys.opt_size("embedding_length_per_layer_input", MAX_DIM)?;
    config.n_layer_inputs = Some(n_inputs.unwrap_or(N_INPUTS));
    config.n_streams = n_streams(keys)?;
    let cap = keys.positive_or_zero("final_logit_softcapping")?;
    config.logits_cap = Some(cap.unwrap_or(30.0) as f32);
    Ok(config)
}

fn n_streams(keys: &Keys<'_>) -> Result<usize, LoadError> {
    const COUNT: &str = "altup.num_inputs";
    const ACTIVE: &str = "altup.active_idx";
    match keys.opt_count(ACTIVE, u32::MAX as usize)? {
        None | Some(0) => {}
        Some(other) => return Err(keys.bad(ACTIVE, other, "0, the first stream")),
    }
    match keys.opt_count(COUNT, u32::MAX as usize)?.unwrap_or(4) {
        n if (2..=MAX_STREAMS).contains(&n) => Ok(n),
        n => Err(keys.bad(COUNT, n, "2 to 16 streams")),
    }
}

/// Reads how sparse the gate of each layer is; minus infinity means not at all.
fn sparsity(keys: &Keys<'_>, n_layers: usize) -> Result<Vec<Option<f32>>, LoadError> {
    const KEY: &str = "activation_sparsity_scale";
    let wanted = "a number for each layer";
    match keys.meta.get(&keys.key(KEY)) {
        None => Ok((0..n_layers)
            .map(|layer| (layer < N_SPARSE).then_some(SPARSITY))
            .collect()),
        Some(Number::Array(list)) if list.len() == n_layers => {
            let number = |value: Number<'_>| match value {
                Number::F32(f32::NEG_INFINITY) => Ok(None),
                Number::F32(number) if number.is_finite() => Ok(Some(number)),
                _ => Err(keys.bad(KEY, "another kind of list", wanted)),
            };
            list.iter().map(number).collect()
        }
        Some(_) => Err(keys.bad(KEY, "another value", wanted)),
    }
}

pub(crate) fn record(m: &mut Builder<'_>) -> Result<Value, LoadError> {
    let (n, n_embd) = (m.config.n_streams, m.config.n_embd);
    let n_inputs = m.config.n_layer_inputs.unwrap_or(N_INPUTS);
    let x = embeddings(m, (n_embd as f64).sqrt())?;
    let inputs = layer_inputs(m, n_inputs, x)?;
    let mut streams = spread(m, x)?;
    // Only streams after the first take the input of a layer.
    let is_later = (0..n).map(|i| if i == 0 { 0.0 } else { 1.0 });
    let is_later = m.loader.push_vector(is_later.collect());
    let mut caches = Vec::new();
    for (index, layer) in m.config.layers().enumerate() {
        m.plan.begin_layer();
        let predicted = predicted(m, layer, streams)?;
        let active = m.plan.part(predicted, 1, 0, n_embd);
        let out = block(m, layer, &mut caches, active)?;
        let corrected = corrected(m, layer, predicted, [active, out])?;
        let input = m.plan.part(inputs, 1, index * n_inputs, n_inputs);
        streams = with_input(m, layer, corrected, (input, is_later))?;
    }
    let x = gathered(m, streams)?;
    let x = m.plan.select_rows(x);
    // The norm of the sum of streams is that of their mean, with another epsilon.
    let eps = f64::from(m.config.norm_eps) * (n * n) as f64;
    let x = m.rms_norm(x, "output_norm", eps as f32)?;
    logits(m, x, 1.0)
}

/// Records all streams: the first, `x`, and projections of it, of the same length.
fn spread(m: &mut Builder<'_>, x: Value) -> Result<Value, LoadError> {
    let (n, n_embd) = (m.config.n_streams, m.config.n_embd);
    let weight = m.loader.experts(SPREAD, n - 1, n_embd, n_embd)?;
    let rest = m.product(x, SPREAD, (weight, None), (n - 1) * n_embd);
    let rest = m.plan.match_length(x, rest);
    let first = (0..n).map(|i| f32::from(u8::from(i == 0))).collect();
    let first = m.loader.push_vector(first);
    let streams = m.plan.mix(Mixing::Same(first), (x, n_embd), n);
    let after = (0..n * (n - 1)).map(|at| f32::from(u8::from(at / (n - 1) == at % (n - 1) + 1)));
    let after = m.loader.push_vector(after.collect());
    Ok(m.plan.add_mix(Mixing::Same(after), (rest, n_embd), streams))
}

/// Records the sum of the first stream and of projections of the others, of the length of the first.
fn gathered(m: &mut Builder<'_>, streams: Value) -> Result<Value, LoadError> {
    let (n, n_embd) = (m.config.n_streams, m.config.n_embd);
    let first = m.plan.part(streams, 1, 0, n_embd);
    let rest = m.plan.part(streams, 1, n_embd, (n - 1) * n_embd);
    let weight = m.loader.experts(GATHER, n - 1, n_embd, n_embd)?;
    let matrices = Projection::of(weight, m.act_format(GATHER));
    let rest = m
        .plan
        .head_matmul(rest, [0, n_embd], (matrices, n - 1), n_embd);
    let rest = m.plan.join_heads(n - 1, rest, None);
    let rest = m.plan.match_length(first, rest);
    let ones = m.loader.push_constant(n - 1, 1.0);
    Ok(m.plan.add_mix(Mixing::Same(ones), (rest, n_embd), first))
}

/// Records what `x` says about each stream.
fn modalities(m: &mut Builder<'_>, layer: Layer<'_>, x: Value) -> Result<Value, LoadError> {
    let (n, n_embd) = (m.config.n_streams, m.config.n_embd);
    let norm = layer.tensor("altup_router_norm");
    let normed = m.scaled_rms_norm(x, &norm, m.config.norm_eps, 1.0 / n_embd as f64)?;
    let scores = m.linear(normed, &layer.tensor("altup_router"), n)?;
    // A cap of 1 is tanh itself.
    Ok(m.plan.soft_cap(1.0, scores))
}

/// Records the streams, each plus a mix of all.
fn predicted(m: &mut Builder<'_>, layer: Layer<'_>, streams: Value) -> Result<Value, LoadError> {
    let (n, n_embd) = (m.config.n_streams, m.config.n_embd);
    let first = m.plan.part(streams, 1, 0, n_embd);
    let modalities = modalities(m, layer, first)?;
    // The streams themselves are the mix with an identity.
    let identity = (0..n * n).map(|at| f32::from(u8::from(at / n == at % n)));
    let tensor = layer.tensor("altup_predict_coef");
    let weights = m.linear_plus(modalities, &tensor, (n * n, 0..n * n), identity.collect())?;
    Ok(m.plan.mix(Mixing::OfRows(weights), (streams, n_embd), n))
}

/// Records the predicted streams, each plus a multiple of what the layer changed in the first: from `active` to `out`.
fn corrected(
    m: &mut Builder<'_>,
    layer: Layer<'_>,
    predicted: Value,
    [active, out]: [Value; 2],
) -> Result<Value, LoadError> {
    let (n, n_embd) = (m.config.n_streams, m.config.n_embd);
    let modalities = modalities(m, layer, out)?;
    let tensor = layer.tensor("altup_correct_coef");
    let weights = m.linear_plus(modalities, &tensor, (n, 0..n), vec![1.0; n])?;
    let change = m.plan.scale(Factor::Constant(-1.0), active);
    let change = m.plan.add(out, change);
    let weights = Mixing::OfRows(weights);
    Ok(m.plan.add_mix(weights, (change, n_embd), predicted))
}

/// Adds the input of the layer, gated by the first stream, to the others, as `is_later` says.
fn with_input(
    m: &mut Builder<'_>,
    layer: Layer<'_>,
    streams: Value,
    (input, is_later): (Value, WeightId),
) -> Result<Value, LoadError> {
    let n_embd = m.config.n_embd;
    let first = m.plan.part(streams, 1, 0, n_embd);
    let scale = layer.tensor("altup_correct_scale.weight");
    let scale = m.loader.vector(&scale, n_embd, 1.0)?;
    let first = m.plan.scale(Factor::Vector(scale), first);
    let gate = m.linear(first, &layer.tensor("inp_gate"), input.width())?;
    let gated = m.plan.gated_activation(Activation::GeluTanh, gate, input);
    let out = m.linear(gated, &layer.tensor("proj"), n_embd)?;
    let out = m.rms_norm(out, &layer.tensor("post_norm"), m.config.norm_eps)?;
    let is_later = Mixing::Same(is_later);
    Ok(m.plan.add_mix(is_later, (out, n_embd), streams))
}

/// Records what becomes of the first stream, `x`: attention and a low-rank layer beside it, then the network.
fn block(
    m: &mut Builder<'_>,
    layer: Layer<'_>,
    caches: &mut Vec<usize>,
    x: Value,
) -> Result<Value, LoadError> {
    let (eps, n_embd) = (m.config.norm_eps, m.config.n_embd);
    let normed = m.rms_norm(x, &layer.tensor("attn_norm"), eps)?;
    let low = layer.tensor("laurel_l");
    let rank = m.loader.n_rows(&format!("{low}.weight")).unwrap_or(1);
    let low = m.linear(normed, &low, usize::try_from(rank).unwrap_or(usize::MAX))?;
    let beside = m.linear(low, &layer.tensor("laurel_r"), n_embd)?;
    let beside = m.rms_norm(beside, &layer.tensor("laurel_post_norm"), eps)?;
    let beside = m.plan.add(normed, beside);
    // Only Gemma 4 has layers whose values are the keys.
    let values = layer.tensor("attn_v.weight");
    if layer.facts.kv_of.is_none() && !m.loader.has(&values) {
        return Err(m.loader.missing(&values));
    }
    let out = attention(m, layer, caches, normed)?;
    let out = m.rms_norm(out, &layer.tensor("post_attention_norm"), eps)?;
    let out = m.plan.add(x, out);
    let both = m.plan.add(beside, out);
    let x = m.plan.scale(Factor::Constant(0.5f32.sqrt()), both);
    let normed = m.rms_norm(x, &layer.tensor("ffn_norm"), eps)?;
    let n_ff = layer.facts.feed_forward.n_ff();
    let mut gate = m.linear(normed, &layer.tensor("ffn_gate"), n_ff)?;
    if let Some(factor) = layer.facts.sparsity {
        gate = m.plan.sparsify(factor, gate);
    }
    let up = m.linear(normed, &layer.tensor("ffn_up"), n_ff)?;
    let activated = m.plan.gated_activation(Activation::GeluTanh, gate, up);
    let out = m.linear(activated, &layer.tensor("ffn_down"), n_embd)?;
    let out = m.rms_norm(out, &layer.tensor("post_ffw_norm"), eps)?;
    Ok(m.plan.add(x, out))
}
