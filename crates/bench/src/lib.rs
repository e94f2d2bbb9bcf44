//! Bench suites: what products, attention, conversions, memory and whole models reach on this machine's devices, beside
//! what the machine allows.
//!
//! A suite is a list of cases. [`run`] gets each ready on each device, has the [`harness`] time it, and makes a
//! [`BenchRow`] of the samples and of the work that the case says it does. `rocmforge bench` and the `cargo bench`
//! targets call the same function and write the rows with [`export`].
#![forbid(unsafe_code)]

mod attention;
pub mod baseline;
mod batch;
mod case;
mod dequant;
pub mod export;
mod filter;
pub mod harness;
mod inference;
mod matmul;
mod memory;
pub mod requests;
pub mod row;
mod target;
mod values;

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use rocmforge_cpu::Isa;
use rocmforge_engine::{ConfigError, EngineError};
use rocmforge_gpu::GpuError;
use rocmforge_model::Model;
use std::ops::ControlFlow;

use case::Case;
use harness::{Budget, Series};
use target::Target;

pub use filter::Filter;
pub use row::BenchRow;
pub use target::{BenchDevice, found_gpus};

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Suite {
    /// Products of F32 and of every quantized format.
    Matmul,
    /// Materialised, online-softmax and causal attention.
    Attention,
    /// Blocks of every format to values.
    Dequant,
    /// Time to the first token and generation of a model.
    Inference,
    /// KV cache: growth, allocation, fragmentation, page tables.
    Memory,
    /// Several products or sequences at once.
    Batch,
}

impl Suite {
    pub const ALL: [Suite; 6] = [
        Suite::Matmul,
        Suite::Attention,
        Suite::Dequant,
        Suite::Inference,
        Suite::Memory,
        Suite::Batch,
    ];

    /// As the command line has it.
    pub fn name(self) -> &'static str {
        match self {
            Suite::Matmul => "matmul",
            Suite::Attention => "attention",
            Suite::Dequant => "dequant",
            Suite::Inference => "inference",
            Suite::Memory => "memory",
            Suite::Batch => "batch",
        }
    }

    fn cases(self, effort: Effort, subject: Option<Subject<'_>>) -> Vec<Case> {
        match self {
            Suite::Matmul => matmul::cases(effort),
            Suite::Attention => attention::cases(effort),
            Suite::Dequant => dequant::cases(effort),
            Suite::Inference => subject.map_or(Vec::new(), |s| inference::cases(effort, s)),
            Suite::Memory => memory::cases(effort),
            Suite::Batch => batch::cases(effort, subject),
        }
    }
}

/// How much time is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effort {
    Full,
    /// Small sizes and few samples, to see that everything runs.
    Quick,
}

impl Effort {
    fn budget(self) -> Budget {
        match self {
            Effort::Full => Budget::FULL,
            Effort::Quick => Budget::QUICK,
        }
    }

    /// One of two sizes.
    fn pick<T>(self, full: T, quick: T) -> T {
        match self {
            Effort::Full => full,
            Effort::Quick => quick,
        }
    }
}

/// A model that suites run.
#[derive(Clone, Copy)]
pub struct Subject<'a> {
    /// What rows call it.
    pub name: &'a str,
    /// The mix of its types, such as `Q4_K_M`.
    pub format: Option<&'a str>,
    pub model: &'a Model,
}

/// What to measure, and where.
pub struct Options<'a> {
    pub suite: Suite,
    /// Cases run on each in turn.
    pub devices: &'a [BenchDevice],
    pub isa: Isa,
    /// Threads of the CPU.
    pub n_threads: usize,
    pub effort: Effort,
    pub filter: Option<&'a Filter>,
    /// For the suites [`Suite::Inference`] and [`Suite::Batch`].
    pub subject: Option<Subject<'a>>,
}

/// Who is told what happens, while it happens.
pub trait Sink {
    /// The case that is measured next.
    fn begins(&mut self, name: &str);
    /// A finished row.
    fn row(&mut self, row: &BenchRow) -> ControlFlow<()>;
    /// A case that gives no row, and why; or what the reader should know of a device.
    fn note(&mut self, text: &str);
    /// Whether to stop; asked before every sample.
    fn is_stopped(&self) -> bool;
}

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// With so many rows.
    Finished { n_rows: usize },
    /// By the sink. All rows before were given to it.
    Stopped,
}

/// Why a suite, or a case, could not be measured.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error("the GPU: {0}")]
    Gpu(#[from] GpuError),
    #[error(transparent)]
    Gguf(#[from] rocmforge_gguf::Error),
    #[error("{0}")]
    Unsupported(String),
    #[error("it needs {needed_mib} MiB, {free_mib} MiB are free")]
    NoMemory { needed_mib: u64, free_mib: u64 },
    #[error(
        "no case of {suite} matches '{filter}'; the first of its {n_cases} cases is {first}, the last {last}"
    )]
    NoMatch {
        suite: &'static str,
        filter: String,
        n_cases: usize,
        first: String,
        last: String,
    },
    /// By whoever was asked.
    #[error("stopped")]
    Stopped,
    #[error("the suite {suite} runs a model, and none was given")]
    NoModel { suite: &'static str },
    #[error(
        "the cache kept {kept} of {depth} tokens between two runs; take less depth or fewer sequences"
    )]
    CacheLost { kept: usize, depth: usize },
}

impl BenchError {
    /// Whether other cases may still be measured.
    fn is_of_the_case(&self) -> bool {
        match self {
            BenchError::Unsupported(_) | BenchError::NoMemory { .. } => true,
            BenchError::Gpu(error) => matches!(
                error,
                GpuError::OutOfMemory { .. } | GpuError::Format { .. } | GpuError::NoSymbol { .. }
            ),
            BenchError::Engine(error) => matches!(
                error,
                EngineError::Config(
                    ConfigError::NoMemory { .. }
                        | ConfigError::NoMemoryAtAll { .. }
                        | ConfigError::NoMemoryForWeights { .. }
                        | ConfigError::TooFewPositions { .. }
                )
            ),
            _ => false,
        }
    }
}

/// The rows that a suite gives on `device`, by name.
pub fn row_names(options: &Options<'_>, device: &BenchDevice) -> Vec<String> {
    let cases = options.suite.cases(options.effort, options.subject);
    let cases = cases.iter().filter(|case| case.runs_on(device));
    cases
        .flat_map(|case| {
            case.parts
                .iter()
                .map(|part| full_name(options, part, device))
        })
        .collect()
}

fn full_name(options: &Options<'_>, part: &str, device: &BenchDevice) -> String {
    format!("{}/{part}/{}", options.suite.name(), device.label())
}

/// Whether the filter wants the row.
fn is_wanted(options: &Options<'_>, name: &str) -> bool {
    options.filter.is_none_or(|filter| filter.matches(name))
}

/// The names of all rows that the filter leaves.
///
/// # Errors
/// If nothing matches the filter, or the suite needs a model and has none.
pub fn wanted_names(options: &Options<'_>) -> Result<Vec<String>, BenchError> {
    let suite = options.suite.name();
    if options.suite == Suite::Inference && options.subject.is_none() {
        return Err(BenchError::NoModel { suite });
    }
    let all = options.devices.iter();
    let all: Vec<String> = all.flat_map(|on| row_names(options, on)).collect();
    let wanted: Vec<String> = all
        .iter()
        .filter(|name| is_wanted(options, name))
        .cloned()
        .collect();
    match options.filter {
        Some(filter) if wanted.is_empty() => Err(BenchError::NoMatch {
            suite,
            filter: filter.text().to_string(),
            n_cases: all.len(),
            first: all.first().cloned().unwrap_or_default(),
            last: all.last().cloned().unwrap_or_default(),
        }),
        _ => Ok(wanted),
    }
}

/// Measures the cases that the filter leaves on each device.
///
/// # Errors
/// If nothing matches the filter, a device cannot be opened or stops working. A case that the device has no memory or no
/// kernel for is a note.
pub fn run(options: &Options<'_>, sink: &mut dyn Sink) -> Result<Outcome, BenchError> {
    wanted_names(options)?;
    let mut n_rows = 0;
    for device in options.devices {
        let cases = options.suite.cases(options.effort, options.subject);
        let wanted: Vec<Case> = cases
            .into_iter()
            .filter(|case| case.runs_on(device))
            .filter(|case| {
                let mut names = case
                    .parts
                    .iter()
                    .map(|part| full_name(options, part, device));
                names.any(|name| is_wanted(options, &name))
            })
            .collect();
        if wanted.is_empty() {
            continue;
        }
        sink.begins(&format!("what {} can do", device.label()));
        let target = Target::open(device, options.isa, options.n_threads)?;
        // Each is dropped when it is over, and what it shared with others with the last of them.
        for case in wanted {
            match run_case(options, &case, &target, sink) {
                Ok(n) => n_rows += n,
                Err(BenchError::Stopped) => return Ok(Outcome::Stopped),
                Err(error) if error.is_of_the_case() => {
                    let name = full_name(options, &case.parts[0], device);
                    sink.note(&format!("{name} was left out: {error}"));
                }
                Err(error) => return Err(error),
            }
        }
    }
    Ok(Outcome::Finished { n_rows })
}

/// Measures a case and gives its rows to the sink; how many.
fn run_case(
    options: &Options<'_>,
    case: &Case,
    target: &Target,
    sink: &mut dyn Sink,
) -> Result<usize, BenchError> {
    let device = target.device();
    sink.begins(&full_name(options, &case.parts[0], device));
    let stop = || sink.is_stopped();
    if stop() {
        return Err(BenchError::Stopped);
    }
    let mut prepared = (case.prepare)(target, &stop)?;
    let series = harness::collect(&options.effort.budget(), &mut *prepared.run, &stop)?;
    let mut n_rows = 0;
    for ((name, part), series) in case.parts.iter().zip(prepared.parts).zip(&series) {
        let name = full_name(options, name, device);
        if !is_wanted(options, &name) {
            continue;
        }
        let Some(row) = make_row(options, case, target, (name, part), series) else {
            continue;
        };
        n_rows += 1;
        if sink.row(&row) == ControlFlow::Break(()) {
            return Err(BenchError::Stopped);
        }
    }
    Ok(n_rows)
}

/// `None` if there are no samples.
fn make_row(
    options: &Options<'_>,
    case: &Case,
    target: &Target,
    (name, part): (String, case::Part),
    series: &Series,
) -> Option<BenchRow> {
    let times = row::Times::of(series)?;
    let mut metadata = BTreeMap::from([
        ("backend".to_string(), target.backend().to_string()),
        ("isa".to_string(), target.isa().name().to_string()),
        ("version".to_string(), env!("CARGO_PKG_VERSION").to_string()),
    ]);
    if let Some(format) = &case.format {
        metadata.insert("format".to_string(), format.clone());
    }
    if case.has_model
        && let Some(subject) = options.subject
    {
        metadata.insert("model".to_string(), subject.name.to_string());
    }
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    Some(BenchRow {
        name,
        suite: options.suite.name().to_string(),
        device: target.device().label(),
        emulated: target.device().is_emulated(),
        format: case.format.clone(),
        shape: case.shape.clone(),
        rates: part.work.rates(times.p50_ms / 1e3, target.ceilings()),
        times,
        metrics: part.metrics,
        notes: part.notes,
        timestamp: since.map_or(0, |time| time.as_secs()),
        hardware: target.hardware().clone(),
        metadata,
    })
}
