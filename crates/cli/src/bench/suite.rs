//! `rocmforge bench SUITE`: runs the cases of a suite and prints each when it is measured.

use crate::model_file;
use crate::resolve;
use rocmforge::ModelFile;
use rocmforge::parts::is_about_a_gpu;
use rocmforge_bench as bench;
use std::sync::Arc;

use anyhow::{Context as _, Result, bail};
use indicatif::ProgressBar;
use rocmforge_bench::baseline::row_name;
use rocmforge_bench::export::{Detail, Exporter, Form};
use rocmforge_bench::{
    BenchDevice, BenchError, BenchRow, Effort, Filter, Options, Outcome, Sink, Subject,
};
use rocmforge_cpu::default_threads;
use rocmforge_engine::Device as EngineDevice;
use rocmforge_model::Model;
use rocmforge_runtime::gpu;
use rocmforge_runtime::gpu::Offload;
use rocmforge_runtime::{DeviceError, RuntimeError};
use std::ops::ControlFlow;

use super::report::file_type;
use crate::answer::bar;
use crate::args::{Device, ModelSuiteArgs, OnArgs, SuiteArgs, SuiteCommand, SuiteDevice};
use crate::baseline::{self, Keeper};
use crate::exit::{Early, usage};
use crate::interrupt::{Interrupt, Working};
use crate::output::{self, Out};

pub fn run(command: &SuiteCommand) -> Result<()> {
    let (suite, args, of_model) = command.parts();
    let isa = resolve::isa(args.isa)?;
    let devices = devices(args)?;
    let n_threads = args.threads.map_or_else(default_threads, usize::from);
    let keeper = Keeper::open(&args.keep)?;
    if keeper.is_active() {
        let machines = devices.iter().map(|device| {
            let device = match device {
                BenchDevice::Cpu => EngineDevice::Cpu,
                BenchDevice::Gpu(_, config) => EngineDevice::Gpu(*config.clone()),
            };
            baseline::hardware(&device, n_threads)
        });
        keeper.check(&machines.collect::<Vec<_>>())?;
    }
    let interrupt = Interrupt::install()?;
    let loaded = of_model.map(load).transpose()?;
    let subject = loaded.as_ref().map(|(file, model)| Subject {
        name: &file.label,
        format: file_type(&file.gguf),
        model,
    });
    let filter = args.filter.as_deref().map(Filter::new);
    let options = Options {
        suite,
        devices: &devices,
        isa,
        n_threads,
        effort: match args.quick {
            true => Effort::Quick,
            false => Effort::Full,
        },
        filter: filter.as_ref(),
        subject,
    };
    let names = bench::wanted_names(&options).map_err(|error| match error {
        BenchError::NoMatch { .. } => usage(error.to_string()),
        other => other.into(),
    })?;
    let form = args.output.form();
    let detail = match args.verbose {
        true => Detail::All,
        false => Detail::Short,
    };
    let mut printer = Printer {
        form,
        exporter: Exporter::new(form, detail, &names),
        out: Out::new(),
        bar: bar(names.len(), "{bar:30} {msg}"),
        working: interrupt.guard(),
        error: None,
        keeper,
    };
    printer.print(&printer.exporter.header())?;
    let mut outcome = bench::run(&options, &mut printer);
    if matches!(outcome, Ok(Outcome::Finished { .. }))
        && let Some(ended) = measure_again(&options, &mut printer)
    {
        outcome = ended;
    }
    let last_case = printer.bar.message();
    printer.bar.finish_and_clear();
    if let Some(error) = printer.error.take() {
        return Err(error);
    }
    // Ends the output properly even after an error.
    printer.print(&printer.exporter.footer())?;
    let Printer {
        keeper, mut out, ..
    } = printer;
    // Also saves the baseline then.
    let kept = keeper.finish(|report| match form {
        Form::Json | Form::Jsonl | Form::Csv => {
            output::say(report.trim_end());
            Ok(())
        }
        Form::Table | Form::Markdown => {
            out.bytes(format!("\n{report}").as_bytes())?;
            out.flush()
        }
    });
    match outcome? {
        Outcome::Finished { n_rows: 0 } => bail!(
            "none of the {} cases could be measured; see the notices above",
            names.len()
        ),
        Outcome::Finished { .. } => kept,
        Outcome::Stopped => {
            output::note(&format!(
                "notice: stopped in {last_case}; only the cases before it have results"
            ));
            Err(Early::Interrupted.into())
        }
    }
}

/// Measures regressions again. Returns why that ended early, if it did.
fn measure_again(
    options: &Options<'_>,
    printer: &mut Printer<'_>,
) -> Option<Result<Outcome, BenchError>> {
    for round in 1.. {
        let names = printer.keeper.again(round);
        if names.is_empty() {
            break;
        }
        let text = format!("{} worse than the baseline, measuring again", names.len());
        printer.note(&text);
        let rows = names.iter().map(|name| row_name(name).to_string());
        let filter = Filter::names(rows);
        let options = Options {
            filter: Some(&filter),
            ..*options
        };
        match bench::run(&options, &mut Again(printer)) {
            Ok(Outcome::Finished { .. }) => {}
            ended => return Some(ended),
        }
    }
    None
}

/// Loads the model of a suite that needs one.
fn load(args: &ModelSuiteArgs) -> Result<(ModelFile, Model)> {
    let file = match &args.synthetic {
        Some(name) => model_file::synthetic(name)?,
        None => model_file::open(args.model.as_ref(), &args.load)?,
    };
    if file.gguf.tensors().is_empty() {
        bail!("{} has no weights to run", file.label);
    }
    let model = Model::load(Arc::clone(&file.gguf)).with_context(|| file.label.clone())?;
    Ok((file, model))
}

/// Resolves the flags to devices; with `all`, unusable GPUs are reported and skipped.
fn devices(args: &SuiteArgs) -> Result<Vec<BenchDevice>> {
    let with = |device: Device| {
        let on = OnArgs {
            device,
            gpu: args.gpu.clone(),
        };
        resolve::refuse_without_gpu(&on, Offload::default())?;
        resolve::engine_device(&on)
    };
    let SuiteDevice::One(device) = args.device else {
        let open = resolve::open_options(&args.gpu);
        let (ids, errors) = bench::found_gpus(&open);
        for error in errors.iter().filter(|error| is_about_a_gpu(error)) {
            output::note(&format!("notice: {error}; skipped"));
        }
        let mut devices = vec![BenchDevice::Cpu];
        for id in ids {
            if let EngineDevice::Gpu(config) = with(Device::Id(id))? {
                devices.push(BenchDevice::Gpu(id, Box::new(config)));
            }
        }
        return Ok(devices);
    };
    Ok(vec![match with(device)? {
        EngineDevice::Cpu => BenchDevice::Cpu,
        EngineDevice::Gpu(config) => {
            let best = || {
                let best = gpu::best(&config.open).map(|best| best.chosen.id);
                best.map_err(|errors| {
                    let reasons: Vec<String> = errors.iter().map(ToString::to_string).collect();
                    RuntimeError::Device(DeviceError::NoGpu {
                        reasons: reasons.join("; "),
                    })
                })
            };
            let id = config.id.map_or_else(best, Ok)?;
            BenchDevice::Gpu(id, Box::new(config))
        }
    }])
}

/// Prints rows as they are measured and reports Ctrl-C.
struct Printer<'a> {
    form: Form,
    exporter: Exporter,
    out: Out,
    bar: ProgressBar,
    working: Working<'a>,
    /// Of the output.
    error: Option<anyhow::Error>,
    keeper: Keeper<'a>,
}

impl Printer<'_> {
    fn print(&mut self, text: &str) -> Result<()> {
        // Model names come from files.
        let text = match self.form {
            Form::Json | Form::Jsonl => output::escape_json(text),
            Form::Table | Form::Csv | Form::Markdown => output::for_terminal(text),
        };
        let out = &mut self.out;
        self.bar.suspend(|| {
            out.bytes(text.as_bytes())?;
            out.flush()
        })
    }
}

impl Sink for Printer<'_> {
    fn begins(&mut self, name: &str) {
        self.bar.set_message(name.to_string());
    }

    fn row(&mut self, row: &BenchRow) -> ControlFlow<()> {
        self.bar.inc(1);
        self.keeper.add_row(row);
        let text = self.exporter.row(row);
        match self.print(&text) {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => {
                self.error = Some(error);
                ControlFlow::Break(())
            }
        }
    }

    fn note(&mut self, text: &str) {
        self.bar
            .suspend(|| output::note(&format!("notice: {text}")));
    }

    fn is_stopped(&self) -> bool {
        self.working.asked()
    }
}

/// Receives repeated rows, which were printed before.
struct Again<'p, 'a>(&'p mut Printer<'a>);

impl Sink for Again<'_, '_> {
    fn begins(&mut self, name: &str) {
        self.0.begins(name);
    }

    fn row(&mut self, row: &BenchRow) -> ControlFlow<()> {
        self.0.keeper.add_row_again(row);
        ControlFlow::Continue(())
    }

    fn note(&mut self, text: &str) {
        self.0.note(text);
    }

    fn is_stopped(&self) -> bool {
        self.0.is_stopped()
    }
}
