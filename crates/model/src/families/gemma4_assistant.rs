//! The drafter of Gemma 4, in a file of its own (transformers' `gemma4_assistant`, llama.cpp's `gemma4-assistant`). Its layers
//! have queries only: they attend to the keys and values of the model that checks its drafts. All tokens of a draft have the
//! position after those in that cache, at which nothing is cached yet.

use rocmforge_plan::{KvSpec, Mask, Value};

use crate::blocks::logits_by;
use crate::builder::Builder;
use crate::error::LoadError;
use crate::facts::{KeyFacts, LayerFacts, ModelConfig};
use crate::families::gemma4::{after_attention, attention_to, layers, scaled};
use crate::keys::{Keys, MAX_DIM};
use crate::target::{EMBEDDING, Target};

pub(crate) fn facts(keys: &Keys<'_>, family: &KeyFacts) -> Result<ModelConfig, LoadError> {
    let mut config = layers(keys, family)?;
    config.n_target = Some(keys.size("embedding_length_out", MAX_DIM)?);
    for layer in &mut config.layers {
        // A row's own position is not in the cache, and counts as one of the window.
        if let Mask::Window(window) = &mut layer.mask {
            *window -= 1;
            if *window == 0 {
                let key = "attention.sliding_window";
                return Err(keys.bad(key, 1, "2 or more"));
            }
        }
    }
    Ok(config)
}

pub(crate) fn record(m: &mut Builder<'_>) -> Result<Value, LoadError> {
    let target = m.target.expect("the model whose cache it reads");
    let of = Target::new(m.config, target);
    let n_target = m.config.n_target.expect("drafters say for which width");
    of.same("hidden width", n_target, target.config.n_embd)?;
    of.same("vocabulary", m.config.n_vocab, target.config.n_vocab)?;
    let reason = "it tells likely tokens without all logits, which are computed here";
    m.loader
        .skip(reason, |name| name.starts_with("masked_embd_"));
    let (n_embd, eps) = (m.config.n_embd, m.config.norm_eps);
    let width = target.config.n_embd;
    let hidden = m.plan.import(width);
    let table = m.loader.push_shared(&target.weights, of.embedding());
    let tokens = m.plan.embed(table, (width as f64).sqrt() as f32, width);
    let both = [tokens, hidden];
    let mut x = m.side_by_side(both, "nextn.pre_projection", n_embd)?;
    let mut caches: Vec<(KvSpec, usize)> = Vec::new();
    for layer in m.config.layers() {
        m.plan.begin_layer();
        let (spec, of_target) = cache(&of, layer.facts)?;
        let known = caches.iter().find(|(known, _)| *known == spec);
        let cache = match known {
            Some((_, cache)) => *cache,
            None => {
                let cache = m.plan.borrowed_kv_layer(spec, of_target);
                caches.push((spec, cache));
                cache
            }
        };
        let normed = m.rms_norm(x, &layer.tensor("attn_norm"), eps)?;
        let out = attention_to(m, layer, cache, normed)?;
        x = after_attention(m, layer, out, x)?;
        x = scaled(m, layer, x)?;
    }
    let normed = m.rms_norm(x, "output_norm", eps)?;
    m.export = Some(m.linear(normed, "nextn.post_projection", width)?);
    let x = m.plan.select_rows(normed);
    logits_by(m, x, 1.0, EMBEDDING)
}

/// Returns the cache that a layer of the drafter reads: that of the last layer of the same kind, by its place in the plan.
fn cache(target: &Target<'_>, layer: &LayerFacts) -> Result<(KvSpec, usize), LoadError> {
    let has_window = |layer: &LayerFacts| matches!(layer.mask, Mask::Window(_));
    let config = &target.model.config;
    let mut last = (0..config.n_layers()).rev();
    let last = last.find(|&at| has_window(&config.layers[at]) == has_window(layer));
    // The first layers have caches of their own.
    let cache = last.map(|at| config.layers[at].kv_of.unwrap_or(at));
    let spec = cache.map(|at| (target.model.plan.kv[at], at));
    let Some((spec, at)) = spec else {
        let what = match has_window(layer) {
            true => "number of layers with a window",
            false => "number of layers without a window",
        };
        return Err(target.same(what, 1, 0).expect_err("they differ"));
    };
    target.same("number of KV heads", layer.n_kv_heads, spec.n_kv_heads)?;
    target.same("head size", layer.k_dim, spec.k_dim)?;
    let mask = layer.mask;
    Ok((KvSpec { mask, ..spec }, at))
}
