//! Flags for saving, comparing and showing baselines.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use rocmforge_bench::baseline::{HardwareRule, Rules, Tails, Thresholds};

/// The baselines folder.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Baselines")]
pub struct BaselineStoreArgs {
    /// Baselines folder [default: $XDG_DATA_HOME/rocmforge/baselines or ~/.local/share/rocmforge/baselines]
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
    /// Regression threshold in percent, for all metrics or by metric: 5, p50_ms=5,tokens_s=3 [default: 10]
    #[arg(long, value_name = "PERCENT|METRIC=PERCENT,...")]
    pub threshold: Option<Thresholds>,
    /// Also compare results of a different machine, GPU or thread count
    #[arg(long)]
    pub allow_other_hardware: bool,
    /// Also judge the mean and the 95th percentile (with at least 10 and 40 samples), which slow outliers move
    #[arg(long)]
    pub tails: bool,
    /// Exit code 5 if a metric cannot be judged: noise, too few samples, or a busy machine
    #[arg(long)]
    pub fail_inconclusive: bool,
}

impl RuleArgs {
    pub fn rules(&self) -> Rules {
        Rules {
            thresholds: self.threshold.clone().unwrap_or_default(),
            hardware: match self.allow_other_hardware {
                true => HardwareRule::Any,
                false => HardwareRule::Same,
            },
            tails: match self.tails {
                true => Tails::Judged,
                false => Tails::Remarked,
            },
        }
    }
}

/// Baselines of a benchmark run.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Baselines")]
pub struct KeepArgs {
    /// Save the results under this name [NAME defaults to: default]
    ///
    /// They are merged with the other benchmarks of the baseline
    #[arg(long, value_name = "NAME", num_args = 0..=1, default_missing_value = "default")]
    pub save_baseline: Option<String>,
    /// Compare with this baseline or file [NAME defaults to: default]
    ///
    /// The exit code is 3 on a regression
    #[arg(long, value_name = "NAME", num_args = 0..=1, default_missing_value = "default")]
    pub compare_baseline: Option<String>,
    /// Measure regressions again at the end, up to N times; the best measurement counts, as other load on the machine
    /// passes and a real regression stays
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
    /// Format of the comparison; junit: XML for CI systems
    #[arg(
        long,
        value_enum,
        value_name = "FORMAT",
        default_value_t = ReportForm::Terminal,
        requires = "compare_baseline"
    )]
    pub report: ReportForm,
    /// Write the comparison to a file
    #[arg(long, value_name = "FILE", requires = "compare_baseline")]
    pub report_file: Option<PathBuf>,
    #[command(flatten)]
    pub store: BaselineStoreArgs,
}

/// Format of a comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ReportForm {
    #[value(name = "table", alias = "terminal")]
    Terminal,
    Json,
    Junit,
    #[value(name = "md", alias = "markdown")]
    Markdown,
}

#[derive(Debug, Args)]
pub struct BaselineArgs {
    #[command(subcommand)]
    pub command: BaselineCommand,
}

#[derive(Debug, Subcommand)]
pub enum BaselineCommand {
    /// List baselines, oldest first
    List(BaselineListArgs),
    /// Show a baseline
    Show(BaselineShowArgs),
    /// Compare two baselines; exit code 3 if the second is worse
    Compare(BaselineCompareArgs),
    /// Chart all baselines over time
    Trend(BaselineTrendArgs),
    /// Delete baselines
    Rm(BaselineRmArgs),
}

#[derive(Debug, Args)]
pub struct BaselineRmArgs {
    /// Baseline names
    #[arg(value_name = "NAME", required = true)]
    pub names: Vec<String>,
    #[command(flatten)]
    pub store: BaselineStoreArgs,
}

#[derive(Debug, Args)]
pub struct BaselineListArgs {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub store: BaselineStoreArgs,
}

#[derive(Debug, Args)]
pub struct BaselineShowArgs {
    /// Baseline name or file
    #[arg(value_name = "NAME")]
    pub name: String,
    /// Print the baseline file (schema A)
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub store: BaselineStoreArgs,
}

#[derive(Debug, Args)]
pub struct BaselineCompareArgs {
    /// Reference: baseline name or file
    #[arg(value_name = "A")]
    pub baseline: String,
    /// Compared with A: baseline name or file
    #[arg(value_name = "B")]
    pub current: String,
    #[command(flatten)]
    pub rules: RuleArgs,
    /// Format of the comparison; junit: XML for CI systems
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = ReportForm::Terminal)]
    pub format: ReportForm,
    /// Write the comparison to a file
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    #[command(flatten)]
    pub store: BaselineStoreArgs,
}

#[derive(Debug, Args)]
pub struct BaselineTrendArgs {
    /// Write a self-contained HTML page with charts
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Regression threshold in percent, for all metrics or by metric: 5, p50_ms=5,tokens_s=3 [default: 10]
    #[arg(long, value_name = "PERCENT|METRIC=PERCENT,...")]
    pub threshold: Option<Thresholds>,
    #[command(flatten)]
    pub store: BaselineStoreArgs,
}
