//! Downloads one file: into a part file beside its final path, resumed where an earlier pull stopped, verified, then
//! renamed.
//!
//! The part's name contains the start of the checksum, so parts of another version of the file are never resumed.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rocmforge_gguf::open_regular;
use sha2::{Digest as _, Sha256};
use ureq::Body;
use ureq::http::Response;

use crate::api::RemoteFile;
use crate::client::{Answer, Hub, header};
use crate::error::Error;
use crate::event::{Event, Observer};
use crate::folder::PART_SUFFIX;
use crate::retry::{Failure, Retries};

/// Bytes per read.
const CHUNK: usize = 1 << 20;
/// Slowest acceptable connection.
const MIN_BYTES_PER_SECOND: u64 = 1 << 10;
/// Bytes that an attempt must bring to restart the count of retries.
const MIN_PROGRESS_BYTES: u64 = 64 << 10;

/// A file to download.
pub(crate) struct Download<'a> {
    pub(crate) hub: &'a Hub,
    pub(crate) repo: &'a str,
    /// Path of the content on the hub.
    pub(crate) from: String,
    pub(crate) file: &'a RemoteFile,
    pub(crate) to: &'a Path,
}

/// Returns the path of the file's part.
pub(crate) fn part_path(to: &Path, file: &RemoteFile) -> PathBuf {
    let tag = file.sha256.as_deref().map_or("unchecked", |sha| &sha[..12]);
    let mut name = to.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{tag}{PART_SUFFIX}"));
    to.with_file_name(name)
}

/// Returns whether `to` is the complete file, by length and checksum.
pub(crate) fn is_complete(to: &Path, file: &RemoteFile) -> Result<bool, Error> {
    let has_length = |facts: fs::Metadata| facts.is_file() && facts.len() == file.bytes;
    if !fs::metadata(to).is_ok_and(has_length) {
        return Ok(false);
    }
    let Some(sha256) = &file.sha256 else {
        return Ok(true);
    };
    let mut hasher = Sha256::new();
    File::open(to)
        .and_then(|mut bytes| hash_all(&mut bytes, &mut hasher))
        .map_err(Error::io("read", to))?;
    Ok(hex(hasher) == *sha256)
}

impl Download<'_> {
    /// Downloads the file. After an error, the part is kept if a later pull can resume it.
    pub(crate) fn run(&self, observe: &mut Observer<'_>) -> Result<(), Error> {
        let path = part_path(self.to, self.file);
        let mut part = Part::open(path, self.file)?;
        let mut resumed = part.have > 0;
        if resumed {
            observe(Event::Resumed { done: part.have });
        }
        loop {
            self.complete(&mut part, observe)?;
            match part.check(self.file, observe) {
                Ok(()) => return part.finish(self.to),
                // The part of an earlier pull may have been damaged on disk.
                Err(_) if resumed => {
                    observe(Event::PartDamaged);
                    resumed = false;
                    part.clear()?;
                }
                Err(error) => {
                    drop(part.file);
                    let _ = fs::remove_file(&part.path);
                    return Err(error);
                }
            }
        }
    }

    /// Requests what is missing until the part has the file's length or no try is left.
    fn complete(&self, part: &mut Part, observe: &mut Observer<'_>) -> Result<(), Error> {
        let mut retries = Retries::new(self.hub.retries());
        while part.have < self.file.bytes {
            let before = part.have;
            let result = self.attempt(part, observe);
            if part.have.saturating_sub(before) >= MIN_PROGRESS_BYTES {
                retries.reset();
            }
            let Err(failure) = result else { continue };
            retries
                .wait(failure, observe)
                .map_err(|source| Error::Unfinished {
                    path: self.file.path.clone(),
                    done: part.have,
                    total: self.file.bytes,
                    source: Box::new(source),
                })?;
        }
        Ok(())
    }

    /// Makes one request for what is missing and appends until the part is complete or the connection ends.
    fn attempt(&self, part: &mut Part, observe: &mut Observer<'_>) -> Result<(), Failure> {
        // Without a checksum, a file mixed from two versions would go unnoticed.
        if self.file.sha256.is_none() && part.have > 0 {
            part.clear()?;
        }
        let response = self.request(part)?;
        let left = self.file.bytes - part.have;
        let length = response.body().content_length();
        if length.is_some_and(|bytes| bytes != left) {
            return Err(self.wrong_length());
        }
        let mut body = response.into_body().into_reader().take(left + 1);
        let mut buffer = vec![0; CHUNK];
        let mut pace = Pace::new(self.hub.timeout());
        loop {
            let n = match body.read(&mut buffer) {
                Ok(0) => break,
                Ok(n) => n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => {
                    return Err(Failure::transient(format!("the connection broke: {error}")));
                }
            };
            if n as u64 > self.file.bytes - part.have {
                part.clear()?;
                return Err(self.wrong_length());
            }
            part.append(&buffer[..n])?;
            observe(Event::Progress {
                done: part.have,
                total: self.file.bytes,
            });
            pace.count(n as u64)?;
        }
        if part.have < self.file.bytes {
            return Err(Failure::transient("the connection ended too early"));
        }
        Ok(())
    }

    /// Requests the file from the end of the part on; clears the part if the server sends the whole file.
    fn request(&self, part: &mut Part) -> Result<Response<Body>, Failure> {
        let response = self
            .hub
            .get(self.repo, &self.from, part.have, Answer::Long)?;
        let status = response.status().as_u16();
        let range = header(response.headers(), "content-range");
        let resumes = status == 206 && continues(range, part.have, self.file.bytes);
        if part.have > 0 && !resumes {
            part.clear()?;
        }
        if status == 416 || status == 206 && !resumes {
            return Err(Failure::transient(
                "the server does not resume where the part ends",
            ));
        }
        Ok(response)
    }

    fn wrong_length(&self) -> Failure {
        Failure::Fatal(Error::WrongLength {
            path: self.file.path.clone(),
            expected: self.file.bytes,
        })
    }
}

/// Returns whether a `Content-Range` begins at `offset` of a file of `total` bytes.
fn continues(range: Option<&str>, offset: u64, total: u64) -> bool {
    let parse = || {
        let (range, all) = range?.strip_prefix("bytes ")?.split_once('/')?;
        let (first, _) = range.split_once('-')?;
        let same_total = all == "*" || all.parse() == Ok(total);
        Some(first.parse() == Ok(offset) && same_total)
    };
    parse().unwrap_or(false)
}

/// The part file of a download.
struct Part {
    path: PathBuf,
    file: File,
    hasher: Sha256,
    have: u64,
}

impl Part {
    /// Opens the part of an earlier pull, or a new one.
    fn open(path: PathBuf, remote: &RemoteFile) -> Result<Part, Error> {
        let open = || {
            let mut file = open_part(&path)?;
            let mut hasher = Sha256::new();
            let mut have = file.metadata()?.len();
            if have > remote.bytes || remote.sha256.is_none() {
                file.set_len(0)?;
                have = 0;
            }
            if have > 0 {
                have = hash_all(&mut file, &mut hasher)?;
            }
            Ok((file, hasher, have))
        };
        let (file, hasher, have) = open().map_err(Error::io("write", &path))?;
        Ok(Part {
            path,
            file,
            hasher,
            have,
        })
    }

    fn append(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.file
            .write_all(bytes)
            .map_err(Error::io("write", &self.path))?;
        self.hasher.update(bytes);
        self.have += bytes.len() as u64;
        Ok(())
    }

    /// Empties the part.
    fn clear(&mut self) -> Result<(), Error> {
        let cleared = self.file.set_len(0);
        cleared
            .and_then(|()| self.file.seek(SeekFrom::Start(0)))
            .map_err(Error::io("write", &self.path))?;
        self.hasher = Sha256::new();
        self.have = 0;
        Ok(())
    }

    /// Checks that the complete part has the hub's checksum and is a GGUF file.
    fn check(&mut self, remote: &RemoteFile, observe: &mut Observer<'_>) -> Result<(), Error> {
        let path = &remote.path;
        match &remote.sha256 {
            Some(expected) => {
                let found = hex(std::mem::take(&mut self.hasher));
                if found != *expected {
                    return Err(Error::WrongChecksum {
                        path: path.clone(),
                        found,
                        expected: expected.clone(),
                    });
                }
            }
            None => observe(Event::NoChecksum { path }),
        }
        let mut magic = [0; 4];
        let read = self.file.seek(SeekFrom::Start(0));
        let read = read.and_then(|_| self.file.read_exact(&mut magic));
        if read.is_err() || &magic != b"GGUF" {
            return Err(Error::NotGguf { path: path.clone() });
        }
        Ok(())
    }

    /// Renames the part to its final path and syncs both to disk.
    fn finish(self, to: &Path) -> Result<(), Error> {
        let Part { path, file, .. } = self;
        let finish = || {
            file.sync_all()?;
            drop(file);
            fs::rename(&path, to)?;
            match to.parent() {
                Some(dir) => File::open(dir)?.sync_all(),
                None => Ok(()),
            }
        };
        finish().map_err(Error::io("write", to))
    }
}

/// Opens the part of an earlier pull, or a new one. What is no part, such as a link to a file elsewhere, is removed:
/// nothing is written through it.
fn open_part(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    options.read(true).write(true);
    match fs::symlink_metadata(path) {
        Ok(found) if found.is_file() && found.nlink() == 1 => {
            return open_regular(path, &mut options);
        }
        Ok(_) => fs::remove_file(path)?,
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    options.create_new(true).open(path)
}

/// Hashes `from` to its end and returns the number of bytes.
fn hash_all(from: &mut File, hasher: &mut Sha256) -> io::Result<u64> {
    let mut buffer = vec![0; CHUNK];
    let mut bytes = 0;
    loop {
        match from.read(&mut buffer) {
            Ok(0) => return Ok(bytes),
            Ok(n) => {
                hasher.update(&buffer[..n]);
                bytes += n as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

fn hex(hasher: Sha256) -> String {
    let bytes = hasher.finalize();
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Fails a connection that is slower than [`MIN_BYTES_PER_SECOND`] over a whole window.
struct Pace {
    window: Duration,
    began: Instant,
    bytes: u64,
}

impl Pace {
    fn new(window: Duration) -> Pace {
        Pace {
            window,
            began: Instant::now(),
            bytes: 0,
        }
    }

    fn count(&mut self, bytes: u64) -> Result<(), Failure> {
        self.bytes += bytes;
        if self.began.elapsed() < self.window {
            return Ok(());
        }
        if self.bytes < MIN_BYTES_PER_SECOND.saturating_mul(self.window.as_secs().max(1)) {
            return Err(Failure::transient("the connection is too slow"));
        }
        *self = Pace::new(self.window);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_only_ranges_from_the_end_of_the_part() {
        for (range, expected) in [
            (Some("bytes 5-9/10"), true),
            (Some("bytes 5-9/*"), true),
            (Some("bytes 4-9/10"), false),
            (Some("bytes 5-9/11"), false),
            (Some("bytes */10"), false),
            (Some("5-9/10"), false),
            (None, false),
        ] {
            assert_eq!(continues(range, 5, 10), expected, "{range:?}");
        }
    }
}
