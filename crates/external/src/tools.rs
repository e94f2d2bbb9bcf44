//! Lists the known tools, finds them on this machine, and names the successors of retired ones.

use std::env;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::thread;
use std::time::Duration;

use super::command::CommandLine;
use super::error::ExternalError;
use super::process::{self, Limits};

/// A supported external tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Tool {
    Rocprofv3,
    RocprofCompute,
    AmdSmi,
    Nsys,
    Ncu,
    NvidiaSmi,
    Perf,
}

impl Tool {
    pub const ALL: [Tool; 7] = [
        Tool::Rocprofv3,
        Tool::RocprofCompute,
        Tool::AmdSmi,
        Tool::Nsys,
        Tool::Ncu,
        Tool::NvidiaSmi,
        Tool::Perf,
    ];

    /// Returns the name of its program.
    pub fn name(self) -> &'static str {
        match self {
            Tool::Rocprofv3 => "rocprofv3",
            Tool::RocprofCompute => "rocprof-compute",
            Tool::AmdSmi => "amd-smi",
            Tool::Nsys => "nsys",
            Tool::Ncu => "ncu",
            Tool::NvidiaSmi => "nvidia-smi",
            Tool::Perf => "perf",
        }
    }

    pub fn purpose(self) -> &'static str {
        match self {
            Tool::Rocprofv3 => "AMD: times of kernels and calls, hardware counters",
            Tool::RocprofCompute => {
                "AMD Instinct and some Radeon: kernel counters next to the hardware's limits"
            }
            Tool::AmdSmi => "AMD: GPU utilization, memory, power and temperature",
            Tool::Nsys => "NVIDIA: times of kernels and calls",
            Tool::Ncu => "NVIDIA: kernel counters",
            Tool::NvidiaSmi => "NVIDIA: GPU utilization, memory, power and temperature",
            Tool::Perf => "CPU: time per function, hardware counters",
        }
    }

    /// Returns how to install it.
    pub fn install(self) -> &'static str {
        match self {
            Tool::Rocprofv3 => {
                "it comes with ROCm 6.2 and later (package rocprofiler-sdk), in /opt/rocm/bin: add that to PATH"
            }
            Tool::RocprofCompute => {
                "it comes with ROCm 6.3 and later (package rocprofiler-compute), in /opt/rocm/bin: add that to PATH"
            }
            Tool::AmdSmi => {
                "it comes with ROCm (package amd-smi-lib), in /opt/rocm/bin: add that to PATH"
            }
            Tool::Nsys => {
                "install NVIDIA Nsight Systems (package nsight-systems, or with the CUDA toolkit)"
            }
            Tool::Ncu => {
                "install NVIDIA Nsight Compute (package nsight-compute, or with the CUDA toolkit)"
            }
            Tool::NvidiaSmi => "it comes with the NVIDIA driver",
            Tool::Perf => {
                "install perf (package linux-perf on Debian, linux-tools-generic on Ubuntu, perf on others)"
            }
        }
    }

    fn version_args(self) -> &'static [&'static str] {
        match self {
            Tool::AmdSmi => &["version"],
            _ => &["--version"],
        }
    }

    /// Finds its program in the folders of `path`, a list in the format of PATH.
    ///
    /// # Errors
    /// If it is in none of them.
    pub fn find(self, path: &OsStr) -> Result<PathBuf, ExternalError> {
        find(self.name(), path).ok_or_else(|| ExternalError::NotFound {
            tool: self.name().to_string(),
            install: self.install(),
        })
    }
}

impl FromStr for Tool {
    type Err = ExternalError;

    /// Parses a program's name. For a retired tool, the error names its successor.
    fn from_str(name: &str) -> Result<Tool, ExternalError> {
        if let Some(tool) = Tool::ALL.into_iter().find(|tool| tool.name() == name) {
            return Ok(tool);
        }
        if let Some(former) = FORMER.iter().find(|former| former.name == name) {
            return Err(ExternalError::Renamed {
                old: former.name,
                fate: former.fate,
                new: former.successor.name(),
                example: former.example,
            });
        }
        Err(ExternalError::UnknownTool {
            name: process::printable(name, 40),
            known: Tool::ALL.map(Tool::name).join(", "),
        })
    }
}

/// A retired tool that documentation still mentions.
pub struct Former {
    pub name: &'static str,
    pub fate: &'static str,
    pub successor: Tool,
    /// An example command of the successor.
    pub example: &'static str,
}

/// Retired tools, and some that never existed.
pub const FORMER: [Former; 7] = [
    Former {
        name: "rocprof",
        fate: "has reached its end of life",
        successor: Tool::Rocprofv3,
        example: "rocprofv3 --kernel-trace --hip-trace -d DIR -- COMMAND",
    },
    Former {
        name: "rocprofv2",
        fate: "has reached its end of life",
        successor: Tool::Rocprofv3,
        example: "rocprofv3 --kernel-trace --hip-trace -d DIR -- COMMAND",
    },
    Former {
        name: "omniperf",
        fate: "was renamed",
        successor: Tool::RocprofCompute,
        example: "rocprof-compute profile --output-directory DIR -- COMMAND, then rocprof-compute analyze -p DIR",
    },
    Former {
        name: "rocperf",
        fate: "never was a tool of ROCm",
        successor: Tool::Rocprofv3,
        example: "rocprofv3 --pmc SQ_WAVES GRBM_GUI_ACTIVE -d DIR -- COMMAND",
    },
    Former {
        name: "rocm-smi",
        fate: "is superseded",
        successor: Tool::AmdSmi,
        example: "amd-smi monitor --power-usage --temperature --gfx --mem --vram-usage --watch 1",
    },
    Former {
        name: "nvprof",
        fate: "does not support GPUs since compute capability 8.0",
        successor: Tool::Nsys,
        example: "nsys profile -t cuda,nvtx --cuda-graph-trace=node -o FILE COMMAND",
    },
    Former {
        name: "nvvp",
        fate: "does not support GPUs since compute capability 8.0",
        successor: Tool::Nsys,
        example: "nsys profile -t cuda,nvtx --cuda-graph-trace=node -o FILE COMMAND",
    },
];

/// A tool and whether it is on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Available {
    pub tool: Tool,
    /// Its path; `None` if it is not installed.
    pub path: Option<PathBuf>,
    /// Its version text, if it answered in time.
    pub version: Option<String>,
}

/// Time limit for printing the version. ROCm's tools are Python programs and take a second.
const VERSION_TIMEOUT: Duration = Duration::from_secs(5);

/// Returns all tools and whether they are in PATH. Queries their versions in parallel.
pub fn available_tools() -> Vec<Available> {
    available_in(&env::var_os("PATH").unwrap_or_default())
}

/// Like [`available_tools`], with another PATH.
pub fn available_in(path: &OsStr) -> Vec<Available> {
    let asked = Tool::ALL.map(|tool| {
        let found = find(tool.name(), path);
        let program = found.clone();
        let version = thread::spawn(move || version(tool, &program?));
        (tool, found, version)
    });
    let tools = asked.into_iter().map(|(tool, path, version)| Available {
        tool,
        path,
        version: version.join().ok().flatten(),
    });
    tools.collect()
}

/// Asks the tool at `program` for its version: major and minor number. `None` if it does not say; rocprofv3 says so
/// since ROCm 7.
pub(super) fn version_of(
    tool: Tool,
    program: &Path,
    cancelled: &(dyn Fn() -> bool + Sync),
) -> Option<(u32, u32)> {
    let limits = Limits {
        cancelled,
        ..Limits::timeout(VERSION_TIMEOUT)
    };
    numbers(&version_line(tool, program, &limits)?)
}

/// Returns the first two numbers of a line such as `version: 1.0.0`.
fn numbers(line: &str) -> Option<(u32, u32)> {
    let start = line.to_lowercase().find("version")?;
    let text = line.get(start..)?;
    let digits = text.find(|c: char| c.is_ascii_digit())?;
    let mut parts = text[digits..].split(|c: char| !c.is_ascii_digit());
    let mut next = || parts.next()?.parse().ok();
    Some((next()?, next()?))
}

fn version(tool: Tool, program: &Path) -> Option<String> {
    version_line(tool, program, &Limits::timeout(VERSION_TIMEOUT))
}

/// Returns the line of a version text that has a number.
fn version_line(tool: Tool, program: &Path, limits: &Limits<'_>) -> Option<String> {
    let command = CommandLine::new(program).args(tool.version_args().iter().copied());
    let said = process::run(&command, limits).ok()?;
    let text = String::from_utf8_lossy(&said.stdout).into_owned();
    // Nsight Compute starts with its name and copyright; rocprofv3 ends with build details.
    let number = |line: &&str| {
        line.to_lowercase().contains("version") && line.contains(|c: char| c.is_ascii_digit())
    };
    let line = text
        .lines()
        .find(number)
        .or_else(|| text.lines().find(|line| !line.trim().is_empty()))?;
    said.status
        .success()
        .then(|| process::printable(line.trim(), 100))
}

/// Finds the program `name` in the folders of `path`.
pub fn find(name: &str, path: &OsStr) -> Option<PathBuf> {
    env::split_paths(path)
        // A shell takes an empty entry as the current folder, which is never intended here.
        .filter(|dir| !dir.as_os_str().is_empty())
        .map(|dir| dir.join(name))
        .find(|file| is_program(file))
}

#[cfg(unix)]
fn is_program(file: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt as _;
    let facts = std::fs::metadata(file);
    facts.is_ok_and(|facts| facts.is_file() && facts.permissions().mode() & 0o111 != 0)
}

#[cfg(not(unix))]
fn is_program(file: &Path) -> bool {
    file.is_file()
}

#[cfg(all(test, unix))]
pub(super) mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;
    use std::process::Command;

    use super::*;

    /// Creates a shell script in `dir`. Another process writes it: a file that this process has open for writing while
    /// another thread forks cannot be executed ("text file busy").
    pub(crate) fn script(dir: &Path, name: &str, text: &str) -> PathBuf {
        let (file, source) = (dir.join(name), dir.join(format!("{name}.sh")));
        fs::write(&source, format!("#!/bin/sh\n{text}\n")).unwrap();
        let copied = Command::new("cp")
            .arg("--")
            .args([&source, &file])
            .status()
            .unwrap();
        assert!(copied.success());
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
        file
    }

    #[test]
    fn retired_tools_name_their_successors() {
        for tool in Tool::ALL {
            assert_eq!(tool.name().parse::<Tool>().unwrap(), tool);
            assert!(!tool.purpose().is_empty() && !tool.install().is_empty());
        }
        for (old, new) in [
            ("rocprof", "rocprofv3 --kernel-trace"),
            ("rocprofv2", "rocprofv3 --kernel-trace"),
            ("omniperf", "rocprof-compute profile --output-directory"),
            ("rocperf", "rocprofv3 --pmc"),
            ("rocm-smi", "amd-smi monitor"),
            ("nvprof", "nsys profile"),
        ] {
            let error = old.parse::<Tool>().unwrap_err();
            assert!(matches!(error, ExternalError::Renamed { .. }), "{error}");
            let text = error.to_string();
            assert!(text.starts_with(old) && text.contains(new), "{text}");
        }
        for former in &FORMER {
            assert!(former.example.starts_with(former.successor.name()));
        }
        let error = "gprof\u{1b}".parse::<Tool>().unwrap_err().to_string();
        assert!(
            error.contains("'gprof '") && error.contains("rocprof-compute"),
            "{error}"
        );
    }

    #[test]
    fn versions_have_two_numbers() {
        for (line, expected) in [
            ("version: 1.0.0", Some((1, 0))),
            ("rocprofiler-compute version: 3.9.0 (release)", Some((3, 9))),
            ("Version 2024.3.2.0 (build 34861637)", Some((2024, 3))),
            ("version: 1", None),
            ("version: 99999999999.1", None),
            ("1.0", None),
            ("", None),
        ] {
            assert_eq!(numbers(line), expected, "{line}");
        }
    }

    #[test]
    fn finds_tools_and_their_versions() {
        let dir = tempfile::tempdir().unwrap();
        let empty = tempfile::tempdir().unwrap();
        script(dir.path(), "perf", "echo perf version 6.1.187");
        script(
            dir.path(),
            "ncu",
            "echo 'NVIDIA (R) Nsight Compute Command Line Profiler'\n\
             echo 'Copyright (c) 2018-2024 NVIDIA Corporation'\n\
             echo 'Version 2024.3.2.0 (build 34861637) (public-release)'",
        );
        script(dir.path(), "nsys", "exit 1");
        // Not executable.
        fs::write(dir.path().join("rocprofv3"), "").unwrap();
        fs::create_dir(dir.path().join("amd-smi")).unwrap();
        let path = env::join_paths([empty.path(), Path::new("/no/such"), dir.path()]).unwrap();
        let found = available_in(&path);
        assert_eq!(found.len(), Tool::ALL.len());
        let of = |tool| {
            found
                .iter()
                .find(|available| available.tool == tool)
                .unwrap()
        };
        assert_eq!(
            of(Tool::Perf).version.as_deref(),
            Some("perf version 6.1.187")
        );
        assert_eq!(
            of(Tool::Ncu).version.as_deref(),
            Some("Version 2024.3.2.0 (build 34861637) (public-release)")
        );
        assert_eq!(of(Tool::Nsys).path, Some(dir.path().join("nsys")));
        assert_eq!(of(Tool::Nsys).version, None);
        for tool in [Tool::Rocprofv3, Tool::AmdSmi, Tool::RocprofCompute] {
            assert_eq!(of(tool).path, None);
            let error = tool.find(&path).unwrap_err().to_string();
            assert!(
                error.contains(tool.name()) && error.contains("/opt/rocm/bin"),
                "{error}"
            );
        }
    }
}
