//! `cargo xtask fixtures`: regenerates the expected values of the format tests, so that they are never edited by hand.
//! It runs `crates/gguf/tests/fixtures/make.py`, whose oracles are the Python packages `gguf`,
//! `llama-cpp-python` and `ml_dtypes`.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

const FOLDERS: [&str; 5] = ["dequantize", "quantize", "mxfp6", "table", "split"];

fn home() -> PathBuf {
    crate::root().join("crates/gguf/tests/fixtures")
}

/// Writes the fixtures in place.
pub(crate) fn write(python: &Path) -> Result<()> {
    run(python, &home())?;
    println!("wrote {}", home().display());
    Ok(())
}

/// Compares the committed fixtures with newly generated ones.
pub(crate) fn check(python: &Path) -> Result<()> {
    let made = crate::root().join("target/fixtures");
    if made.exists() {
        std::fs::remove_dir_all(&made).with_context(|| format!("clearing {}", made.display()))?;
    }
    run(python, &made)?;
    let mut n_files = 0;
    for folder in FOLDERS {
        let (here, there) = (names(&home().join(folder))?, names(&made.join(folder))?);
        if here != there {
            bail!("{folder}: the committed files are {here:?}, make.py writes {there:?}");
        }
        for name in here {
            let read = |dir: &Path| {
                let path = dir.join(folder).join(&name);
                std::fs::read(&path).with_context(|| format!("reading {}", path.display()))
            };
            if read(&home())? != read(&made)? {
                bail!("{folder}/{name} differs from what make.py writes");
            }
            n_files += 1;
        }
    }
    println!("{n_files} fixture files are up to date");
    Ok(())
}

fn run(python: &Path, out: &Path) -> Result<()> {
    let status = Command::new(python)
        .arg(home().join("make.py"))
        .arg(out)
        .status()
        .with_context(|| format!("starting {}", python.display()))?;
    if !status.success() {
        bail!(
            "{} failed; it needs three packages: python3 -m venv target/venv && target/venv/bin/pip install gguf==0.19.0 llama-cpp-python==0.3.36 ml_dtypes, then add --python target/venv/bin/python",
            python.display()
        );
    }
    Ok(())
}

fn names(dir: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(dir).with_context(|| format!("reading {}", dir.display()))? {
        names.push(entry?.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    Ok(names)
}
