//! Common code of the bench targets: each runs a suite of the library like `rocmforge bench SUITE`, with the same flags
//! after `--`.

// The program embeds its commit. A bench is built from the tree that it runs in and asks there, so that a commit compiles
// nothing here again.
#[path = "../../../cli/build/commit.rs"]
mod commit;

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use rocmforge_bench::baseline::{
    ComparisonResult, Hardware, Measurement, PerformanceBaseline, RegressionReport, Rules, Store,
};
use rocmforge_bench::export::{Detail, Exporter, Form};
use rocmforge_bench::{
    BenchDevice, BenchRow, Effort, Filter, Options, Sink, Subject, Suite, found_gpus, run,
    wanted_names,
};
use rocmforge_cpu::{Isa, default_threads};
use rocmforge_gguf::{Gguf, LoadMode};
use rocmforge_model::Model;
use rocmforge_quantize::synthetic::Synthetic;
use rocmforge_runtime::gpu::{DeviceId, GpuConfig, OpenOptions};
use std::ops::ControlFlow;

const USAGE: &str = "flags: [FILTER] [--filter TEXT] [--quick] [--verbose] [-t N] \
    [--device all|cpu|hip:N|cuda:N|host:NAME] [-o table|json|csv|markdown] [-m FILE] [--synthetic SHAPE:TYPE] \
    [--save-baseline [NAME]] [--compare-baseline [NAME]] [--baseline-dir DIR]";

type Failure = Box<dyn std::error::Error>;

/// Runs `suite` with the flags of the command line.
pub(crate) fn main(suite: Suite) -> ExitCode {
    match bench(suite) {
        Ok(Verdict::NotWorse) => ExitCode::SUCCESS,
        Ok(Verdict::Worse) => ExitCode::from(3),
        Ok(Verdict::OtherHardware) => ExitCode::from(4),
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(2)
        }
    }
}

/// The result of a comparison with a baseline; exit codes are those of `rocmforge bench`.
enum Verdict {
    NotWorse,
    Worse,
    OtherHardware,
}

/// The command line.
struct Flags {
    filter: Option<Filter>,
    effort: Effort,
    detail: Detail,
    form: Form,
    n_threads: usize,
    device: String,
    model: Option<PathBuf>,
    synthetic: Option<String>,
    save: Option<String>,
    compare: Option<String>,
    baseline_dir: Option<PathBuf>,
}

impl Flags {
    fn parse(args: impl Iterator<Item = String>) -> Result<Flags, Failure> {
        let mut flags = Flags {
            filter: None,
            effort: Effort::Full,
            detail: Detail::Short,
            form: Form::Table,
            n_threads: default_threads(),
            device: "all".to_string(),
            model: None,
            synthetic: None,
            save: None,
            compare: None,
            baseline_dir: std::env::var_os("ROCMFORGE_BASELINE_DIR").map(PathBuf::from),
        };
        let mut args = args.peekable();
        while let Some(arg) = args.next() {
            if let "--save-baseline" | "--compare-baseline" = arg.as_str() {
                let name = args.next_if(|next| !next.starts_with('-'));
                let name = Some(name.unwrap_or_else(|| "default".to_string()));
                match arg.as_str() {
                    "--save-baseline" => flags.save = name,
                    _ => flags.compare = name,
                }
                continue;
            }
            let mut value = || args.next().ok_or(format!("{arg} needs a value; {USAGE}"));
            match arg.as_str() {
                // Passed by cargo.
                "--bench" => {}
                "--quick" => flags.effort = Effort::Quick,
                "-v" | "--verbose" => flags.detail = Detail::All,
                "--filter" => flags.filter = Some(Filter::new(&value()?)),
                "-t" | "--threads" => flags.n_threads = value()?.parse()?,
                "--device" => flags.device = value()?,
                "-m" | "--model" => flags.model = Some(value()?.into()),
                "--synthetic" => flags.synthetic = Some(value()?),
                "--baseline-dir" => flags.baseline_dir = Some(value()?.into()),
                "-o" | "--output" => {
                    flags.form = match value()?.as_str() {
                        "table" => Form::Table,
                        "json" => Form::Json,
                        "csv" => Form::Csv,
                        "markdown" => Form::Markdown,
                        _ => return Err(USAGE.into()),
                    }
                }
                text if !text.starts_with('-') => flags.filter = Some(Filter::new(text)),
                _ => return Err(format!("unknown flag {arg}; {USAGE}").into()),
            }
        }
        Ok(flags)
    }

    fn devices(&self) -> Result<Vec<BenchDevice>, Failure> {
        let open = OpenOptions::from_env();
        let gpu = |id: DeviceId| {
            let config = GpuConfig {
                id: Some(id),
                open: open.clone(),
                ..GpuConfig::default()
            };
            BenchDevice::Gpu(id, Box::new(config))
        };
        Ok(match self.device.as_str() {
            "all" => {
                let gpus = found_gpus(&open).0.into_iter().map(gpu);
                std::iter::once(BenchDevice::Cpu).chain(gpus).collect()
            }
            "cpu" => vec![BenchDevice::Cpu],
            id => vec![gpu(id.parse()?)],
        })
    }

    /// Returns the folder given by the flags, by `ROCMFORGE_BASELINE_DIR`, or the user's default.
    fn store(&self) -> Result<Store, Failure> {
        let set = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        let of_user = || {
            let data = set("XDG_DATA_HOME").map(PathBuf::from);
            let data = data.filter(|dir| dir.is_absolute());
            let data = data.or_else(|| Some(PathBuf::from(set("HOME")?).join(".local/share")))?;
            Some(data.join("rocmforge/baselines"))
        };
        let dir = self.baseline_dir.clone().or_else(of_user);
        let dir = dir.ok_or("HOME is not set; pass the folder of baselines with --baseline-dir")?;
        Ok(Store::at(dir))
    }

    /// Loads the model given by the flags, by `ROCMFORGE_MODEL`, or the one in the repository.
    fn model(&self) -> Result<(String, Model), Failure> {
        let (name, gguf) = match &self.synthetic {
            Some(name) => (name.clone(), name.parse::<Synthetic>()?.open()?),
            None => {
                let of_env = || std::env::var_os("ROCMFORGE_MODEL").map(PathBuf::from);
                let path = self.model.clone().or_else(of_env).unwrap_or_else(|| {
                    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
                        .join("../../models/forge-mini-Q4_K_M.gguf")
                });
                let name = path.file_name().unwrap_or_default().to_string_lossy();
                (name.into_owned(), Gguf::open(&path, LoadMode::Mmap)?)
            }
        };
        Ok((name, Model::load(Arc::new(gguf))?))
    }
}

fn bench(suite: Suite) -> Result<Verdict, Failure> {
    let flags = Flags::parse(std::env::args().skip(1))?;
    // Fail before measuring rather than after it.
    let store = match flags.save.is_some() || flags.compare.is_some() {
        true => Some(flags.store()?),
        false => None,
    };
    let then = match (&flags.compare, &store) {
        (Some(name), Some(store)) => Some((name, store.load(name)?)),
        _ => None,
    };
    if let (Some(name), Some(store)) = (&flags.save, &store) {
        store.check(name)?;
    }
    let devices = flags.devices()?;
    let model = match suite {
        Suite::Inference | Suite::Batch => Some(flags.model()?),
        _ => None,
    };
    let options = Options {
        suite,
        devices: &devices,
        isa: Isa::detect(),
        n_threads: flags.n_threads,
        effort: flags.effort,
        filter: flags.filter.as_ref(),
        subject: model.as_ref().map(|(name, model)| Subject {
            name,
            format: None,
            model,
        }),
    };
    let names = wanted_names(&options)?;
    let mut printer = Printer {
        exporter: Exporter::new(flags.form, flags.detail, &names),
        commit: commit::of(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")),
        now: PerformanceBaseline::default(),
    };
    eprintln!("commit: {}", printer.commit.as_deref().unwrap_or("unknown"));
    print(&printer.exporter.header())?;
    let outcome = run(&options, &mut printer);
    print(&printer.exporter.footer())?;
    outcome?;
    let mut verdict = Verdict::NotWorse;
    if let Some((name, then)) = &then {
        let report = RegressionReport::compare(then, &printer.now, &Rules::default());
        let report = report.called(name, "this run");
        eprint!("{}", report.to_terminal());
        if report.count(ComparisonResult::Regression) > 0 {
            verdict = Verdict::Worse;
        } else if report.count(ComparisonResult::HardwareMismatch) > 0 {
            verdict = Verdict::OtherHardware;
        }
    }
    if let (Some(name), Some(store)) = (&flags.save, &store) {
        let path = store.save(name, printer.now)?;
        eprintln!("saved as {}", path.display());
    }
    Ok(verdict)
}

fn print(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

struct Printer {
    exporter: Exporter,
    commit: Option<String>,
    /// The measurements so far.
    now: PerformanceBaseline,
}

impl Sink for Printer {
    fn begins(&mut self, _: &str) {}

    fn row(&mut self, row: &BenchRow) -> ControlFlow<()> {
        let hardware = Hardware {
            program_commit: self.commit.clone(),
            ..Hardware::from(&row.hardware)
        };
        let kept = PerformanceBaseline::of(&hardware, [Measurement::from(row)]);
        self.now.extend(kept);
        match print(&self.exporter.row(row)) {
            Ok(()) => ControlFlow::Continue(()),
            Err(_) => ControlFlow::Break(()),
        }
    }

    fn note(&mut self, text: &str) {
        eprintln!("notice: {text}");
    }

    fn is_stopped(&self) -> bool {
        false
    }
}
