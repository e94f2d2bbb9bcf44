//! The common result of all tools: times and counters.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Serialize;

use rocmforge_profile::schema::Utilization;

/// The result of a tool.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct ToolReport {
    /// Kernels, or CPU functions, largest total time first.
    pub kernels: Vec<TimeRow>,
    /// Driver API calls on the host, largest total time first.
    pub calls: Vec<TimeRow>,
    /// Memory copies by direction, largest total time first.
    pub copies: Vec<TimeRow>,
    pub counters: Vec<CounterRow>,
    /// Operations of the program, if it names them (ranges of NVTX or ROCTx), largest total time first.
    pub operations: Vec<OperationRow>,
    /// Requested counters without a result. A counter that reads zero for every kernel is one of them: on several chips
    /// (gfx1201 among them) some counters are listed but never count.
    pub unavailable: Vec<String>,
    /// From utilization tools.
    pub utilization: Option<Utilization>,
    /// The devices, as the tool names them.
    pub devices: Vec<String>,
    /// Notes for the reader.
    pub notes: Vec<String>,
    /// The tool's output files.
    pub files: Vec<PathBuf>,
}

/// Times of a kernel, call or function.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TimeRow {
    pub name: String,
    /// Executions, or samples for a sampling tool.
    pub calls: u64,
    pub total_ms: f64,
    pub mean_us: f64,
    /// `None` if the tool reports only sums.
    pub min_us: Option<f64>,
    pub max_us: Option<f64>,
    /// Share of the total of the list.
    pub share: f64,
}

/// The kernels that were launched in ranges of one name.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct OperationRow {
    pub name: String,
    pub launches: u64,
    pub total_ms: f64,
    /// Share of the total of the list.
    pub share: f64,
    /// 1e9 bytes read from and written to the device's memory per second. This and the following are `None` if their
    /// counters were not asked for or do not count.
    pub gb_s: Option<f64>,
    /// Mean by time.
    pub l2_hit_percent: Option<f64>,
    /// Active warps of those that fit, mean by time.
    pub occupancy_percent: Option<f64>,
}

/// A counter of a kernel or of the whole run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CounterRow {
    /// `None` for the whole run.
    pub kernel: Option<String>,
    pub counter: String,
    /// `None` if the tool reports none.
    pub unit: Option<String>,
    pub calls: u64,
    /// Sum over all calls; `None` where a sum means nothing, as for a percentage.
    pub total: Option<f64>,
    pub mean: f64,
}

/// Most distinct names; the rest is counted together.
const MAX_NAMES: usize = 20_000;

/// Longest name kept, in characters; template names can be kilobytes long.
const MAX_NAME: usize = 512;

const REST: &str = "(others)";

/// Sums execution times by name.
#[derive(Default)]
pub(super) struct Times(BTreeMap<String, Time>);

#[derive(Default)]
struct Time {
    calls: u64,
    sum_ns: f64,
    /// Least and greatest time in ns, while every execution was added by itself.
    range_ns: Option<(f64, f64)>,
}

impl Times {
    /// Adds an execution.
    pub(super) fn add(&mut self, name: &str, ns: f64) {
        let time = entry(&mut self.0, name);
        time.range_ns = match time.range_ns {
            None if time.calls == 0 => Some((ns, ns)),
            range => range.map(|(min, max)| (min.min(ns), max.max(ns))),
        };
        time.calls = time.calls.saturating_add(1);
        time.sum_ns += ns;
    }

    /// Adds the sum of several executions.
    pub(super) fn add_sum(&mut self, name: &str, calls: u64, ns: f64) {
        let time = entry(&mut self.0, name);
        time.range_ns = None;
        time.calls = time.calls.saturating_add(calls);
        time.sum_ns += ns;
    }

    pub(super) fn rows(self) -> Vec<TimeRow> {
        let all: f64 = self.0.values().map(|time| time.sum_ns).sum();
        let mut rows: Vec<TimeRow> = self
            .0
            .into_iter()
            .map(|(name, time)| TimeRow {
                name,
                calls: time.calls,
                total_ms: time.sum_ns / 1e6,
                mean_us: time.sum_ns / 1e3 / time.calls.max(1) as f64,
                min_us: time.range_ns.map(|(min, _)| min / 1e3),
                max_us: time.range_ns.map(|(_, max)| max / 1e3),
                share: if all > 0.0 { time.sum_ns / all } else { 0.0 },
            })
            .collect();
        rows.sort_by(|a, b| b.total_ms.total_cmp(&a.total_ms));
        rows
    }
}

/// Sums counters by kernel.
#[derive(Default)]
pub(super) struct Counters(BTreeMap<String, BTreeMap<String, Count>>);

#[derive(Default)]
struct Count {
    calls: u64,
    sum: f64,
    unit: Option<String>,
}

impl Counters {
    /// Adds a value of `counter` from one execution of `kernel`.
    pub(super) fn add(&mut self, kernel: &str, counter: &str, unit: Option<&str>, value: f64) {
        let count = entry(entry(&mut self.0, kernel), counter);
        count.calls += 1;
        count.sum += value;
        if count.unit.is_none() {
            count.unit = unit.map(str::to_string);
        }
    }

    /// Returns the rows, and the counters that were zero everywhere, which have no rows.
    pub(super) fn rows(self) -> (Vec<CounterRow>, Vec<String>) {
        let mut sums: BTreeMap<&str, f64> = BTreeMap::new();
        for (counter, count) in self.0.values().flatten() {
            *sums.entry(counter).or_default() += count.sum.abs();
        }
        let zero: Vec<String> = sums
            .iter()
            .filter(|(_, sum)| **sum == 0.0)
            .map(|(counter, _)| (*counter).to_string())
            .collect();
        let mut rows = Vec::new();
        for (kernel, counts) in self.0 {
            for (counter, count) in counts {
                if zero.contains(&counter) {
                    continue;
                }
                let sums = !is_ratio(&counter, count.unit.as_deref());
                rows.push(CounterRow {
                    kernel: Some(kernel.clone()),
                    counter,
                    unit: count.unit,
                    calls: count.calls,
                    total: sums.then_some(count.sum),
                    mean: count.sum / count.calls.max(1) as f64,
                });
            }
        }
        (rows, zero)
    }
}

/// A launch within an operation.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct Launch {
    pub(super) ns: f64,
    /// Of the device's memory.
    pub(super) read_bytes: Option<f64>,
    pub(super) written_bytes: Option<f64>,
    pub(super) l2_hit_percent: Option<f64>,
    pub(super) occupancy_percent: Option<f64>,
}

/// Sums launches by operation.
#[derive(Default)]
pub(super) struct Operations(BTreeMap<String, Operation>);

#[derive(Default)]
struct Operation {
    launches: u64,
    ns: f64,
    read: Known,
    written: Known,
    l2_hit: Known,
    occupancy: Known,
}

/// A sum over the launches that have a value, and their time.
#[derive(Default)]
struct Known {
    sum: f64,
    ns: f64,
}

impl Known {
    fn add(&mut self, value: Option<f64>, ns: f64) {
        if let Some(value) = value {
            self.sum += value;
            self.ns += ns;
        }
    }

    fn per_ns(&self) -> Option<f64> {
        (self.ns > 0.0).then(|| self.sum / self.ns)
    }
}

impl Operations {
    pub(super) fn add(&mut self, name: &str, launch: Launch) {
        let Launch { ns, .. } = launch;
        let by_time = |percent: Option<f64>| percent.map(|percent| percent * ns);
        let operation = entry(&mut self.0, name);
        operation.launches += 1;
        operation.ns += ns;
        operation.read.add(launch.read_bytes, ns);
        operation.written.add(launch.written_bytes, ns);
        operation.l2_hit.add(by_time(launch.l2_hit_percent), ns);
        operation
            .occupancy
            .add(by_time(launch.occupancy_percent), ns);
    }

    /// Adds the sum of several launches.
    pub(super) fn add_sum(&mut self, name: &str, launches: u64, ns: f64) {
        let operation = entry(&mut self.0, name);
        operation.launches = operation.launches.saturating_add(launches);
        operation.ns += ns;
    }

    /// Adds what other runs counted of these operations. If there are none, those of the other runs take their place.
    pub(super) fn counted_in(mut self, runs: Operations) -> Operations {
        if self.0.is_empty() {
            return runs;
        }
        for (name, counts) in runs.0 {
            if let Some(operation) = self.0.get_mut(&name) {
                let Operation { launches, ns, .. } = *operation;
                *operation = Operation {
                    launches,
                    ns,
                    ..counts
                };
            }
        }
        self
    }

    pub(super) fn rows(self) -> Vec<OperationRow> {
        let all: f64 = self.0.values().map(|operation| operation.ns).sum();
        let mut rows: Vec<OperationRow> = self
            .0
            .into_iter()
            .map(|(name, operation)| OperationRow {
                name,
                launches: operation.launches,
                total_ms: operation.ns / 1e6,
                share: if all > 0.0 { operation.ns / all } else { 0.0 },
                // Bytes per nanosecond. Several runs may be needed to count them.
                gb_s: operation
                    .read
                    .per_ns()
                    .zip(operation.written.per_ns())
                    .map(|(read, written)| read + written),
                l2_hit_percent: operation.l2_hit.per_ns(),
                occupancy_percent: operation.occupancy.per_ns(),
            })
            .collect();
        rows.sort_by(|a, b| b.total_ms.total_cmp(&a.total_ms));
        rows
    }
}

/// Whether a unit is a ratio, so that a sum over executions means nothing.
fn is_ratio(counter: &str, unit: Option<&str>) -> bool {
    let of_nsight = [
        ".pct",
        ".ratio",
        "pct_of_peak",
        ".avg",
        ".max",
        ".min",
        "launch__",
    ];
    let of_rocm = [
        "Percent", "Busy", "Stalled", "Util", "UTIL", "Hit", "Conflict", "Mean",
    ];
    unit == Some("%")
        || of_nsight.iter().any(|part| counter.contains(part))
        || of_rocm.iter().any(|part| counter.contains(part))
}

/// Returns the entry of a name in a map of bounded size.
fn entry<'a, V: Default>(map: &'a mut BTreeMap<String, V>, name: &str) -> &'a mut V {
    let name = match name.char_indices().nth(MAX_NAME) {
        None => name.to_string(),
        Some((end, _)) => format!("{}...", &name[..end]),
    };
    match map.len() < MAX_NAMES || map.contains_key(&name) {
        true => map.entry(name).or_default(),
        false => map.entry(REST.to_string()).or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_times_and_shares() {
        let mut times = Times::default();
        for (name, ns) in [("b", 1000.0), ("a", 2000.0), ("b", 5000.0)] {
            times.add(name, ns);
        }
        let row = |name: &str, calls, total_ms, mean_us, (min, max), share| TimeRow {
            name: name.to_string(),
            calls,
            total_ms,
            mean_us,
            min_us: Some(min),
            max_us: Some(max),
            share,
        };
        let expected = [
            row("b", 2, 0.006, 3.0, (1.0, 5.0), 0.75),
            row("a", 1, 0.002, 2.0, (2.0, 2.0), 0.25),
        ];
        assert_eq!(times.rows(), expected);
        // A sum says nothing about the single times.
        let mut sums = Times::default();
        sums.add_sum("a", 2, 1000.0);
        sums.add("a", 10.0);
        let row = &sums.rows()[0];
        assert_eq!((row.calls, row.min_us, row.max_us), (3, None, None));
        assert_eq!(Times::default().rows(), []);
    }

    #[test]
    fn counters_that_never_count_are_unavailable() {
        let mut counters = Counters::default();
        for (kernel, waves, hits) in [("k", 10.0, 0.0), ("k", 30.0, 0.0), ("l", 0.0, 0.0)] {
            counters.add(kernel, "SQ_WAVES", None, waves);
            counters.add(kernel, "GL2C_HIT_sum", None, hits);
            counters.add(kernel, "MemUnitBusy", Some("%"), 50.0);
        }
        let (rows, zero) = counters.rows();
        assert_eq!(zero, ["GL2C_HIT_sum"]);
        let found: Vec<_> = rows
            .iter()
            .map(|row| {
                (
                    row.kernel.as_deref().unwrap(),
                    row.counter.as_str(),
                    row.calls,
                    row.total,
                    row.mean,
                )
            })
            .collect();
        // A zero next to other values is a count.
        let expected = [
            ("k", "MemUnitBusy", 2, None, 50.0),
            ("k", "SQ_WAVES", 2, Some(40.0), 20.0),
            ("l", "MemUnitBusy", 1, None, 50.0),
            ("l", "SQ_WAVES", 1, Some(0.0), 0.0),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn bounds_the_number_of_names() {
        let mut times = Times::default();
        for i in 0..MAX_NAMES + 100 {
            times.add(&i.to_string(), 1.0);
        }
        times.add(&"é".repeat(MAX_NAME * 10), 1e9);
        let rows = times.rows();
        assert_eq!(rows.len(), MAX_NAMES + 1);
        assert_eq!((rows[0].name.as_str(), rows[0].calls), (REST, 101));
        let mut long = Times::default();
        long.add(&"é".repeat(MAX_NAME + 1), 1.0);
        assert_eq!(long.rows()[0].name.chars().count(), MAX_NAME + 3);
    }
}
