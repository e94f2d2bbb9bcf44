//! Opening a model: by path, by its name in the models folder, or by an `hf:` reference.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rocmforge_gguf::{Gguf, LoadMode, escape_control};
use rocmforge_model::{Adapter, Model as LoadedModel, Pooling, Purpose};
use rocmforge_text::tokenizer::{Tokenizer, TokenizerError};

use crate::{Device, Error, Session, Start};

/// An open GGUF file and what to call it in messages.
#[derive(Debug, Clone)]
pub struct ModelFile {
    pub gguf: Arc<Gguf>,
    /// The file's name, safe to print.
    pub label: String,
    /// The folder in which it lies, if it is a file.
    pub folder: Option<PathBuf>,
}

/// A loaded model: its file, its plan and its tokenizer. The weights stay in the mapped file until a device needs them.
pub struct Model {
    pub(crate) file: ModelFile,
    pub(crate) loaded: LoadedModel,
    pub(crate) tokenizer: Option<Arc<Tokenizer>>,
}

/// How to open a model.
#[derive(Debug, Clone, Default)]
pub struct ModelOptions {
    load_mode: LoadMode,
    models_dir: Option<PathBuf>,
    pre_tokenizer: Option<String>,
    adapters: Vec<(PathBuf, f32)>,
    missing: Missing,
    purpose: Purpose,
}

/// What to do with an `hf:` reference that is not in the models folder.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Missing {
    #[default]
    Download,
    Refuse,
}

impl ModelOptions {
    /// Never downloads: a reference that is not in the models folder is an error.
    pub fn offline(self) -> ModelOptions {
        ModelOptions {
            missing: Missing::Refuse,
            ..self
        }
    }

    /// Maps the file into memory (the default), or reads it.
    pub fn load_mode(self, load_mode: LoadMode) -> ModelOptions {
        ModelOptions { load_mode, ..self }
    }

    /// Looks for names and `hf:` references in this folder instead of the user's models folder.
    pub fn models_dir(self, dir: impl Into<PathBuf>) -> ModelOptions {
        ModelOptions {
            models_dir: Some(dir.into()),
            ..self
        }
    }

    /// Uses this pre-tokenizer instead of the one that the file names.
    pub fn pre_tokenizer(self, name: impl Into<String>) -> ModelOptions {
        ModelOptions {
            pre_tokenizer: Some(name.into()),
            ..self
        }
    }

    /// Adds a LoRA adapter, scaled by `scale`.
    pub fn adapter(mut self, path: impl Into<PathBuf>, scale: f32) -> ModelOptions {
        self.adapters.push((path.into(), scale));
        self
    }

    /// Loads the model for embeddings or scores instead of text, pooled in this way; `None` takes the pooling that the
    /// file names.
    pub fn for_embeddings(self, pooling: Option<Pooling>) -> ModelOptions {
        ModelOptions {
            purpose: Purpose::Embeddings(pooling),
            ..self
        }
    }

    /// Opens a model; see [`Model::open`].
    ///
    /// # Errors
    /// The file is missing, damaged, or not a model that runs here.
    pub fn open(&self, reference: impl AsRef<Path>) -> Result<Model, Error> {
        let file = self.open_file(reference.as_ref())?;
        self.load(file)
    }

    /// Opens the file of a model without loading the model.
    ///
    /// # Errors
    /// The file is missing or damaged.
    pub fn open_file(&self, reference: &Path) -> Result<ModelFile, Error> {
        self.open_with(reference, Gguf::open)
    }

    /// [`ModelOptions::open_file`] for a look at what is in the file: tensors may have unknown formats.
    ///
    /// # Errors
    /// As [`ModelOptions::open_file`].
    pub fn open_to_inspect(&self, reference: &Path) -> Result<ModelFile, Error> {
        self.open_with(reference, Gguf::open_to_inspect)
    }

    fn open_with(
        &self,
        reference: &Path,
        open: fn(&Path, LoadMode) -> Result<Gguf, rocmforge_gguf::Error>,
    ) -> Result<ModelFile, Error> {
        let path = find(reference, self.models_dir.as_deref(), self.missing)?;
        let name = path.file_name().unwrap_or(path.as_os_str());
        let label = escape_control(&name.to_string_lossy()).into_owned();
        let gguf = open(&path, self.load_mode).map_err(|error| Error::File {
            label: escape_control(&path.to_string_lossy()).into_owned(),
            error: error.into(),
        })?;
        Ok(ModelFile {
            gguf: Arc::new(gguf),
            label,
            folder: folder_of(&path),
        })
    }

    /// Loads the model of an open file.
    ///
    /// # Errors
    /// The file is not a model that runs here.
    pub fn load(&self, file: ModelFile) -> Result<Model, Error> {
        if file.gguf.tensors().is_empty() {
            return Err(Error::NoWeights { label: file.label });
        }
        let adapters = self.adapters.iter().map(|(path, scale)| {
            let adapter = self.open_file(path)?;
            let adapter = Adapter::new(&adapter.label, adapter.gguf, *scale);
            adapter.map_err(|error| Error::Load {
                label: file.label.clone(),
                error: error.into(),
            })
        });
        let adapters = adapters.collect::<Result<Vec<Adapter>, Error>>()?;
        let loaded = LoadedModel::load_for(self.purpose, Arc::clone(&file.gguf), &adapters);
        let loaded = loaded.map_err(|error| Error::Load {
            label: file.label.clone(),
            error: error.into(),
        })?;
        let tokenizer = file.tokenizer(self.pre_tokenizer.as_deref())?;
        Ok(Model {
            file,
            loaded,
            tokenizer,
        })
    }
}

/// The file that `reference` names. With the feature `download`, an `hf:` reference that is not in the models folder is
/// downloaded first.
#[cfg_attr(
    not(feature = "download"),
    expect(unused_variables, reason = "nothing is ever downloaded")
)]
fn find(reference: &Path, models_dir: Option<&Path>, missing: Missing) -> Result<PathBuf, Error> {
    match rocmforge_hub::resolve(reference, models_dir) {
        #[cfg(feature = "download")]
        Err(rocmforge_hub::Error::NotDownloaded { reference, .. })
            if missing == Missing::Download =>
        {
            use rocmforge_hub::{Hub, HubConfig, ModelsFolder, Token};
            let hub = Hub::new(HubConfig {
                token: Token::from_env()?,
                ..HubConfig::default()
            })?;
            let folder = ModelsFolder::open(models_dir)?;
            Ok(folder.pull(&hub, &reference, &mut |_| {})?)
        }
        found => Ok(found?),
    }
}

impl ModelFile {
    /// Returns the tokenizer of the file's vocabulary, or `None` if the file says that it has none. `pre` replaces the
    /// pre-tokenizer that the file names.
    ///
    /// # Errors
    /// The vocabulary is damaged or of an unknown kind.
    pub fn tokenizer(&self, pre: Option<&str>) -> Result<Option<Arc<Tokenizer>>, Error> {
        match Tokenizer::from_gguf(&self.gguf, pre) {
            Ok(tokenizer) => Ok(Some(Arc::new(tokenizer))),
            Err(TokenizerError::NoVocab) => Ok(None),
            Err(error) => Err(Error::Tokenizer {
                label: self.label.clone(),
                error: error.into(),
            }),
        }
    }
}

impl Model {
    /// Opens a model: a path to a GGUF file (the first one of a split model), the name of a model in the models folder,
    /// or a reference such as `hf:owner/repo:Q4_K_M`. With the feature `download`, a reference that is not in the models
    /// folder is downloaded first.
    ///
    /// # Errors
    /// The file is missing, damaged, or not a model that runs here.
    pub fn open(reference: impl AsRef<Path>) -> Result<Model, Error> {
        ModelOptions::default().open(reference)
    }

    /// Loads the model of an open file.
    ///
    /// # Errors
    /// The file is not a model that runs here.
    pub fn from_gguf(gguf: Gguf, label: impl Into<String>) -> Result<Model, Error> {
        ModelOptions::default().load(ModelFile {
            gguf: Arc::new(gguf),
            label: label.into(),
            folder: None,
        })
    }

    /// The file's name, safe to print.
    pub fn label(&self) -> &str {
        &self.file.label
    }

    /// Chooses the device; see [`Start`] for more settings.
    pub fn device(self, device: Device) -> Start {
        Start::new(self).device(device)
    }

    /// Starts the model with default settings: on a GPU if there is one, else on the CPU.
    ///
    /// # Errors
    /// The model does not fit into memory, or the device fails.
    pub fn start(self) -> Result<Session, Error> {
        Start::new(self).start()
    }
}

/// Returns the folder in which a file lies: that of the process if the path is a name alone.
fn folder_of(path: &Path) -> Option<PathBuf> {
    let folder = path.parent()?;
    match folder.as_os_str().is_empty() {
        true => Some(PathBuf::from(".")),
        false => Some(folder.to_path_buf()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_lie_in_a_folder_that_can_be_read() {
        for (path, folder) in [("a.gguf", "."), ("b/a.gguf", "b"), ("/a.gguf", "/")] {
            assert_eq!(folder_of(Path::new(path)), Some(PathBuf::from(folder)));
        }
    }
}
