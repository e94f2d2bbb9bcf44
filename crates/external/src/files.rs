//! Finds and reads the tools' output files, within limits.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use flate2::bufread::MultiGzDecoder;

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

/// Decompresses gzip. Reading fails behind `limit_mib`: a few bytes can become as many as a disk holds.
pub(super) fn unpack(packed: impl BufRead, limit_mib: u64) -> impl BufRead {
    BufReader::new(Unpacked {
        inner: MultiGzDecoder::new(packed),
        limit_mib,
        left: limit_mib << 20,
    })
}

struct Unpacked<R> {
    inner: R,
    limit_mib: u64,
    left: u64,
}

impl<R: Read> Read for Unpacked<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buf)?;
        self.left = self.left.checked_sub(read as u64).ok_or_else(|| {
            let limit = self.limit_mib;
            io::Error::other(format!("it unpacks to more than {limit} MiB"))
        })?;
        Ok(read)
    }
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

#[cfg(test)]
pub(super) mod tests {
    use std::io::Write as _;

    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;

    pub(crate) fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn gzip_is_bounded_and_checked() {
        let unpacked = |packed: &[u8], limit_mib| {
            let mut bytes = Vec::new();
            let read = unpack(packed, limit_mib).read_to_end(&mut bytes);
            read.map(|_| bytes).map_err(|error| error.to_string())
        };
        let mib = gzip(&[0; 1 << 20]);
        assert_eq!(unpacked(&mib, 1).unwrap().len(), 1 << 20);
        // Files may be appended to each other.
        let two = [mib.clone(), gzip(b"x")].concat();
        assert_eq!(unpacked(&two, 2).unwrap().len(), (1 << 20) + 1);
        assert_eq!(
            unpacked(&two, 1),
            Err("it unpacks to more than 1 MiB".into())
        );
        for damaged in [&b""[..], b"plain text", &mib[..mib.len() / 2]] {
            assert!(unpacked(damaged, 1).is_err());
        }
        let mut wrong_sum = gzip(b"abc");
        let at = wrong_sum.len() - 8;
        wrong_sum[at] ^= 1;
        assert!(unpacked(&wrong_sum, 1).is_err());
    }
}
