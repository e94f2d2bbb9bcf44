//! `cargo xtask`: tasks of the repository that are not part of the program.

mod amd_estimate;
mod catalogue;
mod compare_devices;
mod compare_llama;
mod compare_quantize;
mod dist;
mod embedding_golden;
mod fixtures;
mod fuzz;
mod gelu_golden;
mod gen_model;
mod gen_synthetic;
mod isa_report;
mod mix_golden;
mod models_md;
mod python;
mod quant_errors;
mod released;
mod routing_golden;
mod shift_golden;
mod template_golden;
mod tokenizer_golden;
mod variants;

use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::{Parser, Subcommand};
use xtask::gpu_proof;

#[derive(Parser)]
#[command(about = "Tasks of the ROCmForge repository")]
struct Args {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Regenerate the expected values of the format tests, or check them
    Fixtures {
        #[command(flatten)]
        python: Python,
        /// Compare with the committed files instead of writing
        #[arg(long)]
        check: bool,
    },
    /// Measure the errors of llama.cpp's quantizers, for the tests of the quantizers here
    QuantErrors {
        /// forge-mini in F16
        model: PathBuf,
        #[command(flatten)]
        python: Python,
    },
    /// Compare logits with llama.cpp's on the same files
    CompareLlama {
        /// Files [default: random models of every architecture in F32, Q8_0 and Q4_K]
        #[arg(value_name = "MODEL")]
        models: Vec<PathBuf>,
        /// Of the random models, only those of these architectures
        #[arg(
            long,
            value_delimiter = ',',
            value_name = "NAME",
            conflicts_with = "models"
        )]
        arch: Vec<String>,
        /// Prompt lengths
        #[arg(long, value_delimiter = ',', default_value = "1,33,600")]
        tokens: Vec<usize>,
        #[command(flatten)]
        python: Python,
    },
    /// Compare a GPU's logits with the CPU backend's on the same models
    CompareDevices(compare_devices::Args),
    /// Look for crashes and hangs with random mutations of the committed inputs, on a stable compiler
    Fuzz {
        /// gguf, split, tokenizer, text, template, answer, grammar, adapter, tuning or external
        target: String,
        /// How long to run
        #[arg(long, default_value_t = 300, value_name = "N")]
        seconds: u64,
        /// Seed of the mutations; the same seed gives the same inputs
        #[arg(long, default_value_t = 1, value_name = "N")]
        seed: u64,
    },
    /// Regenerate the seed inputs of the fuzzers
    FuzzSeeds,
    /// Write a small random model of one architecture; deterministic
    GenModel {
        /// Architecture, or `all` for a file of each in the folder OUT
        arch: String,
        /// Type of the matrices, such as F32 or Q8_0
        ty: String,
        out: PathBuf,
    },
    /// Write a model with the shape of a released one and random weights; deterministic
    GenSynthetic {
        /// Such as llama-3.1-8b
        shape: String,
        /// File type such as Q4_K_M, or a tensor type such as MXFP4 for all matrices
        types: String,
        out: PathBuf,
        /// Number of layers [default: all of the shape]
        #[arg(long, value_name = "N")]
        layers: Option<usize>,
        /// GGUF file whose vocabulary to copy; it must have as many tokens as the shape
        #[arg(long, value_name = "FILE")]
        vocab: Option<PathBuf>,
    },
    /// Write docs/MODELS.md, or check it
    ModelsMd {
        /// Compare with the committed file instead of writing
        #[arg(long)]
        check: bool,
    },
    /// Record llama.cpp's logits of the gen-model models, for the engine's tests
    ArchGolden(Python),
    /// Record llama.cpp's embeddings of random models, for the engine's tests
    EmbeddingGolden(Python),
    /// Quantize a model to every file type and compare perplexities with llama.cpp's
    CompareQuantize(compare_quantize::Options),
    /// Fit a model of llama.cpp's decode speed on AMD GPUs to half of the published rows, and check it on the others
    AmdEstimate,
    /// Report registers, occupancy and hot loops of the GPU kernels for AMD; fails on spills, scratch memory and
    /// collective instructions that run while lanes are off
    IsaReport(isa_report::Options),
    /// Prove the GPU path on a machine that has a GPU but no Rust toolchain
    GpuProof {
        #[command(subcommand)]
        command: gpu_proof::Command,
    },
    /// Make what a release offers: a tarball and a Debian package with the kernels of every GPU
    Dist(dist::Options),
    /// Record the tensor types of llama.cpp's quantization mixes, for the engine's tests
    MixGolden(Python),
    /// Record llama.cpp's logits with a quantized KV cache or LoRA adapters, for the engine's tests
    VariantGolden(Python),
    /// Record llama.cpp's continuations past a context shift, for the engine's tests
    ShiftGolden(Python),
    /// Record the logits of a deep Gemma 2 model with GELU and with llama.cpp's table of it, for the engine's tests
    GeluGolden(Python),
    /// Record logits of a qwen3moe model in Q5_1 with two roundings of activations, for the engine's tests
    RoutingGolden(Python),
    /// Record what Jinja2 makes of small templates, for the tests of chat templates; needs the package jinja2
    TemplateGolden {
        /// Folder of templates, such as models/templates of llama.cpp, of which only hashes are recorded
        #[arg(long, value_name = "DIR")]
        released: Option<PathBuf>,
        #[command(flatten)]
        python: Python,
    },
    /// Record llama.cpp's tokens of nasty texts, for the tests of tokenizers; needs the packages tokenizers,
    /// sentencepiece and protobuf, too
    TokenizerGolden {
        /// src/llama-vocab.cpp of llama.cpp, which names the pre-tokenizers
        source: PathBuf,
        #[command(flatten)]
        python: Python,
    },
}

/// The Python that runs a task's script.
#[derive(clap::Args)]
struct Python {
    /// Python with the packages llama-cpp-python and gguf; for fixtures, also ml_dtypes
    #[arg(long, default_value = "python3", value_name = "PROGRAM")]
    python: PathBuf,
}

fn main() -> Result<()> {
    match Args::parse().task {
        Task::Fixtures { python, check } => match check {
            false => fixtures::write(&python.python),
            true => fixtures::check(&python.python),
        },
        Task::QuantErrors { model, python } => quant_errors::write(&model, &python.python),
        Task::CompareLlama {
            models,
            arch,
            tokens,
            python,
        } => match models.is_empty() {
            true => compare_llama::run_random(&arch, &tokens, &python.python),
            false => compare_llama::run(&models, &tokens, &python.python),
        },
        Task::CompareDevices(args) => compare_devices::run(&args),
        Task::Fuzz {
            target,
            seconds,
            seed,
        } => fuzz::run(&target, seconds, seed),
        Task::GenSynthetic {
            shape,
            types,
            out,
            layers,
            vocab,
        } => gen_synthetic::write(&format!("{shape}:{types}"), layers, vocab.as_deref(), &out),
        Task::FuzzSeeds => fuzz::write_seeds(),
        Task::GenModel { arch, ty, out } if arch == "all" => gen_model::write_all(&ty, &out),
        Task::GenModel { arch, ty, out } => gen_model::write(&arch, &ty, &out),
        Task::ModelsMd { check: false } => models_md::write(),
        Task::ModelsMd { check: true } => models_md::check(),
        Task::ArchGolden(Python { python }) => gen_model::golden(&python),
        Task::EmbeddingGolden(Python { python }) => embedding_golden::write(&python),
        Task::CompareQuantize(options) => compare_quantize::run(&options),
        Task::AmdEstimate => amd_estimate::run(),
        Task::IsaReport(options) => isa_report::run(&options),
        Task::GpuProof { command } => command.run(),
        Task::Dist(options) => dist::run(&options),
        Task::MixGolden(Python { python }) => mix_golden::write(&python),
        Task::VariantGolden(Python { python }) => variants::golden(&python),
        Task::ShiftGolden(Python { python }) => shift_golden::write(&python),
        Task::GeluGolden(Python { python }) => gelu_golden::write(&python),
        Task::RoutingGolden(Python { python }) => routing_golden::write(&python),
        Task::TemplateGolden { released, python } => {
            template_golden::write(released.as_deref(), &python.python)
        }
        Task::TokenizerGolden { source, python } => {
            tokenizer_golden::write(&source, &python.python)
        }
    }
}

/// The root of the repository.
fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("xtask lies in the root")
}
