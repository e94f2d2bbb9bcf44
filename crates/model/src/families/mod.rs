//! One short file for each kind of model: what it needs of the metadata, then its plan, from the embeddings to the
//! logits.

pub(crate) mod gemma;
pub(crate) mod gpt2;
pub(crate) mod granite;
pub(crate) mod llama;
pub(crate) mod olmo2;
pub(crate) mod phi3;
pub(crate) mod qwen;
pub(crate) mod seed_oss;
pub(crate) mod smollm3;
