//! Why a model could not be quantized.

use rocmforge_gguf::escape_control;

/// Names come from the file, so they are escaped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum QuantizeError {
    #[error(transparent)]
    Gguf(#[from] rocmforge_gguf::Error),
    #[error("cannot read the rule '{rule}': {problem}; write REGEX=TYPE, such as 'ffn_down=Q6_K'")]
    Rule { rule: String, problem: String },
    #[error("no tensor type '{name}' can be made; these can: {supported}")]
    UnknownType { name: String, supported: String },
    #[error(
        "tensor '{}' is quantized already ({ty}); making it smaller again adds the errors of both: quantize the F16, BF16 or F32 model instead, or say --allow-requantize",
        escape_control(name)
    )]
    AlreadyQuantized { name: String, ty: &'static str },
    #[error(
        "tensor '{}' has type {ty}, which cannot be converted; quantize the F16, BF16 or F32 model instead",
        escape_control(name)
    )]
    Unreadable { name: String, ty: &'static str },
    #[error(
        "tensor '{}' in {ty} is useless without an importance matrix; give one with --imatrix (rocmforge imatrix makes it), or take a larger file type",
        escape_control(name)
    )]
    NeedsImportance { name: String, ty: &'static str },
    #[error(
        "the importance matrix has {found} values for tensor '{}', {expected} are needed; it was made from another model",
        escape_control(name)
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
        "tensor '{}' names no layer below {n_layers}, so its type cannot be chosen; name it with --tensor-type, or say --pure",
        escape_control(name)
    )]
    Layer { name: String, n_layers: usize },
    #[error(
        "tensor '{}' has rows of {row_len} values, {limit} are the most; no model has such rows, get the file again",
        escape_control(name)
    )]
    RowTooLong {
        name: String,
        row_len: u64,
        limit: u64,
    },
    #[error("tensor '{}' cannot be converted: {source}", escape_control(name))]
    Tensor {
        name: String,
        source: rocmforge_gguf::Error,
    },
    #[error("stopped before the end")]
    Stopped,
}
