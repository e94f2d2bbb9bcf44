//! A model's facts, from metadata only. Keys are those of the GGUF specification, prefixed by the
//! architecture's name.

use rocmforge_cpu::RopeStyle;
use rocmforge_gguf::{Gguf, Metadata, Value};

use crate::error::EngineError;

/// The model families whose wiring is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Architecture {
    /// Llama 1, 2, 3.x and what uses that id: Mistral, Yi, TinyLlama, SmolLM.
    Llama,
    Qwen2,
    Qwen3,
    /// Granite 3 and 4 dense: Llama with constant factors.
    Granite,
    /// Every fourth layer has no positions.
    SmolLm3,
    /// OLMo 2 and 3: norms after attention and feed-forward, and over all heads together.
    Olmo2,
    /// Phi 3 and 4: fused projections, two sets of frequency factors.
    Phi3,
}

/// What the norms of Q and K span.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HeadNorm {
    /// Each head by itself, where the file has the tensors.
    IfPresent,
    /// Each head by itself, in every file.
    Each,
    /// All heads together, in every file.
    Together,
}

/// Where the norm of an attention or feed-forward block stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BlockNorm {
    /// On what the block reads.
    Before,
    /// On what the block adds to the residual stream.
    After,
}

impl Architecture {
    const ALL: [(&'static str, Architecture); 7] = [
        ("llama", Architecture::Llama),
        ("qwen2", Architecture::Qwen2),
        ("qwen3", Architecture::Qwen3),
        ("granite", Architecture::Granite),
        ("smollm3", Architecture::SmolLm3),
        ("olmo2", Architecture::Olmo2),
        ("phi3", Architecture::Phi3),
    ];
    const NAMES: &'static str = "llama, qwen2, qwen3, granite, smollm3, olmo2, phi3";

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

    /// Files of Llama and its kin pair neighbouring values of a head, the others value `i` with value
    /// `i + n_rot / 2`.
    fn rope_style(self) -> RopeStyle {
        match self {
            Architecture::Llama | Architecture::Granite | Architecture::SmolLm3 => RopeStyle::Norm,
            Architecture::Qwen2
            | Architecture::Qwen3
            | Architecture::Olmo2
            | Architecture::Phi3 => RopeStyle::Neox,
        }
    }

    /// Norms that every file must have: without its tensors it is incomplete.
    pub(super) fn head_norm(self) -> HeadNorm {
        match self {
            Architecture::Qwen3 => HeadNorm::Each,
            Architecture::Olmo2 => HeadNorm::Together,
            _ => HeadNorm::IfPresent,
        }
    }

    pub(super) fn block_norm(self) -> BlockNorm {
        match self {
            Architecture::Olmo2 => BlockNorm::After,
            _ => BlockNorm::Before,
        }
    }

    /// Whether `ffn_up` holds the rows of the gate and, below them, those of the up projection.
    pub(super) fn fuses_gate_and_up(self) -> bool {
        self == Architecture::Phi3
    }

    /// Whether frequency factors in the file (`rope_freqs.weight`) count; SmolLM3 and OLMo 2 have none.
    pub(super) fn has_rope_freqs(self) -> bool {
        !matches!(
            self,
            Architecture::SmolLm3 | Architecture::Olmo2 | Architecture::Phi3
        )
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
    /// LongRoPE (Ding et al. 2024): one tensor of frequency factors for contexts up to `n_ctx_original`,
    /// another for longer ones; positions divided by `factor`, which files of Phi leave at 1.
    LongRope {
        factor: f64,
        n_ctx_original: usize,
    },
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

/// How one layer sees the tokens before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LayerView {
    /// Whether Q and K are rotated by position.
    pub rotates: bool,
    /// Only the last `window` positions are visible; such layers rotate without scaling.
    pub window: Option<u32>,
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
    pub scales: Scales,
    /// One for each layer.
    pub layers: Vec<LayerView>,
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
        let n_layers = keys.size("block_count", MAX_LAYERS)?;
        Ok(ModelConfig {
            arch,
            name: meta.opt_str("general.name")?.map(str::to_string),
            n_layers,
            n_embd,
            n_ff: keys.size("feed_forward_length", MAX_DIM)?,
            n_heads,
            n_kv_heads,
            k_dim,
            v_dim,
            n_rot,
            rope_style: arch.rope_style(),
            rope_base: keys.positive("rope.freq_base")?.unwrap_or(10_000.0),
            rope_scaling: rope_scaling(&keys, arch, gguf, n_ctx_train)?,
            rope_attn_factor: keys.positive("rope.scaling.attn_factor")?.unwrap_or(1.0),
            norm_eps,
            scales: scales(&keys, arch, k_dim)?,
            layers: layers(&keys, arch, n_layers)?,
            n_ctx_train,
            n_vocab: embedding.n_rows() as usize,
            arch_name,
        })
    }
}

/// Granite's factors; zero stands for none, as in llama.cpp.
fn scales(keys: &Keys<'_>, arch: Architecture, k_dim: usize) -> Result<Scales, EngineError> {
    let none = Scales {
        embedding: 1.0,
        residual: 1.0,
        logits: 1.0,
        attention: 1.0 / (k_dim as f64).sqrt(),
    };
    if arch != Architecture::Granite {
        return Ok(none);
    }
    let deepstack = keys.key("deepstack_mapping");
    if keys.meta.get(&deepstack).is_some() {
        return Err(EngineError::UnsupportedFeature {
            arch: keys.arch.to_string(),
            feature: format!("inputs of a vision model (`{deepstack}`)"),
        });
    }
    let logits =
        keys.positive("logit_scale")?
            .ok_or_else(|| rocmforge_gguf::Error::MissingKey {
                key: keys.key("logit_scale"),
            })?;
    let factor = |name: &str| match keys.meta.opt_f32(&keys.key(name))? {
        Some(0.0) => Ok(None),
        _ => keys.positive(name),
    };
    Ok(Scales {
        embedding: factor("embedding_scale")?.unwrap_or(none.embedding),
        residual: factor("residual_scale")?.unwrap_or(none.residual),
        logits,
        attention: factor("attention.scale")?.unwrap_or(none.attention),
    })
}

/// Which layers rotate and which see a window.
fn layers(
    keys: &Keys<'_>,
    arch: Architecture,
    n_layers: usize,
) -> Result<Vec<LayerView>, EngineError> {
    let plain = LayerView {
        rotates: true,
        window: None,
    };
    let mut layers = vec![plain; n_layers];
    match arch {
        // Without its key in the file: llama.cpp has the same constant.
        Architecture::SmolLm3 => layers
            .iter_mut()
            .skip(3)
            .step_by(4)
            .for_each(|layer| layer.rotates = false),
        Architecture::Granite => {
            let finetuned = keys.meta.opt_bool(&keys.key("rope.scaling.finetuned"))?;
            let rotates = finetuned.unwrap_or(true);
            layers.iter_mut().for_each(|layer| layer.rotates = rotates);
        }
        Architecture::Olmo2 => {
            let window = keys
                .meta
                .opt_u32(&keys.key("attention.sliding_window"))?
                .filter(|&window| window > 0);
            if window.is_some() {
                let pattern = windowed(keys, n_layers)?;
                for (layer, windowed) in layers.iter_mut().zip(pattern) {
                    layer.window = window.filter(|_| windowed);
                }
            }
        }
        // Phi's files have a window that converters have filled in wrongly; llama.cpp ignores it as well.
        Architecture::Llama | Architecture::Qwen2 | Architecture::Qwen3 | Architecture::Phi3 => {}
    }
    Ok(layers)
}

/// The layers with a window: a flag for each, or a period whose last layer has none (4 if the file is silent).
fn windowed(keys: &Keys<'_>, n_layers: usize) -> Result<Vec<bool>, EngineError> {
    const NAME: &str = "attention.sliding_window_pattern";
    let bad = |value: String| keys.bad(NAME, value, "a flag for each layer, or a period");
    let period = match keys.meta.get(&keys.key(NAME)) {
        None => 4,
        Some(Value::Array(flags)) => {
            let flag = |value: Value<'_>| match value {
                Value::Bool(flag) => Some(flag),
                other => other.as_int().map(|n| n != 0),
            };
            let flags: Option<Vec<bool>> = flags.iter().take(MAX_LAYERS + 1).map(flag).collect();
            return match flags {
                Some(flags) if flags.len() == n_layers => Ok(flags),
                Some(flags) => Err(bad(format!("{} flags", flags.len()))),
                None => Err(bad("another kind of list".to_string())),
            };
        }
        Some(value) => value
            .as_int()
            .and_then(|n| usize::try_from(n).ok())
            .ok_or_else(|| bad("no number".to_string()))?,
    };
    let has_window = |layer: usize| period == 0 || layer % period < period - 1;
    Ok((0..n_layers).map(has_window).collect())
}

fn rope_scaling(
    keys: &Keys<'_>,
    arch: Architecture,
    gguf: &Gguf,
    n_ctx_train: usize,
) -> Result<RopeScaling, EngineError> {
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
        Ok::<_, EngineError>(original.unwrap_or(n_ctx_train))
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
