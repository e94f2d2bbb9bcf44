//! LLVM's programs that disassemble object files.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
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

    /// Returns the disassembly and the text of the notes of each named object. The programs take longer to start than to
    /// read an object, so many should be given at once.
    pub(crate) fn take_apart(
        &self,
        objects: &[(String, Vec<u8>)],
    ) -> Result<Vec<(String, String)>> {
        // Tests take the same objects apart at once.
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let folder = images::cache()?;
        let unique = format!(
            "{}.{}",
            std::process::id(),
            NEXT.fetch_add(1, Ordering::Relaxed)
        );
        let file = |name: &String| folder.join(format!("{name}.{unique}.tmp"));
        let files: Vec<PathBuf> = objects.iter().map(|(name, _)| file(name)).collect();
        for (file, (_, object)) in files.iter().zip(objects) {
            fs::write(file, object)?;
        }
        let listings = output(&self.objdump, "-d", &files);
        let notes = output(&self.readobj, "--notes", &files);
        for file in &files {
            fs::remove_file(file)?;
        }
        let starts = |start: fn(&Path) -> String| files.iter().map(|file| start(file)).collect();
        let listings = parts(
            &listings?,
            starts(|file| format!("{}:\tfile format", file.display())),
        )?;
        let notes = parts(
            &notes?,
            starts(|file| format!("File: {}\n", file.display())),
        )?;
        Ok(listings.into_iter().zip(notes).collect())
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

/// Divides the output of a program by files; the part of each begins with its text in `starts`.
fn parts(output: &str, starts: Vec<String>) -> Result<Vec<String>> {
    let mut at = Vec::new();
    for start in starts {
        let found = output.find(&start);
        at.push(found.with_context(|| format!("{start:?} is not in the output"))?);
    }
    at.push(output.len());
    Ok(at
        .windows(2)
        .map(|at| output[at[0]..at[1]].into())
        .collect())
}

fn output(program: &Path, argument: &str, files: &[PathBuf]) -> Result<String> {
    let output = Command::new(program).arg(argument).args(files).output()?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("{} {argument}: {said}", program.display());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
