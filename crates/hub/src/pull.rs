//! Pulls a model: lists the repository, takes the folder's lock, checks disk space, downloads what is missing.

use std::collections::HashSet;
use std::fs::{self, File, TryLockError};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rocmforge_gguf::{Gguf, LoadMode, open_regular};

use crate::LOCK_NAME;
use crate::api::{self, Choice, RemoteFile};
use crate::client::Hub;
use crate::download::{self, Download};
use crate::error::Error;
use crate::event::{Event, Observer};
use crate::folder::{ModelsFolder, PART_SUFFIX};
use crate::reference::Reference;

/// Disk space to leave free.
const SPARE_BYTES: u64 = 16 << 20;

impl ModelsFolder {
    /// Downloads the model that `reference` names to `OWNER/REPO/` and returns the path of its first file. Complete
    /// files are not downloaded again; unfinished ones are resumed.
    ///
    /// # Errors
    /// The hub refuses or has no single match, the connection fails more often than allowed, the disk is too small,
    /// another pull holds the lock, or a file does not match its checksum.
    pub fn pull(
        &self,
        hub: &Hub,
        reference: &Reference,
        observe: &mut dyn FnMut(Event<'_>),
    ) -> Result<PathBuf, Error> {
        self.pull_choice(hub, reference, &|_| Ok(None), observe)
    }

    /// As [`ModelsFolder::pull`], where `choice` chooses if the reference leaves it open.
    ///
    /// # Errors
    /// As [`ModelsFolder::pull`].
    pub fn pull_choice(
        &self,
        hub: &Hub,
        reference: &Reference,
        choice: &Choice<'_>,
        observe: &mut dyn FnMut(Event<'_>),
    ) -> Result<PathBuf, Error> {
        let repo = &reference.repo;
        let plan = api::plan(hub, reference, choice, observe)?;
        let files: Vec<(PathBuf, &RemoteFile)> = plan
            .files
            .iter()
            .map(|file| (self.path_of(repo, &file.path), file))
            .collect();
        let dir = self.path_of(repo, "");
        for (to, _) in &files {
            let parent = to.parent().unwrap_or(&dir);
            fs::create_dir_all(parent).map_err(Error::io("create the folder", parent))?;
        }
        let _lock = Lock::take(&dir)?;
        let missing = missing(&files, observe)?;
        remove_other_parts(&files, &missing);
        check_space(&dir, &missing)?;
        for (to, file) in missing {
            observe(Event::Started {
                repo,
                path: &file.path,
                bytes: file.bytes,
            });
            let download = Download {
                hub,
                repo,
                from: api::file_path(repo, &plan.revision, &file.path),
                file,
                to,
            };
            download.run(observe)?;
        }
        let (first, _) = files.into_iter().next().expect("a model has a file");
        match Gguf::open(&first, LoadMode::Mmap) {
            Ok(_) => Ok(first),
            Err(source) => Err(Error::Unsupported {
                path: first,
                source,
            }),
        }
    }
}

/// Returns the files that are not complete on disk.
fn missing<'a>(
    files: &'a [(PathBuf, &'a RemoteFile)],
    observe: &mut Observer<'_>,
) -> Result<Vec<(&'a Path, &'a RemoteFile)>, Error> {
    let mut missing = Vec::new();
    for (to, file) in files {
        if download::is_complete(to, file)? {
            observe(Event::AlreadyComplete { path: &file.path });
        } else {
            missing.push((to.as_path(), *file));
        }
    }
    Ok(missing)
}

/// Removes parts of other versions of `files`, and of complete files.
fn remove_other_parts(files: &[(PathBuf, &RemoteFile)], missing: &[(&Path, &RemoteFile)]) {
    let kept: HashSet<PathBuf> = missing
        .iter()
        .map(|(to, file)| download::part_path(to, file))
        .collect();
    let finals: HashSet<&Path> = files.iter().map(|(to, _)| to.as_path()).collect();
    let dirs: HashSet<&Path> = finals.iter().filter_map(|to| to.parent()).collect();
    for dir in dirs {
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            let path = entry.path();
            let of = path.to_str().and_then(|name| {
                let (of, _tag) = name.strip_suffix(PART_SUFFIX)?.rsplit_once('.')?;
                Some(Path::new(of))
            });
            if of.is_some_and(|of| finals.contains(of)) && !kept.contains(&path) {
                // A leftover only takes space; failing to remove it is no reason to stop.
                let _ = fs::remove_file(path);
            }
        }
    }
}

/// Checks that the missing bytes fit on the disk.
fn check_space(dir: &Path, missing: &[(&Path, &RemoteFile)]) -> Result<(), Error> {
    let mut needed = 0u64;
    for (to, file) in missing {
        let part = fs::symlink_metadata(download::part_path(to, file));
        let part = part.ok().filter(fs::Metadata::is_file);
        let have = part.map_or(0, |facts| facts.len().min(file.bytes));
        needed = needed.saturating_add(file.bytes - have);
    }
    let disk = rustix::fs::statvfs(dir)
        .map_err(|error| Error::io("determine the free disk space of", dir)(error.into()))?;
    let free = disk.f_bavail.saturating_mul(disk.f_frsize);
    if needed > 0 && needed.saturating_add(SPARE_BYTES) > free {
        return Err(Error::NoSpace {
            needed,
            free,
            dir: dir.to_owned(),
        });
    }
    Ok(())
}

/// A lock on a repository's folder: one pull at a time writes there.
struct Lock {
    _file: File,
}

impl Lock {
    fn take(dir: &Path) -> Result<Lock, Error> {
        let path = dir.join(LOCK_NAME);
        let io = || Error::io("lock", &path);
        loop {
            let file = open_regular(&path, File::options().create(true).append(true));
            let file = file.map_err(io())?;
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => {
                    return Err(Error::Locked {
                        dir: dir.to_owned(),
                    });
                }
                Err(TryLockError::Error(error)) => return Err(io()(error)),
            }
            // The file may have been removed between opening and locking.
            let on_disk = fs::metadata(&path).ok().map(|facts| facts.ino());
            if on_disk == Some(file.metadata().map_err(io())?.ino()) {
                return Ok(Lock { _file: file });
            }
        }
    }
}
