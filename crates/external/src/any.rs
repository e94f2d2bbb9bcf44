//! Runs every parser on arbitrary bytes; the fuzz target (`crates/fuzz`). Samples of the tools' output are in
//! `fuzz/seeds/external`; the parsers' tests read them too.

use std::collections::HashSet;

use super::amd_smi;
use super::ncu;
use super::nsys::{self, StatsFormat, StatsReport};
use super::perf;
use super::rocprof;
use super::rocprof_compute;
use super::table::{Operations, Times};

/// Fusion `bytes` to every parser. A parser may return an error; it must not panic, hang or use unbounded memory.
pub fn read_any(bytes: &[u8]) {
    let mut times = Times::default();
    for table in [StatsReport::Kernels, StatsReport::Calls] {
        for format in [StatsFormat::Csv, StatsFormat::Json] {
            let _ = nsys::read_stats(bytes, table, format, &mut times);
        }
    }
    let mut operations = Operations::default();
    let _ = nsys::read_operations(bytes, &mut operations);
    let _ = operations.rows();
    let metrics = ["dram__bytes_read.sum".into()];
    if let Ok(found) = ncu::read(bytes, "any", &metrics) {
        let _ = (
            found.times.rows(),
            found.counters.rows(),
            found.operations.rows(),
        );
    }
    let _ = perf::parse_stat(bytes);
    let _ = perf::read_report(bytes, &mut times);
    let _ = amd_smi::parse_metric(bytes);
    let mut seen = HashSet::new();
    let _ = rocprof_compute::read_times(bytes, "any", &mut times, &mut seen);
    let _ = rocprof_compute::read_packed(bytes, "any", &mut times, &mut seen);
    let _ = times.rows();
    rocprof::read_any(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Deeper and longer than the fuzzers' inputs.
    #[test]
    fn parsers_survive_deep_nesting() {
        read_any(&vec![b'['; 100_000]);
        read_any("{\"rocprofiler-sdk-tool\":".repeat(10_000).as_bytes());
    }
}
