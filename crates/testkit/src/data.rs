//! Models and golden results on disk: those of the repository, and the conformance data if present.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rocmforge_gguf::{Gguf, LoadMode, TokenId};
use serde_json::Value;

/// Returns the repository's `models` folder. A test program that runs alone on another machine finds it through cargo's
/// environment variable.
pub fn models() -> PathBuf {
    let here = std::env::var("CARGO_MANIFEST_DIR").unwrap_or(env!("CARGO_MANIFEST_DIR").into());
    Path::new(&here).join("../../models")
}

/// Returns the path of the embedded model.
pub fn forge_mini_path() -> PathBuf {
    models().join("forge-mini-Q4_K_M.gguf")
}

/// Returns the path of a small model with gated delta nets and a layer that predicts further tokens ahead.
pub fn forge_mtp_path() -> PathBuf {
    models().join("forge-mtp/forge-mtp-Q6_K.gguf")
}

/// Opens the embedded model.
pub fn forge_mini() -> Arc<Gguf> {
    Arc::new(Gguf::open(&forge_mini_path(), LoadMode::Mmap).unwrap())
}

/// Returns a path in the conformance data; prints that the test is skipped if there are none.
pub fn conformance(path: &str) -> Option<PathBuf> {
    match std::env::var_os("ROCMFORGE_CONFORMANCE_DATA") {
        Some(root) => Some(Path::new(&root).join(path)),
        None => {
            println!("skipped: ROCMFORGE_CONFORMANCE_DATA is not set, so there is no {path}");
            None
        }
    }
}

/// Returns the embedded model and the other forge-mini files of the conformance data, by variant.
pub fn forge_mini_files() -> Vec<(String, PathBuf)> {
    let mut files = vec![("Q4_K_M".to_string(), forge_mini_path())];
    if let Some(folder) = conformance("models") {
        for (variant, _) in golden()["variants"].as_object().unwrap() {
            let path = folder.join(format!("forge-mini-{variant}.gguf"));
            // Machines with a device may have only some of the files.
            if std::env::var_os("ROCMFORGE_TEST_DEVICE").is_some() && !path.is_file() {
                println!("skipped: no {}", path.display());
                continue;
            }
            if variant != "Q4_K_M" {
                files.push((variant.clone(), path));
            }
        }
    }
    files
}

/// Reads the golden results of the embedded model.
pub fn golden() -> Value {
    read_json(&models().join("golden.json"))
}

/// Reads a JSON file.
pub fn read_json(path: &Path) -> Value {
    serde_json::from_slice(
        &std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display())),
    )
    .unwrap()
}

/// Returns the token ids of a JSON array.
pub fn ids(value: &Value) -> Vec<TokenId> {
    value
        .as_array()
        .unwrap()
        .iter()
        .map(|id| id.as_u64().unwrap() as TokenId)
        .collect()
}
