//! Where the XDG base directory specification puts what belongs to the user.

use std::env;
use std::path::{Path, PathBuf};

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
