//! Files that tools have written: found, and read within limits.

use std::fs::{self, File};
use std::io::{BufReader, Read as _};
use std::path::{Path, PathBuf};

use super::error::ExternalError;

/// Tools put their files two folders down at most; one more is for whoever named the folder.
const MAX_DEPTH: usize = 3;

/// More files than a run writes.
const MAX_FILES: usize = 10_000;

/// Largest file that is read in one piece.
const MAX_MIB: u64 = 512;

/// The files below `dir`, in order of their names; links are not followed.
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

/// Opens a file that is read piece by piece.
pub(super) fn open(path: &Path) -> Result<BufReader<File>, ExternalError> {
    let file = File::open(path).map_err(|error| ExternalError::io("read", path, error))?;
    Ok(BufReader::new(file))
}

/// Reads a file in one piece.
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
