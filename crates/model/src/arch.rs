//! The model families whose wiring is known, and what a file of each does not say.

use rocmforge_plan::{Activation, ExpertWeights, RopeStyle};

use crate::error::LoadError;

/// The model families whose wiring is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Architecture {
    /// Llama 1, 2, 3.x and what uses that id: Mistral, Mixtral, Yi, TinyLlama, SmolLM.
    Llama,
    Qwen2,
    /// Qwen 1.5 and 2 with experts, one of which every token goes to.
    Qwen2Moe,
    Qwen3,
    Qwen3Moe,
    /// Granite 3 and 4 dense: Llama with constant factors.
    Granite,
    /// Every fourth layer has no positions.
    SmolLm3,
    /// OLMo 2 and 3: norms after attention and feed-forward, and over all heads together.
    Olmo2,
    /// Phi 3 and 4: fused projections, two sets of frequency factors.
    Phi3,
    /// Norms before and after each block, every other layer with a window, soft caps.
    Gemma2,
    /// As Gemma 2 with norms of Q and K; five layers of six have a window and frequencies of their own.
    Gemma3,
    /// Layer norms, learned positions, a feed-forward network without a gate.
    Gpt2,
    /// As GPT-2, with rotary positions.
    StarCoder2,
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
    Both,
}

/// How the residual stream is normalized.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StreamNorm {
    Rms,
    /// With the mean taken away and a bias.
    Layer,
}

impl StreamNorm {
    /// The key of what is added to the variance.
    pub(super) fn eps_key(self) -> &'static str {
        match self {
            StreamNorm::Rms => "attention.layer_norm_rms_epsilon",
            StreamNorm::Layer => "attention.layer_norm_epsilon",
        }
    }
}

/// The form of a feed-forward network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FeedForward {
    /// `down(activation(gate(x)) * up(x))`.
    Gated(Activation),
    /// As `Gated`; `ffn_up` holds the rows of the gate and, below them, those of the up projection.
    FusedGated(Activation),
    /// `down(activation(up(x)))`.
    Plain(Activation),
}

/// Whether the feed-forward network is a mixture of experts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mixture {
    Never,
    /// Where the file counts experts; their weights.
    IfCounted(ExpertWeights),
    Always(ExpertWeights),
}

impl Architecture {
    pub const ALL: [(&'static str, Architecture); 13] = [
        ("llama", Architecture::Llama),
        ("qwen2", Architecture::Qwen2),
        ("qwen2moe", Architecture::Qwen2Moe),
        ("qwen3", Architecture::Qwen3),
        ("qwen3moe", Architecture::Qwen3Moe),
        ("granite", Architecture::Granite),
        ("smollm3", Architecture::SmolLm3),
        ("olmo2", Architecture::Olmo2),
        ("phi3", Architecture::Phi3),
        ("gemma2", Architecture::Gemma2),
        ("gemma3", Architecture::Gemma3),
        ("gpt2", Architecture::Gpt2),
        ("starcoder2", Architecture::StarCoder2),
    ];
    const NAMES: &'static str = "llama, qwen2, qwen2moe, qwen3, qwen3moe, granite, smollm3, olmo2, phi3, gemma2, gemma3, gpt2, starcoder2";

    /// The architecture of `general.architecture`, or a refusal by name.
    pub fn from_name(name: &str) -> Result<Architecture, LoadError> {
        let found = Architecture::ALL.iter().find(|(known, _)| *known == name);
        found
            .map(|(_, arch)| *arch)
            .ok_or_else(|| LoadError::UnsupportedArchitecture {
                name: rocmforge_gguf::escape_control(name).to_string(),
                supported: Architecture::NAMES,
            })
    }

    /// Files of Llama and its kin pair neighbouring values of a head, the others value `i` with value
    /// `i + n_rot / 2`.
    pub(super) fn rope_style(self) -> RopeStyle {
        match self {
            Architecture::Llama | Architecture::Granite | Architecture::SmolLm3 => RopeStyle::Norm,
            Architecture::Qwen2
            | Architecture::Qwen2Moe
            | Architecture::Qwen3
            | Architecture::Qwen3Moe
            | Architecture::Olmo2
            | Architecture::Phi3
            | Architecture::Gemma2
            | Architecture::Gemma3
            | Architecture::Gpt2
            | Architecture::StarCoder2 => RopeStyle::Neox,
        }
    }

    /// Norms that every file must have: without its tensors it is incomplete.
    pub(super) fn head_norm(self) -> HeadNorm {
        match self {
            Architecture::Qwen3 | Architecture::Qwen3Moe | Architecture::Gemma3 => HeadNorm::Each,
            Architecture::Olmo2 => HeadNorm::Together,
            _ => HeadNorm::IfPresent,
        }
    }

    pub(super) fn block_norm(self) -> BlockNorm {
        match self {
            Architecture::Olmo2 => BlockNorm::After,
            Architecture::Gemma2 | Architecture::Gemma3 => BlockNorm::Both,
            _ => BlockNorm::Before,
        }
    }

    pub(super) fn stream_norm(self) -> StreamNorm {
        match self {
            Architecture::Gpt2 | Architecture::StarCoder2 => StreamNorm::Layer,
            _ => StreamNorm::Rms,
        }
    }

    pub(super) fn feed_forward(self) -> FeedForward {
        match self {
            Architecture::Phi3 => FeedForward::FusedGated(Activation::Silu),
            Architecture::Gemma2 | Architecture::Gemma3 => FeedForward::Gated(Activation::GeluTanh),
            Architecture::Gpt2 | Architecture::StarCoder2 => {
                FeedForward::Plain(Activation::GeluTanh)
            }
            _ => FeedForward::Gated(Activation::Silu),
        }
    }

    pub(super) fn mixture(self) -> Mixture {
        match self {
            Architecture::Llama => Mixture::IfCounted(ExpertWeights::Normalized),
            Architecture::Qwen2Moe => Mixture::Always(ExpertWeights::Softmax),
            Architecture::Qwen3Moe => Mixture::Always(ExpertWeights::Normalized),
            _ => Mixture::Never,
        }
    }

    /// Whether one more expert, behind a gate of its own, sees every token.
    pub(super) fn has_shared_expert(self) -> bool {
        self == Architecture::Qwen2Moe
    }

    /// Whether positions are rows of a matrix (`position_embd`) that are added to the embeddings.
    pub(super) fn learns_positions(self) -> bool {
        self == Architecture::Gpt2
    }

    /// Whether frequency factors in the file (`rope_freqs.weight`) count.
    pub(super) fn has_rope_freqs(self) -> bool {
        matches!(
            self,
            Architecture::Llama | Architecture::Qwen2 | Architecture::Qwen3 | Architecture::Granite
        )
    }
}
