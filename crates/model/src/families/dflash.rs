//! The drafter DFlash (block diffusion for speculative decoding, 2026), in a file of its own (llama.cpp's `dflash`). Its layers
//! attend to keys and values that are made of the values of layers of the model that checks its drafts (`taps`), one position for
//! each token that this model has computed: a plan of their own writes these into the cache. A draft is a block: the last known
//! token, and masks in place of the next ones. All of them see the cache and each other, and the logits of each mask are of the
//! token in its place.

use std::sync::Arc;

use rocmforge_gguf::Gguf;
use rocmforge_plan::{Activation, Factor, KvSpec, Mask, Value, Values};

use crate::blocks::{drafter_embeddings, drafter_logits, feed_forward, logits_by, normed};
use crate::builder::Builder;
use crate::embedding::Reads;
use crate::error::LoadError;
use crate::experts::n_ff;
use crate::facts::{DraftBlock, FeedForward, KeyFacts, Layer, LayerFacts, ModelConfig, RMS_EPS};
use crate::families::gemma4::scaled;
use crate::keys::{Keys, MAX_LAYERS};
use crate::taps::{self, TARGET_LAYERS, Taps};
use crate::target::{EMBEDDING, OUTPUT, OUTPUT_IDS, Target};
use crate::windows::{require_pattern, set_windows};

const BLOCK_SIZE: &str = "block_size";
/// Tokens of a block where the file does not say, and at most.
const USUAL_BLOCK: usize = 16;
const MOST_TOKENS: usize = 64;
const MASK_TOKEN: &str = "tokenizer.ggml.mask_token_id";
const WINDOW: &str = "attention.sliding_window";
const HIDDEN_ACTIVATION: &str = "hidden_activation";
/// The norm of what is made of the values of layers.
const CONTEXT_NORM: &str = "enc.output_norm";
/// Tensors of drafters that are named alike and compute something else.
const OTHERS: [(&str, &str); 2] = [
    ("markov_w1.weight", "a Markov head (DSpark)"),
    ("selector_hidden.weight", "a selector of tokens (DFlash 2)"),
];

pub(crate) fn facts(keys: &Keys<'_>, family: &KeyFacts) -> Result<ModelConfig, LoadError> {
    for (tensor, feature) in OTHERS {
        if keys.gguf.tensor(tensor).is_some() {
            return Err(keys.unsupported(feature));
        }
    }
    if keys
        .opt_count("hyper_connection.count", usize::MAX)?
        .is_some_and(|n| n > 0)
    {
        return Err(keys.unsupported("hyper-connections (DSpark of DeepSeek V4)"));
    }
    let feed_forward = FeedForward::Dense { n_ff: n_ff(keys)? };
    let mut config = ModelConfig::read(keys, family, RMS_EPS, feed_forward)?;
    config.n_target = Some(config.n_embd);
    config.scales.embedding = keys.positive_or_zero("embedding_scale")?.unwrap_or(1.0);
    config.scales.attention = { keys.positive_or_zero("attention.value_scale")? }.unwrap_or(1.0);
    config.activation = activation(keys)?;
    let scale = keys.positive_or_zero("attention.scale")?;
    // Of the cache. A block sees more of itself.
    config.reads = Reads::Backward;
    for (at, layer) in config.layers.iter_mut().enumerate() {
        layer.mask = Mask::All;
        layer.scores.scale = scale.map_or(layer.scores.scale, |scale| scale as f32);
        let sinks = format!("blk.{at}.attn_sinks.weight");
        layer.has_sinks = keys.gguf.tensor(&sinks).is_some();
    }
    let block = block(keys)?;
    let window = keys.opt_count(WINDOW, u32::MAX as usize)?;
    if let Some(window) = window.filter(|&n| n > 0) {
        require_pattern(keys)?;
        let rope = config.ropes[0];
        set_windows(keys, &mut config, rope, (None, 1))?;
        if window < block.n_tokens {
            return Err(keys.bad(WINDOW, window, "as many tokens as a block, or more"));
        }
    }
    config.draft_block = Some(block);
    Ok(config)
}

fn activation(keys: &Keys<'_>) -> Result<Option<Activation>, LoadError> {
    match keys.meta.opt_str(&keys.key(HIDDEN_ACTIVATION))? {
        None => Ok(None),
        Some("silu") => Ok(Some(Activation::Silu)),
        Some("gelu" | "gelu_pytorch_tanh") => Ok(Some(Activation::GeluTanh)),
        Some(other) => {
            let shown = rocmforge_gguf::shown(other);
            Err(keys.bad(HIDDEN_ACTIVATION, shown, "silu, gelu or gelu_pytorch_tanh"))
        }
    }
}

fn block(keys: &Keys<'_>) -> Result<DraftBlock, LoadError> {
    let n_tokens = keys
        .opt_count(BLOCK_SIZE, usize::MAX)?
        .unwrap_or(USUAL_BLOCK);
    if !(2..=MOST_TOKENS).contains(&n_tokens) {
        return Err(keys.bad(BLOCK_SIZE, n_tokens, "2 to 64"));
    }
    let is_causal = keys.meta.opt_bool(&keys.key("attention.causal"))?;
    Ok(DraftBlock {
        n_tokens,
        mask: keys.meta.u32(MASK_TOKEN)?,
        looks_ahead: !is_causal.unwrap_or(false),
    })
}

/// Reads what the plan of a model exports for the drafter of a file, by the configurations of this drafter and of the model.
pub(crate) fn taps(
    keys: &Keys<'_>,
    gguf: &Arc<Gguf>,
    configs: [&ModelConfig; 2],
) -> Result<Taps, LoadError> {
    let layers = keys.list(TARGET_LAYERS, MAX_LAYERS)?;
    Taps::read((keys, gguf), configs, layers, None)
}

/// Records what writes the cache: keys and values of all layers, of what is made of the values of the model's layers.
pub(crate) fn record_context(m: &mut Builder<'_>) -> Result<Value, LoadError> {
    let hidden = m.plan.import(m.config.n_embd);
    let context = m.rms_norm(hidden, CONTEXT_NORM, m.config.norm_eps)?;
    for layer in m.config.layers() {
        m.plan.begin_layer();
        let [k, v] = keys_and_values(m, layer, context)?;
        let cache = m.plan.kv_layer(cached(layer.facts, layer.facts.mask));
        append(m, layer, cache, [k, v])?;
    }
    // In place of logits, which nothing asks for.
    Ok(m.plan.select_rows(context))
}

/// Records the block.
pub(crate) fn record(m: &mut Builder<'_>) -> Result<Value, LoadError> {
    let model = m.target.expect("the model for which it drafts");
    let target = Target::new(m.config, model);
    taps::skip(&mut m.loader);
    let reason = "the plan that writes the drafter's cache computes with it";
    m.loader.skip(reason, |name| {
        name.strip_prefix(CONTEXT_NORM)
            .is_some_and(|rest| rest == ".weight")
    });
    let block = m.config.draft_block.expect("it drafts blocks");
    check_mask(m, &target, block)?;
    let (eps, scales) = (m.config.norm_eps, m.config.scales);
    let activation = m.config.activation.unwrap_or(Activation::Silu);
    let mut x = drafter_embeddings(m, &target, scales.embedding)?;
    for (index, layer) in m.config.layers().enumerate() {
        m.plan.begin_layer();
        let normed = m.rms_norm(x, &layer.tensor("attn_norm"), eps)?;
        let spec = cached(layer.facts, mask(layer.facts, block));
        let cache = m.plan.borrowed_kv_layer(spec, index);
        let out = attention(m, layer, cache, normed)?;
        let out = match scales.attention {
            1.0 => out,
            scale => m.plan.scale(Factor::Constant(scale as f32), out),
        };
        let out = normed_if_present(m, out, &layer.tensor("post_attention_norm"))?;
        x = m.plan.add(out, x);
        let normed = m.rms_norm(x, &layer.tensor("ffn_norm"), eps)?;
        let out = feed_forward(m, layer, activation, normed)?;
        let out = normed_if_present(m, out, &layer.tensor("post_ffw_norm"))?;
        x = m.plan.add(out, x);
        x = scaled(m, layer, x)?;
    }
    let x = m.plan.select_rows(x);
    let normed = m.rms_norm(x, "output_norm", eps)?;
    let has = |name| m.loader.has(name);
    match has(EMBEDDING) && !has(OUTPUT) && !has(OUTPUT_IDS) {
        true => logits_by(m, normed, 1.0, EMBEDDING),
        false => drafter_logits(m, &target, normed),
    }
}

/// Refuses a token for masks that has no embedding.
fn check_mask(m: &Builder<'_>, target: &Target<'_>, block: DraftBlock) -> Result<(), LoadError> {
    let n_vocab = match m.loader.has(EMBEDDING) {
        true => m.config.n_vocab,
        false => target.model.config.n_vocab,
    };
    match (block.mask as usize) < n_vocab {
        true => Ok(()),
        false => Err(LoadError::BadMetadata {
            key: MASK_TOKEN.to_string(),
            value: block.mask.to_string(),
            wanted: "a token of the vocabulary",
        }),
    }
}

/// Returns which positions the tokens of a block see in a layer.
fn mask(layer: &LayerFacts, block: DraftBlock) -> Mask {
    match layer.mask {
        mask if !block.looks_ahead => mask,
        // No token of the block is further away.
        Mask::Window(window) => Mask::Near(window - 1),
        _ => Mask::Both,
    }
}

fn cached(layer: &LayerFacts, mask: Mask) -> KvSpec {
    KvSpec {
        n_kv_heads: layer.n_kv_heads,
        k_dim: layer.k_dim,
        v_dim: layer.v_dim,
        mask,
        values: Values::Apart,
        heads: None,
    }
}

/// Records the products of `x` for keys and values. Without a matrix of their own, values are the keys before norm and rotation.
fn keys_and_values(
    m: &mut Builder<'_>,
    layer: Layer<'_>,
    x: Value,
) -> Result<[Value; 2], LoadError> {
    let facts = layer.facts;
    let k = m.linear(x, &layer.tensor("attn_k"), facts.n_kv_heads * facts.k_dim)?;
    let v = match has_values(m, layer) {
        true => m.linear(x, &layer.tensor("attn_v"), facts.n_kv_heads * facts.v_dim)?,
        false => k,
    };
    Ok([k, v])
}

fn has_values(m: &Builder<'_>, layer: Layer<'_>) -> bool {
    // Values of another width than keys need a matrix, which is then missing.
    m.loader.has(&layer.tensor("attn_v.weight")) || layer.facts.k_dim != layer.facts.v_dim
}

/// Writes these keys and values into a layer of the cache.
fn append(
    m: &mut Builder<'_>,
    layer: Layer<'_>,
    cache: usize,
    [k, v]: [Value; 2],
) -> Result<(), LoadError> {
    let v = match has_values(m, layer) {
        true => v,
        false => {
            let ones = m.loader.push_constant(layer.facts.v_dim, 1.0);
            m.plan.rms_norm(v, ones, m.config.norm_eps)
        }
    };
    let k = turned(m, layer, k, "attn_k_norm.weight")?;
    m.plan.kv_append(cache, k, v);
    Ok(())
}

/// Records the attention of a block, over a layer of the cache with the block's own keys and values.
fn attention(
    m: &mut Builder<'_>,
    layer: Layer<'_>,
    cache: usize,
    x: Value,
) -> Result<Value, LoadError> {
    let facts = layer.facts;
    let q = m.linear(x, &layer.tensor("attn_q"), facts.n_heads * facts.k_dim)?;
    let kv = keys_and_values(m, layer, x)?;
    let q = turned(m, layer, q, "attn_q_norm.weight")?;
    append(m, layer, cache, kv)?;
    let sinks = match facts.has_sinks {
        true => {
            let tensor = layer.tensor("attn_sinks.weight");
            Some(m.loader.vector(&tensor, facts.n_heads, 1.0)?)
        }
        false => None,
    };
    let heads = (facts.n_heads, sinks);
    let heads = m.plan.attention(cache, heads, facts.scores, q);
    m.linear(heads, &layer.tensor("attn_output"), m.config.n_embd)
}

/// Norms and rotates heads.
fn turned(m: &mut Builder<'_>, layer: Layer<'_>, x: Value, norm: &str) -> Result<Value, LoadError> {
    let facts = layer.facts;
    let x = normed(m, x, &layer.tensor(norm), facts)?;
    Ok(match facts.rope {
        Some(rope) => m.rotate(x, [facts.k_dim, 0], rope),
        None => x,
    })
}

fn normed_if_present(m: &mut Builder<'_>, x: Value, tensor: &str) -> Result<Value, LoadError> {
    match m.loader.has(&format!("{tensor}.weight")) {
        true => m.rms_norm(x, tensor, m.config.norm_eps),
        false => Ok(x),
    }
}
