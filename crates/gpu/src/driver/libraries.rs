//! Where HIP's library is looked for. A machine may have several: AMD's own packages in `/opt/rocm` do not tell the
//! dynamic linker about theirs, so its default may be an older one of the distribution, and comes last.

use std::cmp::Reverse;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use crate::device::OpenOptions;

/// Names of the library, the newest first.
pub const HIP_LIBRARIES: [&str; 5] = [
    "libamdhip64.so.8",
    "libamdhip64.so.7",
    "libamdhip64.so.6",
    "libamdhip64.so.5",
    "libamdhip64.so",
];

/// Why a library is looked for in a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FoundBy {
    /// The user named the file.
    Name,
    /// The variable `ROCM_PATH`.
    RocmPath,
    /// `/opt/rocm`.
    OptRocm,
    /// A versioned folder: `/opt/rocm/core-*` of ROCm 7.14 and newer, `/opt/rocm-*` of older ones.
    Version,
    /// AMD's Python wheels, in the active environment.
    Python,
    /// The dynamic linker.
    Linker,
}

impl fmt::Display for FoundBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            FoundBy::Name => "ROCMFORGE_HIP_LIBRARY",
            FoundBy::RocmPath => "ROCM_PATH",
            FoundBy::OptRocm => "/opt/rocm",
            FoundBy::Version => "a version below /opt",
            FoundBy::Python => "the Python environment",
            FoundBy::Linker => "the dynamic linker",
        })
    }
}

/// Folders that only the environment of the program names.
#[derive(Clone, Debug, Default)]
pub struct HipFolders {
    /// Where ROCm is.
    pub rocm: Option<PathBuf>,
    /// Prefixes of active Python environments, which may have HIP in AMD's wheels.
    pub python: Vec<PathBuf>,
}

/// Returns what to open, in this order: the file that the user named, and nothing else; else each file below
/// `ROCM_PATH`, `/opt/rocm`, versions below `/opt`, and the Python environment; then the names for the dynamic linker.
/// `root` is the folder that `/opt` is in.
pub fn hip_libraries(root: &Path, options: &OpenOptions) -> Vec<(PathBuf, FoundBy)> {
    if let Some(file) = &options.hip_library {
        return vec![(file.clone(), FoundBy::Name)];
    }
    let opt = root.join("opt");
    let mut folders: Vec<(PathBuf, FoundBy)> = Vec::new();
    let HipFolders { rocm, python } = &*options.hip_folders;
    folders.extend(rocm.clone().map(|path| (path, FoundBy::RocmPath)));
    folders.push((opt.join("rocm"), FoundBy::OptRocm));
    let versions = versions(&opt).into_iter();
    folders.extend(versions.map(|path| (path, FoundBy::Version)));
    let wheels = python.iter().flat_map(|prefix| wheels(prefix));
    folders.extend(wheels.map(|path| (path, FoundBy::Python)));

    let mut seen = Vec::new();
    let mut all = Vec::new();
    for (folder, found_by) in folders {
        let files =
            ["lib", "lib64"].map(|lib| HIP_LIBRARIES.map(|name| folder.join(lib).join(name)));
        for file in files.into_iter().flatten() {
            // Names and folders may be links to one file.
            let Ok(target) = fs::canonicalize(&file) else {
                continue;
            };
            if !seen.contains(&target) {
                seen.push(target);
                all.push((file, found_by));
            }
        }
    }
    all.extend(HIP_LIBRARIES.map(|name| (PathBuf::from(name), FoundBy::Linker)));
    all
}

/// Returns the versioned folders of ROCm, the newest first.
fn versions(opt: &Path) -> Vec<PathBuf> {
    let mut all: Vec<(Vec<u32>, PathBuf)> = Vec::new();
    for (folder, prefix) in [(opt.join("rocm"), "core-"), (opt.to_path_buf(), "rocm-")] {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let version = name.strip_prefix(prefix).map(numbers);
            all.extend(version.map(|version| (version, entry.path())));
        }
    }
    all.sort_by_key(|(version, path)| (Reverse(version.clone()), path.clone()));
    all.into_iter().map(|(_, path)| path).collect()
}

/// Parses a version: `7.2.1` is 7, 2, 1.
fn numbers(version: &str) -> Vec<u32> {
    let parts = version.split(|c: char| !c.is_ascii_digit());
    parts.map_while(|part| part.parse().ok()).collect()
}

/// Returns the folders that AMD's wheels (`rocm-sdk-core`) make below a prefix of Python.
fn wheels(prefix: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(prefix.join("lib")).into_iter().flatten();
    let mut all: Vec<PathBuf> = entries
        .flatten()
        .filter(|entry| entry.file_name().to_string_lossy().starts_with("python3"))
        .map(|entry| entry.path().join("site-packages/_rocm_sdk_core"))
        .filter(|path| path.is_dir())
        .collect();
    all.sort();
    all
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::sync::Arc;

    use super::*;

    struct Machine(tempfile::TempDir);

    impl Machine {
        fn new() -> Machine {
            Machine(tempfile::tempdir().unwrap())
        }

        fn path(&self, path: &str) -> PathBuf {
            self.0.path().join(path.trim_start_matches('/'))
        }

        fn file(&self, path: &str) {
            let path = self.path(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, path.to_string_lossy().as_bytes()).unwrap();
        }

        fn link(&self, to: &str, from: &str) {
            symlink(self.path(to), self.path(from)).unwrap();
        }

        /// The files found, without the names for the linker, which come last.
        fn found(&self, options: &OpenOptions) -> Vec<(String, FoundBy)> {
            let mut all = hip_libraries(self.0.path(), options);
            let linked = all.split_off(all.len() - HIP_LIBRARIES.len());
            let names = HIP_LIBRARIES.map(|name| (PathBuf::from(name), FoundBy::Linker));
            assert_eq!(linked, names);
            let shown =
                |path: &Path| format!("/{}", path.strip_prefix(self.0.path()).unwrap().display());
            all.iter().map(|(path, by)| (shown(path), *by)).collect()
        }
    }

    fn found(path: &str, by: FoundBy) -> (String, FoundBy) {
        (path.to_string(), by)
    }

    #[test]
    fn only_the_linker_without_rocm() {
        assert_eq!(Machine::new().found(&OpenOptions::default()), []);
    }

    #[test]
    fn a_named_library_is_the_only_one() {
        let machine = Machine::new();
        machine.file("/opt/rocm/lib/libamdhip64.so.7");
        let options = OpenOptions {
            hip_library: Some("/my/hip.so".into()),
            hip_folders: Arc::new(HipFolders {
                rocm: Some(machine.path("/opt/rocm")),
                python: Vec::new(),
            }),
            ..OpenOptions::default()
        };
        let all = hip_libraries(machine.0.path(), &options);
        assert_eq!(all, [("/my/hip.so".into(), FoundBy::Name)]);
    }

    /// ROCm 10 beside 9: `/opt/rocm/lib` is a link into the version that is the default.
    #[test]
    fn newest_versions_come_first() {
        let machine = Machine::new();
        machine.file("/opt/rocm/core-9.1/lib/libamdhip64.so.7");
        machine.file("/opt/rocm/core-10.0/lib/libamdhip64.so.8");
        machine.link(
            "/opt/rocm/core-10.0/lib/libamdhip64.so.8",
            "/opt/rocm/core-10.0/lib/libamdhip64.so",
        );
        machine.file("/opt/rocm-6.4.1/lib/libamdhip64.so.6");
        machine.file("/opt/rocm-7.2.0/lib/libamdhip64.so.7");
        machine.link("/opt/rocm/core-9.1/lib", "/opt/rocm/lib");
        let expected = [
            found("/opt/rocm/lib/libamdhip64.so.7", FoundBy::OptRocm),
            found("/opt/rocm/core-10.0/lib/libamdhip64.so.8", FoundBy::Version),
            found("/opt/rocm-7.2.0/lib/libamdhip64.so.7", FoundBy::Version),
            found("/opt/rocm-6.4.1/lib/libamdhip64.so.6", FoundBy::Version),
        ];
        assert_eq!(machine.found(&OpenOptions::default()), expected);
    }

    #[test]
    fn rocm_path_first_and_python_last() {
        let machine = Machine::new();
        machine.file("/home/me/rocm/lib/libamdhip64.so.8");
        machine.file("/opt/rocm/lib/libamdhip64.so.6");
        let wheel = "/venv/lib/python3.12/site-packages/_rocm_sdk_core/lib/libamdhip64.so.7";
        machine.file(wheel);
        let options = OpenOptions {
            hip_folders: Arc::new(HipFolders {
                rocm: Some(machine.path("/home/me/rocm")),
                python: vec![machine.path("/venv")],
            }),
            ..OpenOptions::default()
        };
        let expected = [
            found("/home/me/rocm/lib/libamdhip64.so.8", FoundBy::RocmPath),
            found("/opt/rocm/lib/libamdhip64.so.6", FoundBy::OptRocm),
            found(wheel, FoundBy::Python),
        ];
        assert_eq!(machine.found(&options), expected);
    }
}
