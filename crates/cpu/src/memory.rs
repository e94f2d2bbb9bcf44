//! The memory still available to this process.

use std::fs;

/// Returns the bytes of memory available without swapping: the lower of the kernel's estimate and what the control
/// group allows. `None` if the system provides neither.
pub fn available_bytes() -> Option<u64> {
    match (system_available(), cgroup_available()) {
        (Some(system), Some(group)) => Some(system.min(group)),
        (system, group) => system.or(group),
    }
}

/// Reads `MemAvailable` of /proc/meminfo.
fn system_available() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

/// Returns what remains in the version 2 control group, which limits containers.
fn cgroup_available() -> Option<u64> {
    let read = |name: &str| fs::read_to_string(format!("/sys/fs/cgroup/{name}")).ok();
    let stat = read("memory.stat").unwrap_or_default();
    left_in_group(&read("memory.max")?, &read("memory.current")?, &stat)
}

/// Computes `max - current`, not counting pages of files, which the kernel reclaims when memory is needed and with
/// which a mapped model soon fills a group. `None` for a group without a limit.
fn left_in_group(max: &str, current: &str, stat: &str) -> Option<u64> {
    let max: u64 = max.trim().parse().ok()?;
    let current: u64 = current.trim().parse().ok()?;
    let of_files: u64 = stat
        .lines()
        .filter_map(|line| {
            let (name, bytes) = line.split_once(' ')?;
            let counts = matches!(name, "active_file" | "inactive_file");
            counts.then(|| bytes.trim().parse::<u64>().ok())?
        })
        .fold(0, u64::saturating_add);
    Some(max.saturating_sub(current.saturating_sub(of_files)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_pages_count_as_available_in_a_group() {
        let stat = "anon 300\nfile 650\ninactive_file 500\nactive_file 100\nfile_mapped 600\n";
        for (max, current, stat, expected) in [
            ("1000\n", "950\n", stat, Some(650)),
            ("1000", "950", "", Some(50)),
            ("1000", "100", stat, Some(1000)),
            ("1000", "2000", "", Some(0)),
            ("max\n", "950\n", stat, None),
            ("1000", "", stat, None),
        ] {
            let left = left_in_group(max, current, stat);
            assert_eq!(left, expected, "{max:?} {current:?} {stat:?}");
        }
    }
}
