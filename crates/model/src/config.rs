//! The configuration of a model, from the file's metadata. Keys are those of the GGUF specification, prefixed by the
//! architecture's name.

use rocmforge_gguf::Gguf;
use rocmforge_plan::{RopeStyle, Router};

use crate::arch::{Architecture, Moe};
use crate::error::LoadError;
use crate::keys::Keys;
use crate::layers::{LayerView, layers};

/// How RoPE positions are scaled for contexts longer than the trained one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum RopeScaling {
    None,
    /// Positions divided by `factor`.
    Linear {
        factor: f64,
    },
    /// YaRN (Peng et al. 2023): keeps high frequencies and divides low ones by `factor`.
    Yarn {
        factor: f64,
        n_ctx_original: f64,
        beta_fast: f64,
        beta_slow: f64,
    },
    /// LongRoPE (Ding et al. 2024): one tensor of frequency factors for contexts up to `n_ctx_original` and another
    /// for longer ones; positions are also divided by `factor`, which files of Phi leave at 1.
    LongRope {
        factor: f64,
        n_ctx_original: usize,
    },
}

/// The RoPE parameters of a layer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rotation {
    /// Base of the frequencies; wavelengths grow to about `2 pi base` positions.
    pub base: f64,
    pub scaling: RopeScaling,
    /// Factor on the rotated values of Q and K, with any scaling.
    pub attn_factor: f64,
}

/// Constant factors of a model; 1 if a family has none.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Scales {
    /// On the embeddings.
    pub embedding: f64,
    /// On the output of each block, before it is added to the residual stream.
    pub residual: f64,
    /// Divides the logits.
    pub logits: f64,
    /// On the dot products of Q and K, before the softmax.
    pub attention: f64,
}

/// Soft caps of a model: `x` becomes `cap * tanh(x / cap)`.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct SoftCaps {
    /// On the scaled dot products of Q and K.
    pub attention: Option<f32>,
    pub logits: Option<f32>,
}

/// The mixture of experts (MoE) that replaces a feed-forward network.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Experts {
    pub n_experts: usize,
    /// Width of one expert.
    pub n_ff: usize,
    pub router: Router,
    /// Width of the shared expert, which every token uses.
    pub n_ff_shared: Option<usize>,
}

/// The configuration of a model file.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelConfig {
    pub arch: Architecture,
    /// The architecture's name in the file.
    pub arch_name: String,
    /// `general.name`, if the file has one.
    pub name: Option<String>,
    pub n_layers: usize,
    pub n_embd: usize,
    /// Width of the feed-forward network, or of one expert.
    pub n_ff: usize,
    pub experts: Option<Experts>,
    pub n_heads: usize,
    pub n_kv_heads: usize,
    /// Values per head of Q and K; not always `n_embd / n_heads`.
    pub k_dim: usize,
    /// Values per head of V.
    pub v_dim: usize,
    /// Number of values per head that RoPE rotates.
    pub n_rot: usize,
    pub rope_style: RopeStyle,
    pub rope: Rotation,
    /// RoPE parameters of layers with a window.
    pub rope_in_window: Rotation,
    pub norm_eps: f32,
    pub scales: Scales,
    pub soft_caps: SoftCaps,
    /// One entry per layer.
    pub layers: Vec<LayerView>,
    /// Context the model was trained for.
    pub n_ctx_train: usize,
    /// Rows of the learned position matrix, which limit the context.
    pub n_positions: Option<usize>,
    /// Rows of the embedding matrix; token ids are below it.
    pub n_vocab: usize,
}

/// Upper bounds for metadata values, above those of any real model; a larger value means a damaged file.
pub(crate) const MAX_LAYERS: usize = 4096;
const MAX_DIM: usize = 1 << 24;
const MAX_EXPERTS: usize = 1024;

impl ModelConfig {
    /// Reads the configuration. The error names the key that is missing, out of range or not supported.
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

/// Reads the mixture of experts, if the family or the file has one.
fn experts(keys: &Keys<'_>, arch: Architecture) -> Result<Option<Experts>, LoadError> {
    const COUNT: &str = "expert_count";
    const USED: &str = "expert_used_count";
    const WIDTH: &str = "expert_feed_forward_length";
    let counted = keys.meta.opt_u64(&keys.key(COUNT))?.unwrap_or(0);
    let weights = match arch.moe() {
        Moe::Never | Moe::IfCounted(_) if counted == 0 => return Ok(None),
        Moe::Never => {
            return Err(keys.unsupported(format!("a mixture of {counted} experts")));
        }
        Moe::IfCounted(weights) | Moe::Always(weights) => weights,
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
    // In Mixtral files this is the width of each expert; Qwen files without the key divide it among the used experts.
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

/// Returns the factor on dot products of Q and K if the file does not give it. The two largest Gemmas scale by
/// `n_embd / n_heads` instead of the head size; llama.cpp also recognizes them by their number of layers.
fn attention_scale(arch: Architecture, [n_layers, n_embd, n_heads, k_dim]: [usize; 4]) -> f64 {
    let width = match (arch, n_layers) {
        (Architecture::Gemma2, 46) | (Architecture::Gemma3, 62) => (n_embd / n_heads).max(1),
        _ => k_dim,
    };
    1.0 / (width as f64).sqrt()
}

/// Reads Granite's factors, and computes Gemma's factor on the embedding.
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

/// Reads Gemma's soft caps. Those of Gemma 2 apply even if a file does not state them.
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

/// Returns the RoPE parameters of layers with a window: unscaled, except in Gemma 2, where they are those of all
/// layers. Gemma has a key for their base; without it, Gemma 3 uses a base of its own.
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
        // Phi's converter writes the factors without a scaling type.
        None if arch == Architecture::Phi3 && gguf.tensor("rope_factors_long.weight").is_some() => {
            Some("longrope")
        }
        kind => kind,
    };
    // Early files have the linear factor under its first name and no scaling type.
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
        // Llama 3's scaling is in a tensor of frequency factors (`rope_freqs.weight`); the type adds nothing.
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
