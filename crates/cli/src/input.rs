//! Reads text files with a size limit.

use std::io::{ErrorKind, Read};
use std::path::Path;

use anyhow::{Context as _, Result, anyhow};
use rocmforge_gguf::escape_control;

/// Longest text; longer or endless input is an error.
const MAX_TEXT_BYTES: u64 = 256 << 20;

/// Reads a file; errors name it.
pub fn read_file(path: &Path) -> Result<Vec<u8>> {
    let shown = || escape_control(&path.to_string_lossy()).into_owned();
    let failed = |error: std::io::Error| match error.kind() {
        ErrorKind::IsADirectory => anyhow!("cannot read '{}': it is a directory", shown()),
        _ => anyhow!("cannot read '{}': {error}", shown()),
    };
    let file = std::fs::File::open(path).map_err(failed)?;
    read_bounded(file).map_err(failed)
}

/// Reads a file in UTF-8; errors name it.
pub fn read_text(path: &Path) -> Result<String> {
    String::from_utf8(read_file(path)?).with_context(|| {
        let shown = path.to_string_lossy();
        format!("'{}' is not UTF-8", escape_control(&shown))
    })
}

/// Reads to the end; more than 256 MiB is an error.
pub fn read_bounded(from: impl Read) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    from.take(MAX_TEXT_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_TEXT_BYTES {
        return Err(std::io::Error::other(
            "it is longer than 256 MiB; use a part of it",
        ));
    }
    Ok(bytes)
}
