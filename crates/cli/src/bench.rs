//! `rocmforge bench`: prefill and decode speed in llama-bench's rows, with the share of the roofline.
//!
//! The flags expand to [`Test`]s (their cross product, in llama-bench's order); `measure` runs each on the same engine
//! as `generate`, `report` prints it. `suite` has the bench suites, which are subcommands.

mod gate;
mod measure;
pub mod report;
mod sensors;
mod serve;
mod suite;

use crate::model_file;
use crate::resolve;
use crate::session;
use rocmforge::ModelFile;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use indicatif::ProgressBar;
use rocmforge_bench::baseline::Hardware;
use rocmforge_bench::pace::Pace;
use rocmforge_cpu::{Isa, default_threads};
use rocmforge_engine::{ConfigError, Device, EngineError};
use rocmforge_model::{Model, Purpose};
use rocmforge_plan::{KvTypes, Roofline};
use rocmforge_runtime::gpu;
use rocmforge_runtime::gpu::{DeviceId, Experts, GpuConfig, GpuLayers, Offload};

use rocmforge_external::sampler;

use crate::answer::bar;
use crate::args::{BenchArgs, BenchCommand, DraftBy, KvTypeArg, numbers};
use crate::baseline::{self, Keeper};
use crate::exit::{Early, usage};
use crate::interrupt::{Interrupt, Working};
use crate::output::{self, Out};
use crate::speculation::Target;
use gate::Gate;
use measure::{Bench, Machine};
use report::{Printer, Record, model_type};

/// One test, which gives one row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Test {
    /// Prompt tokens, or 0.
    pub n_prompt: usize,
    /// Generated tokens, or 0.
    pub n_gen: usize,
    /// Tokens in the KV cache before the test.
    pub n_depth: usize,
    /// Sequences.
    pub n_seqs: usize,
    pub n_threads: usize,
    pub kv_types: KvTypes,
    /// The part of the model that is on the GPU.
    pub offload: Offload,
}

impl Test {
    /// Returns the measured tokens of all sequences.
    pub fn n_tokens(&self) -> usize {
        self.n_seqs.saturating_mul(self.n_prompt + self.n_gen)
    }

    /// Returns llama-bench's name, followed by the number of sequences and the offload settings where they are not the
    /// default. For `auto`, `placed` gives the placement that was chosen.
    pub fn name(&self, placed: Option<Offload>) -> String {
        let mut name = match (self.n_prompt, self.n_gen) {
            (n_prompt, 0) => format!("pp{n_prompt}"),
            (0, n_gen) => format!("tg{n_gen}"),
            (n_prompt, n_gen) => format!("pp{n_prompt}+tg{n_gen}"),
        };
        if self.n_depth > 0 {
            name.push_str(&format!(" @ d{}", self.n_depth));
        }
        if self.n_seqs > 1 {
            name.push_str(&format!(" B{}", self.n_seqs));
        }
        match self.offload.layers {
            GpuLayers::All => {}
            GpuLayers::Auto => {
                name.push_str(" ngl auto");
                match placed.map(|placed| placed.layers) {
                    Some(GpuLayers::Count(n)) => name.push_str(&format!(" {n}")),
                    Some(GpuLayers::All) => name.push_str(" all"),
                    Some(GpuLayers::Auto) | None => {}
                }
            }
            GpuLayers::Count(n) => name.push_str(&format!(" ngl {n}")),
        }
        if placed.unwrap_or(self.offload).experts == Experts::OnCpu {
            name.push_str(" cpu-moe");
        }
        name
    }
}

/// A model to measure.
pub struct Subject {
    /// The path as given.
    pub name: String,
    pub file: ModelFile,
    pub model: Model,
    /// The file of the model that drafts, if one is given.
    pub drafter: Option<ModelFile>,
    /// Name in baselines: the file's name, without its folder, and the model's type.
    pub kept_name: String,
}

/// Output of rows.
struct Results<'a> {
    printer: Printer,
    keeper: Keeper<'a>,
    gate: Gate,
}

pub fn run(args: &BenchArgs) -> Result<()> {
    match &args.command {
        Some(BenchCommand::Suite(command)) => return suite::run(command),
        Some(BenchCommand::Serve(command)) => return serve::run(command),
        None => {}
    }
    let tests = tests(args)?;
    let gate = Gate::new(args.target.as_ref(), &tests)?;
    let isa = resolve::isa(args.isa)?;
    let offloads = offloads(args);
    let on_gpu = offloads.iter().copied().filter(is_for_gpu);
    for offload in on_gpu.clone() {
        resolve::refuse_without_gpu(&args.on, offload)?;
    }
    if on_gpu.count() == 0 {
        resolve::refuse_without_layers(&args.on.gpu, experts(args))?;
    }
    let device = resolve::engine_device(&args.on)?;
    if let Device::Cpu = device {
        gate.refuse_without_gpu()?;
    }
    let interrupt = Interrupt::install()?;
    // Opens all files before the first measurement, to report wrong paths early.
    let keeper = Keeper::open(&args.keep)?;
    let subjects = subjects(args)?;
    for subject in &subjects {
        check_context(subject, &tests)?;
        let is_dense = !subject.model.config.has_experts();
        if is_dense && args.cpu_moe && matches!(device, Device::Gpu(_)) {
            return Err(EngineError::from(ConfigError::NoExperts))
                .with_context(|| subject.file.label.clone());
        }
    }
    if keeper.is_active() {
        let mut machines = Vec::new();
        for test in &tests {
            let asked = resolve::with_offload(device.clone(), test.offload);
            machines.push(baseline::hardware(&asked, test.n_threads));
            if test.offload.layers == GpuLayers::Auto {
                // Possibly no layer fits on the GPU.
                machines.push(baseline::hardware(&Device::Cpu, test.n_threads));
            }
        }
        keeper.check(&machines)?;
    }
    let mut results = Results {
        printer: Printer::new(args.output, Out::new()),
        keeper,
        gate,
    };
    results.printer.header(&tests)?;
    let mut run = Run {
        args,
        isa,
        device,
        subjects: &subjects,
        tests: &tests,
        results: &mut results,
        kept: Vec::new(),
        sensors: None,
    };
    let result = run.measure_all(&interrupt);
    // Finished tests are printed and saved even after an error.
    results.printer.footer()?;
    let kept = results
        .keeper
        .finish(|report| results.printer.report(report));
    result.and(kept).and(results.gate.finish())
}

/// Returns the cross product of the flags.
fn tests(args: &BenchArgs) -> Result<Vec<Test>> {
    let threads = numbers(&args.threads, default_threads());
    let batch = numbers(&args.batch, 1);
    let prompts = numbers(&args.n_prompt, 512);
    let generated = numbers(&args.n_gen, 128);
    let alone = prompts.iter().map(|&n_prompt| (n_prompt, 0));
    let alone = alone.chain(generated.iter().map(|&n_gen| (0, n_gen)));
    let kinds: Vec<(usize, usize)> = alone
        .filter(|kind| *kind != (0, 0))
        .chain(args.pg.iter().copied())
        .collect();
    if kinds.is_empty() {
        return Err(usage(
            "nothing to measure: -p and -n are 0; set one of them or --pg",
        ));
    }
    for (flag, values) in [("-b", &batch), ("-t", &threads)] {
        if values.contains(&0) {
            return Err(usage(format!("{flag} must be at least 1")));
        }
    }
    let depths = numbers(&args.n_depth, 0);
    if let Some(depth) = depths.iter().find(|depth| !depth.is_multiple_of(args.page)) {
        return Err(usage(format!(
            "-d {depth} must be a multiple of the KV-cache page, {}",
            args.page
        )));
    }
    let mut tests = Vec::new();
    for &n_seqs in &batch {
        for &kv_types in &kv_types(args) {
            for &offload in &offloads(args) {
                for &n_threads in &threads {
                    for &n_depth in &depths {
                        tests.extend(kinds.iter().map(|&(n_prompt, n_gen)| Test {
                            n_prompt,
                            n_gen,
                            n_depth,
                            n_seqs,
                            n_threads,
                            kv_types,
                            offload,
                        }));
                    }
                }
            }
        }
    }
    Ok(tests)
}

/// Returns each pair of types that the flags name, once.
fn kv_types(args: &BenchArgs) -> Vec<KvTypes> {
    let or = |own: &[KvTypeArg], both: KvTypeArg| match own {
        [] => vec![both],
        own => own.to_vec(),
    };
    let mut all = Vec::new();
    for &both in &args.kv_type {
        for keys in or(&args.kv_type_k, both) {
            for values in or(&args.kv_type_v, both) {
                let types = KvTypes {
                    keys: keys.into(),
                    values: values.into(),
                };
                if !all.contains(&types) {
                    all.push(types);
                }
            }
        }
    }
    all
}

fn experts(args: &BenchArgs) -> Experts {
    match args.cpu_moe {
        true => Experts::OnCpu,
        false => Experts::WithTheirLayer,
    }
}

fn is_for_gpu(offload: &Offload) -> bool {
    offload.layers != GpuLayers::Count(0)
}

/// Returns the offload setting for each of the flag's values.
fn offloads(args: &BenchArgs) -> Vec<Offload> {
    let layers = match args.gpu_layers.is_empty() {
        true => vec![GpuLayers::All],
        false => args.gpu_layers.clone(),
    };
    let offload = |layers| match layers {
        GpuLayers::Count(0) => Offload::NOTHING,
        layers => Offload {
            layers,
            experts: experts(args),
        },
    };
    layers.into_iter().map(offload).collect()
}

fn subjects(args: &BenchArgs) -> Result<Vec<Subject>> {
    let mut names: Vec<Source<'_>> = args.model.iter().map(Source::File).collect();
    names.extend(args.synthetic.iter().map(|name| Source::Synthetic(name)));
    if names.is_empty() {
        names.push(Source::Embedded);
    }
    let open = |source: Source<'_>| {
        let file = match source {
            Source::File(path) => model_file::open(Some(path), &args.load)?,
            Source::Synthetic(name) => model_file::synthetic(name)?,
            Source::Embedded => model_file::open(None, &args.load)?,
        };
        if file.gguf.tensors().is_empty() {
            bail!("{} has no weights to run", file.label);
        }
        let gguf = Arc::clone(&file.gguf);
        let drafter = match &args.speculation.speculate.by {
            DraftBy::Model(path) => Some(model_file::open(Some(path), &args.load)?),
            _ => None,
        };
        let model = match &drafter {
            Some(drafter) => Model::load_for_assistant(Purpose::Text, gguf, &[], &drafter.gguf),
            None => Model::load(gguf),
        };
        let model = model.with_context(|| file.label.clone())?;
        let name = match source {
            Source::File(path) => output::for_terminal(&path.to_string_lossy()),
            Source::Synthetic(_) | Source::Embedded => file.label.clone(),
        };
        Ok(Subject {
            // Two models of the same type may have nothing else in common.
            kept_name: format!(
                "{} {}",
                file.label,
                model_type(&file.gguf, &model.config.arch_name)
            ),
            name,
            file,
            model,
            drafter,
        })
    };
    names.into_iter().map(open).collect()
}

/// The source of a model.
#[derive(Clone, Copy)]
enum Source<'a> {
    File(&'a PathBuf),
    Synthetic(&'a str),
    Embedded,
}

/// Rejects tests that exceed the model's context.
fn check_context(subject: &Subject, tests: &[Test]) -> Result<()> {
    let n_ctx = subject.model.config.n_ctx_train;
    for test in tests {
        let parts = [test.n_depth, test.n_prompt, test.n_gen];
        let needed = parts.iter().fold(0usize, |sum, n| sum.saturating_add(*n));
        if needed > n_ctx {
            bail!(
                "{} needs {needed} positions, {} was trained for {n_ctx}; reduce -d, -p or -n",
                test.name(None),
                subject.file.label
            );
        }
    }
    Ok(())
}

/// The state of a benchmark run.
struct Run<'r, 'k> {
    args: &'r BenchArgs,
    isa: Isa,
    device: Device,
    subjects: &'r [Subject],
    tests: &'r [Test],
    results: &'r mut Results<'k>,
    kept: Vec<Kept>,
    /// Those of the GPU, once they were looked for.
    sensors: Option<Option<sampler::Source>>,
}

/// A test's name in baselines.
struct Kept {
    name: String,
    /// Index of the model in the subjects.
    subject: usize,
    test: Test,
}

/// The tests to measure.
#[derive(Clone, Copy)]
enum Pass<'a> {
    All,
    /// Only these, which were worse than the baseline.
    Again(&'a [String]),
}

impl Run<'_, '_> {
    fn measure_all(&mut self, interrupt: &Interrupt) -> Result<()> {
        self.measure(Pass::All, interrupt)?;
        for round in 1.. {
            let worse = self.results.keeper.again(round);
            if worse.is_empty() {
                break;
            }
            output::note(&format!(
                "notice: {} worse than the baseline, measuring again",
                worse.len()
            ));
            self.measure(Pass::Again(&worse), interrupt)?;
        }
        Ok(())
    }

    fn measure(&mut self, pass: Pass<'_>, interrupt: &Interrupt) -> Result<()> {
        let subjects = self.subjects;
        let selected: Vec<Vec<Test>> = (0..subjects.len())
            .map(|subject| self.selected(subject, pass))
            .collect();
        let n_tests: usize = selected.iter().map(Vec::len).sum();
        let n_runs = n_tests * self.args.repetitions as usize;
        let mut round = Round {
            pass,
            bar: bar(n_runs, "{bar:30} {msg}, {eta} left"),
            working: interrupt.guard(),
            // Before a model occupies the GPU's memory.
            gpu_roofline: match &self.device {
                Device::Cpu => None,
                Device::Gpu(gpu) => gpu_roofline(gpu),
            },
            cpu_rooflines: Vec::new(),
        };
        let same_engine = |a: &Test, b: &Test| {
            (a.n_seqs, a.kv_types, a.offload, a.n_threads)
                == (b.n_seqs, b.kv_types, b.offload, b.n_threads)
        };
        for (subject, tests) in selected.iter().enumerate() {
            for group in tests.chunk_by(same_engine) {
                self.measure_group(subject, group, &mut round)?;
            }
        }
        round.bar.finish_and_clear();
        Ok(())
    }

    /// Returns the tests of a model that belong to the pass.
    fn selected(&self, subject: usize, pass: Pass<'_>) -> Vec<Test> {
        let is_selected = |test: &&Test| match pass {
            Pass::All => true,
            Pass::Again(names) => self.kept.iter().any(|kept| {
                (kept.subject, kept.test) == (subject, **test) && names.contains(&kept.name)
            }),
        };
        self.tests.iter().filter(is_selected).copied().collect()
    }

    /// Measures tests that share an engine.
    fn measure_group(
        &mut self,
        subject: usize,
        tests: &[Test],
        round: &mut Round<'_>,
    ) -> Result<()> {
        let model = &self.subjects[subject].model;
        let n_threads = tests[0].n_threads;
        let wanted = resolve::with_offload(self.device.clone(), tests[0].offload);
        let on = (self.isa, &wanted, self.args.on.device);
        let speculation = &self.args.speculation.speculate;
        let bench = Bench::new(model, tests, on, self.args.page, speculation)
            .map_err(|error| no_room(error, tests))?;
        // Runs are compared with those of other programs and days.
        if !matches!(speculation.by, DraftBy::Nothing | DraftBy::Auto) {
            let file = &self.subjects[subject].file;
            let tokenizer = model_file::tokenizer(file, None)?;
            let target = Target {
                model,
                tokenizer: tokenizer.as_deref(),
                drafter: self.subjects[subject].drafter.as_ref(),
            };
            bench.speculate(speculation, target, &self.args.load)?;
        }
        session::tell_backend(bench.backend_info());
        // A GPU that failed its check is not tried again.
        if bench.is_gpu_wrong() {
            self.device = Device::Cpu;
        }
        let used = bench.device().clone();
        let info = bench.backend_info();
        let is_shared = !info.parts.is_empty();
        let gpu = match &used {
            Device::Cpu => None,
            Device::Gpu(gpu) => Some((info.device.clone(), gpu.open.variants.to_string())),
        };
        let roofline = match &gpu {
            None => Some(round.cpu_roofline(self.isa, n_threads)),
            // There is no roofline for two devices together.
            Some(_) => round.gpu_roofline.filter(|_| !is_shared),
        };
        let (gpu, kernel_variant) = gpu.unzip();
        let machine = Machine {
            isa: self.isa,
            kv_types: tests[0].kv_types,
            gpu,
            is_shared,
            offload: info.offload,
            kernel_variant: kernel_variant.unwrap_or_default(),
            n_tuned: info.n_tuned,
            roofline,
        };
        let keeps = self.results.keeper.is_active();
        let mut group = Group {
            subject,
            bench,
            machine,
            hardware: keeps.then(|| baseline::hardware(&used, n_threads)),
        };
        for test in tests {
            std::thread::sleep(Duration::from_secs(self.args.delay.into()));
            self.measure_test(test, &mut group, round)?;
        }
        Ok(())
    }

    fn measure_test(
        &mut self,
        test: &Test,
        group: &mut Group,
        round: &mut Round<'_>,
    ) -> Result<()> {
        let Group { bench, machine, .. } = group;
        let subject = &self.subjects[group.subject];
        let name = test.name(Some(machine.offload));
        let isa = machine.isa;
        let watches = group.hardware.is_some() && machine.gpu.is_none();
        let mut pace = watches.then(|| Pace::new(isa, test.n_threads));
        let sensors = match (&machine.gpu, self.args.no_sensors) {
            (Some(_), false) => self
                .sensors
                .get_or_insert_with(|| sensors::of(bench.device()))
                .as_ref(),
            _ => None,
        };
        let how = (self.args, sensors);
        let measured = bench.measure(test, how, &round.working, &mut |run| {
            round.bar.set_message(format!("{name} {run}"));
            round.bar.inc(1);
            if let Some(pace) = &mut pace {
                pace.look();
            }
        })?;
        let Some(measured) = measured else {
            round.bar.finish_and_clear();
            output::note(&format!(
                "notice: stopped in {name}; only the tests before it have results"
            ));
            return Err(Early::Interrupted.into());
        };
        if sensors.is_some() && measured.condition.is_none() {
            // A notice said why; the next test would only repeat it.
            self.sensors = Some(None);
        }
        let record = Record::new(subject, test, machine, &measured);
        let kept_name = kept_name(subject, test, machine.offload);
        let mut measurement = record.measurement(kept_name.clone(), subject, test);
        if let Some((pace, measurement)) = pace.as_mut().zip(measurement.as_mut()) {
            let rates = pace.take().map(|(name, rate)| (name.to_string(), rate));
            measurement.metrics.extend(rates);
        }
        let measurement = group.hardware.as_ref().zip(measurement);
        let keeper = &mut self.results.keeper;
        match (round.pass, measurement) {
            (Pass::All, Some((hardware, measurement))) => keeper.add(hardware, measurement),
            (Pass::Again(_), Some((hardware, measurement))) => {
                keeper.add_again(hardware, measurement);
            }
            (_, None) => {}
        }
        if let Pass::All = round.pass {
            let memory = bench.backend_info().device_memory;
            let gpu_bytes = memory.map(|memory| memory.total);
            round.bar.suspend(|| {
                let gate = &mut self.results.gate;
                gate.judge(&name, test, &measured.samples, gpu_bytes);
            });
            self.kept.push(Kept {
                name: kept_name,
                subject: group.subject,
                test: *test,
            });
        }
        round.bar.suspend(|| self.print(&record, &name, round.pass))
    }

    fn print(&mut self, record: &Record, name: &str, pass: Pass<'_>) -> Result<()> {
        if let Pass::All = pass {
            self.results.printer.row(record, name)?;
        }
        for warning in record.warnings() {
            output::note(&format!("warning: {name} {warning}"));
        }
        Ok(())
    }
}

/// The state of one pass over the tests.
struct Round<'a> {
    pass: Pass<'a>,
    bar: ProgressBar,
    working: Working<'a>,
    gpu_roofline: Option<Roofline>,
    /// Measured so far, by number of threads.
    cpu_rooflines: Vec<(usize, Roofline)>,
}

impl Round<'_> {
    fn cpu_roofline(&mut self, isa: Isa, n_threads: usize) -> Roofline {
        let known = self.cpu_rooflines.iter().find(|(n, _)| *n == n_threads);
        if let Some((_, roofline)) = known {
            return *roofline;
        }
        self.bar.set_message("measuring the roofline");
        let roofline = rocmforge_cpu::measure_roofline(isa, n_threads);
        self.cpu_rooflines.push((n_threads, roofline));
        roofline
    }
}

/// Tests of a model that share an engine.
struct Group {
    /// Index of the model in the subjects.
    subject: usize,
    bench: Bench,
    machine: Machine,
    /// For baselines, if there are any.
    hardware: Option<Hardware>,
}

/// Returns a test's name in baselines. It contains all settings, but the threads only if they are not the machine's
/// default, so that the same command gives the same names on other machines.
fn kept_name(subject: &Subject, test: &Test, placed: Offload) -> String {
    let mut name = format!("{} {}", subject.kept_name, test.name(Some(placed)));
    if test.kv_types != KvTypes::default() {
        name.push_str(&format!(" {}", test.kv_types));
    }
    let on_cpu = placed != Offload::default();
    if on_cpu && test.n_threads != default_threads() {
        name.push_str(&format!(" t{}", test.n_threads));
    }
    name
}

/// Measures a GPU's peaks; `None` for an emulated GPU.
fn gpu_roofline(config: &GpuConfig) -> Option<Roofline> {
    if matches!(config.id, Some(DeviceId::Host(_))) {
        return None;
    }
    let measured = gpu::roofline(config).ok()?;
    measured.read_bytes_per_s.is_finite().then_some(measured)
}

/// Adds this command's flags to out-of-memory errors.
fn no_room(error: EngineError, group: &[Test]) -> anyhow::Error {
    match error {
        EngineError::Config(ConfigError::NoMemory {
            needed_mib,
            free_mib,
            ..
        })
        | EngineError::Config(ConfigError::NoMemoryAtAll {
            needed_mib,
            free_mib,
        }) => anyhow::anyhow!(
            "{} needs {needed_mib} MiB beside the weights, {free_mib} MiB are free; reduce -d, -p, -n or -b",
            group
                .iter()
                .map(|test| test.name(None))
                .collect::<Vec<_>>()
                .join(", ")
        ),
        other => other.into(),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::args::{Cli, Command};

    fn names(args: &[&str]) -> Vec<String> {
        let cli = Cli::try_parse_from([&["rocmforge", "bench", "-t", "2"], args].concat()).unwrap();
        let Command::Bench(args) = &cli.command else {
            panic!("not bench");
        };
        let tests = tests(args).unwrap();
        tests.iter().map(|test| test.name(None)).collect()
    }

    #[test]
    fn names_contain_the_offload_settings() {
        assert_eq!(
            names(&["-n", "0", "--gpu-layers", "0,16,auto,all", "--cpu-moe"]),
            [
                "pp512 ngl 0",
                "pp512 ngl 16 cpu-moe",
                "pp512 ngl auto cpu-moe",
                "pp512 cpu-moe"
            ]
        );
    }

    #[test]
    fn tests_are_the_cross_product_in_llama_bench_order() {
        assert_eq!(names(&[]), ["pp512", "tg128"]);
        assert_eq!(
            names(&["-p", "16,32", "-p", "8", "-n", "0", "--pg", "16,4"]),
            ["pp16", "pp32", "pp8", "pp16+tg4"]
        );
        assert_eq!(
            names(&["-p", "16", "-n", "4", "-d", "0,4096", "-b", "1,8"]),
            [
                "pp16",
                "tg4",
                "pp16 @ d4096",
                "tg4 @ d4096",
                "pp16 B8",
                "tg4 B8",
                "pp16 @ d4096 B8",
                "tg4 @ d4096 B8"
            ]
        );
    }
}
