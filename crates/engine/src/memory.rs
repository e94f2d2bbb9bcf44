//! How much memory this process may still take.

use std::fs;

/// Bytes of memory that can be taken without swapping: the kernel's estimate, and what the control group
/// allows, whichever is less. `None` where the system does not say.
pub fn available_bytes() -> Option<u64> {
    match (system_available(), cgroup_available()) {
        (Some(system), Some(group)) => Some(system.min(group)),
        (system, group) => system.or(group),
    }
}

/// `MemAvailable` of /proc/meminfo.
fn system_available() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

/// What version 2 control groups leave, as containers are limited.
fn cgroup_available() -> Option<u64> {
    let read = |name: &str| {
        fs::read_to_string(format!("/sys/fs/cgroup/{name}"))
            .ok()?
            .trim()
            .parse::<u64>()
            .ok()
    };
    Some(read("memory.max")?.saturating_sub(read("memory.current")?))
}
