//! A model's facts, from metadata only. Keys are those of the GGUF specification, prefixed by the
//! architecture's name.

use rocmforge_gguf::Gguf;
use rocmforge_plan::{RopeStyle, Router};

use super::arch::{Architecture, Mixture};
use super::keys::Keys;
use super::layers::{LayerView, layers};
use crate::error::LoadError;

/// How positions beyond the trained context are squeezed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum RopeScaling {
    None,
    /// Positions divided by `factor`.
    Linear {
        factor: f64,
    },
    /// YaRN (Peng et al. 2023): high frequencies kept, low ones divided by `factor`.
    Yarn {
        factor: f64,
        n_ctx_original: f64,
        beta_fast: f64,
        beta_slow: f64,
    },
    /// LongRoPE (Ding et al. 2024): one tensor of frequency factors for contexts up to `n_ctx_original`,
    /// another for longer ones; positions divided by `factor`, which files of Phi leave at 1.
    LongRope {
        factor: f64,
        n_ctx_original: usize,
    },
}

/// How the positions of a layer turn its Q and K.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rotation {
    /// Wavelengths grow to about `2 pi base` positions.
    pub base: f64,
    pub scaling: RopeScaling,
    /// Factor on the rotated values of Q and K, whatever the scaling.
    pub attn_factor: f64,
}

/// Constant factors of a model; 1 where a family has none.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Scales {
    /// On the embeddings.
    pub embedding: f64,
    /// On what each block adds to the residual stream.
    pub residual: f64,
    /// Divides the logits.
    pub logits: f64,
    /// On the product of Q and K, before the softmax.
    pub attention: f64,
}

/// Smooth bounds of a model: `cap * tanh(x / cap)` takes the place of `x`.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct SoftCaps {
    /// On the scaled product of Q and K.
    pub attention: Option<f32>,
    pub logits: Option<f32>,
}

/// The mixture of experts that takes the place of a feed-forward network.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Experts {
    pub n_experts: usize,
    /// Width of one expert.
    pub n_ff: usize,
    pub router: Router,
    /// Width of the expert that sees every token.
    pub n_ff_shared: Option<usize>,
}

/// Facts of a model file.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelConfig {
    pub arch: Architecture,
    /// The architecture's name in the file.
    pub arch_name: String,
    /// `general.name`, if the file has one.
    pub name: Option<String>,
    pub n_layers: usize,
    pub n_embd: usize,
    /// Width of the feed-forward network; of one expert in a mixture.
    pub n_ff: usize,
    pub experts: Option<Experts>,
    pub n_heads: usize,
    pub n_kv_heads: usize,
    /// Values of one head of Q and K; not always `n_embd / n_heads`.
    pub k_dim: usize,
    /// Values of one head of V.
    pub v_dim: usize,
    /// How many values of a head are rotated.
    pub n_rot: usize,
    pub rope_style: RopeStyle,
    pub rope: Rotation,
    /// Of layers with a window.
    pub rope_in_window: Rotation,
    pub norm_eps: f32,
    pub scales: Scales,
    pub soft_caps: SoftCaps,
    /// One for each layer.
    pub layers: Vec<LayerView>,
    /// Context the model was trained for.
    pub n_ctx_train: usize,
    /// Rows of the matrix of learned positions; there are no positions beyond it.
    pub n_positions: Option<usize>,
    /// Rows of the embedding; ids are below it.
    pub n_vocab: usize,
}

/// More than any model has; a larger value is a damaged file.
pub(super) const MAX_LAYERS: usize = 4096;
const MAX_DIM: usize = 1 << 24;
const MAX_EXPERTS: usize = 1024;

impl ModelConfig {
    /// Reads the facts, or says which key is missing, wrong or not supported.
    pub fn from_gguf(gguf: &Gguf) -> Result<ModelConfig, LoadError> {
        let meta = gguf.metadata();
        let arch_name = meta.str("general.architecture")?.to_string();
        let arch = Architecture::from_name(&arch_name)?;
        let keys = Keys {
            meta,
            arch: &arch_name,
        };

        let n_layers = keys.size("block_count", MAX_LAYERS)?;
        let n_embd = keys.size("embedding_length", MAX_DIM)?;
        let n_heads = keys.size("attention.head_count", MAX_DIM)?;
        let n_kv_heads = keys
            .opt_size("attention.head_count_kv", MAX_DIM)?
            .unwrap_or(n_heads);
        if n_heads % n_kv_heads != 0 {
            return Err(keys.bad(
                "attention.head_count_kv",
                n_kv_heads,
                "a divisor of the head count",
            ));
        }
        let k_dim = match keys.opt_size("attention.key_length", MAX_DIM)? {
            Some(dim) => dim,
            None if n_embd % n_heads == 0 => n_embd / n_heads,
            None => {
                return Err(keys.bad(
                    "attention.head_count",
                    n_heads,
                    "a divisor of the embedding length",
                ));
            }
        };
        let v_dim = keys
            .opt_size("attention.value_length", MAX_DIM)?
            .unwrap_or(k_dim);
        let layers = layers(&keys, arch, n_layers)?;
        let n_rot = keys
            .opt_size("rope.dimension_count", MAX_DIM)?
            .unwrap_or(k_dim);
        let rotates = layers.iter().any(|layer| layer.rotates);
        if rotates && (n_rot > k_dim || n_rot % 2 != 0) {
            return Err(keys.bad(
                "rope.dimension_count",
                n_rot,
                "an even number, at most the head size",
            ));
        }
        let experts = experts(&keys, arch)?;
        if keys.meta.opt_bool(&keys.key("attention.causal"))? == Some(false) {
            return Err(keys.unsupported("attention without a causal mask, as embedding models do"));
        }
        let n_ctx_train = keys.size("context_length", u32::MAX as usize)?;
        let eps_key = arch.stream_norm().eps_key();
        let norm_eps = meta.f32(&keys.key(eps_key))?;
        if !(norm_eps > 0.0 && norm_eps < 1.0) {
            return Err(keys.bad(eps_key, norm_eps, "between 0 and 1"));
        }
        let embedding =
            gguf.tensor("token_embd.weight")
                .ok_or_else(|| LoadError::MissingTensor {
                    name: "token_embd.weight".into(),
                    arch: arch_name.clone(),
                })?;
        let rope = Rotation {
            base: keys.positive("rope.freq_base")?.unwrap_or(10_000.0),
            scaling: rope_scaling(&keys, arch, gguf, n_ctx_train)?,
            attn_factor: keys.positive("rope.scaling.attn_factor")?.unwrap_or(1.0),
        };
        let head_scale = attention_scale(arch, [n_layers, n_embd, n_heads, k_dim]);
        Ok(ModelConfig {
            arch,
            name: meta.opt_str("general.name")?.map(str::to_string),
            n_layers,
            n_embd,
            n_ff: match experts {
                Some(experts) => experts.n_ff,
                None => keys.size("feed_forward_length", MAX_DIM)?,
            },
            experts,
            n_heads,
            n_kv_heads,
            k_dim,
            v_dim,
            n_rot,
            rope_style: arch.rope_style(),
            rope,
            rope_in_window: rope_in_window(&keys, arch, rope)?,
            norm_eps,
            scales: scales(&keys, arch, n_embd, head_scale)?,
            soft_caps: soft_caps(&keys, arch)?,
            layers,
            n_ctx_train,
            n_positions: arch.learns_positions().then_some(n_ctx_train),
            n_vocab: embedding.n_rows() as usize,
            arch_name,
        })
    }
}

/// The mixture of experts, if the family or the file has one.
fn experts(keys: &Keys<'_>, arch: Architecture) -> Result<Option<Experts>, LoadError> {
    const COUNT: &str = "expert_count";
    const USED: &str = "expert_used_count";
    const WIDTH: &str = "expert_feed_forward_length";
    let counted = keys.meta.opt_u64(&keys.key(COUNT))?.unwrap_or(0);
    let weights = match arch.mixture() {
        Mixture::Never | Mixture::IfCounted(_) if counted == 0 => return Ok(None),
        Mixture::Never => {
            return Err(keys.unsupported(format!("a mixture of {counted} experts")));
        }
        Mixture::IfCounted(weights) | Mixture::Always(weights) => weights,
    };
    let n_experts = keys.size(COUNT, MAX_EXPERTS)?;
    let n_used = keys.meta.u64(&keys.key(USED))?;
    let n_used = usize::try_from(n_used)
        .ok()
        .filter(|n| (1..=n_experts).contains(n))
        .ok_or_else(|| keys.bad(USED, n_used, "at least 1 and at most the number of experts"))?;
    let n_groups = keys.opt_size("expert_group_count", MAX_EXPERTS)?;
    if n_groups.is_some_and(|n| n > 1) {
        return Err(keys.unsupported("groups of experts"));
    }
    // Mixtral's width is that of each expert; Qwen's files share it out if they do not say.
    let n_ff = match (arch, keys.opt_size(WIDTH, MAX_DIM)?) {
        (Architecture::Llama, _) => keys.size("feed_forward_length", MAX_DIM)?,
        (_, Some(width)) => width,
        (_, None) => (keys.size("feed_forward_length", MAX_DIM)? / n_used).max(1),
    };
    let n_ff_shared = match arch.has_shared_expert() {
        true => Some(
            match keys.opt_size("expert_shared_feed_forward_length", MAX_DIM)? {
                Some(width) => width,
                None => keys.size("feed_forward_length", MAX_DIM)?,
            },
        ),
        false => None,
    };
    Ok(Some(Experts {
        n_experts,
        n_ff,
        router: Router {
            n_used,
            weights,
            scale: keys
                .positive_or_zero("expert_weights_scale")?
                .unwrap_or(1.0) as f32,
        },
        n_ff_shared,
    }))
}

/// What the product of Q and K is multiplied with if the file does not say. The two largest Gemmas scale by
/// the embedding's share of a head, which llama.cpp tells by their number of layers too.
fn attention_scale(arch: Architecture, [n_layers, n_embd, n_heads, k_dim]: [usize; 4]) -> f64 {
    let width = match (arch, n_layers) {
        (Architecture::Gemma2, 46) | (Architecture::Gemma3, 62) => (n_embd / n_heads).max(1),
        _ => k_dim,
    };
    1.0 / (width as f64).sqrt()
}

/// Gemma's factor of the embedding and Granite's factors.
fn scales(
    keys: &Keys<'_>,
    arch: Architecture,
    n_embd: usize,
    attention: f64,
) -> Result<Scales, LoadError> {
    let none = Scales {
        embedding: 1.0,
        residual: 1.0,
        logits: 1.0,
        attention,
    };
    if matches!(arch, Architecture::Gemma2 | Architecture::Gemma3) {
        return Ok(Scales {
            embedding: (n_embd as f64).sqrt(),
            ..none
        });
    }
    if arch != Architecture::Granite {
        return Ok(none);
    }
    let deepstack = keys.key("deepstack_mapping");
    if keys.meta.get(&deepstack).is_some() {
        return Err(keys.unsupported(format!("inputs of a vision model (`{deepstack}`)")));
    }
    let logits =
        keys.positive("logit_scale")?
            .ok_or_else(|| rocmforge_gguf::Error::MissingKey {
                key: keys.key("logit_scale"),
            })?;
    let factor = |name: &str| keys.positive_or_zero(name);
    Ok(Scales {
        embedding: factor("embedding_scale")?.unwrap_or(none.embedding),
        residual: factor("residual_scale")?.unwrap_or(none.residual),
        logits,
        attention: factor("attention.scale")?.unwrap_or(none.attention),
    })
}

/// Gemma's bounds; those of Gemma 2 are in force where a file does not name them.
fn soft_caps(keys: &Keys<'_>, arch: Architecture) -> Result<SoftCaps, LoadError> {
    const ATTENTION: &str = "attn_logit_softcapping";
    const LOGITS: &str = "final_logit_softcapping";
    match arch {
        Architecture::Gemma2 => Ok(SoftCaps {
            attention: Some(keys.positive(ATTENTION)?.unwrap_or(50.0) as f32),
            logits: Some(keys.positive(LOGITS)?.unwrap_or(30.0) as f32),
        }),
        Architecture::Gemma3 => Ok(SoftCaps {
            attention: None,
            logits: keys.positive_or_zero(LOGITS)?.map(|cap| cap as f32),
        }),
        _ => Ok(SoftCaps::default()),
    }
}

/// Layers with a window rotate without scaling, those of Gemma 2 like all others. Gemma has a key for their
/// base, and Gemma 3 a base of their own without it.
fn rope_in_window(
    keys: &Keys<'_>,
    arch: Architecture,
    rope: Rotation,
) -> Result<Rotation, LoadError> {
    let base = |default: f64| Ok(keys.positive("rope.freq_base_swa")?.unwrap_or(default));
    let unscaled = |base: f64| Rotation {
        base,
        scaling: RopeScaling::None,
        attn_factor: 1.0,
    };
    match arch {
        Architecture::Gemma2 => base(rope.base).map(|base| Rotation { base, ..rope }),
        Architecture::Gemma3 => base(10_000.0).map(unscaled),
        _ => Ok(unscaled(rope.base)),
    }
}

fn rope_scaling(
    keys: &Keys<'_>,
    arch: Architecture,
    gguf: &Gguf,
    n_ctx_train: usize,
) -> Result<RopeScaling, LoadError> {
    let kind = match keys.meta.opt_str(&keys.key("rope.scaling.type"))? {
        // Phi's converter writes the factors and no type.
        None if arch == Architecture::Phi3 && gguf.tensor("rope_factors_long.weight").is_some() => {
            Some("longrope")
        }
        kind => kind,
    };
    // Early files have the linear factor under its first name and no type.
    let factor = match keys.positive("rope.scaling.factor")? {
        Some(factor) => factor,
        None => keys.positive("rope.scale_linear")?.unwrap_or(1.0),
    };
    let n_ctx_original = || {
        let original = keys.opt_size("rope.scaling.original_context_length", u32::MAX as usize)?;
        Ok::<_, LoadError>(original.unwrap_or(n_ctx_train))
    };
    match kind {
        None | Some("none") if factor == 1.0 => Ok(RopeScaling::None),
        None | Some("linear") => Ok(RopeScaling::Linear { factor }),
        Some("none") => Ok(RopeScaling::None),
        // Llama 3's scaling is a tensor of frequency factors (`rope_freqs.weight`); the type adds nothing.
        Some("llama3") => Ok(RopeScaling::None),
        Some("yarn") => Ok(RopeScaling::Yarn {
            factor,
            n_ctx_original: n_ctx_original()? as f64,
            beta_fast: keys
                .positive("rope.scaling.yarn_beta_fast")?
                .unwrap_or(32.0),
            beta_slow: keys.positive("rope.scaling.yarn_beta_slow")?.unwrap_or(1.0),
        }),
        Some("longrope") => Ok(RopeScaling::LongRope {
            factor,
            n_ctx_original: n_ctx_original()?,
        }),
        Some(other) => Err(keys.unsupported(format!(
            "RoPE scaling `{}`",
            rocmforge_gguf::escape_control(other)
        ))),
    }
}
