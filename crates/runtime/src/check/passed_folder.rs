//! A folder that stores which GPU checks passed: a small file per combination of GPU, driver, kernels and formats. Its
//! name is a hash of the combination, its content the text.

use std::fs;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};

use super::PassedChecks;
use rocmforge_gguf::{Existing, NewFile};

/// Stores passed checks as files. If a file cannot be read or written, the check runs again.
#[derive(Debug)]
pub struct PassedFolder {
    dir: PathBuf,
}

impl PassedFolder {
    /// Uses the folder `gpu-checks` below `cache`.
    pub fn below(cache: &Path) -> PassedFolder {
        PassedFolder {
            dir: cache.join("gpu-checks"),
        }
    }

    /// Returns the file of a key.
    fn path(&self, key: &str) -> PathBuf {
        let mut hash = DefaultHasher::new();
        key.hash(&mut hash);
        self.dir.join(format!("{:016x}.txt", hash.finish()))
    }
}

/// Returns the content of a key's file. It contains the key because hashes of two keys may collide.
fn text_of(key: &str) -> String {
    format!("passed: {key}\n")
}

impl PassedChecks for PassedFolder {
    fn contains(&self, key: &str) -> bool {
        let expected = text_of(key);
        let path = self.path(key);
        // Opening a pipe would wait for its other end.
        if !fs::metadata(&path).is_ok_and(|facts| facts.is_file()) {
            return false;
        }
        let Ok(file) = fs::File::open(path) else {
            return false;
        };
        let mut found = Vec::new();
        let read = file.take(expected.len() as u64 + 1).read_to_end(&mut found);
        read.is_ok() && found == expected.as_bytes()
    }

    fn insert(&self, key: &str) {
        let write = || {
            fs::create_dir_all(&self.dir)?;
            let mut file = NewFile::create(&self.path(key), Existing::Replace)?;
            file.write_all(text_of(key).as_bytes())?;
            file.commit()
        };
        // If the folder is not writable, the next start repeats the check, which takes about a second.
        let _: std::io::Result<()> = write();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "1.0; Some GPU; sm_90; 0123456789abcdef";

    fn files(passed: &PassedFolder) -> Vec<PathBuf> {
        let entries = fs::read_dir(&passed.dir).unwrap();
        entries.map(|entry| entry.unwrap().path()).collect()
    }

    #[test]
    fn stores_passed_checks() {
        let cache = tempfile::tempdir().unwrap();
        // The folders do not exist yet.
        let passed = PassedFolder::below(&cache.path().join("a/b"));
        assert!(!passed.contains(KEY));
        passed.insert(KEY);
        passed.insert("another");
        assert!(passed.contains(KEY) && passed.contains("another"));
        assert!(!passed.contains(&KEY[1..]));
        assert!(PassedFolder::below(&cache.path().join("a/b")).contains(KEY));
        assert_eq!(files(&passed).len(), 2);
    }

    #[test]
    fn ignores_and_replaces_damaged_files() {
        let cache = tempfile::tempdir().unwrap();
        let passed = PassedFolder::below(cache.path());
        passed.insert(KEY);
        let whole = text_of(KEY);
        let longer = format!("{whole}x");
        let other = whole.replace("sm_90", "sm_91");
        let damaged = ["", &whole[..9], &longer, &other, "\u{0}\u{1}"];
        for text in damaged {
            fs::write(passed.path(KEY), text).unwrap();
            assert!(!passed.contains(KEY), "{text:?}");
            passed.insert(KEY);
            assert!(passed.contains(KEY), "after {text:?}");
        }
        fs::remove_file(passed.path(KEY)).unwrap();
        fs::create_dir(passed.path(KEY)).unwrap();
        passed.insert(KEY);
        assert!(!passed.contains(KEY), "a folder is not a file");
    }

    #[test]
    fn ignores_folders_that_are_not_writable() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        fs::write(&file, "in the way").unwrap();
        // Root ignores permissions, so use paths below a file and below /proc.
        for cache in [
            file.as_path(),
            Path::new("/proc/rocmforge"),
            Path::new("/dev/null"),
        ] {
            let passed = PassedFolder::below(cache);
            passed.insert(KEY);
            assert!(!passed.contains(KEY), "{}", cache.display());
        }
        let passed = PassedFolder::below(dir.path());
        passed.insert(KEY);
        let open = fs::metadata(&passed.dir).unwrap().permissions();
        let mut closed = open.clone();
        closed.set_readonly(true);
        fs::set_permissions(&passed.dir, closed).unwrap();
        passed.insert("another");
        assert!(passed.contains(KEY), "existing files are still read");
        fs::set_permissions(&passed.dir, open).unwrap();
    }

    #[test]
    fn concurrent_writers_leave_complete_files() {
        let cache = tempfile::tempdir().unwrap();
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    // Each thread has its own instance, as separate processes would.
                    let passed = PassedFolder::below(cache.path());
                    for i in 0..20 {
                        let key = format!("{KEY} {}", i % 4);
                        passed.insert(&key);
                        assert!(passed.contains(&key));
                    }
                });
            }
        });
        let passed = PassedFolder::below(cache.path());
        assert_eq!(files(&passed).len(), 4, "no partial files are left");
    }
}
