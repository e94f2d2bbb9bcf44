//! A folder of baselines, one `NAME.json` each. Files are written to a temporary name and renamed, and a lock admits
//! one writer at a time, so that neither a crash nor a second program leaves a partial baseline or loses data.

use std::fs::{self, File, TryLockError};
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rocmforge_gguf::{Existing, NewFile, open_regular};

use super::error::BaselineError;
use super::schema::PerformanceBaseline;

const SUFFIX: &str = ".json";
const MAX_NAME: usize = 100;
const MAX_FILE_MIB: u64 = 64;
/// Most files in a folder; more mean that it is some other folder.
const MAX_FILES: usize = 5_000;
/// How long to wait for another writer, whose write takes a moment.
const PATIENCE: Duration = Duration::from_secs(10);

/// A folder of baselines, which need not exist yet.
#[derive(Debug, Clone)]
pub struct Store {
    dir: PathBuf,
}

/// A file of the folder.
#[derive(Debug)]
pub struct Stored {
    pub name: String,
    pub path: PathBuf,
    /// Its contents, or why they cannot be read.
    pub baseline: Result<PerformanceBaseline, BaselineError>,
}

impl Store {
    pub fn at(dir: impl Into<PathBuf>) -> Store {
        Store { dir: dir.into() }
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns the names of its baselines, sorted.
    ///
    /// # Errors
    /// If the folder exists and cannot be read.
    pub fn names(&self) -> Result<Vec<String>, BaselineError> {
        let failed = |source| BaselineError::Read {
            path: self.dir.clone(),
            source,
        };
        let entries = match fs::read_dir(&self.dir) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            other => other.map_err(failed)?,
        };
        let mut names = Vec::new();
        for (i, entry) in entries.enumerate() {
            if i == MAX_FILES {
                let text = format!("it has more than {MAX_FILES} files; is it a baselines folder?");
                return Err(failed(io::Error::other(text)));
            }
            let file_name = entry.map_err(failed)?.file_name();
            let name = file_name
                .to_str()
                .and_then(|name| name.strip_suffix(SUFFIX));
            if let Some(name) = name.filter(|name| check_name(name).is_ok()) {
                names.push(name.to_string());
            }
        }
        names.sort();
        Ok(names)
    }

    /// Returns all baselines, oldest first, unreadable ones last.
    ///
    /// # Errors
    /// If the folder exists and cannot be read.
    pub fn all(&self) -> Result<Vec<Stored>, BaselineError> {
        let names = self.names()?.into_iter();
        let mut all: Vec<Stored> = names
            .map(|name| {
                let path = self.place(&name);
                let baseline = read(&path);
                Stored {
                    name,
                    path,
                    baseline,
                }
            })
            .collect();
        let time = |stored: &Stored| {
            let baseline = stored.baseline.as_ref().ok();
            baseline.map_or(u64::MAX, |baseline| baseline.timestamp().unwrap_or(0))
        };
        all.sort_by_key(time);
        Ok(all)
    }

    /// Loads a baseline: `reference` is a name in the folder, or the path of a file if it has a separator or ends in
    /// `.json`.
    ///
    /// # Errors
    /// If it does not exist or cannot be read.
    pub fn load(&self, reference: &str) -> Result<PerformanceBaseline, BaselineError> {
        if is_path(reference) {
            return read(Path::new(reference));
        }
        check_name(reference)?;
        match read(&self.place(reference)) {
            Err(BaselineError::Read { source, .. }) if source.kind() == ErrorKind::NotFound => {
                Err(BaselineError::Unknown {
                    name: reference.to_string(),
                    dir: self.dir.clone(),
                    near: nearest(reference, self.names()?),
                })
            }
            other => other,
        }
    }

    /// Adds `newer` to the baseline `name`, replacing benchmarks with the same names. Creates the baseline and the
    /// folder if needed. Returns the path of the file.
    ///
    /// # Errors
    /// If the name is invalid, the existing file cannot be read, or the folder is not writable; then nothing has
    /// changed.
    pub fn save(&self, name: &str, newer: PerformanceBaseline) -> Result<PathBuf, BaselineError> {
        check_name(name)?;
        let path = self.place(name);
        let failed = |source| BaselineError::Write {
            path: path.clone(),
            source,
        };
        fs::create_dir_all(&self.dir).map_err(failed)?;
        let _lock = self.lock().map_err(failed)?;
        let mut baseline = match read(&path) {
            Err(BaselineError::Read { source, .. }) if source.kind() == ErrorKind::NotFound => {
                PerformanceBaseline::default()
            }
            other => other?,
        };
        baseline.extend(newer);
        let write = || {
            let mut file = NewFile::create(&path, Existing::Replace)?;
            file.write_all(baseline.to_json().as_bytes())?;
            file.commit()
        };
        write().map_err(failed)?;
        Ok(path)
    }

    /// Fails as [`Store::save`] would, before anything is measured.
    ///
    /// # Errors
    /// Those of [`Store::save`].
    pub fn check(&self, name: &str) -> Result<(), BaselineError> {
        check_name(name)?;
        let path = self.place(name);
        let failed = |source| BaselineError::Write {
            path: path.clone(),
            source,
        };
        fs::create_dir_all(&self.dir).map_err(failed)?;
        drop(NewFile::create(&path, Existing::Replace).map_err(failed)?);
        match read(&path) {
            Err(BaselineError::Read { source, .. }) if source.kind() == ErrorKind::NotFound => {
                Ok(())
            }
            other => other.map(drop),
        }
    }

    /// Deletes a baseline, also an unreadable one.
    ///
    /// # Errors
    /// If there is none of this name, or the folder is not writable.
    pub fn remove(&self, name: &str) -> Result<PathBuf, BaselineError> {
        check_name(name)?;
        let path = self.place(name);
        match fs::remove_file(&path) {
            Ok(()) => Ok(path),
            Err(error) if error.kind() == ErrorKind::NotFound => Err(BaselineError::Unknown {
                name: name.to_string(),
                dir: self.dir.clone(),
                near: nearest(name, self.names()?),
            }),
            Err(source) => Err(BaselineError::Write { path, source }),
        }
    }

    /// Locks out other writers until the returned file is dropped.
    fn lock(&self) -> io::Result<File> {
        let lock = self.dir.join(".lock");
        let file = open_regular(&lock, File::options().create(true).append(true))?;
        let started = Instant::now();
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(file),
                Err(TryLockError::WouldBlock) if started.elapsed() < PATIENCE => {
                    std::thread::sleep(Duration::from_millis(5));
                }
                Err(TryLockError::WouldBlock) => {
                    return Err(io::Error::other("another program keeps it locked"));
                }
                // Some file systems have no locks; there the rename alone keeps files complete.
                Err(TryLockError::Error(error)) if error.kind() == ErrorKind::Unsupported => {
                    return Ok(file);
                }
                Err(TryLockError::Error(error)) => return Err(error),
            }
        }
    }

    fn place(&self, name: &str) -> PathBuf {
        self.dir.join(format!("{name}{SUFFIX}"))
    }
}

/// Whether a reference is the path of a file.
pub fn is_path(reference: &str) -> bool {
    reference.contains(['/', '\\']) || reference.ends_with(SUFFIX)
}

/// Rejects names that a file system or a shell would misinterpret.
///
/// # Errors
/// [`BaselineError::BadName`].
pub fn check_name(name: &str) -> Result<(), BaselineError> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    let is_name = name.len() <= MAX_NAME
        && name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name.chars().all(plain)
        && !name.ends_with(SUFFIX);
    match is_name {
        true => Ok(()),
        false => Err(BaselineError::BadName {
            name: name.chars().take(MAX_NAME).collect(),
            max: MAX_NAME,
        }),
    }
}

/// Reads the baseline of a file.
///
/// # Errors
/// If it cannot be read or is not a baseline.
pub fn read(path: &Path) -> Result<PerformanceBaseline, BaselineError> {
    let failed = |source| BaselineError::Read {
        path: path.to_owned(),
        source,
    };
    // Opening a pipe would block until its other end is opened.
    if !fs::metadata(path).map_err(failed)?.is_file() {
        return Err(failed(io::Error::other("it is not a file")));
    }
    let file = File::open(path).map_err(failed)?;
    let max = MAX_FILE_MIB << 20;
    let mut bytes = Vec::new();
    file.take(max + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > max {
        return Err(BaselineError::TooLarge {
            path: path.to_owned(),
            max_mib: MAX_FILE_MIB,
        });
    }
    // Invalid UTF-8 is invalid JSON, and the JSON parser reports the place.
    let text = String::from_utf8_lossy(&bytes);
    PerformanceBaseline::from_json(&text).map_err(|source| BaselineError::Schema {
        path: path.to_owned(),
        source,
    })
}

/// Returns up to ten names, most similar to `name` first.
fn nearest(name: &str, mut names: Vec<String>) -> Vec<String> {
    names.sort_by_key(|other| edits(name, other));
    names.truncate(10);
    names
}

/// Returns the edit distance of `a` and `b` (Levenshtein 1966).
fn edits(a: &str, b: &str) -> usize {
    let b: Vec<u8> = b.bytes().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, of_a) in a.bytes().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, of_b) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(of_a != *of_b);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::super::hardware::tests::some_cpu;
    use super::super::schema::Measurement;
    use super::*;

    fn baseline(name: &str, ms: f64) -> PerformanceBaseline {
        PerformanceBaseline::of(&some_cpu(), Measurement::of_times(name, &[ms, ms]))
    }

    fn names(dir: &Path) -> Vec<String> {
        let entries = fs::read_dir(dir).unwrap();
        let mut names: Vec<String> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn saves_loads_and_extends_baselines() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::at(dir.path().join("a/b"));
        assert_eq!(store.names().unwrap(), Vec::<String>::new());
        store.save("main", baseline("matmul", 1.0)).unwrap();
        store.save("main", baseline("attention", 2.0)).unwrap();
        let path = store.save("main", baseline("matmul", 3.0)).unwrap();
        store.save("other-1.0_x", baseline("matmul", 4.0)).unwrap();
        assert_eq!(store.names().unwrap(), ["main", "other-1.0_x"]);
        let loaded = store.load("main").unwrap();
        assert_eq!(loaded.benchmarks.len(), 2);
        assert_eq!(
            loaded.get("matmul").unwrap().measured.metrics["p50_ms"],
            3.0
        );
        assert_eq!(store.load(path.to_str().unwrap()).unwrap(), loaded);
        assert_eq!(
            names(store.dir()),
            [".lock", "main.json", "other-1.0_x.json"]
        );
        fs::write(store.dir().join("broken.json"), "{").unwrap();
        let all = store.all().unwrap();
        assert_eq!(all.len(), 3);
        assert!(all[2].name == "broken" && all[2].baseline.is_err());
    }

    #[test]
    fn checks_names() {
        let long = "x".repeat(101);
        for bad in [
            "",
            ".",
            "..",
            "../x",
            "a/b",
            "a\\b",
            "/etc/passwd",
            "-x",
            ".hidden",
            "a b",
            "a\nb",
            "a\0",
            "\u{e9}",
            "a:b",
            "a.json",
            &long,
        ] {
            assert!(
                matches!(check_name(bad), Err(BaselineError::BadName { .. })),
                "{bad:?}"
            );
            let store = Store::at("/nonexistent");
            store.save(bad, PerformanceBaseline::default()).unwrap_err();
        }
        for good in ["main", "v1.2.3", "2026-01-18", "a_b", &long[1..]] {
            check_name(good).unwrap();
        }
    }

    #[test]
    fn unknown_name_error_lists_existing_ones() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::at(dir.path());
        let error = store.load("main").unwrap_err().to_string();
        assert!(
            error.contains("'main'") && error.contains("--save-baseline"),
            "{error}"
        );
        for name in ["zebra", "main-2", "nightly"] {
            store.save(name, baseline("a", 1.0)).unwrap();
        }
        let error = store.load("mian-2").unwrap_err().to_string();
        assert!(
            error.ends_with("; existing baselines: main-2, nightly, zebra"),
            "{error}"
        );
        let error = store.load("no/such.json").unwrap_err().to_string();
        assert!(error.contains("no/such.json"), "{error}");
        assert_eq!(
            (
                edits("kitten", "sitting"),
                edits("", "ab"),
                edits("ab", "ab")
            ),
            (3, 2, 0)
        );
    }

    #[test]
    fn never_replaces_unreadable_files() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::at(dir.path());
        let path = dir.path().join("main.json");
        for damaged in ["", "{", "{\"baselines\": {\"a\":", "[]", "\u{0}"] {
            fs::write(&path, damaged).unwrap();
            for error in [
                store.save("main", baseline("a", 1.0)).unwrap_err(),
                store.check("main").unwrap_err(),
            ] {
                assert!(matches!(error, BaselineError::Schema { .. }), "{error}");
            }
            assert_eq!(fs::read_to_string(&path).unwrap(), damaged);
        }
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        assert!(matches!(
            store.load("main"),
            Err(BaselineError::Read { .. })
        ));
        store.save("main", baseline("a", 1.0)).unwrap_err();

        let file = dir.path().join("huge.json");
        let huge = File::create(&file).unwrap();
        huge.set_len((MAX_FILE_MIB << 20) + 1).unwrap();
        assert!(matches!(
            store.load("huge"),
            Err(BaselineError::TooLarge { .. })
        ));
        for dir in [file.as_path(), Path::new("/proc/rocmforge")] {
            let error = Store::at(dir).save("main", baseline("a", 1.0)).unwrap_err();
            assert!(matches!(error, BaselineError::Write { .. }), "{error}");
        }
        Store::at(&file).names().unwrap_err();
    }

    #[test]
    fn checks_and_removes_baselines() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::at(dir.path().join("new"));
        store.check("main").unwrap();
        // Only the folder was made.
        assert_eq!(names(store.dir()), Vec::<String>::new());
        store.save("main", baseline("a", 1.0)).unwrap();
        store.check("main").unwrap();
        fs::write(store.dir().join("damaged.json"), "{").unwrap();
        store.remove("damaged").unwrap();
        store.remove("main").unwrap();
        assert_eq!(store.names().unwrap(), Vec::<String>::new());
        assert!(matches!(
            store.remove("main"),
            Err(BaselineError::Unknown { .. })
        ));
        for bad in ["../main", "main.json", ""] {
            assert!(matches!(
                store.remove(bad),
                Err(BaselineError::BadName { .. })
            ));
            store.check(bad).unwrap_err();
        }
    }

    #[test]
    fn concurrent_writers_lose_nothing() {
        let dir = tempfile::tempdir().unwrap();
        std::thread::scope(|scope| {
            for i in 0..4 {
                let dir = dir.path();
                scope.spawn(move || {
                    // As separate processes would do.
                    let store = Store::at(dir);
                    for j in 0..5 {
                        store
                            .save("main", baseline(&format!("{i} {j}"), 1.0))
                            .unwrap();
                        let seen = store.load("main").unwrap();
                        assert!(seen.get(&format!("{i} {j}")).is_some());
                    }
                });
            }
        });
        assert_eq!(
            Store::at(dir.path()).load("main").unwrap().benchmarks.len(),
            20
        );
        assert_eq!(names(dir.path()), [".lock", "main.json"]);
    }

    #[test]
    fn ignores_leftovers_of_a_crash() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::at(dir.path());
        store.save("main", baseline("a", 1.0)).unwrap();
        // A killed writer leaves its unfinished file and a lock file that nobody holds.
        fs::write(
            dir.path().join(".main.json.0123456789abcdef.part"),
            "{\"base",
        )
        .unwrap();
        assert_eq!(store.names().unwrap(), ["main"]);
        store.save("main", baseline("b", 1.0)).unwrap();
        assert_eq!(store.load("main").unwrap().benchmarks.len(), 2);
    }
}
