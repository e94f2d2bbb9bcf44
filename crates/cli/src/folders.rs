//! Where the XDG base directory specification puts what belongs to the user.

use std::env;
use std::path::{Path, PathBuf};

/// What can be found out again: `~/.cache/rocmforge`. `None` if HOME is not set.
pub fn cache() -> Option<PathBuf> {
    let set = |name| env::var_os(name).filter(|value| !value.is_empty());
    let cache = match set("XDG_CACHE_HOME").map(PathBuf::from) {
        Some(dir) if dir.is_absolute() => dir,
        _ => PathBuf::from(set("HOME")?).join(".cache"),
    };
    Some(cache.join("rocmforge"))
}

/// What the user keeps: `~/.local/share/rocmforge`. `None` if HOME is not set.
pub fn data() -> Option<PathBuf> {
    let data = match env::var_os("XDG_DATA_HOME").filter(|dir| Path::new(dir).is_absolute()) {
        Some(dir) => PathBuf::from(dir),
        None => {
            PathBuf::from(env::var_os("HOME").filter(|home| !home.is_empty())?).join(".local/share")
        }
    };
    Some(data.join("rocmforge"))
}
