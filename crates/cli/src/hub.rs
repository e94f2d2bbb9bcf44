//! Models by name, for every command that opens one.

use std::path::{Path, PathBuf};

use anyhow::Result;

/// Returns the file that `-m` means; see [`rocmforge_hub::resolve`].
pub fn resolve(given: &Path, models_dir: Option<&Path>) -> Result<PathBuf> {
    Ok(rocmforge_hub::resolve(given, models_dir)?)
}
