//! The crate's errors. Each message says what to do.

use std::fmt::{self, Display};
use std::io;
use std::path::{Path, PathBuf};

use rocmforge_gguf::{shown, shown_list, shown_message};

use crate::reference::{Reference, Selection};
use crate::{display, names};

/// Why a model could not be found, listed, removed or downloaded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error("no models folder: HOME is not set; set ROCMFORGE_MODELS or HOME")]
    NoHome,
    #[error("cannot {action} {}", display::path(.path))]
    Io {
        action: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    #[error("{} holds more than {limit} files; is it a models folder?", display::path(.root))]
    TooManyFiles { root: PathBuf, limit: usize },

    #[error("{0}")]
    BadReference(String),
    #[error("'{}' matches more than one model: {}", shown(.name), shown_list(.models))]
    AmbiguousName { name: String, models: Vec<String> },
    #[error("{reference} is not in {}; download it with: rocmforge pull {reference}", display::path(.root))]
    NotDownloaded { reference: Reference, root: PathBuf },
    #[error(
        "no such file or model: '{}' is neither a path nor in {}; download it with: rocmforge pull {reference}",
        display::path(.given),
        display::path(.root)
    )]
    NoSuchModel {
        given: PathBuf,
        root: PathBuf,
        reference: Box<Reference>,
    },

    #[error("a token consists of printable ASCII characters without spaces")]
    BadToken,
    #[error("'{}' is not a hub address; use one like https://huggingface.co", shown(.endpoint))]
    BadEndpoint { endpoint: String },
    #[error(
        "refusing to send a token without encryption; use a hub address with https://, or no token"
    )]
    TokenWithoutTls,
    #[error("{}: {problem}", display::path(.path))]
    BadCertificates { path: PathBuf, problem: String },

    #[error("{}", Missing { repo, wanted })]
    NotInRepository {
        repo: String,
        wanted: Selection,
        available: Vec<Available>,
    },
    #[error("{}", Several { repo, wanted })]
    AmbiguousSelection {
        repo: String,
        wanted: Selection,
        available: Vec<Available>,
    },
    /// No model was chosen, for a reason of the caller.
    #[error("no model of {repo} was chosen: {reason}")]
    NoChoice { repo: String, reason: String },
    #[error("{repo} has only {found} of the {expected} parts of {}", shown(.name))]
    MissingParts {
        repo: String,
        name: String,
        found: usize,
        expected: usize,
    },
    #[error("cannot read the hub's answer about {repo}: {}", shown_message(.problem))]
    BadAnswer { repo: String, problem: String },
    #[error("the hub lists an unsafe file: {}", shown_message(.problem))]
    UnsafeName { problem: String },
    /// A response that a retry does not change. `status` is the HTTP status, 0 if there was none.
    #[error("{}", shown_message(.reason))]
    Refused { status: u16, reason: String },
    #[error("{}{}", shown_message(.reason), after(*.tries))]
    Connection { reason: String, tries: u32 },
    #[error(
        "{path}: kept {} of {}; run the same pull again to resume",
        display::size(*.done),
        display::size(*.total)
    )]
    Unfinished {
        path: String,
        done: u64,
        total: u64,
        source: Box<Error>,
    },
    #[error("the hub sends a different {path} than it lists ({})", display::size(*.expected))]
    WrongLength { path: String, expected: u64 },
    #[error(
        "{path} arrived damaged: its SHA-256 is {found} instead of {expected}; nothing was kept, pull it again"
    )]
    WrongChecksum {
        path: String,
        found: String,
        expected: String,
    },
    #[error("{path} is not a GGUF file, whatever its name says; nothing was kept")]
    NotGguf { path: String },
    #[error(
        "not enough disk space: {} needed, {} free in {}; free some or use another models folder",
        display::size(*.needed),
        display::size(*.free),
        display::path(.dir)
    )]
    NoSpace {
        needed: u64,
        free: u64,
        dir: PathBuf,
    },
    #[error("another rocmforge pull is writing to {}; wait until it ends", display::path(.dir))]
    Locked { dir: PathBuf },
    #[error("{} was downloaded and matches the hub's copy, but cannot be opened", display::path(.path))]
    Unsupported {
        path: PathBuf,
        source: rocmforge_gguf::Error,
    },
}

/// A model that a repository offers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Available {
    pub name: String,
    pub bytes: u64,
}

impl Available {
    /// Returns whether the name states this quantization, such as `Q4_K_M`.
    pub fn is_quant(&self, quant: &str) -> bool {
        names::states_quant(&self.name, quant)
    }
}

impl Error {
    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
        move |source| Error::Io {
            action,
            path: path.to_owned(),
            source,
        }
    }

    /// Returns the models to choose from, if the repository has others than the one asked for.
    pub fn available(&self) -> &[Available] {
        match self {
            Error::NotInRepository { available, .. }
            | Error::AmbiguousSelection { available, .. } => available,
            _ => &[],
        }
    }
}

struct Missing<'a> {
    repo: &'a str,
    wanted: &'a Selection,
}

impl Display for Missing<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Missing { repo, wanted } = self;
        match wanted {
            Selection::Default => write!(
                f,
                "{repo} has no GGUF files; look for a repository with GGUF in its name"
            ),
            Selection::Quant(quant) => write!(f, "{repo} has no {quant} model"),
            Selection::File(path) => write!(f, "{repo} has no file {}", shown(path)),
        }
    }
}

struct Several<'a> {
    repo: &'a str,
    wanted: &'a Selection,
}

impl Display for Several<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Several { repo, wanted } = self;
        match wanted {
            Selection::Quant(quant) => write!(
                f,
                "{repo} has more than one {quant} model; name the file, as in hf:{repo}/FILE.gguf"
            ),
            _ => write!(
                f,
                "{repo} has more than one model and no default one; choose with hf:{repo}:QUANT or hf:{repo}/FILE.gguf"
            ),
        }
    }
}

fn after(tries: u32) -> String {
    match tries {
        0 | 1 => String::new(),
        n => format!(" (after {n} tries)"),
    }
}
