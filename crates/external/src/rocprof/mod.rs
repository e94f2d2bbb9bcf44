//! rocprofv3, the command line of rocprofiler-sdk (ROCm 6.2 and later): configuration, commands and results.
//!
//! Counting serializes kernels, so times are measured in a separate run and each set of counters in another. The files
//! of a run are named `NAME_results.db`, `NAME_kernel_trace.csv` and so on; see [`rocpd`], [`csv`] and [`json`]. Kernels
//! are summed by the ranges that the program names ([`ranges`]) from rocpd and CSV, and their counters ([`launch`]) from
//! rocpd.

pub(crate) mod avail;
mod csv;
#[cfg(test)]
pub(super) mod fixtures;
mod json;
mod launch;
mod ranges;
mod rocpd;
#[cfg(test)]
mod rocpd_tests;
#[cfg(all(test, unix))]
mod tests;

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::command::CommandLine;
use super::counters::{CounterCategory, GpuFamily};
use super::diagnosis;
use super::error::ExternalError;
use super::files;
use super::process::{self, Limits};
use super::table::{Counters, Operations, Times, ToolReport};
use super::tools::Tool;
use ranges::{Assigned, Ranges};

/// The tool's name in messages.
const TOOL: &str = "rocprofv3";

/// Advice if counting hangs.
pub(super) const HINT: &str =
    "--pmc is known to hang on some chips: try without counters, or with a longer time limit";

/// An output format of rocprofv3.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutputFormat {
    /// A SQLite database, the default since ROCm 7.
    Rocpd,
    /// Deprecated since ROCm 7; the only tables before.
    Csv,
    Json,
}

impl OutputFormat {
    fn name(self) -> &'static str {
        match self {
            OutputFormat::Rocpd => "rocpd",
            OutputFormat::Csv => "csv",
            OutputFormat::Json => "json",
        }
    }
}

/// What to collect, and where to write it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProfilingConfig {
    dir: PathBuf,
    name: String,
    formats: Vec<OutputFormat>,
    kernel_trace: bool,
    hip_trace: bool,
    hsa_trace: bool,
    memory_copy_trace: bool,
    marker_trace: bool,
    /// Counters, grouped by run.
    counters: Vec<Vec<String>>,
    /// Regular expression for the names of counted kernels.
    kernels: Option<String>,
    timeout: Option<Duration>,
}

impl ProfilingConfig {
    /// Collects kernel times as CSV, below `dir`.
    pub fn new(dir: impl Into<PathBuf>) -> ProfilingConfig {
        ProfilingConfig {
            dir: dir.into(),
            name: "rocmforge".to_string(),
            formats: vec![OutputFormat::Csv],
            kernel_trace: true,
            hip_trace: false,
            hsa_trace: false,
            memory_copy_trace: false,
            marker_trace: false,
            counters: Vec::new(),
            kernels: None,
            timeout: None,
        }
    }

    /// Sets the prefix of the file names.
    pub fn with_name(mut self, name: impl Into<String>) -> ProfilingConfig {
        self.name = name.into();
        self
    }

    /// Adds hardware counters to collect together in one run.
    pub fn with_counters<S: Into<String>>(
        mut self,
        counters: impl IntoIterator<Item = S>,
    ) -> ProfilingConfig {
        let counters: Vec<String> = counters.into_iter().map(Into::into).collect();
        if !counters.is_empty() {
            self.counters.push(counters);
        }
        self
    }

    /// Adds the counters of a category, in as many runs as needed.
    pub fn with_category(self, category: CounterCategory, family: GpuFamily) -> ProfilingConfig {
        let runs = category.of_amd(family).iter();
        runs.fold(self, |config, names| {
            config.with_counters(names.iter().copied())
        })
    }

    /// Returns the counters of all runs.
    pub(crate) fn counters(&self) -> impl Iterator<Item = &str> {
        self.counters.iter().flatten().map(String::as_str)
    }

    /// Drops the counters for which `keep` is false, and runs that have none left.
    pub(crate) fn retain_counters(mut self, keep: impl Fn(&str) -> bool) -> ProfilingConfig {
        for run in &mut self.counters {
            run.retain(|counter| keep(counter));
        }
        self.counters.retain(|run| !run.is_empty());
        self
    }

    /// Restricts counting to kernels whose names match a regular expression.
    pub fn with_kernels(mut self, regex: impl Into<String>) -> ProfilingConfig {
        self.kernels = Some(regex.into());
        self
    }

    /// Traces kernels.
    pub fn with_kernel_trace(mut self, on: bool) -> ProfilingConfig {
        self.kernel_trace = on;
        self
    }

    /// Traces HIP calls.
    pub fn with_hip_trace(mut self, on: bool) -> ProfilingConfig {
        self.hip_trace = on;
        self
    }

    /// Traces HSA calls, which HIP is built on.
    pub fn with_hsa_trace(mut self, on: bool) -> ProfilingConfig {
        self.hsa_trace = on;
        self
    }

    /// Traces copies between host and device.
    pub fn with_memory_copy_trace(mut self, on: bool) -> ProfilingConfig {
        self.memory_copy_trace = on;
        self
    }

    /// Traces the ranges that a program names by ROCTx, and what tells which kernels were launched in them: rocpd has the
    /// name of its range with each kernel, also a counted one, if asked to rename kernels by it; for CSV, HIP calls are
    /// traced.
    pub fn with_marker_trace(mut self, on: bool) -> ProfilingConfig {
        self.marker_trace = on;
        self
    }

    /// Sets the output formats, at least one.
    pub fn with_formats(
        mut self,
        formats: impl IntoIterator<Item = OutputFormat>,
    ) -> ProfilingConfig {
        let formats: Vec<OutputFormat> = formats.into_iter().collect();
        if !formats.is_empty() {
            self.formats = formats;
        }
        self
    }

    /// Sets the time limit of each run.
    pub fn with_timeout(mut self, timeout: Duration) -> ProfilingConfig {
        self.timeout = Some(timeout);
        self
    }

    fn traces(&self) -> Vec<&'static str> {
        let in_rocpd = self.is_rocpd();
        let flags = [
            (self.kernel_trace, "--kernel-trace"),
            (
                self.hip_trace || (self.marker_trace && !in_rocpd),
                "--hip-trace",
            ),
            (self.hsa_trace, "--hsa-trace"),
            (self.memory_copy_trace, "--memory-copy-trace"),
            (self.marker_trace && !in_rocpd, "--marker-trace"),
        ];
        let on = flags.iter().filter(|(on, _)| *on);
        on.map(|(_, flag)| *flag).chain(self.ranges()).collect()
    }

    fn is_rocpd(&self) -> bool {
        self.formats == [OutputFormat::Rocpd]
    }

    /// Returns the flags that name the range of each kernel beside the kernel's own name, which other formats than rocpd
    /// would lose.
    fn ranges(&self) -> Vec<&'static str> {
        match self.marker_trace && self.is_rocpd() {
            true => vec!["--marker-trace", "--kernel-rename"],
            false => Vec::new(),
        }
    }
}

/// Runs a program under rocprofv3.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RocprofSession {
    config: ProfilingConfig,
    program: PathBuf,
}

impl RocprofSession {
    /// Creates a session that measures kernel times and writes below `dir`.
    pub fn new(dir: impl Into<PathBuf>) -> RocprofSession {
        RocprofSession::with_config(ProfilingConfig::new(dir))
    }

    pub fn with_config(config: ProfilingConfig) -> RocprofSession {
        RocprofSession {
            config,
            program: TOOL.into(),
        }
    }

    /// Uses another program instead of `rocprofv3` in PATH.
    pub fn with_program(mut self, program: impl Into<PathBuf>) -> RocprofSession {
        self.program = program.into();
        self
    }

    /// Returns a command that collects everything at once. [`RocprofSession::run`] uses separate runs for times and
    /// each set of counters, see [`RocprofSession::commands`].
    pub fn build_command<S: Into<OsString>>(
        &self,
        app: impl AsRef<OsStr>,
        args: impl IntoIterator<Item = S>,
    ) -> CommandLine {
        let args: Vec<OsString> = args.into_iter().map(Into::into).collect();
        let counters = self.config.counters.concat();
        self.command(&self.config.traces(), &counters, &self.config.name)
            .application(app.as_ref(), &args)
    }

    /// Returns the commands of [`RocprofSession::run`]: the traces, then each set of counters.
    pub fn commands<S: Into<OsString>>(
        &self,
        app: impl AsRef<OsStr>,
        args: impl IntoIterator<Item = S>,
    ) -> Vec<CommandLine> {
        let args: Vec<OsString> = args.into_iter().map(Into::into).collect();
        let (name, traces) = (&self.config.name, self.config.traces());
        let mut commands = Vec::new();
        if !traces.is_empty() {
            commands.push(self.command(&traces, &[], name));
        }
        for (i, counters) in self.config.counters.iter().enumerate() {
            let name = format!("{name}_pmc{}", i + 1);
            commands.push(self.command(&self.config.ranges(), counters, &name));
        }
        let with_app = commands
            .into_iter()
            .map(|command| command.application(app.as_ref(), &args));
        with_app.collect()
    }

    fn command(&self, traces: &[&str], counters: &[String], name: &str) -> CommandLine {
        let mut command = CommandLine::new(&self.program).args(traces.iter().copied());
        // The list of values ends at the next flag.
        if !counters.is_empty() {
            command = command.arg("--pmc").args(counters.iter().cloned());
            if let Some(regex) = &self.config.kernels {
                command = command.args(["--kernel-include-regex", regex]);
            }
        }
        command
            .arg("--output-format")
            .args(self.config.formats.iter().map(|format| format.name()))
            .arg("-d")
            .arg(&self.config.dir)
            .args(["-o", name, "--"])
    }

    /// Runs `app` once for the traces and once per set of counters, and reads the results. `cancelled` is polled many
    /// times per second.
    ///
    /// # Errors
    /// If there is nothing to collect, the folder already has results, or a run fails, takes too long or leaves no
    /// results.
    pub fn run<S: Into<OsString>>(
        &self,
        app: impl AsRef<OsStr>,
        args: impl IntoIterator<Item = S>,
        cancelled: &(dyn Fn() -> bool + Sync),
    ) -> Result<ToolReport, ExternalError> {
        let commands = self.commands(app, args);
        if commands.is_empty() {
            return Err(ExternalError::BadRequest(
                "there is nothing to collect: ask for a trace or for counters".to_string(),
            ));
        }
        let dir = &self.config.dir;
        fs::create_dir_all(dir).map_err(|error| ExternalError::io("make", dir, error))?;
        if !results(dir)?.is_empty() {
            return Err(ExternalError::NotEmpty { dir: dir.clone() });
        }
        let limits = Limits {
            timeout: self.config.timeout,
            cancelled,
            hint: HINT,
        };
        let mut notes = Vec::new();
        for command in &commands {
            let done = process::run(command, &limits)?;
            diagnosis::check(Tool::Rocprofv3, &done)?;
            let new = diagnosis::warnings(Tool::Rocprofv3, &done);
            notes.extend(
                new.into_iter()
                    .filter(|note| !notes.contains(note))
                    .collect::<Vec<_>>(),
            );
        }
        let mut report = self.parse_results()?;
        report.notes.splice(0..0, notes);
        Ok(report)
    }

    /// Reads rocprofv3's files below the folder, as [`read_results`] does.
    ///
    /// # Errors
    /// If there are no files, or they are not in rocprofv3's format.
    pub fn parse_results(&self) -> Result<ToolReport, ExternalError> {
        read_results(&self.config.dir)
    }
}

/// Reads rocprofv3's files below a folder, or one of its files. Of several formats, which have the same contents, rocpd
/// is read before CSV, and CSV before JSON.
///
/// # Errors
/// If there are no files, or they are not in rocprofv3's format. Traces for Perfetto and OTF2 are refused by name.
pub fn read_results(path: &Path) -> Result<ToolReport, ExternalError> {
    let mut files = results(path)?;
    let has = |format| files.iter().any(|file| file.kind.format() == Some(format));
    let formats = [OutputFormat::Rocpd, OutputFormat::Csv, OutputFormat::Json];
    let format = formats.into_iter().find(|format| has(*format));
    let mut found = Found::default();
    for file in &files {
        if file.kind == Kind::Markers && format == Some(OutputFormat::Csv) {
            found.csv_ranges.entry(file.run()).or_default();
        }
    }
    for file in &files {
        // Descriptions of devices in CSV belong to the other CSV files.
        let of = match file.kind {
            Kind::Agents => Some(OutputFormat::Csv),
            kind => kind.format(),
        };
        if format.is_some() && of == format {
            found.read(file)?;
        }
    }
    let mut report = found.report();
    // That every counter read zero is a result too.
    let empty = report.kernels.is_empty()
        && report.counters.is_empty()
        && report.calls.is_empty()
        && report.copies.is_empty()
        && report.unavailable.is_empty();
    if empty {
        let other = files.iter().find(|file| file.kind == Kind::Other);
        let expected = match other {
            Some(file) => format!(
                "{} is a trace for another viewer, which is not read here; run rocprofv3 with --output-format rocpd, \
                 csv or json",
                file.path.display()
            ),
            None => "rocprofv3 wrote no *_results.db, *_kernel_trace.csv, *_counter_collection.csv or *_results.json \
                     with a kernel in it; did the program use the GPU?"
                .to_string(),
        };
        return Err(ExternalError::NoResults {
            dir: path.to_path_buf(),
            expected,
        });
    }
    files.retain(|file| file.kind != Kind::Other);
    report.files = files.into_iter().map(|file| file.path).collect();
    Ok(report)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Kernels,
    Counters,
    Calls,
    Copies,
    Markers,
    Agents,
    Json,
    Rocpd,
    /// A trace for Perfetto, or in the format OTF2.
    Other,
}

impl Kind {
    /// Returns the format of a file with results.
    fn format(self) -> Option<OutputFormat> {
        match self {
            Kind::Kernels | Kind::Counters | Kind::Calls | Kind::Copies | Kind::Markers => {
                Some(OutputFormat::Csv)
            }
            Kind::Json => Some(OutputFormat::Json),
            Kind::Rocpd => Some(OutputFormat::Rocpd),
            Kind::Agents | Kind::Other => None,
        }
    }

    /// Determines the kind of a file from its name.
    fn of(name: &str) -> Option<Kind> {
        Kind::ending(name).map(|(_, kind)| kind)
    }

    /// Returns the end of a name that determines its kind.
    fn ending(name: &str) -> Option<(&'static str, Kind)> {
        const ENDS: [(&str, Kind); 14] = [
            ("results.db", Kind::Rocpd),
            ("kernel_trace.csv", Kind::Kernels),
            ("counter_collection.csv", Kind::Counters),
            ("hip_api_trace.csv", Kind::Calls),
            ("hsa_api_trace.csv", Kind::Calls),
            // Names in ROCm 6.
            ("hip_runtime_api_trace.csv", Kind::Calls),
            ("hip_trace.csv", Kind::Calls),
            ("hsa_trace.csv", Kind::Calls),
            ("memory_copy_trace.csv", Kind::Copies),
            ("marker_api_trace.csv", Kind::Markers),
            ("agent_info.csv", Kind::Agents),
            ("results.json", Kind::Json),
            (".pftrace", Kind::Other),
            (".otf2", Kind::Other),
        ];
        ENDS.into_iter().find(|(end, _)| name.ends_with(end))
    }
}

struct ResultFile {
    path: PathBuf,
    kind: Kind,
}

impl ResultFile {
    /// What the paths of all CSV files of a process begin with. Correlation ids are those of a process.
    fn run(&self) -> PathBuf {
        let name = self.path.file_name().unwrap_or_default();
        let name = name.to_string_lossy();
        let end = Kind::ending(&name).map_or(0, |(end, _)| end.len());
        self.path.with_file_name(&name[..name.len() - end])
    }
}

/// Finds rocprofv3's files below a folder; without `-o` they are in a folder named after the host. A file is returned
/// itself.
fn results(path: &Path) -> Result<Vec<ResultFile>, ExternalError> {
    if path.is_file() {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let kind = Kind::of(&name).or(match name.ends_with(".db") {
            // The user may have renamed it.
            true => Some(Kind::Rocpd),
            false => None,
        });
        let file = kind.map(|kind| ResultFile {
            path: path.to_path_buf(),
            kind,
        });
        return Ok(file.into_iter().collect());
    }
    let files = files::below(path)?.into_iter().filter_map(|path| {
        let kind = Kind::of(path.file_name()?.to_str()?)?;
        Some(ResultFile { path, kind })
    });
    Ok(files.collect())
}

/// Sums over all files.
#[derive(Default)]
struct Found {
    kernels: Times,
    /// Times of counted kernels, for runs without a trace.
    counted: Times,
    calls: Times,
    copies: Times,
    counters: Counters,
    operations: Operations,
    /// Operations of runs that count.
    counted_operations: Operations,
    /// Kernels of all runs with ranges.
    assigned: Assigned,
    /// Whether a run has more ranges than are read.
    too_many_ranges: bool,
    /// Of CSV files, which are read one after the other.
    csv_ranges: HashMap<PathBuf, Ranges>,
    devices: Vec<String>,
}

impl Found {
    /// Takes what a process recorded of its ranges.
    fn assign(&mut self, ranges: Ranges) {
        self.too_many_ranges |= ranges.is_too_long();
        if ranges.is_empty() || ranges.is_too_long() {
            return;
        }
        let assigned = ranges.assign(&mut self.operations);
        self.assigned.n_kernels += assigned.n_kernels;
        self.assigned.n_without_call += assigned.n_without_call;
        self.assigned.n_ambiguous += assigned.n_ambiguous;
    }

    fn read(&mut self, file: &ResultFile) -> Result<(), ExternalError> {
        let what = file.path.display().to_string();
        let reader = || files::open(&file.path);
        match file.kind {
            Kind::Kernels => {
                let ranges = self.csv_ranges.get_mut(&file.run());
                csv::kernels(reader()?, &what, &mut self.kernels, ranges)
            }
            Kind::Counters => {
                csv::counters(reader()?, &what, &mut self.counters, &mut self.counted)
            }
            Kind::Calls => {
                let ranges = self.csv_ranges.get_mut(&file.run());
                csv::calls(reader()?, &what, &mut self.calls, ranges)
            }
            Kind::Markers => {
                let ranges = self.csv_ranges.entry(file.run()).or_default();
                csv::markers(reader()?, &what, ranges)
            }
            Kind::Copies => csv::copies(reader()?, &what, &mut self.copies),
            Kind::Agents => csv::agents(reader()?, &what, &mut self.devices),
            Kind::Json => json::read(&files::read(&file.path)?, &what, self),
            Kind::Rocpd => rocpd::read(&file.path, self),
            Kind::Other => Ok(()),
        }
    }

    fn report(mut self) -> ToolReport {
        for (_, ranges) in std::mem::take(&mut self.csv_ranges) {
            self.assign(ranges);
        }
        let mut notes = self.assigned.notes();
        if self.too_many_ranges {
            notes.push("kernels are not summed by ranges: the trace is too long".to_string());
        }
        let (counters, unavailable) = self.counters.rows();
        let mut kernels = self.kernels.rows();
        if kernels.is_empty() {
            kernels = self.counted.rows();
            if !kernels.is_empty() {
                notes.push(
                    "the times are those of counted kernels, which run one after the other"
                        .to_string(),
                );
            }
        }
        if !unavailable.is_empty() {
            notes.push(format!(
                "{} read zero for every kernel: this chip does not count it, or its clock was gated; try once more \
                 after `sudo amd-smi set -g 0 --perf-level STABLE_STD`",
                unavailable.join(", ")
            ));
        }
        ToolReport {
            kernels,
            calls: self.calls.rows(),
            copies: self.copies.rows(),
            counters,
            operations: self.operations.counted_in(self.counted_operations).rows(),
            unavailable,
            devices: self.devices,
            notes,
            ..ToolReport::default()
        }
    }
}

/// Runs every parser on arbitrary bytes.
pub(super) fn read_any(bytes: &[u8]) {
    let mut found = Found::default();
    // Errors are fine.
    let mut ranges = Ranges::default();
    let _ = csv::kernels(bytes, "any", &mut found.kernels, Some(&mut ranges));
    let _ = csv::calls(bytes, "any", &mut found.calls, Some(&mut ranges));
    let _ = csv::markers(bytes, "any", &mut ranges);
    found.assign(ranges);
    let _ = csv::copies(bytes, "any", &mut found.copies);
    let _ = csv::counters(bytes, "any", &mut found.counters, &mut found.counted);
    let _ = csv::agents(bytes, "any", &mut found.devices);
    let _ = json::read(bytes, "any", &mut found);
    let _ = rocpd::read_bytes(bytes, "any", &mut found);
    let _ = found.report();
    let _ = avail::parse(&String::from_utf8_lossy(bytes));
}
