//! `rocmforge models`: what lies in the models folder, and `rocmforge models rm`.

use std::fs;
use std::io::{self, IsTerminal as _, Write as _};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, bail};
use rocmforge_gguf::{Gguf, LoadMode, Value, escape_control};
use serde::Serialize;

use super::names::Group;
use super::store::{Contents, File, Store, shown};
use crate::args::{ModelsArgs, ModelsCommand, RemoveArgs, StoreArgs};
use crate::exit::usage;
use crate::output::{self, Out, size};

#[derive(Serialize)]
struct Report<'a> {
    models_dir: String,
    models: Vec<Model>,
    incomplete: Vec<Incomplete<'a>>,
}

/// One model of the folder.
#[derive(Serialize)]
struct Model {
    /// What `-m` takes.
    name: String,
    path: String,
    files: usize,
    bytes: u64,
    architecture: Option<String>,
    /// The format of most of its bytes.
    quantization: Option<&'static str>,
    /// Seconds since 1970 of the newest file.
    modified: Option<u64>,
    /// Why it cannot be opened.
    problem: Option<String>,
}

#[derive(Serialize)]
struct Incomplete<'a> {
    name: &'a str,
    bytes: u64,
}

pub fn run(args: &ModelsArgs) -> Result<()> {
    let open = |args: &StoreArgs| Store::open(args.models_dir.as_deref());
    match &args.command {
        None => show(&open(&args.store)?, args.json),
        Some(ModelsCommand::Rm(remove)) => rm(&open(&remove.store)?, remove),
    }
}

fn show(store: &Store, json: bool) -> Result<()> {
    let contents = store.contents()?;
    let models: Vec<Model> = contents
        .models
        .iter()
        .map(|model| describe(&contents, model))
        .collect();
    let mut out = Out::new();
    if json {
        let incomplete = contents.incomplete.iter().map(|file| Incomplete {
            name: &file.name,
            bytes: file.bytes,
        });
        out.json(&Report {
            models_dir: store.root().to_string_lossy().into_owned(),
            models,
            incomplete: incomplete.collect(),
        })?;
        return out.finish();
    }
    if models.is_empty() && contents.incomplete.is_empty() {
        output::note(&format!("no models in {}", shown(store.root())));
        return out.finish();
    }
    let names = models.iter().map(|model| model.name.chars().count());
    let width = names.max().unwrap_or(0).clamp(4, 60);
    out.line(&format!(
        "{:width$}  {:>10}  {:12}  {:7}  date",
        "name", "size", "architecture", "type"
    ))?;
    for model in &models {
        let facts = match &model.problem {
            Some(problem) => format!("broken: {problem}"),
            None => format!(
                "{:12}  {:7}  {}",
                model.architecture.as_deref().unwrap_or("n/a"),
                model.quantization.unwrap_or("n/a"),
                model.modified.map_or("n/a".into(), date)
            ),
        };
        let name = escape_control(&model.name);
        out.line(&format!(
            "{name:width$}  {:>10}  {facts}",
            size(model.bytes)
        ))?;
    }
    for file in &contents.incomplete {
        let name = escape_control(&file.name);
        out.line(&format!(
            "{name:width$}  {:>10}  incomplete",
            size(file.bytes)
        ))?;
    }
    out.finish()
}

fn describe(contents: &Contents, model: &Group<File>) -> Model {
    let (mut architecture, mut quantization, mut problem) = (None, None, None);
    let first = &model.files[0].path;
    match Gguf::open(first, LoadMode::Mmap) {
        Ok(gguf) => {
            architecture = match gguf.metadata().get("general.architecture") {
                Some(Value::String(name)) => {
                    Some(escape_control(&String::from_utf8_lossy(name)).into_owned())
                }
                _ => None,
            };
            quantization = most_bytes(&gguf);
        }
        Err(error) => problem = Some(error.to_string()),
    }
    let modified = model.files.iter().filter_map(|file| file.modified).max();
    Model {
        name: contents.name_of(model).into_owned(),
        path: first.to_string_lossy().into_owned(),
        files: model.files.len(),
        bytes: total(model),
        architecture,
        quantization,
        modified: modified.and_then(seconds),
        problem,
    }
}

fn total(model: &Group<File>) -> u64 {
    model
        .files
        .iter()
        .fold(0, |sum: u64, file| sum.saturating_add(file.bytes))
}

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

/// The day in UTC, `2026-03-01`. Method: Howard Hinnant, "chrono-compatible low-level date algorithms".
fn date(seconds: u64) -> String {
    let days = seconds / 86_400 + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    // Months are counted from March, so that the leap day is the last of the year.
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let year = era * 400 + year_of_era + u64::from(month >= 10);
    let month = if month < 10 { month + 3 } else { month - 9 };
    format!("{year:04}-{month:02}-{day:02}")
}

fn rm(store: &Store, args: &RemoveArgs) -> Result<()> {
    let contents = store.contents()?;
    let by_name = |file: &&File| file.name == args.name;
    let files: Vec<&File> = match contents.incomplete.iter().find(by_name) {
        Some(file) => vec![file],
        None => match contents.find(&args.name)? {
            Some(model) => model.files.iter().collect(),
            None => bail!(
                "there is no model '{}' in {}; rocmforge models lists what there is",
                escape_control(&args.name),
                shown(store.root())
            ),
        },
    };
    let bytes = files
        .iter()
        .fold(0, |sum: u64, file| sum.saturating_add(file.bytes));
    for file in &files {
        output::note(&shown(&file.path));
    }
    if !args.yes && !confirmed(bytes)? {
        output::note("nothing was removed");
        return Ok(());
    }
    for file in files {
        fs::remove_file(&file.path)
            .with_context(|| format!("cannot remove {}", shown(&file.path)))?;
        remove_empty(file.path.parent(), store.root());
    }
    output::note(&format!("removed, {} are free", size(bytes)));
    Ok(())
}

fn confirmed(bytes: u64) -> Result<bool> {
    let stdin = io::stdin();
    if !stdin.is_terminal() {
        return Err(usage(
            "removing asks first and stdin is not a terminal; give --yes",
        ));
    }
    // Nobody reads a question that cannot be written; the answer is no then.
    let _ = write!(io::stderr(), "Remove {}? [y/N] ", size(bytes));
    let mut answer = String::new();
    stdin
        .read_line(&mut answer)
        .context("cannot read the answer")?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

/// Removes `dir` and those above it as far as they are empty, below `root`.
fn remove_empty(dir: Option<&Path>, root: &Path) {
    let mut dir = dir;
    while let Some(this) = dir
        && this.starts_with(root)
        && this != root
    {
        // Not empty: done. The lock of a pull does not count.
        let only_lock = fs::read_dir(this).is_ok_and(|mut entries| {
            entries.all(|entry| entry.is_ok_and(|entry| entry.file_name() == super::LOCK_NAME))
        });
        if !only_lock {
            return;
        }
        let _ = fs::remove_file(this.join(super::LOCK_NAME));
        if fs::remove_dir(this).is_err() {
            return;
        }
        dir = this.parent();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        // From `date -u -d @N +%F`.
        for (seconds, expected) in [
            (0, "1970-01-01"),
            (951_782_400, "2000-02-29"),
            (951_868_800, "2000-03-01"),
            (1_709_164_799, "2024-02-28"),
            (4_107_542_400, "2100-03-01"),
        ] {
            assert_eq!(date(seconds), expected);
        }
    }
}
