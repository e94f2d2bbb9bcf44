//! The folder that remembers how launches are made fastest: a file for each combination of GPU, driver and kernels, named
//! by a number of it and holding its text. A file that is damaged, of another version or of other kernels is as none, and
//! is replaced.
//!
//! Several processes may write: each takes a lock, reads what the others left, adds its own and replaces the file at once.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::tuning::{Choice, Kept, Shape, Tuning, TuningStore};
use rocmforge_gguf::{Existing, NewFile};
use serde::{Deserialize, Serialize};

/// Of the file; another one is not read.
const VERSION: u32 = 1;
/// Limits of what is read: a model has a few dozen shapes.
const MAX_BYTES: u64 = 1 << 20;
const MAX_ENTRIES: usize = 4096;
const POLL: Duration = Duration::from_millis(2);

/// A file as it is written: shapes and choices as their text.
#[derive(Serialize, Deserialize)]
struct Content {
    version: u32,
    key: String,
    choices: BTreeMap<String, String>,
}

/// What there is for a key.
#[derive(Debug, PartialEq)]
pub enum Known {
    Nothing,
    /// Why a file is as none.
    Unusable(String),
    Entries(Vec<(Shape, Choice)>),
}

impl Known {
    fn entries(self) -> Vec<(Shape, Choice)> {
        match self {
            Known::Entries(entries) => entries,
            Known::Nothing | Known::Unusable(_) => Vec::new(),
        }
    }
}

/// The files of a folder.
#[derive(Debug)]
pub struct TuningFiles {
    dir: PathBuf,
    patience: Duration,
}

impl TuningFiles {
    /// Uses the folder `tuning` below `cache`. Does not wait for other programs that write.
    pub fn below(cache: &Path) -> TuningFiles {
        TuningFiles {
            dir: cache.join("tuning"),
            patience: Duration::ZERO,
        }
    }

    #[must_use]
    pub fn with_patience(self, patience: Duration) -> TuningFiles {
        TuningFiles { patience, ..self }
    }

    /// The file of a key.
    pub fn path(&self, key: &str) -> PathBuf {
        let mut hash = DefaultHasher::new();
        key.hash(&mut hash);
        self.dir.join(format!("{:016x}.json", hash.finish()))
    }

    pub fn known(&self, key: &str) -> Known {
        let path = self.path(key);
        // Opening a pipe would wait for its other end.
        match fs::metadata(&path) {
            Ok(facts) if facts.is_file() => {}
            Ok(_) => return Known::Unusable("it is no file".to_string()),
            Err(_) => return Known::Nothing,
        }
        let mut text = String::new();
        let read = File::open(&path).and_then(|file| {
            let read = file.take(MAX_BYTES + 1).read_to_string(&mut text)?;
            match read as u64 > MAX_BYTES {
                true => Err(io::Error::other("it is too large")),
                false => Ok(()),
            }
        });
        if let Err(error) = read {
            return Known::Unusable(error.to_string());
        }
        let content: Content = match serde_json::from_str(&text) {
            Ok(content) => content,
            Err(error) => return Known::Unusable(format!("it is damaged ({error})")),
        };
        if content.version != VERSION {
            return Known::Unusable(format!("its version is {}", content.version));
        }
        if content.key != key {
            return Known::Unusable("it is of another GPU, driver or build".to_string());
        }
        let entries = content.choices.iter().take(MAX_ENTRIES);
        // What a program of another time wrote and this one does not know is left out.
        let entries = entries.filter_map(|(shape, choice)| {
            let (shape, choice) = (shape.parse().ok()?, choice.parse().ok()?);
            Some((shape, choice))
        });
        Known::Entries(entries.collect())
    }

    /// Adds to the file of `key`, or with nothing to add begins it anew.
    ///
    /// # Errors
    /// If the folder cannot be written to, or another program does not end writing.
    pub fn add(&self, key: &str, found: &[(Shape, Choice)]) -> io::Result<()> {
        fs::create_dir_all(&self.dir)?;
        let path = self.path(key);
        let _lock = self.lock(&path.with_extension("lock"))?;
        let known = self.known(key).entries();
        let texts = known
            .iter()
            .chain(found)
            .map(|(s, c)| (s.to_string(), c.to_string()));
        let mut choices: BTreeMap<String, String> = texts.collect();
        while choices.len() > MAX_ENTRIES {
            choices.pop_first();
        }
        let content = Content {
            version: VERSION,
            key: key.to_string(),
            choices,
        };
        let mut text = serde_json::to_string_pretty(&content).map_err(io::Error::from)?;
        text.push('\n');
        let mut file = NewFile::create(&path, Existing::Replace)?;
        file.write_all(text.as_bytes())?;
        file.commit()
    }

    /// Forgets what is known for `key`.
    ///
    /// # Errors
    /// As [`TuningFiles::add`].
    pub fn clear(&self, key: &str) -> io::Result<()> {
        let path = self.path(key);
        if !self.dir.is_dir() {
            return Ok(());
        }
        let _lock = self.lock(&path.with_extension("lock"))?;
        match fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// A lock that ends with the file, and so with the program that has it.
    fn lock(&self, path: &Path) -> io::Result<File> {
        if fs::metadata(path).is_ok_and(|facts| !facts.is_file()) {
            return Err(io::Error::other("what stands for its lock is no file"));
        }
        let file = OpenOptions::new().create(true).append(true).open(path)?;
        let begun = Instant::now();
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(file),
                Err(TryLockError::WouldBlock) if begun.elapsed() < self.patience => {
                    std::thread::sleep(POLL);
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl TuningStore for TuningFiles {
    fn load(&self, key: &str) -> Tuning {
        self.known(key).entries().into_iter().collect()
    }

    fn keep(&self, key: &str, found: &[(Shape, Choice)]) -> Kept {
        match self.add(key, found) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => Kept::Busy,
            // A folder that cannot be written to costs the next start what it might have gained.
            _ => Kept::Settled,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "Some GPU; sm_90; 580.1; 13.0; sm_90a; 0123456789abcdef";

    fn files(cache: &Path) -> TuningFiles {
        TuningFiles::below(cache).with_patience(Duration::from_secs(60))
    }

    fn entry(n_out: usize, choice: &str) -> (Shape, Choice) {
        let shape = format!("matvec Q4_K {n_out}x4096").parse().unwrap();
        (shape, choice.parse().unwrap())
    }

    fn table(entries: &[(Shape, Choice)]) -> Tuning {
        entries.iter().copied().collect()
    }

    #[test]
    fn what_was_found_is_remembered_and_added_to() {
        let cache = tempfile::tempdir().unwrap();
        // Folders that are not there yet.
        let dir = cache.path().join("a/b");
        let (one, two) = (entry(1, "rows 1 split 1"), entry(2, "rows 2 split 1"));
        assert_eq!(files(&dir).known(KEY), Known::Nothing);
        files(&dir).clear(KEY).unwrap();
        files(&dir).keep(KEY, &[one]);
        files(&dir).keep(KEY, &[two]);
        assert_eq!(files(&dir).load(KEY), table(&[one, two]));
        // The later finding counts.
        let again = entry(1, "rows 2 split 1");
        files(&dir).keep(KEY, &[again]);
        assert_eq!(files(&dir).load(KEY), table(&[again, two]));
        // Another driver has its own.
        let other = KEY.replace("580", "590");
        assert_eq!(files(&dir).known(&other), Known::Nothing);
        files(&dir).keep(&other, &[one]);
        assert_eq!(files(&dir).load(KEY), table(&[again, two]));
        files(&dir).clear(KEY).unwrap();
        assert_eq!(files(&dir).known(KEY), Known::Nothing);
        assert_eq!(files(&dir).load(&other), table(&[one]));
    }

    #[test]
    fn a_file_that_cannot_be_used_is_as_none_and_is_replaced() {
        let cache = tempfile::tempdir().unwrap();
        let files = files(cache.path());
        let one = entry(1, "rows 2 split 1");
        files.keep(KEY, &[one]);
        let whole = fs::read_to_string(files.path(KEY)).unwrap();
        let huge = whole.clone() + &" ".repeat(1 << 20);
        let damaged = [
            "",
            "{}",
            &whole[..whole.len() / 2],
            &whole.replace("\"version\": 1", "\"version\": 2"),
            &whole.replace("sm_90a", "sm_80"),
            &whole.replace("{", "["),
            "\u{0}\u{1}",
            &"[".repeat(100_000),
            &huge,
        ];
        for text in damaged {
            fs::write(files.path(KEY), text).unwrap();
            let shown = &text[..text.len().min(80)];
            assert!(matches!(files.known(KEY), Known::Unusable(_)), "{shown:?}");
            assert!(files.load(KEY).is_empty());
            files.keep(KEY, &[one]);
            assert_eq!(files.load(KEY), table(&[one]), "after {shown:?}");
        }
        fs::write(files.path(KEY), [0xff, 0xfe]).unwrap();
        assert!(matches!(files.known(KEY), Known::Unusable(_)));
        // What is not known of an otherwise good file is left out.
        let strange = whole.replace("rows 2 split 1", "rows 9 split 1");
        fs::write(files.path(KEY), strange).unwrap();
        assert_eq!(files.known(KEY), Known::Entries(vec![]));
    }

    #[test]
    fn what_is_in_the_way_is_no_error() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        fs::write(&file, "in the way").unwrap();
        let one = entry(1, "rows 2 split 1");
        // No permissions keep root from writing; a file where the folder should be, and /proc, do.
        for cache in [
            file.as_path(),
            Path::new("/proc/rocmforge"),
            Path::new("/dev/null"),
        ] {
            let files = files(cache);
            files.keep(KEY, &[one]);
            assert!(files.add(KEY, &[one]).is_err());
            assert!(files.load(KEY).is_empty(), "{}", cache.display());
            files.clear(KEY).unwrap();
        }
        for extension in ["json", "lock"] {
            let files = files(&dir.path().join(extension));
            let in_the_way = files.path(KEY).with_extension(extension);
            fs::create_dir_all(&in_the_way).unwrap();
            files.keep(KEY, &[one]);
            assert!(files.load(KEY).is_empty(), "{}", in_the_way.display());
            fs::remove_dir(&in_the_way).unwrap();
            files.keep(KEY, &[one]);
            assert_eq!(files.load(KEY), table(&[one]));
        }
    }

    #[test]
    fn a_file_does_not_grow_without_end() {
        let cache = tempfile::tempdir().unwrap();
        let files = files(cache.path());
        let many: Vec<_> = (1..5000).map(|n| entry(n, "rows 1 split 1")).collect();
        files.keep(KEY, &many);
        assert_eq!(files.load(KEY).len(), MAX_ENTRIES);
        assert!(fs::metadata(files.path(KEY)).unwrap().len() < MAX_BYTES);
    }

    #[test]
    fn who_has_no_patience_is_told_that_another_writes() {
        let cache = tempfile::tempdir().unwrap();
        let (patient, files) = (files(cache.path()), TuningFiles::below(cache.path()));
        let [one, two] = [1, 2].map(|n| entry(n, "rows 1 split 1"));
        assert_eq!(files.keep(KEY, &[one]), Kept::Settled);
        let lock = patient.lock(&files.path(KEY).with_extension("lock"));
        assert_eq!(files.keep(KEY, &[two]), Kept::Busy);
        drop(lock);
        assert_eq!(files.keep(KEY, &[two]), Kept::Settled);
        assert_eq!(files.load(KEY), table(&[one, two]));
    }

    #[test]
    fn many_at_once_lose_nothing() {
        let cache = tempfile::tempdir().unwrap();
        std::thread::scope(|scope| {
            for writer in 0..6 {
                let cache = cache.path();
                scope.spawn(move || {
                    // As many processes have it.
                    let files = files(cache);
                    for i in 0..5 {
                        let own = entry(1 + writer * 5 + i, "rows 2 split 1");
                        files.add(KEY, &[own]).unwrap();
                        assert!(files.load(KEY).contains(&own.0));
                    }
                });
            }
        });
        let files = files(cache.path());
        let all: Vec<_> = (1..=30).map(|n| entry(n, "rows 2 split 1")).collect();
        assert_eq!(files.load(KEY), table(&all));
        let names = fs::read_dir(&files.dir).unwrap();
        assert_eq!(
            names.count(),
            2,
            "the file and its lock, and nothing half done"
        );
    }
}
