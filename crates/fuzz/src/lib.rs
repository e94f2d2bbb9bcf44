//! Fuzz targets: one function per kind of untrusted input, each with hand-made seeds.
//!
//! A target takes any bytes. It may reject them; a panic, a hang or unbounded memory is a bug. The same functions run
//! under libFuzzer (`fuzz/`), under `cargo xtask fuzz` with the mutations of [`Mutator`], and briefly in this crate's
//! tests.
#![forbid(unsafe_code)]

mod adapter;
mod answer;
mod gguf;
mod grammar;
mod mutate;
mod seeds;
mod split;
mod template;
mod text;
mod tokenizer;
mod tuning;

use std::path::{Path, PathBuf};

pub use mutate::Mutator;

/// A fuzz target: one kind of untrusted input.
#[derive(Clone, Copy)]
pub struct Target {
    /// Its name, also that of its folder and of its libFuzzer program.
    pub name: &'static str,
    /// Runs one input; panics if it shows a bug.
    pub run: fn(&[u8]),
    /// Returns small inputs with high coverage, by name.
    pub seeds: fn() -> Vec<(String, Vec<u8>)>,
    /// Maximum input length; longer inputs find nothing more.
    pub max_bytes: usize,
}

/// Every target.
pub const TARGETS: [Target; 11] = [
    Target {
        name: "gguf",
        run: gguf::run,
        seeds: seeds::gguf,
        max_bytes: 4096,
    },
    Target {
        name: "split",
        run: split::run,
        seeds: seeds::split,
        max_bytes: 4096,
    },
    Target {
        name: "tokenizer",
        run: tokenizer::run,
        seeds: seeds::tokenizer,
        max_bytes: 4096,
    },
    Target {
        name: "text",
        run: text::run,
        seeds: seeds::text,
        max_bytes: 4096,
    },
    Target {
        name: "template",
        run: template::run,
        seeds: seeds::template,
        max_bytes: 2048,
    },
    Target {
        name: "answer",
        run: answer::run,
        seeds: seeds::answer,
        max_bytes: 2048,
    },
    Target {
        name: "grammar",
        run: grammar::run,
        seeds: seeds::grammar,
        max_bytes: 1024,
    },
    Target {
        name: "http",
        run: rocmforge_server::read_body,
        seeds: seeds::http,
        max_bytes: 2048,
    },
    Target {
        name: "adapter",
        run: adapter::run,
        seeds: seeds::adapter,
        max_bytes: 4096,
    },
    Target {
        name: "tuning",
        run: tuning::run,
        seeds: seeds::tuning,
        max_bytes: 512,
    },
    Target {
        name: "external",
        run: rocmforge_external::read_any,
        // The committed seeds are samples of vendors' profilers, which code cannot write.
        seeds: Vec::new,
        // The seed of a database has 5632.
        max_bytes: 6144,
    },
];

impl Target {
    /// Returns the target called `name`.
    pub fn find(name: &str) -> Option<Target> {
        TARGETS.into_iter().find(|target| target.name == name)
    }

    /// Returns the folder with this target's committed inputs: its seeds, and inputs that once showed a bug.
    pub fn corpus_dir(&self) -> PathBuf {
        root().join("fuzz/seeds").join(self.name)
    }

    /// Returns the committed inputs, by file name.
    ///
    /// # Errors
    /// If the folder or a file in it cannot be read.
    pub fn corpus(&self) -> std::io::Result<Vec<(String, Vec<u8>)>> {
        let mut inputs = Vec::new();
        for entry in std::fs::read_dir(self.corpus_dir())? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            inputs.push((name, std::fs::read(entry.path())?));
        }
        inputs.sort();
        Ok(inputs)
    }
}

/// Runs one input through the target called `name`.
///
/// # Panics
/// If there is no such target, or the input shows a bug.
pub fn run(name: &str, data: &[u8]) {
    let target = Target::find(name).expect("the caller names one of TARGETS");
    (target.run)(data);
}

/// The root of the repository.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}
