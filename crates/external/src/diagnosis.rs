//! Turns the tools' error messages into advice.
//!
//! The phrases come from rocprofiler-sdk, the HSA runtime, Nsight Compute and perf.

use std::path::Path;

use super::error::ExternalError;
use super::process::{Captured, printable};
use super::tools::Tool;

/// A known phrase in a tool's output.
struct Phrase {
    tools: &'static [Tool],
    part: &'static str,
    means: Means,
}

#[derive(Clone, Copy)]
enum Means {
    NoPermission(&'static str),
    TooManyCounters(&'static str),
    /// The result is usable but degraded.
    Warning(&'static str),
}

const ROCM: &[Tool] = &[Tool::Rocprofv3, Tool::RocprofCompute, Tool::AmdSmi];

/// The device file of AMD GPUs.
const KFD: &str = "/dev/kfd";

const GROUPS: &str = "add your user to the groups render and video (sudo usermod -aG render,video $USER), then log in again; in a \
                   container pass --device=/dev/kfd --device=/dev/dri";

const PERFMON: &str = "run as root, give the tool CAP_PERFMON, or set kernel.perf_event_paranoid to 2 or less (sudo sysctl \
                       kernel.perf_event_paranoid=2)";

const NVIDIA: &str = "run as root, or allow all users: `options nvidia NVreg_RestrictProfilingToAdminUsers=0` in \
                      /etc/modprobe.d/nvidia.conf, then reload the driver; a container needs --cap-add=SYS_ADMIN";

const PERF: &str =
    "run as root, or sudo sysctl kernel.perf_event_paranoid=1; a container needs --cap-add=PERFMON";

const FEWER: &str = "request fewer at a time: one category each, or --counters in several calls";

const PHRASES: [Phrase; 12] = [
    Phrase {
        tools: ROCM,
        part: "could not be locked for profiling",
        means: Means::Warning(PERFMON),
    },
    Phrase {
        tools: ROCM,
        part: "unable to open /dev/kfd",
        means: Means::NoPermission(GROUPS),
    },
    Phrase {
        tools: ROCM,
        part: "/dev/kfd: permission denied",
        means: Means::NoPermission(GROUPS),
    },
    Phrase {
        tools: &[Tool::AmdSmi],
        part: "no permission",
        means: Means::NoPermission(GROUPS),
    },
    Phrase {
        tools: ROCM,
        part: "exceeds the capabilities of the hardware to collect",
        means: Means::TooManyCounters(FEWER),
    },
    Phrase {
        tools: ROCM,
        part: "status_error_exceeds_hw_limit",
        means: Means::TooManyCounters(FEWER),
    },
    Phrase {
        tools: &[Tool::Ncu, Tool::Nsys],
        part: "err_nvgpuctrperm",
        means: Means::NoPermission(NVIDIA),
    },
    Phrase {
        tools: &[Tool::Perf],
        part: "access to performance monitoring and observability operations is limited",
        means: Means::NoPermission(PERF),
    },
    Phrase {
        tools: &[Tool::Perf],
        part: "no permission to enable",
        means: Means::NoPermission(PERF),
    },
    Phrase {
        tools: &[Tool::Perf],
        part: "you may not have permission to collect",
        means: Means::NoPermission(PERF),
    },
    Phrase {
        tools: &[Tool::Perf],
        part: "perf_event_paranoid",
        means: Means::NoPermission(PERF),
    },
    Phrase {
        tools: &[Tool::Perf],
        part: "kernel address maps (/proc/{kallsyms,modules}) are restricted",
        means: Means::Warning(
            "kernel functions have no names (sudo sysctl kernel.kptr_restrict=0 shows them)",
        ),
    },
];

/// Returns an error if the tool failed, with advice where the message is known.
///
/// # Errors
/// In these cases.
pub(super) fn check(tool: Tool, done: &Captured) -> Result<(), ExternalError> {
    if done.status.success() {
        return Ok(());
    }
    refused(tool, &done.text())?;
    let mut said = done.last_words();
    if ROCM.contains(&tool) && !Path::new(KFD).exists() {
        said.push_str("; there is no /dev/kfd: is the amdgpu driver loaded?");
    }
    Err(ExternalError::Failed {
        program: tool.name().to_string(),
        status: done.status.to_string(),
        said,
    })
}

/// Returns an error if `text` says that the tool lacked a permission.
///
/// # Errors
/// In these cases.
pub(super) fn refused(tool: Tool, text: &str) -> Result<(), ExternalError> {
    for (phrase, said) in matches(tool, text) {
        let tool = tool.name().to_string();
        match phrase.means {
            Means::NoPermission(fix) => {
                let fix = fix.to_string();
                return Err(ExternalError::NoPermission { tool, said, fix });
            }
            Means::TooManyCounters(fix) => {
                return Err(ExternalError::TooManyCounters { tool, said, fix });
            }
            Means::Warning(_) => {}
        }
    }
    Ok(())
}

/// Returns the warnings of a tool that succeeded.
pub(super) fn warnings(tool: Tool, done: &Captured) -> Vec<String> {
    let text = done.text();
    let mut notes = Vec::new();
    for (phrase, line) in matches(tool, &text) {
        if let Means::Warning(fix) = phrase.means {
            notes.push(format!("{} said \"{line}\"; {fix}", tool.name()));
        }
    }
    notes
}

/// Returns the known phrases of a tool in `text`, each with its first line.
fn matches(tool: Tool, text: &str) -> Vec<(&'static Phrase, String)> {
    let mut found = Vec::new();
    for phrase in PHRASES.iter().filter(|phrase| phrase.tools.contains(&tool)) {
        let line = text
            .lines()
            .find(|line| line.to_lowercase().contains(phrase.part));
        if let Some(line) = line {
            found.push((phrase, printable(line.trim(), 300)));
        }
    }
    found
}

#[cfg(all(test, unix))]
mod tests {
    use std::process::Command;

    use super::*;

    fn captured(code: u8, stderr: &str) -> Captured {
        let status = Command::new("sh")
            .args(["-c", &format!("exit {code}")])
            .status();
        Captured {
            status: status.unwrap(),
            stdout: Vec::new(),
            cut: false,
            stderr: stderr.as_bytes().to_vec(),
        }
    }

    #[test]
    fn permission_errors_say_what_to_do() {
        for (tool, said, fix) in [
            (
                Tool::Perf,
                "Error:\nAccess to performance monitoring and observability operations is limited.\n\
                 Consider adjusting /proc/sys/kernel/perf_event_paranoid setting to open access",
                "kernel.perf_event_paranoid=1",
            ),
            (
                Tool::Ncu,
                "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance \
                 Counters on the target device 0.",
                "NVreg_RestrictProfilingToAdminUsers=0",
            ),
            (
                Tool::Rocprofv3,
                "ROCk module is loaded\nUnable to open /dev/kfd read-write: Permission denied",
                "groups render and video",
            ),
            (
                Tool::Rocprofv3,
                "F20251121 rocprofv3 Request exceeds the capabilities of the hardware to collect",
                "fewer at a time",
            ),
            (
                Tool::AmdSmi,
                "AMDSMI_STATUS_NO_PERM: No permission",
                "groups render and video",
            ),
        ] {
            let error = check(tool, &captured(1, said)).unwrap_err().to_string();
            assert!(
                error.starts_with(tool.name()) && error.contains(fix),
                "{error}"
            );
        }
        // A phrase of another tool came from the profiled program.
        let error = check(Tool::Nsys, &captured(1, "perf_event_paranoid")).unwrap_err();
        assert!(matches!(error, ExternalError::Failed { .. }), "{error}");
        assert!(check(Tool::Perf, &captured(0, "perf_event_paranoid")).is_ok());
    }

    #[test]
    fn degraded_results_get_a_note() {
        let said = "W20260112 ioctl.cpp:68] Device 5998 could not be locked for profiling due to lack of permissions \
                    (capability SYS_PERFMON). PMC Counters may be inaccurate\nW20260112 Device 5999 could not be \
                    locked for profiling due to lack of permissions";
        let done = captured(0, said);
        assert!(check(Tool::Rocprofv3, &done).is_ok());
        let notes = warnings(Tool::Rocprofv3, &done);
        assert_eq!(notes.len(), 1);
        assert!(
            notes[0].contains("Device 5998") && notes[0].contains("CAP_PERFMON"),
            "{notes:?}"
        );
    }
}
