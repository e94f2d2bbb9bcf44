//! What a GGUF file is: not every one is a model that writes text.

use rocmforge_gguf::{Gguf, Value, shown};
use rocmforge_model::{DraftsFor, Model};

/// What a file is.
pub struct Kind {
    /// A sentence without its full stop.
    pub about: String,
    /// What a file of this kind needs beside it to run.
    pub lacks: Option<&'static str>,
    pub contents: Contents,
}

/// What of a model a file holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Contents {
    Model,
    /// Tensors that belong to a model in another file.
    Part,
    /// Metadata of a model, and no tensors.
    Header,
    /// Nothing that a model is made of.
    Other,
}

/// Architectures of llama.cpp for embeddings only.
const EMBEDDINGS: [&str; 10] = [
    "bert",
    "modern-bert",
    "nomic-bert",
    "nomic-bert-moe",
    "neo-bert",
    "jina-bert-v2",
    "jina-bert-v3",
    "eurobert",
    "gemma-embedding",
    "llama-embed",
];
const SPEECH: [&str; 3] = ["wavtokenizer-dec", "qwen3tts", "pockettts"];
/// Architectures that the GGUF files for image generators have.
const IMAGES: [&str; 12] = [
    "flux",
    "sd1",
    "sdxl",
    "sd3",
    "aura",
    "hidream",
    "cosmos",
    "ltxv",
    "hyvid",
    "wan",
    "lumina2",
    "qwen_image",
];
/// Values of `pooling_type`.
const RANK: u64 = 4;

impl Kind {
    pub fn of(gguf: &Gguf) -> Kind {
        let meta = gguf.metadata();
        let text = |key| meta.opt_str(key).ok().flatten();
        let arch = text("general.architecture").unwrap_or_default();
        let is_empty = gguf.tensors().is_empty() && gguf.unknown_tensors().is_empty();
        let part = |about: String, lacks| Kind {
            about,
            lacks: Some(lacks),
            contents: Contents::Part,
        };
        match text("general.type") {
            Some("adapter") => {
                let about = format!(
                    "a LoRA adapter for `{}` models; add it to its model with --lora",
                    shown(arch)
                );
                return part(about, "base model");
            }
            Some("imatrix") => {
                return Kind {
                    about: "an importance matrix, for quantize --imatrix".to_string(),
                    lacks: Some("weights"),
                    contents: Contents::Other,
                };
            }
            _ => {}
        }
        if let Some(of) = Model::drafts_for(gguf) {
            let of = match of {
                DraftsFor::Architecture(of) => format!(" for `{of}` models"),
                DraftsFor::Any => String::new(),
            };
            let about = format!(
                "a draft model{of}; give it to the model it was made for with --speculate draft:FILE"
            );
            return part(about, "model to draft for");
        }
        if arch == "clip" || text("general.type") == Some("mmproj") {
            let about =
                "the part of a model that sees or hears (mmproj); models run here as text only";
            return part(about.to_string(), "language model");
        }
        if arch == "controlvector" {
            let about = "a control vector, which steers a model's text; this program uses none";
            return part(about.to_string(), "base model");
        }
        if is_empty {
            let about = match meta.get("tokenizer.ggml.model") {
                Some(_) => "a vocabulary without weights; tokenize works with it",
                None => "metadata without weights",
            };
            return Kind {
                about: about.to_string(),
                lacks: Some("weights"),
                contents: Contents::Header,
            };
        }
        Kind {
            about: model(gguf, arch),
            lacks: None,
            contents: Contents::Model,
        }
    }
}

/// Describes a model.
fn model(gguf: &Gguf, arch: &str) -> String {
    let number = |name: &str| match gguf.metadata().get(&format!("{arch}.{name}")) {
        Some(value) => value.as_int().and_then(|n| u64::try_from(n).ok()),
        None => None,
    };
    let pooling = number("pooling_type").unwrap_or(0);
    let about = if IMAGES.contains(&arch) {
        "a model that makes images or video, not text"
    } else if SPEECH.contains(&arch) {
        "a model that makes speech, not text"
    } else if pooling == RANK {
        "a reranker: it scores how well a text answers a question"
    } else if pooling > 0 || EMBEDDINGS.contains(&arch) {
        "an embedding model: it turns a text into a vector"
    } else if arch.is_empty() {
        "tensors without an architecture"
    } else if number("expert_count").is_some_and(|n| n > 0) {
        "a language model with a mixture of experts"
    } else {
        "a language model"
    };
    let mut about = about.to_string();
    if let Some(Value::U16(n)) = gguf.metadata().get("split.count")
        && n > 1
    {
        about.push_str(&format!(", in {n} files"));
    }
    about
}
