//! A file that appears under its name only when it is complete: written under a temporary name in the same folder,
//! flushed to disk, then renamed. Dropped earlier, it leaves nothing behind.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

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
        let refuse = |text: &str| Err(io::Error::new(ErrorKind::AlreadyExists, text));
        match fs::metadata(path) {
            Ok(found) if found.is_dir() => return refuse("it is a directory; give a file name"),
            Ok(found) if !found.is_file() => return refuse("it is a pipe or a device, not a file"),
            Ok(_) if existing == Existing::Keep => {
                return refuse("it already exists; use another name, or allow replacing it");
            }
            _ => {}
        }
        let Some(name) = path.file_name() else {
            return Err(io::Error::new(
                ErrorKind::InvalidInput,
                "the path has no file name",
            ));
        };
        let mut hidden = std::ffi::OsString::from(".");
        hidden.push(name);
        let mut builder = tempfile::Builder::new();
        builder.prefix(&hidden).suffix(".part");
        // As any new file, within the user's umask; temporary files are private otherwise.
        #[cfg(unix)]
        builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
        Ok(NewFile {
            file: builder.tempfile_in(folder_of(path))?,
            path: path.to_owned(),
        })
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
