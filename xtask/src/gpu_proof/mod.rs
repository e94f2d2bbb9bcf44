//! `cargo xtask gpu-proof`: proves the GPU path on a machine that has a GPU but no Rust toolchain.
//!
//! `pack` builds the programs here and writes a folder of two files: `gpu-proof` (this program) and `pack.tar.xz` (what
//! the parts run). On the GPU machine, `FOLDER/gpu-proof run PART...` unpacks the archive and runs the parts, each of
//! which prints a table and fails if a result is outside its bound.
//!
//! `parts` has the table of parts; `proof` is the context they run in; `pack` and `programs` find what is built.

mod archs;
mod kv;
mod models;
mod pack;
mod parts;
mod programs;
mod proof;
mod records;
mod tune;

use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::{Args, Subcommand};

use parts::{PARTS, Part};
use proof::Proof;

/// What `gpu-proof` does.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// List the parts and the seconds each may take on an H200 with 16 CPU cores
    List,
    /// Build and pack what the parts need; needs clang, and the repository
    Pack(PackArgs),
    /// Run parts from a packed folder
    Run(Box<RunArgs>),
}

/// The arguments of `gpu-proof pack`.
#[derive(Debug, Args)]
pub struct PackArgs {
    /// Folder to write gpu-proof and pack.tar.xz to
    folder: PathBuf,
    /// Pack only what these parts need [default: all parts]
    #[arg(value_name = "PART", value_parser = Part::find)]
    parts: Vec<&'static Part>,
    /// Types of the conformance data's forge-mini files to pack for golden
    #[arg(
        long,
        value_name = "TYPE,...",
        value_delimiter = ',',
        default_value = "F16"
    )]
    types: Vec<String>,
}

/// The arguments of `gpu-proof run`.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// Parts to run, in this order; see `gpu-proof list`
    #[arg(required = true, value_name = "PART", value_parser = Part::find)]
    parts: Vec<&'static Part>,
    /// The GPU to test
    #[arg(
        long,
        value_name = "DEVICE",
        default_value = "cuda:0",
        env = "ROCMFORGE_PROOF_DEVICE"
    )]
    device: String,
    /// Kernel image to load instead of the best for the GPU, such as sm_80
    #[arg(long, value_name = "NAME")]
    image: Option<String>,
    /// Folder for models, logs and results [default: a new folder in /tmp]
    #[arg(long, value_name = "FOLDER", env = "ROCMFORGE_PROOF_WORK")]
    work: Option<PathBuf>,
    /// Weight types of archs, golden and logits [default: each part's own]
    #[arg(long, value_name = "TYPE,...", value_delimiter = ',')]
    types: Vec<String>,
    /// Model shapes of archs; `families` are the architectures without a shape, in widths of released models [default: one
    /// of each architecture and kind of MoE model]
    #[arg(long, value_name = "SHAPE,...", value_delimiter = ',')]
    shapes: Vec<String>,
    /// Layers of each model of archs
    #[arg(long, value_name = "N", default_value_t = 2)]
    layers: usize,
    /// Comparisons that archs runs at once [default: as many as cores and memory allow]
    #[arg(long, value_name = "N")]
    jobs: Option<usize>,
    /// Seconds after which archs ends a comparison
    #[arg(long, value_name = "SECONDS", default_value_t = 150)]
    limit: u64,
    /// Prompt lengths of logits
    #[arg(long, value_name = "N,...", default_value = "1,17,300")]
    tokens: String,
    /// Batch sizes of logits
    #[arg(long, value_name = "N,...", default_value = "1,4")]
    batch: String,
    /// The MoE model of the part mixture
    #[arg(long, value_name = "SHAPE", default_value = "qwen1.5-moe-a2.7b")]
    mixture: String,
    /// Models of tune, in Q4_K_M; a number after a colon limits the layers
    #[arg(
        long,
        value_name = "SHAPE[:LAYERS],...",
        value_delimiter = ',',
        default_value = "llama-3.1-8b,qwen3-30b-a3b:8"
    )]
    tune_shapes: Vec<String>,
    /// Context depths of kv
    #[arg(long, value_name = "N,...", default_value = "0,4096,32768")]
    depths: String,
    /// Small sizes and few samples in suites
    #[arg(long)]
    quick: bool,
}

impl Command {
    /// Runs the command.
    ///
    /// # Errors
    /// If a build or a part fails.
    pub fn run(self) -> Result<()> {
        match self {
            Command::List => {
                for part in PARTS {
                    println!("{:<9} {:>4} s  {}", part.name, part.limit_s, part.about);
                }
                Ok(())
            }
            Command::Pack(args) => pack::pack(&args),
            Command::Run(args) => run(*args),
        }
    }
}

fn run(mut args: RunArgs) -> Result<()> {
    let parts = std::mem::take(&mut args.parts);
    let mut proof = Proof::new(args)?;
    let mut failed = Vec::new();
    for part in parts {
        if !proof.run(part) {
            failed.push(part.name);
        }
    }
    if !failed.is_empty() {
        bail!("failed: {}", failed.join(", "));
    }
    Ok(())
}
