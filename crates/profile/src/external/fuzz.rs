//! Broken inputs: cut, changed and random forms of what the tools write. The parsers may refuse; they may not panic.

use super::amd_smi;
use super::ncu;
use super::nsys::{self, StatsFormat, StatsReport};
use super::perf;
use super::rocprof;
use super::rocprof_compute;
use super::table::{Counters, Times};

/// Every parser on `bytes`, whatever they are.
fn all(bytes: &[u8]) {
    let (mut times, mut counters) = (Times::default(), Counters::default());
    for table in [StatsReport::Kernels, StatsReport::Calls] {
        for format in [StatsFormat::Csv, StatsFormat::Json] {
            let _ = nsys::read_stats(bytes, table, format, &mut times);
        }
    }
    let _ = ncu::read(
        bytes,
        "fuzz",
        &["dram__bytes_read.sum".into()],
        &mut times,
        &mut counters,
    );
    let _ = perf::parse_stat(bytes);
    let _ = perf::read_report(bytes, &mut times);
    let _ = amd_smi::parse_metric(bytes);
    let _ = rocprof_compute::read_times(bytes, "fuzz", &mut times);
    let _ = times.rows();
    let _ = counters.rows();
    rocprof::read_any(bytes);
}

/// A generator of Marsaglia's (xorshift64), for tests that are the same each time.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % n.max(1) as u64) as usize
    }
}

#[test]
fn no_input_panics() {
    let seeds: [&str; 8] = [
        nsys::tests::STATS,
        ncu::tests::RAW,
        perf::tests::STAT,
        perf::tests::REPORT,
        amd_smi::tests::METRIC,
        rocprof::fixtures::TRACE,
        rocprof::fixtures::COUNTERS,
        rocprof::fixtures::JSON,
    ];
    let pieces: [&[u8]; 12] = [
        b"\"",
        b",",
        b"\n",
        b"18446744073709551616",
        b"-1",
        b"1e999",
        b"NaN",
        b"[",
        b"{",
        b"\xff",
        b"\0",
        b"|",
    ];
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    for seed in seeds {
        let seed = seed.as_bytes();
        all(seed);
        for _ in 0..300 {
            let mut bytes = seed.to_vec();
            for _ in 0..=random.below(8) {
                if bytes.is_empty() {
                    break;
                }
                let at = random.below(bytes.len());
                match random.below(4) {
                    0 => bytes.truncate(at),
                    1 => bytes[at] = random.below(256) as u8,
                    2 => {
                        let to = at + random.below(64).min(bytes.len() - at);
                        bytes.drain(at..to);
                    }
                    _ => {
                        let piece = pieces[random.below(pieces.len())];
                        bytes.splice(at..at, piece.iter().copied());
                    }
                }
            }
            all(&bytes);
        }
    }
    for length in 0..200 {
        let bytes: Vec<u8> = (0..length).map(|_| random.below(256) as u8).collect();
        all(&bytes);
    }
    all(&vec![b'['; 100_000]);
    all("{\"rocprofiler-sdk-tool\":".repeat(10_000).as_bytes());
}
