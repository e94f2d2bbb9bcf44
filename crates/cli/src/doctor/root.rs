//! Where the machine's files are.

use std::path::PathBuf;

/// The folder that `/proc`, `/sys`, `/dev` and `/etc` are in. Tests have others.
pub struct Root(pub PathBuf);

impl Root {
    pub fn of_system() -> Root {
        Root("/".into())
    }

    pub fn path(&self, path: &str) -> PathBuf {
        self.0.join(path.trim_start_matches('/'))
    }

    /// The text of a file, without what surrounds it; nothing if it cannot be read.
    pub fn read(&self, path: &str) -> Option<String> {
        let text = std::fs::read_to_string(self.path(path)).ok()?;
        Some(text.trim().to_string())
    }
}
