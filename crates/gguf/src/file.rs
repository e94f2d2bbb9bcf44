//! One GGUF file: its bytes (mapped, read or passed in) and its header, parsed once. The layout follows ggml's
//! `docs/gguf.md`: magic, version, tensor count, metadata count, metadata, tensor infos, padding to the alignment, tensor
//! data.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;
use std::sync::Arc;

use crate::bytes::Bytes;
use crate::error::Error;
use crate::metadata::Metadata;
use crate::reader::Reader;
use crate::tensors::{TensorInfo, Tensors, UnknownTensor};

/// Metadata key of the alignment, in bytes, of the data section and every tensor in it.
pub(crate) const ALIGNMENT_KEY: &str = "general.alignment";
/// Alignment of files without that key.
pub(crate) const DEFAULT_ALIGNMENT: u64 = 32;
/// The specification requires a multiple of 8.
const MIN_ALIGNMENT: u64 = 8;
/// Covers any page size. With a larger value, a small header could demand a huge file.
const MAX_ALIGNMENT: u64 = 1 << 20;

/// How [`Gguf::open`] accesses the file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LoadMode {
    /// Maps the file. Opening is immediate; pages are loaded on first access and shared with other processes. The file
    /// must not be truncated or rewritten while it is open: accessing a page that no longer exists kills the process
    /// with SIGBUS.
    #[default]
    Mmap,
    /// Reads the whole file into memory. Slower to open, but unaffected by later changes to the file, and the right
    /// choice on network file systems.
    Read,
}

/// An open, checked, immutable GGUF model: one file, or all parts of a split one.
#[derive(Debug)]
pub struct Gguf {
    /// The bytes of each part, indexed by [`TensorInfo::part`]. The first part holds the metadata.
    pub(crate) parts: Vec<Arc<Bytes>>,
    version: u32,
    metadata: Metadata,
    pub(crate) tensors: Tensors,
}

impl Gguf {
    /// Opens one file without its other parts.
    pub(crate) fn open_part(path: &Path, mode: LoadMode) -> Result<Gguf, Error> {
        let io = |source| Error::Io {
            path: path.to_owned(),
            source,
        };
        // Checked before opening, because opening a pipe blocks until it has a writer.
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
            // Some systems refuse to map an empty file; here an empty file is reported as truncated.
            LoadMode::Mmap if len > 0 => Bytes::Mapped(map(&file).map_err(io)?),
            LoadMode::Mmap | LoadMode::Read => {
                let mut vec = Vec::new();
                usize::try_from(len)
                    .ok()
                    .and_then(|n| vec.try_reserve_exact(n).ok())
                    .ok_or(Error::NoMemory { bytes: len })?;
                // Bounded, in case the file grows while it is read.
                file.by_ref().take(len).read_to_end(&mut vec).map_err(io)?;
                Bytes::Owned(vec)
            }
        };
        Gguf::parse(bytes)
    }

    pub(crate) fn parse(bytes: Bytes) -> Result<Gguf, Error> {
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

    /// All tensors of known formats in file order, part by part.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors.infos
    }

    /// The tensors whose format is unknown; none unless the file was opened with [`Gguf::open_to_inspect`].
    pub fn unknown_tensors(&self) -> &[UnknownTensor] {
        &self.tensors.unknown
    }

    /// Refuses tensors of unknown formats.
    pub(crate) fn with_known_types(self) -> Result<Gguf, Error> {
        match self.tensors.unknown.first() {
            None => Ok(self),
            Some(tensor) => Err(tensor.error()),
        }
    }

    /// The tensor called `name`.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.tensors.get(name)
    }

    /// Returns the blocks of a tensor of this file, `n_bytes` long. Their alignment in memory is unspecified.
    ///
    /// # Panics
    /// If `info` belongs to another model and reaches past the end of this one.
    pub fn tensor_data(&self, info: &TensorInfo) -> &[u8] {
        let start = usize::try_from(info.offset).expect("checked against the file at open");
        let len = usize::try_from(info.n_bytes).expect("checked against the file at open");
        &self.parts[usize::from(info.part)][start..][..len]
    }

    /// Returns what stands before the tensors' data in each part: metadata, and names, shapes and formats of tensors.
    pub fn headers(&self) -> impl Iterator<Item = &[u8]> {
        let mut ends: Vec<usize> = self.parts.iter().map(|part| part.len()).collect();
        for info in self.tensors() {
            let start = usize::try_from(info.offset).expect("checked against the file at open");
            let end = &mut ends[usize::from(info.part)];
            *end = start.min(*end);
        }
        let parts = self.parts.iter().zip(ends);
        parts.map(|(part, end)| &part[..end])
    }

    /// Length in bytes, all parts together.
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
