//! Flags of `profile-with`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

#[derive(Debug, Args)]
pub struct ExternalArgs {
    /// rocprofv3, rocprof-compute, amd-smi, nsys, ncu, nvidia-smi, perf
    #[arg(value_name = "TOOL", required_unless_present = "list")]
    pub tool: Option<String>,
    /// List the tools and whether they are installed
    #[arg(long, conflicts_with_all = ["tool", "command", "dry_run"])]
    pub list: bool,
    /// Counters by category: instructions, waves, memory, cache, compute-unit, lds, stalls
    #[arg(long, value_name = "CATEGORY,...", value_delimiter = ',')]
    pub counters: Vec<String>,
    /// Counters by hardware name, collected in one run
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    pub pmc: Vec<String>,
    /// What rocprofv3 traces too: hip, hsa, copies, markers [default: hip]
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    pub trace: Vec<String>,
    /// Let rocprof-compute measure the GPU's limits too, which takes minutes
    #[arg(long)]
    pub roofline: bool,
    /// GPU for amd-smi, nvidia-smi: number, PCI address or UUID [default: 0]
    #[arg(long, value_name = "GPU")]
    pub gpu: Option<String>,
    /// AMD architecture of counters, as gfx1100 [default: the first GPU's]
    #[arg(long, value_name = "NAME")]
    pub arch: Option<String>,
    /// Folder for the tool's files
    #[arg(
        short,
        long,
        value_name = "DIR",
        required_unless_present_any = ["list", "dry_run", "read"]
    )]
    pub output: Option<PathBuf>,
    /// Read earlier results of rocprofv3 or rocprof-compute: folder or file
    #[arg(
        long,
        value_name = "PATH",
        conflicts_with_all = ["list", "output", "dry_run", "command", "counters", "pmc", "trace", "roofline", "gpu"]
    )]
    pub read: Option<PathBuf>,
    /// Print the commands without running them
    #[arg(long)]
    pub dry_run: bool,
    /// Time limit of each command and its child processes
    #[arg(long, value_name = "SECONDS", default_value = "600", value_parser = seconds)]
    pub timeout: Duration,
    /// Rows to print of each table
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub rows: usize,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Command to profile
    #[arg(value_name = "COMMAND", last = true)]
    pub command: Vec<OsString>,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text
        .parse::<f64>()
        .ok()
        .filter(|seconds| *seconds > 0.0 && *seconds <= 1e6);
    seconds
        .map(Duration::from_secs_f64)
        .ok_or_else(|| "use seconds above 0 and at most 1000000".to_string())
}
