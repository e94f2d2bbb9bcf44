//! The cache of compiled images: a folder of files named by a hash of everything that an image depends on, shared by
//! profiles, feature sets and concurrent builds. `ROCMFORGE_KERNEL_CACHE` names it; the default is `rocmforge-kernels`
//! in cargo's target folder.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};
use std::{env, fs, io};

/// Files that no build has used for this long are removed.
const MAX_AGE: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// Above this size, the files that were not used for the longest time are removed. The images of all targets of a
/// release take about 100 MB.
const MAX_BYTES: u64 = 4 << 30;

/// The time of the last use is accurate to this.
const USE_STEP: Duration = Duration::from_secs(60 * 60);

pub(crate) struct Cache {
    folder: PathBuf,
}

impl Cache {
    /// The cache that the environment names, or the one in the target folder. `out` is cargo's OUT_DIR.
    pub(crate) fn from_env(out: &Path) -> Result<Cache, String> {
        let named = env::var_os("ROCMFORGE_KERNEL_CACHE").filter(|name| !name.is_empty());
        let folder = named.map_or_else(|| default_folder(out), PathBuf::from);
        if folder.is_relative() {
            return Err(format!(
                "ROCMFORGE_KERNEL_CACHE must be an absolute path, and is {}",
                folder.display()
            ));
        }
        Cache::open(&folder).map_err(|error| {
            format!(
                "no folder for compiled kernels at {}: {error}",
                folder.display()
            )
        })
    }

    pub(crate) fn open(folder: &Path) -> io::Result<Cache> {
        fs::create_dir_all(folder)?;
        Ok(Cache {
            folder: folder.into(),
        })
    }

    /// Returns the bytes of a file, and notes that it was used.
    pub(crate) fn get(&self, name: &str) -> Option<Vec<u8>> {
        let path = self.folder.join(name);
        let bytes = fs::read(&path).ok()?;
        let age = fs::metadata(&path).and_then(|data| data.modified());
        if age.is_ok_and(|time| time.elapsed().is_ok_and(|age| age > USE_STEP)) {
            // A cache that cannot be written to still serves.
            let _ = fs::File::options()
                .append(true)
                .open(&path)
                .and_then(|file| file.set_modified(SystemTime::now()));
        }
        Some(bytes)
    }

    /// Adds a file. Other builds see all of it or nothing.
    pub(crate) fn put(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let part = format!("{name}.{}.{count}.part", std::process::id());
        let part = self.folder.join(part);
        fs::write(&part, bytes)?;
        fs::rename(&part, self.folder.join(name))
    }

    /// Removes files that no build used for long.
    pub(crate) fn prune(&self) {
        self.prune_to(MAX_AGE, MAX_BYTES);
    }

    pub(crate) fn prune_to(&self, max_age: Duration, max_bytes: u64) {
        let entries = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let files = entries.filter_map(|entry| {
            let data = entry.metadata().ok()?;
            Some((data.modified().ok()?, data.len(), entry.path()))
        });
        let mut files: Vec<_> = files.collect();
        files.sort_by_key(|(time, ..)| std::cmp::Reverse(*time));
        let mut total = 0;
        for (time, n_bytes, path) in files {
            total += n_bytes;
            let is_old = time.elapsed().is_ok_and(|age| age > max_age);
            if is_old || total > max_bytes {
                // Another build may have removed it.
                let _ = fs::remove_file(path);
            }
        }
    }
}

/// `rocmforge-kernels` in the target folder, which is the ancestor of OUT_DIR that cargo marks as a cache; OUT_DIR's
/// own folder where there is no such mark.
fn default_folder(out: &Path) -> PathBuf {
    let target = out
        .ancestors()
        .find(|folder| folder.join("CACHEDIR.TAG").is_file());
    target.unwrap_or(out).join("rocmforge-kernels")
}
