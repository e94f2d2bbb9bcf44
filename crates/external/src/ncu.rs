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
use super::table::{Counters, Launch, Operations, Times};

const NCU: &str = "ncu";

/// The metric of a kernel's duration.
pub const DURATION: &str = "gpu__time_duration.sum";

/// The metrics of [`Launch`]: bytes, and percentages.
const BYTES: [&str; 2] = ["dram__bytes_read.sum", "dram__bytes_write.sum"];
const L2_HIT: &str = "lts__t_sector_hit_rate.pct";
const OCCUPANCY: &str = "sm__warps_active.avg.pct_of_peak_sustained_active";

/// Begins the name of the column with the ranges of NVTX that a thread was in.
const RANGES: &str = "thread Domain:Push/Pop_Range";

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
            "--nvtx",
            "--log-file",
        ])
        .arg(log)
        .args(["--metrics".to_string(), all.join(",")])
        .args(["--launch-count".to_string(), max_launches.to_string()])
        .application(app, args)
}

/// What is read from ncu's output.
#[derive(Default)]
pub(super) struct Found {
    pub(super) times: Times,
    pub(super) counters: Counters,
    pub(super) operations: Operations,
    /// Metrics without a value (`n/a`), which this GPU does not support.
    pub(super) missing: Vec<String>,
}

/// Reads the durations and the metrics `asked` for from ncu's CSV, which also has hundreds of facts about device and
/// launches.
pub(super) fn read(
    reader: impl BufRead,
    what: &str,
    asked: &[String],
) -> Result<Found, ExternalError> {
    let is_header = |fields: &[String]| {
        fields.first().is_some_and(|id| id == "ID") && fields.iter().any(|f| f == "Kernel Name")
    };
    let table = Table::open(reader, NCU, what, is_header)?;
    match table.header().iter().any(|column| column == "Metric Name") {
        true => details(table, asked),
        false => raw(table, asked),
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

impl Found {
    /// Adds a value of a kernel.
    fn add(&mut self, kernel: &str, (metric, unit, value): (&str, &str, &str)) {
        let Some(value) = number(value) else {
            let missing = &mut self.missing;
            if !missing.iter().any(|known| known == metric) && missing.len() < 1000 {
                missing.push(super::process::printable(metric, 100));
            }
            return;
        };
        if metric == DURATION {
            self.times.add(kernel, value * ns_per(unit));
        } else {
            let unit = (!unit.is_empty()).then_some(unit);
            self.counters.add(kernel, metric, unit, value);
        }
    }
}

/// The name of the innermost of the ranges that a thread was in, as in
/// `12283  "<default domain>:step of 1 rows:none:none:none:none:none:none"  "<default domain>:rope_kv:none:none:none:none:none:none" `.
fn innermost(ranges: &str) -> Option<&str> {
    let last = ranges.split('"').skip(1).step_by(2).last()?;
    // Six attributes follow the name.
    let named = last.rsplitn(7, ':').nth(6)?;
    named.strip_prefix("<default domain>:")
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

fn raw<R: BufRead>(mut table: Table<R>, asked: &[String]) -> Result<Found, ExternalError> {
    let metrics: Vec<(usize, String)> = table
        .header()
        .iter()
        .enumerate()
        .filter(|(_, name)| is_wanted(name, asked))
        .map(|(at, name)| (at, name.clone()))
        .collect();
    let column = |is: &dyn Fn(&str) -> bool| table.header().iter().position(|name| is(name));
    let ranges = column(&|name| name.starts_with(RANGES));
    let [duration, read, written, l2_hit, occupancy] =
        [DURATION, BYTES[0], BYTES[1], L2_HIT, OCCUPANCY]
            .map(|metric| column(&|name| name == metric));
    let mut units: Vec<String> = Vec::new();
    let mut found = Found::default();
    while let Some(row) = table.next_row()? {
        if row.get("ID").is_some_and(str::is_empty) {
            units = row.fields().to_vec();
            continue;
        }
        let Some(kernel) = row.get("Kernel Name") else {
            continue;
        };
        let text = |at: usize| row.fields().get(at).map_or("", String::as_str);
        let unit = |at: usize| units.get(at).map_or("", String::as_str);
        for (at, metric) in &metrics {
            found.add(kernel, (metric, unit(*at), text(*at)));
        }
        let value = |at: Option<usize>| number(text(at?));
        let operation = ranges.and_then(|at| innermost(text(at)));
        if let (Some(operation), Some(time)) = (operation, value(duration)) {
            let launch = Launch {
                ns: time * duration.map_or(1.0, |at| ns_per(unit(at))),
                // The command asks for the base units.
                read_bytes: value(read),
                written_bytes: value(written),
                l2_hit_percent: value(l2_hit),
                occupancy_percent: value(occupancy),
            };
            found.operations.add(operation, launch);
        }
    }
    Ok(found)
}

fn details<R: BufRead>(mut table: Table<R>, asked: &[String]) -> Result<Found, ExternalError> {
    let mut found = Found::default();
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
        found.add(kernel, (metric, unit, value));
    }
    Ok(found)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// `--page raw --csv` as "Page" and "CSV" in the command line options of NVIDIA's Nsight Compute CLI documentation: a row of
    /// units, then a row per kernel.
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
            let found = read(text.as_bytes(), "ncu.csv", &asked).unwrap();
            let Found {
                times,
                counters,
                operations,
                missing,
            } = found;
            assert_eq!(operations.rows(), []);
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
        let none = read(
            &b"==WARNING== No kernels were profiled.\n"[..],
            "ncu.csv",
            &asked,
        );
        assert!(none.err().unwrap().to_string().contains("ncu.csv"));
    }

    /// The form of Nsight Compute 2025.3 on an H200.
    #[test]
    fn sums_kernels_by_operation() {
        let head = "\"ID\",\"thread Domain:Push/Pop_Range:PL_Type:PL_Value:CLR_Type:Color:Msg_Type:Msg\",\
            \"Kernel Name\",\"dram__bytes_read.sum\",\"dram__bytes_write.sum\",\"gpu__time_duration.sum\",\
            \"lts__t_sector_hit_rate.pct\",\"sm__warps_active.avg.pct_of_peak_sustained_active\"\n\
            \"\",\"\",\"\",\"byte\",\"byte\",\"ns\",\"%\",\"%\"\n";
        let range =
            |name: &str| format!("\"\"<default domain>:{name}:none:none:none:none:none:none\"\"");
        let within = |op: &str| format!("\"12283  {}  {} \"", range("step of 1 rows"), range(op));
        let matmul = within("matmul ffn_down Q6_K [256, 1024]");
        let text = format!(
            "{head}\"0\",{matmul},\"gemv_2_1\",\"3,000\",\"1,000\",\"4,000\",\"50\",\"20\"\n\
            \"1\",{matmul},\"gemv_2_1\",\"8,000\",\"0\",\"2,000\",\"80\",\"80\"\n\
            \"2\",{},\"rope\",\"n/a\",\"0\",\"1,000\",\"n/a\",\"10\"\n\
            \"3\",\"\",\"other\",\"1\",\"1\",\"1,000\",\"1\",\"1\"\n",
            within("rope_kv")
        );
        let found = read(text.as_bytes(), "ncu.csv", &[]).unwrap();
        let rows = found.operations.rows();
        let names: Vec<_> = rows
            .iter()
            .map(|row| (row.name.as_str(), row.launches, row.total_ms))
            .collect();
        assert_eq!(
            names,
            [
                ("matmul ffn_down Q6_K [256, 1024]", 2, 0.006),
                ("rope_kv", 1, 0.001)
            ]
        );
        assert_eq!(
            (
                rows[0].gb_s,
                rows[0].l2_hit_percent,
                rows[0].occupancy_percent
            ),
            (Some(2.0), Some(60.0), Some(40.0))
        );
        assert_eq!(
            (
                rows[1].gb_s,
                rows[1].l2_hit_percent,
                rows[1].occupancy_percent
            ),
            (None, None, Some(10.0))
        );
        assert_eq!(found.times.rows().len(), 3);
        for damaged in ["", "12", "\"", "\"a:b\"", "\"a:b:c:d:e:f:g\"", "1 \"\" "] {
            assert_eq!(innermost(damaged), None, "{damaged}");
        }
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
            "ncu --csv --page raw --print-units base --nvtx --log-file n.csv --metrics \
             gpu__time_duration.sum,dram__bytes_read.sum --launch-count 200 app -p"
        );
    }
}
