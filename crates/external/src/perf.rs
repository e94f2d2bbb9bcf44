//! perf, the Linux profiler: counters of a run (`perf stat`) and time per function (`perf record`).
//!
//! `perf stat -x,` writes lines of value, unit, event, counting time, share of that time, and a derived number.
//! Functions are sampled by `cpu-clock`, which every machine has, virtual ones too; the period of a sample is in
//! nanoseconds.

use std::ffi::{OsStr, OsString};
use std::path::Path;

use super::command::CommandLine;
use super::csv::number;
use super::error::ExternalError;
use super::process::printable;
use super::table::{CounterRow, Times};

const PERF: &str = "perf";

/// Samples per second; odd, so that sampling does not lock step with periodic work.
const FREQUENCY: u32 = 999;

/// More lines than perf writes.
const MAX_LINES: usize = 100_000;

/// Returns the command that counts `events` over a run and writes them to `out`.
pub fn stat(out: &Path, events: &[String], app: &OsStr, args: &[OsString]) -> CommandLine {
    CommandLine::new(PERF)
        .args(["stat", "-x", ",", "-o"])
        .arg(out)
        .args(["-e".to_string(), events.join(","), "--".to_string()])
        .application(app, args)
}

/// Returns the command that samples functions with their callers and writes to `out`.
pub fn record(out: &Path, app: &OsStr, args: &[OsString]) -> CommandLine {
    CommandLine::new(PERF)
        .args(["record", "-g", "-e", "cpu-clock", "-F"])
        .args([FREQUENCY.to_string(), "-o".to_string()])
        .arg(out)
        .arg("--")
        .application(app, args)
}

/// Returns the command that prints the functions of a recording.
pub fn report(recording: &Path) -> CommandLine {
    CommandLine::new(PERF)
        .args(["report", "--stdio", "--no-children", "-g", "none"])
        .args(["-F", "overhead,sample,period,symbol", "-t", "|", "-i"])
        .arg(recording)
}

/// Parses `perf stat` output into counters and the events that could not be counted.
///
/// # Errors
/// If it is not in perf's format.
pub fn parse_stat(bytes: &[u8]) -> Result<(Vec<CounterRow>, Vec<String>), ExternalError> {
    let text = String::from_utf8_lossy(bytes);
    let (mut rows, mut unavailable) = (Vec::new(), Vec::new());
    for (i, line) in text.lines().enumerate().take(MAX_LINES) {
        if line.trim().is_empty() || line.starts_with('#') {
            continue;
        }
        let fields: Vec<&str> = line.split(',').collect();
        let [value, unit, event, ..] = fields[..] else {
            return Err(wrong_line("perf stat", i, line));
        };
        let event = printable(event, 100);
        if matches!(value, "<not supported>" | "<not counted>") {
            unavailable.push(event);
            continue;
        }
        let value = number(value).ok_or_else(|| wrong_line("perf stat", i, line))?;
        rows.push(CounterRow {
            kernel: None,
            counter: event,
            unit: (!unit.is_empty()).then(|| printable(unit, 40)),
            calls: 1,
            total: Some(value),
            mean: value,
        });
    }
    Ok((rows, unavailable))
}

/// Parses the output of [`report`]: `28.57% | 2 | 500000 |[.] name`; `[k]` marks kernel functions.
pub(super) fn read_report(bytes: &[u8], times: &mut Times) -> Result<(), ExternalError> {
    let text = String::from_utf8_lossy(bytes);
    for (i, line) in text.lines().enumerate().take(MAX_LINES) {
        if line.trim().is_empty() || line.starts_with('#') {
            continue;
        }
        let fields: Vec<&str> = line.splitn(4, '|').map(str::trim).collect();
        let [_, samples, period, symbol] = fields[..] else {
            return Err(wrong_line("perf report", i, line));
        };
        let whole = |text: &str| {
            text.parse::<u64>()
                .map_err(|_| wrong_line("perf report", i, line))
        };
        let name = match symbol.strip_prefix("[.]") {
            Some(name) => name.trim(),
            None => symbol,
        };
        times.add_sum(name, whole(samples)?, whole(period)? as f64);
    }
    Ok(())
}

fn wrong_line(what: &str, i: usize, line: &str) -> ExternalError {
    let reason = format!("line {}: \"{}\"", i + 1, printable(line, 100));
    ExternalError::malformed(PERF, format!("the output of {what}"), reason)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// From perf 6.1 on a virtual machine without hardware counters, shortened.
    const STAT: &str = include_str!(sample!("perf-stat"));

    /// From perf 6.1.
    const REPORT: &str = include_str!(sample!("perf-report"));

    #[test]
    fn parses_counted_and_unsupported_events() {
        let (rows, unavailable) = parse_stat(STAT.as_bytes()).unwrap();
        let found: Vec<_> = rows
            .iter()
            .map(|row| {
                (
                    row.counter.as_str(),
                    row.unit.as_deref(),
                    row.total.unwrap(),
                )
            })
            .collect();
        // Zero migrations is a count, not a missing counter.
        assert_eq!(
            found,
            [
                ("task-clock", Some("msec"), 1.46),
                ("page-faults", None, 50.0),
                ("cpu-migrations", None, 0.0)
            ]
        );
        assert_eq!(unavailable, ["cycles", "LLC-load-misses"]);
        for wrong in ["1,2", "x,,cycles", "\u{0}"] {
            let error = parse_stat(wrong.as_bytes()).unwrap_err().to_string();
            assert!(
                error.contains("perf stat is not what perf writes"),
                "{error}"
            );
        }
    }

    #[test]
    fn parses_functions_with_samples_and_time() {
        let mut times = Times::default();
        read_report(REPORT.as_bytes(), &mut times).unwrap();
        let rows = times.rows();
        let found: Vec<_> = rows
            .iter()
            .map(|row| (row.name.as_str(), row.calls, row.total_ms))
            .collect();
        assert_eq!(
            found,
            [
                ("rocmforge_cpu::matmul::<A|B>::run", 4, 1.0),
                ("[k] perf_event_mmap", 3, 0.75)
            ]
        );
        assert!(read_report(b"1%|x|1|f\n", &mut Times::default()).is_err());
        assert!(read_report(b"something else\n", &mut Times::default()).is_err());
    }

    #[test]
    fn builds_the_documented_commands() {
        let (app, args) = (OsStr::new("rocmforge"), ["bench".into()]);
        let events = ["cycles".to_string(), "instructions".to_string()];
        for (command, expected) in [
            (
                stat(Path::new("o.csv"), &events, app, &args),
                "perf stat -x , -o o.csv -e cycles,instructions -- rocmforge bench",
            ),
            (
                record(Path::new("o.data"), app, &args),
                "perf record -g -e cpu-clock -F 999 -o o.data -- rocmforge bench",
            ),
            (
                report(Path::new("o.data")),
                "perf report --stdio --no-children -g none -F overhead,sample,period,symbol -t '|' -i o.data",
            ),
        ] {
            assert_eq!(command.to_string(), expected);
        }
    }
}
