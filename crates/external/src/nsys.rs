//! Nsight Systems: NVIDIA's tracer of kernels and driver calls.
//!
//! It writes a report in its own format, which `nsys stats` converts to CSV or JSON tables. The formats of 2022 to 2025
//! are read.

use std::ffi::{OsStr, OsString};
use std::path::Path;

use serde_json::Value;

use super::command::CommandLine;
use super::csv::Table;
use super::error::ExternalError;
use super::table::{Operations, Times};

const NSYS: &str = "nsys";

/// Returns the `nsys profile` command that writes `report`.nsys-rep. It traces the kernels of a graph one by one, since
/// generation runs as graphs.
pub fn profile(report: &Path, app: &OsStr, args: &[OsString]) -> CommandLine {
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

/// An output format of `nsys stats`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StatsFormat {
    Csv,
    Json,
}

/// A table of `nsys stats`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StatsReport {
    Kernels,
    /// Kernels with the name of the innermost range of NVTX that they were launched in before their own, if they were.
    KernelsInRanges,
    Calls,
}

impl StatsReport {
    pub fn name(self) -> &'static str {
        match self {
            StatsReport::Kernels => "cuda_gpu_kern_sum",
            StatsReport::KernelsInRanges => "cuda_gpu_kern_sum:nvtx-name",
            StatsReport::Calls => "cuda_api_sum",
        }
    }

    /// The column with the number of calls.
    fn count(self) -> &'static str {
        match self {
            StatsReport::Kernels | StatsReport::KernelsInRanges => "Instances",
            StatsReport::Calls => "Num Calls",
        }
    }
}

/// Returns the command that prints a table of `report`.nsys-rep.
pub fn stats(report: &Path, table: StatsReport, format: StatsFormat) -> CommandLine {
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

/// Parses the output of [`stats`]. A report without kernels has no table, which is not an error.
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
        // Messages at the end.
        let Some(name) = row.get("Name") else {
            continue;
        };
        times.add_sum(
            name,
            row.number(table.count())? as u64,
            row.number("Total Time (ns)")?,
        );
    }
    Ok(())
}

fn stats_json(bytes: &[u8], table: StatsReport, times: &mut Times) -> Result<(), ExternalError> {
    let wrong = |reason: String| ExternalError::malformed(NSYS, table.name(), reason);
    // Messages precede the array; paths in them may have brackets, but none of their lines starts with one.
    let text = String::from_utf8_lossy(bytes);
    let start = match text.starts_with('[') {
        true => Some(0),
        false => text.find("\n[").map(|at| at + 1),
    };
    let Some(start) = start else {
        return match text.contains("SKIPPED:") {
            true => Ok(()),
            false => Err(wrong("it has no array".to_string())),
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
        times.add_sum(
            name,
            field(table.count())? as u64,
            field("Total Time (ns)")?,
        );
    }
    Ok(())
}

/// Sums the kernels of [`StatsReport::KernelsInRanges`] in CSV by their ranges: `rms_norm/norm_2_1`, or `:rms_norm/norm_2_1`
/// with an empty domain.
pub(super) fn read_operations(
    bytes: &[u8],
    operations: &mut Operations,
) -> Result<(), ExternalError> {
    let mut times = Times::default();
    stats_csv(bytes, StatsReport::KernelsInRanges, &mut times)?;
    for row in times.rows() {
        if let Some((range, _)) = row.name.rsplit_once('/') {
            let range = range.strip_prefix(':').unwrap_or(range);
            operations.add_sum(range, row.calls, row.total_ms * 1e6);
        }
    }
    Ok(())
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Columns of `cuda_gpu_kern_sum` in "Statistical Reports Shipped With Nsight Systems" of NVIDIA's Post-Collection Analysis
    /// Guide, after the messages of `nsys stats`.
    const STATS: &str = include_str!(sample!("nsys-stats"));

    #[test]
    fn reads_both_formats() {
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

    /// The argument `nvtx-name` of "Statistical Reports Shipped With Nsight Systems".
    #[test]
    fn kernels_are_summed_by_range() {
        let text = "Time (%),Total Time (ns),Instances,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Name\n\
            60.0,6000000,2,3000000.0,3000000.0,1,2,0.1,\"matmul ffn_down Q6_K [256, 1024]/gemv_2_1\"\n\
            20.0,2000000,1,2000000.0,2000000.0,1,2,0.1,\":matmul ffn_down Q6_K [256, 1024]/gemv_2_2\"\n\
            10.0,1000000,4,250000.0,250000.0,1,2,0.1,\":rms_norm/void norm<1, 2>(Params)\"\n\
            10.0,1000000,4,250000.0,250000.0,1,2,0.1,copy\n";
        let mut operations = Operations::default();
        read_operations(text.as_bytes(), &mut operations).unwrap();
        let rows = operations.rows();
        let rows = rows
            .iter()
            .map(|row| (row.name.as_str(), row.launches, row.total_ms));
        assert_eq!(
            rows.collect::<Vec<_>>(),
            [
                ("matmul ffn_down Q6_K [256, 1024]", 3, 8.0),
                ("rms_norm", 4, 1.0)
            ]
        );
        let mut none = Operations::default();
        assert!(read_operations(b"ERROR: Report could not be found", &mut none).is_err());
    }

    #[test]
    fn builds_the_documented_commands() {
        let args = ["generate".into(), "-p".into(), "a b".into()];
        assert_eq!(
            profile(Path::new("out/r"), OsStr::new("rocmforge"), &args).to_string(),
            "nsys profile -t cuda,nvtx --cuda-graph-trace=node --force-overwrite=true -o out/r rocmforge generate -p 'a b'"
        );
        assert_eq!(
            stats(Path::new("out/r"), StatsReport::Kernels, StatsFormat::Json).to_string(),
            "nsys stats --report cuda_gpu_kern_sum --format json --force-export=true out/r.nsys-rep"
        );
    }
}
