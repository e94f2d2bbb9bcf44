//! This program's file, to run it again.

use std::env;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

/// This program, even if its file has been replaced meanwhile.
pub fn this_program() -> Result<PathBuf> {
    let link = Path::new("/proc/self/exe");
    if link.exists() {
        Ok(link.to_path_buf())
    } else {
        env::current_exe().context("cannot find this program's file")
    }
}
