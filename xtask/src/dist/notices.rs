//! Licences of the libraries that the program contains, which ask that their text comes along with copies.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use crate::root;

/// Returns the texts of all licences, each with the libraries that it is of.
///
/// # Errors
/// If cargo cannot list the libraries, or the sources of one cannot be read.
pub(super) fn all(metadata: &Value) -> Result<String> {
    let linked = linked(metadata)?;
    let mut texts: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for package in list(&metadata["packages"]) {
        // The repository's own files are beside this one.
        if package["source"].is_null() || !linked.contains(text(&package["id"])?) {
            continue;
        }
        let name = format!("{} {}", text(&package["name"])?, text(&package["version"])?);
        let of = format!("{name} ({})", text(&package["license"])?);
        let folder = Path::new(text(&package["manifest_path"])?).parent();
        let found = files(folder.context("a manifest lies in a folder")?)?;
        ensure!(!found.is_empty(), "{of} has no file with its licence");
        for text in found {
            texts.entry(text).or_default().push(of.clone());
        }
    }
    let mut all = String::from("The program contains these libraries, under these licences.\n");
    for (text, mut of) in texts {
        of.sort();
        write!(
            all,
            "\n{}\n{}\n\n{}\n",
            "=".repeat(80),
            of.join("\n"),
            text.trim()
        )?;
    }
    Ok(all)
}

/// What cargo knows of the workspace and its libraries.
///
/// # Errors
/// If it cannot be run.
pub(super) fn metadata() -> Result<Value> {
    let target = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let output = Command::new("cargo")
        .args([
            "metadata",
            "--format-version=1",
            "--locked",
            "--filter-platform",
            &target,
        ])
        .current_dir(root())
        .output()
        .context("starting cargo")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "cargo metadata: {said}");
    serde_json::from_slice(&output.stdout).context("reading what cargo metadata says")
}

/// The ids of all packages in the program: those that the command needs when it runs, and what these need.
fn linked(metadata: &Value) -> Result<BTreeSet<&str>> {
    let mut needs: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for node in list(&metadata["resolve"]["nodes"]) {
        let at_run_time = |dep: &&Value| {
            list(&dep["dep_kinds"])
                .iter()
                .any(|kind| kind["kind"].is_null())
        };
        let deps = list(&node["deps"]).iter().filter(at_run_time);
        let deps = deps.map(|dep| text(&dep["pkg"])).collect::<Result<_>>()?;
        needs.insert(text(&node["id"])?, deps);
    }
    let command = |package: &&Value| package["name"] == "rocmforge-cli";
    let command = list(&metadata["packages"]).iter().find(command);
    let mut left = vec![text(&command.context("no package rocmforge-cli")?["id"])?];
    let mut linked = BTreeSet::new();
    while let Some(id) = left.pop() {
        if linked.insert(id) {
            left.extend(needs.get(id).into_iter().flatten());
        }
    }
    Ok(linked)
}

/// Texts of the files in a package's folder that state its licence or are to be passed on.
fn files(folder: &Path) -> Result<Vec<String>> {
    let mut paths = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| format!("reading {}", folder.display()))? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().to_uppercase();
        let begins = |start: &&str| name.starts_with(start);
        let is_one = ["LICENSE", "LICENCE", "COPYING", "NOTICE", "UNLICENSE"]
            .iter()
            .any(begins);
        if is_one && entry.file_type()?.is_file() {
            paths.push(entry.path());
        }
    }
    paths.sort();
    let read = |path: PathBuf| {
        fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))
    };
    paths.into_iter().map(read).collect()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn text(value: &Value) -> Result<&str> {
    value.as_str().context("cargo metadata lacks a text")
}
