//! rocprof-compute (formerly omniperf): all counters of a kernel from many runs, next to the hardware's limits.
//!
//! It supports Instinct GPUs and, since version 3.6, some of RDNA. `analyze` prints readable tables. The counters are in
//! `pmc_perf.csv`, which `profile` writes before version 3.6 and `analyze` since: with a row per dispatch, or, since the
//! data come from rocpd databases, a row per counter of a dispatch and run.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::io::BufRead;
use std::path::{Path, PathBuf};

use super::command::CommandLine;
use super::csv::Table;
use super::error::ExternalError;
use super::table::Times;

const TOOL: &str = "rocprof-compute";

/// Most dispatches of a workload.
const MAX_DISPATCHES: usize = 10_000_000;

/// How a version of the tool is told where to write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// `--output-directory`, from version 3.5 (ROCm 7.12).
    Directory,
    /// `-n` and `-p`, which version 3.7 (ROCm 7.14) removed.
    Path,
}

impl Target {
    /// Returns the way for a version: major and minor number.
    pub fn of_version(version: Option<(u32, u32)>) -> Target {
        match version {
            Some(version) if version < (3, 5) => Target::Path,
            _ => Target::Directory,
        }
    }
}

/// Builds the commands of a workload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RocprofCompute {
    name: String,
    path: PathBuf,
    target: Target,
    kernels: Vec<String>,
    blocks: Vec<String>,
    roofline: Roofline,
}

/// Whether to measure the hardware's limits too, which takes minutes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Roofline {
    With,
    Without,
    Only,
}

impl RocprofCompute {
    /// Creates a workload `name` whose files go to `path`.
    pub fn new(name: impl Into<String>, path: impl Into<PathBuf>) -> RocprofCompute {
        RocprofCompute {
            name: name.into(),
            path: path.into(),
            target: Target::Directory,
            kernels: Vec::new(),
            blocks: Vec::new(),
            roofline: Roofline::Without,
        }
    }

    /// Restricts it to kernels whose names contain one of these.
    pub fn with_kernels<S: Into<String>>(mut self, names: impl IntoIterator<Item = S>) -> Self {
        self.kernels.extend(names.into_iter().map(Into::into));
        self
    }

    pub fn with_target(mut self, target: Target) -> Self {
        self.target = target;
        self
    }

    /// Restricts it to these blocks of the report, such as `10` and `7.1`, or since version 3.4 their names, such as
    /// `lds`.
    pub fn with_blocks<S: Into<String>>(mut self, blocks: impl IntoIterator<Item = S>) -> Self {
        self.blocks.extend(blocks.into_iter().map(Into::into));
        self
    }

    pub fn with_roofline(mut self, roofline: Roofline) -> Self {
        self.roofline = roofline;
        self
    }

    /// Returns the command that runs `app` as often as the counters need.
    pub fn profile<S: Into<OsString>>(
        &self,
        app: impl AsRef<OsStr>,
        args: impl IntoIterator<Item = S>,
    ) -> CommandLine {
        let args: Vec<OsString> = args.into_iter().map(Into::into).collect();
        let command = CommandLine::new(TOOL).arg("profile");
        let mut command = match self.target {
            Target::Directory => command.arg("--output-directory"),
            Target::Path => command.args(["-n", &self.name, "-p"]),
        }
        .arg(&self.path);
        for (flag, values) in [("-k", &self.kernels), ("-b", &self.blocks)] {
            if !values.is_empty() {
                command = command.arg(flag).args(values.iter().cloned());
            }
        }
        command = match self.roofline {
            Roofline::With => command,
            Roofline::Without => command.arg("--no-roof"),
            Roofline::Only => command.arg("--roof-only"),
        };
        command.arg("--").application(app.as_ref(), &args)
    }

    /// Returns the command that prints the workload's tables.
    pub fn analyze(&self) -> CommandLine {
        CommandLine::new(TOOL)
            .args(["analyze", "-p"])
            .arg(&self.path)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Reads the times from `pmc_perf.csv`.
pub(super) fn read_times(
    reader: impl BufRead,
    what: &str,
    times: &mut Times,
) -> Result<(), ExternalError> {
    let is_header = |fields: &[String]| fields.iter().any(|field| field == "Kernel_Name");
    let mut table = Table::open(reader, TOOL, what, is_header)?;
    let is_long = table.header().iter().any(|column| column == "Counter_Name");
    let mut seen = HashSet::new();
    while let Some(row) = table.next_row()? {
        // The runs number the same dispatches alike; the times of the first count.
        if is_long {
            let dispatch = row.number("Dispatch_ID")? as u64;
            if !seen.insert(dispatch) {
                continue;
            }
            if seen.len() > MAX_DISPATCHES {
                let reason =
                    format!("it has more than {MAX_DISPATCHES} dispatches; profile a shorter run");
                return Err(ExternalError::malformed(TOOL, what, reason));
            }
        }
        let ns = row.between("Start_Timestamp", "End_Timestamp")?;
        times.add(row.text("Kernel_Name")?, ns);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn builds_the_documented_commands() {
        let workload = RocprofCompute::new("decode", "out/decode");
        assert_eq!(
            workload.profile("rocmforge", ["bench"]).to_string(),
            "rocprof-compute profile --output-directory out/decode --no-roof -- rocmforge bench"
        );
        let older = workload
            .clone()
            .with_target(Target::of_version(Some((3, 4))));
        assert_eq!(
            older.profile("rocmforge", ["bench"]).to_string(),
            "rocprof-compute profile -n decode -p out/decode --no-roof -- rocmforge bench"
        );
        for version in [None, Some((3, 5)), Some((4, 0))] {
            assert_eq!(Target::of_version(version), Target::Directory);
        }
        assert_eq!(
            workload.analyze().to_string(),
            "rocprof-compute analyze -p out/decode"
        );
        let chosen = workload
            .with_kernels(["matvec"])
            .with_blocks(["10", "lds"])
            .with_roofline(Roofline::With);
        assert_eq!(
            chosen.profile("rocmforge", ["bench"]).to_string(),
            "rocprof-compute profile --output-directory out/decode -k matvec -b 10 lds -- rocmforge bench"
        );
        let roof = chosen
            .with_roofline(Roofline::Only)
            .profile("a", [""; 0])
            .to_string();
        assert!(roof.contains(" --roof-only -- a"), "{roof}");
    }

    #[test]
    fn sums_up_dispatches() {
        let text = "Dispatch_ID,Kernel_Name,GPU_ID,Grid_Size,SQ_WAVES,Start_Timestamp,End_Timestamp\n\
                    0,\"matvec(Params) [clone .kd]\",2,1048576,16384,1412702536508356,1412702536528996\n\
                    1,\"matvec(Params) [clone .kd]\",2,1048576,16384,1412702536548036,1412702536563556\n";
        let mut times = Times::default();
        read_times(text.as_bytes(), "pmc_perf.csv", &mut times).unwrap();
        let rows = times.rows();
        assert_eq!((rows[0].calls, rows[0].mean_us), (2, 18.08));
        // A row per counter, in two runs.
        let text = "Dispatch_ID,Kernel_Name,Start_Timestamp,End_Timestamp,Counter_Name,Counter_Value\n\
                    0,matvec,1000,21000,SQ_WAVES,1\n0,matvec,1000,21000,SQ_BUSY_CYCLES,1\n\
                    1,matvec,31000,51000,SQ_WAVES,1\n0,matvec,5000,75000,TCC_HIT,1\n";
        let mut times = Times::default();
        read_times(text.as_bytes(), "pmc_perf.csv", &mut times).unwrap();
        let rows = times.rows();
        assert_eq!((rows[0].calls, rows[0].mean_us), (2, 20.0));
    }
}
