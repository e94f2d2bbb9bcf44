//! Opens models: from a path with all their parts, or from memory.

use std::path::Path;

use crate::bytes::Bytes;
use crate::error::Error;
use crate::file::{Gguf, LoadMode};
use crate::split;

impl Gguf {
    /// Opens the file at `path`. The first part of a split model (`NAME-00001-of-00003.gguf`) opens all parts in its
    /// folder as one model.
    ///
    /// # Errors
    /// If the file cannot be read or is not GGUF version 2 or 3; if its header is damaged, truncated or inconsistent;
    /// if it is a later part of a split model, or a part is missing or belongs to another model; if a tensor has an
    /// unknown format.
    pub fn open(path: &Path, mode: LoadMode) -> Result<Gguf, Error> {
        Gguf::open_to_inspect(path, mode)?.with_known_types()
    }

    /// [`Gguf::open`] for a look at what is in the file: tensors of unknown formats are listed
    /// ([`Gguf::unknown_tensors`]) instead of refused.
    ///
    /// # Errors
    /// As [`Gguf::open`], except that formats may be unknown.
    pub fn open_to_inspect(path: &Path, mode: LoadMode) -> Result<Gguf, Error> {
        split::complete(Gguf::open_part(path, mode)?, path, mode)
    }

    /// Parses a file embedded in the program, without copying it.
    ///
    /// # Errors
    /// As [`Gguf::open`], and if the file is part of a split model.
    pub fn from_static(bytes: &'static [u8]) -> Result<Gguf, Error> {
        split::refuse_part(Gguf::parse(Bytes::Static(bytes))?)?.with_known_types()
    }

    /// Parses a file that is already in memory.
    ///
    /// # Errors
    /// As [`Gguf::open`], and if the file is part of a split model.
    pub fn from_vec(bytes: Vec<u8>) -> Result<Gguf, Error> {
        split::refuse_part(Gguf::parse(Bytes::Owned(bytes))?)?.with_known_types()
    }
}
