//! DeepSeek V2, V3 and R1, Kimi K2, GLM 4.7 Flash and Mistral 4: latent attention; some dense layers, then mixtures of
//! experts with a shared one.

use rocmforge_plan::{ExpertScores, Growth};

use crate::error::LoadError;
use crate::experts::{lead_with_dense, stated_experts, with_shared};
use crate::facts::{Experts, FeedForward, KeyFacts, Latent, ModelConfig, RMS_EPS};
use crate::keys::{Keys, MAX_DIM};
use crate::rope::RopeScaling;

/// Numbers of layers and tokens of GLM 4.7 Flash, whose first files do not state the kind of its scores.
const FLASH_LAYERS: [usize; 2] = [47, 48];
const FLASH_VOCAB: usize = 154_880;

pub(crate) fn facts(keys: &Keys<'_>, family: &KeyFacts) -> Result<ModelConfig, LoadError> {
    let experts = experts(keys)?;
    let mut config = ModelConfig::read(keys, family, RMS_EPS, FeedForward::Mixture(experts))?;
    lead_with_dense(keys, &mut config)?;
    set_latent(keys, &mut config)?;
    set_scales(keys, &mut config)?;
    set_growth(keys, &mut config)?;
    Ok(config)
}

/// Reads the mixture of experts.
fn experts(keys: &Keys<'_>) -> Result<Experts, LoadError> {
    let n_vocab = keys.gguf.tensor("token_embd.weight").map(|t| t.n_rows());
    let is_flash = n_vocab == Some(FLASH_VOCAB as u64) && FLASH_LAYERS.contains(&keys.n_layers()?);
    // Files of DeepSeek V2 do not state it either.
    let default = match is_flash {
        true => ExpertScores::Sigmoid,
        false => ExpertScores::Softmax,
    };
    let experts = stated_experts(keys, Some(default))?;
    with_shared(keys, experts, experts.n_ff)
}

/// Reads the widths of latent attention, for all layers.
pub(super) fn set_latent(keys: &Keys<'_>, config: &mut ModelConfig) -> Result<(), LoadError> {
    let n_rot = config.ropes[0].n_rot;
    // Files with a matrix for each head state the widths of the cached head as those of keys and values.
    let k_dim = keys.opt_size("attention.key_length_mla", MAX_DIM)?;
    let v_dim = keys.opt_size("attention.value_length_mla", MAX_DIM)?;
    let kv_rank = keys.size("attention.kv_lora_rank", MAX_DIM)?;
    for (index, layer) in config.layers.iter_mut().enumerate() {
        layer.k_dim = k_dim.unwrap_or(layer.k_dim);
        layer.v_dim = v_dim.unwrap_or(layer.v_dim);
        if n_rot >= layer.k_dim {
            let wanted = "less than the width of a key";
            return Err(keys.bad("rope.dimension_count", n_rot, wanted));
        }
        let direct = format!("blk.{index}.attn_q.weight");
        let q_rank = match keys.gguf.tensor(&direct) {
            Some(_) => None,
            None => keys.size_or_zero("attention.q_lora_rank", MAX_DIM)?,
        };
        layer.n_kv_heads = 1;
        layer.latent = Some(Latent {
            q_rank,
            kv_rank,
            n_rot,
        });
    }
    Ok(())
}

/// Sets the factors of long contexts, on cos and sin and on scores, as llama.cpp does: the file states YaRN's
/// `mscale_all_dim` times 0.1, and `mscale` is taken to be the same in DeepSeek's models, else 1.
fn set_scales(keys: &Keys<'_>, config: &mut ModelConfig) -> Result<(), LoadError> {
    const STATED: &str = "rope.scaling.yarn_log_multiplier";
    let stated = keys.meta.opt_f32(&keys.key(STATED))?;
    let all = f64::from(stated.unwrap_or(0.0)) / 0.1;
    let rope = &mut config.ropes[0];
    let (factor, is_yarn) = match rope.scaling {
        RopeScaling::Yarn { factor, .. } => (factor, true),
        RopeScaling::Linear { factor } => (factor, false),
        _ => (1.0, false),
    };
    let mscale = |x: f64| 1.0 + 0.1 * x * factor.max(1.0).ln();
    // What the table of cos and sin multiplies with.
    let of_table = if is_yarn { mscale(1.0) } else { 1.0 };
    if is_yarn && all != 0.0 {
        let is_deepseek = keys.arch == "deepseek2";
        let one = if is_deepseek { all } else { 1.0 };
        rope.attn_factor *= mscale(one) / mscale(all) / of_table;
    }
    let original = match is_yarn {
        true => rope.attn_factor * of_table,
        false => rope.attn_factor * (1.0 + 0.1 * factor.ln()),
    };
    let on_scores = (original * (1.0 + 0.1 * all * factor.ln())).powi(2);
    for layer in &mut config.layers {
        let scale = on_scores / (layer.k_dim as f64).sqrt();
        if !(rope.attn_factor.is_finite() && scale.is_finite() && scale > 0.0) {
            return Err(keys.bad(STATED, all * 0.1, "a small number"));
        }
        layer.scores.scale = scale as f32;
    }
    Ok(())
}

/// Reads by how much scores grow with the position.
fn set_growth(keys: &Keys<'_>, config: &mut ModelConfig) -> Result<(), LoadError> {
    let slope = keys.positive_or_zero("attention.temperature_scale")?;
    let Some(slope) = slope else { return Ok(()) };
    let growth = Growth {
        slope: slope as f32,
        step: keys.size("attention.temperature_length", u32::MAX as usize)? as u32,
        offset: 0,
    };
    for layer in &mut config.layers {
        layer.scores.growth = Some(growth);
    }
    Ok(())
}
