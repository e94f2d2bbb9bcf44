//! The models that a server offers: those of the command line or of the settings file, and those of the models folder.

use std::collections::HashSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::Result;
use rocmforge::ModelFile;
use rocmforge_hub::{LocalModel, ModelsFolder};
use serde_json::{Map, Value};

use super::settings::Settings;
use crate::args::ServeArgs;
use crate::exit::usage;
use crate::model_file;

/// Name of the built-in model.
const BUILT_IN: &str = "forge-mini";

/// A model to offer.
pub struct Entry {
    /// What clients call it.
    pub name: String,
    pub aliases: Vec<String>,
    /// Fields for requests that leave them out.
    pub defaults: Map<String, Value>,
    pub at_start: bool,
    /// `None` for the built-in model.
    pub path: Option<PathBuf>,
    /// The file of a model that is loaded at the start.
    pub file: Option<ModelFile>,
    pub file_bytes: u64,
    pub args: ServeArgs,
}

/// Returns the models to offer. Files of those that are loaded at the start are opened.
pub fn of(args: &ServeArgs, settings: Option<(&Settings, &[OsString])>) -> Result<Vec<Entry>> {
    if !args.alias.is_empty() && args.alias.len() != args.model.len().max(1) {
        return Err(usage("--alias: give one name for each --model"));
    }
    let mut entries = Vec::new();
    if !args.model.is_empty() {
        for (at, path) in args.model.iter().enumerate() {
            let name = args.alias.get(at).cloned();
            entries.push(opened(args.clone(), Some(path.clone()), name)?);
        }
    } else if let Some((settings, given)) = settings {
        for model in &settings.models {
            let path = model.file.as_deref().map(|file| settings.model_path(file));
            let args = settings.applied_to(model, given)?;
            let name = model.name.clone();
            let entry = match (model.at_start, path) {
                (true, path) => opened(args, path, name)?,
                (false, None) => opened(args, None, name)?,
                (false, Some(path)) => unopened(args, path, name),
            };
            entries.push(Entry {
                aliases: model.aliases.clone(),
                defaults: model.defaults.clone(),
                at_start: model.at_start,
                ..entry
            });
        }
    }
    if args.all_models {
        add_folder(args, &mut entries)?;
    }
    if entries.is_empty() {
        entries.push(opened(args.clone(), None, args.alias.first().cloned())?);
    }
    Ok(entries)
}

fn opened(args: ServeArgs, path: Option<PathBuf>, name: Option<String>) -> Result<Entry> {
    let file = model_file::open(path.as_ref(), &args.load)?;
    let label = &file.label;
    let usual = match path {
        None => BUILT_IN,
        Some(_) => label.strip_suffix(".gguf").unwrap_or(label),
    };
    Ok(Entry {
        name: name.unwrap_or_else(|| usual.to_string()),
        aliases: Vec::new(),
        defaults: Map::new(),
        at_start: true,
        path,
        file_bytes: file
            .gguf
            .tensors()
            .iter()
            .map(|tensor| tensor.n_bytes)
            .sum(),
        file: Some(file),
        args,
    })
}

fn unopened(args: ServeArgs, path: PathBuf, name: Option<String>) -> Entry {
    let stem = path.file_stem().unwrap_or(path.as_os_str());
    Entry {
        name: name.unwrap_or_else(|| stem.to_string_lossy().into_owned()),
        aliases: Vec::new(),
        defaults: Map::new(),
        at_start: false,
        file_bytes: path.metadata().map_or(0, |facts| facts.len()),
        path: Some(path),
        file: None,
        args,
    }
}

/// Adds the models of the models folder that are not offered yet.
fn add_folder(args: &ServeArgs, entries: &mut Vec<Entry>) -> Result<()> {
    let folder = ModelsFolder::open(args.load.store.models_dir.as_deref())?;
    let listing = folder.list()?;
    let real = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let paths = entries.iter().filter_map(|entry| entry.path.as_deref());
    let offered: HashSet<PathBuf> = paths.map(real).collect();
    let is_new =
        |model: &LocalModel| model.n_missing == 0 && !offered.contains(&real(&model.files[0].path));
    let models = listing.models.iter().zip(listing.names());
    for (model, name) in models.filter(|(model, _)| is_new(model)) {
        let path = model.files[0].path.clone();
        entries.push(Entry {
            file_bytes: model.files.iter().map(|file| file.bytes).sum(),
            ..unopened(args.clone(), path, Some(name.into_owned()))
        });
    }
    match entries.is_empty() {
        true => Err(usage(format!(
            "--all-models: {} has no models; download one with rocmforge pull, or name another folder with --models-dir",
            folder.root().display()
        ))),
        false => Ok(()),
    }
}
