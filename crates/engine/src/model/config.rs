//! A model's facts, from metadata only. Keys are those of the GGUF specification, prefixed by the
//! architecture's name.

use rocmforge_cpu::RopeStyle;
use rocmforge_gguf::{Gguf, Metadata};

use crate::error::EngineError;

/// The model families whose wiring is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Architecture {
    /// Llama 1, 2, 3.x and what uses that id: Mistral, Yi, TinyLlama, SmolLM.
    Llama,
    Qwen2,
    Qwen3,
}

impl Architecture {
    const ALL: [(&'static str, Architecture); 3] = [
        ("llama", Architecture::Llama),
        ("qwen2", Architecture::Qwen2),
        ("qwen3", Architecture::Qwen3),
    ];
    const NAMES: &'static str = "llama, qwen2, qwen3";

    /// The architecture of `general.architecture`, or a refusal by name.
    pub fn from_name(name: &str) -> Result<Architecture, EngineError> {
        let found = Architecture::ALL.iter().find(|(known, _)| *known == name);
        found
            .map(|(_, arch)| *arch)
            .ok_or_else(|| EngineError::UnsupportedArchitecture {
                name: rocmforge_gguf::escape_control(name).to_string(),
                supported: Architecture::NAMES,
            })
    }

    /// Llama's files pair neighbouring values of a head, the others value `i` with value `i + n_rot / 2`.
    fn rope_style(self) -> RopeStyle {
        match self {
            Architecture::Llama => RopeStyle::Norm,
            Architecture::Qwen2 | Architecture::Qwen3 => RopeStyle::Neox,
        }
    }

    /// Whether the heads of Q and K have norms in every file: without its tensors a file is incomplete.
    pub(super) fn norms_heads(self) -> bool {
        self == Architecture::Qwen3
    }
}

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
    pub n_ff: usize,
    pub n_heads: usize,
    pub n_kv_heads: usize,
    /// Values of one head of Q and K; not always `n_embd / n_heads`.
    pub k_dim: usize,
    /// Values of one head of V.
    pub v_dim: usize,
    /// How many values of a head are rotated.
    pub n_rot: usize,
    pub rope_style: RopeStyle,
    pub rope_base: f64,
    pub rope_scaling: RopeScaling,
    /// Factor on the rotated values of Q and K, whatever the scaling.
    pub rope_attn_factor: f64,
    pub norm_eps: f32,
    /// Context the model was trained for.
    pub n_ctx_train: usize,
    /// Rows of the embedding; ids are below it.
    pub n_vocab: usize,
}

/// More than any model has; a larger value is a damaged file.
const MAX_LAYERS: usize = 4096;
const MAX_DIM: usize = 1 << 24;

impl ModelConfig {
    /// Reads the facts, or says which key is missing, wrong or not supported.
    pub fn from_gguf(gguf: &Gguf) -> Result<ModelConfig, EngineError> {
        let meta = gguf.metadata();
        let arch_name = meta.str("general.architecture")?.to_string();
        let arch = Architecture::from_name(&arch_name)?;
        let keys = Keys {
            meta,
            arch: &arch_name,
        };

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
        let n_rot = keys
            .opt_size("rope.dimension_count", MAX_DIM)?
            .unwrap_or(k_dim);
        if n_rot > k_dim || n_rot % 2 != 0 {
            return Err(keys.bad(
                "rope.dimension_count",
                n_rot,
                "an even number, at most the head size",
            ));
        }
        let n_experts = keys.meta.opt_u64(&keys.key("expert_count"))?.unwrap_or(0);
        if n_experts > 0 {
            let feature = format!("a mixture of {n_experts} experts");
            return Err(EngineError::UnsupportedFeature {
                arch: arch_name,
                feature,
            });
        }
        if keys.meta.opt_bool(&keys.key("attention.causal"))? == Some(false) {
            return Err(EngineError::UnsupportedFeature {
                arch: arch_name,
                feature: "attention without a causal mask, as embedding models do".to_string(),
            });
        }
        let n_ctx_train = keys.size("context_length", u32::MAX as usize)?;
        let norm_eps = meta.f32(&keys.key("attention.layer_norm_rms_epsilon"))?;
        if !(norm_eps > 0.0 && norm_eps < 1.0) {
            return Err(keys.bad(
                "attention.layer_norm_rms_epsilon",
                norm_eps,
                "between 0 and 1",
            ));
        }
        let embedding =
            gguf.tensor("token_embd.weight")
                .ok_or_else(|| EngineError::MissingTensor {
                    name: "token_embd.weight".into(),
                    arch: arch_name.clone(),
                })?;
        Ok(ModelConfig {
            arch,
            name: meta.opt_str("general.name")?.map(str::to_string),
            n_layers: keys.size("block_count", MAX_LAYERS)?,
            n_embd,
            n_ff: keys.size("feed_forward_length", MAX_DIM)?,
            n_heads,
            n_kv_heads,
            k_dim,
            v_dim,
            n_rot,
            rope_style: arch.rope_style(),
            rope_base: keys.positive("rope.freq_base")?.unwrap_or(10_000.0),
            rope_scaling: rope_scaling(&keys, n_ctx_train)?,
            rope_attn_factor: keys.positive("rope.scaling.attn_factor")?.unwrap_or(1.0),
            norm_eps,
            n_ctx_train,
            n_vocab: embedding.n_rows() as usize,
            arch_name,
        })
    }
}

fn rope_scaling(keys: &Keys<'_>, n_ctx_train: usize) -> Result<RopeScaling, EngineError> {
    let kind = keys.meta.opt_str(&keys.key("rope.scaling.type"))?;
    // Early files have the linear factor under its first name and no type.
    let factor = match keys.positive("rope.scaling.factor")? {
        Some(factor) => factor,
        None => keys.positive("rope.scale_linear")?.unwrap_or(1.0),
    };
    match kind {
        None | Some("none") if factor == 1.0 => Ok(RopeScaling::None),
        None | Some("linear") => Ok(RopeScaling::Linear { factor }),
        Some("none") => Ok(RopeScaling::None),
        // Llama 3's scaling is a tensor of frequency factors (`rope_freqs.weight`); the type adds nothing.
        Some("llama3") => Ok(RopeScaling::None),
        Some("yarn") => {
            let original =
                keys.opt_size("rope.scaling.original_context_length", u32::MAX as usize)?;
            Ok(RopeScaling::Yarn {
                factor,
                n_ctx_original: original.unwrap_or(n_ctx_train) as f64,
                beta_fast: keys
                    .positive("rope.scaling.yarn_beta_fast")?
                    .unwrap_or(32.0),
                beta_slow: keys.positive("rope.scaling.yarn_beta_slow")?.unwrap_or(1.0),
            })
        }
        Some(other) => Err(EngineError::UnsupportedFeature {
            arch: keys.arch.to_string(),
            feature: format!("RoPE scaling `{}`", rocmforge_gguf::escape_control(other)),
        }),
    }
}

/// Metadata of one architecture.
struct Keys<'a> {
    meta: &'a Metadata,
    arch: &'a str,
}

impl Keys<'_> {
    fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.arch)
    }

    fn bad(&self, name: &str, value: impl std::fmt::Display, wanted: &'static str) -> EngineError {
        EngineError::BadMetadata {
            key: self.key(name),
            value: value.to_string(),
            wanted,
        }
    }

    fn size(&self, name: &str, max: usize) -> Result<usize, EngineError> {
        self.check_size(name, self.meta.u64(&self.key(name))?, max)
    }

    fn opt_size(&self, name: &str, max: usize) -> Result<Option<usize>, EngineError> {
        self.meta
            .opt_u64(&self.key(name))?
            .map(|value| self.check_size(name, value, max))
            .transpose()
    }

    fn check_size(&self, name: &str, value: u64, max: usize) -> Result<usize, EngineError> {
        match usize::try_from(value) {
            Ok(size) if size > 0 && size <= max => Ok(size),
            _ => Err(self.bad(name, value, "a sensible positive number")),
        }
    }

    fn positive(&self, name: &str) -> Result<Option<f64>, EngineError> {
        match self.meta.opt_f32(&self.key(name))? {
            None => Ok(None),
            Some(value) if value.is_finite() && value > 0.0 => Ok(Some(f64::from(value))),
            Some(value) => Err(self.bad(name, value, "a positive number")),
        }
    }
}
