//! `rocmforge quantize`: converts a model to a smaller file type and reports the error of each tensor.

use crate::model_file;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context as _, Result, anyhow};
use rocmforge_gguf::escape_control;
use rocmforge_gguf::{Existing, NewFile};
use rocmforge_quantize::imatrix::Imatrix;
use rocmforge_quantize::{
    Errors, FileType, Mixing, Progress, QuantizeError, QuantizeOptions, QuantizePlan, Requantize,
    TensorPlan, TensorReport,
};
use serde_json::{Value as Json, json};
use std::ops::ControlFlow;

use crate::answer::bar;
use crate::args::{QuantizeArgs, file_type};
use crate::exit::{Early, usage};
use crate::interrupt::Interrupt;
use crate::output::{self, Out, size};

/// Most threads, as everywhere.
const MAX_THREADS: usize = 1024;

pub fn run(args: &QuantizeArgs) -> Result<()> {
    let (output, file_type) = targets(args)?;
    let n_threads = n_threads(args.threads)?;
    let input = model_file::open(Some(&args.input), &args.load)?;
    if let Some(output) = output {
        refuse_input(output, &args.input, input.gguf.n_parts())?;
    }
    let imatrix = args.imatrix.as_deref().map(read_imatrix).transpose()?;
    let has_imatrix = imatrix.is_some();
    let options = QuantizeOptions {
        file_type,
        rules: args.tensor_type.clone(),
        output_type: args.output_tensor_type,
        embedding_type: args.token_embedding_type,
        mixing: if args.pure {
            Mixing::Pure
        } else {
            Mixing::Mixed
        },
        requantize: if args.allow_requantize {
            Requantize::Allow
        } else {
            Requantize::Refuse
        },
        importance: imatrix,
    };
    let plan = QuantizePlan::new(input.gguf.clone(), options).context(input.label.clone())?;
    tell_surprises(plan.tensors(), args);

    let started = Instant::now();
    let reports = match output {
        None => plan.tensors().iter().map(planned).collect(),
        Some(output) => write(&plan, output, args.force, n_threads)?,
    };
    let summary = Summary {
        input: &input.label,
        file_type,
        plan: &plan,
        reports: &reports,
        is_weighted: has_imatrix,
        is_dry_run: args.dry_run,
        seconds: started.elapsed().as_secs_f64(),
    };
    let mut out = Out::new();
    if args.json {
        out.json(&summary.json())?;
    } else {
        summary.print(&mut out)?;
    }
    out.finish()
}

/// Returns the output path (`None` for a dry run) and the file type.
fn targets(args: &QuantizeArgs) -> Result<(Option<&Path>, FileType)> {
    let (output, name) = match &args.file_type {
        Some(name) => (args.output.as_path(), name.clone()),
        // Without OUT, as a dry run allows, the type is in its place.
        None => (Path::new(""), args.output.to_string_lossy().into_owned()),
    };
    let file_type = file_type(&name).map_err(usage)?;
    Ok(((!args.dry_run).then_some(output), file_type))
}

fn n_threads(wanted: Option<usize>) -> Result<usize> {
    match wanted {
        None => Ok(std::thread::available_parallelism().map_or(1, |n| n.get())),
        Some(n) if (1..=MAX_THREADS).contains(&n) => Ok(n),
        Some(n) => Err(usage(format!(
            "threads is {n}, expected 1 to {MAX_THREADS}"
        ))),
    }
}

/// Rejects an OUT that is the same file as IN.
fn refuse_input(output: &Path, input: &Path, n_parts: usize) -> Result<()> {
    let Ok(output) = fs::canonicalize(output) else {
        return Ok(());
    };
    let name = input.file_name().unwrap_or_default().to_string_lossy();
    let part = |no: usize| {
        let name = name.replace("-00001-of-", &format!("-{no:05}-of-"));
        input.with_file_name(name)
    };
    let is_part = |part: PathBuf| fs::canonicalize(part).is_ok_and(|part| part == output);
    if fs::canonicalize(input).is_ok_and(|input| input == output)
        || (2..=n_parts).map(part).any(is_part)
    {
        return Err(usage("OUT is the same file as IN; use another name"));
    }
    Ok(())
}

/// Reads an importance matrix, and returns it with the name to record in the new file.
fn read_imatrix(path: &Path) -> Result<(Imatrix, String)> {
    let shown = escape_control(&path.to_string_lossy()).into_owned();
    let imatrix = Imatrix::open(path).with_context(|| shown.clone())?;
    Ok((imatrix, shown))
}

/// Prints notices about unexpected types.
fn tell_surprises(tensors: &[TensorPlan], args: &QuantizeArgs) {
    let fallbacks: Vec<&TensorPlan> = tensors
        .iter()
        .filter(|tensor| tensor.instead_of.is_some())
        .collect();
    if let Some(first) = fallbacks.first()
        && let Some(wanted) = first.instead_of
    {
        output::note(&format!(
            "notice: {} of {} tensors have rows that do not divide into blocks of their type; {} becomes {} instead of {}",
            fallbacks.len(),
            tensors.len(),
            escape_control(&first.name),
            first.to.name(),
            wanted.name()
        ));
    }
    let bare: Vec<&TensorPlan> = tensors
        .iter()
        .filter(|tensor| tensor.from != tensor.to && !tensor.is_weighted)
        .collect();
    if let (Some(_), Some(first)) = (&args.imatrix, bare.first()) {
        output::note(&format!(
            "notice: the importance matrix has no entry for {} of the tensors to convert, such as {}",
            bare.len(),
            escape_control(&first.name)
        ));
    }
    let missing: Vec<&TensorPlan> = tensors
        .iter()
        .filter(|tensor| tensor.needs_importance && !tensor.is_weighted)
        .collect();
    if let (true, Some(first)) = (args.dry_run, missing.first()) {
        output::note(&format!(
            "notice: {} of the tensors need an importance matrix (--imatrix), such as {} in {}",
            missing.len(),
            escape_control(&first.name),
            first.to.name()
        ));
    }
}

fn planned(tensor: &TensorPlan) -> TensorReport {
    TensorReport {
        tensor: tensor.clone(),
        errors: None,
    }
}

/// Writes the file; an error leaves nothing behind.
fn write(
    plan: &QuantizePlan,
    path: &Path,
    force: bool,
    n_threads: usize,
) -> Result<Vec<TensorReport>> {
    let shown = escape_control(&path.to_string_lossy()).into_owned();
    let existing = if force {
        Existing::Replace
    } else {
        Existing::Keep
    };
    let interrupt = Interrupt::install()?;
    let working = interrupt.guard_output();
    let failed = || format!("cannot write '{shown}'");
    let mut file = NewFile::create(path, existing).with_context(failed)?;
    file.reserve(plan.file_bytes())
        .with_context(|| format!("cannot write the {} of '{shown}'", size(plan.file_bytes())))?;
    let bar = bar(
        plan.bytes_before() as usize,
        "{bar:30} {bytes}/{total_bytes}, {msg}, {eta} left",
    );
    let on_progress = |progress: Progress| {
        bar.set_position(progress.bytes_read);
        let name = &plan.tensors()[progress.tensor].name;
        bar.set_message(escape_control(name).into_owned());
        match working.asked() {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    };
    let reports = plan.write(&mut file, n_threads, on_progress);
    bar.finish_and_clear();
    let reports = reports.map_err(|error| match error {
        QuantizeError::Stopped => Early::Interrupted.into(),
        error => anyhow!(error).context(failed()),
    })?;
    file.commit().with_context(failed)?;
    Ok(reports)
}

/// The conversion that was done, or that a dry run shows.
struct Summary<'a> {
    input: &'a str,
    file_type: FileType,
    plan: &'a QuantizePlan,
    reports: &'a [TensorReport],
    is_weighted: bool,
    is_dry_run: bool,
    seconds: f64,
}

impl Summary<'_> {
    fn bytes(&self) -> u64 {
        self.plan.tensors().iter().map(|tensor| tensor.bytes).sum()
    }

    fn n_elements(&self) -> u64 {
        let tensors = self.plan.tensors().iter();
        tensors.map(|t| t.dims.iter().product::<u64>()).sum()
    }

    /// Returns the average bits per weight.
    fn bits(&self, bytes: u64) -> f64 {
        bytes as f64 * 8.0 / self.n_elements().max(1) as f64
    }

    fn n_fallbacks(&self) -> usize {
        let tensors = self.plan.tensors().iter();
        tensors.filter(|t| t.instead_of.is_some()).count()
    }

    fn json(&self) -> Json {
        let before = self.plan.bytes_before();
        json!({
            "model": self.input,
            "type": self.file_type.name(),
            "dry_run": self.is_dry_run,
            "file_bytes": self.plan.file_bytes(),
            "tensor_bytes_before": before,
            "tensor_bytes": self.bytes(),
            "bits_per_weight_before": self.bits(before),
            "bits_per_weight": self.bits(self.bytes()),
            "fallbacks": self.n_fallbacks(),
            "seconds": self.seconds,
            "tensors": self.reports.iter().map(tensor_json).collect::<Vec<_>>(),
        })
    }

    fn print(&self, out: &mut Out) -> Result<()> {
        let names = self.reports.iter().map(|r| shown_name(r).chars().count());
        let width = names.max().unwrap_or(0).max("tensor".len());
        let weighted = if self.is_weighted { "  weighted" } else { "" };
        out.line(&format!(
            "{:<width$}  {:>16}  {:>6}  {:<7} {:>12}  {:>10}  {:>9}{weighted}",
            "tensor", "shape", "from", "to", "bytes", "RMSE", "relative"
        ))?;
        for report in self.reports {
            let TensorReport { tensor, errors } = report;
            let dims: Vec<String> = tensor.dims.iter().map(u64::to_string).collect();
            let line = format!(
                "{:<width$}  {:>16}  {:>6}  {:<7} {:>12}  {}",
                shown_name(report),
                dims.join("x"),
                tensor.from.name(),
                tensor.to.name(),
                tensor.bytes,
                errors.map_or(String::new(), |errors| columns(&errors)),
            );
            out.line(line.trim_end())?;
        }
        let before = self.plan.bytes_before();
        out.line(&format!(
            "{} from {} ({:.2} bits per weight) to {} ({:.2}), a file of {} ({} bytes)",
            self.file_type.name(),
            size(before),
            self.bits(before),
            size(self.bytes()),
            self.bits(self.bytes()),
            size(self.plan.file_bytes()),
            self.plan.file_bytes(),
        ))?;
        if !self.is_dry_run {
            output::note(&format!(
                "[{} | {} tensors | {:.1} s, {}/s]",
                self.input,
                self.reports.len(),
                self.seconds,
                size((before as f64 / self.seconds) as u64)
            ));
        }
        Ok(())
    }
}

fn shown_name(report: &TensorReport) -> String {
    escape_control(&report.tensor.name).into_owned()
}

fn columns(errors: &Errors) -> String {
    let weighted = errors.weighted.map(percent).unwrap_or_default();
    format!(
        "{:>10.3e}  {:>9} {weighted:>9}",
        errors.rmse,
        percent(errors.relative)
    )
}

fn percent(share: f64) -> String {
    format!("{:.3} %", share * 100.0)
}

fn tensor_json(report: &TensorReport) -> Json {
    let TensorReport { tensor, errors } = report;
    json!({
        "name": tensor.name,
        "dims": tensor.dims,
        "from": tensor.from.name(),
        "to": tensor.to.name(),
        "instead_of": tensor.instead_of.map(|ty| ty.name()),
        "bytes_before": tensor.bytes_before,
        "bytes": tensor.bytes,
        "rmse": errors.map(|errors| errors.rmse),
        "relative_error": errors.map(|errors| errors.relative),
        "weighted_error": errors.and_then(|errors| errors.weighted),
    })
}
