//! The errors of this crate: each carries the facts and says, on one line, what
//! to do. Names come from the file, so they are escaped where they are shown.

use std::path::PathBuf;

use crate::display::shown;

/// Why a GGUF file, a value in it or a tensor was refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operating system refused the file.
    #[error("cannot read '{}': {source}", shown(&path.to_string_lossy()))]
    Io {
        /// The file as it was named.
        path: PathBuf,
        /// The operating system's answer.
        source: std::io::Error,
    },
    /// A directory, a pipe or a device.
    #[error("'{}' is {found}, not a file; give the path of a .gguf file", shown(&path.to_string_lossy()))]
    NotAFile {
        /// The path as it was named.
        path: PathBuf,
        /// What it is instead.
        found: &'static str,
    },
    /// Reading into memory needs more than there is.
    #[error(
        "the file needs {bytes} bytes of memory and the allocation failed; map it instead of reading it, or take a smaller model"
    )]
    NoMemory {
        /// Length of the file.
        bytes: u64,
    },
    /// The first four bytes are not `GGUF`.
    #[error("not a GGUF file: it starts with \"{}\" instead of \"GGUF\"{}", found.escape_ascii(), magic_hint(*found))]
    NotGguf {
        /// The first four bytes.
        found: [u8; 4],
    },
    /// Written on a big-endian machine.
    #[error(
        "the file is big-endian GGUF (version bytes {version:#010x}); convert it to little-endian with gguf-convert-endian, or download the little-endian file"
    )]
    BigEndian {
        /// The version field as little-endian.
        version: u32,
    },
    /// A version of the format that is not 2 or 3.
    #[error("GGUF version {version} is not supported (2 and 3 are); {}", version_hint(*version))]
    Version {
        /// The version field.
        version: u32,
    },
    /// The file ends inside something.
    #[error(
        "the file is truncated: {what} at byte {offset} needs {need} bytes and {have} are left; download or copy it again"
    )]
    Truncated {
        /// What was being read.
        what: &'static str,
        /// Where it begins, from the start of the file.
        offset: u64,
        /// Bytes it needs.
        need: u64,
        /// Bytes left in the file.
        have: u64,
    },
    /// A count or length over the limit that this reader sets.
    #[error(
        "the header is damaged: {what} at byte {offset} is {found}, the limit is {limit}; download the file again"
    )]
    Limit {
        /// The field.
        what: &'static str,
        /// Where it stands.
        offset: u64,
        /// Its value.
        found: u64,
        /// The largest value accepted.
        limit: u64,
    },
    /// A metadata key or tensor name that is not UTF-8 or is empty.
    #[error("the header is damaged: {what} at byte {offset} is {problem}; download the file again")]
    BadName {
        /// `metadata key` or `tensor name`.
        what: &'static str,
        /// Where it stands.
        offset: u64,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// A metadata value type that GGUF does not define.
    #[error(
        "metadata key '{}' has value type {id} at byte {offset}, which GGUF does not define; download the file again, or update rocmforge",
        shown(key)
    )]
    UnknownValueType {
        /// The key.
        key: String,
        /// The type id.
        id: u32,
        /// Where the id stands.
        offset: u64,
    },
    /// A boolean that is neither 0 nor 1.
    #[error(
        "metadata key '{}' holds a boolean of value {found} at byte {offset}; 0 and 1 are valid: download the file again",
        shown(key)
    )]
    BadBool {
        /// The key.
        key: String,
        /// The byte.
        found: u8,
        /// Where it stands.
        offset: u64,
    },
    /// The same metadata key twice.
    #[error("metadata key '{}' appears twice; convert the model again", shown(key))]
    DuplicateKey {
        /// The key.
        key: String,
    },
    /// The same tensor name twice.
    #[error("tensor '{}' appears twice; convert the model again", shown(name))]
    DuplicateTensor {
        /// The name.
        name: String,
    },
    /// `general.alignment` is not a power of two in range.
    #[error(
        "general.alignment is {found}; a power of two from {min} to {max} is valid: convert the model again"
    )]
    Alignment {
        /// The value.
        found: u64,
        /// Smallest accepted.
        min: u64,
        /// Largest accepted.
        max: u64,
    },
    /// A tensor type that GGML does not define or has removed.
    #[error("tensor '{}' has type {id}{}", shown(name), removed_hint(*id))]
    UnknownTensorType {
        /// The tensor.
        name: String,
        /// The type id.
        id: u32,
    },
    /// The dimensions of a tensor cannot be.
    #[error(
        "tensor '{}' has dimensions {dims:?}: {problem}; download the file again",
        shown(name)
    )]
    BadShape {
        /// The tensor.
        name: String,
        /// Its dimensions, row length first.
        dims: Vec<u64>,
        /// What is wrong.
        problem: &'static str,
    },
    /// Rows that are not whole blocks.
    #[error(
        "tensor '{}' has rows of {row_len} values, not a multiple of the {block_len} of a {ty} block; quantize the model again",
        shown(name)
    )]
    PartialBlock {
        /// The tensor.
        name: String,
        /// Values of a row.
        row_len: u64,
        /// Values of a block.
        block_len: usize,
        /// Name of the type.
        ty: &'static str,
    },
    /// A tensor offset that is not a multiple of the alignment.
    #[error(
        "tensor '{}' is at offset {offset}, not a multiple of the alignment {alignment}; convert the model again",
        shown(name)
    )]
    Misaligned {
        /// The tensor.
        name: String,
        /// Its offset in the data section.
        offset: u64,
        /// The file's alignment.
        alignment: u64,
    },
    /// Tensor data that reaches over the end of the file.
    #[error(
        "the file is truncated: tensor '{}' needs bytes {offset} to {end} and the file has {file_bytes}; download or copy it again",
        shown(name)
    )]
    TensorOutOfFile {
        /// The tensor.
        name: String,
        /// First byte, from the start of the file.
        offset: u64,
        /// One past its last byte, `u64::MAX` where it overflows.
        end: u64,
        /// Length of the file.
        file_bytes: u64,
    },
    /// Two tensors share bytes.
    #[error(
        "tensors '{}' and '{}' share the bytes from {offset}; convert the model again",
        shown(first),
        shown(second)
    )]
    Overlap {
        /// The tensor that begins first.
        first: String,
        /// The one that begins inside it.
        second: String,
        /// First byte of the second, from the start of the file.
        offset: u64,
    },
    /// A part of a split model that is not the first.
    #[error(
        "the file is part {part} of {n_parts} of a model; open the first part, '{}'",
        shown(&first.to_string_lossy())
    )]
    LaterPart {
        /// Its number, from 1.
        part: u64,
        /// Number of parts.
        n_parts: u64,
        /// Where the first part should be.
        first: PathBuf,
    },
    /// A part of a split model under a name that does not lead to the others.
    #[error(
        "'{}' is part {part} of {n_parts} of a model; the others are found by name, so it must end in '{suffix}': give all parts the names they were published under",
        shown(&path.to_string_lossy())
    )]
    PartName {
        /// The file.
        path: PathBuf,
        /// Its number, from 1.
        part: u64,
        /// Number of parts.
        n_parts: u64,
        /// How its name must end.
        suffix: String,
    },
    /// A part of a split model that is not there.
    #[error(
        "part {part} of {n_parts} of the model is missing: there is no '{}'; download it to the same folder",
        shown(&path.to_string_lossy())
    )]
    MissingPart {
        /// Where it should be.
        path: PathBuf,
        /// Its number, from 1.
        part: u64,
        /// Number of parts.
        n_parts: u64,
    },
    /// A later part of a split model cannot be used.
    #[error("in '{}': {source}", shown(&path.to_string_lossy()))]
    InPart {
        /// The part.
        path: PathBuf,
        /// What is wrong with it.
        source: Box<Error>,
    },
    /// A part that contradicts the first part.
    #[error(
        "it belongs to another model or is another part than its name says: '{}' is {}, {} is expected; download the parts of one model again",
        shown(key),
        shown(found),
        shown(expected)
    )]
    ForeignPart {
        /// The key that differs.
        key: String,
        /// Its value in this part.
        found: String,
        /// What the first part wants.
        expected: String,
    },
    /// The parts of a split model have another number of tensors than they say.
    #[error(
        "the {n_parts} parts of the model have {found} tensors, not {expected}; download the parts of one model again"
    )]
    PartTensors {
        /// What the first part says, or the most a model may have.
        expected: u64,
        /// Tensors of all parts.
        found: u64,
        /// Number of parts.
        n_parts: u64,
    },
    /// A part of a split model without a path.
    #[error("the model is split into {n_parts} files; open the first of them from its folder")]
    PartInMemory {
        /// Number of parts.
        n_parts: u64,
    },
    /// A key that is needed is absent.
    #[error(
        "metadata key '{}' is missing; the file is not a complete model, convert it again",
        shown(key)
    )]
    MissingKey {
        /// The key.
        key: String,
    },
    /// A key holds another type than wanted.
    #[error(
        "metadata key '{}' holds {found}, {wanted} is needed; convert the model again",
        shown(key)
    )]
    WrongType {
        /// The key.
        key: String,
        /// What was asked for.
        wanted: &'static str,
        /// What is there.
        found: String,
    },
    /// A number that the wanted type cannot hold.
    #[error(
        "metadata key '{}' is {value}, which is not a {wanted}; convert the model again",
        shown(key)
    )]
    OutOfRange {
        /// The key.
        key: String,
        /// What was asked for.
        wanted: &'static str,
        /// The value.
        value: String,
    },
    /// A string value that is not UTF-8.
    #[error(
        "metadata key '{}' is not valid UTF-8 from its byte {valid_up_to}; convert the model again",
        shown(key)
    )]
    NotUtf8 {
        /// The key.
        key: String,
        /// Bytes of it that are valid.
        valid_up_to: usize,
    },
    /// Tensor data for the writer that is not as long as its shape says.
    #[error(
        "tensor '{}' needs {expected} bytes of data and got {found}",
        shown(name)
    )]
    DataLength {
        /// The tensor.
        name: String,
        /// Bytes by shape and type.
        expected: u64,
        /// Bytes given.
        found: u64,
    },
    /// A name or a count that the format has no room for.
    #[error("cannot write {what} '{}': {problem}", shown(name))]
    Unwritable {
        /// The field.
        what: &'static str,
        /// The name, or the count.
        name: String,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// The writer's output refused.
    #[error("cannot write the file: {source}")]
    Write {
        /// The operating system's answer.
        source: std::io::Error,
    },
    /// [`crate::quant`] was asked for a conversion it does not have.
    #[error("{verb} {ty} is not supported; supported are {supported}")]
    Unsupported {
        /// `dequantizing` or `quantizing to`.
        verb: &'static str,
        /// Name of the type.
        ty: &'static str,
        /// Names of the types that work.
        supported: String,
    },
    /// Source and destination of a conversion do not fit each other.
    #[error(
        "{ty}: {bytes} bytes and {values} values do not match; {block_bytes} bytes hold {block_len} values"
    )]
    LengthMismatch {
        /// Name of the type.
        ty: &'static str,
        /// Length of the quantized side in bytes.
        bytes: usize,
        /// Length of the f32 side.
        values: usize,
        /// Bytes of a block.
        block_bytes: usize,
        /// Values of a block.
        block_len: usize,
    },
    /// Values to quantize that are no whole rows of whole blocks.
    #[error(
        "{values} values are no whole rows of {row_len}, or those no whole {ty} blocks of {block_len}; take a type with smaller blocks, such as Q8_0, or F16"
    )]
    NotWholeRows {
        /// Name of the type.
        ty: &'static str,
        /// Values given.
        values: usize,
        /// Values of a row.
        row_len: usize,
        /// Values of a block.
        block_len: usize,
    },
    /// A value that the format cannot hold.
    #[error(
        "row {row}, column {column}: {ty} cannot hold {value:e}; convert the original model again, or keep this tensor in F32"
    )]
    Unrepresentable {
        /// Name of the type.
        ty: &'static str,
        /// The row, counted from the first value given.
        row: usize,
        /// The value's place in it.
        column: usize,
        /// The value: not finite, or larger than the format's numbers.
        value: f32,
    },
    /// Importance weights for rows of another length.
    #[error(
        "{found} importance weights for rows of {row_len} values; make the importance matrix from this model"
    )]
    ImportanceLength {
        /// Weights given.
        found: usize,
        /// Values of a row.
        row_len: usize,
    },
    /// An importance weight that is negative or not finite.
    #[error("the importance of column {column} is {value:e}; make the importance matrix again")]
    Importance {
        /// The column.
        column: usize,
        /// Its weight.
        value: f32,
    },
}

fn magic_hint(found: [u8; 4]) -> &'static str {
    match &found {
        b"lmgg" | b"fmgg" | b"tjgg" | b"ggml" | b"ggmf" | b"ggjt" => {
            " (a format older than GGUF); convert the original model with a current converter"
        }
        b"PK\x03\x04" => " (a zip or PyTorch file); convert the model to GGUF first",
        b"vers" => " (a Git LFS pointer); fetch the file itself with git lfs pull or download it",
        b"<!DO" | b"<htm" | b"<HTM" => " (a web page); download the file itself",
        b"FUGG" => " (big-endian magic); download the little-endian file",
        _ => "; give a .gguf file, or convert the model to GGUF first",
    }
}

fn version_hint(version: u32) -> &'static str {
    match version {
        0 => "the file is damaged: download it again",
        1 => "convert the original model with a current converter",
        _ => "update rocmforge, or download the file again if it is damaged",
    }
}

fn removed_hint(id: u32) -> &'static str {
    match id {
        4 => " (Q4_2), which GGML has removed; quantize the original model again",
        5 => " (Q4_3), which GGML has removed; quantize the original model again",
        31..=33 => {
            " (a Q4_0 repacked for one CPU), which GGML has removed; use the Q4_0 file of the model"
        }
        36..=38 => {
            " (an IQ4_NL repacked for one CPU), which GGML has removed; use the IQ4_NL file of the model"
        }
        _ => {
            ", which this version does not know; update rocmforge, or download the file again if it is damaged"
        }
    }
}
