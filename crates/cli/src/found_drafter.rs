//! The drafter in a file of its own that lies beside a model: `mtp-NAME.gguf`, or one with `-assistant`, `eagle3` or `dflash` in
//! its name.

use std::path::PathBuf;

use anyhow::Result;
use rocmforge::ModelFile;
use rocmforge_gguf::{Gguf, Strings};
use rocmforge_model::{DraftsFor, Model, Purpose};

use crate::args::{LoadArgs, LoraArgs};
use crate::model_file;

/// The most files that are opened.
const MOST_OPENED: usize = 16;

/// Loads the model of `file` with what the first drafter beside it takes that was made for it, and returns both; the model alone
/// if there is none.
pub fn load(
    purpose: Purpose,
    file: &ModelFile,
    (lora, load): (&LoraArgs, &LoadArgs),
) -> Result<(Model, Option<ModelFile>)> {
    for path in beside(file) {
        let Ok(found) = model_file::open(Some(&path), load) else {
            continue;
        };
        if !may_suit(&found.gguf, &file.gguf) {
            continue;
        }
        let loaded = model_file::load_for_assistant(purpose, file, (lora, load), &found);
        // A model that makes embeddings exports nothing.
        if let Ok(model) = loaded
            && model.plan.export().is_some()
            && model.assistant(found.gguf.clone()).is_ok()
        {
            return Ok((model, Some(found)));
        }
    }
    Ok((model_file::load(purpose, file, lora, load)?, None))
}

/// Returns the files beside a model that may be drafters, by name.
fn beside(file: &ModelFile) -> Vec<PathBuf> {
    let folder = file.folder.as_ref();
    let entries = folder.and_then(|folder| folder.read_dir().ok());
    let entries = entries.into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> = entries
        .map(|entry| entry.path())
        .filter(|path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let name = name.to_lowercase();
            let parts = ["-assistant", "eagle3", "eagle-3", "dflash"];
            let is_drafter =
                name.starts_with("mtp-") || parts.iter().any(|part| name.contains(part));
            is_drafter && name.ends_with(".gguf")
        })
        .collect();
    paths.sort();
    paths.truncate(MOST_OPENED);
    paths
}

/// Whether a file is a drafter for models of this architecture and vocabulary.
fn may_suit(drafter: &Gguf, model: &Gguf) -> bool {
    let is_of_kind = match Model::drafts_for(drafter) {
        None => return false,
        Some(DraftsFor::Any) => true,
        Some(DraftsFor::Architecture(of)) => {
            let arch = model.metadata().opt_str("general.architecture");
            arch.ok().flatten() == Some(of)
        }
    };
    // The text is right with any drafter; the tokens of another vocabulary would all be wrong.
    let are_same = match [drafter, model].map(tokens) {
        [Some(its), Some(own)] => its.iter().zip(own.iter()).all(|(a, b)| a == b),
        _ => true,
    };
    is_of_kind && are_same
}

fn tokens(gguf: &Gguf) -> Option<Strings<'_>> {
    let tokens = gguf.metadata().opt_strings("tokenizer.ggml.tokens");
    tokens.ok().flatten()
}
