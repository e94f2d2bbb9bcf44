//! The packages that have the drivers' libraries, by the distribution. The names are those of docs/AMD.md.

use std::fs;
use std::path::Path;

/// Returns what to install for HIP. `os_release`: the text of `/etc/os-release`; `opt`: the folder of that name.
pub(crate) fn hip_advice(os_release: &str, opt: &Path) -> String {
    // ROCm 7.14 and newer has a folder for each version.
    let entries = fs::read_dir(opt.join("rocm"))
        .into_iter()
        .flatten()
        .flatten();
    let mut cores = entries
        .filter(|entry| entry.file_name().to_string_lossy().starts_with("core-"))
        .peekable();
    if cores.peek().is_some() {
        return match cores.any(|core| has_library(&core.path().join("lib"))) {
            true => "ROCm's HIP runtime is there, but was not loaded: install what it lacks",
            false => "ROCm is there without its HIP runtime: install AMD's package amdrocm-runtime",
        }
        .into();
    }
    let own = match distribution(os_release) {
        Distribution::Debian if major_version(os_release) >= 26 => "sudo apt install libamdhip64-7",
        Distribution::Debian => "sudo apt install libamdhip64-5",
        Distribution::Fedora => "sudo dnf install rocm-hip",
        Distribution::Arch => "sudo pacman -S hip-runtime-amd",
        Distribution::Suse => "sudo zypper install rocm-hip-runtime, from AMD's repository",
        Distribution::Other => "package rocm-hip-runtime, rocm-hip, hip-runtime-amd or libamdhip64",
    };
    format!(
        "on a machine with an AMD GPU, install the HIP runtime: {own}; AMD's own packages are newer: amdrocm-runtime (ROCm \
         7.14 and newer) or rocm-hip-runtime"
    )
}

fn has_library(folder: &Path) -> bool {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.any(|name| name.starts_with("libamdhip64.so"))
}

#[derive(Debug, PartialEq, Eq)]
enum Distribution {
    Debian,
    Fedora,
    Arch,
    Suse,
    Other,
}

/// Finds the family of a distribution by `ID` and `ID_LIKE`, the closest first.
fn distribution(os_release: &str) -> Distribution {
    let ids = value(os_release, "ID").split_whitespace();
    for id in ids.chain(value(os_release, "ID_LIKE").split_whitespace()) {
        return match id {
            "debian" | "ubuntu" => Distribution::Debian,
            "fedora" => Distribution::Fedora,
            "arch" => Distribution::Arch,
            id if id == "suse" || id.starts_with("opensuse") => Distribution::Suse,
            _ => continue,
        };
    }
    Distribution::Other
}

/// 26 of `VERSION_ID="26.04"`, or 0. Ubuntu's versions are years; Debian's are lower.
fn major_version(os_release: &str) -> u32 {
    let version = value(os_release, "VERSION_ID").split('.').next();
    version
        .and_then(|version| version.parse().ok())
        .unwrap_or(0)
}

fn value<'a>(os_release: &'a str, key: &str) -> &'a str {
    let mut lines = os_release.lines().filter_map(|line| line.split_once('='));
    let value = lines.find(|(name, _)| name.trim() == key);
    value.map_or("", |(_, value)| value.trim().trim_matches(['"', '\'']))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_the_packages_of_the_distribution() {
        let nothing = Path::new("/nowhere");
        for (os_release, package) in [
            (
                "PRETTY_NAME=\"Debian GNU/Linux 13\"\nID=debian\n",
                "apt install libamdhip64-5",
            ),
            (
                "ID=linuxmint\nID_LIKE=\"ubuntu debian\"\n",
                "apt install libamdhip64-5",
            ),
            (
                "ID=ubuntu\nVERSION_ID=\"26.04\"\nID_LIKE=debian\n",
                "apt install libamdhip64-7",
            ),
            ("ID=fedora\nVERSION_ID=44\n", "dnf install rocm-hip;"),
            (
                "ID=rocky\nID_LIKE=\"rhel centos fedora\"\n",
                "dnf install rocm-hip;",
            ),
            ("ID=\"arch\"\n", "pacman -S hip-runtime-amd"),
            ("ID=cachyos\nID_LIKE=arch\n", "pacman -S hip-runtime-amd"),
            (
                "ID=\"opensuse-tumbleweed\"\nID_LIKE=\"opensuse suse\"\n",
                "zypper install",
            ),
            ("ID=nixos\n", "rocm-hip-runtime, rocm-hip, hip-runtime-amd"),
            ("", "rocm-hip-runtime, rocm-hip, hip-runtime-amd"),
        ] {
            let advice = hip_advice(os_release, nothing);
            assert!(advice.contains(package), "{os_release}: {advice}");
            assert!(advice.contains("amdrocm-runtime"), "{advice}");
        }
    }

    #[test]
    fn rocm_without_its_hip_runtime_is_noticed() {
        let opt = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(opt.path().join("rocm/core-10.0/lib")).unwrap();
        let advice = hip_advice("ID=ubuntu\n", opt.path());
        assert!(
            advice.ends_with("install AMD's package amdrocm-runtime"),
            "{advice}"
        );
        std::fs::write(opt.path().join("rocm/core-10.0/lib/libamdhip64.so.7"), "").unwrap();
        let advice = hip_advice("ID=ubuntu\n", opt.path());
        assert!(advice.contains("was not loaded"), "{advice}");
    }
}
