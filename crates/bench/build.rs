//! Embeds the compiler version, which makes a baseline reproducible.

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
}

fn output(program: &str, args: &[&str]) -> Option<String> {
    let output = Command::new(program).args(args).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let text = text.lines().next()?.trim().to_string();
    (output.status.success() && !text.is_empty()).then_some(text)
}
