//! The user's data and cache directories, after the XDG base directory specification.

use std::env;
use std::ffi::OsString;
use std::path::PathBuf;

/// Returns `$XDG_CACHE_HOME/rocmforge` or `~/.cache/rocmforge`, for files that can be made again. `None` if HOME is
/// not set.
pub fn cache() -> Option<PathBuf> {
    directory("XDG_CACHE_HOME", ".cache")
}

/// Returns `$XDG_DATA_HOME/rocmforge` or `~/.local/share/rocmforge`, for files to keep. `None` if HOME is not set.
pub fn data() -> Option<PathBuf> {
    directory("XDG_DATA_HOME", ".local/share")
}

fn directory(variable: &str, below_home: &str) -> Option<PathBuf> {
    // The specification ignores relative paths.
    let base = match non_empty(variable).map(PathBuf::from) {
        Some(dir) if dir.is_absolute() => dir,
        _ => PathBuf::from(non_empty("HOME")?).join(below_home),
    };
    Some(base.join("rocmforge"))
}

fn non_empty(variable: &str) -> Option<OsString> {
    env::var_os(variable).filter(|value| !value.is_empty())
}
