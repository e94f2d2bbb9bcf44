//! Nsight Compute: hardware counters of NVIDIA kernels.
//!
//! Both of its CSV formats are read (2022 to 2025): the page `raw` with a row per kernel and a second row of units, and
//! the page `details` with a row per metric of a kernel.

use std::ffi::{OsStr, OsString};
use std::io::BufRead;
use std::path::Path;

use super::command::CommandLine;
use super::csv::{Table, number};
use super::error::ExternalError;
use super::table::{Counters, Times};

const NCU: &str = "ncu";

/// The metric of a kernel's duration.
pub const DURATION: &str = "gpu__time_duration.sum";

/// Returns the `ncu` command that writes the durations and `metrics` of the kernels to `log` as CSV. ncu runs each
/// kernel several times; `max_launches` bounds the total time.
pub fn command(
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

/// Reads the durations and the metrics `asked` for from ncu's CSV, which also has hundreds of facts about device and
/// launches. Returns the metrics without a value (`n/a`), which this GPU does not support.
pub(super) fn read(
    reader: impl BufRead,
    what: &str,
    asked: &[String],
    times: &mut Times,
    counters: &mut Counters,
) -> Result<Vec<String>, ExternalError> {
    let is_header = |fields: &[String]| {
        fields.first().is_some_and(|id| id == "ID") && fields.iter().any(|f| f == "Kernel Name")
    };
    let table = Table::open(reader, NCU, what, is_header)?;
    match table.header().iter().any(|column| column == "Metric Name") {
        true => details(table, asked, times, counters),
        false => raw(table, asked, times, counters),
    }
}

/// Whether a metric was asked for, possibly by the base name of its sum, average and extremes.
fn is_wanted(metric: &str, asked: &[String]) -> bool {
    let is_of = |name: &String| {
        let rest = metric.strip_prefix(name.as_str());
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    };
    metric == DURATION || asked.iter().any(is_of)
}

/// A value of a kernel.
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
        times.add(kernel, value * ns_per(unit));
    } else {
        counters.add(kernel, metric, (!unit.is_empty()).then_some(unit), value);
    }
}

/// Nanoseconds per unit of time, under the names of all versions.
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
    asked: &[String],
    times: &mut Times,
    counters: &mut Counters,
) -> Result<Vec<String>, ExternalError> {
    let metrics: Vec<(usize, String)> = table
        .header()
        .iter()
        .enumerate()
        .filter(|(_, name)| is_wanted(name, asked))
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
    asked: &[String],
    times: &mut Times,
    counters: &mut Counters,
) -> Result<Vec<String>, ExternalError> {
    let mut missing = Vec::new();
    while let Some(row) = table.next_row()? {
        // Advice rows have no metric; messages are not rows.
        let (Some(kernel), Some(metric)) = (row.get("Kernel Name"), row.get("Metric Name")) else {
            continue;
        };
        if !is_wanted(metric, asked) {
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

    const RAW: &str = include_str!(sample!("ncu-raw"));

    #[test]
    fn both_pages_give_the_same_result() {
        let details = "\"ID\",\"Process ID\",\"Process Name\",\"Host Name\",\"Kernel Name\",\"Context\",\"Stream\",\"Block Size\",\"Grid Size\",\"Device\",\"CC\",\"Section Name\",\"Metric Name\",\"Metric Unit\",\"Metric Value\"\n\
            \"0\",\"1\",\"r\",\"h\",\"void matvec<1, 2>(Params)\",\"1\",\"7\",\"(1, 1, 1)\",\"(1, 1, 1)\",\"0\",\"9.0\",\"Command line profiler metrics\",\"dram__bytes_read.sum\",\"byte\",\"9,437,184\"\n\
            \"0\",\"1\",\"r\",\"h\",\"void matvec<1, 2>(Params)\",\"1\",\"7\",\"(1, 1, 1)\",\"(1, 1, 1)\",\"0\",\"9.0\",\"Command line profiler metrics\",\"dram__throughput.avg.pct_of_peak_sustained_elapsed\",\"%\",\"81.25\"\n\
            \"0\",\"1\",\"r\",\"h\",\"void matvec<1, 2>(Params)\",\"1\",\"7\",\"(1, 1, 1)\",\"(1, 1, 1)\",\"0\",\"9.0\",\"Command line profiler metrics\",\"gpu__time_duration.sum\",\"us\",\"10.00\"\n\
            \"0\",\"1\",\"r\",\"h\",\"void matvec<1, 2>(Params)\",\"1\",\"7\",\"(1, 1, 1)\",\"(1, 1, 1)\",\"0\",\"9.0\",\"Command line profiler metrics\",\"sm__inst_executed_pipe_tensor.sum\",\"inst\",\"n/a\"\n\
            \"0\",\"1\",\"r\",\"h\",\"void matvec<1, 2>(Params)\",\"1\",\"7\",\"(1, 1, 1)\",\"(1, 1, 1)\",\"0\",\"9.0\",\"SpeedOfLight\",\"\",\"\",\"\"\n";
        let asked = [
            "dram__bytes_read.sum",
            "dram__throughput.avg.pct_of_peak_sustained_elapsed",
            "sm__inst_executed_pipe_tensor.sum",
        ]
        .map(String::from);
        for (text, calls, total_ms, throughput) in
            [(RAW, 2, 0.022, 80.0), (details, 1, 0.010, 81.25)]
        {
            let (mut times, mut counters) = (Times::default(), Counters::default());
            let missing = read(
                text.as_bytes(),
                "ncu.csv",
                &asked,
                &mut times,
                &mut counters,
            )
            .unwrap();
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
        let none = read(
            &b"==WARNING== No kernels were profiled.\n"[..],
            "ncu.csv",
            &asked,
            &mut times,
            &mut counters,
        );
        assert!(none.unwrap_err().to_string().contains("ncu.csv"));
    }

    #[test]
    fn builds_the_documented_command() {
        let metrics = ["dram__bytes_read.sum".to_string(), DURATION.to_string()];
        let command = command(
            Path::new("n.csv"),
            &metrics,
            200,
            OsStr::new("app"),
            &["-p".into()],
        );
        assert_eq!(
            command.to_string(),
            "ncu --csv --page raw --print-units base --log-file n.csv --metrics \
             gpu__time_duration.sum,dram__bytes_read.sum --launch-count 200 app -p"
        );
    }
}
