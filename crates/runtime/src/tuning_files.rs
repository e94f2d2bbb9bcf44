//! A folder that stores autotuning results: a JSON file per combination of GPU, driver and kernels. Its name is a hash
//! of the combination, its content includes the text. Files that are damaged or of another version are ignored and
//! replaced.
//!
//! Several processes may write: each takes a lock, reads the file, adds its results and replaces the file atomically.

use std::collections::BTreeMap;
use std::fs::{self, File, TryLockError};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::tuning::{Choice, Kept, Shape, Tuning, TuningStore};
use rocmforge_gguf::{Existing, NewFile, open_regular};
use serde::{Deserialize, Serialize};

/// File format version. Files of other versions are ignored.
const VERSION: u32 = 1;
/// Maximum size of a file. A model has a few dozen shapes.
const MAX_BYTES: u64 = 1 << 20;
/// Maximum entries of a file.
const MAX_ENTRIES: usize = 4096;
/// Interval between attempts to lock a file.
const POLL: Duration = Duration::from_millis(2);

/// The content of a file; shapes and choices as text.
#[derive(Serialize, Deserialize)]
struct Content {
    version: u32,
    key: String,
    choices: BTreeMap<String, String>,
}

/// The stored results of a key.
#[derive(Debug, PartialEq)]
pub enum Known {
    /// There is no file.
    Nothing,
    /// There is a file, but it is ignored for this reason.
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

/// Stores tuning results as files in a folder.
#[derive(Debug)]
pub struct TuningFiles {
    dir: PathBuf,
    patience: Duration,
}

impl TuningFiles {
    /// Uses the folder `tuning` below `cache`. Does not wait while other programs write.
    pub fn below(cache: &Path) -> TuningFiles {
        TuningFiles {
            dir: cache.join("tuning"),
            patience: Duration::ZERO,
        }
    }

    /// Waits up to `patience` while other programs write.
    #[must_use]
    pub fn with_patience(self, patience: Duration) -> TuningFiles {
        TuningFiles { patience, ..self }
    }

    /// Returns the file of a key.
    pub fn path(&self, key: &str) -> PathBuf {
        let mut hash = DefaultHasher::new();
        key.hash(&mut hash);
        self.dir.join(format!("{:016x}.json", hash.finish()))
    }

    /// Reads the stored results of `key`. Skips entries that this version does not know.
    pub fn known(&self, key: &str) -> Known {
        let path = self.path(key);
        // Opening a pipe would wait for its other end.
        match fs::metadata(&path) {
            Ok(facts) if facts.is_file() => {}
            Ok(_) => return Known::Unusable("it is not a regular file".to_string()),
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
            return Known::Unusable("it belongs to another GPU, driver or build".to_string());
        }
        let entries = content.choices.iter().take(MAX_ENTRIES);
        // Another version of this program may have written unknown entries.
        let entries = entries.filter_map(|(shape, choice)| {
            let (shape, choice) = (shape.parse().ok()?, choice.parse().ok()?);
            Some((shape, choice))
        });
        Known::Entries(entries.collect())
    }

    /// Adds results to the file of `key`. Creates the file if needed, even without results.
    ///
    /// # Errors
    /// If the folder is not writable, or another program is still writing when the patience ends.
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

    /// Deletes the stored results of `key`.
    ///
    /// # Errors
    /// Same as [`TuningFiles::add`].
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

    /// Takes the lock of a file. It is released when the returned file is closed, at the latest when the program ends.
    fn lock(&self, path: &Path) -> io::Result<File> {
        let file = open_regular(path, File::options().create(true).append(true))?;
        let started = Instant::now();
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(file),
                Err(TryLockError::WouldBlock) if started.elapsed() < self.patience => {
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
            // If the folder is not writable, the next start only misses the speed-up.
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
    fn stores_results_and_adds_to_them() {
        let cache = tempfile::tempdir().unwrap();
        // The folders do not exist yet.
        let dir = cache.path().join("a/b");
        let (one, two) = (entry(1, "rows 1 split 1"), entry(2, "rows 2 split 1"));
        assert_eq!(files(&dir).known(KEY), Known::Nothing);
        files(&dir).clear(KEY).unwrap();
        files(&dir).keep(KEY, &[one]);
        files(&dir).keep(KEY, &[two]);
        assert_eq!(files(&dir).load(KEY), table(&[one, two]));
        // Later results replace earlier ones.
        let again = entry(1, "rows 2 split 1");
        files(&dir).keep(KEY, &[again]);
        assert_eq!(files(&dir).load(KEY), table(&[again, two]));
        // Another driver has its own file.
        let other = KEY.replace("580", "590");
        assert_eq!(files(&dir).known(&other), Known::Nothing);
        files(&dir).keep(&other, &[one]);
        assert_eq!(files(&dir).load(KEY), table(&[again, two]));
        files(&dir).clear(KEY).unwrap();
        assert_eq!(files(&dir).known(KEY), Known::Nothing);
        assert_eq!(files(&dir).load(&other), table(&[one]));
    }

    #[test]
    fn ignores_and_replaces_unusable_files() {
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
        // Unknown entries of a valid file are skipped.
        let strange = whole.replace("rows 2 split 1", "rows 9 split 1");
        fs::write(files.path(KEY), strange).unwrap();
        assert_eq!(files.known(KEY), Known::Entries(vec![]));
    }

    #[test]
    fn keep_ignores_folders_that_are_not_writable() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        fs::write(&file, "in the way").unwrap();
        let one = entry(1, "rows 2 split 1");
        // Root ignores permissions, so use paths below a file and below /proc.
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
    fn files_have_a_maximum_size() {
        let cache = tempfile::tempdir().unwrap();
        let files = files(cache.path());
        let many: Vec<_> = (1..5000).map(|n| entry(n, "rows 1 split 1")).collect();
        files.keep(KEY, &many);
        assert_eq!(files.load(KEY).len(), MAX_ENTRIES);
        assert!(fs::metadata(files.path(KEY)).unwrap().len() < MAX_BYTES);
    }

    #[test]
    fn keep_returns_busy_while_another_program_writes() {
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
    fn concurrent_writers_lose_no_results() {
        let cache = tempfile::tempdir().unwrap();
        std::thread::scope(|scope| {
            for writer in 0..6 {
                let cache = cache.path();
                scope.spawn(move || {
                    // Each thread has its own instance, as separate processes would.
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
            "the file and its lock; no partial files are left"
        );
    }
}
