//! The files of HIP's library on this machine, in the order in which they are tried, and the one that was loaded.

use std::fs;
use std::path::{Path, PathBuf};

use rocmforge_gpu::{FoundBy, HIP_LIBRARIES, hip_libraries};
use rocmforge_hub::display;
use rocmforge_runtime::gpu::{OpenOptions, Survey};

use super::report::{Check, Status};
use super::root::Root;

/// Folders that the dynamic linker knows without configuration.
const LINKER_FOLDERS: [&str; 7] = [
    "/usr/local/lib",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/lib64",
    "/usr/lib",
    "/lib",
];

/// Lists the files, each with why it is looked for there.
pub fn found(root: &Root, options: &OpenOptions, survey: &Survey) -> Check {
    const NAME: &str = "HIP libraries";
    let mut seen: Vec<PathBuf> = Vec::new();
    let mut files: Vec<(PathBuf, FoundBy)> = Vec::new();
    // A named library is the only one that is tried; the others are shown.
    let unnamed = OpenOptions {
        hip_library: None,
        ..options.clone()
    };
    let tried = [
        hip_libraries(&root.0, options),
        hip_libraries(&root.0, &unnamed),
    ]
    .concat();
    for (file, by) in tried.into_iter().chain(of_linker(root)) {
        // A name for the linker is no file.
        let Ok(target) = fs::canonicalize(&file) else {
            continue;
        };
        if file.is_absolute() && !seen.contains(&target) {
            seen.push(target);
            files.push((file, by));
        }
    }
    if files.is_empty() {
        return Check::new(
            NAME,
            Status::Skipped,
            "no libamdhip64.so of any version was found",
        );
    }
    let loaded = { survey.libraries.iter() }.find(|(label, _)| *label == "HIP");
    let loaded = loaded.and_then(|(_, path)| loaded_file(root, path));
    let describe = |(target, (file, by)): (&PathBuf, &(PathBuf, FoundBy))| {
        let is_loaded = match loaded.as_ref() == Some(target) {
            true => "loaded, ",
            false => "",
        };
        format!("{} ({is_loaded}by {by})", display::path(file))
    };
    let list: Vec<String> = seen.iter().zip(&files).map(describe).collect();
    Check::new(NAME, Status::Ok, list.join("; "))
}

/// The file that is loaded, whose path may be a name that the linker has found.
fn loaded_file(root: &Root, library: &Path) -> Option<PathBuf> {
    if library.is_absolute() {
        return fs::canonicalize(library).ok();
    }
    let name = library.file_name()?.to_string_lossy().into_owned();
    // Addresses, rights, offset, device and inode come before the path.
    let maps = root.read("/proc/self/maps")?;
    let mut files = maps
        .lines()
        .filter_map(|line| line.find('/').map(|at| &line[at..]));
    let file = files.find(|file| file.contains("/libamdhip64.so") || file.ends_with(&name))?;
    fs::canonicalize(root.path(file)).ok()
}

/// The files in the folders of the dynamic linker.
fn of_linker(root: &Root) -> Vec<(PathBuf, FoundBy)> {
    let paths = std::env::var("LD_LIBRARY_PATH").unwrap_or_default();
    let mut folders: Vec<String> = paths.split(':').map(str::to_string).collect();
    let configured = fs::read_dir(root.path("/etc/ld.so.conf.d"));
    for entry in configured.into_iter().flatten().flatten() {
        let text = fs::read_to_string(entry.path()).unwrap_or_default();
        folders.extend(text.lines().map(|line| line.trim().to_string()));
    }
    folders.extend(LINKER_FOLDERS.map(str::to_string));
    let folders = folders.iter().filter(|folder| folder.starts_with('/'));
    let files = folders.flat_map(|folder| {
        let folder = root.path(folder);
        HIP_LIBRARIES.map(|name| (folder.join(name), FoundBy::Linker))
    });
    files.filter(|(file, _)| file.is_file()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_all_libraries_and_the_loaded_one() {
        let folder = tempfile::tempdir().unwrap();
        let root = Root(folder.path().into());
        let options = OpenOptions::default();
        let mut survey = Survey::default();
        let check = found(&root, &options, &survey);
        assert_eq!(check.status, Status::Skipped);
        for file in [
            "/opt/rocm/core-10.0/lib/libamdhip64.so.8",
            "/usr/lib/x86_64-linux-gnu/libamdhip64.so.5",
            "/srv/libs/libamdhip64.so.6",
            "/etc/ld.so.conf.d/more.conf",
        ] {
            let path = root.path(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "# more\n/srv/libs\n").unwrap();
        }
        let at = |path: &str| root.path(path).display().to_string();
        let [new, old, more] = [
            at("/opt/rocm/core-10.0/lib/libamdhip64.so.8"),
            at("/usr/lib/x86_64-linux-gnu/libamdhip64.so.5"),
            at("/srv/libs/libamdhip64.so.6"),
        ];
        survey.libraries = vec![("HIP", PathBuf::from(&new))];
        let check = found(&root, &options, &survey);
        assert_eq!(check.status, Status::Ok);
        let expected = format!(
            "{new} (loaded, by a version below /opt); {more} (by the dynamic linker); {old} (by the dynamic linker)"
        );
        assert_eq!(check.detail, expected);
        // The linker has found it by its name.
        let maps =
            "7f00-7f01 r-xp 00000000 00:1f 77   /usr/lib/x86_64-linux-gnu/libamdhip64.so.5\n";
        fs::create_dir_all(root.path("/proc/self")).unwrap();
        fs::write(root.path("/proc/self/maps"), maps).unwrap();
        survey.libraries = vec![("HIP", "libamdhip64.so.5".into())];
        let check = found(&root, &options, &survey);
        assert!(
            check
                .detail
                .contains(&format!("{old} (loaded, by the dynamic linker)")),
            "{}",
            check.detail
        );
    }
}
