//! Finds and reads the tools' output files, within limits.

use std::fs::{self, File};
use std::io::{BufReader, Read as _};
use std::path::{Path, PathBuf};

use super::error::ExternalError;

/// Tools nest their files at most two folders deep; one more level allows for the user's folder.
const MAX_DEPTH: usize = 3;

/// More files than any run writes.
const MAX_FILES: usize = 10_000;

/// Largest file read as a whole.
const MAX_MIB: u64 = 512;

/// Returns the files below `dir`, sorted by name; links are not followed.
pub(super) fn below(dir: &Path) -> Result<Vec<PathBuf>, ExternalError> {
    let mut found = Vec::new();
    let mut folders = vec![(dir.to_path_buf(), 0)];
    while let Some((folder, depth)) = folders.pop() {
        let wrong = |error| ExternalError::io("read the folder", &folder, error);
        for entry in fs::read_dir(&folder).map_err(wrong)? {
            let entry = entry.map_err(wrong)?;
            let kind = entry.file_type().map_err(wrong)?;
            if kind.is_dir() && depth < MAX_DEPTH {
                folders.push((entry.path(), depth + 1));
            } else if kind.is_file() && found.len() < MAX_FILES {
                found.push(entry.path());
            }
        }
    }
    found.sort();
    Ok(found)
}

/// Opens a file for streaming.
pub(super) fn open(path: &Path) -> Result<BufReader<File>, ExternalError> {
    let file = File::open(path).map_err(|error| ExternalError::io("read", path, error))?;
    Ok(BufReader::new(file))
}

/// Reads a whole file.
pub(super) fn read(path: &Path) -> Result<Vec<u8>, ExternalError> {
    let mut bytes = Vec::new();
    let limit = MAX_MIB << 20;
    let read = open(path)?.take(limit + 1).read_to_end(&mut bytes);
    read.map_err(|error| ExternalError::io("read", path, error))?;
    match bytes.len() as u64 > limit {
        true => Err(ExternalError::TooLarge {
            what: path.display().to_string(),
            limit_mib: MAX_MIB,
            hint: "profile a shorter run, or use CSV",
        }),
        false => Ok(bytes),
    }
}
