//! The memory still available to this process, and the most that it used.

use std::fs;
use std::path::{Path, PathBuf};

/// Returns the bytes of memory available without swapping: the lowest of the kernel's estimate, what each control group
/// around this process allows, and the rest of its address space (`ulimit -v`). `None` if the system provides none.
pub fn available_bytes() -> Option<u64> {
    let read = |path: &str| fs::read_to_string(path).ok();
    let groups = read("/proc/self/cgroup").zip(read("/proc/self/mountinfo"));
    let groups = groups.and_then(|(groups, mounts)| groups_available(&groups, &mounts));
    let space = read("/proc/self/limits").zip(read("/proc/self/status"));
    let space = space.and_then(|(limits, status)| space_available(&limits, &status));
    [system_available(), groups, space]
        .into_iter()
        .flatten()
        .min()
}

/// Makes [`peak_bytes`] count from now on. Returns whether the system can.
pub fn reset_peak() -> bool {
    fs::write("/proc/self/clear_refs", "5").is_ok()
}

/// Returns the most memory that this process has used since [`reset_peak`] or its start, mapped files included; `None` if the
/// system does not report it.
pub fn peak_bytes() -> Option<u64> {
    kib_of(&fs::read_to_string("/proc/self/status").ok()?, "VmHWM:")
}

/// Reads `MemAvailable` of /proc/meminfo.
fn system_available() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    kib_of(&text, "MemAvailable:")
}

/// Returns the value of a line such as `MemAvailable:  123 kB`, in bytes.
fn kib_of(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// Returns what the soft limit of the address space leaves; `None` without a limit.
fn space_available(limits: &str, status: &str) -> Option<u64> {
    let line = limits
        .lines()
        .find_map(|line| line.strip_prefix("Max address space"))?;
    let limit: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(limit.saturating_sub(kib_of(status, "VmSize:")?))
}

/// The files of a version of control groups.
struct Files {
    limit: &'static str,
    used: &'static str,
    /// Names in `memory.stat` of the pages of files, of the group with those below it.
    of_files: [&'static str; 2],
}

const V1: Files = Files {
    limit: "memory.limit_in_bytes",
    used: "memory.usage_in_bytes",
    of_files: ["total_active_file", "total_inactive_file"],
};

const V2: Files = Files {
    limit: "memory.max",
    used: "memory.current",
    of_files: ["active_file", "inactive_file"],
};

/// Returns the least that a control group around this process leaves, of both versions: a group is bound by the limits
/// of all groups around it. `groups` is /proc/self/cgroup, `mounts` is /proc/self/mountinfo.
fn groups_available(groups: &str, mounts: &str) -> Option<u64> {
    let group_of = |is_ours: &dyn Fn(&str) -> bool| {
        groups.lines().find_map(|line| {
            let mut fields = line.splitn(3, ':').skip(1);
            let (controllers, group) = (fields.next()?, fields.next()?);
            is_ours(controllers).then_some(group)
        })
    };
    let has_memory = |list: &str| list.split(',').any(|name| name == "memory");
    let v1 = group_of(&has_memory)
        .and_then(|group| least_left(mounted(mounts, "cgroup", &has_memory, group)?, &V1));
    let v2 = group_of(&str::is_empty)
        .and_then(|group| least_left(mounted(mounts, "cgroup2", &|_| true, group)?, &V2));
    [v1, v2].into_iter().flatten().min()
}

/// The folder of a group, and how many folders around it are groups too.
struct Place {
    folder: PathBuf,
    n_around: usize,
}

/// Finds the folder of `group` below the mount of this kind whose options hold `is_ours`.
fn mounted(mounts: &str, kind: &str, is_ours: &dyn Fn(&str) -> bool, group: &str) -> Option<Place> {
    mounts.lines().find_map(|line| {
        let (mount, source) = line.split_once(" - ")?;
        let mut fields = mount.split(' ').skip(3);
        let (root, point) = (fields.next()?, fields.next()?);
        let mut fields = source.split(' ');
        if fields.next()? != kind || !is_ours(fields.nth(1)?) {
            return None;
        }
        // A container sees its own group as the mount's root, whatever the group is called outside. A group outside of
        // the mount cannot be read; the mount's root is then the nearest group around.
        let below = Path::new(group).strip_prefix(root).unwrap_or(Path::new(""));
        let is_plain = |part: std::path::Component<'_>| {
            matches!(
                part,
                std::path::Component::Normal(_) | std::path::Component::RootDir
            )
        };
        let below = match below.components().all(is_plain) {
            true => below.strip_prefix("/").unwrap_or(below),
            false => Path::new(""),
        };
        let folder = Path::new(&unescaped(point)).join(below);
        let n_around = below.components().count();
        Some(Place { folder, n_around })
    })
}

/// Replaces the escapes of mountinfo, such as `\040` for a space.
fn unescaped(text: &str) -> String {
    let escapes = [
        ("\\040", " "),
        ("\\011", "\t"),
        ("\\012", "\n"),
        ("\\134", "\\"),
    ];
    let replace = |text: String, (from, to): (&str, &str)| text.replace(from, to);
    escapes.into_iter().fold(text.to_owned(), replace)
}

/// Returns the least that a group or one around it leaves; `None` if none of them has a limit.
fn least_left(place: Place, files: &Files) -> Option<u64> {
    let groups = place.folder.ancestors().take(place.n_around + 1);
    let left = groups.filter_map(|group| {
        let read = |name: &str| fs::read_to_string(group.join(name)).ok();
        let stat = read("memory.stat").unwrap_or_default();
        left_in_group(&read(files.limit)?, &read(files.used)?, &stat, files)
    });
    left.min()
}

/// Computes `limit - used`, not counting pages of files, which the kernel reclaims when memory is needed and with which
/// a mapped model soon fills a group. `None` for a group without a limit; version 1 shows that as a number that no
/// memory reaches.
fn left_in_group(limit: &str, used: &str, stat: &str, files: &Files) -> Option<u64> {
    let limit: u64 = limit.trim().parse().ok()?;
    let used: u64 = used.trim().parse().ok()?;
    let of_files: u64 = stat
        .lines()
        .filter_map(|line| {
            let (name, bytes) = line.split_once(' ')?;
            let counts = files.of_files.contains(&name);
            counts.then(|| bytes.trim().parse::<u64>().ok())?
        })
        .fold(0, u64::saturating_add);
    Some(limit.saturating_sub(used.saturating_sub(of_files)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peaks_count_from_a_reset() {
        const N: usize = 64 << 20;
        if !reset_peak() {
            println!("skipped: the system cannot reset the peak");
            return;
        }
        let peak = || peak_bytes().unwrap();
        let before = peak();
        drop(std::hint::black_box(vec![1u8; N]));
        let most = peak();
        assert!(most >= before.max(N as u64), "{before} {most}");
        assert!(reset_peak());
        assert!(peak() < most, "{most}");
    }

    #[test]
    fn file_pages_count_as_available_in_a_group() {
        let stat = "anon 300\nfile 650\ninactive_file 500\nactive_file 100\nfile_mapped 600\n";
        for (limit, used, stat, expected) in [
            ("1000\n", "950\n", stat, Some(650)),
            ("1000", "950", "", Some(50)),
            ("1000", "100", stat, Some(1000)),
            ("1000", "2000", "", Some(0)),
            ("max\n", "950\n", stat, None),
            ("1000", "", stat, None),
        ] {
            let left = left_in_group(limit, used, stat, &V2);
            assert_eq!(left, expected, "{limit:?} {used:?} {stat:?}");
        }
    }

    /// Creates groups, each a folder with a limit and what is used, and returns what is left for the process whose
    /// /proc/self/cgroup is `group`, with `mount` as the line of mountinfo (`POINT` stands for the folder).
    fn left(groups: &[(&str, &Files, u64, u64)], group: &str, mount: &str) -> Option<u64> {
        let point = tempfile::tempdir().unwrap();
        for (name, files, limit, used) in groups {
            let folder = point.path().join(name);
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join(files.limit), format!("{limit}\n")).unwrap();
            fs::write(folder.join(files.used), format!("{used}\n")).unwrap();
        }
        groups_available(
            group,
            &mount.replace("POINT", point.path().to_str().unwrap()),
        )
    }

    #[test]
    fn the_tightest_group_around_the_process_counts() {
        const MOUNT: &str = "30 24 0:26 / POINT rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate";
        let nested = [
            ("", &V2, 9000, 0),
            ("a", &V2, 1000, 400),
            ("a/b", &V2, 5000, 100),
            ("a/b/c", &V2, 800, 10),
        ];
        for (group, expected) in [("/", 9000), ("/a", 600), ("/a/b", 600), ("/x/y", 9000)] {
            assert_eq!(
                left(&nested, &format!("0::{group}\n"), MOUNT),
                Some(expected),
                "{group}"
            );
        }
        assert_eq!(left(&nested[..3], "0::/a/b/c", MOUNT), Some(600));
        assert_eq!(left(&nested, "0::/../a", MOUNT), Some(9000));
        // In a container whose group is mounted as the root.
        let own = MOUNT.replace("0:26 /", "0:26 /docker/1");
        assert_eq!(left(&nested, "0::/docker/1/a/b", &own), Some(600));
        assert_eq!(left(&nested, "0::/docker/1", &own), Some(9000));
        assert_eq!(left(&[], "0::/a", MOUNT), None);
    }

    #[test]
    fn reads_groups_of_version_1() {
        const MOUNTS: &str = "\
            32 24 0:28 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n\
            33 24 0:29 / POINT rw - cgroup cgroup rw,memory\n\
            34 24 0:30 / /nowhere rw - cgroup2 cgroup2 rw";
        let groups = [
            ("", &V1, 9_223_372_036_854_771_712, 5000),
            ("a", &V1, 1000, 400),
        ];
        let of = "5:cpu,cpuacct:/b\n4:memory:/a/b\n0::/c\n";
        assert_eq!(left(&groups, of, MOUNTS), Some(600));
        let unlimited = left(&groups[..1], of, MOUNTS);
        assert!(unlimited.is_some_and(|bytes| bytes > 1 << 60));
        assert_eq!(left(&groups, "5:cpu:/a\n", MOUNTS), None);
    }

    #[test]
    fn the_address_space_is_a_limit() {
        let limits = |n: &str| {
            format!(
                "Max cpu time   unlimited  unlimited  seconds\nMax address space         {n}   unlimited   bytes\n"
            )
        };
        let status = "Name:\tx\nVmPeak:\t  200 kB\nVmSize:\t     100 kB\n";
        for (limit, expected) in [
            ("unlimited", None),
            ("1024000", Some(1_024_000 - 102_400)),
            ("1000", Some(0)),
        ] {
            assert_eq!(space_available(&limits(limit), status), expected, "{limit}");
        }
    }
}
