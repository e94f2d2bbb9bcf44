//! The GGUF file a command works on: a path, a name in the models folder, a reference, the embedded model, or a
//! synthetic model.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, Result, bail};
use rocmforge::{LoadMode, ModelFile, ModelOptions};
use rocmforge_gguf::Gguf;
use rocmforge_model::{Adapter, LoadError, Model, Purpose};
use rocmforge_quantize::synthetic::{Synthetic, SyntheticError};
use rocmforge_text::tokenizer::Tokenizer;

use crate::args::{LoadArgs, LoraArgs};
use crate::exit::usage;
#[cfg(feature = "pull")]
use crate::pull;
use crate::{embedded, output};

/// Opens `path`, or the built-in model.
pub fn open(path: Option<&PathBuf>, load: &LoadArgs) -> Result<ModelFile> {
    open_with(path, load, ModelOptions::open_file)
}

/// [`open`], also with tensors of unknown formats.
pub fn open_to_inspect(path: Option<&PathBuf>, load: &LoadArgs) -> Result<ModelFile> {
    open_with(path, load, ModelOptions::open_to_inspect)
}

fn open_with(
    path: Option<&PathBuf>,
    load: &LoadArgs,
    open: fn(&ModelOptions, &Path) -> Result<ModelFile, rocmforge::Error>,
) -> Result<ModelFile> {
    let Some(path) = path else {
        let gguf = embedded::open();
        let gguf = gguf.context("the embedded model is damaged; build the program again")?;
        return Ok(ModelFile {
            gguf: Arc::new(gguf),
            label: embedded::NAME.to_string(),
            folder: None,
        });
    };
    // A download is shown, as `pull` shows it.
    let mut options = ModelOptions::default().offline();
    if load.no_mmap {
        options = options.load_mode(LoadMode::Read);
    }
    if let Some(dir) = &load.store.models_dir {
        options = options.models_dir(dir);
    }
    match open(&options, path) {
        #[cfg(feature = "pull")]
        Err(rocmforge::Error::Hub(rocmforge_hub::Error::NotDownloaded { reference, .. }))
            if path.as_os_str().as_encoded_bytes().starts_with(b"hf:") =>
        {
            let path = pull::fetch(&reference, &load.store)?;
            Ok(open(&options, &path)?)
        }
        opened => Ok(opened?),
    }
}

/// Creates a model with random weights in memory: `SHAPE:TYPE`.
pub fn synthetic(name: &str) -> Result<ModelFile> {
    let wrong = |error: SyntheticError| match error {
        SyntheticError::NoPair { .. }
        | SyntheticError::Shape { .. }
        | SyntheticError::Type { .. } => usage(format!("--synthetic: {error}")),
        other => other.into(),
    };
    let model: Synthetic = name.parse().map_err(wrong)?;
    Ok(ModelFile {
        gguf: Arc::new(model.open().map_err(wrong)?),
        label: format!("synthetic {name}"),
        folder: None,
    })
}

/// Returns the tokenizer of the file and prints its notices; `None` if the file says that it has no vocabulary. `pre`
/// replaces the pre-tokenizer that the file names.
pub fn tokenizer(file: &ModelFile, pre: Option<&str>) -> Result<Option<Arc<Tokenizer>>> {
    let tokenizer = file.tokenizer(pre)?;
    for notice in tokenizer.iter().flat_map(|tokenizer| tokenizer.notices()) {
        output::note(&format!("notice: {notice}"));
    }
    Ok(tokenizer)
}

/// Like [`tokenizer`], for commands that need one.
pub fn need_tokenizer(file: &ModelFile, pre: Option<&str>) -> Result<Arc<Tokenizer>> {
    let tokenizer = tokenizer(file, pre)?;
    tokenizer.with_context(|| format!("{} has no vocabulary", file.label))
}

/// Loads the file's model with the given adapters, the scaled ones last.
pub fn load(purpose: Purpose, file: &ModelFile, lora: &LoraArgs, load: &LoadArgs) -> Result<Model> {
    load_by(file, (lora, load), |gguf, adapters| {
        Model::load_for(purpose, gguf, adapters)
    })
}

/// As [`load`], with what the drafter of another file takes.
pub fn load_for_assistant(
    purpose: Purpose,
    file: &ModelFile,
    args: (&LoraArgs, &LoadArgs),
    drafter: &ModelFile,
) -> Result<Model> {
    load_by(file, args, |gguf, adapters| {
        Model::load_for_assistant(purpose, gguf, adapters, &drafter.gguf)
    })
}

fn load_by(
    file: &ModelFile,
    (lora, load): (&LoraArgs, &LoadArgs),
    by: impl FnOnce(Arc<Gguf>, &[Adapter]) -> Result<Model, LoadError>,
) -> Result<Model> {
    if file.gguf.tensors().is_empty() {
        bail!(
            "{} has no weights; only inspect and tokenize work with it",
            file.label
        );
    }
    let plain = lora.lora.iter().map(|path| (path, 1.0));
    let scaled = lora.lora_scaled.iter().map(|(path, scale)| (path, *scale));
    let adapters = plain.chain(scaled).map(|(path, scale)| {
        let adapter = open(Some(path), load)?;
        Ok(Adapter::new(&adapter.label, adapter.gguf, scale)?)
    });
    let adapters = adapters.collect::<Result<Vec<Adapter>>>()?;
    by(Arc::clone(&file.gguf), &adapters).with_context(|| file.label.clone())
}
