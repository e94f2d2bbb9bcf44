//! The flags of baselines: where they are kept, how they are compared, and the command that shows them.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use rocmforge_bench::baseline::{HardwareRule, Rules, Thresholds};

/// Where baselines are kept.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Baselines")]
pub struct BaselineStoreArgs {
    /// The baselines folder [default: $XDG_DATA_HOME/rocmforge/baselines, ~/.local/share/rocmforge/baselines]
    #[arg(
        long,
        value_name = "DIR",
        env = "ROCMFORGE_BASELINE_DIR",
        hide_env_values = true
    )]
    pub baseline_dir: Option<PathBuf>,
}

/// When a change is a regression.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Baselines")]
pub struct RuleArgs {
    /// The smallest loss that counts, in percent, of all metrics or of one: 5, p50_ms=5,tokens_s=3 [default: 10]
    #[arg(long, value_name = "PERCENT|METRIC=PERCENT,...")]
    pub threshold: Option<Thresholds>,
    /// Compare also with measurements of another machine, GPU or number of threads
    #[arg(long)]
    pub allow_other_hardware: bool,
}

impl RuleArgs {
    pub fn rules(&self) -> Rules {
        Rules {
            thresholds: self.threshold.clone().unwrap_or_default(),
            hardware: match self.allow_other_hardware {
                true => HardwareRule::Any,
                false => HardwareRule::Same,
            },
        }
    }
}

/// What a benchmark does with baselines.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Baselines")]
pub struct KeepArgs {
    /// Keep the results under this name, beside other benchmarks of the name [default of NAME: default]
    #[arg(long, value_name = "NAME", num_args = 0..=1, default_missing_value = "default")]
    pub save_baseline: Option<String>,
    /// Compare the results with this baseline, or with a file of one; exit code 3 if any is worse [default of NAME:
    /// default]
    #[arg(long, value_name = "NAME", num_args = 0..=1, default_missing_value = "default")]
    pub compare_baseline: Option<String>,
    /// Measure what is worse than the baseline again, up to this often, once all else is done: the best measurement
    /// counts, since what disturbs a machine passes and a regression stays
    #[arg(
        long,
        value_name = "N",
        default_value_t = 2,
        value_parser = clap::value_parser!(u8).range(..=100),
        requires = "compare_baseline"
    )]
    pub recheck: u8,
    #[command(flatten)]
    pub rules: RuleArgs,
    /// How to print the comparison
    #[arg(
        long,
        value_enum,
        value_name = "FORMAT",
        default_value_t = ReportForm::Terminal,
        requires = "compare_baseline"
    )]
    pub report: ReportForm,
    /// Write the comparison to this file
    #[arg(long, value_name = "FILE", requires = "compare_baseline")]
    pub report_file: Option<PathBuf>,
    #[command(flatten)]
    pub store: BaselineStoreArgs,
}

/// How a comparison is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ReportForm {
    /// A table
    Terminal,
    Json,
    /// XML for the test reports of CI systems
    Junit,
    /// For pull requests
    Markdown,
}

#[derive(Debug, Args)]
pub struct BaselineArgs {
    #[command(subcommand)]
    pub command: BaselineCommand,
}

#[derive(Debug, Subcommand)]
pub enum BaselineCommand {
    /// List the baselines, the oldest first
    List(BaselineListArgs),
    /// Show what a baseline holds
    Show(BaselineShowArgs),
    /// Compare two baselines; exit code 3 if the second is worse
    Compare(BaselineCompareArgs),
    /// Show all baselines over time
    Trend(BaselineTrendArgs),
}

#[derive(Debug, Args)]
pub struct BaselineListArgs {
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub store: BaselineStoreArgs,
}

#[derive(Debug, Args)]
pub struct BaselineShowArgs {
    /// A name that baseline list shows, or a file
    #[arg(value_name = "NAME")]
    pub name: String,
    /// Print the baseline as it is kept, in schema A
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub store: BaselineStoreArgs,
}

#[derive(Debug, Args)]
pub struct BaselineCompareArgs {
    /// The baseline, or a file
    #[arg(value_name = "A")]
    pub baseline: String,
    /// What is compared with it, or a file
    #[arg(value_name = "B")]
    pub current: String,
    #[command(flatten)]
    pub rules: RuleArgs,
    /// How to print the comparison
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = ReportForm::Terminal)]
    pub format: ReportForm,
    /// Write it to this file
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    #[command(flatten)]
    pub store: BaselineStoreArgs,
}

#[derive(Debug, Args)]
pub struct BaselineTrendArgs {
    /// Write a page with charts to this file (HTML that needs nothing else)
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// The smallest loss that counts, in percent, of all metrics or of one: 5, p50_ms=5,tokens_s=3 [default: 10]
    #[arg(long, value_name = "PERCENT|METRIC=PERCENT,...")]
    pub threshold: Option<Thresholds>,
    #[command(flatten)]
    pub store: BaselineStoreArgs,
}
