//! What a pull reports while it runs.

use std::time::Duration;

/// A step of a pull. The caller shows it; nothing depends on what it does with it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// The file is complete on disk and is not downloaded again.
    AlreadyComplete { path: &'a str },
    /// The download of a file begins.
    Started {
        repo: &'a str,
        path: &'a str,
        bytes: u64,
    },
    /// `done` bytes of an earlier pull are reused.
    Resumed { done: u64 },
    /// `done` of the file's `total` bytes are on disk.
    Progress { done: u64, total: u64 },
    /// A request failed and is repeated after `wait`.
    Retrying { reason: &'a str, wait: Duration },
    /// The part of an earlier pull does not match the checksum; the download starts over.
    PartDamaged,
    /// The hub lists no checksum for the file; only its length was checked.
    NoChecksum { path: &'a str },
}

/// Receives the events of a pull.
pub(crate) type Observer<'o> = dyn FnMut(Event<'_>) + 'o;
