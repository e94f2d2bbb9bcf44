//! Embeds the compiler version and the commit, which make a baseline reproducible.

use std::env;
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let rustc = env::var("RUSTC").unwrap_or_else(|_| "rustc".to_string());
    // "rustc 1.95.0 (hash date)"
    let version = output(&rustc, &["--version"]);
    let version = version.as_deref().and_then(|text| text.split(' ').nth(1));
    println!(
        "cargo:rustc-env=ROCMFORGE_RUSTC_VERSION={}",
        version.unwrap_or_default()
    );

    // A source archive has no history; a repository above it is another project's.
    println!("cargo:rerun-if-env-changed=ROCMFORGE_COMMIT");
    let given = env::var("ROCMFORGE_COMMIT")
        .ok()
        .filter(|commit| !commit.is_empty());
    let commit = given.or_else(checked_out);
    println!(
        "cargo:rustc-env=ROCMFORGE_COMMIT={}",
        commit.unwrap_or_default()
    );
}

/// Returns the commit of this repository, if this is a checkout.
fn checked_out() -> Option<String> {
    let top = output("git", &["rev-parse", "--show-toplevel"])?;
    let ours = env::var("CARGO_MANIFEST_DIR").ok()?;
    if std::path::Path::new(&ours).parent()?.parent()? != std::path::Path::new(&top) {
        return None;
    }
    // Every change of HEAD is written to its log.
    for file in ["HEAD", "logs/HEAD"] {
        println!(
            "cargo:rerun-if-changed={}",
            output("git", &["rev-parse", "--git-path", file])?
        );
    }
    output("git", &["rev-parse", "--short=12", "HEAD"])
}

fn output(program: &str, args: &[&str]) -> Option<String> {
    let output = Command::new(program).args(args).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let text = text.lines().next()?.trim().to_string();
    (output.status.success() && !text.is_empty()).then_some(text)
}
