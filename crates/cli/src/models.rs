//! `rocmforge models`: lists the models folder. `rocmforge models rm`: removes a model from it.

use std::io::{self, IsTerminal as _, Write as _};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, bail};
use rocmforge_gguf::{Gguf, LoadMode, Value, escape_control, shown};
use rocmforge_hub::{Listing, LocalModel, ModelsFolder, display};
use rocmforge_profile::clock::rfc_3339;
use serde::Serialize;

use crate::args::{ModelsArgs, ModelsCommand, RemoveArgs, StoreArgs};
use crate::exit::usage;
use crate::output::{self, Out, size};
use crate::supported;

#[derive(Serialize)]
struct Report<'a> {
    models_dir: String,
    models: Vec<Model>,
    incomplete: Vec<Incomplete<'a>>,
}

/// A model of the folder.
#[derive(Serialize)]
struct Model {
    /// A name for `-m`.
    name: String,
    path: String,
    files: usize,
    bytes: u64,
    architecture: Option<String>,
    /// The tensor format with the most bytes.
    quantization: Option<&'static str>,
    /// Unix time of the newest file, in seconds.
    modified: Option<u64>,
    /// Why the file cannot be opened.
    problem: Option<String>,
}

#[derive(Serialize)]
struct Incomplete<'a> {
    name: &'a str,
    bytes: u64,
}

pub fn run(args: &ModelsArgs) -> Result<()> {
    let open = |args: &StoreArgs| ModelsFolder::open(args.models_dir.as_deref());
    match &args.command {
        None if args.supported => supported::print(args.json),
        None => show(&open(&args.store)?, args.json),
        Some(ModelsCommand::Rm(remove)) => rm(&open(&remove.store)?, remove),
    }
}

fn show(folder: &ModelsFolder, json: bool) -> Result<()> {
    let listing = folder.list()?;
    let models = listing.models.iter();
    let models: Vec<Model> = models
        .zip(listing.names())
        .map(|(model, name)| describe(model, name.into_owned()))
        .collect();
    let mut out = Out::new();
    if json {
        let incomplete = listing.incomplete.iter().map(|file| Incomplete {
            name: &file.name,
            bytes: file.bytes,
        });
        out.json(&Report {
            models_dir: folder.root().to_string_lossy().into_owned(),
            models,
            incomplete: incomplete.collect(),
        })?;
    } else if models.is_empty() && listing.incomplete.is_empty() {
        output::note(&format!("no models in {}", display::path(folder.root())));
    } else {
        table(&mut out, &models, &listing)?;
    }
    out.finish()
}

fn table(out: &mut Out, models: &[Model], listing: &Listing) -> Result<()> {
    let names = models.iter().map(|model| model.name.chars().count());
    let width = names.max().unwrap_or(0).clamp(4, 60);
    out.line(&format!(
        "{:width$}  {:>10}  {:12}  {:7}  date",
        "name", "size", "architecture", "type"
    ))?;
    let mut row = |name: &str, bytes: u64, facts: &str| {
        let (name, bytes) = (escape_control(name), size(bytes));
        out.line(&format!("{name:width$}  {bytes:>10}  {facts}"))
    };
    for model in models {
        let facts = match &model.problem {
            Some(problem) => format!("broken: {problem}"),
            None => format!(
                "{:12}  {:7}  {}",
                model.architecture.as_deref().unwrap_or("n/a"),
                model.quantization.unwrap_or("n/a"),
                model.modified.map_or("n/a".into(), date)
            ),
        };
        row(&model.name, model.bytes, &facts)?;
    }
    for file in &listing.incomplete {
        row(&file.name, file.bytes, "incomplete")?;
    }
    Ok(())
}

fn describe(model: &LocalModel, name: String) -> Model {
    let (mut architecture, mut quantization, mut problem) = (None, None, None);
    let first = &model.files[0].path;
    match Gguf::open(first, LoadMode::Mmap) {
        Ok(gguf) => {
            architecture = match gguf.metadata().get("general.architecture") {
                Some(Value::String(name)) => Some(shown(&String::from_utf8_lossy(name))),
                _ => None,
            };
            quantization = most_bytes(&gguf);
        }
        Err(error) => problem = Some(error.to_string()),
    }
    let modified = model.files.iter().filter_map(|file| file.modified).max();
    Model {
        name,
        path: first.to_string_lossy().into_owned(),
        files: model.files.len(),
        bytes: total(model.files.iter().map(|file| file.bytes)),
        architecture,
        quantization,
        modified: modified.and_then(seconds),
        problem,
    }
}

fn total(bytes: impl Iterator<Item = u64>) -> u64 {
    bytes.fold(0, u64::saturating_add)
}

/// Returns the format that most of the file's bytes have.
fn most_bytes(gguf: &Gguf) -> Option<&'static str> {
    let mut totals: Vec<(&'static str, u64)> = Vec::new();
    for info in gguf.tensors() {
        let name = info.ty.name();
        match totals.iter_mut().find(|(of, _)| *of == name) {
            Some((_, bytes)) => *bytes = bytes.saturating_add(info.n_bytes),
            None => totals.push((name, info.n_bytes)),
        }
    }
    let (name, _) = totals.into_iter().max_by_key(|(_, bytes)| *bytes)?;
    Some(name)
}

fn seconds(time: SystemTime) -> Option<u64> {
    time.duration_since(UNIX_EPOCH)
        .ok()
        .map(|since| since.as_secs())
}

/// Returns the date in UTC, `2026-03-01`.
fn date(seconds: u64) -> String {
    let mut time = rfc_3339(seconds);
    time.truncate("2026-03-01".len());
    time
}

fn rm(folder: &ModelsFolder, args: &RemoveArgs) -> Result<()> {
    let listing = folder.list()?;
    let Some(files) = listing.find_files(&args.name)? else {
        bail!(
            "no model '{}' in {}; list the models with: rocmforge models",
            shown(&args.name),
            display::path(folder.root())
        );
    };
    let bytes = total(files.iter().map(|file| file.bytes));
    for file in &files {
        output::say(&display::path(&file.path));
    }
    if !args.yes && !confirmed(bytes)? {
        output::note("nothing removed");
        return Ok(());
    }
    for file in files {
        folder.remove(file)?;
    }
    output::note(&format!("removed, {} freed", size(bytes)));
    Ok(())
}

fn confirmed(bytes: u64) -> Result<bool> {
    let stdin = io::stdin();
    if !stdin.is_terminal() {
        return Err(usage(
            "cannot ask for confirmation, stdin is not a terminal; use --yes",
        ));
    }
    // If the question cannot be written, there is no answer either, and nothing is removed.
    let _ = write!(io::stderr(), "Remove {}? [y/N] ", size(bytes));
    let mut answer = String::new();
    stdin
        .read_line(&mut answer)
        .context("cannot read the answer")?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}
