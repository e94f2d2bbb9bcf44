//! The error type of this crate. Each message is one line, carries the facts and says what to do. Names from files are
//! escaped when they are shown.

use std::path::PathBuf;

use crate::display::shown;

/// Why a GGUF file, a metadata value or a conversion was rejected.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The file cannot be read.
    #[error("cannot read '{}': {source}", shown(&path.to_string_lossy()))]
    Io {
        /// Path of the file.
        path: PathBuf,
        /// The operating system's error.
        source: std::io::Error,
    },
    /// The path is a directory, a pipe or a device.
    #[error("'{}' is {found}, not a file; give the path of a .gguf file", shown(&path.to_string_lossy()))]
    NotAFile {
        /// The path.
        path: PathBuf,
        /// What it is instead.
        found: &'static str,
    },
    /// There is not enough memory to read the file.
    #[error(
        "the file needs {bytes} bytes of memory and the allocation failed; map it instead of reading it, or use a smaller model"
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
    /// The file is big-endian.
    #[error(
        "the file is big-endian GGUF (version bytes {version:#010x}); convert it to little-endian with gguf-convert-endian, or download the little-endian file"
    )]
    BigEndian {
        /// The version field as little-endian.
        version: u32,
    },
    /// The format version is not 2 or 3.
    #[error("GGUF version {version} is not supported (2 and 3 are); {}", version_hint(*version))]
    Version {
        /// The version field.
        version: u32,
    },
    /// The file ends early.
    #[error(
        "the file is truncated: {what} at byte {offset} would take {need} bytes and {have} are left; download or copy it again"
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
    /// A count or length exceeds a limit of this reader.
    #[error(
        "the header is damaged: {what} at byte {offset} is {found}, the limit is {limit}; download the file again"
    )]
    Limit {
        /// The field.
        what: &'static str,
        /// Position in the file.
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
        /// Position in the file.
        offset: u64,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// A metadata value has a type that GGUF does not define.
    #[error(
        "metadata key '{}' has value type {id} at byte {offset}, which GGUF does not define; download the file again, or update rocmforge",
        shown(key)
    )]
    UnknownValueType {
        /// The key.
        key: String,
        /// The type id.
        id: u32,
        /// Position of the id in the file.
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
        /// Position in the file.
        offset: u64,
    },
    /// A metadata key appears twice.
    #[error("metadata key '{}' appears twice; convert the model again", shown(key))]
    DuplicateKey {
        /// The key.
        key: String,
    },
    /// A tensor name appears twice.
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
    /// A tensor has a type that GGML does not define or has removed.
    #[error("tensor '{}' has type {id}{}", shown(name), removed_hint(*id))]
    UnknownTensorType {
        /// The tensor.
        name: String,
        /// The type id.
        id: u32,
    },
    /// The dimensions of a tensor are invalid.
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
    /// The rows of a tensor are not whole blocks.
    #[error(
        "tensor '{}' has rows of {row_len} values, not a multiple of the {block_len} of a {ty} block; quantize the model again",
        shown(name)
    )]
    PartialBlock {
        /// The tensor.
        name: String,
        /// Values per row.
        row_len: u64,
        /// Values per block.
        block_len: usize,
        /// Name of the type.
        ty: &'static str,
    },
    /// A tensor offset is not a multiple of the alignment.
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
    /// Tensor data extends past the end of the file.
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
        /// The tensor that begins inside it.
        second: String,
        /// First byte of the second, from the start of the file.
        offset: u64,
    },
    /// The file is a later part of a split model.
    #[error(
        "the file is part {part} of {n_parts} of a model; open the first part, '{}'",
        shown(&first.to_string_lossy())
    )]
    LaterPart {
        /// Part number, from 1.
        part: u64,
        /// Number of parts.
        n_parts: u64,
        /// Where the first part should be.
        first: PathBuf,
    },
    /// A part of a split model has a file name from which the other parts cannot be found.
    #[error(
        "'{}' is part {part} of {n_parts} of a model; its name must end in '{suffix}' for the other parts to be found: restore the published file names",
        shown(&path.to_string_lossy())
    )]
    PartName {
        /// The file.
        path: PathBuf,
        /// Part number, from 1.
        part: u64,
        /// Number of parts.
        n_parts: u64,
        /// How its name must end.
        suffix: String,
    },
    /// A part of a split model is missing.
    #[error(
        "part {part} of {n_parts} of the model is missing: there is no '{}'; download it to the same folder",
        shown(&path.to_string_lossy())
    )]
    MissingPart {
        /// Where it should be.
        path: PathBuf,
        /// Part number, from 1.
        part: u64,
        /// Number of parts.
        n_parts: u64,
    },
    /// A later part of a split model is invalid.
    #[error("in '{}': {source}", shown(&path.to_string_lossy()))]
    InPart {
        /// The part.
        path: PathBuf,
        /// What is wrong with it.
        source: Box<Error>,
    },
    /// A part does not belong to the model of the first part.
    #[error(
        "the file belongs to another model, or its name has the wrong part number: '{}' is {}, expected {}; download all parts of the model again",
        shown(key),
        shown(found),
        shown(expected)
    )]
    ForeignPart {
        /// The key that differs.
        key: String,
        /// Its value in this part.
        found: String,
        /// The value required by the first part.
        expected: String,
    },
    /// The parts of a split model do not have the declared number of tensors.
    #[error(
        "the {n_parts} parts of the model have {found} tensors, not {expected}; download all parts of the model again"
    )]
    PartTensors {
        /// The number declared by the first part, or the maximum for a model.
        expected: u64,
        /// Tensors of all parts.
        found: u64,
        /// Number of parts.
        n_parts: u64,
    },
    /// A part of a split model was opened from memory.
    #[error("the model is split into {n_parts} files; open the first of them from its folder")]
    PartInMemory {
        /// Number of parts.
        n_parts: u64,
    },
    /// A required key is missing.
    #[error(
        "metadata key '{}' is missing; the file is not a complete model, convert it again",
        shown(key)
    )]
    MissingKey {
        /// The key.
        key: String,
    },
    /// A key has the wrong type.
    #[error(
        "metadata key '{}' holds {found}, expected {wanted}; convert the model again",
        shown(key)
    )]
    WrongType {
        /// The key.
        key: String,
        /// The expected type.
        wanted: &'static str,
        /// The type found.
        found: String,
    },
    /// A number does not fit the expected type.
    #[error(
        "metadata key '{}' is {value}, which is not a {wanted}; convert the model again",
        shown(key)
    )]
    OutOfRange {
        /// The key.
        key: String,
        /// The expected type.
        wanted: &'static str,
        /// The value.
        value: String,
    },
    /// A string value is not UTF-8.
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
    /// The data of a tensor to write does not have the length of its shape.
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
    /// A name or count cannot be stored in the format.
    #[error("cannot write {what} '{}': {problem}", shown(name))]
    Unwritable {
        /// The field.
        what: &'static str,
        /// The name, or the count.
        name: String,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// Writing the output failed.
    #[error("cannot write the file: {source}")]
    Write {
        /// The operating system's error.
        source: std::io::Error,
    },
    /// [`crate::quant`] does not support this conversion.
    #[error("{verb} {ty} is not supported; supported are {supported}")]
    Unsupported {
        /// `dequantizing` or `quantizing to`.
        verb: &'static str,
        /// Name of the type.
        ty: &'static str,
        /// Names of the types that work.
        supported: String,
    },
    /// Source and destination of a conversion have different lengths.
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
        /// Bytes per block.
        block_bytes: usize,
        /// Values per block.
        block_len: usize,
    },
    /// Values to quantize are not whole rows, or rows are not whole blocks.
    #[error(
        "{values} values are not whole rows of {row_len}, or rows are not whole {ty} blocks of {block_len}; use a type with smaller blocks, such as Q8_0, or F16"
    )]
    NotWholeRows {
        /// Name of the type.
        ty: &'static str,
        /// Values given.
        values: usize,
        /// Values per row.
        row_len: usize,
        /// Values per block.
        block_len: usize,
    },
    /// A value does not fit the format.
    #[error(
        "row {row}, column {column}: {ty} cannot hold {value:e}; convert the original model again, or keep this tensor in F32"
    )]
    Unrepresentable {
        /// Name of the type.
        ty: &'static str,
        /// Row of the value, from 0.
        row: usize,
        /// Column of the value, from 0.
        column: usize,
        /// The value: not finite, or larger than the format's numbers.
        value: f32,
    },
    /// The number of importance weights is not the row length.
    #[error(
        "{found} importance weights for rows of {row_len} values; compute the importance matrix from this model"
    )]
    ImportanceLength {
        /// Weights given.
        found: usize,
        /// Values per row.
        row_len: usize,
    },
    /// An importance weight is negative or not finite.
    #[error("the importance of column {column} is {value:e}; compute the importance matrix again")]
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
            ", which this version does not support; update rocmforge, or download the file again if it is damaged"
        }
    }
}
