//! Kernels by the ranges of ROCTx that a program launched them in.
//!
//! A kernel runs some time after its launch, so its own time says nothing about ranges. It belongs to the innermost range
//! that its thread was in while it launched the kernel. The time of a launch is that of the HIP call with the kernel's
//! correlation id: rocprofiler-sdk gives both the same ("Kernel trace" and "HIP trace" in `using-rocprofv3.rst`). rocpd may
//! also have the name of the range with each kernel, from `--kernel-rename`.

use std::collections::{BTreeMap, HashMap};

use crate::table::{Launch, Operations};

/// Most ranges, calls and kernels of a process.
const MAX_EVENTS: usize = 4_000_000;

/// What a process recorded.
#[derive(Default)]
pub(super) struct Ranges {
    /// By thread.
    ranges: HashMap<i64, Vec<Range>>,
    names: Names,
    /// Thread and time of HIP calls, by correlation id.
    calls: HashMap<i64, (i64, i64)>,
    /// Correlation id and time in ns.
    kernels: Vec<(i64, f64)>,
    n_events: usize,
}

/// Each name is kept once.
#[derive(Default)]
struct Names {
    all: Vec<String>,
    numbers: HashMap<String, usize>,
}

#[derive(Debug, Clone, Copy)]
struct Range {
    start: i64,
    end: i64,
    name: usize,
}

/// How many kernels there are, and of how many nothing says in which range they were launched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Assigned {
    pub(super) n_kernels: usize,
    /// The call that launched them is not in the trace.
    pub(super) n_without_call: usize,
    /// Ranges of their thread cross each other.
    pub(super) n_ambiguous: usize,
}

impl Assigned {
    /// What a reader should know of the kernels that no operation has.
    pub(super) fn notes(self) -> Vec<String> {
        let Assigned { n_kernels, .. } = self;
        let mut notes = Vec::new();
        if self.n_without_call > 0 {
            notes.push(format!(
                "{} of {n_kernels} kernels are of no operation: the trace lacks the HIP calls that launched them; run \
                 again with --trace hip,markers",
                self.n_without_call
            ));
        }
        if self.n_ambiguous > 0 {
            notes.push(format!(
                "{} of {n_kernels} kernels are of no operation: the ranges of their thread cross each other",
                self.n_ambiguous
            ));
        }
        notes
    }
}

impl Ranges {
    fn has_room(&mut self) -> bool {
        self.n_events += 1;
        self.n_events <= MAX_EVENTS
    }

    pub(super) fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Whether there was more than fits in the memory meant for it, so that nothing is assigned.
    pub(super) fn is_too_long(&self) -> bool {
        self.n_events > MAX_EVENTS
    }

    /// Adds a range of a thread.
    pub(super) fn range(&mut self, thread: i64, (start, end): (i64, i64), name: &str) {
        if self.has_room() {
            let name = self.names.number(name);
            let ranges = self.ranges.entry(thread).or_default();
            ranges.push(Range { start, end, name });
        }
    }

    /// Adds a call that begins at `start`.
    pub(super) fn call(&mut self, correlation: i64, thread: i64, start: i64) {
        if self.has_room() {
            self.calls.insert(correlation, (thread, start));
        }
    }

    pub(super) fn kernel(&mut self, correlation: i64, ns: f64) {
        if self.has_room() {
            self.kernels.push((correlation, ns));
        }
    }

    /// Adds the kernels to the operations that launched them.
    pub(super) fn assign(mut self, operations: &mut Operations) -> Assigned {
        let mut assigned = Assigned {
            n_kernels: self.kernels.len(),
            ..Assigned::default()
        };
        let mut launches: BTreeMap<i64, Vec<(i64, f64)>> = BTreeMap::new();
        for (correlation, ns) in self.kernels {
            match self.calls.get(&correlation) {
                Some((thread, time)) => launches.entry(*thread).or_default().push((*time, ns)),
                None => assigned.n_without_call += 1,
            }
        }
        for (thread, mut launches) in launches {
            let Some(ranges) = self.ranges.get_mut(&thread) else {
                continue;
            };
            // Outer ranges first.
            ranges.sort_by_key(|range| (range.start, -range.end));
            launches.sort_by_key(|(time, _)| *time);
            if cross(ranges) {
                assigned.n_ambiguous += launches.len();
                continue;
            }
            let mut open: Vec<Range> = Vec::new();
            let mut next = ranges.iter().peekable();
            for (time, ns) in launches {
                while let Some(range) = next.next_if(|range| range.start <= time) {
                    open.retain(|before| before.end >= range.start);
                    open.push(*range);
                }
                open.retain(|range| range.end > time);
                if let Some(innermost) = open.last() {
                    let launch = Launch {
                        ns,
                        ..Launch::default()
                    };
                    operations.add(&self.names.all[innermost.name], launch);
                }
            }
        }
        assigned
    }
}

impl Names {
    fn number(&mut self, name: &str) -> usize {
        if let Some(number) = self.numbers.get(name) {
            return *number;
        }
        let number = self.all.len();
        self.all.push(name.to_string());
        self.numbers.insert(name.to_string(), number);
        number
    }
}

/// Whether a range ends within another one that began before it did. Ranges that are pushed and popped never do.
fn cross(sorted: &[Range]) -> bool {
    let mut open: Vec<Range> = Vec::new();
    for range in sorted {
        while open.pop_if(|before| before.end <= range.start).is_some() {}
        if open.last().is_some_and(|before| before.end < range.end) {
            return true;
        }
        open.push(*range);
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::OperationRow;

    fn rows(operations: Operations) -> Vec<(String, u64, f64)> {
        let row = |row: OperationRow| (row.name, row.launches, row.total_ms);
        operations.rows().into_iter().map(row).collect()
    }

    #[test]
    fn kernels_belong_to_the_innermost_range_of_their_launch() {
        let mut ranges = Ranges::default();
        for (thread, times, name) in [
            (7, (100, 200), "step of 1 rows"),
            (7, (110, 120), "matmul"),
            (7, (120, 130), "norm"),
            (7, (140, 150), "matmul"),
            // Of another thread, and of the whole process.
            (8, (0, 1000), "other"),
            (0, (0, 1000), "process"),
        ] {
            ranges.range(thread, times, name);
        }
        for (correlation, thread, start) in [
            (1, 7, 50),
            (2, 7, 105),
            (3, 7, 110),
            (4, 7, 120),
            (5, 7, 145),
            (6, 7, 160),
            (7, 9, 115),
        ] {
            ranges.call(correlation, thread, start);
        }
        // Kernels run later, and in any order; two have no call.
        for (correlation, ns) in [
            (99, 5e6),
            (98, 5e6),
            (5, 1e6),
            (1, 1e6),
            (3, 2e6),
            (4, 4e6),
            (2, 8e6),
            (6, 8e6),
            (7, 1e6),
        ] {
            ranges.kernel(correlation, ns);
        }
        let mut operations = Operations::default();
        let assigned = ranges.assign(&mut operations);
        let expected = Assigned {
            n_kernels: 9,
            n_without_call: 2,
            n_ambiguous: 0,
        };
        assert_eq!(assigned, expected);
        let row = |name: &str, n, ms| (name.to_string(), n, ms);
        assert_eq!(
            rows(operations),
            [
                row("step of 1 rows", 2, 16.0),
                row("norm", 1, 4.0),
                row("matmul", 2, 3.0)
            ]
        );
    }

    #[test]
    fn ranges_that_cross_assign_nothing() {
        let mut ranges = Ranges::default();
        ranges.range(1, (0, 10), "a");
        ranges.range(1, (5, 15), "b");
        ranges.call(1, 1, 7);
        ranges.kernel(1, 1.0);
        let mut operations = Operations::default();
        let assigned = ranges.assign(&mut operations);
        assert_eq!((assigned.n_kernels, assigned.n_ambiguous), (1, 1));
        assert_eq!(operations.rows(), []);
    }
}
