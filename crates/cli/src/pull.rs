//! `rocmforge pull`: downloads a model from a hub into the models folder.

use std::ffi::OsString;
use std::io::{self, IsTerminal as _};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::Parser as _;
use indicatif::{ProgressBar, ProgressStyle};
use rocmforge_gguf::{escape_control, shown, shown_message};
use rocmforge_hub::{Available, Event, Hub, HubConfig, ModelsFolder, Reference, Selection, Token};

use crate::args::{Cli, Command, PullArgs, StoreArgs};
use crate::exit::{self, usage};
use crate::output::{self, Out, size};
use crate::recommend::{self, Advice};
use crate::wrap;

/// Most models to list when the user has to choose.
const MAX_LISTED: usize = 50;

pub fn run(args: &PullArgs) -> Result<()> {
    stop_on_interrupt(&args.model)?;
    let path = download(args)?;
    let mut out = Out::new();
    out.line(&path.to_string_lossy())?;
    out.finish()
}

/// Downloads a model for another command, with the hub that the environment names.
pub fn fetch(reference: &Reference, store: &StoreArgs) -> Result<PathBuf> {
    let mut words: Vec<OsString> = vec!["rocmforge".into(), "pull".into()];
    if let Some(dir) = &store.models_dir {
        words.extend(["--models-dir".into(), dir.into()]);
    }
    words.push(reference.to_string().into());
    match Cli::try_parse_from(words)?.command {
        Command::Pull(args) => download(&args),
        _ => unreachable!("the words are those of pull"),
    }
}

/// Downloads and shows the progress. Returns the path of the file.
fn download(args: &PullArgs) -> Result<PathBuf> {
    let reference = &args.model;
    let folder = ModelsFolder::open(args.store.models_dir.as_deref())?;
    let hub = Hub::new(HubConfig {
        endpoint: args.endpoint.clone(),
        token: token(args)?,
        ca_file: args.ca_file.clone(),
        timeout: Duration::from_secs(args.timeout),
        retries: args.retries,
    })?;
    let mut progress = Progress::default();
    let memories = match reference.selection {
        Selection::Default => recommend::memories(args.memory),
        Selection::Quant(_) | Selection::File(_) => Vec::new(),
    };
    let choice = |models: &[Available]| {
        let Some(advice) = recommend::advice(models, &memories) else {
            return Ok(None);
        };
        show(models, &advice);
        match advice.fits() {
            true => {
                output::note(&advice.reason());
                Ok(Some(advice.at))
            }
            false => Err(advice.reason()),
        }
    };
    let pulled = folder.pull_choice(&hub, reference, &choice, &mut |event| {
        progress.show(&event);
    });
    // Clears the bar.
    drop(progress);
    Ok(pulled.inspect_err(|error| list(error.available()))?)
}

fn token(args: &PullArgs) -> Result<Option<Token>> {
    match &args.token {
        Some(token) => Ok(Some(token.clone())),
        None => Token::from_env().map_err(|error| usage(format!("HF_TOKEN: {error}"))),
    }
}

/// Shows all models, and marks the recommended one.
fn show(models: &[Available], advice: &Advice<'_>) {
    for (at, model) in models.iter().enumerate().take(MAX_LISTED) {
        let is_chosen = at == advice.at && advice.fits();
        let mark = if is_chosen { '*' } else { ' ' };
        let name = shown(&model.name);
        output::note(&format!("{mark} {:>10}  {name}", size(model.bytes)));
    }
    if models.len() > MAX_LISTED {
        output::note(&format!("  and {} more", models.len() - MAX_LISTED));
    }
}

fn list(models: &[Available]) {
    for model in models.iter().take(MAX_LISTED) {
        let name = shown(&model.name);
        output::say(&format!("  {:>10}  {name}", size(model.bytes)));
    }
    if models.len() > MAX_LISTED {
        output::say(&format!("  and {} more", models.len() - MAX_LISTED));
    }
}

/// Ends the program on Ctrl-C; a later pull resumes the part.
fn stop_on_interrupt(reference: &Reference) -> Result<()> {
    let note = format!("\nstopped; resume with: rocmforge pull {reference}");
    ctrlc::set_handler(move || {
        output::note(&note);
        std::process::exit(i32::from(exit::INTERRUPTED));
    })
    .context("cannot handle Ctrl-C")
}

/// Shows the events of a pull: a bar on a terminal, elsewhere a line for every tenth of a file.
#[derive(Default)]
struct Progress {
    /// The bar of the current file, if stderr is a terminal.
    bar: Option<ProgressBar>,
    /// Columns of the terminal that the bar was made for.
    width: usize,
    /// Tenths of the current file, where there is no bar.
    tenths: u64,
}

impl Progress {
    fn show(&mut self, event: &Event<'_>) {
        match event {
            Event::Started { repo, path, bytes } => {
                self.tenths = 0;
                self.note(&format!(
                    "{repo}/{} ({})",
                    escape_control(path),
                    size(*bytes)
                ));
            }
            Event::Resumed { done } => self.note(&format!("resuming after {}", size(*done))),
            Event::Progress { .. } if output::is_quiet() => {}
            Event::Progress { done, total } if io::stderr().is_terminal() => {
                self.draw(*done, *total);
            }
            Event::Progress { done, total } => {
                let tenths = tenths(*done, *total);
                if tenths > self.tenths {
                    self.note(&format!("{tenths}0 % of {}", size(*total)));
                }
                self.tenths = tenths;
            }
            Event::AlreadyComplete { path } => self.note(&format!("{path} is already complete")),
            Event::Retrying { reason, wait } => {
                let (seconds, reason) = (wait.as_secs_f64(), shown_message(reason));
                self.note(&format!("notice: {reason}; retrying in {seconds:.1} s"));
            }
            Event::PartDamaged => {
                self.note("notice: the part of an earlier pull is damaged; starting over");
            }
            Event::NoChecksum { path } => self.note(&format!(
                "notice: the hub has no checksum for {path}; only its length was checked"
            )),
            _ => {}
        }
    }

    fn draw(&mut self, done: u64, total: u64) {
        let bar = self.bar.get_or_insert_with(|| {
            let bar = ProgressBar::new(total).with_position(done);
            bar.reset_eta();
            self.width = 0;
            bar
        });
        let width = wrap::terminal_width(&io::stderr()).unwrap_or(WIDE);
        if width != self.width {
            self.width = width;
            bar.set_style(style(width));
        }
        bar.set_position(done);
        if done == total {
            bar.finish_and_clear();
            self.bar = None;
        }
    }

    /// Writes a line, above the bar if there is one.
    fn note(&self, line: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| output::note(line)),
            None => output::note(line),
        }
    }
}

/// Columns of a terminal with room for the whole bar.
const WIDE: usize = 64;

/// Returns how the bar looks in a terminal of `width` columns. It never fills the line: a terminal that becomes
/// narrower would break it into several, of which only the last is drawn over.
fn style(width: usize) -> ProgressStyle {
    let template = match width {
        WIDE.. => "{bar:16} {bytes:>10}/{total_bytes} {bytes_per_sec} {eta}",
        32.. => "{bytes}/{total_bytes} {eta}",
        _ => "{percent} %",
    };
    ProgressStyle::with_template(template).expect("the templates of this program are valid")
}

fn tenths(done: u64, total: u64) -> u64 {
    (u128::from(done) * 10 / u128::from(total.max(1))) as u64
}
