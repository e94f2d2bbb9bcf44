//! Builds what parts need and writes it as one archive; unpacks it on the other machine.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use super::PackArgs;
use super::parts::{Item, PARTS};
use super::programs::{ENGINE, GPU, MERGED};
use super::proof::{output, run};
use super::records;

pub(super) const ARCHIVE: &str = "pack.tar.xz";

/// Kernels for A100 and H100 cards, and those like them.
const TARGETS: &str = "sm_80,sm_90a";

/// Writes the folder that runs on the other machine.
pub(super) fn pack(args: &PackArgs) -> Result<()> {
    let out = std::path::absolute(&args.folder)?;
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    std::env::set_current_dir(&root).context("pack runs in the repository only")?;
    let staging = Staging::new()?;
    fs::create_dir_all(&out).with_context(|| format!("creating {}", out.display()))?;
    staging.programs(&["build", "-p", "rocmforge-cli", "-p", "xtask"], "bin", "")?;
    let all: Vec<_> = PARTS.iter().collect();
    let parts = if args.parts.is_empty() {
        &all
    } else {
        &args.parts
    };
    let needs: BTreeSet<Item> = parts.iter().flat_map(|part| part.needs).copied().collect();
    if !needs.contains(&Item::Xtask) {
        fs::remove_file(staging.0.join("xtask"))?;
    }
    for item in needs {
        staging.add(item, &args.types)?;
    }
    // It runs without the archive.
    let runner = out.join("gpu-proof");
    fs::copy(staging.0.join("gpu-proof"), &runner)
        .with_context(|| format!("writing {}", runner.display()))?;
    fs::remove_file(staging.0.join("gpu-proof"))?;
    let archive = out.join(ARCHIVE);
    let mut tar = Command::new("tar");
    // The programs hold the same kernels: a window as large as all of them stores those once.
    tar.args(["-I", "xz -T1 --lzma2=preset=2,dict=256MiB"]);
    tar.arg("-C")
        .arg(&staging.0)
        .arg("-cf")
        .arg(&archive)
        .arg(".");
    run(&mut tar)?;
    fs::remove_dir_all(&staging.0)?;
    let megabytes = |path: &Path| fs::metadata(path).map_or(0.0, |file| file.len() as f64 / 1e6);
    println!("wrote {} ({:.1} MB)", runner.display(), megabytes(&runner));
    println!(
        "wrote {} ({:.1} MB)",
        archive.display(),
        megabytes(&archive)
    );
    Ok(())
}

/// Unpacks the archive into `folder`, which is complete once it exists.
pub(super) fn unpack(archive: &Path, folder: &Path) -> Result<()> {
    let part = folder.with_extension("part");
    fs::create_dir_all(&part)?;
    let mut xz = Command::new("xz");
    let mut command = match xz.arg("--version").stdout(Stdio::null()).status() {
        Ok(_) => {
            let mut tar = Command::new("tar");
            tar.arg("-C").arg(&part).arg("-xJf").arg(archive);
            tar
        }
        Err(_) => {
            let script = "import sys, tarfile; tarfile.open(sys.argv[1]).extractall(sys.argv[2])";
            let mut python = Command::new("python3");
            python.args(["-c", script]).args([archive, &part]);
            python
        }
    };
    run(&mut command)?;
    Ok(fs::rename(&part, folder)?)
}

/// The folder whose contents become the archive.
struct Staging(PathBuf);

impl Staging {
    /// Empty, below the target folder; the current folder is the repository's.
    fn new() -> Result<Staging> {
        let target = std::env::var_os("CARGO_TARGET_DIR").map_or("target".into(), PathBuf::from);
        let folder = std::path::absolute(target.join("gpu-proof"))?;
        if folder.exists() {
            fs::remove_dir_all(&folder)?;
        }
        // Test programs read models/ from the folder of their package.
        for folder in [folder.join("models"), folder.join("crates/engine")] {
            fs::create_dir_all(&folder)
                .with_context(|| format!("creating {}", folder.display()))?;
        }
        Ok(Staging(folder))
    }

    /// Builds and packs an item; `types` are those of [`Item::Golden`].
    fn add(&self, item: Item, types: &[String]) -> Result<()> {
        match item {
            // Built with rocmforge.
            Item::Xtask => Ok(()),
            Item::GpuTests => {
                let folder = format!("tests/{GPU}");
                self.programs(&["test", "-p", GPU, "--tests", "--no-run"], "test", &folder)
            }
            Item::EngineTest(module) => {
                let metadata = ["metadata", "--no-deps", "--format-version", "1"];
                let metadata = serde_json::from_str(&output(cargo().args(metadata))?)?;
                let program = test_program(&metadata, ENGINE, module)?;
                let folder = format!("tests/{ENGINE}");
                let test = ["test", "-p", ENGINE, "--test", program, "--no-run"];
                self.programs(&test, "test", &folder)
            }
            Item::Example(name) => {
                let build = ["build", "-p", GPU, "--example", name];
                self.programs(&build, "example", "")
            }
            Item::ForgeMini => self.file(Path::new("models/forge-mini-Q4_K_M.gguf")),
            Item::Golden => {
                self.file(Path::new("models/golden.json"))?;
                let files = types
                    .iter()
                    .map(|ty| format!("models/forge-mini-{ty}.gguf"));
                files
                    .into_iter()
                    .try_for_each(|file| self.conformance(&file))
            }
            Item::Texts => [
                "models/heldout.txt",
                "data/models/stories260K.gguf",
                "data/text/tinystories_valid_part.txt",
            ]
            .into_iter()
            .try_for_each(|file| self.conformance(file)),
        }
    }

    /// Builds with cargo, and packs the programs of this kind of target into `folder`, under their targets' names.
    fn programs(&self, arguments: &[&str], kind: &str, folder: &str) -> Result<()> {
        let mut cargo = cargo();
        cargo.args(arguments);
        cargo.args(["--release", "--message-format=json-render-diagnostics"]);
        if std::env::var_os("ROCMFORGE_GPU_TARGETS").is_none() {
            cargo.env("ROCMFORGE_GPU_TARGETS", TARGETS);
        }
        let folder = self.0.join(folder);
        fs::create_dir_all(&folder)?;
        let built = executables(&output(&mut cargo)?, kind)?;
        ensure!(
            !built.is_empty(),
            "cargo {} built nothing",
            arguments.join(" ")
        );
        for (name, program) in built {
            run(Command::new("strip")
                .arg("-o")
                .arg(folder.join(name))
                .arg(program))?;
        }
        Ok(())
    }

    /// Packs a file of the conformance data, if this machine has it.
    fn conformance(&self, path: &str) -> Result<()> {
        let root = std::env::var_os("ROCMFORGE_CONFORMANCE_DATA").unwrap_or_default();
        let file = Path::new(&root).join(path);
        if root.is_empty() || !file.is_file() {
            println!("skipped: {path} is not in the folder that ROCMFORGE_CONFORMANCE_DATA names");
            return Ok(());
        }
        self.file(&file)
    }

    /// Packs a file as `models/NAME`.
    fn file(&self, file: &Path) -> Result<()> {
        let name = file.file_name().unwrap_or_default();
        let to = self.0.join("models").join(name);
        fs::copy(file, to).with_context(|| format!("packing {}", file.display()))?;
        Ok(())
    }
}

fn cargo() -> Command {
    Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

/// Names and programs of the targets of this kind, from cargo's messages.
fn executables(messages: &str, kind: &str) -> Result<Vec<(String, PathBuf)>> {
    let artifacts = records::lines(messages)?.into_iter().filter_map(|message| {
        let target = &message["target"];
        let kinds = target["kind"].as_array()?;
        let program = message["executable"].as_str()?;
        let name = target["name"].as_str()?;
        kinds
            .iter()
            .any(|k| k == kind)
            .then(|| (name.into(), program.into()))
    });
    Ok(artifacts.collect())
}

/// The test program that has a module: one of the same name, or the one that has all.
fn test_program<'a>(metadata: &Value, package: &str, module: &'a str) -> Result<&'a str> {
    let packages = metadata["packages"]
        .as_array()
        .context("cargo metadata has no packages")?;
    let found = packages.iter().find(|found| found["name"] == package);
    let found = found.with_context(|| format!("there is no package {package}"))?;
    let has = |name: &str| {
        let targets = found["targets"].as_array().into_iter().flatten();
        let mut tests = targets.filter(|target| target["kind"][0] == "test");
        tests.any(|target| target["name"] == name)
    };
    let program = [module, MERGED].into_iter().find(|name| has(name));
    program.with_context(|| format!("{package} has no tests {module}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_programs_from_messages_of_cargo() {
        let messages = r#"{"reason":"compiler-artifact","target":{"kind":["lib"],"name":"rocmforge_gpu"},"executable":"/t/lib-1"}
{"reason":"compiler-artifact","target":{"kind":["test"],"name":"rows"},"executable":"/t/rows-0a"}
{"reason":"compiler-artifact","target":{"kind":["test"],"name":"other"},"executable":null}
{"reason":"build-finished","success":true}
"#;
        let found = executables(messages, "test").unwrap();
        assert_eq!(found, [("rows".into(), PathBuf::from("/t/rows-0a"))]);
        assert!(executables(messages, "example").unwrap().is_empty());
    }

    #[test]
    fn finds_the_test_program_of_a_module() {
        let with = |tests: &[&str]| {
            let target = |name: &&str| serde_json::json!({"kind": ["test"], "name": name});
            let targets: Vec<Value> = tests.iter().map(target).collect();
            serde_json::json!({"packages": [{"name": "p", "targets": targets}]})
        };
        for (tests, program) in [
            (&["golden", "model"][..], Some("golden")),
            (&["it", "golden"], Some("golden")),
            (&["it"], Some(MERGED)),
            (&["model"], None),
        ] {
            let found = test_program(&with(tests), "p", "golden").ok();
            assert_eq!(found, program, "{tests:?}");
        }
        assert!(test_program(&with(&["it"]), "q", "golden").is_err());
    }
}
