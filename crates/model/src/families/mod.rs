//! One short file for each kind of model: what it needs of the metadata, then its plan, from the embeddings to the
//! logits.

pub(crate) mod apertus;
pub(crate) mod arcee;
pub(crate) mod bert;
pub(crate) mod cohere;
pub(crate) mod deepseek2;
pub(crate) mod exaone4;
pub(crate) mod falcon;
pub(crate) mod gemma;
pub(crate) mod gemma3n;
pub(crate) mod gemma4;
pub(crate) mod glm4;
pub(crate) mod gpt2;
pub(crate) mod gpt_oss;
pub(crate) mod granite;
pub(crate) mod hunyuan;
pub(crate) mod laguna;
pub(crate) mod llama;
pub(crate) mod llama4;
pub(crate) mod mimo2;
pub(crate) mod minicpm3;
pub(crate) mod mistral3;
pub(crate) mod mixtures;
pub(crate) mod modern_bert;
pub(crate) mod muse_glimmer;
pub(crate) mod olmo2;
pub(crate) mod phi3;
pub(crate) mod phimoe;
pub(crate) mod qwen;
pub(crate) mod seed_oss;
pub(crate) mod smallthinker;
pub(crate) mod smollm3;
pub(crate) mod stablelm;
pub(crate) mod step35;
