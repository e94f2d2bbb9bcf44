//! One interface to all tools: builds the commands, runs them and reads the results.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use super::command::CommandLine;
use super::counters::{CounterCategory, GpuFamily};
use super::error::ExternalError;
use super::nsys::{self, StatsFormat, StatsReport};
use super::process::{self, Captured, Limits};
use super::rocprof::{self, OutputFormat, ProfilingConfig, RocprofSession, avail};
use super::rocprof_compute::{self, RocprofCompute, Roofline, Target};
use super::sampler::{self, Sampler, Source};
use super::table::{Operations, Times, ToolReport};
use super::tools::{self, Tool};
use super::{amd_smi, diagnosis, files, ncu, perf};

/// File name prefix of the tools' output.
const NAME: &str = "rocmforge";

/// Most kernels Nsight Compute profiles; it runs each many times.
const MAX_LAUNCHES: u32 = 500;

/// Most functions read from perf; later ones took no time.
const MAX_FUNCTIONS: usize = 1000;

/// What rocprofv3 traces beside kernels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trace {
    /// HIP calls.
    Hip,
    /// Calls of HSA, which HIP is built on.
    Hsa,
    /// Memory copies.
    Copies,
    /// Ranges that the program names.
    Markers,
}

impl Trace {
    pub const ALL: [Trace; 4] = [Trace::Hip, Trace::Hsa, Trace::Copies, Trace::Markers];

    pub fn name(self) -> &'static str {
        match self {
            Trace::Hip => "hip",
            Trace::Hsa => "hsa",
            Trace::Copies => "copies",
            Trace::Markers => "markers",
        }
    }
}

impl FromStr for Trace {
    type Err = ExternalError;

    fn from_str(name: &str) -> Result<Trace, ExternalError> {
        let found = Trace::ALL.into_iter().find(|trace| trace.name() == name);
        found.ok_or_else(|| {
            ExternalError::BadRequest(format!(
                "unknown trace '{}'; known: {}",
                process::printable(name, 40),
                Trace::ALL.map(Trace::name).join(", ")
            ))
        })
    }
}

/// What to measure about which program.
#[derive(Debug, Clone)]
pub struct Request {
    pub tool: Tool,
    /// Version of the tool, which decides options: major and minor number. [`Request::run`] asks the tool for it if it
    /// is `None`.
    pub version: Option<(u32, u32)>,
    /// Folder for the tool's files, created if missing.
    pub dir: PathBuf,
    pub app: OsString,
    pub args: Vec<OsString>,
    pub categories: Vec<CounterCategory>,
    /// Hardware counter names in addition to those of `categories`.
    pub counters: Vec<String>,
    /// What rocprofv3 traces beside kernels; none stands for HIP calls.
    pub traces: Vec<Trace>,
    /// Whether rocprof-compute measures the hardware's limits too.
    pub roofline: Roofline,
    /// The GPU that amd-smi or nvidia-smi observes: its number there, PCI address or UUID; the first if `None`.
    pub gpu: Option<String>,
    /// Family of the AMD GPU, which decides counter names.
    pub family: Option<GpuFamily>,
    /// Time limit of each command.
    pub timeout: Option<Duration>,
}

impl Request {
    /// Returns the commands that [`Request::run`] runs, in order. For utilization tools, the first is read while the
    /// second runs.
    ///
    /// # Errors
    /// If the tool does not support the request.
    pub fn commands(&self) -> Result<Vec<CommandLine>, ExternalError> {
        self.check()?;
        let (app, args) = (self.app.as_os_str(), self.args.as_slice());
        Ok(match self.tool {
            Tool::Rocprofv3 => self.rocprof()?.commands(app, args.iter().cloned()),
            Tool::RocprofCompute => {
                let workload = self.rocprof_compute();
                vec![
                    workload.profile(app, args.iter().cloned()),
                    workload.analyze(),
                ]
            }
            Tool::AmdSmi => vec![amd_smi::metric(self.gpu.as_deref()), self.application()],
            Tool::NvidiaSmi => {
                let gpu = self.gpu.as_deref().unwrap_or("0");
                let gauge = sampler::nvidia_smi(Path::new("nvidia-smi"), gpu, sampler::EVERY);
                vec![gauge, self.application()]
            }
            Tool::Nsys => vec![
                nsys::profile(&self.file(""), app, args),
                nsys::stats(&self.file(""), StatsReport::Kernels, StatsFormat::Csv),
                nsys::stats(&self.file(""), StatsReport::Calls, StatsFormat::Csv),
                nsys::stats(
                    &self.file(""),
                    StatsReport::KernelsInRanges,
                    StatsFormat::Csv,
                ),
            ],
            Tool::Ncu => {
                let metrics = self.names(|category| Ok(category.of_nvidia()))?;
                vec![ncu::command(
                    &self.file("-ncu.csv"),
                    &metrics,
                    MAX_LAUNCHES,
                    app,
                    args,
                )]
            }
            Tool::Perf if self.counts() => {
                let events = self.names(CounterCategory::of_cpu)?;
                vec![perf::stat(&self.file("-perf-stat.csv"), &events, app, args)]
            }
            Tool::Perf => {
                let recording = self.file("-perf.data");
                vec![
                    perf::record(&recording, app, args),
                    perf::report(&recording),
                ]
            }
        })
    }

    /// Returns the request with the version of the tool at `program`, where that decides options.
    #[must_use]
    pub fn for_program(&self, program: &Path, cancelled: &(dyn Fn() -> bool + Sync)) -> Request {
        let mut request = self.clone();
        let matters = matches!(self.tool, Tool::Rocprofv3 | Tool::RocprofCompute);
        if matters && self.version.is_none() {
            request.version = tools::version_of(self.tool, program, cancelled);
        }
        request
    }

    /// Reads the results of an earlier run of the tool: the files below a folder, or a file.
    ///
    /// # Errors
    /// If the tool is not one whose files are found by their names, or there are no results.
    pub fn read(tool: Tool, path: &Path) -> Result<ToolReport, ExternalError> {
        match tool {
            Tool::Rocprofv3 => rocprof::read_results(path),
            Tool::RocprofCompute => {
                let kernels = rocprof_compute::read(path)?;
                not_empty(
                    tool,
                    path,
                    ToolReport {
                        kernels,
                        files: files::below(path)?,
                        ..ToolReport::default()
                    },
                )
            }
            _ => Err(ExternalError::BadRequest(format!(
                "results of {} cannot be read later; only those of rocprofv3 and rocprof-compute can",
                tool.name()
            ))),
        }
    }

    /// Runs the tool at `program` and reads its results. `cancelled` is polled many times per second.
    ///
    /// # Errors
    /// If the tool does not support the request, fails, takes too long, lacks permission to count, or leaves no
    /// results.
    pub fn run(
        &self,
        program: &Path,
        cancelled: &(dyn Fn() -> bool + Sync),
    ) -> Result<ToolReport, ExternalError> {
        self.check()?;
        let request = self.for_program(program, cancelled);
        let dir = &self.dir;
        fs::create_dir_all(dir).map_err(|error| ExternalError::io("make", dir, error))?;
        let mut runs = Runs {
            request: &request,
            program,
            cancelled,
            log: self.file("-output.txt"),
            notes: Vec::new(),
        };
        let report = match self.tool {
            Tool::Rocprofv3 => runs.rocprof(),
            Tool::RocprofCompute => runs.rocprof_compute(),
            Tool::AmdSmi | Tool::NvidiaSmi => runs.gauge(),
            Tool::Nsys => runs.nsys(),
            Tool::Ncu => runs.ncu(),
            Tool::Perf if self.counts() => runs.perf_stat(),
            Tool::Perf => runs.perf_record(),
        };
        let mut report = report?;
        report.notes.splice(0..0, runs.notes);
        report.files = files::below(dir)?;
        Ok(report)
    }

    fn check(&self) -> Result<(), ExternalError> {
        let no_counters = matches!(
            self.tool,
            Tool::Nsys | Tool::AmdSmi | Tool::NvidiaSmi | Tool::RocprofCompute
        );
        if no_counters && self.counts() {
            return Err(ExternalError::BadRequest(format!(
                "{} takes no counters; rocprofv3, ncu and perf do",
                self.tool.name()
            )));
        }
        if !self.traces.is_empty() && self.tool != Tool::Rocprofv3 {
            return Err(ExternalError::BadRequest(format!(
                "{} has no choice of traces; rocprofv3 has",
                self.tool.name()
            )));
        }
        if self.roofline != Roofline::Without && self.tool != Tool::RocprofCompute {
            return Err(ExternalError::BadRequest(format!(
                "{} measures no roofline; rocprof-compute does",
                self.tool.name()
            )));
        }
        if let Some(gpu) = &self.gpu {
            if !matches!(self.tool, Tool::AmdSmi | Tool::NvidiaSmi) {
                return Err(ExternalError::BadRequest(format!(
                    "{} observes the GPUs that the command uses; amd-smi and nvidia-smi take one",
                    self.tool.name()
                )));
            }
            let plain = |c: char| c.is_ascii_alphanumeric() || "-:.".contains(c);
            let wrong = gpu.is_empty() || gpu.starts_with('-') || gpu.len() > 64;
            if wrong || !gpu.chars().all(plain) {
                return Err(ExternalError::BadRequest(format!(
                    "'{}' is no GPU; use its number, PCI address (0000:03:00.0) or UUID",
                    process::printable(gpu, 40)
                )));
            }
        }
        // Names become list items, and must not look like flags.
        let plain = |c: char| c.is_ascii_alphanumeric() || "_-.:/[]=".contains(c);
        let wrong = self
            .counters
            .iter()
            .find(|name| name.is_empty() || name.starts_with('-') || !name.chars().all(plain));
        match wrong {
            None => Ok(()),
            Some(name) => Err(ExternalError::BadRequest(format!(
                "'{}' is not a counter name",
                process::printable(name, 40)
            ))),
        }
    }

    fn counts(&self) -> bool {
        !self.categories.is_empty() || !self.counters.is_empty()
    }

    /// Returns the path of one of the tool's files.
    fn file(&self, end: &str) -> PathBuf {
        self.dir.join(format!("{NAME}{end}"))
    }

    fn application(&self) -> CommandLine {
        CommandLine::new(&self.app).args(self.args.iter().cloned())
    }

    fn names(
        &self,
        of: impl Fn(CounterCategory) -> Result<&'static [&'static str], ExternalError>,
    ) -> Result<Vec<String>, ExternalError> {
        let mut names: Vec<String> = Vec::new();
        for category in &self.categories {
            names.extend(of(*category)?.iter().map(ToString::to_string));
        }
        names.extend(self.counters.iter().cloned());
        let mut seen = std::collections::HashSet::new();
        names.retain(|name| seen.insert(name.clone()));
        Ok(names)
    }

    /// Returns the format for rocprofv3: the database that ROCm 7 (rocprofiler-sdk 1.0) introduced, or CSV.
    fn format(&self) -> OutputFormat {
        match self.version {
            Some(version) if version >= (1, 0) => OutputFormat::Rocpd,
            _ => OutputFormat::Csv,
        }
    }

    fn rocprof(&self) -> Result<RocprofSession, ExternalError> {
        Ok(RocprofSession::with_config(self.rocprof_config()?))
    }

    fn rocprof_config(&self) -> Result<ProfilingConfig, ExternalError> {
        let mut config = ProfilingConfig::new(&self.dir)
            .with_name(NAME)
            .with_hip_trace(self.traces.is_empty() || self.traces.contains(&Trace::Hip))
            .with_hsa_trace(self.traces.contains(&Trace::Hsa))
            .with_memory_copy_trace(self.traces.contains(&Trace::Copies))
            .with_marker_trace(self.traces.contains(&Trace::Markers))
            .with_formats([self.format()]);
        if let Some(timeout) = self.timeout {
            config = config.with_timeout(timeout);
        }
        for category in &self.categories {
            let family = self.family.ok_or_else(|| {
                ExternalError::BadRequest(
                    "no AMD GPU was found, so its counter names are unknown; name the architecture, as in \
                     --arch gfx1100"
                        .to_string(),
                )
            })?;
            config = config.with_category(*category, family);
        }
        Ok(config.with_counters(self.counters.iter().cloned()))
    }

    fn rocprof_compute(&self) -> RocprofCompute {
        RocprofCompute::new(NAME, self.dir.join("rocprof-compute"))
            .with_target(Target::of_version(self.version))
            .with_roofline(self.roofline)
    }
}

/// A request in execution.
struct Runs<'a> {
    request: &'a Request,
    program: &'a Path,
    cancelled: &'a (dyn Fn() -> bool + Sync),
    /// The commands' output, for the user to inspect.
    log: PathBuf,
    notes: Vec<String>,
}

impl Runs<'_> {
    /// Runs a command of the tool, or the program itself.
    fn run(&mut self, command: &CommandLine) -> Result<Captured, ExternalError> {
        let tool = self.request.tool;
        let mut actual = command.clone();
        let is_tool = command.program.as_os_str() == OsStr::new(tool.name());
        if is_tool {
            actual.program = self.program.into();
        }
        let limits = Limits {
            timeout: self.request.timeout,
            cancelled: self.cancelled,
            hint: "raise the time limit or shorten the run",
        };
        let done = process::run(&actual, &limits)?;
        self.keep(command, &done)?;
        if is_tool {
            diagnosis::check(tool, &done)?;
            self.notes.extend(diagnosis::warnings(tool, &done));
        } else if !done.status.success() {
            return Err(ExternalError::Failed {
                program: command.name(),
                status: done.status.to_string(),
                said: done.last_words(),
            });
        }
        Ok(done)
    }

    fn keep(&self, command: &CommandLine, done: &Captured) -> Result<(), ExternalError> {
        let file = fs::File::options()
            .create(true)
            .append(true)
            .open(&self.log);
        let write = |mut file: fs::File| {
            writeln!(file, "$ {command}")?;
            file.write_all(&done.stdout)?;
            file.write_all(&done.stderr)
        };
        file.and_then(write)
            .map_err(|error| ExternalError::io("write", &self.log, error))
    }

    fn rocprof(&mut self) -> Result<ToolReport, ExternalError> {
        let mut config = self.request.rocprof_config()?;
        let known = match self.request.counts() {
            true => avail::counters(self.program, self.cancelled),
            false => None,
        };
        let mut missing = Vec::new();
        if let Some(known) = known {
            let has = |counter: &str| known.contains(avail::base(counter));
            let asked = &self.request.counters;
            if let Some(counter) = asked.iter().find(|counter| !has(counter)) {
                return Err(ExternalError::BadRequest(format!(
                    "no GPU of this machine has the counter '{counter}'; `rocprofv3-avail list --pmc` prints those that \
                     it has"
                )));
            }
            missing = config
                .counters()
                .filter(|name| !has(name))
                .map(str::to_string)
                .collect();
            config = config.retain_counters(has);
        }
        let session = RocprofSession::with_config(config).with_program(self.program);
        let mut report = session.run(
            &self.request.app,
            self.request.args.iter().cloned(),
            self.cancelled,
        )?;
        if !missing.is_empty() {
            self.notes
                .push(format!("this GPU does not have {}", missing.join(", ")));
            report.unavailable.extend(missing);
        }
        Ok(report)
    }

    fn nsys(&mut self) -> Result<ToolReport, ExternalError> {
        let request = self.request;
        let (app, args) = (request.app.as_os_str(), request.args.as_slice());
        self.run(&nsys::profile(&request.file(""), app, args))?;
        let (mut kernels, mut calls) = (Times::default(), Times::default());
        for (table, times) in [
            (StatsReport::Kernels, &mut kernels),
            (StatsReport::Calls, &mut calls),
        ] {
            let done = self.run(&nsys::stats(&request.file(""), table, StatsFormat::Csv))?;
            nsys::read_stats(&done.stdout, table, StatsFormat::Csv, times)?;
        }
        let mut operations = Operations::default();
        let ranges = nsys::stats(
            &request.file(""),
            StatsReport::KernelsInRanges,
            StatsFormat::Csv,
        );
        let read = match self.run(&ranges) {
            Ok(done) => nsys::read_operations(&done.stdout, &mut operations),
            Err(error @ ExternalError::Cancelled { .. }) => return Err(error),
            Err(error) => Err(error),
        };
        if let Err(error) = read {
            self.notes.push(format!(
                "kernels are not summed by operation, which needs a newer nsys: {error}"
            ));
        }
        self.not_empty(ToolReport {
            kernels: kernels.rows(),
            calls: calls.rows(),
            operations: operations.rows(),
            ..ToolReport::default()
        })
    }

    fn ncu(&mut self) -> Result<ToolReport, ExternalError> {
        let request = self.request;
        for command in request.commands()? {
            self.run(&command)?;
        }
        // Its messages go to the file, and it succeeds even without permission for counters.
        let log = request.file("-ncu.csv");
        let said = files::read(&log)?;
        diagnosis::refused(Tool::Ncu, &String::from_utf8_lossy(&said))?;
        let what = log.display().to_string();
        if String::from_utf8_lossy(&said).contains("No kernels were profiled") {
            return self.not_empty(ToolReport::default());
        }
        let asked = request.names(|category| Ok(category.of_nvidia()))?;
        let found = ncu::read(&said[..], &what, &asked)?;
        let (counters, zero) = found.counters.rows();
        let mut unavailable = found.missing;
        unavailable.extend(zero);
        let kernels = found.times.rows();
        if kernels.iter().map(|row| row.calls).sum::<u64>() >= u64::from(MAX_LAUNCHES) {
            self.notes.push(format!(
                "only the first {MAX_LAUNCHES} kernels were profiled"
            ));
        }
        self.not_empty(ToolReport {
            kernels,
            counters,
            operations: found.operations.rows(),
            unavailable,
            ..ToolReport::default()
        })
    }

    fn perf_stat(&mut self) -> Result<ToolReport, ExternalError> {
        for command in self.request.commands()? {
            self.run(&command)?;
        }
        let (counters, unavailable) =
            perf::parse_stat(&files::read(&self.request.file("-perf-stat.csv"))?)?;
        if !unavailable.is_empty() {
            self.notes.push(
                "virtual machines often lack hardware counters; software events and times are available".to_string(),
            );
        }
        Ok(ToolReport {
            counters,
            unavailable,
            ..ToolReport::default()
        })
    }

    fn perf_record(&mut self) -> Result<ToolReport, ExternalError> {
        let recording = self.request.file("-perf.data");
        let (app, args) = (self.request.app.as_os_str(), self.request.args.as_slice());
        self.run(&perf::record(&recording, app, args))?;
        let done = self.run(&perf::report(&recording))?;
        let mut times = Times::default();
        perf::read_report(&done.stdout, &mut times)?;
        let mut kernels = times.rows();
        kernels.truncate(MAX_FUNCTIONS);
        self.notes.push(format!(
            "each call is a sample, about a thousand per second and thread; callers: perf report -i {}",
            recording.display()
        ));
        self.not_empty(ToolReport {
            kernels,
            ..ToolReport::default()
        })
    }

    fn rocprof_compute(&mut self) -> Result<ToolReport, ExternalError> {
        let workload = self.request.rocprof_compute();
        if workload.path().exists() {
            return Err(ExternalError::NotEmpty {
                dir: self.request.dir.clone(),
            });
        }
        for command in self.request.commands()? {
            self.run(&command)?;
        }
        let kernels = rocprof_compute::read(workload.path())?;
        self.notes.push(format!(
            "the tables of `rocprof-compute analyze` are in {}",
            self.log.display()
        ));
        self.not_empty(ToolReport {
            kernels,
            ..ToolReport::default()
        })
    }

    fn gauge(&mut self) -> Result<ToolReport, ExternalError> {
        let gpu = self.request.gpu.clone().unwrap_or_else(|| "0".to_string());
        let program = self.program.to_path_buf();
        let source = match self.request.tool {
            Tool::NvidiaSmi => Source::NvidiaSmi { program, gpu },
            _ => Source::AmdSmi { program, gpu },
        };
        let sampler = Sampler::start(&source, sampler::EVERY)?;
        self.run(&self.request.application())?;
        Ok(ToolReport {
            utilization: Some(sampler.finish()?),
            ..ToolReport::default()
        })
    }

    fn not_empty(&self, report: ToolReport) -> Result<ToolReport, ExternalError> {
        not_empty(self.request.tool, &self.request.dir, report)
    }
}

fn not_empty(tool: Tool, dir: &Path, report: ToolReport) -> Result<ToolReport, ExternalError> {
    let empty = report.kernels.is_empty() && report.counters.is_empty();
    match empty {
        false => Ok(report),
        true => Err(ExternalError::NoResults {
            dir: dir.to_path_buf(),
            expected: match tool {
                Tool::Perf => "perf took no sample; the program ended at once".to_string(),
                tool => format!(
                    "{} saw no kernel; did the program use the GPU?",
                    tool.name()
                ),
            },
        }),
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::super::rocprof::fixtures::{COUNTERS, TRACE};
    use super::super::tools::tests::script;
    use super::*;

    fn request(tool: Tool) -> Request {
        Request {
            tool,
            version: None,
            dir: PathBuf::from("out"),
            app: "app".into(),
            args: Vec::new(),
            categories: Vec::new(),
            counters: Vec::new(),
            traces: Vec::new(),
            roofline: Roofline::Without,
            gpu: None,
            family: None,
            timeout: None,
        }
    }

    fn printed(request: &Request) -> Vec<String> {
        let commands = request.commands().unwrap();
        commands.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn versions_decide_options() {
        for (version, format) in [
            (None, "csv"),
            (Some((0, 6)), "csv"),
            (Some((1, 0)), "rocpd"),
        ] {
            // What tells of which range a kernel is, also one that is counted.
            let (calls, names) = match format {
                "rocpd" => ("", "--kernel-rename "),
                _ => ("--hip-trace ", ""),
            };
            let request = Request {
                version,
                traces: vec![Trace::Copies, Trace::Hsa, Trace::Markers],
                counters: vec!["FETCH_SIZE".to_string()],
                ..request(Tool::Rocprofv3)
            };
            let counted = match names {
                "" => "",
                _ => "--marker-trace --kernel-rename ",
            };
            let end = format!("--output-format {format} -d out -o rocmforge");
            assert_eq!(
                printed(&request),
                [
                    format!(
                        "rocprofv3 --kernel-trace {calls}--hsa-trace --memory-copy-trace --marker-trace {names}{end} -- app"
                    ),
                    format!("rocprofv3 {counted}--pmc FETCH_SIZE {end}_pmc1 -- app"),
                ]
            );
        }
        let older = Request {
            version: Some((3, 4)),
            ..request(Tool::RocprofCompute)
        };
        assert!(printed(&older)[0].contains("profile -n rocmforge -p out/rocprof-compute"));
        let newer = request(Tool::RocprofCompute);
        assert_eq!(
            printed(&newer)[0],
            "rocprof-compute profile --output-directory out/rocprof-compute --no-roof -- app"
        );
        let roofline = Request {
            roofline: Roofline::With,
            ..newer
        };
        assert_eq!(
            printed(&roofline)[0],
            "rocprof-compute profile --output-directory out/rocprof-compute -- app"
        );
        let dir = tempfile::tempdir().unwrap();
        let program = script(
            dir.path(),
            "rocprofv3",
            "echo '   version: 1.1.0'; echo 'git_revision: 5.6'",
        );
        let asked = request(Tool::Rocprofv3).for_program(&program, &|| false);
        assert_eq!(asked.version, Some((1, 1)));
    }

    #[test]
    fn gpus_have_a_number_or_an_address() {
        let of = |tool, gpu: &str| Request {
            gpu: Some(gpu.to_string()),
            ..request(tool)
        };
        let amd = printed(&of(Tool::AmdSmi, "0000:03:00.0"));
        assert!(
            amd[0].starts_with("amd-smi metric -g 0000:03:00.0 --usage"),
            "{amd:?}"
        );
        let nvidia = printed(&of(Tool::NvidiaSmi, "00000000:01:00.0"));
        assert!(nvidia[0].contains("-i 00000000:01:00.0"), "{nvidia:?}");
        for (tool, gpu, part) in [
            (Tool::AmdSmi, "--json", "'--json' is no GPU"),
            (Tool::AmdSmi, "", "'' is no GPU"),
            (Tool::AmdSmi, "0 1", "'0 1' is no GPU"),
            (Tool::Rocprofv3, "0", "rocprofv3 observes the GPUs"),
        ] {
            let error = of(tool, gpu).commands().unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
        let traces = Request {
            traces: vec![Trace::Hsa],
            ..request(Tool::Nsys)
        };
        let error = traces.commands().unwrap_err().to_string();
        assert!(error.contains("nsys has no choice of traces"), "{error}");
        let roofline = Request {
            roofline: Roofline::With,
            ..request(Tool::Rocprofv3)
        };
        let error = roofline.commands().unwrap_err().to_string();
        assert!(error.contains("rocprofv3 measures no roofline"), "{error}");
        let error = "hsu".parse::<Trace>().unwrap_err().to_string();
        assert!(error.contains("'hsu'; known: hip, hsa, copies"), "{error}");
    }

    #[test]
    fn counters_are_looked_up_before_a_run() {
        let (tools, out) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        for (name, text) in [("trace.csv", TRACE), ("counters.csv", COUNTERS)] {
            fs::write(tools.path().join(name), text).unwrap();
        }
        let program = script(
            tools.path(),
            "rocprofv3",
            &format!(
                "case \"$*\" in --version) exit 2;;\n\
                 *WRITE_SIZE*) exit 9;;\n\
                 *--pmc*) cp {tools}/counters.csv {out}/a_counter_collection.csv;;\n\
                 *) cp {tools}/trace.csv {out}/a_kernel_trace.csv;; esac",
                tools = tools.path().display(),
                out = out.path().display()
            ),
        );
        script(
            tools.path(),
            "rocprofv3-avail",
            "printf 'GPU : 0\\nName : gfx1100\\nPMC :\\n\\nFETCH_SIZE SQ_WAVES\\n'",
        );
        let mut request = Request {
            dir: out.path().to_path_buf(),
            categories: vec![CounterCategory::Memory],
            counters: vec!["SQ_WAVES".to_string()],
            family: Some(GpuFamily::Gfx11),
            ..request(Tool::Rocprofv3)
        };
        let found = request.run(&program, &|| false).unwrap();
        assert!(found.unavailable.contains(&"WRITE_SIZE".to_string()));
        assert_eq!(found.notes[0], "this GPU does not have WRITE_SIZE");
        request.counters.push("SQ_WAVE".to_string());
        let error = request.run(&program, &|| false).unwrap_err().to_string();
        assert!(error.contains("has the counter 'SQ_WAVE'"), "{error}");
    }

    #[test]
    fn reads_results_of_earlier_runs() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("host")).unwrap();
        fs::write(dir.path().join("host/1_kernel_trace.csv"), TRACE).unwrap();
        let found = Request::read(Tool::Rocprofv3, dir.path()).unwrap();
        assert_eq!((found.kernels.len(), found.files.len()), (2, 1));
        let none = Request::read(Tool::RocprofCompute, dir.path()).unwrap_err();
        assert!(none.to_string().contains("saw no kernel"), "{none}");
        let table = "Dispatch_ID,Kernel_Name,Start_Timestamp,End_Timestamp\n0,gemv,1000,3000\n";
        fs::write(dir.path().join("pmc_perf.csv"), table).unwrap();
        let found = Request::read(Tool::RocprofCompute, dir.path()).unwrap();
        let first = &found.kernels[0];
        assert_eq!(
            (first.name.as_str(), first.mean_us, found.files.len()),
            ("gemv", 2.0, 2)
        );
        let error = Request::read(Tool::Ncu, dir.path())
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("results of ncu cannot be read later"),
            "{error}"
        );
    }
}
