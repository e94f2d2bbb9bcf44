//! Why a model cannot be loaded.

use crate::AdapterError;

/// Why a model cannot be loaded. Each message says what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    #[error(transparent)]
    Gguf(#[from] rocmforge_gguf::Error),
    #[error("LoRA adapter {name}: {error}")]
    Adapter { name: String, error: AdapterError },
    #[error("architecture `{name}` is not supported; supported architectures: {supported}")]
    UnsupportedArchitecture { name: String, supported: String },
    #[error("this {arch} model computes embeddings, not text; load it for embeddings")]
    EmbeddingsOnly { arch: String },
    #[error(
        "this {arch} file has no layers that predict further tokens ahead; draft with ngram or draft:FILE"
    )]
    NoDrafter { arch: String },
    #[error(
        "the layers of {arch} files that predict further tokens ahead are not supported; draft with ngram or draft:FILE"
    )]
    UnknownDrafter { arch: String },
    #[error(
        "this {arch} file only drafts for another model{of}; run that model with --speculate draft:FILE"
    )]
    OnlyDrafts { arch: String, of: String },
    #[error(
        "this {arch} file drafts for {of} models, and the model is {target}; draft with the file made for it, or with ngram"
    )]
    OtherArchitecture {
        arch: String,
        of: &'static str,
        target: String,
    },
    #[error(
        "this {arch} file drafts for another model: its {what} is {got}, the model's {wanted}; draft with the file made for it, or with ngram"
    )]
    OtherTarget {
        arch: String,
        what: &'static str,
        got: usize,
        wanted: usize,
    },
    #[error(
        "drafts from the values of layers are not supported for {arch} models; draft with ngram or draft:FILE of another kind"
    )]
    NoLayerValues { arch: String },
    #[error("this {arch} model uses {feature}, which is not supported")]
    UnsupportedFeature { arch: String, feature: String },
    #[error(
        "tensor `{name}`, which {arch} needs, is missing; the file is incomplete or of another architecture"
    )]
    MissingTensor { name: String, arch: String },
    #[error(
        "tensor `{name}` has shape {got:?}, expected {expected:?}; the file contradicts its own metadata"
    )]
    TensorShape {
        name: String,
        got: Vec<u64>,
        expected: Vec<u64>,
    },
    #[error("tensor `{name}` is {value}, expected a number other than 0; the file is damaged")]
    TensorValue { name: String, value: f32 },
    #[error(
        "tensor `{name}` lists token {id}, and the model has {n_vocab} tokens; draft with the file made for it, or with ngram"
    )]
    UnknownToken {
        name: String,
        id: i64,
        n_vocab: usize,
    },
    #[error(
        "no kernel supports type {ty} of tensor `{name}`; use a model with another quantization"
    )]
    TensorType { name: String, ty: &'static str },
    #[error(
        "the {arch} architecture has no use for tensor `{name}`; ignoring it could give wrong text, so the model is not loaded"
    )]
    UnusedTensor { name: String, arch: String },
    #[error(
        "metadata `{key}` is {value}, expected {wanted}; the file is damaged or of a newer format"
    )]
    BadMetadata {
        key: String,
        value: String,
        wanted: &'static str,
    },
}
