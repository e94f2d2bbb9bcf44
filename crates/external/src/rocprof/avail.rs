//! rocprofv3-avail, which lists the counters of this machine's GPUs (ROCm 7).
//!
//! `list --pmc` prints, for each GPU, a line `GPU`, a line `Name`, a line `PMC` and then names in columns; see
//! `source/bin/rocprofv3-avail.py` of rocprofiler-sdk.

use std::collections::BTreeSet;
use std::env;
use std::path::Path;
use std::time::Duration;

use crate::command::CommandLine;
use crate::process::{self, Limits};
use crate::tools;

const NAME: &str = "rocprofv3-avail";

/// A Python program that opens every GPU.
const TIMEOUT: Duration = Duration::from_secs(30);

/// More counters than any GPU has, and longer names.
const MAX_COUNTERS: usize = 20_000;
const MAX_NAME: usize = 128;

/// Returns the names of all counters that a GPU of this machine has; `None` if the tool is not installed or lists
/// none. It is looked for beside `rocprofv3`, then in PATH.
pub(crate) fn counters(
    rocprofv3: &Path,
    cancelled: &(dyn Fn() -> bool + Sync),
) -> Option<BTreeSet<String>> {
    let beside = rocprofv3.parent().map(Path::as_os_str);
    let program = beside
        .and_then(|dir| tools::find(NAME, dir))
        .or_else(|| tools::find(NAME, &env::var_os("PATH")?))?;
    let limits = Limits {
        cancelled,
        ..Limits::timeout(TIMEOUT)
    };
    let command = CommandLine::new(program).args(["list", "--pmc"]);
    let done = process::run(&command, &limits).ok()?;
    // A list that was cut would make counters seem to be missing.
    if !done.status.success() || done.cut {
        return None;
    }
    Some(parse(&String::from_utf8_lossy(&done.stdout))).filter(|names| !names.is_empty())
}

/// Returns the names in the output of `list --pmc`.
pub(super) fn parse(text: &str) -> BTreeSet<String> {
    let plain = |name: &&str| {
        let named = |c: char| c.is_ascii_alphanumeric() || c == '_';
        name.len() <= MAX_NAME && name.chars().all(named)
    };
    let mut found = BTreeSet::new();
    let mut is_list = false;
    for line in text.lines() {
        let title = line.split(':').next().unwrap_or_default().trim();
        if line.contains(':') {
            is_list = title == "PMC";
        } else if is_list {
            found.extend(line.split_whitespace().filter(plain).map(str::to_string));
        }
        if found.len() > MAX_COUNTERS {
            return BTreeSet::new();
        }
    }
    found
}

/// Returns the name of a counter without its instance and device, as in `TCC_HIT[0]` and `SQ_WAVES:device=1`.
pub(crate) fn base(counter: &str) -> &str {
    counter.split(['[', ':']).next().unwrap_or(counter)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_the_counters_of_all_gpus() {
        let text = "W20260112 a warning without a colon\n\
            GPU                           :\t0\nName                          :\tgfx1201\n\
            PMC                           :\n\n\
            GRBM_COUNT         GRBM_GUI_ACTIVE   \nSQ_WAVES          \n\n\n\
            GPU                           :\t1\nName                          :\tgfx1100\n\
            PMC                           :\n\nSQ_WAVES WRITE_SIZE\n\n\n";
        let found: Vec<_> = parse(text).into_iter().collect();
        assert_eq!(
            found,
            ["GRBM_COUNT", "GRBM_GUI_ACTIVE", "SQ_WAVES", "WRITE_SIZE"]
        );
        assert!(parse("GPU : 0\nNo PMC counters supported\n").is_empty());
        assert_eq!(base("TCC_HIT[0]"), "TCC_HIT");
        assert_eq!(base("SQ_WAVES:device=1"), "SQ_WAVES");
    }
}
