//! The version and commit of this build.

/// `1.2.3 (commit)`.
pub const VERSION: &str = concat!(
    env!("CARGO_PKG_VERSION"),
    " (",
    env!("ROCMFORGE_COMMIT"),
    ")"
);

/// The commit, with `-dirty` if the sources were changed; `unknown` if they came without their history.
pub const COMMIT: &str = env!("ROCMFORGE_COMMIT");

/// The commit, if it is known.
pub fn known_commit() -> Option<&'static str> {
    Some(COMMIT).filter(|commit| *commit != "unknown")
}
