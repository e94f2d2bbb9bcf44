//! The models that AMD's Lemonade offered through llama.cpp in August 2026: a measure of what people run. Architectures
//! are those that llama.cpp's converter gives them.

/// A released model and its file.
pub(crate) struct Released {
    pub(crate) name: &'static str,
    /// `general.architecture` of its file.
    pub(crate) arch: &'static str,
    /// The type mix of its file, one of [`MIXES`].
    pub(crate) mix: &'static str,
    pub(crate) gives: Gives,
    /// What else it is offered for: parts of the model in other tensors or files.
    pub(crate) extras: &'static [&'static str],
}

/// What a model makes of a text.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Gives {
    Text,
    /// An embedding.
    Vector,
    /// The score of a reranker.
    Score,
}

use Gives::{Score, Text, Vector};

const IMAGES: &str = "images";
const SOUND: &str = "sound";
/// Text is the same without them, but slower.
const DRAFTS: &str = "drafts";

/// The formats that files of a mix may have, beside F32, F16 and BF16.
#[rustfmt::skip]
pub(crate) static MIXES: [(&str, &[&str]); 11] = [
    ("MXFP4", &["MXFP4", "Q8_0"]),
    ("MXFP4_MOE", &["MXFP4", "Q8_0"]),
    ("Q1_0", &["Q1_0"]),
    ("Q4_0", &["Q4_0", "Q4_1", "Q6_K", "Q8_0"]),
    ("Q4_1", &["Q4_1", "Q6_K", "Q8_0"]),
    ("Q4_K_M", &["Q4_K", "Q5_K", "Q6_K", "Q5_0", "Q8_0", "MXFP4"]),
    ("Q4_K_S", &["Q4_K", "Q5_K", "Q6_K", "Q5_0", "Q8_0"]),
    ("Q8_0", &["Q8_0"]),
    ("UD-IQ2_M", &["IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ4_NL", "IQ4_XS", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "Q8_0"]),
    ("UD-Q4_K_M", &["IQ3_S", "IQ4_NL", "IQ4_XS", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "Q8_0"]),
    ("UD-Q4_K_XL", &["IQ3_S", "IQ4_NL", "IQ4_XS", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "Q8_0"]),
];

const fn row(
    name: &'static str,
    arch: &'static str,
    mix: &'static str,
    gives: Gives,
    extras: &'static [&'static str],
) -> Released {
    Released {
        name,
        arch,
        mix,
        gives,
        extras,
    }
}

#[rustfmt::skip]
pub(crate) static RELEASED: [Released; 90] = [
    row("MiniCPM5-1B", "llama", "Q4_K_M", Text, &[]),
    row("MiniCPM4.1-8B", "minicpm", "Q4_K_M", Text, &[]),
    row("MiniCPM4-8B", "minicpm", "Q4_K_M", Text, &[]),
    row("MiniCPM3-4B", "minicpm3", "Q4_K_M", Text, &[]),
    row("MiniCPM-V-4.6", "qwen35", "Q4_K_M", Text, &[IMAGES]),
    row("MiniCPM-V-4.6-Thinking", "qwen35", "Q4_K_M", Text, &[IMAGES]),
    row("MiniCPM-V-4.5", "qwen3", "Q4_K_M", Text, &[IMAGES]),
    row("MiniCPM-V-4", "llama", "Q4_K_M", Text, &[IMAGES]),
    row("Muse-Glimmer-30B", "muse-glimmer", "UD-Q4_K_XL", Text, &[IMAGES]),
    row("MiniCPM-o-4.5-Vision", "qwen3", "Q4_K_M", Text, &[IMAGES]),
    row("MiniCPM-o-2.6-Vision", "qwen2", "Q4_K_M", Text, &[IMAGES]),
    row("Qwen3-0.6B", "qwen3", "Q4_0", Text, &[]),
    row("Tiny-Test-Model", "gemma3", "UD-IQ2_M", Text, &[]),
    row("Qwen3-1.7B", "qwen3", "Q4_0", Text, &[]),
    row("Qwen3-4B", "qwen3", "Q4_0", Text, &[]),
    row("Qwen3-8B", "qwen3", "Q4_1", Text, &[]),
    row("DeepSeek-Qwen3-8B", "qwen3", "Q4_1", Text, &[]),
    row("Qwen3-14B", "qwen3", "Q4_0", Text, &[]),
    row("Qwen3-4B-Instruct-2507", "qwen3", "Q4_K_M", Text, &[]),
    row("Qwen3-30B-A3B", "qwen3moe", "Q4_0", Text, &[]),
    row("Qwen3-30B-A3B-Instruct-2507", "qwen3moe", "Q4_0", Text, &[]),
    row("Qwen3-Coder-30B-A3B-Instruct", "qwen3moe", "Q4_K_M", Text, &[]),
    row("Qwen3-Coder-Next", "qwen3next", "MXFP4_MOE", Text, &[]),
    row("Nemotron-3-Nano-30B-A3B", "nemotron_h_moe", "UD-Q4_K_XL", Text, &[]),
    row("NVIDIA-Nemotron-3.5-Lightning-30B-A3B", "nemotron_h_moe", "UD-Q4_K_XL", Text, &[DRAFTS]),
    row("Gemma-3-4b-it", "gemma3", "Q4_K_M", Text, &[IMAGES]),
    row("Gemma-4-26B-A4B-it", "gemma4", "UD-Q4_K_M", Text, &[IMAGES]),
    row("Gemma-4-31B-it", "gemma4", "Q4_K_M", Text, &[IMAGES]),
    row("Gemma-4-12B-it", "gemma4", "Q4_K_M", Text, &[IMAGES]),
    row("Gemma-4-26B-A4B-it-MTP", "gemma4", "UD-Q4_K_M", Text, &[IMAGES]),
    row("Gemma-4-31B-it-MTP", "gemma4", "Q4_K_M", Text, &[IMAGES]),
    row("Gemma-4-12B-it-MTP", "gemma4", "Q4_K_M", Text, &[IMAGES]),
    row("Gemma-4-E4B-it", "gemma4", "Q4_K_M", Text, &[IMAGES]),
    row("Gemma-4-E2B-it", "gemma4", "Q4_K_M", Text, &[IMAGES]),
    row("Bonsai-8B", "qwen3", "Q1_0", Text, &[]),
    row("Bonsai-4B", "qwen3", "Q1_0", Text, &[]),
    row("Bonsai-1.7B", "qwen3", "Q1_0", Text, &[]),
    row("Phi-4-mini-instruct", "phi3", "Q4_K_M", Text, &[]),
    row("LFM2-1.2B", "lfm2", "Q4_K_M", Text, &[]),
    row("LFM2.5-1.2B-Instruct", "lfm2", "Q4_K_M", Text, &[]),
    row("LFM2.5-8B-A1B", "lfm2moe", "Q4_K_M", Text, &[]),
    row("PromptBridge-0.6b-Alpha", "qwen3", "Q4_K_M", Text, &[]),
    row("Jan-nano-128k", "qwen3", "Q4_K_M", Text, &[]),
    row("Jan-v1-4B", "qwen3", "Q4_K_M", Text, &[]),
    row("Llama-3.2-1B-Instruct", "llama", "UD-Q4_K_XL", Text, &[]),
    row("Llama-3.2-3B-Instruct", "llama", "UD-Q4_K_XL", Text, &[]),
    row("SmolLM3-3B", "smollm3", "UD-Q4_K_XL", Text, &[]),
    row("Ministral-3-3B-Instruct-2512", "mistral3", "Q4_K_M", Text, &[IMAGES]),
    row("Qwen2.5-VL-7B-Instruct", "qwen2vl", "Q4_K_M", Text, &[IMAGES]),
    row("Qwen2.5-VL-3B-Instruct", "qwen2vl", "Q4_K_M", Text, &[IMAGES]),
    row("Qwen3-VL-4B-Instruct", "qwen3vl", "Q4_K_M", Text, &[IMAGES]),
    row("Qwen3-VL-8B-Instruct", "qwen3vl", "Q4_K_M", Text, &[IMAGES]),
    row("Qwen2.5-Omni-7B", "qwen2vl", "Q4_K_M", Text, &[IMAGES, SOUND]),
    row("Qwen2.5-Omni-3B", "qwen2vl", "Q4_K_M", Text, &[IMAGES, SOUND]),
    row("Qwen3-Next-80B-A3B-Instruct", "qwen3next", "UD-Q4_K_XL", Text, &[]),
    row("Qwen3.5-0.8B", "qwen35", "UD-Q4_K_XL", Text, &[IMAGES]),
    row("Qwen3.5-2B", "qwen35", "UD-Q4_K_XL", Text, &[IMAGES]),
    row("Qwen3.5-4B", "qwen35", "UD-Q4_K_XL", Text, &[IMAGES]),
    row("Qwen3.5-4B-MTP", "qwen35", "UD-Q4_K_XL", Text, &[IMAGES]),
    row("Qwen3.5-9B", "qwen35", "UD-Q4_K_XL", Text, &[IMAGES]),
    row("Qwen3.5-35B-A3B", "qwen35moe", "UD-Q4_K_XL", Text, &[IMAGES]),
    row("Qwen3.5-122B-A10B", "qwen35moe", "UD-Q4_K_XL", Text, &[IMAGES]),
    row("Qwen3.5-122B-A10B-MTP", "qwen35moe", "UD-Q4_K_XL", Text, &[IMAGES]),
    row("Qwen3.5-27B", "qwen35", "UD-Q4_K_XL", Text, &[IMAGES]),
    row("Qwen3.6-35B-A3B", "qwen35moe", "UD-Q4_K_XL", Text, &[IMAGES]),
    row("Qwen3.6-35B-A3B-MTP", "qwen35moe", "UD-Q4_K_XL", Text, &[IMAGES]),
    row("Qwen3.6-27B", "qwen35", "UD-Q4_K_XL", Text, &[IMAGES]),
    row("Qwen3.6-27B-MTP", "qwen35", "UD-Q4_K_XL", Text, &[IMAGES]),
    row("Qwen3.8-27B", "qwen35", "UD-Q4_K_XL", Text, &[IMAGES]),
    row("Llama-4-Scout-17B-16E-Instruct", "llama4", "Q4_K_S", Text, &[IMAGES]),
    row("Cogito-v2-llama-109B-MoE", "llama4", "Q4_K_M", Text, &[IMAGES]),
    row("nomic-embed-text-v1", "nomic-bert", "Q4_K_S", Vector, &[]),
    row("nomic-embed-text-v2-moe", "nomic-bert-moe", "Q8_0", Vector, &[]),
    row("Qwen3-Embedding-0.6B", "qwen3", "Q8_0", Vector, &[]),
    row("Qwen3-Embedding-4B", "qwen3", "Q8_0", Vector, &[]),
    row("Qwen3-Embedding-8B", "qwen3", "Q8_0", Vector, &[]),
    row("bge-reranker-v2-m3", "bert", "Q8_0", Score, &[]),
    row("jina-reranker-v1-tiny-en", "jina-bert-v2", "Q8_0", Score, &[]),
    row("Devstral-Small-2507", "llama", "Q4_K_M", Text, &[]),
    row("Qwen2.5-Coder-32B-Instruct", "qwen2", "Q4_K_M", Text, &[]),
    row("gpt-oss-120b", "gpt-oss", "Q4_K_M", Text, &[]),
    row("gpt-oss-20b", "gpt-oss", "Q4_K_M", Text, &[]),
    row("gpt-oss-120b-mxfp", "gpt-oss", "MXFP4", Text, &[]),
    row("gpt-oss-20b-mxfp4", "gpt-oss", "MXFP4", Text, &[]),
    row("GLM-4.5-Air-UD-Q4K-XL", "glm4moe", "UD-Q4_K_XL", Text, &[]),
    row("GLM-4.7-Flash", "deepseek2", "UD-Q4_K_XL", Text, &[]),
    row("Playable1", "qwen2", "Q4_K_M", Text, &[]),
    row("granite-4.0-h-tiny", "granitehybrid", "Q4_K_M", Text, &[]),
    row("LFM2-8B-A1B", "lfm2moe", "Q4_K_M", Text, &[]),
    row("LFM2-24B-A2B", "lfm2moe", "Q4_K_M", Text, &[]),
];
