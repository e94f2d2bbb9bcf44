//! LLVM's programs that disassemble object files.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use anyhow::{Context as _, Result, bail};

use super::images;

/// The paths of the programs.
pub(crate) struct Tools {
    objdump: PathBuf,
    readobj: PathBuf,
}

impl Tools {
    /// Finds the programs beside the compiler that `ROCMFORGE_CLANG` names, on PATH, or in ROCm's folder.
    pub(crate) fn find() -> Result<Tools> {
        Ok(Tools {
            objdump: find("llvm-objdump")?,
            readobj: find("llvm-readobj")?,
        })
    }

    /// Returns the disassembly and the text of the notes.
    pub(crate) fn take_apart(&self, name: &str, object: &[u8]) -> Result<(String, String)> {
        let file = images::cache()?.join(format!("{name}.{}.tmp", std::process::id()));
        fs::write(&file, object)?;
        let listing = output(&self.objdump, "-d", &file);
        let notes = output(&self.readobj, "--notes", &file);
        fs::remove_file(&file)?;
        Ok((listing?, notes?))
    }
}

fn find(name: &str) -> Result<PathBuf> {
    let mut candidates = vec![
        PathBuf::from(format!("{name}-22")),
        PathBuf::from(format!("{name}-23")),
        PathBuf::from(name),
        Path::new("/opt/rocm/llvm/bin").join(name),
        PathBuf::from(format!("{name}-19")),
    ];
    if let Some(beside) = env::var_os("ROCMFORGE_CLANG").map(PathBuf::from) {
        candidates.insert(0, beside.with_file_name(name));
    }
    let works = |path: &PathBuf| {
        let output = Command::new(path).arg("--version").output();
        output.is_ok_and(|output| output.status.success())
    };
    let found = candidates.into_iter().find(works);
    found.with_context(|| format!("{name} was not found; install llvm-22"))
}

fn output(program: &Path, argument: &str, file: &Path) -> Result<String> {
    let output = Command::new(program).arg(argument).arg(file).output()?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("{} {argument}: {said}", program.display());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
