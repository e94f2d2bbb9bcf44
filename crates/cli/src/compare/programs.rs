//! Both programs, their arguments, and how to run them.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use rocmforge_cpu::default_threads;

use super::groups::Group;
use super::rows::{self, Row, Test};
use super::settings::Setting;
use super::{LLAMA_BENCH, OURS, child};
use crate::args::CompareArgs;
use crate::exit::usage;
use crate::interrupt::Working;
use crate::output;

/// The kind of program to compare with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Peer {
    LlamaBench,
    /// Another build of this program.
    Rocmforge,
}

impl Peer {
    pub fn name(self) -> &'static str {
        match self {
            Peer::LlamaBench => LLAMA_BENCH,
            Peer::Rocmforge => "other build",
        }
    }
}

/// Both programs and their arguments.
pub struct Programs {
    pub peer: Peer,
    ours: PathBuf,
    /// Builds of the peer.
    pub theirs: Vec<PathBuf>,
    model: PathBuf,
    pub n_threads: usize,
    only_ours: Vec<OsString>,
    pub only_theirs: Vec<OsString>,
}

/// What to run.
#[derive(Clone, Copy)]
pub enum Side<'a> {
    Ours,
    Theirs(&'a Setting),
}

impl Programs {
    /// Resolves the command line.
    ///
    /// # Errors
    /// A program or the model is missing, or the programs do not go together.
    pub fn new(args: &CompareArgs) -> Result<Programs> {
        let (peer, theirs) = peers(&args.with)?;
        let model = rocmforge_hub::resolve(&args.model, args.store.models_dir.as_deref())?;
        if !model.is_file() {
            bail!(
                "no such file: {}",
                output::for_terminal(&model.to_string_lossy())
            );
        }
        let device = args.device.iter();
        let device: Vec<OsString> = device
            .flat_map(|device| ["--device".into(), device.into()])
            .collect();
        Ok(Programs {
            peer,
            ours: std::env::current_exe().context("cannot determine the path of this program")?,
            theirs,
            model,
            n_threads: args.threads.unwrap_or_else(default_threads),
            only_theirs: match peer {
                Peer::LlamaBench => args.theirs.clone(),
                Peer::Rocmforge => device.iter().chain(&args.theirs).cloned().collect(),
            },
            only_ours: device,
        })
    }

    /// Runs one of the programs and returns a row for each of the group's tests; `None` if the user stopped it.
    ///
    /// # Errors
    /// The program fails, or does not print one row per test.
    pub fn run(
        &self,
        side: Side<'_>,
        tests: &Group,
        repetitions: u32,
        working: &Working<'_>,
    ) -> Result<Option<Vec<Row>>> {
        let (name, mut command) = match side {
            Side::Ours => (OURS, Command::new(&self.ours)),
            Side::Theirs(setting) => (
                self.peer.name(),
                Command::new(&self.theirs[setting.program]),
            ),
        };
        if name != LLAMA_BENCH {
            command.arg("bench");
        }
        command.arg("-m").arg(&self.model).args(tests.args());
        let n_threads = match side {
            Side::Ours => Some(self.n_threads),
            Side::Theirs(setting) => setting.n_threads,
        };
        if let Some(n_threads) = n_threads {
            command.arg("-t").arg(n_threads.to_string());
        }
        command.args(["-r", &repetitions.to_string(), "-o", "json"]);
        match side {
            Side::Ours => command.args(&self.only_ours),
            Side::Theirs(setting) => command.args(setting.tuning()).args(&self.only_theirs),
        };
        let Some(text) = child::stdout_of(command, name, working)? else {
            return Ok(None);
        };
        let rows = rows::rows(&text, name)?;
        let twice = |(i, row): (usize, &Row)| rows[..i].iter().any(|other| other.test == row.test);
        if let Some((_, row)) = rows.iter().enumerate().find(|of| twice(*of)) {
            bail!(
                "{name} printed several rows for {}; give it one value for each setting",
                row.test.name()
            );
        }
        Ok(Some(rows))
    }

    /// Returns the arguments of the peer that decide about its speed.
    pub fn flags(&self, setting: &Setting) -> Vec<String> {
        let threads = { setting.n_threads.iter() }.flat_map(|n| ["-t".to_string(), n.to_string()]);
        let given = self.only_theirs.iter();
        let given = given.map(|arg| arg.to_string_lossy().into_owned());
        threads.chain(setting.tuning()).chain(given).collect()
    }
}

/// Returns the test's row.
pub fn row_of(rows: &[Row], test: &Test, name: &str) -> Result<Row> {
    let found = rows.iter().find(|row| row.test == *test).cloned();
    found.with_context(|| format!("{name} printed no row for {}", test.name()))
}

/// Reads the names and paths of `--with`.
fn peers(with: &[OsString]) -> Result<(Peer, Vec<PathBuf>)> {
    let mut peers = Vec::new();
    for pair in with.chunks(2) {
        let (tool, path) = (&pair[0], Path::new(&pair[1]));
        let peer = match tool.to_str() {
            Some(LLAMA_BENCH) => Peer::LlamaBench,
            Some(OURS) => Peer::Rocmforge,
            _ => {
                return Err(usage(format!(
                    "--with {} is not supported; use --with {LLAMA_BENCH} PATH or --with {OURS} PATH",
                    output::for_terminal(&tool.to_string_lossy())
                )));
            }
        };
        peers.push((peer, path));
    }
    let peer = peers[0].0;
    if peers.len() > 1 && peers.iter().any(|(peer, _)| *peer == Peer::Rocmforge) {
        return Err(usage(format!(
            "several --with are several builds of {LLAMA_BENCH}; compare builds of {OURS} one after the other"
        )));
    }
    let checked = |(peer, path): (Peer, &Path)| {
        if !path.is_file() {
            let path = output::for_terminal(&path.to_string_lossy());
            match peer {
                Peer::LlamaBench => bail!(
                    "no {LLAMA_BENCH} at {path}; build llama.cpp and use the path of its bin/{LLAMA_BENCH}"
                ),
                Peer::Rocmforge => {
                    bail!("no program at {path}; use the path of the other build of {OURS}")
                }
            }
        }
        // Without a folder, the program would be searched in PATH.
        Ok(match path.parent() {
            Some(folder) if folder.as_os_str().is_empty() => Path::new(".").join(path),
            _ => path.to_owned(),
        })
    };
    let paths = peers.into_iter().map(checked).collect::<Result<_>>()?;
    Ok((peer, paths))
}
