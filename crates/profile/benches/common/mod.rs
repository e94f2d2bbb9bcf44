//! What the bench targets share: each runs a suite of the library, as `rocmforge bench SUITE` does, with flags of the
//! same names after `--`.

use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use rocmforge_engine::backend::gpu::{DeviceId, GpuConfig, OpenOptions};
use rocmforge_engine::model::Model;
use rocmforge_engine::synthetic::Synthetic;
use rocmforge_engine::{Continue, Isa, default_threads};
use rocmforge_gguf::{Gguf, LoadMode};
use rocmforge_profile::bench::export::{Detail, Exporter, Form};
use rocmforge_profile::bench::{
    BenchDevice, BenchRow, Effort, Filter, Options, Sink, Subject, Suite, found_gpus, run,
    wanted_names,
};

const USAGE: &str = "flags: [FILTER] [--filter TEXT] [--quick] [--verbose] [-t N] \
    [--device all|cpu|hip:N|cuda:N|host:NAME] [-o table|json|csv|markdown] [-m FILE] [--synthetic SHAPE:TYPE]";

type Failure = Box<dyn std::error::Error>;

/// Runs `suite` as the command line says.
pub(crate) fn main(suite: Suite) -> ExitCode {
    match bench(suite) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(2)
        }
    }
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
        };
        let mut args = args.peekable();
        while let Some(arg) = args.next() {
            let mut value = || args.next().ok_or(format!("{arg} needs a value; {USAGE}"));
            match arg.as_str() {
                // Cargo's own.
                "--bench" => {}
                "--quick" => flags.effort = Effort::Quick,
                "-v" | "--verbose" => flags.detail = Detail::All,
                "--filter" => flags.filter = Some(Filter::new(&value()?)),
                "-t" | "--threads" => flags.n_threads = value()?.parse()?,
                "--device" => flags.device = value()?,
                "-m" | "--model" => flags.model = Some(value()?.into()),
                "--synthetic" => flags.synthetic = Some(value()?),
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
                _ => return Err(format!("there is no flag {arg}; {USAGE}").into()),
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
            BenchDevice::Gpu(id, config)
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

    /// The model of the flags, of `ROCMFORGE_MODEL`, or the one in the repository.
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

fn bench(suite: Suite) -> Result<(), Failure> {
    let flags = Flags::parse(std::env::args().skip(1))?;
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
    let mut printer = Printer(Exporter::new(flags.form, flags.detail, &names));
    print(&printer.0.header())?;
    let outcome = run(&options, &mut printer);
    print(&printer.0.footer())?;
    outcome?;
    Ok(())
}

fn print(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

struct Printer(Exporter);

impl Sink for Printer {
    fn begins(&mut self, _: &str) {}

    fn row(&mut self, row: &BenchRow) -> Continue {
        match print(&self.0.row(row)) {
            Ok(()) => Continue::Yes,
            Err(_) => Continue::No,
        }
    }

    fn note(&mut self, text: &str) {
        eprintln!("notice: {text}");
    }

    fn is_stopped(&self) -> bool {
        false
    }
}
