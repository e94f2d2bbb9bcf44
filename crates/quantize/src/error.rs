//! Quantization errors.

use rocmforge_gguf::shown;

/// Why a model could not be quantized. Names come from the file, so they are escaped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum QuantizeError {
    #[error(transparent)]
    Gguf(#[from] rocmforge_gguf::Error),
    #[error("cannot read the rule '{rule}': {problem}; write REGEX=TYPE, such as 'ffn_down=Q6_K'")]
    Rule { rule: String, problem: String },
    #[error("tensor type '{name}' is not supported; supported types: {supported}")]
    UnknownType { name: String, supported: String },
    #[error(
        "tensor '{}' is already quantized ({ty}), and quantizing it again adds the errors of both; quantize the F16, BF16 or F32 model instead, or allow requantizing",
        shown(name)
    )]
    AlreadyQuantized { name: String, ty: &'static str },
    #[error(
        "tensor '{}' has type {ty}, which cannot be converted; quantize the F16, BF16 or F32 model instead",
        shown(name)
    )]
    Unreadable { name: String, ty: &'static str },
    #[error(
        "tensor '{}' in {ty} is useless without an importance matrix; give one (rocmforge imatrix makes it), or use a larger file type",
        shown(name)
    )]
    NeedsImportance { name: String, ty: &'static str },
    #[error(
        "the importance matrix has {found} values for tensor '{}', expected {expected}; it was made from another model",
        shown(name)
    )]
    ImportanceShape {
        name: String,
        found: usize,
        expected: u64,
    },
    #[error(
        "the importance matrix has no entry for any tensor of this model; it was made from another model"
    )]
    ForeignImportance,
    #[error(
        "tensor '{}' names no layer below {n_layers}, so its type cannot be chosen; choose its type by name, or turn mixing off",
        shown(name)
    )]
    Layer { name: String, n_layers: usize },
    #[error(
        "tensor '{}' has rows of {row_len} values, above the limit of {limit}; the file is damaged, download it again",
        shown(name)
    )]
    RowTooLong {
        name: String,
        row_len: u64,
        limit: u64,
    },
    #[error("tensor '{}' cannot be converted: {source}", shown(name))]
    Tensor {
        name: String,
        source: rocmforge_gguf::Error,
    },
    #[error("the work was stopped before the end")]
    Stopped,
}
