//! Reading text files, bounded.

use std::io::{ErrorKind, Read};
use std::path::Path;

use anyhow::{Result, anyhow};
use rocmforge_gguf::escape_control;

/// Longest text that is read; endless files and pipes end here with an error.
const MAX_TEXT_BYTES: u64 = 256 << 20;

/// Reads a file byte for byte, with an error that names it.
pub fn read_file(path: &Path) -> Result<Vec<u8>> {
    let shown = || escape_control(&path.to_string_lossy()).into_owned();
    let failed = |error: std::io::Error| match error.kind() {
        ErrorKind::IsADirectory => anyhow!("cannot read '{}': it is a directory", shown()),
        _ => anyhow!("cannot read '{}': {error}", shown()),
    };
    let file = std::fs::File::open(path).map_err(failed)?;
    read_bounded(file).map_err(failed)
}

/// Reads to the end, or fails past 256 MiB.
pub fn read_bounded(from: impl Read) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    from.take(MAX_TEXT_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_TEXT_BYTES {
        return Err(std::io::Error::other(
            "it is longer than 256 MiB; give a part of it",
        ));
    }
    Ok(bytes)
}
