//! One file from the hub: into a part beside its place, resumed where an earlier pull stopped, checked, and
//! only then given its name.
//!
//! The part's name holds the beginning of the checksum, so what was fetched of another version of the file is
//! never continued.

use std::fs::{self, File, OpenOptions};
use std::io::{self, IsTerminal as _, Read, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use indicatif::{ProgressBar, ProgressStyle};
use sha2::{Digest as _, Sha256};

use super::api::RemoteFile;
use super::client::{Answer, Client, header};
use super::failure::{Failure, Patience};
use super::store::{PART_SUFFIX, shown};
use crate::output::{self, size};

/// Bytes read at once.
const CHUNK: usize = 1 << 20;
/// A connection that brings less per second is as good as silent.
const MIN_BYTES_PER_SECOND: u64 = 1 << 10;
/// What an attempt must bring to count as a success.
const WORTH: u64 = 64 << 10;

/// A file to fetch.
pub struct Download<'a> {
    pub client: &'a Client,
    pub repo: &'a str,
    /// Where the hub has it.
    pub from: String,
    pub file: &'a RemoteFile,
    pub to: &'a Path,
}

/// Where the part of a file lies while it is fetched.
pub fn part_path(to: &Path, file: &RemoteFile) -> PathBuf {
    let tag = file.sha256.as_deref().map_or("unchecked", |sha| &sha[..12]);
    let mut name = to.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{tag}{PART_SUFFIX}"));
    to.with_file_name(name)
}

/// Whether the whole file is at `to` already.
pub fn is_there(to: &Path, file: &RemoteFile) -> Result<bool> {
    let is_whole = |facts: fs::Metadata| facts.is_file() && facts.len() == file.bytes;
    if !fs::metadata(to).is_ok_and(is_whole) {
        return Ok(false);
    }
    let Some(sha256) = &file.sha256 else {
        return Ok(true);
    };
    let mut hasher = Sha256::new();
    File::open(to)
        .and_then(|mut bytes| hash_all(&mut bytes, &mut hasher))
        .with_context(|| format!("cannot read {}", shown(to)))?;
    Ok(hex(hasher) == *sha256)
}

impl Download<'_> {
    /// Fetches the file. A part is kept where the next pull can go on from it.
    pub fn run(&self, patience: &mut Patience) -> Result<()> {
        let path = part_path(self.to, self.file);
        self.remove_other_parts(&path);
        let mut part = Part::open(path, self.file)?;
        let mut resumed = part.have;
        if resumed > 0 {
            output::note(&format!("going on after {}", size(resumed)));
        }
        let mut progress = Progress::new(self.file.bytes, part.have);
        loop {
            while part.have < self.file.bytes {
                let before = part.have;
                let result = self.attempt(&mut part, &mut progress);
                if part.have.saturating_sub(before) >= WORTH {
                    patience.renew();
                }
                if let Err(failure) = result {
                    progress.pause();
                    patience.wait(failure).with_context(|| self.kept(&part))?;
                }
            }
            progress.pause();
            match part.check(self.file) {
                Ok(()) => break,
                // What an earlier pull left may have been damaged since.
                Err(_) if resumed > 0 => {
                    output::note("notice: what an earlier pull left is damaged; starting again");
                    resumed = 0;
                    part.clear()?;
                }
                Err(error) => {
                    drop(part.file);
                    let _ = fs::remove_file(&part.path);
                    return Err(error);
                }
            }
        }
        part.finish(self.to)
    }

    fn kept(&self, part: &Part) -> String {
        format!(
            "{}: {} of {} are kept, the same command goes on from there",
            self.file.path,
            size(part.have),
            size(self.file.bytes)
        )
    }

    /// Removes what earlier pulls left of other versions of the file.
    fn remove_other_parts(&self, part: &Path) {
        let (Some(dir), Some(name)) = (self.to.parent(), self.to.file_name()) else {
            return;
        };
        let prefix = format!("{}.", name.to_string_lossy());
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let tag = name
                .strip_prefix(&prefix)
                .and_then(|rest| rest.strip_suffix(PART_SUFFIX));
            if tag.is_some_and(|tag| !tag.contains('.')) && entry.path() != part {
                // It only takes room; the pull does not need it gone.
                let _ = fs::remove_file(entry.path());
            }
        }
    }

    /// One request for what is missing, until it is there or the connection ends.
    fn attempt(&self, part: &mut Part, progress: &mut Progress) -> Result<(), Failure> {
        // Without a checksum nobody could tell a continued file from a mixed one.
        if self.file.sha256.is_none() && part.have > 0 {
            part.clear()?;
        }
        let response = self
            .client
            .get(self.repo, &self.from, part.have, Answer::Long)?;
        let status = response.status().as_u16();
        let goes_on = status == 206
            && continues(
                header(response.headers(), "content-range"),
                part.have,
                self.file.bytes,
            );
        if part.have > 0 && !goes_on {
            part.clear()?;
            progress.set(0);
        }
        if status == 416 || status == 206 && !goes_on {
            return Err(Failure::again(
                "the server does not go on where the part ends",
            ));
        }
        let left = self.file.bytes - part.have;
        let wrong_length = || {
            Failure::fatal(format!(
                "the hub sends another {} than the one it lists ({})",
                self.file.path,
                size(self.file.bytes)
            ))
        };
        if response
            .body()
            .content_length()
            .is_some_and(|bytes| bytes != left)
        {
            return Err(wrong_length());
        }
        let mut body = response.into_body().into_reader().take(left + 1);
        let mut buffer = vec![0; CHUNK];
        let mut pace = Pace::new(self.client.timeout());
        loop {
            let n = match body.read(&mut buffer) {
                Ok(0) => break,
                Ok(n) => n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(Failure::again(format!("the connection broke: {error}"))),
            };
            if n as u64 > self.file.bytes - part.have {
                part.clear()?;
                return Err(wrong_length());
            }
            part.append(&buffer[..n])?;
            progress.set(part.have);
            pace.count(n as u64)?;
        }
        if part.have < self.file.bytes {
            return Err(Failure::again("the connection ended too early"));
        }
        Ok(())
    }
}

/// Whether a `Content-Range` says that the answer begins at `offset` of a file of `total` bytes.
fn continues(range: Option<&str>, offset: u64, total: u64) -> bool {
    let parse = || {
        let (range, all) = range?.strip_prefix("bytes ")?.split_once('/')?;
        let (first, _) = range.split_once('-')?;
        let same_total = all == "*" || all.parse() == Ok(total);
        Some(first.parse() == Ok(offset) && same_total)
    };
    parse().unwrap_or(false)
}

/// What is there of a file.
struct Part {
    path: PathBuf,
    file: File,
    hasher: Sha256,
    have: u64,
}

impl Part {
    /// Takes up what an earlier pull left.
    fn open(path: PathBuf, remote: &RemoteFile) -> Result<Part> {
        let io = || format!("cannot write {}", shown(&path));
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .with_context(io)?;
        let mut hasher = Sha256::new();
        let mut have = file.metadata().with_context(io)?.len();
        if have > remote.bytes || remote.sha256.is_none() {
            file.set_len(0).with_context(io)?;
            have = 0;
        }
        if have > 0 {
            have = hash_all(&mut file, &mut hasher).with_context(io)?;
        }
        Ok(Part {
            path,
            file,
            hasher,
            have,
        })
    }

    fn append(&mut self, bytes: &[u8]) -> Result<()> {
        self.file
            .write_all(bytes)
            .with_context(|| format!("cannot write {}", shown(&self.path)))?;
        self.hasher.update(bytes);
        self.have += bytes.len() as u64;
        Ok(())
    }

    /// Forgets what is there.
    fn clear(&mut self) -> Result<()> {
        let cleared = self.file.set_len(0);
        let cleared = cleared.and_then(|()| self.file.seek(SeekFrom::Start(0)));
        cleared.with_context(|| format!("cannot write {}", shown(&self.path)))?;
        self.hasher = Sha256::new();
        self.have = 0;
        Ok(())
    }

    /// Whether the whole file is what the hub lists, and a GGUF file.
    fn check(&mut self, remote: &RemoteFile) -> Result<()> {
        match &remote.sha256 {
            Some(expected) => {
                let found = hex(std::mem::take(&mut self.hasher));
                if found != *expected {
                    bail!(
                        "{} arrived damaged: its SHA-256 is {found} and should be {expected}; nothing is kept, pull again",
                        remote.path
                    );
                }
            }
            None => output::note(&format!(
                "notice: the hub gives no checksum for {}; only its length is checked",
                remote.path
            )),
        }
        let mut magic = [0; 4];
        let read = self.file.seek(SeekFrom::Start(0));
        let read = read.and_then(|_| self.file.read_exact(&mut magic));
        if read.is_err() || &magic != b"GGUF" {
            bail!(
                "{} is not a GGUF file, whatever its name says; nothing is kept",
                remote.path
            );
        }
        Ok(())
    }

    /// Gives the file its name, for good.
    fn finish(self, to: &Path) -> Result<()> {
        let io = || format!("cannot write {}", shown(to));
        self.file.sync_all().with_context(io)?;
        drop(self.file);
        fs::rename(&self.path, to).with_context(io)?;
        if let Some(dir) = to.parent() {
            File::open(dir)
                .and_then(|dir| dir.sync_all())
                .with_context(io)?;
        }
        Ok(())
    }
}

/// Hashes all of `from` and returns how many bytes that were.
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

/// Watches that bytes keep coming.
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
            return Err(Failure::again("the connection is too slow"));
        }
        *self = Pace::new(self.window);
        Ok(())
    }
}

/// Tells how far it is: a bar on a terminal, a line for every tenth elsewhere.
enum Progress {
    Bar(ProgressBar),
    Lines { total: u64, told: u64 },
}

impl Progress {
    fn new(total: u64, have: u64) -> Progress {
        if !io::stderr().is_terminal() {
            return Progress::Lines {
                total,
                told: tenths(have, total),
            };
        }
        let style =
            ProgressStyle::with_template("{wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta}")
                .expect("the template is valid");
        let bar = ProgressBar::new(total).with_style(style);
        bar.set_position(have);
        bar.reset_eta();
        Progress::Bar(bar)
    }

    fn set(&mut self, have: u64) {
        match self {
            Progress::Bar(bar) => bar.set_position(have),
            Progress::Lines { total, told } => {
                let tenths = tenths(have, *total);
                if tenths > *told {
                    output::note(&format!("{}0 % of {}", tenths, size(*total)));
                }
                *told = tenths;
            }
        }
    }

    /// Makes room for a line of text; the next [`Progress::set`] draws the bar again.
    fn pause(&self) {
        if let Progress::Bar(bar) = self {
            bar.suspend(|| {});
            if bar.length() == Some(bar.position()) {
                bar.finish_and_clear();
            }
        }
    }
}

fn tenths(have: u64, total: u64) -> u64 {
    (u128::from(have) * 10 / u128::from(total.max(1))) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_must_go_on_where_the_part_ends() {
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
