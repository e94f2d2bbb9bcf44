//! Runs a suite: prepares its cases on each device, times them and builds the rows.

use std::collections::BTreeMap;

use rocmforge_profile::clock;
use std::ops::ControlFlow;

use crate::baseline::OTHER_LOAD;
use crate::case::{Case, Part};
use crate::error::BenchError;
use crate::harness::{self, Budget, Series};
use crate::load::Load;
use crate::options::{Effort, Options, Suite};
use crate::pace::Pace;
use crate::row::{BenchRow, Times};
use crate::suites;
use crate::target::{BenchDevice, Target};

/// Receives the progress and the results of a run.
pub trait Sink {
    /// A case, or a measurement of the device, starts.
    fn begins(&mut self, name: &str);
    /// A finished row.
    fn row(&mut self, row: &BenchRow) -> ControlFlow<()>;
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

/// Returns the names of a suite's rows on `device`.
pub fn row_names(options: &Options<'_>, device: &BenchDevice) -> Vec<String> {
    let cases = suites::cases(options);
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
        let cases = suites::cases(options);
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
        let mut pace = match device {
            BenchDevice::Cpu => Some(Pace::new(options.isa, options.n_threads)),
            BenchDevice::Gpu(..) => None,
        };
        // Each case is dropped when done, and shared data with the last case that uses it.
        for case in wanted {
            match run_case(options, &case, (&target, pace.as_mut()), sink) {
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

fn budget(effort: Effort) -> &'static Budget {
    match effort {
        Effort::Full => &Budget::FULL,
        Effort::Quick => &Budget::QUICK,
    }
}

/// Measures a case, passes its rows to the sink, and returns their number.
fn run_case(
    options: &Options<'_>,
    case: &Case,
    (target, mut pace): (&Target, Option<&mut Pace>),
    sink: &mut dyn Sink,
) -> Result<usize, BenchError> {
    let device = target.device();
    sink.begins(&full_name(options, &case.parts[0], device));
    let stop = || sink.is_stopped();
    if stop() {
        return Err(BenchError::Stopped);
    }
    let mut prepared = (case.prepare)(target, &stop)?;
    if let Some(pace) = &mut pace {
        pace.look();
    }
    let before = Load::now();
    let series = harness::collect(budget(options.effort), &mut *prepared.run, &stop)?;
    let other_load = Load::of_others_since_then(before);
    let mut facts = Vec::from_iter(other_load.map(|load| (OTHER_LOAD, load)));
    if let Some(pace) = pace {
        pace.look();
        facts.extend(pace.take());
    }
    for part in &mut prepared.parts {
        let named = facts.iter().map(|(name, fact)| (name.to_string(), *fact));
        part.metrics.extend(named);
    }
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

/// Builds the row of a part of a case; `None` without samples.
fn make_row(
    options: &Options<'_>,
    case: &Case,
    target: &Target,
    (name, part): (String, Part),
    series: &Series,
) -> Option<BenchRow> {
    let times = Times::of(series)?;
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
        timestamp: clock::unix_now(),
        hardware: target.hardware().clone(),
        metadata,
    })
}
