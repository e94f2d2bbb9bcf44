//! Finding a clang for each target, and proving that it works.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::{env, fmt, fs};

use super::targets::{arguments, is_emulated};

/// The names tried, the preferred first: the version that the kernels are tested with, newer ones, the unversioned ones,
/// older ones.
const NAMES: &[&str] = &[
    "clang-22",
    "clang-23",
    "clang",
    "/opt/rocm/llvm/bin/clang++",
    "clang-21",
    "clang-20",
    "clang-19",
];

/// What to install where no compiler serves. Said in errors.
pub(crate) const INSTALL: &str = "install clang-22 and lld-22";

/// A kernel that every target must be able to compile and link. In its loop, gfx12 needs a wait between reads of scalar
/// registers by vector instructions and the next writes of the same registers.
const PROBE: &str = "#include \"gpu.h\"\n\
    struct Params { u32* out; u32 n; FIELDS(out, n) };\n\
    KERNEL(probe, Params, 64) {\n\
        for (u32 i = 0; i < p.n; i++) p.out[tid() + i] = bid_x() + i * p.n;\n\
    }\n";

/// The wait in the assembly of gfx12.
const ALU_WAIT: &str = "s_wait_alu";

/// A compiler and its `--version` text.
#[derive(Debug)]
pub(crate) struct Clang {
    pub(crate) path: PathBuf,
    pub(crate) version: String,
}

/// The compilers of this machine, the preferred first: the one that `ROCMFORGE_CLANG` names, alone, or those on PATH and
/// ROCm's.
pub(crate) fn find() -> Vec<Clang> {
    let names = match env::var_os("ROCMFORGE_CLANG").filter(|name| !name.is_empty()) {
        Some(name) => vec![PathBuf::from(name)],
        None => NAMES.iter().map(PathBuf::from).collect(),
    };
    let mut clangs: Vec<Clang> = Vec::new();
    for path in names {
        let Ok(output) = Command::new(&path).arg("--version").output() else {
            continue;
        };
        let version = String::from_utf8_lossy(&output.stdout).into_owned();
        // One compiler may have several names.
        let is_new = clangs.iter().all(|clang| clang.version != version);
        if output.status.success() && version.contains("clang") && is_new {
            clangs.push(Clang { path, version });
        }
    }
    clangs
}

/// Why no compiler builds kernels for a target.
#[derive(Debug)]
pub(crate) enum NoCompiler {
    /// This machine has no compiler, or none for this GPU. The kernels are left out.
    LeftOut(String),
    /// The compilers of this machine fail for an emulated GPU. Tests would pass without testing its kernels.
    Fault(String),
}

impl fmt::Display for NoCompiler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (NoCompiler::LeftOut(reason) | NoCompiler::Fault(reason)) = self;
        f.write_str(reason)
    }
}

/// Returns the first of the compilers that can build kernels for `target`. An error says for each compiler why it cannot.
/// `sources` is the folder of the crate, `out` one for temporary files.
pub(crate) fn choose<'c>(
    clangs: &'c [Clang],
    target: &str,
    sources: &Path,
    out: &Path,
) -> Result<&'c Clang, NoCompiler> {
    if clangs.is_empty() {
        return Err(NoCompiler::LeftOut(format!(
            "no clang was found; {INSTALL}, or set ROCMFORGE_CLANG"
        )));
    }
    let source = out.join(format!("probe.{target}.hip"));
    fs::write(&source, PROBE).map_err(|error| NoCompiler::Fault(error.to_string()))?;
    let mut reasons = Vec::new();
    for clang in clangs {
        match clang.probe(target, &source, sources) {
            Ok(()) => return Ok(clang),
            Err(reason) => reasons.push(reason),
        }
    }
    let reasons = reasons.join("; ");
    Err(match is_emulated(target) {
        true => NoCompiler::Fault(reasons),
        false => NoCompiler::LeftOut(reasons),
    })
}

impl Clang {
    /// The first line of its version, such as `Debian clang version 22.1.0`.
    pub(crate) fn name(&self) -> &str {
        self.version.lines().next().unwrap_or("").trim()
    }

    fn probe(&self, target: &str, source: &Path, sources: &Path) -> Result<(), String> {
        let name = self.path.display();
        let run = |more: &[&Path]| -> Result<Output, String> {
            let output = Command::new(&self.path)
                .current_dir(sources)
                .args(arguments(target))
                .arg(source)
                .args(more)
                .output()
                .map_err(|error| format!("{name} cannot be run: {error}"))?;
            if output.status.success() {
                return Ok(output);
            }
            let text = String::from_utf8_lossy(&output.stderr);
            let mut lines = text.lines();
            let line = lines.find(|line| line.contains("error"));
            Err(format!(
                "{name} fails: {}",
                line.unwrap_or("no reason").trim()
            ))
        };
        run(&["-o".as_ref(), &source.with_extension("o")])?;
        if target.starts_with("gfx12") {
            let assembly = run(&["-S".as_ref(), "-o".as_ref(), "-".as_ref()])?;
            if !String::from_utf8_lossy(&assembly.stdout).contains(ALU_WAIT) {
                let version = self.name();
                return Err(format!(
                    "{name} ({version}) omits a wait that gfx12 needs ({ALU_WAIT}, LLVM pull request 100067), so its \
                     code can be silently wrong; {INSTALL}"
                ));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// A compiler that succeeds and writes nothing, so its code has no wait.
    fn without_waits() -> Clang {
        Clang {
            path: "true".into(),
            version: "clang version 19.1.7\nTarget: x86_64-pc-linux-gnu\n".into(),
        }
    }

    /// A compiler that always fails.
    fn failing() -> Clang {
        Clang {
            path: "false".into(),
            version: String::new(),
        }
    }

    fn choose_for<'c>(clangs: &'c [Clang], target: &str) -> Result<&'c Clang, NoCompiler> {
        static CALLS: AtomicUsize = AtomicUsize::new(0);
        let call = CALLS.fetch_add(1, Ordering::Relaxed);
        let out = env::temp_dir().join(format!("clang-test.{}.{call}", std::process::id()));
        fs::create_dir_all(&out).unwrap();
        let chosen = choose(clangs, target, &out, &out);
        fs::remove_dir_all(&out).unwrap();
        chosen
    }

    #[test]
    fn refuses_compilers_without_alu_waits_for_gfx12_only() {
        let clangs = [without_waits()];
        for target in ["gfx1200", "gfx1201"] {
            let reason = choose_for(&clangs, target).unwrap_err().to_string();
            for part in [
                "true (clang version 19.1.7)",
                "s_wait_alu",
                "100067",
                INSTALL,
            ] {
                assert!(reason.contains(part), "{reason}");
            }
        }
        for target in ["gfx942", "gfx1030", "gfx1151", "sm_80", "host-gfx12"] {
            assert!(choose_for(&clangs, target).is_ok(), "{target}");
        }
    }

    #[test]
    fn names_every_compiler_that_fails() {
        let missing = Clang {
            path: "/nonexistent/clang".into(),
            version: String::new(),
        };
        let clangs = [missing, failing(), without_waits()];
        let reason = choose_for(&clangs, "gfx1201").unwrap_err().to_string();
        for part in [
            "/nonexistent/clang cannot be run",
            "false fails",
            "true (clang",
        ] {
            assert!(reason.contains(part), "{reason}");
        }
        let none = choose_for(&[], "gfx1100").unwrap_err().to_string();
        assert!(none.contains(INSTALL));
    }

    /// With a compiler, the kernels of an emulated GPU are not left out; without any, all are.
    #[test]
    fn a_compiler_that_fails_for_the_emulator_is_a_fault() {
        let clangs = [failing()];
        for (clangs, target, is_fault) in [
            (&clangs[..], "host-gfx11", true),
            (&clangs, "gfx1100", false),
            (&clangs, "sm_80", false),
            (&[], "host-gfx11", false),
            (&[], "gfx1100", false),
        ] {
            let refused = choose_for(clangs, target).unwrap_err();
            assert_eq!(
                matches!(refused, NoCompiler::Fault(_)),
                is_fault,
                "{target}"
            );
        }
    }
}
