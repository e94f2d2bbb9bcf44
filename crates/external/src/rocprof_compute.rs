//! rocprof-compute (formerly omniperf): all counters of a kernel from many runs, next to the hardware's limits.
//!
//! It supports Instinct GPUs and, since version 3.6, some of RDNA. `analyze` prints readable tables. The counters are in
//! `pmc_perf.csv`, which `profile` writes before version 3.6 and `analyze` since: with a row per dispatch, or, since the
//! data come from rocpd databases, a row per counter of a dispatch and run. Since ROCm 10 the file is compressed
//! (`pmc_perf.csv.gz`: ROCm/rocm-systems, pull request 10488), as are the `results_*.csv.gz` of the runs from which `analyze`
//! makes it ("Analyze mode" in rocprof-compute's documentation).

use std::collections::{BTreeMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::io::BufRead;
use std::path::{Path, PathBuf};

use super::command::CommandLine;
use super::csv::Table;
use super::error::ExternalError;
use super::files;
use super::table::{TimeRow, Times};

const TOOL: &str = "rocprof-compute";

/// Most dispatches of a workload.
const MAX_DISPATCHES: usize = 10_000_000;

/// Most MiB that a compressed file becomes.
const MAX_UNPACKED_MIB: u64 = 16 << 10;

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

/// Reads the times of kernels in a file, or below the folder of a workload.
pub(super) fn read(path: &Path) -> Result<Vec<TimeRow>, ExternalError> {
    let mut times = Times::default();
    if path.is_file() {
        read_file(path, &mut times, &mut HashSet::new())?;
        return Ok(times.rows());
    }
    let all = files::below(path)?;
    let mut workloads: BTreeMap<&Path, Vec<&Path>> = BTreeMap::new();
    for file in &all {
        let folder = file.parent().unwrap_or(path);
        workloads.entry(folder).or_default().push(file);
    }
    let mut is_merged = false;
    for (folder, files) in workloads {
        let merged = ["pmc_perf.csv.gz", "pmc_perf.csv"].map(|name| folder.join(name));
        let merged = merged.iter().find(|file| files.contains(&file.as_path()));
        let chosen = match merged {
            Some(file) => vec![file.as_path()],
            None => files.into_iter().filter(|file| is_result(file)).collect(),
        };
        is_merged |= !chosen.is_empty();
        let mut seen = HashSet::new();
        for file in chosen {
            read_file(file, &mut times, &mut seen)?;
        }
    }
    let is_database = |file: &PathBuf| file.extension().is_some_and(|end| end == "db");
    if !is_merged && all.iter().any(is_database) {
        return Err(ExternalError::NoResults {
            dir: path.to_path_buf(),
            expected: format!(
                "it has only databases of single runs; merge them with `rocprof-compute analyze -p {}`",
                path.display()
            ),
        });
    }
    Ok(times.rows())
}

/// Whether it is the table of a run, from which `analyze` makes `pmc_perf.csv`.
fn is_result(file: &Path) -> bool {
    let name = file.file_name().and_then(OsStr::to_str).unwrap_or_default();
    name.starts_with("results_") && (name.ends_with(".csv") || name.ends_with(".csv.gz"))
}

fn read_file(path: &Path, times: &mut Times, seen: &mut HashSet<u64>) -> Result<(), ExternalError> {
    let what = path.display().to_string();
    let file = files::open(path)?;
    match path.extension().is_some_and(|end| end == "gz") {
        true => read_packed(file, &what, times, seen),
        false => read_times(file, &what, times, seen),
    }
}

/// Reads the times from a compressed table.
pub(super) fn read_packed(
    packed: impl BufRead,
    what: &str,
    times: &mut Times,
    seen: &mut HashSet<u64>,
) -> Result<(), ExternalError> {
    read_times(files::unpack(packed, MAX_UNPACKED_MIB), what, times, seen)
}

/// Reads the times from a table. Runs that count different counters number the same dispatches alike; the times of the first
/// count, and `seen` has the dispatches of those before.
pub(super) fn read_times(
    reader: impl BufRead,
    what: &str,
    times: &mut Times,
    seen: &mut HashSet<u64>,
) -> Result<(), ExternalError> {
    let is_header = |fields: &[String]| fields.iter().any(|field| field == "Kernel_Name");
    let mut table = Table::open(reader, TOOL, what, is_header)?;
    let is_long = table.header().iter().any(|column| column == "Counter_Name");
    while let Some(row) = table.next_row()? {
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
    use std::fs;

    use super::files::tests::gzip;
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

    /// `pmc_perf.csv` before version 3.6: a row per dispatch, with the columns of rocprofv2's file plugin, version 2
    /// ("Plugin support" in ROCprofiler's documentation), and of counters.
    const WIDE: &str = r#"Dispatch_ID,GPU_ID,Queue_ID,PID,TID,Grid_Size,Workgroup_Size,LDS_Per_Workgroup,Scratch_Per_Workitem,Arch_VGPR,Accum_VGPR,SGPR,Wave_Size,Kernel_Name,Start_Timestamp,End_Timestamp,Correlation_ID,SQ_WAVES
0,2,0,501,501,1048576,64,0,0,8,0,16,64,"matvec(Params) [clone .kd]",1412702536508356,1412702536528996,0,16384
1,2,0,501,501,1048576,64,0,0,8,0,16,64,"matvec(Params) [clone .kd]",1412702536548036,1412702536563556,1,16384
"#;

    /// The newest one, a row per counter of a dispatch, with the columns in `tests/unit/utils/test_file_io.py` of
    /// rocprof-compute. Each run counted other counters.
    const LONG_HEADER: &str = "GPU_ID,Dispatch_ID,Grid_Size,Workgroup_Size,LDS_Per_Workgroup,\
        Scratch_Per_Workitem,Arch_VGPR,Accum_VGPR,SGPR,Kernel_Name,Start_Timestamp,End_Timestamp,Kernel_ID,Counter_Name,\
        Counter_Value\n";
    const LONG_RUNS: [&str; 2] = [
        "0,0,256,64,0,0,8,0,16,matvec,1000,21000,0,SQ_WAVES,1\n\
         0,0,256,64,0,0,8,0,16,matvec,1000,21000,0,SQ_BUSY_CYCLES,1\n\
         0,1,256,64,0,0,8,0,16,matvec,31000,51000,0,SQ_WAVES,1\n",
        "0,0,256,64,0,0,8,0,16,matvec,5000,75000,0,TCC_HIT,1\n",
    ];

    fn times(text: &str) -> Vec<TimeRow> {
        let mut times = Times::default();
        read_times(text.as_bytes(), "text", &mut times, &mut HashSet::new()).unwrap();
        times.rows()
    }

    #[test]
    fn sums_up_dispatches() {
        let rows = times(WIDE);
        assert_eq!((rows[0].calls, rows[0].mean_us), (2, 18.08));
        let rows = times(&format!("{LONG_HEADER}{}", LONG_RUNS.concat()));
        assert_eq!((rows[0].calls, rows[0].mean_us), (2, 20.0));
    }

    #[test]
    fn reads_the_files_of_a_workload() {
        let dir = tempfile::tempdir().unwrap();
        let workload = dir.path().join("rocprof-compute");
        fs::create_dir(&workload).unwrap();
        let found = || {
            let rows = read(dir.path()).unwrap();
            rows.iter()
                .map(|row| (row.name.clone(), row.calls, row.mean_us))
                .collect::<Vec<_>>()
        };
        let long = vec![("matvec".to_string(), 2, 20.0)];
        assert_eq!(found(), []);
        fs::write(workload.join("sysinfo.csv"), "workload_name\nx\n").unwrap();
        for (i, rows) in LONG_RUNS.iter().enumerate() {
            let packed = gzip(format!("{LONG_HEADER}{rows}").as_bytes());
            fs::write(
                workload.join(format!("results_pmc_perf_{i}.csv.gz")),
                packed,
            )
            .unwrap();
        }
        assert_eq!(found(), long);
        // What `analyze` made of these files counts, not they.
        let merged = workload.join("pmc_perf.csv.gz");
        let text = format!("{LONG_HEADER}{}", LONG_RUNS.concat());
        fs::write(&merged, gzip(text.as_bytes())).unwrap();
        assert_eq!(found(), long);
        let alone = read(&merged).unwrap();
        assert_eq!((alone[0].calls, alone[0].mean_us), (2, 20.0));
        fs::write(&merged, &gzip(text.as_bytes())[..40]).unwrap();
        let error = read(dir.path()).unwrap_err().to_string();
        assert!(error.contains("pmc_perf.csv.gz is not what"), "{error}");
        fs::remove_file(&merged).unwrap();
        fs::write(workload.join("pmc_perf.csv"), WIDE).unwrap();
        let wide = vec![("matvec(Params) [clone .kd]".to_string(), 2, 18.08)];
        assert_eq!(found(), wide);
    }

    /// The newest layout of `profile`: a database per process and run in `out`.
    #[test]
    fn databases_must_be_merged_first() {
        let dir = tempfile::tempdir().unwrap();
        let run = dir.path().join("out/pmc_perf_0/501");
        fs::create_dir_all(&run).unwrap();
        fs::write(run.join("501.db"), "SQLite format 3").unwrap();
        let error = read(dir.path()).unwrap_err().to_string();
        assert!(
            error.contains("merge them with `rocprof-compute analyze -p"),
            "{error}"
        );
    }
}
