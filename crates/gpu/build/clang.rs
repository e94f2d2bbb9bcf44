//! Finding a clang for each target, and proving that it works.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use super::targets::arguments;

/// A kernel that every target must be able to compile and link.
const PROBE: &str = "#include \"gpu.h\"\n\
    struct Params { u32* out; };\n\
    KERNEL(probe, Params, 64) { p.out[tid()] = bid_x(); }\n";

/// A compiler and what it says it is.
pub(crate) struct Clang {
    pub(crate) path: PathBuf,
    pub(crate) version: String,
}

/// The compilers of this machine, the preferred first: what `ROCMFORGE_CLANG` names, alone; or those on PATH and ROCm's.
pub(crate) fn find() -> Vec<Clang> {
    let names = match env::var_os("ROCMFORGE_CLANG").filter(|name| !name.is_empty()) {
        Some(name) => vec![PathBuf::from(name)],
        None => ["clang-19", "clang", "/opt/rocm/llvm/bin/clang++"]
            .map(PathBuf::from)
            .to_vec(),
    };
    let clangs = names.into_iter().filter_map(|path| {
        let output = Command::new(&path).arg("--version").output().ok()?;
        let version = String::from_utf8_lossy(&output.stdout).into_owned();
        (output.status.success() && version.contains("clang")).then_some(Clang { path, version })
    });
    clangs.collect()
}

/// The first of the compilers that makes an image for `target`, or why none does.
pub(crate) fn choose<'c>(
    clangs: &'c [Clang],
    target: &str,
    dir: &Path,
) -> Result<&'c Clang, String> {
    let mut said =
        String::from("no clang was found; install clang-19 and lld-19, or set ROCMFORGE_CLANG");
    let (source, object) = (
        dir.join(format!("probe.{target}.hip")),
        dir.join(format!("probe.{target}.o")),
    );
    fs::write(&source, PROBE).map_err(|error| error.to_string())?;
    for clang in clangs {
        let output = Command::new(&clang.path)
            .args(arguments(target))
            .arg(&source)
            .arg("-o")
            .arg(&object)
            .output()
            .map_err(|error| error.to_string())?;
        if output.status.success() {
            return Ok(clang);
        }
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        let line = text
            .lines()
            .find(|line| line.contains("error"))
            .unwrap_or("it failed");
        said = format!("{} cannot: {}", clang.path.display(), line.trim());
    }
    Err(said)
}
