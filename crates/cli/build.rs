//! Embeds the commit. This crate does it and no other, so that a commit compiles only this crate again.

#[path = "build/commit.rs"]
mod commit;

use std::env;
use std::path::Path;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=build");
    println!("cargo:rerun-if-env-changed=ROCMFORGE_COMMIT");
    // For packagers, who build from an archive.
    let given = env::var("ROCMFORGE_COMMIT").ok();
    let given = given.filter(|commit| !commit.is_empty());
    let commit = given.or_else(|| {
        let top = Path::new("../..").canonicalize().ok()?;
        let commit = commit::of(&top)?;
        // A change of the sources makes the tree dirty, and every change of HEAD is written to its log.
        println!("cargo:rerun-if-changed=..");
        for file in ["HEAD", "logs/HEAD"] {
            if let Some(path) = commit::git(&top, &["rev-parse", "--git-path", file]) {
                println!("cargo:rerun-if-changed={}", top.join(path).display());
            }
        }
        Some(commit)
    });
    let commit = commit.unwrap_or_else(|| "unknown".to_string());
    println!("cargo:rustc-env=ROCMFORGE_COMMIT={commit}");
}
