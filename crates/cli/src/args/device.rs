//! Flags for devices.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::builder::BoolishValueParser;
use clap::{Args, ValueEnum};
pub use rocmforge::Device;
use rocmforge_runtime::gpu::{GpuLayers, Variants};

use super::{CacheArgs, LoraArgs};

/// The device and how it computes.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Device")]
pub struct DeviceArgs {
    #[command(flatten)]
    pub on: OnArgs,
    #[command(flatten)]
    pub offload: OffloadArgs,
    /// CPU instruction set; auto: the fastest supported
    #[arg(long, value_enum, default_value_t = IsaArg::Auto, env = "ROCMFORGE_ISA", hide_env_values = true)]
    pub isa: IsaArg,
    /// Number of CPU threads [default: cores available to the process]
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

/// The device.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Device")]
pub struct OnArgs {
    /// Device: auto, cpu, gpu, hip:N or cuda:N
    ///
    /// auto: the best GPU that this build has kernels for, else the CPU; hip:N: an AMD GPU; cuda:N: an NVIDIA GPU; host: a
    /// slow emulated GPU, for tests
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

/// The part of a model that runs on the GPU.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Device")]
pub struct OffloadArgs {
    /// Number of last layers to run on the GPU, auto or all (also -ngl)
    ///
    /// auto: as many as fit in its memory; the CPU runs the others
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
    /// Run the experts of mixture-of-experts (MoE) models on the CPU, the rest of their layers on the GPU
    #[arg(
        long,
        env = "ROCMFORGE_CPU_MOE",
        hide_env_values = true,
        value_parser = BoolishValueParser::new()
    )]
    pub cpu_moe: bool,
}

/// GPU settings.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Device")]
pub struct GpuArgs {
    /// GPU kernel image, of those listed by rocmforge devices [default: the best match]
    #[arg(
        long,
        value_name = "NAME",
        env = "ROCMFORGE_GPU_IMAGE",
        hide_env_values = true
    )]
    pub gpu_image: Option<String>,
    /// Force GPU kernel variants, separated by commas: plain, attention=generic,tiles=small; tuning=off ignores
    /// autotuned launches
    #[arg(
        long,
        value_name = "NAMES",
        env = "ROCMFORGE_KERNEL_VARIANT",
        hide_env_values = true
    )]
    pub kernel_variant: Option<Variants>,
    /// Limit GPU memory, in MiB [default: all free memory]
    #[arg(
        long,
        value_name = "MIB",
        env = "ROCMFORGE_GPU_MEMORY",
        hide_env_values = true,
        value_parser = clap::value_parser!(u32).range(1..)
    )]
    pub gpu_memory: Option<u32>,
    /// Launch kernels one by one, not as graphs; slower
    #[arg(
        long,
        env = "ROCMFORGE_NO_GRAPHS",
        hide_env_values = true,
        value_parser = BoolishValueParser::new()
    )]
    pub no_graphs: bool,
    /// Give a text the same bits whatever runs beside it; slower
    #[arg(
        long,
        env = "ROCMFORGE_BATCH_INVARIANT",
        hide_env_values = true,
        value_parser = BoolishValueParser::new()
    )]
    pub batch_invariant: bool,
    /// Name operations for a profiler (NVTX or ROCTx); implies --no-graphs
    #[arg(
        long,
        env = "ROCMFORGE_RANGES",
        hide_env_values = true,
        value_parser = BoolishValueParser::new()
    )]
    pub ranges: bool,
    /// When to check the GPU's results against the CPU before use; auto: on first use with a driver, build and model
    /// formats
    #[arg(
        long,
        value_enum,
        value_name = "WHEN",
        default_value_t = GpuCheckArg::Auto,
        env = "ROCMFORGE_GPU_CHECK",
        hide_env_values = true
    )]
    pub gpu_check: GpuCheckArg,
    /// Folder for saved GPU checks and tuning results [default: $XDG_CACHE_HOME/rocmforge or ~/.cache/rocmforge]
    #[arg(
        long,
        value_name = "DIR",
        env = "ROCMFORGE_CACHE",
        hide_env_values = true
    )]
    pub cache_dir: Option<PathBuf>,
}

/// Replaces llama.cpp's flags with one dash and several letters (`-ngl`, `-cmoe`), which clap cannot parse. Arguments
/// after `--` and texts of flags stay unchanged.
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

/// When to check a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum GpuCheckArg {
    Auto,
    Always,
    Never,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum IsaArg {
    Auto,
    Scalar,
    Avx2,
    Avx512,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_short_flags_of_llama_cpp() {
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
