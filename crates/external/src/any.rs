//! Every parser of what the tools write, on bytes that may be anything: what the fuzzers run (`crates/fuzz`). Samples of
//! what the tools write are in `fuzz/seeds/external`; the parsers' tests read them, too.

use super::amd_smi;
use super::ncu;
use super::nsys::{self, StatsFormat, StatsReport};
use super::perf;
use super::rocprof;
use super::rocprof_compute;
use super::table::{Counters, Times};

/// Gives `bytes` to each parser. All of them may refuse; none may panic, hang, or take memory without bound.
pub fn read_any(bytes: &[u8]) {
    let (mut times, mut counters) = (Times::default(), Counters::default());
    for table in [StatsReport::Kernels, StatsReport::Calls] {
        for format in [StatsFormat::Csv, StatsFormat::Json] {
            let _ = nsys::read_stats(bytes, table, format, &mut times);
        }
    }
    let metrics = ["dram__bytes_read.sum".into()];
    let _ = ncu::read(bytes, "any", &metrics, &mut times, &mut counters);
    let _ = perf::parse_stat(bytes);
    let _ = perf::read_report(bytes, &mut times);
    let _ = amd_smi::parse_metric(bytes);
    let _ = rocprof_compute::read_times(bytes, "any", &mut times);
    let _ = times.rows();
    let _ = counters.rows();
    rocprof::read_any(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Deeper and longer than what the fuzzers try.
    #[test]
    fn nested_input_ends() {
        read_any(&vec![b'['; 100_000]);
        read_any("{\"rocprofiler-sdk-tool\":".repeat(10_000).as_bytes());
    }
}
