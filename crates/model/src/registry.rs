//! The supported architectures: a row for each name that files may have in `general.architecture`.

use std::sync::Arc;

use rocmforge_gguf::Gguf;
use rocmforge_plan::RopeStyle::{self, Neox, Norm};
use rocmforge_plan::Value;

use crate::builder::Builder;
use crate::embedding::EmbeddingFacts;
use crate::error::LoadError;
use crate::facts::{HeadNorm, KeyFacts, ModelConfig};
use crate::families::{
    afmoe, apertus, arcee, arctic, bert, bitnet, cohere, deci, deepseek2, dflash, drafter, eagle3,
    exaone_moe, exaone4, falcon, gemma, gemma3n, gemma4, gemma4_assistant, glm4, gpt_oss, gpt2,
    granite, grok, hunyuan, jamba, kimi_linear, laguna, lfm2, llama, llama4, mamba2, mellum, mimo2,
    minicpm3, mistral3, mixtures, modern_bert, muse_glimmer, neo_bert, olmo, olmo2, openelm, phi3,
    phimoe, plamo3, plm, qwen, qwen35, seed_oss, smallthinker, smollm3, stablelm, step35,
};
use crate::keys::Keys;
use crate::rope::FrequencyFactors as Factors;
use crate::taps::Taps;

/// An architecture: how its files are read.
pub(crate) struct Family {
    /// `general.architecture` of its files.
    pub(crate) name: &'static str,
    pub(crate) key_facts: KeyFacts,
    pub(crate) facts: ReadFacts,
    pub(crate) record: RecordPlan,
    /// Records the layer that predicts further tokens ahead, where that is known. `record` then can return what it takes.
    pub(crate) drafter: Option<RecordPlan>,
}

/// Reads the metadata.
type ReadFacts = fn(&Keys<'_>, &KeyFacts) -> Result<ModelConfig, LoadError>;
/// Records the plan; returns the logits.
pub(crate) type RecordPlan = fn(&mut Builder<'_>) -> Result<Value, LoadError>;

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
            embedding: EmbeddingFacts::DECODER,
        },
        facts,
        record,
        drafter: None,
    }
}

impl Family {
    /// Sets what the architecture says about embeddings.
    const fn with(mut self, embedding: EmbeddingFacts) -> Family {
        self.key_facts.embedding = embedding;
        self
    }

    const fn with_drafter(mut self, record: RecordPlan) -> Family {
        self.drafter = Some(record);
        self
    }
}

/// Name; RoPE pairs and frequency factors; norms of Q and K; metadata and plan. `llama` is also Mistral, Mixtral, Yi,
/// TinyLlama and SmolLM.
#[rustfmt::skip]
static FAMILIES: &[Family] = &[
    row("llama", (Norm, Factors::IfPresent), HeadNorm::IfPresent, (llama::facts, llama::record)),
    row("qwen2", (Neox, Factors::IfPresent), HeadNorm::IfPresent, (qwen::dense, llama::record)),
    row("qwen2moe", (Neox, Factors::LongRope), HeadNorm::IfPresent, (qwen::mixture_with_shared_expert, llama::record)),
    row("qwen3", (Neox, Factors::IfPresent), HeadNorm::Each, (qwen::dense, llama::record)).with(EmbeddingFacts::JUDGE),
    row("qwen3moe", (Neox, Factors::LongRope), HeadNorm::Each, (qwen::mixture, llama::record)),
    row("granite", (Norm, Factors::IfPresent), HeadNorm::IfPresent, (granite::facts, granite::record)),
    row("smollm3", (Norm, Factors::LongRope), HeadNorm::IfPresent, (smollm3::facts, llama::record)),
    row("olmo2", (Neox, Factors::LongRope), HeadNorm::Together, (olmo2::facts, olmo2::record)),
    row("phi3", (Neox, Factors::LongRope), HeadNorm::IfPresent, (phi3::facts, phi3::record)),
    row("gemma2", (Neox, Factors::LongRope), HeadNorm::IfPresent, (gemma::facts2, gemma::record)),
    row("gemma3", (Neox, Factors::LongRope), HeadNorm::Each, (gemma::facts3, gemma::record)),
    row("gpt2", (Neox, Factors::LongRope), HeadNorm::IfPresent, (gpt2::facts_with_positions, gpt2::record)),
    row("starcoder2", (Neox, Factors::LongRope), HeadNorm::IfPresent, (gpt2::facts, gpt2::record)),
    row("deepseek2", (Norm, Factors::Never), HeadNorm::IfPresent, (deepseek2::facts, llama::record)).with_drafter(drafter::record_as_llama),
    row("mistral4", (Norm, Factors::Never), HeadNorm::IfPresent, (deepseek2::facts, llama::record)),
    row("minicpm3", (Neox, Factors::LongRope), HeadNorm::IfPresent, (minicpm3::facts, granite::record)),
    row("seed_oss", (Neox, Factors::LongRope), HeadNorm::IfPresent, (seed_oss::facts, seed_oss::record)),
    row("qwen2vl", (Neox, Factors::LongRope), HeadNorm::IfPresent, (qwen::dense, llama::record)),
    row("qwen3vl", (Neox, Factors::LongRope), HeadNorm::Each, (qwen::dense, llama::record)).with(EmbeddingFacts::JUDGE),
    row("qwen3vlmoe", (Neox, Factors::LongRope), HeadNorm::Each, (qwen::mixture, llama::record)),
    row("glm4", (Norm, Factors::LongRope), HeadNorm::IfPresent, (glm4::facts, glm4::record)),
    row("glm4moe", (Neox, Factors::LongRope), HeadNorm::IfPresent, (mixtures::glm4moe, seed_oss::record)).with_drafter(drafter::record_as_seed_oss),
    row("minimax-m2", (Neox, Factors::LongRope), HeadNorm::Together, (mixtures::minimax_m2, llama::record)),
    row("minicpm", (Norm, Factors::IfPresent), HeadNorm::IfPresent, (granite::minicpm, granite::record)),
    row("granitemoe", (Norm, Factors::IfPresent), HeadNorm::IfPresent, (granite::mixture, granite::record)),
    row("bailingmoe", (Norm, Factors::IfPresent), HeadNorm::IfPresent, (mixtures::bailingmoe, llama::record)),
    row("bailingmoe2", (Neox, Factors::LongRope), HeadNorm::Each, (mixtures::bailingmoe2, llama::record)),
    row("ernie4_5", (Norm, Factors::LongRope), HeadNorm::IfPresent, (qwen::dense, llama::record)),
    row("ernie4_5-moe", (Norm, Factors::LongRope), HeadNorm::IfPresent, (mixtures::ernie, llama::record)),
    row("hunyuan-dense", (Neox, Factors::IfPresent), HeadNorm::EachAfterRope, (hunyuan::dense, llama::record)),
    row("hunyuan-moe", (Neox, Factors::IfPresent), HeadNorm::EachAfterRope, (hunyuan::mixture, llama::record)),
    row("hy_v3", (Neox, Factors::IfPresent), HeadNorm::Each, (mixtures::hy_v3, llama::record)),
    row("muse-glimmer", (Norm, Factors::LongRope), HeadNorm::Each, (muse_glimmer::facts, muse_glimmer::record)),
    row("command-r", (Norm, Factors::LongRope), HeadNorm::OwnCentered, (cohere::facts, cohere::record)),
    row("cohere2", (Norm, Factors::IfPresent), HeadNorm::IfPresent, (cohere::facts2, cohere::record)),
    row("exaone4", (Neox, Factors::IfPresent), HeadNorm::Each, (exaone4::facts, olmo2::record)),
    row("olmoe", (Neox, Factors::LongRope), HeadNorm::Together, (mixtures::olmoe, llama::record)),
    row("gemma", (Neox, Factors::LongRope), HeadNorm::IfPresent, (gemma::facts1, gemma::record1)),
    row("deepseek", (Norm, Factors::IfPresent), HeadNorm::IfPresent, (mixtures::deepseek, llama::record)),
    row("stablelm", (Neox, Factors::LongRope), HeadNorm::OwnCentered, (gpt2::facts, stablelm::record)),
    row("internlm2", (Norm, Factors::LongRope), HeadNorm::IfPresent, (qwen::dense, llama::record)),
    row("phi2", (Neox, Factors::LongRope), HeadNorm::IfPresent, (gpt2::facts, falcon::record)),
    row("falcon", (Neox, Factors::LongRope), HeadNorm::IfPresent, (gpt2::facts, falcon::record)),
    row("nemotron", (Neox, Factors::LongRope), HeadNorm::IfPresent, (gpt2::facts, arcee::record_nemotron)),
    row("arcee", (Norm, Factors::IfPresent), HeadNorm::IfPresent, (qwen::dense, arcee::record)),
    row("dots1", (Neox, Factors::LongRope), HeadNorm::Each, (mixtures::dots1, llama::record)),
    row("gpt-oss", (Neox, Factors::LongRope), HeadNorm::IfPresent, (gpt_oss::facts, gpt_oss::record)),
    row("llama4", (Norm, Factors::IfPresent), HeadNorm::IfPresent, (llama4::facts, llama::record)),
    row("phimoe", (Neox, Factors::LongRope), HeadNorm::IfPresent, (phimoe::facts, phimoe::record)),
    row("gemma3n", (Neox, Factors::Never), HeadNorm::Each, (gemma3n::facts, gemma3n::record)),
    row("apertus", (Neox, Factors::IfPresent), HeadNorm::Each, (apertus::facts, apertus::record)),
    row("smallthinker", (Neox, Factors::Never), HeadNorm::IfPresent, (smallthinker::facts, smallthinker::record)),
    row("gemma4", (Neox, Factors::IfPresent), HeadNorm::Each, (gemma4::facts, gemma4::record)),
    row("laguna", (Neox, Factors::LongRope), HeadNorm::Each, (laguna::facts, llama::record)),
    row("mimo2", (Neox, Factors::LongRope), HeadNorm::IfPresent, (mimo2::facts, mimo2::record)),
    row("step35", (Neox, Factors::LongRope), HeadNorm::IfPresent, (step35::facts, llama::record)),
    row("mistral3", (Norm, Factors::IfPresent), HeadNorm::IfPresent, (mistral3::facts, llama::record)),
    row("cohere2moe", (Norm, Factors::IfPresent), HeadNorm::IfPresent, (cohere::mixture, cohere::record)),
    row("exaone-moe", (Neox, Factors::IfPresent), HeadNorm::Each, (exaone_moe::facts, llama::record)),
    row("afmoe", (Neox, Factors::LongRope), HeadNorm::Each, (afmoe::facts, afmoe::record)),
    row("mellum", (Neox, Factors::LongRope), HeadNorm::Each, (mellum::facts, llama::record)),
    row("maincoder", (Norm, Factors::LongRope), HeadNorm::EachAfterRope, (qwen::dense, llama::record)),
    row("pangu-embedded", (Neox, Factors::IfPresent), HeadNorm::IfPresent, (qwen::dense, llama::record)),
    row("lfm2", (Neox, Factors::LongRope), HeadNorm::Each, (lfm2::dense, lfm2::record)),
    row("lfm2moe", (Neox, Factors::LongRope), HeadNorm::Each, (lfm2::mixture, lfm2::record)),
    row("qwen35", (Neox, Factors::LongRope), HeadNorm::Each, (qwen35::dense, seed_oss::record)).with_drafter(drafter::record_as_seed_oss),
    row("qwen35moe", (Neox, Factors::LongRope), HeadNorm::Each, (qwen35::mixture, seed_oss::record)).with_drafter(drafter::record_as_seed_oss),
    row("qwen3next", (Neox, Factors::LongRope), HeadNorm::Each, (qwen35::next, seed_oss::record)).with_drafter(drafter::record_as_seed_oss),
    row("mamba2", (Norm, Factors::Never), HeadNorm::IfPresent, (mamba2::facts, mamba2::record)),
    row("granitehybrid", (Norm, Factors::IfPresent), HeadNorm::IfPresent, (mamba2::granite, granite::record)),
    row("falcon-h1", (Neox, Factors::Never), HeadNorm::IfPresent, (mamba2::falcon, mamba2::record_falcon)),
    row("nemotron_h", (Norm, Factors::Never), HeadNorm::IfPresent, (mamba2::nemotron, mamba2::record_nemotron)),
    row("nemotron_h_moe", (Norm, Factors::Never), HeadNorm::IfPresent, (mamba2::nemotron, mamba2::record_nemotron)),
    row("kimi-linear", (Norm, Factors::Never), HeadNorm::IfPresent, (kimi_linear::facts, llama::record)),
    row("bailingmoe3", (Norm, Factors::Never), HeadNorm::IfPresent, (kimi_linear::ling3, llama::record)),
    row("jamba", (Norm, Factors::Never), HeadNorm::IfPresent, (jamba::facts, llama::record)),
    row("mamba", (Norm, Factors::Never), HeadNorm::IfPresent, (jamba::mamba, mamba2::record)),
    row("plamo2", (Neox, Factors::Never), HeadNorm::Own, (jamba::plamo, plamo3::record)),
    row("deci", (Norm, Factors::IfPresent), HeadNorm::IfPresent, (deci::facts, deci::record)),
    row("exaone", (Neox, Factors::IfPresent), HeadNorm::IfPresent, (qwen::dense, llama::record)),
    row("chatglm", (Norm, Factors::Never), HeadNorm::IfPresent, (qwen::dense, phi3::record)),
    row("deepseek2-ocr", (Neox, Factors::Never), HeadNorm::IfPresent, (mixtures::deepseek_ocr, llama::record)),
    row("hunyuan_vl", (Neox, Factors::IfPresent), HeadNorm::EachAfterRope, (hunyuan::dense, llama::record)),
    row("paddleocr", (Neox, Factors::Never), HeadNorm::IfPresent, (qwen::dense, llama::record)),
    row("plm", (Norm, Factors::Never), HeadNorm::IfPresent, (plm::facts, arcee::record)),
    row("plamo3", (Neox, Factors::Never), HeadNorm::Each, (plamo3::facts, plamo3::record)),
    row("jais2", (Neox, Factors::Never), HeadNorm::IfPresent, (gpt2::facts, arcee::record_nemotron)),
    row("arctic", (Norm, Factors::Never), HeadNorm::IfPresent, (arctic::facts, arctic::record)),
    row("openelm", (Neox, Factors::Never), HeadNorm::Each, (openelm::facts, llama::record)),
    row("olmo", (Norm, Factors::Never), HeadNorm::IfPresent, (olmo::facts, olmo::record)),
    row("grok", (Neox, Factors::Never), HeadNorm::IfPresent, (grok::facts, grok::record)),
    row("bitnet", (Neox, Factors::Never), HeadNorm::IfPresent, (qwen::dense, bitnet::record)),
    row("llama-embed", (Norm, Factors::IfPresent), HeadNorm::IfPresent, (llama::facts, llama::record)).with(EmbeddingFacts::ENCODER),
    row("eurobert", (Neox, Factors::Never), HeadNorm::IfPresent, (qwen::dense, llama::record)).with(EmbeddingFacts::ENCODER),
    row("neo-bert", (Norm, Factors::Never), HeadNorm::IfPresent, (qwen::dense, neo_bert::record)).with(EmbeddingFacts::ENCODER),
    row("bert", (Neox, Factors::Never), HeadNorm::TogetherCentered, (bert::facts_with_positions, bert::record)).with(EmbeddingFacts::ENCODER),
    row("nomic-bert", (Neox, Factors::Never), HeadNorm::TogetherCentered, (bert::facts, bert::record_nomic)).with(EmbeddingFacts::ENCODER),
    row("nomic-bert-moe", (Neox, Factors::Never), HeadNorm::TogetherCentered, (bert::facts_with_experts, bert::record)).with(EmbeddingFacts::ENCODER),
    row("jina-bert-v2", (Neox, Factors::Never), HeadNorm::TogetherCentered, (bert::facts_with_biases, bert::record_jina2)).with(EmbeddingFacts::ENCODER),
    row("jina-bert-v3", (Neox, Factors::Never), HeadNorm::TogetherCentered, (bert::facts, bert::record)).with(EmbeddingFacts::ENCODER),
    row("modern-bert", (Neox, Factors::Never), HeadNorm::IfPresent, (modern_bert::facts, modern_bert::record)).with(EmbeddingFacts::MODERN_BERT),
    row("gemma-embedding", (Neox, Factors::LongRope), HeadNorm::Each, (gemma::embedding_facts, gemma::record_embedding)).with(EmbeddingFacts::ENCODER),
];

/// A drafter in a file of its own.
pub(crate) struct Assistant {
    pub(crate) family: Family,
    pub(crate) takes: Takes,
}

/// What such a drafter takes of the model that checks its drafts.
pub(crate) enum Takes {
    /// The last hidden values, and the KV cache, of models of an architecture.
    Cache(&'static str),
    /// Values of layers of any model, as its file says.
    Layers(ReadTaps),
    /// The same. It writes them into a cache of its own, with the plan that this records, and reads that.
    Context(ReadTaps, RecordPlan),
}

/// Reads what goes out of a model's plan, by the configurations of the drafter and of the model.
type ReadTaps = fn(&Keys<'_>, &Arc<Gguf>, [&ModelConfig; 2]) -> Result<Taps, LoadError>;

static ASSISTANTS: &[Assistant] = &[
    Assistant {
        family: row(
            "gemma4-assistant",
            (Neox, Factors::IfPresent),
            HeadNorm::Each,
            (gemma4_assistant::facts, gemma4_assistant::record),
        ),
        takes: Takes::Cache("gemma4"),
    },
    Assistant {
        family: row(
            "eagle3",
            (Norm, Factors::IfPresent),
            HeadNorm::IfPresent,
            (eagle3::facts, eagle3::record),
        ),
        takes: Takes::Layers(eagle3::taps),
    },
    Assistant {
        family: row(
            "dflash",
            (Neox, Factors::IfPresent),
            HeadNorm::Each,
            (dflash::facts, dflash::record),
        ),
        takes: Takes::Context(dflash::taps, dflash::record_context),
    },
];

/// Returns the drafter in files of their own with the architecture `name`.
pub(crate) fn assistant(name: &str) -> Option<&'static Assistant> {
    ASSISTANTS
        .iter()
        .find(|assistant| assistant.family.name == name)
}

/// Returns the supported architectures, as files name them.
pub fn architectures() -> impl Iterator<Item = &'static str> {
    FAMILIES.iter().map(|family| family.name)
}

/// Returns the row of an architecture. The error lists the supported names.
pub(crate) fn family(name: &str) -> Result<&'static Family, LoadError> {
    if let Some(assistant) = assistant(name) {
        let arch = name.to_string();
        let of = match assistant.takes {
            Takes::Cache(of) => format!(", of the {of} architecture"),
            Takes::Layers(_) | Takes::Context(..) => String::new(),
        };
        return Err(LoadError::OnlyDrafts { arch, of });
    }
    let found = FAMILIES.iter().find(|family| family.name == name);
    found.ok_or_else(|| LoadError::UnsupportedArchitecture {
        name: rocmforge_gguf::shown(name),
        supported: architectures().collect::<Vec<_>>().join(", "),
    })
}
