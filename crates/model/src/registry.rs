//! The supported architectures: a row for each name that files may have in `general.architecture`.

use rocmforge_plan::RopeStyle::{self, Neox, Norm};
use rocmforge_plan::Value;

use crate::builder::Builder;
use crate::error::LoadError;
use crate::facts::{HeadNorm, KeyFacts, ModelConfig};
use crate::families::{gemma, gpt2, granite, llama, olmo2, phi3, qwen, seed_oss, smollm3};
use crate::keys::Keys;
use crate::rope::FrequencyFactors as Factors;

/// An architecture: how its files are read.
pub(crate) struct Family {
    /// `general.architecture` of its files.
    pub(crate) name: &'static str,
    pub(crate) key_facts: KeyFacts,
    pub(crate) facts: ReadFacts,
    pub(crate) record: RecordPlan,
}

/// Reads the metadata.
type ReadFacts = fn(&Keys<'_>, &KeyFacts) -> Result<ModelConfig, LoadError>;
/// Records the plan; returns the logits.
type RecordPlan = fn(&mut Builder<'_>) -> Result<Value, LoadError>;

const fn row(
    name: &'static str,
    (rope_style, rope_factors): (RopeStyle, Factors),
    head_norm: HeadNorm,
    (facts, record): (ReadFacts, RecordPlan),
) -> Family {
    Family {
        name,
        key_facts: KeyFacts {
            rope_style,
            rope_factors,
            head_norm,
        },
        facts,
        record,
    }
}

/// Name; RoPE pairs and frequency factors; norms of Q and K; metadata and plan. `llama` is also Mistral, Mixtral, Yi,
/// TinyLlama and SmolLM.
#[rustfmt::skip]
static FAMILIES: &[Family] = &[
    row("llama", (Norm, Factors::IfPresent), HeadNorm::IfPresent, (llama::facts, llama::record)),
    row("qwen2", (Neox, Factors::IfPresent), HeadNorm::IfPresent, (qwen::dense, llama::record)),
    row("qwen2moe", (Neox, Factors::LongRope), HeadNorm::IfPresent, (qwen::mixture_with_shared_expert, llama::record)),
    row("qwen3", (Neox, Factors::IfPresent), HeadNorm::Each, (qwen::dense, llama::record)),
    row("qwen3moe", (Neox, Factors::LongRope), HeadNorm::Each, (qwen::mixture, llama::record)),
    row("granite", (Norm, Factors::IfPresent), HeadNorm::IfPresent, (granite::facts, granite::record)),
    row("smollm3", (Norm, Factors::LongRope), HeadNorm::IfPresent, (smollm3::facts, llama::record)),
    row("olmo2", (Neox, Factors::LongRope), HeadNorm::Together, (olmo2::facts, olmo2::record)),
    row("phi3", (Neox, Factors::LongRope), HeadNorm::IfPresent, (phi3::facts, phi3::record)),
    row("gemma2", (Neox, Factors::LongRope), HeadNorm::IfPresent, (gemma::facts2, gemma::record)),
    row("gemma3", (Neox, Factors::LongRope), HeadNorm::Each, (gemma::facts3, gemma::record)),
    row("gpt2", (Neox, Factors::LongRope), HeadNorm::IfPresent, (gpt2::facts_with_positions, gpt2::record)),
    row("starcoder2", (Neox, Factors::LongRope), HeadNorm::IfPresent, (gpt2::facts, gpt2::record)),
    row("seed_oss", (Neox, Factors::LongRope), HeadNorm::IfPresent, (seed_oss::facts, seed_oss::record)),
];

/// Returns the supported architectures, as files name them.
pub fn architectures() -> impl Iterator<Item = &'static str> {
    FAMILIES.iter().map(|family| family.name)
}

/// Returns the row of an architecture. The error lists the supported names.
pub(crate) fn family(name: &str) -> Result<&'static Family, LoadError> {
    let found = FAMILIES.iter().find(|family| family.name == name);
    found.ok_or_else(|| LoadError::UnsupportedArchitecture {
        name: rocmforge_gguf::shown(name),
        supported: architectures().collect::<Vec<_>>().join(", "),
    })
}
