//! Chores of the repository that are not part of the program: `cargo xtask`.

mod compare_devices;
mod compare_llama;
mod compare_quantize;
mod fixtures;
mod fuzz;
mod gen_model;
mod gen_synthetic;
mod isa_report;
mod mix_golden;
mod quant_errors;
mod shift_golden;
mod variants;

use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::{Parser, Subcommand};
use rocmforge_plan::KvType;
use rocmforge_runtime::gpu::{Experts, GpuLayers, Offload, Variants};

#[derive(Parser)]
#[command(about = "Chores of the ROCmForge repository")]
struct Args {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Write the expected values of the format tests again, or check that they
    /// are what would be written
    Fixtures {
        /// A Python that has the gguf package
        #[arg(long, default_value = "python3", value_name = "PROGRAM")]
        python: PathBuf,
        /// Compare with the committed files and change nothing
        #[arg(long)]
        check: bool,
    },
    /// Measure again the errors of llama.cpp's quantizers that the quantizers here
    /// are tested against
    QuantErrors {
        /// The model of forge-mini in F16
        model: PathBuf,
        /// A Python that has the packages llama-cpp-python and gguf
        #[arg(long, default_value = "python3", value_name = "PROGRAM")]
        python: PathBuf,
    },
    /// Compare logits with llama.cpp's on the same files, side by side
    CompareLlama {
        #[arg(required = true, value_name = "MODEL")]
        models: Vec<PathBuf>,
        /// Lengths of the prompts
        #[arg(long, value_delimiter = ',', default_value = "330")]
        tokens: Vec<usize>,
        /// A Python that has the llama-cpp-python package
        #[arg(long, default_value = "python3", value_name = "PROGRAM")]
        python: PathBuf,
    },
    /// Compare a GPU's logits with those of the CPU backend on the same models
    CompareDevices {
        #[arg(required_unless_present = "synthetic", value_name = "MODEL")]
        models: Vec<PathBuf>,
        /// A model with random weights, made in memory, as `gen-synthetic` writes it; may be given more than once
        #[arg(long, value_name = "SHAPE:TYPE")]
        synthetic: Vec<String>,
        /// Fewer layers of those than their shapes have
        #[arg(long, requires = "synthetic", value_name = "N")]
        layers: Option<usize>,
        /// Such as cuda:0, hip:0 or host
        #[arg(long, value_name = "DEVICE")]
        device: String,
        /// Kernels that the GPU takes, as `rocmforge generate` has it
        #[arg(long, value_name = "NAMES")]
        kernel_variant: Option<Variants>,
        /// Layers that the GPU computes, as `rocmforge generate` has it
        #[arg(long, value_name = "N", default_value = "all")]
        gpu_layers: GpuLayers,
        /// Leave experts to the CPU
        #[arg(long)]
        cpu_moe: bool,
        /// Lengths of the prompts
        #[arg(long, value_delimiter = ',', default_value = "1,17,300")]
        tokens: Vec<usize>,
        /// Prompts at once
        #[arg(long, value_delimiter = ',', default_value = "1,4")]
        batch: Vec<usize>,
        /// Tokens to decode after each prompt
        #[arg(long, default_value_t = 16, value_name = "N")]
        decode: usize,
        /// How both keep the KV cache: f16, q8_0 or fp8
        #[arg(long, default_value = "f16", value_parser = compare_devices::kv_type, value_name = "TYPE")]
        kv_type: KvType,
        /// Threads of the CPU backend [default: one for each core]
        #[arg(long, value_name = "N")]
        threads: Option<usize>,
    },
    /// Look for crashes and hangs with random changes of the committed inputs; needs no nightly compiler
    Fuzz {
        /// gguf, split, tokenizer, text or template
        target: String,
        /// How long
        #[arg(long, default_value_t = 300, value_name = "N")]
        seconds: u64,
        /// The same number gives the same inputs
        #[arg(long, default_value_t = 1, value_name = "N")]
        seed: u64,
    },
    /// Write the seeds of the fuzzers again
    FuzzSeeds,
    /// Write a small random model of one architecture, the same every time
    GenModel {
        /// Its name, or `all` for one file of each in the folder OUT
        arch: String,
        /// Type of its matrices, such as F32 or Q8_0
        ty: String,
        out: PathBuf,
    },
    /// Write a model of a released one's shape with random weights, the same every time
    GenSynthetic {
        /// Such as llama-3.1-8b
        shape: String,
        /// File type such as Q4_K_M, or the type of all matrices such as MXFP4
        types: String,
        out: PathBuf,
        /// Fewer layers than the shape has
        #[arg(long, value_name = "N")]
        layers: Option<usize>,
    },
    /// Take the logits of these models from llama.cpp, for the engine's tests
    ArchGolden {
        /// A Python that has the llama-cpp-python package
        #[arg(long, default_value = "python3", value_name = "PROGRAM")]
        python: PathBuf,
    },
    /// Quantize a model to every file type and compare perplexities with llama.cpp's
    CompareQuantize {
        /// The model in F16, BF16 or F32, such as forge-mini-F16.gguf
        model: PathBuf,
        text: PathBuf,
        /// Windows of 512 tokens
        #[arg(long, default_value_t = 20)]
        chunks: usize,
        /// File types
        #[arg(
            long,
            value_delimiter = ',',
            default_value = "Q2_K,Q2_K_S,Q3_K_S,Q3_K_M,Q3_K_L,IQ4_XS,IQ4_NL,MXFP4_MOE,Q4_0,Q4_1,Q4_K_S,Q4_K_M,Q5_0,Q5_1,Q5_K_S,Q5_K_M,Q6_K,Q8_0,F16,BF16,F32"
        )]
        types: Vec<String>,
        /// llama.cpp's program
        #[arg(long, default_value = "llama-perplexity", value_name = "PROGRAM")]
        llama_perplexity: PathBuf,
        /// Folder with llama.cpp's files of the same model
        #[arg(long, value_name = "FOLDER")]
        golden: Option<PathBuf>,
    },
    /// Report what the compiler made of the GPU kernels for AMD; fails on spills, scratch memory and collective
    /// instructions that run while lanes are off
    IsaReport {
        /// Targets such as gfx1100,gfx942 [default: one of each generation]
        #[arg(
            long,
            default_value = "",
            hide_default_value = true,
            value_name = "LIST"
        )]
        targets: String,
        /// Part of a module's name, such as matvec.Q4_K, or of a kernel's
        #[arg(
            long,
            default_value = "",
            hide_default_value = true,
            value_name = "NAME"
        )]
        kernel: String,
    },
    /// Take the types of every quantization mix from llama.cpp, for the engine's tests
    MixGolden {
        /// A Python that has the llama-cpp-python and gguf packages
        #[arg(long, default_value = "python3", value_name = "PROGRAM")]
        python: PathBuf,
    },
    /// Take the logits of models with a quantized cache or LoRA adapters from llama.cpp, likewise
    VariantGolden {
        /// A Python that has the llama-cpp-python package
        #[arg(long, default_value = "python3", value_name = "PROGRAM")]
        python: PathBuf,
    },
    /// Take texts from llama.cpp that go on past a context that shifts, likewise
    ShiftGolden {
        /// A Python that has the llama-cpp-python package
        #[arg(long, default_value = "python3", value_name = "PROGRAM")]
        python: PathBuf,
    },
}

fn main() -> Result<()> {
    match Args::parse().task {
        Task::Fixtures {
            python,
            check: false,
        } => fixtures::write(&python),
        Task::Fixtures {
            python,
            check: true,
        } => fixtures::check(&python),
        Task::QuantErrors { model, python } => quant_errors::write(&model, &python),
        Task::CompareLlama {
            models,
            tokens,
            python,
        } => compare_llama::run(&models, &tokens, &python),
        Task::CompareDevices {
            models,
            synthetic,
            layers,
            device,
            kernel_variant,
            gpu_layers,
            cpu_moe,
            tokens,
            batch,
            decode,
            kv_type,
            threads,
        } => compare_devices::run(&compare_devices::Comparison {
            models: {
                let random = |name| compare_devices::Subject::Synthetic(name, layers);
                let files = models.into_iter().map(compare_devices::Subject::File);
                files.chain(synthetic.into_iter().map(random)).collect()
            },
            lengths: tokens,
            batches: batch,
            n_decode: decode,
            device: {
                let offload = Offload {
                    layers: gpu_layers,
                    experts: match cpu_moe {
                        true => Experts::OnCpu,
                        false => Experts::WithTheirLayer,
                    },
                };
                compare_devices::device(&device, kernel_variant, offload)?
            },
            kv_type,
            n_threads: threads,
        }),
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
        } => gen_synthetic::write(&shape, &types, layers, &out),
        Task::FuzzSeeds => fuzz::write_seeds(),
        Task::GenModel { arch, ty, out } if arch == "all" => gen_model::write_all(&ty, &out),
        Task::GenModel { arch, ty, out } => gen_model::write(&arch, &ty, &out),
        Task::ArchGolden { python } => gen_model::golden(&python),
        Task::CompareQuantize {
            model,
            text,
            chunks,
            types,
            llama_perplexity,
            golden,
        } => compare_quantize::run(&compare_quantize::Options {
            model,
            text,
            chunks,
            types,
            llama_perplexity,
            golden,
        }),
        Task::IsaReport { targets, kernel } => {
            isa_report::run(&isa_report::Options { targets, kernel })
        }
        Task::MixGolden { python } => mix_golden::write(&python),
        Task::VariantGolden { python } => variants::golden(&python),
        Task::ShiftGolden { python } => shift_golden::write(&python),
    }
}

/// The root of the repository.
fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("xtask lies in the root")
}
