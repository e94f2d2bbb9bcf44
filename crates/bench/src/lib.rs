//! Measures parts of rocmforge on their own (bench suites), keeps the results (baselines) and decides whether later
//! results are worse.
//!
//! A number is never compared with one from other hardware unless the user asks for it, and never called worse on noise
//! alone. A suite is a list of cases: [`run`] prepares each on each device, lets the [`harness`] time it, and makes a
//! [`BenchRow`] of the samples and the work of the case. [`export`] writes rows as text; [`mod@baseline`] keeps and
//! compares them.
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

use rocmforge_engine::model::Model;
use rocmforge_engine::{Continue, EngineError, Isa};
use rocmforge_gpu::GpuError;

use case::Case;
use harness::{Budget, Series};
use target::Target;

pub use filter::Filter;
pub use row::BenchRow;
pub use target::{BenchDevice, found_gpus};

/// A bench suite.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Suite {
    /// GEMM and GEMV with F32 and every quantized format.
    Matmul,
    /// Materialised, online-softmax and causal attention.
    Attention,
    /// Dequantization of every format.
    Dequant,
    /// Time to first token and generation of a model.
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

    /// Returns the name used on the command line.
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

/// How thoroughly a suite measures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effort {
    Full,
    /// Small sizes and few samples, to check that everything runs.
    Quick,
}

impl Effort {
    fn budget(self) -> Budget {
        match self {
            Effort::Full => Budget::FULL,
            Effort::Quick => Budget::QUICK,
        }
    }

    /// Returns the size for this effort.
    fn pick<T>(self, full: T, quick: T) -> T {
        match self {
            Effort::Full => full,
            Effort::Quick => quick,
        }
    }
}

/// The model that suites run.
#[derive(Clone, Copy)]
pub struct Subject<'a> {
    /// Its name in rows.
    pub name: &'a str,
    /// Its quantization mix, such as `Q4_K_M`.
    pub format: Option<&'a str>,
    pub model: &'a Model,
}

/// What to measure, and on which devices.
pub struct Options<'a> {
    pub suite: Suite,
    /// Devices, measured one after the other.
    pub devices: &'a [BenchDevice],
    pub isa: Isa,
    /// Number of CPU threads.
    pub n_threads: usize,
    pub effort: Effort,
    pub filter: Option<&'a Filter>,
    /// The model of [`Suite::Inference`] and [`Suite::Batch`].
    pub subject: Option<Subject<'a>>,
}

/// Receives the progress and the results of a run.
pub trait Sink {
    /// A case, or a measurement of the device, starts.
    fn begins(&mut self, name: &str);
    /// A finished row.
    fn row(&mut self, row: &BenchRow) -> Continue;
    /// A case without a row and the reason, or a note on a device.
    fn note(&mut self, text: &str);
    /// Whether to stop; polled before every sample.
    fn is_stopped(&self) -> bool;
}

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// All cases were measured.
    Finished { n_rows: usize },
    /// Stopped by the sink, after it got all rows measured so far.
    Stopped,
}

/// Why a suite or a case could not be measured.
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
    #[error("it needs {needed_mib} MiB, and {free_mib} MiB are free")]
    NoMemory { needed_mib: u64, free_mib: u64 },
    #[error(
        "no case of {suite} matches '{filter}'; its {n_cases} cases range from {first} to {last}"
    )]
    NoMatch {
        suite: &'static str,
        filter: String,
        n_cases: usize,
        first: String,
        last: String,
    },
    /// Stopped by the sink.
    #[error("stopped")]
    Stopped,
    #[error("the suite {suite} needs a model")]
    NoModel { suite: &'static str },
    #[error(
        "the cache kept {kept} of {depth} tokens between two runs; use a smaller depth or fewer sequences"
    )]
    CacheLost { kept: usize, depth: usize },
}

impl BenchError {
    /// Whether the error concerns only this case.
    fn is_of_the_case(&self) -> bool {
        match self {
            BenchError::Unsupported(_) | BenchError::NoMemory { .. } => true,
            BenchError::Gpu(error) => matches!(
                error,
                GpuError::OutOfMemory { .. } | GpuError::Format { .. } | GpuError::NoSymbol { .. }
            ),
            BenchError::Engine(error) => matches!(
                error,
                EngineError::NoMemory { .. }
                    | EngineError::NoMemoryAtAll { .. }
                    | EngineError::NoMemoryForWeights { .. }
                    | EngineError::TooFewPositions { .. }
            ),
            _ => false,
        }
    }
}

/// Returns the names of a suite's rows on `device`.
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

/// Whether the filter selects the row.
fn is_wanted(options: &Options<'_>, name: &str) -> bool {
    options.filter.is_none_or(|filter| filter.matches(name))
}

/// Returns the names of all rows that the filter selects.
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

/// Measures the selected cases on each device.
///
/// # Errors
/// If nothing matches the filter, or a device cannot be opened or fails. A case that lacks memory or a kernel becomes a
/// note instead.
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
        sink.begins(&format!("peak rates of {}", device.label()));
        let target = Target::open(device, options.isa, options.n_threads)?;
        // Each case is dropped when done, and shared data with the last case that uses it.
        for case in wanted {
            match run_case(options, &case, &target, sink) {
                Ok(n) => n_rows += n,
                Err(BenchError::Stopped) => return Ok(Outcome::Stopped),
                Err(error) if error.is_of_the_case() => {
                    let name = full_name(options, &case.parts[0], device);
                    sink.note(&format!("{name} was skipped: {error}"));
                }
                Err(error) => return Err(error),
            }
        }
    }
    Ok(Outcome::Finished { n_rows })
}

/// Measures a case, passes its rows to the sink, and returns their number.
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
        if sink.row(&row) == Continue::No {
            return Err(BenchError::Stopped);
        }
    }
    Ok(n_rows)
}

/// Builds the row of a part of a case; `None` without samples.
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
