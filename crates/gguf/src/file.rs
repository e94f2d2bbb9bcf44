//! Opens a GGUF file: gets its bytes (mapped, read, or handed in), parses the
//! header once and keeps both. Layout after the GGUF specification (ggml
//! `docs/gguf.md`): magic, version, tensor count, metadata count, metadata,
//! tensor infos, padding to the alignment, tensor data.

use std::fs::File;
use std::io::Read as _;
use std::ops::Deref;
use std::path::Path;
use std::sync::Arc;

use crate::error::Error;
use crate::metadata::Metadata;
use crate::reader::Reader;
use crate::split;
use crate::tensors::{TensorInfo, Tensors};

/// Key whose value the data section and every tensor in it are aligned to.
pub(crate) const ALIGNMENT_KEY: &str = "general.alignment";
/// Alignment of a file that does not say.
pub(crate) const DEFAULT_ALIGNMENT: u64 = 32;
/// The specification wants a multiple of 8.
const MIN_ALIGNMENT: u64 = 8;
/// Enough for any page size; beyond it a small header asks for a huge file.
const MAX_ALIGNMENT: u64 = 1 << 20;

/// How [`Gguf::open`] gets at the bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LoadMode {
    /// Maps the file: starts at once, shares pages with other processes, and
    /// pages are read when they are first touched. The file must not be
    /// shortened or rewritten while it is open: touching a page that is gone
    /// ends the process with SIGBUS.
    #[default]
    Mmap,
    /// Reads the whole file into memory. Slower to start, safe against changes
    /// of the file, and right for network file systems.
    Read,
}

/// An open, checked, immutable GGUF model: one file, or all parts of a split one.
#[derive(Debug)]
pub struct Gguf {
    /// By [`TensorInfo::part`]; the first has the metadata.
    pub(crate) parts: Vec<Arc<Bytes>>,
    version: u32,
    metadata: Metadata,
    pub(crate) tensors: Tensors,
}

/// The file's bytes, wherever they live.
pub(crate) enum Bytes {
    Mapped(memmap2::Mmap),
    Owned(Vec<u8>),
    Static(&'static [u8]),
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Bytes::Mapped(map) => map,
            Bytes::Owned(vec) => vec,
            Bytes::Static(slice) => slice,
        }
    }
}

impl std::fmt::Debug for Bytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes", self.len())
    }
}

impl Gguf {
    /// Opens the file at `path`. The first part of a split model
    /// (`NAME-00001-of-00003.gguf`) opens all parts, which lie in the same
    /// folder, as one model.
    ///
    /// # Errors
    /// If the file cannot be read, is not GGUF of version 2 or 3, or its header
    /// is damaged, truncated or contradicts itself; if it is a later part, or a
    /// part is missing or of another model.
    pub fn open(path: &Path, mode: LoadMode) -> Result<Gguf, Error> {
        split::complete(Gguf::open_part(path, mode)?, path, mode)
    }

    /// Opens one file, whatever it says about others.
    pub(crate) fn open_part(path: &Path, mode: LoadMode) -> Result<Gguf, Error> {
        let io = |source| Error::Io {
            path: path.to_owned(),
            source,
        };
        // Asked before opening: opening a pipe would wait for its writer.
        let kind = std::fs::metadata(path).map_err(io)?;
        if !kind.is_file() {
            return Err(Error::NotAFile {
                path: path.to_owned(),
                found: if kind.is_dir() {
                    "a directory"
                } else {
                    "a pipe or a device"
                },
            });
        }
        let mut file = File::open(path).map_err(io)?;
        let len = file.metadata().map_err(io)?.len();
        let bytes = match mode {
            // An empty mapping is an error in some systems, an empty file is
            // simply truncated.
            LoadMode::Mmap if len > 0 => Bytes::Mapped(map(&file).map_err(io)?),
            LoadMode::Mmap | LoadMode::Read => {
                let mut vec = Vec::new();
                usize::try_from(len)
                    .ok()
                    .and_then(|n| vec.try_reserve_exact(n).ok())
                    .ok_or(Error::NoMemory { bytes: len })?;
                // Bounded, so that a file that grows meanwhile does not
                // outgrow the reservation.
                file.by_ref().take(len).read_to_end(&mut vec).map_err(io)?;
                Bytes::Owned(vec)
            }
        };
        Gguf::parse(bytes)
    }

    /// Parses a file that is part of the program, without copying it.
    ///
    /// # Errors
    /// As [`Gguf::open`], and if it is a part of a split model.
    pub fn from_static(bytes: &'static [u8]) -> Result<Gguf, Error> {
        split::refuse_part(Gguf::parse(Bytes::Static(bytes))?)
    }

    /// Parses a file that is already in memory.
    ///
    /// # Errors
    /// As [`Gguf::open`], and if it is a part of a split model.
    pub fn from_vec(bytes: Vec<u8>) -> Result<Gguf, Error> {
        split::refuse_part(Gguf::parse(Bytes::Owned(bytes))?)
    }

    fn parse(bytes: Bytes) -> Result<Gguf, Error> {
        let bytes = Arc::new(bytes);
        let mut r = Reader::at(&bytes, 0);
        let magic = r.array("the magic")?;
        if &magic != b"GGUF" {
            return Err(Error::NotGguf { found: magic });
        }
        let version = r.u32("the version")?;
        if version & 0xffff == 0 && version != 0 {
            return Err(Error::BigEndian { version });
        }
        if !(2..=3).contains(&version) {
            return Err(Error::Version { version });
        }
        let n_tensors = r.u64("the number of tensors")?;
        let n_keys = r.u64("the number of metadata keys")?;
        let (metadata, pos) = Metadata::parse(&bytes, r.pos(), n_keys)?;
        let tensors = Tensors::parse(&bytes, pos, n_tensors, alignment(&metadata)?)?;
        Ok(Gguf {
            parts: vec![bytes],
            version,
            metadata,
            tensors,
        })
    }

    /// Version of the format: 2 or 3.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// The metadata.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// Every tensor, in file order, one part after the other.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors.infos
    }

    /// The tensor called `name`.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.tensors.get(name)
    }

    /// The blocks of a tensor of this file, `n_bytes` long; no alignment in
    /// memory is promised.
    ///
    /// # Panics
    /// If `info` belongs to another model and reaches past the end of this one.
    pub fn tensor_data(&self, info: &TensorInfo) -> &[u8] {
        let start = usize::try_from(info.offset).expect("checked against the file at open");
        let len = usize::try_from(info.n_bytes).expect("checked against the file at open");
        &self.parts[usize::from(info.part)][start..][..len]
    }

    /// Length of the whole file in bytes; of all parts together.
    pub fn file_bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.len() as u64).sum()
    }

    /// Number of files: 1 unless the model is split.
    pub fn n_parts(&self) -> usize {
        self.parts.len()
    }
}

fn alignment(metadata: &Metadata) -> Result<u64, Error> {
    match metadata.opt_u64(ALIGNMENT_KEY)? {
        None => Ok(DEFAULT_ALIGNMENT),
        Some(found) => checked_alignment(found),
    }
}

pub(crate) fn checked_alignment(found: u64) -> Result<u64, Error> {
    if found.is_power_of_two() && (MIN_ALIGNMENT..=MAX_ALIGNMENT).contains(&found) {
        Ok(found)
    } else {
        Err(Error::Alignment {
            found,
            min: MIN_ALIGNMENT,
            max: MAX_ALIGNMENT,
        })
    }
}

#[expect(unsafe_code, reason = "a file mapping has no safe form")]
fn map(file: &File) -> std::io::Result<memmap2::Mmap> {
    // SAFETY: the mapping is read-only and private to this process's view. No
    // code here writes to the file, but another process may: the values seen
    // then change, which every reader of the bytes tolerates (all access is
    // bounds-checked against the mapping's own length, and text is re-validated
    // on each read), and shortening the file raises SIGBUS. `LoadMode::Mmap`
    // states this condition to the caller; `LoadMode::Read` avoids it.
    unsafe { memmap2::Mmap::map(file) }
}
