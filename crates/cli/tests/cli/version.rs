//! The commit of a build, against git.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::program::{repository, run};

#[path = "../../build/commit.rs"]
mod commit;

fn git(dir: &Path, args: &[&str]) -> String {
    let names = ["-c", "user.name=n", "-c", "user.email=e@x"];
    let output = Command::new("git")
        .arg("-C")
        .arg(dir)
        .args(names)
        .args(args)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

#[test]
fn version_names_the_commit() {
    let version = run(&["--version"]).ok();
    let version = version.text().trim_end();
    let commit = version
        .strip_suffix(')')
        .and_then(|text| text.split_once(" ("));
    let (name, commit) = commit.unwrap_or_else(|| panic!("{version}"));
    assert_eq!(name, concat!("rocmforge ", env!("CARGO_PKG_VERSION")));
    let checkout = repository("").canonicalize().unwrap();
    if std::env::var_os("ROCMFORGE_COMMIT").is_some() || !checkout.join(".git").exists() {
        println!("skipped the commit itself: this is no checkout, or the commit was given");
        return;
    }
    let head = git(&checkout, &["rev-parse", "HEAD"]);
    let without_mark = commit.strip_suffix("-dirty").unwrap_or(commit);
    assert!(
        without_mark.len() == 12 && head.starts_with(without_mark),
        "{commit}, {head}"
    );
    let rows = run(&["bench", "-p", "0", "-n", "1", "-r", "1", "-o", "json"]).json();
    assert_eq!(rows[0]["build_commit"], commit);
}

#[test]
fn readme_names_the_required_rust() {
    let manifest = fs::read_to_string(repository("Cargo.toml")).unwrap();
    let required = manifest
        .lines()
        .find_map(|line| line.strip_prefix("rust-version = "))
        .unwrap()
        .trim_matches('"');
    let readme = fs::read_to_string(repository("README.md")).unwrap();
    assert!(readme.contains(&format!("Rust {required}")), "{required}");
    assert!(readme.contains("https://rustup.rs"));
}

#[test]
fn commit_marks_changes_and_needs_a_checkout() {
    let dir = tempfile::tempdir().unwrap();
    let top = dir.path();
    assert_eq!(commit::of(top), None);
    git(top, &["init", "-q"]);
    fs::write(top.join("a"), "1").unwrap();
    fs::create_dir(top.join("archive")).unwrap();
    git(top, &["add", "a"]);
    git(top, &["commit", "-q", "-m", "a"]);
    let head = git(top, &["rev-parse", "HEAD"]);
    assert_eq!(commit::of(top).as_deref(), Some(&head[..12]));
    // An archive unpacked inside another project's repository.
    assert_eq!(commit::of(&top.join("archive")), None);
    fs::write(top.join("untracked"), "1").unwrap();
    assert_eq!(commit::of(top).as_deref(), Some(&head[..12]));
    fs::write(top.join("a"), "2").unwrap();
    assert_eq!(commit::of(top), Some(format!("{}-dirty", &head[..12])));
}
