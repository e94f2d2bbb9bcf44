//! `--ranges`: what a profiler that runs the program is told.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::gpu::host_device;
use crate::program::{Run, command, finish};

/// Builds a profiler; `None`, with a message, without a C compiler.
fn profiler(name: &str, flags: &[&str]) -> Option<PathBuf> {
    let library = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("nvtx-{name}.so"));
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cli/stub/nvtx.c");
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-fPIC"]).args(flags);
    let Ok(status) = cc.arg("-o").arg(&library).arg(source).status() else {
        println!("skipped: no C compiler");
        return None;
    };
    assert!(status.success());
    Some(library)
}

fn generate(device: &str, profiler: Option<&Path>, log: &Path) -> Run {
    let mut program = command(&[
        "generate",
        "-p",
        "The ship",
        "--temp",
        "0",
        "-n",
        "3",
        "--ctx",
        "64",
        "--device",
        device,
        "--ranges",
        "--gpu-check",
        "never",
    ]);
    program.env("RANGES_LOG", log);
    match profiler {
        Some(library) => program.env("NVTX_INJECTION64_PATH", library),
        None => program.env_remove("NVTX_INJECTION64_PATH"),
    };
    finish(program).ok()
}

#[test]
fn a_profiler_is_told_each_operation() {
    let Some(device) = host_device() else { return };
    let Some(library) = profiler("whole", &[]) else {
        return;
    };
    let log = tempfile::NamedTempFile::new().unwrap();
    generate(&device, Some(&library), log.path());
    let log = fs::read_to_string(log.path()).unwrap();
    let steps: Vec<&str> = log.lines().filter(|line| !line.starts_with(' ')).collect();
    // The prompt, and a step for each token after the first. Decode steps are not replayed as graphs.
    assert!(steps.len() >= 3, "{log}");
    assert!(
        steps.iter().all(|step| step.starts_with("step of ")),
        "{log}"
    );
    assert_eq!(steps[1..3], ["step of 1 rows"; 2], "{log}");
    let ops: HashSet<&str> = log
        .lines()
        .filter_map(|line| line.strip_prefix(' '))
        .collect();
    for part in [
        "begin step",
        "choose tokens",
        "end step",
        "embed token_embd ",
        "rope_kv",
        "attention ",
        "gated_matmul ffn_gate+ffn_up ",
        "matmul ffn_down ",
    ] {
        assert!(ops.iter().any(|op| op.starts_with(part)), "{part}: {ops:?}");
    }
    assert!(ops.iter().all(|op| !op.starts_with(' ')), "{ops:?}");
}

#[test]
fn a_missing_profiler_is_a_notice() {
    let Some(device) = host_device() else { return };
    let nowhere = Path::new("/no/such/log");
    let without = generate(&device, None, nowhere);
    assert!(
        without
            .stderr
            .contains("operations have no names for a profiler: "),
        "{}",
        without.stderr
    );
    let no_library = generate(&device, Some(Path::new("/no/such.so")), nowhere);
    let said = "/no/such.so cannot be loaded: /no/such.so: cannot open shared object file";
    assert!(no_library.stderr.contains(said), "{}", no_library.stderr);
    let Some(library) = profiler("refuses", &["-DREFUSES"]) else {
        return;
    };
    let refused = generate(&device, Some(&library), nowhere);
    assert!(
        refused.stderr.contains("does not accept NVTX 3"),
        "{}",
        refused.stderr
    );
    assert_eq!(without.stdout, refused.stdout);
}
