//! Flags of `bench`; most are llama-bench's, including lists and ranges.

use std::path::PathBuf;

use clap::builder::BoolishValueParser;
use clap::{Args, ValueEnum};
use rocmforge_bench::export::Form;
use rocmforge_runtime::gpu::GpuLayers;

use super::context::page;
use super::{
    BenchCommand, IsaArg, KeepArgs, KvTypeArg, LoadArgs, OnArgs, SpeculationArgs, Targets,
};

#[derive(Debug, Args)]
pub struct BenchArgs {
    #[command(subcommand)]
    pub command: Option<BenchCommand>,
    /// GGUF file; may be repeated [default: the built-in forge-mini]
    #[arg(
        short,
        long,
        value_name = "FILE",
        env = "ROCMFORGE_MODEL",
        hide_env_values = true
    )]
    pub model: Vec<PathBuf>,
    /// Random weights in the shape and type of a model
    ///
    /// Such as llama-3.1-8b:Q4_K_M; may be repeated
    #[arg(long, value_name = "SHAPE:TYPE")]
    pub synthetic: Vec<String>,
    #[command(flatten)]
    pub load: LoadArgs,
    /// Prompt lengths in tokens [default: 512]
    ///
    /// 0: skip prefill
    #[arg(short = 'p', long, value_name = "N,...", help_heading = "Tests")]
    pub n_prompt: Vec<Numbers>,
    /// Numbers of tokens to generate [default: 128]
    ///
    /// 0: skip decode
    #[arg(short = 'n', long, value_name = "N,...", help_heading = "Tests")]
    pub n_gen: Vec<Numbers>,
    /// Prompt of P tokens followed by N generated tokens, measured together; may be repeated
    #[arg(long, value_name = "P,N", value_parser = pair, help_heading = "Tests")]
    pub pg: Vec<(usize, usize)>,
    /// Tokens in the KV cache before a test [default: 0]
    ///
    /// A multiple of --page
    #[arg(short = 'd', long, value_name = "N,...", help_heading = "Tests")]
    pub n_depth: Vec<Numbers>,
    /// Sequences computed together [default: 1]
    ///
    /// llama-bench's -b is the tokens per step instead
    #[arg(short = 'b', long, value_name = "N,...", help_heading = "Tests")]
    pub batch: Vec<Numbers>,
    /// Numbers of CPU threads [default: cores available to the process]
    #[arg(short, long, value_name = "N,...", help_heading = "Tests")]
    pub threads: Vec<Numbers>,
    /// KV cache types
    #[arg(
        long,
        value_enum,
        value_name = "TYPE,...",
        value_delimiter = ',',
        default_value = "f16",
        help_heading = "Tests"
    )]
    pub kv_type: Vec<KvTypeArg>,
    /// Types of cached keys [default: --kv-type]
    #[arg(
        long,
        value_enum,
        value_name = "TYPE,...",
        value_delimiter = ',',
        hide_possible_values = true,
        help_heading = "Tests"
    )]
    pub kv_type_k: Vec<KvTypeArg>,
    /// Types of cached values [default: --kv-type]
    #[arg(
        long,
        value_enum,
        value_name = "TYPE,...",
        value_delimiter = ',',
        hide_possible_values = true,
        help_heading = "Tests"
    )]
    pub kv_type_v: Vec<KvTypeArg>,
    /// Numbers of layers to run on the GPU, auto or all [default: all]
    #[arg(
        long,
        value_name = "N,...",
        value_delimiter = ',',
        alias = "n-gpu-layers",
        allow_negative_numbers = true,
        env = "ROCMFORGE_GPU_LAYERS",
        hide_env_values = true,
        help_heading = "Tests"
    )]
    pub gpu_layers: Vec<GpuLayers>,
    /// Run the experts of mixture-of-experts (MoE) models on the CPU
    #[arg(
        long,
        env = "ROCMFORGE_CPU_MOE",
        hide_env_values = true,
        value_parser = BoolishValueParser::new(),
        help_heading = "Device"
    )]
    pub cpu_moe: bool,
    #[command(flatten)]
    pub speculation: SpeculationArgs,
    /// Limits: ttft_ms of prompts, tokens_s of generation, vram_gb; exit code 7 if one is missed
    ///
    /// Such as ttft_ms=200,tokens_s=40,vram_gb=6; medians are judged
    #[arg(long, value_name = "NAME=N,...")]
    pub target: Option<Targets>,
    /// Repetitions of each test
    #[arg(
        short,
        long,
        value_name = "N",
        default_value_t = 5,
        value_parser = clap::value_parser!(u32).range(1..=100_000)
    )]
    pub repetitions: u32,
    /// Delay before each test, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    pub delay: u32,
    /// Skip the warm-up run
    #[arg(long)]
    pub no_warmup: bool,
    /// Do not run each test of a GPU again for 2.5 s to read power, temperature and clock
    #[arg(long)]
    pub no_sensors: bool,
    /// Output format
    ///
    /// json: one array; jsonl: one object per line
    #[arg(
        short,
        long,
        value_enum,
        value_name = "FORMAT",
        default_value_t = BenchOutput::Md,
        help_heading = "Output"
    )]
    pub output: BenchOutput,
    #[command(flatten)]
    pub keep: KeepArgs,
    #[command(flatten)]
    pub on: OnArgs,
    /// CPU instruction set; auto: the fastest supported
    #[arg(long, value_enum, default_value_t = IsaArg::Auto, env = "ROCMFORGE_ISA", hide_env_values = true, help_heading = "Device")]
    pub isa: IsaArg,
    /// Tokens per KV-cache page: 16, 32 or 64
    #[arg(
        long,
        value_name = "N",
        default_value_t = 32,
        env = "ROCMFORGE_PAGE",
        hide_env_values = true,
        value_parser = page,
        help_heading = "Device"
    )]
    pub page: usize,
}

/// Output format of `bench` and its suites.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum BenchOutput {
    Table,
    #[value(alias = "markdown")]
    Md,
    Csv,
    Json,
    Jsonl,
}

impl BenchOutput {
    /// Returns whether a text after the rows can be read as a part of the output.
    pub fn is_for_people(self) -> bool {
        matches!(self, BenchOutput::Table | BenchOutput::Md)
    }

    /// Returns the suites' name of the format.
    pub fn form(self) -> Form {
        match self {
            BenchOutput::Table => Form::Table,
            BenchOutput::Md => Form::Markdown,
            BenchOutput::Csv => Form::Csv,
            BenchOutput::Json => Form::Json,
            BenchOutput::Jsonl => Form::Jsonl,
        }
    }
}

/// The numbers given to a flag: `1,4,8`, `1-4`, `0-4096+1024`, `1-64*2`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Numbers(pub Vec<usize>);

/// Most numbers for one flag.
const MAX_NUMBERS: usize = 1000;

impl std::str::FromStr for Numbers {
    type Err = String;

    fn from_str(text: &str) -> Result<Numbers, String> {
        let mut numbers = Vec::new();
        for part in text.split(',') {
            let range = range(part).ok_or_else(|| {
                format!("'{part}' is neither a number nor a range such as 1-4, 0-4096+1024, 1-64*2")
            })?;
            for n in range {
                if numbers.len() == MAX_NUMBERS {
                    return Err(format!("more than {MAX_NUMBERS} numbers"));
                }
                numbers.push(n);
            }
        }
        Ok(Numbers(numbers))
    }
}

/// Parses `first`, `first-last`, `first-last+step` or `first-last*factor`.
fn range(text: &str) -> Option<impl Iterator<Item = usize>> {
    let number = |text: &str| text.trim().parse::<usize>().ok();
    let (first, last, step) = match text.split_once('-') {
        None => (number(text)?, number(text)?, Step::Add(1)),
        Some((first, rest)) => {
            let (last, step) = match rest.split_once(['+', '*']) {
                None => (rest, Step::Add(1)),
                Some((last, by)) if rest.contains('+') => (last, Step::Add(number(by)?)),
                Some((last, by)) => (last, Step::Multiply(number(by)?)),
            };
            (number(first)?, number(last)?, step)
        }
    };
    if first > last || (first < last && step.after(first)? <= first) {
        return None;
    }
    let next = move |n: &usize| step.after(*n).filter(|next| *n < *next && *next <= last);
    Some(std::iter::successors(Some(first), next))
}

#[derive(Clone, Copy)]
enum Step {
    Add(usize),
    Multiply(usize),
}

impl Step {
    fn after(self, n: usize) -> Option<usize> {
        match self {
            Step::Add(step) => n.checked_add(step),
            Step::Multiply(factor) => n.checked_mul(factor),
        }
    }
}

fn pair(text: &str) -> Result<(usize, usize), String> {
    let numbers = text.split_once(',').and_then(|(prompt, generated)| {
        Some((prompt.trim().parse().ok()?, generated.trim().parse().ok()?))
    });
    match numbers {
        Some((prompt, generated)) if prompt > 0 && generated > 0 => Ok((prompt, generated)),
        _ => Err("use PROMPT,GENERATED in tokens, as in 512,128".to_string()),
    }
}

/// Returns all numbers of a repeated flag, or the default.
pub fn numbers(lists: &[Numbers], default: usize) -> Vec<usize> {
    if lists.is_empty() {
        return vec![default];
    }
    lists.iter().flat_map(|list| list.0.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_lists_and_ranges() {
        for (text, expected) in [
            ("512", vec![512]),
            ("0,4096", vec![0, 4096]),
            ("1-4", vec![1, 2, 3, 4]),
            ("0-4096+2048", vec![0, 2048, 4096]),
            ("1-8*2,3", vec![1, 2, 4, 8, 3]),
            ("1-7*2", vec![1, 2, 4]),
            ("5-5*0", vec![5]),
        ] {
            assert_eq!(text.parse(), Ok(Numbers(expected)), "{text}");
        }
        for bad in [
            "",
            "x",
            "1,",
            "4-1",
            "1-4+0",
            "1-4*1",
            "0-4*2",
            "-1",
            "1-2-3",
            "1-4+",
            "1-1001",
            "99999999999999999999",
        ] {
            assert!(bad.parse::<Numbers>().is_err(), "{bad}");
        }
        // A range that ends at the largest number does not overflow.
        let text = format!("{}-{}", usize::MAX - 1, usize::MAX);
        assert_eq!(text.parse::<Numbers>().unwrap().0.len(), 2);
    }

    #[test]
    fn parses_pairs() {
        assert_eq!(pair("512,128"), Ok((512, 128)));
        for bad in ["512", "0,1", "1,0", "1,2,3", "a,b"] {
            assert!(pair(bad).is_err(), "{bad}");
        }
    }
}
