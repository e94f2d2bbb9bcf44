//! A file that appears under its name only when it is complete: written under a temporary name in the same folder,
//! flushed to disk, then renamed. Dropped earlier, it leaves nothing behind; what a killed program leaves, the next one
//! that writes the same file removes.

use std::ffi::OsStr;
use std::fs::{self, File, TryLockError};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

use crate::regular::open_regular;

/// Longest file name of common file systems.
const MAX_NAME_BYTES: usize = 255;
/// Bytes of a name that its temporary name repeats.
const SHOWN_NAME_BYTES: usize = 200;
/// Between the file's name and the random characters of a temporary name.
const INFIX: &str = ".new-";
const SUFFIX: &str = ".part";
/// Tries to create a temporary file that no other program takes for a leftover.
const MAX_TRIES: usize = 8;

/// What to do if the file already exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Existing {
    Keep,
    Replace,
}

/// A file being written. Dropping it before [`NewFile::commit`] removes it.
#[derive(Debug)]
pub struct NewFile {
    file: NamedTempFile,
    path: PathBuf,
}

impl NewFile {
    /// Starts writing the file `path`.
    ///
    /// # Errors
    /// If `path` exists and must not be replaced, or the folder is not writable.
    pub fn create(path: &Path, existing: Existing) -> io::Result<NewFile> {
        let refused = match fs::metadata(path) {
            Ok(found) if found.is_dir() => Some((
                ErrorKind::IsADirectory,
                "it is a directory; give a file name",
            )),
            Ok(found) if !found.is_file() => Some((
                ErrorKind::InvalidInput,
                "it is a pipe or a device; give the name of a file",
            )),
            Ok(_) if existing == Existing::Keep => Some((
                ErrorKind::AlreadyExists,
                "it already exists; use another name, or allow replacing it",
            )),
            _ => None,
        };
        if let Some((kind, text)) = refused {
            return Err(io::Error::new(kind, text));
        }
        let Some(name) = path.file_name() else {
            return Err(io::Error::new(
                ErrorKind::InvalidInput,
                "the path has no file name",
            ));
        };
        if name.len() > MAX_NAME_BYTES {
            return Err(io::Error::new(
                ErrorKind::InvalidFilename,
                format!(
                    "its name has {} bytes, and file systems allow {MAX_NAME_BYTES}; use a shorter one",
                    name.len()
                ),
            ));
        }
        let prefix = prefix_of(name);
        let folder = folder_of(path);
        remove_leftovers(folder, &prefix);
        let mut builder = tempfile::Builder::new();
        builder.prefix(&prefix).suffix(SUFFIX);
        // As any new file, within the user's umask; temporary files are private otherwise.
        #[cfg(unix)]
        builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
        for _ in 0..MAX_TRIES {
            let file = builder.tempfile_in(folder)?;
            if is_ours(file.as_file())? {
                return Ok(NewFile {
                    file,
                    path: path.to_owned(),
                });
            }
        }
        Err(io::Error::new(
            ErrorKind::ResourceBusy,
            "other programs keep removing it; try again",
        ))
    }

    /// Reserves `n_bytes` on disk, so that a full disk is an error now rather than after the work. Does nothing if the
    /// file system cannot reserve space.
    ///
    /// # Errors
    /// If there is not enough space.
    pub fn reserve(&self, n_bytes: u64) -> io::Result<()> {
        #[cfg(target_os = "linux")]
        if n_bytes > 0 {
            use rustix::fs::{FallocateFlags, fallocate};
            let full = [rustix::io::Errno::NOSPC, rustix::io::Errno::DQUOT];
            return match fallocate(self.file.as_file(), FallocateFlags::KEEP_SIZE, 0, n_bytes) {
                Err(error) if full.contains(&error) => Err(error.into()),
                _ => Ok(()),
            };
        }
        Ok(())
    }

    /// Renames the file to its name once its bytes are on disk.
    ///
    /// # Errors
    /// The operating system's error; nothing is left behind in that case.
    pub fn commit(self) -> io::Result<()> {
        let NewFile { file, path } = self;
        file.as_file().sync_all()?;
        file.persist(&path)?;
        // The name is on disk once its folder is flushed, which not every file system supports.
        if let Ok(folder) = File::open(folder_of(&path)) {
            let _ = folder.sync_all();
        }
        Ok(())
    }
}

/// The folder that `path` is in.
fn folder_of(path: &Path) -> &Path {
    let folder = path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty());
    folder.unwrap_or(Path::new("."))
}

/// The beginning of the temporary names of the file `name`.
fn prefix_of(name: &OsStr) -> String {
    let name = name.to_string_lossy();
    let end = name.floor_char_boundary(SHOWN_NAME_BYTES);
    format!(".{}{INFIX}", &name[..end])
}

/// Locks a new temporary file, so that [`remove_leftovers`] of another program spares it; returns whether the file is
/// still there.
fn is_ours(file: &File) -> io::Result<bool> {
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => return Ok(false),
        // Without locks, no program can take the file for a leftover.
        Err(TryLockError::Error(_)) | Ok(()) => {}
    }
    #[cfg(unix)]
    return Ok(std::os::unix::fs::MetadataExt::nlink(&file.metadata()?) > 0);
    #[cfg(not(unix))]
    Ok(true)
}

/// Removes what killed programs left: regular files with a temporary name that no program has locked.
fn remove_leftovers(folder: &Path, prefix: &str) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let random = name
            .to_str()
            .and_then(|name| name.strip_prefix(prefix)?.strip_suffix(SUFFIX));
        let is_temporary = random.is_some_and(|random| {
            random.len() == 6 && random.bytes().all(|b| b.is_ascii_alphanumeric())
        });
        if is_temporary
            && let Ok(file) = open_regular(&entry.path(), File::options().read(true))
            && file.try_lock().is_ok()
        {
            // A leftover only takes space; failing to remove it is no reason to stop.
            let _ = fs::remove_file(entry.path());
        }
    }
}

impl Write for NewFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names in a folder.
    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap();
        entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect()
    }

    #[test]
    fn name_appears_with_the_complete_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.gguf");
        let mut file = NewFile::create(&path, Existing::Keep).unwrap();
        file.reserve(100).unwrap();
        file.write_all(b"half").unwrap();
        assert!(!path.exists());
        drop(file);
        assert!(names(folder.path()).is_empty());

        for (text, existing) in [("one", Existing::Keep), ("two", Existing::Replace)] {
            let mut file = NewFile::create(&path, existing).unwrap();
            file.reserve(1 << 16).unwrap();
            file.write_all(text.as_bytes()).unwrap();
            file.commit().unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
        }
        let error = NewFile::create(&path, Existing::Keep).unwrap_err();
        assert!(error.to_string().contains("another name"), "{error}");
        assert_eq!(names(folder.path()), ["a.gguf"]);
    }

    #[test]
    fn replaces_only_files() {
        let folder = tempfile::tempdir().unwrap();
        for path in [folder.path(), Path::new("/dev/null"), Path::new("/")] {
            NewFile::create(path, Existing::Replace).unwrap_err();
        }
        let nowhere = folder.path().join("missing/a.gguf");
        let error = NewFile::create(&nowhere, Existing::Keep).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
    }

    #[test]
    fn removes_what_killed_programs_left() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.gguf");
        // As a killed program leaves it: reserved, and locked by nobody.
        let left = NewFile::create(&path, Existing::Keep).unwrap();
        left.reserve(1 << 20).unwrap();
        let (left, left_path) = left.file.keep().unwrap();
        drop(left);
        // One that is being written, one of another file, and names that only look alike.
        let others = [
            "ab.gguf",
            "a.gguf.new-123456.part",
            ".a.gguf.new-12345.part",
        ];
        for other in others {
            fs::write(folder.path().join(other), "x").unwrap();
        }
        let in_use = NewFile::create(&path, Existing::Keep).unwrap();
        assert!(!left_path.exists());
        let second = NewFile::create(&path, Existing::Keep).unwrap();
        assert!(in_use.file.path().exists() && second.file.path().exists());
        drop((in_use, second));
        let mut left: Vec<String> = names(folder.path());
        left.sort();
        assert_eq!(
            left,
            [
                ".a.gguf.new-12345.part",
                "a.gguf.new-123456.part",
                "ab.gguf"
            ]
        );
    }

    #[cfg(unix)]
    #[test]
    fn spares_links_and_pipes_with_temporary_names() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("target");
        fs::write(&target, "kept").unwrap();
        let link = folder.path().join(".a.new-abcdef.part");
        std::os::unix::fs::symlink(&target, &link).unwrap();
        let pipe = folder.path().join(".a.new-ghijkl.part");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &pipe,
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::from(0o600),
            0,
        )
        .unwrap();
        let file = NewFile::create(&folder.path().join("a"), Existing::Keep).unwrap();
        file.commit().unwrap();
        assert_eq!(fs::read(&target).unwrap(), b"kept");
        assert!(link.is_symlink() && pipe.exists());
    }

    #[test]
    fn writes_the_longest_name_and_refuses_longer_ones_at_once() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["a".repeat(255), "é".repeat(127)] {
            let file = NewFile::create(&folder.path().join(&name), Existing::Keep).unwrap();
            file.commit().unwrap();
            assert!(folder.path().join(&name).exists());
        }
        let error = NewFile::create(&folder.path().join("a".repeat(256)), Existing::Keep);
        let message = error.unwrap_err().to_string();
        assert!(
            message.contains("256 bytes") && message.contains("255"),
            "{message}"
        );
    }

    #[test]
    fn reserve_detects_a_full_disk() {
        let folder = tempfile::tempdir().unwrap();
        let file = NewFile::create(&folder.path().join("a"), Existing::Keep).unwrap();
        // No disk has four exabytes. A file system that cannot reserve space returns no error, or reports a file too
        // large.
        if let Err(error) = file.reserve(1 << 62) {
            assert_eq!(error.kind(), ErrorKind::StorageFull, "{error}");
        }
        drop(file);
        assert!(names(folder.path()).is_empty());
    }
}
