//! Where and how to compute.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::builder::BoolishValueParser;
use clap::{Args, ValueEnum};
use rocmforge_runtime::gpu::{DeviceId, GpuLayers, Variants};

use super::{CacheArgs, LoraArgs};

/// Where and how to compute.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Device")]
pub struct DeviceArgs {
    #[command(flatten)]
    pub on: OnArgs,
    #[command(flatten)]
    pub offload: OffloadArgs,
    /// Instruction set of the CPU; auto takes the fastest
    #[arg(long, value_enum, default_value_t = IsaArg::Auto, env = "ROCMFORGE_ISA", hide_env_values = true)]
    pub isa: IsaArg,
    /// Threads that compute [default: one for each core this process may use]
    #[arg(
        short,
        long,
        value_name = "N",
        env = "ROCMFORGE_THREADS",
        hide_env_values = true
    )]
    pub threads: Option<usize>,
    #[command(flatten)]
    pub cache: CacheArgs,
    #[command(flatten)]
    pub lora: LoraArgs,
}

/// Which device computes.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Device")]
pub struct OnArgs {
    /// What computes: auto, cpu, gpu, hip:N (AMD), cuda:N (NVIDIA), or host, a slow CPU that plays a GPU; auto takes a
    /// GPU that this build has kernels for, else the CPU
    #[arg(
        long,
        value_name = "DEVICE",
        default_value = "auto",
        env = "ROCMFORGE_DEVICE",
        hide_env_values = true
    )]
    pub device: Device,
    #[command(flatten)]
    pub gpu: GpuArgs,
}

/// What of a model a GPU computes.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Device")]
pub struct OffloadArgs {
    /// Layers that the GPU computes, the last ones and the output: a number, auto, which takes as many as its memory has
    /// room for, or all; the CPU computes the others (-ngl is the same)
    #[arg(
        long,
        value_name = "N",
        default_value = "all",
        alias = "n-gpu-layers",
        allow_negative_numbers = true,
        env = "ROCMFORGE_GPU_LAYERS",
        hide_env_values = true
    )]
    pub gpu_layers: GpuLayers,
    /// Leave the experts of a mixture to the CPU, the rest of their layers to the GPU
    #[arg(
        long,
        env = "ROCMFORGE_CPU_MOE",
        hide_env_values = true,
        value_parser = BoolishValueParser::new()
    )]
    pub cpu_moe: bool,
}

/// How a GPU is used.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Device")]
pub struct GpuArgs {
    /// Kernels of the GPU, of those that rocmforge devices lists [default: the best for it]
    #[arg(
        long,
        value_name = "NAME",
        env = "ROCMFORGE_GPU_IMAGE",
        hide_env_values = true
    )]
    pub gpu_image: Option<String>,
    /// Kernels that the GPU takes instead of the fastest for a shape, with commas between them: plain, or such as
    /// attention=generic,tiles=small; tuning=off takes none but ignores what was tuned
    #[arg(
        long,
        value_name = "NAMES",
        env = "ROCMFORGE_KERNEL_VARIANT",
        hide_env_values = true
    )]
    pub kernel_variant: Option<Variants>,
    /// Take at most so many MiB of the GPU's memory [default: what is free]
    #[arg(
        long,
        value_name = "MIB",
        env = "ROCMFORGE_GPU_MEMORY",
        hide_env_values = true,
        value_parser = clap::value_parser!(u32).range(1..)
    )]
    pub gpu_memory: Option<u32>,
    /// Queue every kernel of a generated token by itself, not as a graph: slower, for comparisons
    #[arg(
        long,
        env = "ROCMFORGE_NO_GRAPHS",
        hide_env_values = true,
        value_parser = BoolishValueParser::new()
    )]
    pub no_graphs: bool,
    /// When a GPU is compared with the CPU before it is used: auto at its first use with a driver, a build and a
    /// model's formats
    #[arg(
        long,
        value_enum,
        value_name = "WHEN",
        default_value_t = GpuCheckArg::Auto,
        env = "ROCMFORGE_GPU_CHECK",
        hide_env_values = true
    )]
    pub gpu_check: GpuCheckArg,
    /// The folder that remembers such checks and what was tuned [default: $XDG_CACHE_HOME/rocmforge, ~/.cache/rocmforge]
    #[arg(
        long,
        value_name = "DIR",
        env = "ROCMFORGE_CACHE",
        hide_env_values = true
    )]
    pub cache_dir: Option<PathBuf>,
}

/// llama.cpp's names of flags that have several letters after one dash, by this program's. What follows `--`, or is the
/// text of a flag, stays as it is.
pub fn with_long_names(args: impl Iterator<Item = OsString>) -> Vec<OsString> {
    const TEXTS: [&str; 5] = ["-p", "--prompt", "--stop", "--system", "--"];
    let mut is_text = false;
    let mut long = Vec::new();
    for arg in args {
        let name = match arg.to_str() {
            Some("-ngl") if !is_text => "--gpu-layers".into(),
            Some("-cmoe") if !is_text => "--cpu-moe".into(),
            _ => arg,
        };
        let is_after_dashes = long.contains(&OsString::from("--"));
        is_text = is_after_dashes || name.to_str().is_some_and(|name| TEXTS.contains(&name));
        long.push(name);
    }
    long
}

/// When a GPU is checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum GpuCheckArg {
    Auto,
    Always,
    Never,
}

/// What computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Device {
    /// A GPU if there is one, else the CPU.
    Auto,
    Cpu,
    /// The first GPU.
    Gpu,
    Id(DeviceId),
}

impl std::str::FromStr for Device {
    type Err = String;

    fn from_str(text: &str) -> Result<Device, String> {
        match text {
            "auto" => Ok(Device::Auto),
            "cpu" => Ok(Device::Cpu),
            "gpu" => Ok(Device::Gpu),
            id => id
                .parse()
                .map(Device::Id)
                .map_err(|error| format!("{error}; give auto, cpu, gpu, hip:N or cuda:N")),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum IsaArg {
    Auto,
    Scalar,
    Avx2,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_names_of_llama_cpp() {
        let long = |args: &[&str]| with_long_names(args.iter().map(OsString::from));
        for (given, expected) in [
            (
                &["x", "-ngl", "3", "-cmoe"][..],
                &["x", "--gpu-layers", "3", "--cpu-moe"][..],
            ),
            (
                &["x", "-p", "-ngl", "-n", "1"],
                &["x", "-p", "-ngl", "-n", "1"],
            ),
            (&["x", "--", "a", "-ngl"], &["x", "--", "a", "-ngl"]),
            (
                &["x", "-p", "a", "-ngl", "1"],
                &["x", "-p", "a", "--gpu-layers", "1"],
            ),
        ] {
            assert_eq!(
                long(given),
                expected.iter().map(OsString::from).collect::<Vec<_>>()
            );
        }
    }
}
