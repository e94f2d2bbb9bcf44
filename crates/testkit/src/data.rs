//! Models and golden results on disk: the repository's own, and the conformance data where this machine has them.

use std::path::{Path, PathBuf};

use rocmforge_gguf::TokenId;
use serde_json::Value;

/// The repository's `models` folder. Where a test program is run by itself on another machine, the variable of
/// cargo's says where it is.
pub fn models() -> PathBuf {
    let here = std::env::var("CARGO_MANIFEST_DIR").unwrap_or(env!("CARGO_MANIFEST_DIR").into());
    Path::new(&here).join("../../models")
}

/// A path below the conformance data, if this machine has them; prints the skip otherwise.
pub fn conformance(path: &str) -> Option<PathBuf> {
    match std::env::var_os("ROCMFORGE_CONFORMANCE_DATA") {
        Some(root) => Some(Path::new(&root).join(path)),
        None => {
            println!("skipped: ROCMFORGE_CONFORMANCE_DATA is not set, so there is no {path}");
            None
        }
    }
}

/// The embedded model, and every other forge-mini file of the conformance data, by variant.
pub fn forge_mini_files() -> Vec<(String, PathBuf)> {
    let mut files = vec![(
        "Q4_K_M".to_string(),
        models().join("forge-mini-Q4_K_M.gguf"),
    )];
    if let Some(folder) = conformance("models") {
        for (variant, _) in golden()["variants"].as_object().unwrap() {
            let path = folder.join(format!("forge-mini-{variant}.gguf"));
            // What can be carried to the machine with a device is limited: it comes in parts.
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

/// The golden results of the embedded model.
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

/// The token ids of a JSON array.
pub fn ids(value: &Value) -> Vec<TokenId> {
    value
        .as_array()
        .unwrap()
        .iter()
        .map(|id| id.as_u64().unwrap() as TokenId)
        .collect()
}
