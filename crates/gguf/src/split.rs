//! Split models: finds the other parts of a model and joins their tensors into one [`Gguf`]. File names and keys follow
//! llama.cpp's `gguf-split`: `NAME-00001-of-00003.gguf`, with `split.no` (from 0), `split.count` and
//! `split.tensors.count` in every part. Only the first part carries the model's metadata.

use std::path::{Path, PathBuf};

use crate::error::Error;
use crate::file::{Gguf, LoadMode};
use crate::metadata::Metadata;
use crate::tensors::Tensors;
use crate::value::Value;

const NO_KEY: &str = "split.no";
const COUNT_KEY: &str = "split.count";
const TENSORS_KEY: &str = "split.tensors.count";

/// The largest number of parts that the format's 16-bit key can hold.
const MAX_PARTS: u64 = u16::MAX as u64;

/// The split keys of one part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Part {
    /// Index of the part, from 0.
    no: u64,
    count: u64,
    /// Tensors of all parts together.
    n_tensors: Option<u64>,
}

/// Reads the split keys of a file; `None` if the model is not split.
fn part(metadata: &Metadata) -> Result<Option<Part>, Error> {
    let count = metadata.opt_u64(COUNT_KEY)?.unwrap_or(1);
    if count <= 1 {
        return Ok(None);
    }
    if count > MAX_PARTS {
        return Err(Error::OutOfRange {
            key: COUNT_KEY.to_owned(),
            wanted: "number of files up to 65535",
            value: count.to_string(),
        });
    }
    let no = metadata.u64(NO_KEY)?;
    if no >= count {
        return Err(Error::OutOfRange {
            key: NO_KEY.to_owned(),
            wanted: "part number below split.count",
            value: no.to_string(),
        });
    }
    Ok(Some(Part {
        no,
        count,
        n_tensors: metadata.opt_u64(TENSORS_KEY)?,
    }))
}

/// Rejects a part of a split model that was opened without a path, since its other parts cannot be found.
pub(crate) fn refuse_part(file: Gguf) -> Result<Gguf, Error> {
    match part(file.metadata())? {
        None => Ok(file),
        Some(Part { count, .. }) => Err(Error::PartInMemory { n_parts: count }),
    }
}

/// Opens the remaining parts of the model whose part `first` was opened from `path`.
pub(crate) fn complete(first: Gguf, path: &Path, mode: LoadMode) -> Result<Gguf, Error> {
    let Some(head) = part(first.metadata())? else {
        return Ok(first);
    };
    let names = Names::of(path, head)?;
    if head.no != 0 {
        return Err(Error::LaterPart {
            part: head.no + 1,
            n_parts: head.count,
            first: names.path(0),
        });
    }
    let mut whole = first;
    let mut tensors = vec![std::mem::take(&mut whole.tensors)];
    let mut n_found = tensors[0].len() as u64;
    for no in 1..head.count {
        let path = names.path(no);
        let file = match Gguf::open_part(&path, mode) {
            Err(Error::Io { path, source }) if source.kind() == std::io::ErrorKind::NotFound => {
                return Err(Error::MissingPart {
                    path,
                    part: no + 1,
                    n_parts: head.count,
                });
            }
            other => other.map_err(|error| in_part(&path, error))?,
        };
        let expected = Part { no, ..head };
        check(&whole, expected, &file).map_err(|error| in_part(&path, error))?;
        n_found += file.tensors.len() as u64;
        tensors.push(file.tensors);
        whole.parts.extend(file.parts);
    }
    if let Some(expected) = head.n_tensors
        && expected != n_found
    {
        return Err(Error::PartTensors {
            expected,
            found: n_found,
            n_parts: head.count,
        });
    }
    whole.tensors = Tensors::join(tensors)?;
    Ok(whole)
}

/// Checks that `file` is the part `expected` of the model that begins with `first`.
fn check(first: &Gguf, expected: Part, file: &Gguf) -> Result<(), Error> {
    let differs = |key: &str, found: String, wanted: String| Error::ForeignPart {
        key: key.to_owned(),
        found,
        expected: wanted,
    };
    let Some(found) = part(file.metadata())? else {
        return Err(differs(
            COUNT_KEY,
            "1".to_owned(),
            expected.count.to_string(),
        ));
    };
    let shown = |n: Option<u64>| n.map_or("absent".to_owned(), |n| n.to_string());
    for (key, found, expected) in [
        (COUNT_KEY, Some(found.count), Some(expected.count)),
        (NO_KEY, Some(found.no), Some(expected.no)),
        (TENSORS_KEY, found.n_tensors, expected.n_tensors),
    ] {
        if found != expected {
            return Err(differs(key, shown(found), shown(expected)));
        }
    }
    for (key, value) in file.metadata().iter() {
        if key.starts_with("split.") {
            continue;
        }
        // Keys that only later parts have do not count: llama.cpp reads the metadata of the first part.
        if let Some(known) = first.metadata().get(key)
            && !same(known, value)
        {
            return Err(differs(key, text(value), text(known)));
        }
    }
    Ok(())
}

/// Whether two values are equal. Arrays count as equal if their lengths are: no key that distinguishes models is an
/// array.
fn same(a: Value<'_>, b: Value<'_>) -> bool {
    match (a, b) {
        (Value::Array(a), Value::Array(b)) => a.len() == b.len(),
        (Value::String(a), Value::String(b)) => a == b,
        (a, b) => text(a) == text(b),
    }
}

/// Formats a value for an error message.
fn text(value: Value<'_>) -> String {
    match value {
        Value::String(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        other => format!("{other:?}"),
    }
}

fn in_part(path: &Path, error: Error) -> Error {
    match error {
        // These errors already name the file.
        Error::Io { .. } | Error::NotAFile { .. } => error,
        error => Error::InPart {
            path: path.to_owned(),
            source: Box::new(error),
        },
    }
}

/// Builds the file names of a model's parts.
struct Names<'a> {
    path: &'a Path,
    stem: &'a str,
    count: u64,
}

impl<'a> Names<'a> {
    fn of(path: &'a Path, part: Part) -> Result<Names<'a>, Error> {
        let suffix = suffix(part.no, part.count);
        let name = path.file_name().and_then(|name| name.to_str());
        match name.and_then(|name| name.strip_suffix(suffix.as_str())) {
            Some(stem) => Ok(Names {
                path,
                stem,
                count: part.count,
            }),
            None => Err(Error::PartName {
                path: path.to_owned(),
                part: part.no + 1,
                n_parts: part.count,
                suffix,
            }),
        }
    }

    fn path(&self, no: u64) -> PathBuf {
        let name = format!("{}{}", self.stem, suffix(no, self.count));
        self.path.with_file_name(name)
    }
}

fn suffix(no: u64, count: u64) -> String {
    format!("-{:05}-of-{count:05}.gguf", no + 1)
}
