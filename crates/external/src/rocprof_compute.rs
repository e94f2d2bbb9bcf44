//! rocprof-compute (formerly omniperf): all counters of a kernel from many runs, next to the hardware's limits.
//!
//! It supports Instinct GPUs. `profile` writes `pmc_perf.csv` with a row per dispatch; `analyze` prints readable tables
//! of it.

use std::ffi::{OsStr, OsString};
use std::io::BufRead;
use std::path::{Path, PathBuf};

use super::command::CommandLine;
use super::csv::Table;
use super::error::ExternalError;
use super::table::Times;

const TOOL: &str = "rocprof-compute";

/// Builds the commands of a workload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RocprofCompute {
    name: String,
    path: PathBuf,
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

    /// Restricts it to these hardware blocks, such as `SQ` and `TCC`.
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
        let mut command = CommandLine::new(TOOL)
            .args(["profile", "-n", &self.name, "-p"])
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
    while let Some(row) = table.next_row()? {
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
            "rocprof-compute profile -n decode -p out/decode --no-roof -- rocmforge bench"
        );
        assert_eq!(
            workload.analyze().to_string(),
            "rocprof-compute analyze -p out/decode"
        );
        let chosen = workload
            .with_kernels(["matvec"])
            .with_blocks(["SQ", "TCC"])
            .with_roofline(Roofline::With);
        assert_eq!(
            chosen.profile("rocmforge", ["bench"]).to_string(),
            "rocprof-compute profile -n decode -p out/decode -k matvec -b SQ TCC -- rocmforge bench"
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
    }
}
