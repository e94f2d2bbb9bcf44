//! Runs the Python scripts beside this file, and writes what they measure as fixtures of the tests.

use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};

/// Runs a script's text and returns its standard output.
///
/// # Errors
/// If Python cannot be started, or the script fails; it prints why itself.
pub(crate) fn run<A: AsRef<OsStr>>(
    python: &Path,
    script: &str,
    arguments: impl IntoIterator<Item = A>,
) -> Result<Vec<u8>> {
    let output = Command::new(python)
        .args(["-c", script])
        .args(arguments)
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("starting {}", python.display()))?;
    ensure!(
        output.status.success(),
        "{} failed; the script needs Python packages, see --help",
        python.display()
    );
    Ok(output.stdout)
}

/// Writes a file of the repository.
pub(crate) fn write_fixture(path: &str, contents: impl AsRef<[u8]>) -> Result<()> {
    let path = crate::root().join(path);
    fs::write(&path, contents).with_context(|| format!("writing {}", path.display()))?;
    println!("wrote {}", path.display());
    Ok(())
}
