//! `doctor --bundle FILE`: what a report of a problem needs, in one archive, without the user's name and folders.

use std::io::Write as _;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result};
use rocmforge_gguf::{Existing, NewFile};
use rocmforge_gpu::{compilers, left_out};
use rocmforge_hub::display;
use rocmforge_profile::clock;
use rocmforge_runtime::gpu;

use super::groups::{Process, user_name};
use super::report::Report;
use super::root::Root;
use super::{environment, tar};
use crate::output::{escape_json, for_terminal};
use crate::version;

/// Variables with these beginnings are part of the bundle.
const PREFIXES: [&str; 9] = [
    "ROCMFORGE_",
    "HIP_",
    "ROCR_",
    "ROCM_",
    "HSA_",
    "CUDA_",
    "GPU_",
    "AMD_",
    "NVIDIA_",
];
/// Variables of programs that ROCMFORGE_HUB_TOKEN and the like are for.
const SECRETS: [&str; 3] = ["TOKEN", "KEY", "SECRET"];
/// Words of the kernel's lines that are about GPUs.
const KERNEL_WORDS: [&str; 8] = [
    "amdgpu",
    "kfd",
    "[drm",
    "iommu",
    "nvidia",
    "nvrm",
    "out of memory",
    "rocmforge",
];
/// Most lines of the kernel's log, the last ones.
const MAX_KERNEL_LINES: usize = 1000;

/// Starts the file, so that an unwritable folder is reported before the checks.
pub fn create(path: &Path) -> Result<NewFile> {
    NewFile::create(path, Existing::Replace).with_context(|| cannot(path))
}

/// Writes the bundle. `found` are lines about the versions of drivers and devices.
pub fn write(
    mut file: NewFile,
    path: &Path,
    root: &Root,
    report: &Report,
    found: &[String],
) -> Result<()> {
    let json = serde_json::to_string_pretty(&report.summary()).context("cannot write JSON")?;
    let personal = Personal::of(root);
    let files = [
        ("doctor.txt", report.text()),
        ("doctor.json", escape_json(&json) + "\n"),
        ("versions.txt", versions(root, found)),
        (
            "environment.txt",
            variables(std::env::vars_os().filter_map(|(name, value)| {
                Some((
                    name.into_string().ok()?,
                    value.to_string_lossy().into_owned(),
                ))
            })),
        ),
        ("kernel.log", kernel_log()),
    ];
    let files = files.map(|(name, text)| {
        let text = personal.removed(&text);
        (format!("rocmforge-doctor/{name}"), text)
    });
    file.write_all(&tar::archive(&files, clock::unix_now()))
        .and_then(|()| file.commit())
        .with_context(|| cannot(path))
}

fn cannot(path: &Path) -> String {
    format!("cannot write '{}'", display::path(path))
}

/// The versions of this program, and of what it runs on.
fn versions(root: &Root, found: &[String]) -> String {
    let mut lines = vec![
        format!("rocmforge {}", version::VERSION),
        format!("kernels for {}", gpu::image_targets().join(", ")),
    ];
    lines.extend({ compilers().iter() }.map(|(version, of)| format!("{version} for {of}")));
    lines.extend(
        { left_out().iter() }.map(|(target, why)| format!("no kernels for {target}: {why}")),
    );
    for (what, file) in [
        ("kernel", "/proc/version"),
        ("amdgpu", "/sys/module/amdgpu/version"),
        ("nvidia", "/proc/driver/nvidia/version"),
        ("distribution", "/etc/os-release"),
        ("ROCm", "/opt/rocm/.info/version"),
    ] {
        let text = root
            .read(file)
            .unwrap_or_else(|| format!("{file} cannot be read"));
        lines.push(format!("{what}: {}", text.replace('\n', "; ")));
    }
    lines.extend(found.iter().cloned());
    lines.join("\n") + "\n"
}

/// The variables that decide about GPUs, sorted; of secrets only that they are set.
fn variables(all: impl Iterator<Item = (String, String)>) -> String {
    let is_relevant = |(name, _): &(String, String)| {
        let mut others = environment::VARIABLES.iter();
        PREFIXES.iter().any(|prefix| name.starts_with(prefix))
            || others.any(|(other, _)| other == name)
    };
    let mut lines: Vec<String> = all
        .filter(is_relevant)
        .map(
            |(name, value)| match SECRETS.iter().any(|word| name.contains(word)) {
                true => format!("{name} is set\n"),
                false => format!("{name}={}\n", value.escape_debug()),
            },
        )
        .collect();
    lines.sort();
    lines.concat()
}

/// The kernel's lines about GPUs, or why there are none.
fn kernel_log() -> String {
    // Debian and Ubuntu keep the first from users, but not the second from administrators.
    let commands = [
        &["dmesg"][..],
        &["journalctl", "-k", "-b", "-q", "--no-pager", "-n", "20000"],
    ];
    let mut said = Vec::new();
    for words in commands {
        match Command::new(words[0])
            .args(&words[1..])
            .env("LC_ALL", "C")
            .output()
        {
            Ok(output) if output.status.success() && !output.stdout.is_empty() => {
                return about_gpus(&String::from_utf8_lossy(&output.stdout));
            }
            Ok(output) => said.push(String::from_utf8_lossy(&output.stderr).trim().to_string()),
            Err(error) => said.push(format!("{}: {error}", words[0])),
        }
    }
    said.retain(|line| !line.is_empty());
    format!(
        "the kernel's log cannot be read ({}); add the output of: sudo dmesg | grep -i amdgpu\n",
        said.join("; ")
    )
}

fn about_gpus(log: &str) -> String {
    let is_relevant = |line: &&str| {
        let line = line.to_lowercase();
        KERNEL_WORDS.iter().any(|word| line.contains(word))
    };
    let lines: Vec<&str> = log.lines().filter(is_relevant).collect();
    let lines = &lines[lines.len().saturating_sub(MAX_KERNEL_LINES)..];
    match lines.is_empty() {
        true => "no line of the kernel's log is about GPUs\n".into(),
        false => for_terminal(&lines.join("\n")) + "\n",
    }
}

/// What identifies the user.
struct Personal {
    home: Option<String>,
    /// Names of the user and of the machine, and what replaces them.
    names: Vec<(String, &'static str)>,
}

impl Personal {
    fn of(root: &Root) -> Personal {
        let user = Process::of(root).user.and_then(|id| user_name(root, id));
        let host = root.read("/proc/sys/kernel/hostname");
        Personal::new(std::env::var("HOME").ok(), user, host)
    }

    fn new(home: Option<String>, user: Option<String>, host: Option<String>) -> Personal {
        let named = |name: Option<String>, by| name.map(|name| (name, by));
        let names = [named(user, "USER"), named(host, "HOST")]
            .into_iter()
            .flatten();
        Personal {
            home: home
                .map(|home| home.trim_end_matches('/').to_string())
                .filter(|home| !home.is_empty()),
            // Root and localhost are the same on all machines.
            names: names
                .filter(|(name, _)| !matches!(name.as_str(), "" | "root" | "localhost"))
                .collect(),
        }
    }

    /// Returns `text` with the home folder as `~`, and whole words that are names replaced.
    fn removed(&self, text: &str) -> String {
        let mut text = match &self.home {
            Some(home) => replaced(text, home, "~", |c| c.is_alphanumeric()),
            None => text.to_string(),
        };
        for (name, by) in &self.names {
            text = replaced(&text, name, by, |c| c.is_alphanumeric() || c == '_');
        }
        text
    }
}

/// Replaces `name` where no letter of a longer word stands beside it.
fn replaced(text: &str, name: &str, by: &str, is_letter: impl Fn(char) -> bool) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(name) {
        let (before, after) = (&rest[..at], &rest[at + name.len()..]);
        let last = before
            .chars()
            .next_back()
            .or_else(|| out.chars().next_back());
        let is_part = last.is_some_and(&is_letter) || after.chars().next().is_some_and(&is_letter);
        out.push_str(before);
        out.push_str(if is_part { name } else { by });
        rest = after;
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_folders_of_the_user_are_removed() {
        let of = |text: &str| Some(text.to_string());
        let personal = Personal::new(of("/home/amd/"), of("amd"), of("box"));
        for (text, expected) in [
            ("/home/amd/hip.so", "~/hip.so"),
            ("HOME=/home/amd", "HOME=~"),
            ("/home/amdis/x", "/home/amdis/x"),
            (
                "amdgpu of amd on box, /media/amd/x",
                "amdgpu of USER on HOST, /media/USER/x",
            ),
            ("amdamd amd", "amdamd USER"),
        ] {
            assert_eq!(personal.removed(text), expected);
        }
        let root = Personal::new(of("/"), of("root"), None);
        assert_eq!(root.removed("root of /root"), "root of /root");
    }

    #[test]
    fn only_relevant_variables_and_no_secrets() {
        let all = [
            ("HIP_VISIBLE_DEVICES", "1"),
            ("ROCMFORGE_HUB_TOKEN", "hf_secret"),
            ("EDITOR", "ed"),
            ("LD_LIBRARY_PATH", "/opt/rocm/lib"),
        ];
        let all = all.map(|(name, value)| (name.to_string(), value.to_string()));
        assert_eq!(
            variables(all.into_iter()),
            "HIP_VISIBLE_DEVICES=1\nLD_LIBRARY_PATH=/opt/rocm/lib\nROCMFORGE_HUB_TOKEN is set\n"
        );
    }

    #[test]
    fn only_lines_about_gpus() {
        let log = "[1] usb 1-1: new device\n[2] amdgpu 0000:03:00.0: GPU reset begin!\n[3] [drm:x] *ERROR* ring\n";
        let expected = "[2] amdgpu 0000:03:00.0: GPU reset begin!\n[3] [drm:x] *ERROR* ring\n";
        assert_eq!(about_gpus(log), expected);
        assert!(about_gpus("").starts_with("no line"));
    }
}
