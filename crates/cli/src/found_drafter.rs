//! The drafter in a file of its own that lies beside a model: `mtp-NAME.gguf`, or one with `-assistant` in its name.

use std::path::PathBuf;

use rocmforge::ModelFile;
use rocmforge_model::Model;

use crate::args::LoadArgs;
use crate::model_file;

/// The most files that are opened.
const MOST_OPENED: usize = 16;

/// Returns the files that may be drafters for the model of `file`, by name; none if there are no drafters for its architecture.
pub fn beside(file: &ModelFile) -> Vec<PathBuf> {
    let Some(folder) = file
        .folder
        .as_ref()
        .filter(|_| Model::has_assistants(&file.gguf))
    else {
        return Vec::new();
    };
    let entries = folder.read_dir().into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> = entries
        .map(|entry| entry.path())
        .filter(|path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let name = name.to_lowercase();
            let is_drafter = name.starts_with("mtp-") || name.contains("-assistant");
            is_drafter && name.ends_with(".gguf")
        })
        .collect();
    paths.sort();
    paths.truncate(MOST_OPENED);
    paths
}

/// Returns the first drafter beside `file` that was made for its `model`, and what it is as a model.
pub fn find(file: &ModelFile, model: &Model, load: &LoadArgs) -> Option<(ModelFile, Model)> {
    beside(file).iter().find_map(|path| {
        let found = model_file::open(Some(path), load).ok()?;
        Model::drafts_for(&found.gguf)?;
        let drafts = model.assistant(found.gguf.clone()).ok()?;
        Some((found, drafts))
    })
}
