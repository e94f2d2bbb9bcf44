//! NVIDIA's profilers: Nsight Systems for the times of kernels and calls, Nsight Compute for counters.
//!
//! Nsight Systems writes a report of its own form, of which `nsys stats` makes tables (CSV or JSON; the forms of 2022
//! to 2025). Nsight Compute prints CSV in two forms, both of which are read: the page `raw` with a row for each kernel
//! and a second row of units, and the page `details` with a row for each metric of a kernel.

use std::ffi::{OsStr, OsString};
use std::io::BufRead;
use std::path::Path;

use serde_json::Value;

use super::command::CommandLine;
use super::csv::{Table, number};
use super::error::ExternalError;
use super::table::{Counters, Times};

const NSYS: &str = "nsys";
const NCU: &str = "ncu";

/// The metric of Nsight Compute that says how long a kernel took.
pub const DURATION: &str = "gpu__time_duration.sum";

/// `nsys profile`, writing `report`.nsys-rep. Kernels of a graph are traced one by one: generation runs as graphs.
pub fn nsys_profile(report: &Path, app: &OsStr, args: &[OsString]) -> CommandLine {
    CommandLine::new(NSYS)
        .args([
            "profile",
            "-t",
            "cuda,nvtx",
            "--cuda-graph-trace=node",
            "--force-overwrite=true",
            "-o",
        ])
        .arg(report)
        .application(app, args)
}

/// A form of `nsys stats`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StatsFormat {
    Csv,
    Json,
}

/// A table of `nsys stats`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StatsReport {
    Kernels,
    Calls,
}

impl StatsReport {
    pub fn name(self) -> &'static str {
        match self {
            StatsReport::Kernels => "cuda_gpu_kern_sum",
            StatsReport::Calls => "cuda_api_sum",
        }
    }

    /// The column that counts.
    fn count(self) -> &'static str {
        match self {
            StatsReport::Kernels => "Instances",
            StatsReport::Calls => "Num Calls",
        }
    }
}

/// `nsys stats` of `report`.nsys-rep, printed.
pub fn nsys_stats(report: &Path, table: StatsReport, format: StatsFormat) -> CommandLine {
    let mut file = report.as_os_str().to_owned();
    file.push(".nsys-rep");
    let format = match format {
        StatsFormat::Csv => "csv",
        StatsFormat::Json => "json",
    };
    CommandLine::new(NSYS)
        .args([
            "stats",
            "--report",
            table.name(),
            "--format",
            format,
            "--force-export=true",
        ])
        .arg(file)
}

/// Reads what [`nsys_stats`] prints. A report without kernels has no table: that is no error.
pub(super) fn read_stats(
    bytes: &[u8],
    table: StatsReport,
    format: StatsFormat,
    times: &mut Times,
) -> Result<(), ExternalError> {
    match format {
        StatsFormat::Csv => stats_csv(bytes, table, times),
        StatsFormat::Json => stats_json(bytes, table, times),
    }
}

fn stats_csv(bytes: &[u8], table: StatsReport, times: &mut Times) -> Result<(), ExternalError> {
    let text = String::from_utf8_lossy(bytes);
    if text.contains("SKIPPED:") {
        return Ok(());
    }
    let is_header = |fields: &[String]| fields.iter().any(|field| field == "Total Time (ns)");
    let mut rows = Table::open(bytes, NSYS, table.name(), is_header)?;
    while let Some(row) = rows.next_row()? {
        // Talk at the end.
        let Some(name) = row.get("Name") else {
            continue;
        };
        times.add(
            name,
            row.number(table.count())? as u64,
            row.number("Total Time (ns)")?,
        );
    }
    Ok(())
}

fn stats_json(bytes: &[u8], table: StatsReport, times: &mut Times) -> Result<(), ExternalError> {
    let wrong = |reason: String| ExternalError::malformed(NSYS, table.name(), reason);
    // What stands before the array is talk; paths in it may have brackets, but no line of it begins with one.
    let text = String::from_utf8_lossy(bytes);
    let start = match text.starts_with('[') {
        true => Some(0),
        false => text.find("\n[").map(|at| at + 1),
    };
    let Some(start) = start else {
        return match text.contains("SKIPPED:") {
            true => Ok(()),
            false => Err(wrong("there is no array".to_string())),
        };
    };
    let mut values = serde_json::Deserializer::from_str(&text[start..]).into_iter::<Vec<Value>>();
    let rows = match values.next() {
        Some(Ok(rows)) => rows,
        Some(Err(error)) => return Err(wrong(error.to_string())),
        None => return Err(wrong("it is empty".to_string())),
    };
    for row in &rows {
        let field = |name: &str| {
            let value = row.get(name).and_then(Value::as_f64);
            value.ok_or_else(|| wrong(format!("a row has no number \"{name}\"")))
        };
        let name = row.get("Name").and_then(Value::as_str);
        let name = name.ok_or_else(|| wrong("a row has no \"Name\"".to_string()))?;
        times.add(
            name,
            field(table.count())? as u64,
            field("Total Time (ns)")?,
        );
    }
    Ok(())
}

/// `ncu`, writing CSV to `log`: the duration of every kernel, and `metrics`. It runs each kernel several times, so
/// that `max_launches` bounds how long it takes.
pub fn ncu(
    log: &Path,
    metrics: &[String],
    max_launches: u32,
    app: &OsStr,
    args: &[OsString],
) -> CommandLine {
    let mut all = vec![DURATION];
    all.extend(
        metrics
            .iter()
            .map(String::as_str)
            .filter(|metric| *metric != DURATION),
    );
    CommandLine::new(NCU)
        .args([
            "--csv",
            "--page",
            "raw",
            "--print-units",
            "base",
            "--log-file",
        ])
        .arg(log)
        .args(["--metrics".to_string(), all.join(",")])
        .args(["--launch-count".to_string(), max_launches.to_string()])
        .application(app, args)
}

/// Reads Nsight Compute's CSV. Metrics without a value (`n/a`) are returned: they are not available on this GPU.
pub(super) fn read_ncu(
    reader: impl BufRead,
    what: &str,
    times: &mut Times,
    counters: &mut Counters,
) -> Result<Vec<String>, ExternalError> {
    let is_header = |fields: &[String]| {
        fields.first().is_some_and(|id| id == "ID") && fields.iter().any(|f| f == "Kernel Name")
    };
    let table = Table::open(reader, NCU, what, is_header)?;
    match table.header().iter().any(|column| column == "Metric Name") {
        true => details(table, times, counters),
        false => raw(table, times, counters),
    }
}

/// One value of a kernel.
fn add(
    kernel: &str,
    (metric, unit, value): (&str, &str, &str),
    (times, counters): (&mut Times, &mut Counters),
    missing: &mut Vec<String>,
) {
    let Some(value) = number(value) else {
        if !missing.iter().any(|known| known == metric) && missing.len() < 1000 {
            missing.push(super::process::printable(metric, 100));
        }
        return;
    };
    if metric == DURATION {
        times.add(kernel, 1, value * ns_per(unit));
    } else {
        counters.add(kernel, metric, (!unit.is_empty()).then_some(unit), value);
    }
}

/// Nanoseconds in a unit of time, in the names of all versions.
fn ns_per(unit: &str) -> f64 {
    match unit {
        "s" | "second" => 1e9,
        "ms" | "msecond" => 1e6,
        "us" | "usecond" => 1e3,
        _ => 1.0,
    }
}

fn raw<R: BufRead>(
    mut table: Table<R>,
    times: &mut Times,
    counters: &mut Counters,
) -> Result<Vec<String>, ExternalError> {
    // Metrics have dots or two underscores in their names, facts of a launch do not.
    let metrics: Vec<(usize, String)> = table
        .header()
        .iter()
        .enumerate()
        .filter(|(_, name)| name.contains("__"))
        .map(|(at, name)| (at, name.clone()))
        .collect();
    let mut units: Vec<String> = Vec::new();
    let mut missing = Vec::new();
    while let Some(row) = table.next_row()? {
        if row.get("ID").is_some_and(str::is_empty) {
            units = row.fields().to_vec();
            continue;
        }
        let Some(kernel) = row.get("Kernel Name") else {
            continue;
        };
        for (at, metric) in &metrics {
            let unit = units.get(*at).map_or("", String::as_str);
            let value = row.fields().get(*at).map_or("", String::as_str);
            add(
                kernel,
                (metric, unit, value),
                (&mut *times, &mut *counters),
                &mut missing,
            );
        }
    }
    Ok(missing)
}

fn details<R: BufRead>(
    mut table: Table<R>,
    times: &mut Times,
    counters: &mut Counters,
) -> Result<Vec<String>, ExternalError> {
    let mut missing = Vec::new();
    while let Some(row) = table.next_row()? {
        // Advice has rows without a metric, and talk no row.
        let (Some(kernel), Some(metric)) = (row.get("Kernel Name"), row.get("Metric Name")) else {
            continue;
        };
        if metric.is_empty() {
            continue;
        }
        let (unit, value) = (
            row.get("Metric Unit").unwrap_or(""),
            row.text("Metric Value")?,
        );
        add(
            kernel,
            (metric, unit, value),
            (&mut *times, &mut *counters),
            &mut missing,
        );
    }
    Ok(missing)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in super::super) const STATS: &str = "\
Generating SQLite file out/rocmforge.sqlite from out/rocmforge.nsys-rep
Processing [out/rocmforge.sqlite] with [/opt/nvidia/nsight-systems/host-linux-x64/reports/cuda_gpu_kern_sum.py]...
Time (%),Total Time (ns),Instances,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Name
75.0,3000000,300,10000.0,9984.0,9600,12000,310.2,\"void matvec<1, 2>(Params)\"
25.0,1000000,100,10000.0,10000.0,10000,10000,0.0,rms_norm
";

    pub(in super::super) const RAW: &str = "\
==PROF== Connected to process 4242 (/usr/bin/rocmforge)
==PROF== Profiling \"matvec\" - 0: 0%....50%....100% - 1 pass
==PROF== Disconnected from process 4242
\"ID\",\"Process ID\",\"Process Name\",\"Host Name\",\"Kernel Name\",\"Context\",\"Stream\",\"Block Size\",\"Grid Size\",\"Device\",\"CC\",\"dram__bytes_read.sum\",\"dram__throughput.avg.pct_of_peak_sustained_elapsed\",\"gpu__time_duration.sum\",\"sm__inst_executed_pipe_tensor.sum\"
\"\",\"\",\"\",\"\",\"\",\"\",\"\",\"\",\"\",\"\",\"\",\"byte\",\"%\",\"nsecond\",\"inst\"
\"0\",\"4242\",\"rocmforge\",\"127.0.0.1\",\"void matvec<1, 2>(Params)\",\"1\",\"7\",\"(128, 1, 1)\",\"(512, 1, 1)\",\"0\",\"9.0\",\"9,437,184\",\"81.25\",\"10,000\",\"n/a\"
\"1\",\"4242\",\"rocmforge\",\"127.0.0.1\",\"void matvec<1, 2>(Params)\",\"1\",\"7\",\"(128, 1, 1)\",\"(512, 1, 1)\",\"0\",\"9.0\",\"9,437,184\",\"78.75\",\"12,000\",\"n/a\"
";

    #[test]
    fn stats_are_read_in_both_forms() {
        let json = "Processing [a.sqlite] with [x.py]...\n[\n  {\n    \"Time (%)\": 75.0,\n    \"Total Time (ns)\": 3000000,\n    \
                    \"Instances\": 300,\n    \"Name\": \"void matvec<1, 2>(Params)\"\n  },\n  {\"Time (%)\": 25.0, \
                    \"Total Time (ns)\": 1000000, \"Instances\": 100, \"Name\": \"rms_norm\"}\n]\n";
        for (text, format) in [(STATS, StatsFormat::Csv), (json, StatsFormat::Json)] {
            let mut times = Times::default();
            read_stats(text.as_bytes(), StatsReport::Kernels, format, &mut times).unwrap();
            let rows = times.rows();
            assert_eq!(rows.len(), 2);
            assert_eq!(
                (rows[0].name.as_str(), rows[0].calls),
                ("void matvec<1, 2>(Params)", 300)
            );
            assert_eq!(
                (rows[0].total_ms, rows[0].mean_us, rows[0].share),
                (3.0, 10.0, 0.75)
            );
        }
        let none = "SKIPPED: out.sqlite does not contain CUDA kernel data.\n";
        for format in [StatsFormat::Csv, StatsFormat::Json] {
            let mut times = Times::default();
            read_stats(none.as_bytes(), StatsReport::Kernels, format, &mut times).unwrap();
            assert_eq!(times.rows(), []);
            let mut times = Times::default();
            let error = read_stats(b"Killed", StatsReport::Calls, format, &mut times).unwrap_err();
            assert!(
                error
                    .to_string()
                    .contains("cuda_api_sum is not what nsys writes"),
                "{error}"
            );
        }
        let calls =
            "Time (%),Total Time (ns),Num Calls,Avg (ns),Name\n100.0,500,5,100.0,cuLaunchKernel\n";
        let mut times = Times::default();
        read_stats(
            calls.as_bytes(),
            StatsReport::Calls,
            StatsFormat::Csv,
            &mut times,
        )
        .unwrap();
        assert_eq!(times.rows()[0].calls, 5);
    }

    #[test]
    fn pages_of_ncu_say_the_same() {
        let details = "\"ID\",\"Process ID\",\"Process Name\",\"Host Name\",\"Kernel Name\",\"Context\",\"Stream\",\"Block Size\",\"Grid Size\",\"Device\",\"CC\",\"Section Name\",\"Metric Name\",\"Metric Unit\",\"Metric Value\"\n\
            \"0\",\"1\",\"r\",\"h\",\"void matvec<1, 2>(Params)\",\"1\",\"7\",\"(1, 1, 1)\",\"(1, 1, 1)\",\"0\",\"9.0\",\"Command line profiler metrics\",\"dram__bytes_read.sum\",\"byte\",\"9,437,184\"\n\
            \"0\",\"1\",\"r\",\"h\",\"void matvec<1, 2>(Params)\",\"1\",\"7\",\"(1, 1, 1)\",\"(1, 1, 1)\",\"0\",\"9.0\",\"Command line profiler metrics\",\"dram__throughput.avg.pct_of_peak_sustained_elapsed\",\"%\",\"81.25\"\n\
            \"0\",\"1\",\"r\",\"h\",\"void matvec<1, 2>(Params)\",\"1\",\"7\",\"(1, 1, 1)\",\"(1, 1, 1)\",\"0\",\"9.0\",\"Command line profiler metrics\",\"gpu__time_duration.sum\",\"us\",\"10.00\"\n\
            \"0\",\"1\",\"r\",\"h\",\"void matvec<1, 2>(Params)\",\"1\",\"7\",\"(1, 1, 1)\",\"(1, 1, 1)\",\"0\",\"9.0\",\"Command line profiler metrics\",\"sm__inst_executed_pipe_tensor.sum\",\"inst\",\"n/a\"\n\
            \"0\",\"1\",\"r\",\"h\",\"void matvec<1, 2>(Params)\",\"1\",\"7\",\"(1, 1, 1)\",\"(1, 1, 1)\",\"0\",\"9.0\",\"SpeedOfLight\",\"\",\"\",\"\"\n";
        for (text, calls, total_ms, throughput) in
            [(RAW, 2, 0.022, 80.0), (details, 1, 0.010, 81.25)]
        {
            let (mut times, mut counters) = (Times::default(), Counters::default());
            let missing = read_ncu(text.as_bytes(), "ncu.csv", &mut times, &mut counters).unwrap();
            assert_eq!(missing, ["sm__inst_executed_pipe_tensor.sum"]);
            let rows = times.rows();
            assert_eq!((rows[0].calls, rows[0].total_ms), (calls, total_ms));
            let (rows, zero) = counters.rows();
            assert_eq!(zero, [""; 0]);
            let found: Vec<_> = rows
                .iter()
                .map(|row| {
                    (
                        row.counter.as_str(),
                        row.unit.as_deref().unwrap(),
                        row.total,
                        row.mean,
                    )
                })
                .collect();
            let bytes = 9_437_184.0;
            assert_eq!(
                found,
                [
                    (
                        "dram__bytes_read.sum",
                        "byte",
                        Some(bytes * f64::from(calls as u32)),
                        bytes
                    ),
                    (
                        "dram__throughput.avg.pct_of_peak_sustained_elapsed",
                        "%",
                        None,
                        throughput
                    ),
                ]
            );
        }
        let (mut times, mut counters) = (Times::default(), Counters::default());
        let none = read_ncu(
            &b"==WARNING== No kernels were profiled.\n"[..],
            "ncu.csv",
            &mut times,
            &mut counters,
        );
        assert!(none.unwrap_err().to_string().contains("ncu.csv"));
    }

    #[test]
    fn commands_are_the_documented_ones() {
        let app = OsStr::new("rocmforge");
        let args = ["generate".into(), "-p".into(), "a b".into()];
        for (command, expected) in [
            (
                nsys_profile(Path::new("out/r"), app, &args),
                "nsys profile -t cuda,nvtx --cuda-graph-trace=node --force-overwrite=true -o out/r rocmforge generate -p 'a b'",
            ),
            (
                nsys_stats(Path::new("out/r"), StatsReport::Kernels, StatsFormat::Json),
                "nsys stats --report cuda_gpu_kern_sum --format json --force-export=true out/r.nsys-rep",
            ),
            (
                ncu(
                    Path::new("out/n.csv"),
                    &["dram__bytes_read.sum".to_string()],
                    200,
                    app,
                    &args,
                ),
                "ncu --csv --page raw --print-units base --log-file out/n.csv --metrics \
                 gpu__time_duration.sum,dram__bytes_read.sum --launch-count 200 rocmforge generate -p 'a b'",
            ),
        ] {
            assert_eq!(command.to_string(), expected);
        }
    }
}
