//! What a file needs that it or this program does not have.

use std::sync::Arc;

use rocmforge_gguf::{Error, GgmlType, Gguf, shown};
use rocmforge_model::{LoadError, Model, architectures};
use rocmforge_text::tokenizer::{Tokenizer, TokenizerError};

use super::kind::{Contents, Kind};

/// Something that is missing.
#[derive(Debug, PartialEq, Eq)]
pub struct Missing {
    /// Such as `architecture qwen35`, `format IQ9_X` or `tensor output_norm.weight`.
    pub name: String,
    /// What the user should know about it.
    pub about: String,
}

/// Lists everything that is missing; nothing if the model runs, given enough memory.
pub fn missing(gguf: &Arc<Gguf>, kind: &Kind) -> Vec<Missing> {
    let mut all = List::default();
    if let Some(name) = kind.lacks {
        all.add(name.to_string(), kind.about.clone());
    }
    if kind.contents == Contents::Other {
        return all.found;
    }
    let arch = gguf.metadata().str("general.architecture");
    let is_known = match arch {
        Ok(arch) => architectures().any(|known| known == arch) || Model::drafts_for(gguf).is_some(),
        Err(_) => false,
    };
    match arch {
        Err(error) => all.add_error(error.into()),
        Ok(name) if !is_known => all.add(
            format!("architecture {}", shown(name)),
            format!(
                "architecture `{}` is not supported; rocmforge models --supported lists those that are",
                shown(name)
            ),
        ),
        Ok(_) => {}
    }
    for tensor in gguf.unknown_tensors() {
        all.add(
            format!("format type {}", tensor.type_id),
            tensor.error().to_string(),
        );
    }
    let is_model = kind.contents == Contents::Model;
    if is_model && is_known {
        for error in Model::refusals(gguf) {
            let is_there = |name: &str| gguf.unknown_tensors().iter().any(|it| it.name == name);
            match &error {
                LoadError::MissingTensor { name, .. } if is_there(name) => {}
                _ => all.add_error(error),
            }
        }
    } else {
        let drafts = Model::drafts_for(gguf).is_some();
        for info in gguf.tensors() {
            // Drafters list tokens as integers.
            let is_list = drafts && info.ty == GgmlType::I64;
            if !info.ty.can_dequantize() && !is_list {
                all.add_error(LoadError::TensorType {
                    name: shown(&info.name),
                    ty: info.ty.name(),
                });
            }
        }
    }
    if is_model || kind.contents == Contents::Header {
        all.add_tokenizer(gguf);
    }
    all.found
}

/// What is missing, each once.
#[derive(Default)]
struct List {
    found: Vec<Missing>,
}

impl List {
    fn add(&mut self, name: String, about: String) {
        if self.found.iter().all(|known| known.name != name) {
            self.found.push(Missing { name, about });
        }
    }

    fn add_error(&mut self, error: LoadError) {
        let name = match &error {
            LoadError::Gguf(Error::MissingKey { key }) | LoadError::BadMetadata { key, .. } => {
                format!("metadata {key}")
            }
            LoadError::UnsupportedArchitecture { name, .. } => format!("architecture {name}"),
            LoadError::UnsupportedFeature { feature, .. } => feature.clone(),
            LoadError::TensorType { ty, .. } => format!("format {ty}"),
            LoadError::MissingTensor { name, .. }
            | LoadError::TensorShape { name, .. }
            | LoadError::TensorValue { name, .. } => format!("tensor {name}"),
            LoadError::UnusedTensor { name, .. } => format!("use of tensor {name}"),
            _ => "valid metadata".to_string(),
        };
        self.add(name, error.to_string());
    }

    fn add_tokenizer(&mut self, gguf: &Gguf) {
        let name = match Tokenizer::from_gguf(gguf, None) {
            Ok(_) | Err(TokenizerError::NoVocab) => return,
            Err(error) => (
                match &error {
                    TokenizerError::UnknownModel { model } => {
                        format!("tokenizer model {}", shown(model))
                    }
                    TokenizerError::UnknownPre { name } => format!("pre-tokenizer {}", shown(name)),
                    TokenizerError::Gguf(Error::MissingKey { key }) => format!("metadata {key}"),
                    _ => "tokenizer".to_string(),
                },
                error.to_string(),
            ),
        };
        self.add(name.0, name.1);
    }
}
