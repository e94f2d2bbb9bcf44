//! Opens files whose names others can guess, such as locks and parts of downloads, without following a link or waiting
//! for a pipe that someone put there.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::Path;

/// Opens `path` with `options`. On systems other than Unix, links are followed.
///
/// # Errors
/// As [`OpenOptions::open`], and if `path` is a link, a pipe, a device or a folder.
pub fn open_regular(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    #[cfg(unix)]
    {
        use rustix::fs::OFlags;
        use std::os::unix::fs::OpenOptionsExt as _;
        options.custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32);
    }
    let file = options.open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "it is not a regular file; remove it",
        )),
    }
}

#[cfg(all(test, unix))]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn opens_only_regular_files() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let (target, dangling, pipe) = (at("target"), at("dangling"), at("pipe"));
        fs::write(&target, "kept").unwrap();
        std::os::unix::fs::symlink(&target, at("link")).unwrap();
        std::os::unix::fs::symlink(at("nothing"), &dangling).unwrap();
        let (kind, mode) = (rustix::fs::FileType::Fifo, rustix::fs::Mode::from(0o600));
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, kind, mode, 0).unwrap();
        let open = |path: &Path, create| {
            let mut options = File::options();
            open_regular(path, options.create(create).append(true))
        };
        for path in [at("link"), dangling, pipe, folder.path().to_owned()] {
            for create in [false, true] {
                assert!(open(&path, create).is_err(), "{}", path.display());
            }
        }
        assert!(!at("nothing").exists());
        assert!(open(&target, false).is_ok() && open(&at("new"), true).is_ok());
    }
}
