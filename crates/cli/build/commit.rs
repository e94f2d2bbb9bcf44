//! The commit that a checkout is at.

use std::path::Path;
use std::process::Command;

/// Returns the first 12 digits of the commit of the checkout in `top`, with `-dirty` if tracked files differ from it.
/// `None` without git, and where `top` is no checkout: a source archive has no history, and a repository above it is
/// another project's.
pub(crate) fn of(top: &Path) -> Option<String> {
    let found = git(top, &["rev-parse", "--show-toplevel"])?;
    if top.canonicalize().ok()? != Path::new(&found).canonicalize().ok()? {
        return None;
    }
    let commit = git(top, &["rev-parse", "--short=12", "HEAD"])?;
    let changes = git(top, &["status", "--porcelain", "--untracked-files=no"])?;
    let mark = if changes.is_empty() { "" } else { "-dirty" };
    Some(format!("{commit}{mark}"))
}

/// Runs git in `top` and returns its trimmed output.
pub(crate) fn git(top: &Path, args: &[&str]) -> Option<String> {
    let output = Command::new("git")
        .arg("-C")
        .arg(top)
        .args(args)
        .output()
        .ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_string())
}
