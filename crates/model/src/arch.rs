//! The supported model families, and the facts about each that its files do not state.

use rocmforge_plan::{Activation, ExpertWeights, RopeStyle};

use crate::error::LoadError;

/// The supported model families.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Architecture {
    /// Llama 1, 2, 3.x and families that use its id: Mistral, Mixtral, Yi, TinyLlama, SmolLM.
    Llama,
    Qwen2,
    /// Qwen 1.5 and 2 with experts, including a shared expert that every token uses.
    Qwen2Moe,
    Qwen3,
    Qwen3Moe,
    /// Granite 3 and 4 dense: Llama with constant factors.
    Granite,
    /// SmolLM 3: every fourth layer has no RoPE.
    SmolLm3,
    /// OLMo 2 and 3: norms after attention and feed-forward; Q and K norms span all heads.
    Olmo2,
    /// Phi 3 and 4: fused projections, two sets of frequency factors.
    Phi3,
    /// Gemma 2: norms before and after each block, sliding-window attention in every other layer, soft caps.
    Gemma2,
    /// Gemma 3: as Gemma 2 with norms of Q and K; five of six layers have a window and RoPE frequencies of their own.
    Gemma3,
    /// GPT-2: layer norms, learned positions, a feed-forward network without a gate.
    Gpt2,
    /// As GPT-2, with RoPE.
    StarCoder2,
}

/// Which values each norm of Q and K spans.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HeadNorm {
    /// Each head separately, if the file has the tensors.
    IfPresent,
    /// Each head separately; the tensors are required.
    Each,
    /// All heads together; the tensors are required.
    Together,
}

/// Where the norms of an attention or feed-forward block stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BlockNorm {
    /// On the block's input.
    Before,
    /// On the block's output, before it is added to the residual stream.
    After,
    Both,
}

/// How the residual stream is normalized.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StreamNorm {
    Rms,
    /// LayerNorm: subtracts the mean and adds a bias.
    Layer,
}

impl StreamNorm {
    /// The metadata key of the epsilon that is added to the variance.
    pub(crate) fn eps_key(self) -> &'static str {
        match self {
            StreamNorm::Rms => "attention.layer_norm_rms_epsilon",
            StreamNorm::Layer => "attention.layer_norm_epsilon",
        }
    }
}

/// The structure of a feed-forward network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FeedForward {
    /// `down(activation(gate(x)) * up(x))`.
    Gated(Activation),
    /// As `Gated`, with the rows of the gate and then those of the up projection in one tensor, `ffn_up`.
    FusedGated(Activation),
    /// `down(activation(up(x)))`.
    Plain(Activation),
}

/// Whether the feed-forward network is a mixture of experts (MoE), and how experts are weighted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Moe {
    Never,
    /// If the file has an expert count.
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

    /// Returns the architecture named in `general.architecture`. The error lists the supported names.
    pub fn from_name(name: &str) -> Result<Architecture, LoadError> {
        let found = Architecture::ALL.iter().find(|(known, _)| *known == name);
        found
            .map(|(_, arch)| *arch)
            .ok_or_else(|| LoadError::UnsupportedArchitecture {
                name: rocmforge_gguf::escape_control(name).to_string(),
                supported: Architecture::NAMES,
            })
    }

    /// Which values of a head form RoPE pairs: neighbours in Llama and its relatives, otherwise value `i` and value
    /// `i + n_rot / 2`.
    pub(crate) fn rope_style(self) -> RopeStyle {
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

    /// The norms of Q and K; a file without tensors required here is incomplete.
    pub(crate) fn head_norm(self) -> HeadNorm {
        match self {
            Architecture::Qwen3 | Architecture::Qwen3Moe | Architecture::Gemma3 => HeadNorm::Each,
            Architecture::Olmo2 => HeadNorm::Together,
            _ => HeadNorm::IfPresent,
        }
    }

    pub(crate) fn block_norm(self) -> BlockNorm {
        match self {
            Architecture::Olmo2 => BlockNorm::After,
            Architecture::Gemma2 | Architecture::Gemma3 => BlockNorm::Both,
            _ => BlockNorm::Before,
        }
    }

    pub(crate) fn stream_norm(self) -> StreamNorm {
        match self {
            Architecture::Gpt2 | Architecture::StarCoder2 => StreamNorm::Layer,
            _ => StreamNorm::Rms,
        }
    }

    pub(crate) fn feed_forward(self) -> FeedForward {
        match self {
            Architecture::Phi3 => FeedForward::FusedGated(Activation::Silu),
            Architecture::Gemma2 | Architecture::Gemma3 => FeedForward::Gated(Activation::GeluTanh),
            Architecture::Gpt2 | Architecture::StarCoder2 => {
                FeedForward::Plain(Activation::GeluTanh)
            }
            _ => FeedForward::Gated(Activation::Silu),
        }
    }

    pub(crate) fn moe(self) -> Moe {
        match self {
            Architecture::Llama => Moe::IfCounted(ExpertWeights::Normalized),
            Architecture::Qwen2Moe => Moe::Always(ExpertWeights::Softmax),
            Architecture::Qwen3Moe => Moe::Always(ExpertWeights::Normalized),
            _ => Moe::Never,
        }
    }

    /// Whether there is a shared expert, with a gate of its own, that every token uses.
    pub(crate) fn has_shared_expert(self) -> bool {
        self == Architecture::Qwen2Moe
    }

    /// Whether positions are learned: rows of a matrix (`position_embd`) that are added to the embeddings.
    pub(crate) fn learns_positions(self) -> bool {
        self == Architecture::Gpt2
    }

    /// Whether frequency factors in the file (`rope_freqs.weight`) are used.
    pub(crate) fn has_rope_freqs(self) -> bool {
        matches!(
            self,
            Architecture::Llama | Architecture::Qwen2 | Architecture::Qwen3 | Architecture::Granite
        )
    }
}
