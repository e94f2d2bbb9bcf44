//! Packed test programs, and the parts that run all tests of the GPU crate.
//!
//! Tests are chosen by their module, not by their program: a file of `tests/` may be a program of its own, or a module
//! of the package's only program, [`MERGED`].

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};

use super::proof::{Proof, log, output};

pub(super) const GPU: &str = "rocmforge-gpu";
pub(super) const ENGINE: &str = "rocmforge-engine";

/// The program `tests/it/main.rs`, whose tests are called `MODULE::TEST`.
pub(super) const MERGED: &str = "it";

/// Modules of the GPU crate that test the drivers' bindings and the CPU emulator, not a device.
const NOT_ON_DEVICE: [&str; 5] = ["driver", "faults", "host_driver", "images", "kernel_cache"];

/// The tests of one file of `tests/`.
pub(super) struct Module {
    program: PathBuf,
    /// Their full names, for `--exact`.
    tests: Vec<String>,
}

/// Every kernel against its oracle.
pub(super) fn ops(proof: &mut Proof) -> Result<()> {
    gpu_tests(proof, "ops", &|program| Command::new(program))
}

/// The same, 100 times.
pub(super) fn repeat(proof: &mut Proof) -> Result<()> {
    gpu_tests(proof, "repeat", &|program| {
        let mut command = Command::new(program);
        command.env("ROCMFORGE_TEST_REPEATS", "100");
        command
    })
}

/// The same under compute-sanitizer.
pub(super) fn sanitize(proof: &mut Proof) -> Result<()> {
    for tool in ["memcheck", "racecheck"] {
        gpu_tests(proof, tool, &|program| {
            let mut command = Command::new("compute-sanitizer");
            command.args(["--tool", tool, "--error-exitcode", "9"]);
            command.arg(program);
            command
        })?;
    }
    Ok(())
}

/// Runs every module of the GPU crate on the device, a line for each; `label` names the logs.
fn gpu_tests(proof: &mut Proof, label: &str, start: &dyn Fn(&Path) -> Command) -> Result<()> {
    for (name, module) in modules(proof, GPU)? {
        if NOT_ON_DEVICE.contains(&name.as_str()) {
            continue;
        }
        let path = proof.work.join(format!("{label}-{name}.log"));
        let mut command = on_device(proof, start(&module.program));
        command.arg("--exact").args(&module.tests);
        command.args(["--test-threads", "4"]);
        let status = log(&mut command, &path)?.status();
        let passed = status.as_ref().is_ok_and(|status| status.success());
        let log = fs::read_to_string(&path).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        let result = lines.iter().rfind(|line| line.starts_with("test result"));
        match (passed, result) {
            (true, Some(result)) => println!("{name:<24} {result}"),
            _ => {
                println!("{name:<24} FAILED");
                let tail = &lines[lines.len().saturating_sub(40)..];
                println!("{}", tail.join("\n"));
                let how = status.map_or_else(|error| error.to_string(), |s| s.to_string());
                proof.check::<()>(Err(anyhow::anyhow!("{name}: {how}")));
            }
        }
    }
    Ok(())
}

/// The command that runs the tests of an engine module on the device, exhaustive ones too; those whose name contains `filter`.
pub(super) fn engine_tests(proof: &Proof, name: &str, filter: &str) -> Result<Command> {
    let mut modules = modules(proof, ENGINE)?;
    let module = modules.remove(name);
    let module = module.with_context(|| format!("the tests {name} are not packed"))?;
    let tests: Vec<&String> = module.tests.iter().filter(|t| t.contains(filter)).collect();
    ensure!(!tests.is_empty(), "{name} has no test called {filter}");
    let mut command = on_device(proof, Command::new(module.program));
    command.args(["--include-ignored", "--exact"]);
    command.args(tests).arg("--nocapture");
    // The tests read models from ../../models.
    command.env("CARGO_MANIFEST_DIR", proof.pack.join("crates/engine"));
    Ok(command)
}

fn on_device(proof: &Proof, mut command: Command) -> Command {
    command.env("ROCMFORGE_TEST_DEVICE", &proof.args.device);
    proof.with_image(command)
}

/// The test modules of a package, from all its packed programs.
fn modules(proof: &Proof, package: &str) -> Result<BTreeMap<String, Module>> {
    let folder = proof.pack.join("tests").join(package);
    let mut modules = BTreeMap::new();
    let entries = fs::read_dir(&folder);
    for entry in entries.with_context(|| format!("{package}: no test programs are packed"))? {
        let program = entry?.path();
        let listing = output(Command::new(&program).args(["--list", "--format", "terse"]))?;
        let stem = program.file_name().unwrap_or_default().to_string_lossy();
        for (name, tests) in group(&stem, &listing) {
            let program = program.clone();
            modules.insert(name, Module { program, tests });
        }
    }
    if modules.is_empty() {
        bail!("{package}: the packed programs have no tests");
    }
    Ok(modules)
}

/// The tests of a program by module, from what `--list --format terse` prints.
fn group(program: &str, listing: &str) -> BTreeMap<String, Vec<String>> {
    let mut modules: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for test in listing
        .lines()
        .filter_map(|line| line.strip_suffix(": test"))
    {
        let module = match test.split_once("::") {
            Some((module, _)) if program == MERGED => module,
            _ => program,
        };
        modules.entry(module.into()).or_default().push(test.into());
    }
    modules
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_tests_by_module() {
        let listing =
            "rows::one: test\nrows::inner::two: test\nnorm::three: test\nrows::speed: benchmark\n";
        let merged = group(MERGED, listing);
        assert_eq!(merged["rows"], ["rows::one", "rows::inner::two"]);
        assert_eq!(merged["norm"], ["norm::three"]);
        assert_eq!(merged.len(), 2);
        let single = group("kernels", listing);
        assert_eq!(single.len(), 1);
        assert_eq!(single["kernels"].len(), 3);
    }
}
