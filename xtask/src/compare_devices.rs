//! `cargo xtask compare-devices`: a device's logits beside those of the CPU backend on the same files, prompts alone
//! and several at once, and what it then decodes.
//!
//! Both convert activations alike and keep K and V in the same type, so that they differ by the order of sums only, and
//! where a sum lies between two codes. The measure is the mean squared difference over the variance of the CPU's logits.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use rocmforge::engine::backend::gpu::{GpuConfig, Offload, OpenOptions, Variants};
use rocmforge::engine::kv_cache::KvType;
use rocmforge::engine::model::Model;
use rocmforge::engine::{Device, Engine, EngineConfig, Event, PromptOutput, Request, RequestId};
use rocmforge::gguf::{Gguf, LoadMode};

use crate::compare_llama::{bound, relative_error};
use crate::gen_model::prompt;

/// The bound with a cache of 8 bits: a key between two codes becomes either, and all that is computed of it moves. `check`
/// says whether each operation is right.
const CODED_CACHE: f64 = 0.1;

/// What to compare.
pub(crate) struct Comparison {
    pub(crate) models: Vec<PathBuf>,
    /// Lengths of the prompts.
    pub(crate) lengths: Vec<usize>,
    /// Prompts at once.
    pub(crate) batches: Vec<usize>,
    /// Tokens to decode after each prompt.
    pub(crate) n_decode: usize,
    pub(crate) device: Device,
    pub(crate) kv_type: KvType,
}

/// The type of this name.
pub(crate) fn kv_type(name: &str) -> Result<KvType, String> {
    let mut types = KvType::ALL.into_iter();
    types
        .find(|kv_type| kv_type.name() == name)
        .ok_or_else(|| format!("no type of a KV cache: {name}"))
}

/// What came of some prompts.
struct Answers {
    /// Of every prompt, `[n_tokens, n_vocab]`.
    logits: Vec<Vec<f32>>,
    /// Of every prompt, the tokens decoded after it with their log-probabilities.
    decoded: Vec<Vec<(u32, f32)>>,
}

/// The GPU of this name, with the kernels that were asked for, and what of a model goes there.
pub(crate) fn device(name: &str, variants: Option<Variants>, offload: Offload) -> Result<Device> {
    Ok(Device::Gpu(GpuConfig {
        id: Some(
            name.parse()
                .ok()
                .with_context(|| format!("no device {name}"))?,
        ),
        open: OpenOptions {
            variants: variants.unwrap_or_default(),
            ..OpenOptions::from_env()
        },
        offload,
        ..GpuConfig::default()
    }))
}

/// Compares every model and fails if one is outside its bound.
pub(crate) fn run(comparison: &Comparison) -> Result<()> {
    let mut failed = Vec::new();
    println!(
        "{:<44} {:>6} {:>5} {:>10} {:>7} {:>9} {:>10}",
        "model", "tokens", "batch", "error", "bound", "same ids", "logprob"
    );
    for path in &comparison.models {
        let gguf = Arc::new(Gguf::open(path, LoadMode::Mmap)?);
        let bound = match comparison.kv_type {
            KvType::F16 | KvType::F32 => bound(&gguf),
            KvType::Q8_0 | KvType::F8E4M3 => bound(&gguf).max(CODED_CACHE),
        };
        let model = Model::load(gguf)?;
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        for &n_tokens in &comparison.lengths {
            for &n_prompts in &comparison.batches {
                let prompts: Vec<Vec<u32>> = (0..n_prompts)
                    .map(|i| prompt(n_tokens + i, model.config.n_vocab).split_off(i))
                    .collect();
                let started = Instant::now();
                let config = EngineConfig {
                    kv_type: comparison.kv_type,
                    ..EngineConfig::default()
                };
                let cpu = answers(&model, &config, &prompts, comparison.n_decode)?;
                let cpu_time = started.elapsed();
                let config = EngineConfig {
                    device: comparison.device.clone(),
                    ..config
                };
                let gpu = answers(&model, &config, &prompts, comparison.n_decode)?;
                let error = relative_error(&gpu.logits.concat(), &cpu.logits.concat())?;
                let (same, logprob) = decoded_alike(&gpu, &cpu);
                let verdict = if error < bound { "" } else { "  FAILED" };
                println!(
                    "{name:<44} {n_tokens:>6} {n_prompts:>5} {error:>10.2e} {bound:>7.0e} {same:>9} {logprob:>10.2e}{verdict}  (CPU {cpu_time:.1?}, all {:.1?})",
                    started.elapsed()
                );
                if error.is_nan() || error >= bound {
                    failed.push(format!("{name} ({n_prompts} x {n_tokens} tokens)"));
                }
            }
        }
    }
    if !failed.is_empty() {
        bail!("outside the bound: {}", failed.join(", "));
    }
    Ok(())
}

/// How many decoded tokens are the same before the first that differs, of how many; and the largest difference of
/// their log-probabilities.
fn decoded_alike(gpu: &Answers, cpu: &Answers) -> (String, f32) {
    let (mut n_same, mut n, mut largest) = (0, 0, 0f32);
    for (gpu, cpu) in gpu.decoded.iter().zip(&cpu.decoded) {
        n += cpu.len();
        let same = gpu.iter().zip(cpu).take_while(|(gpu, cpu)| gpu.0 == cpu.0);
        for (gpu, cpu) in same {
            n_same += 1;
            largest = largest.max((gpu.1 - cpu.1).abs());
        }
    }
    (format!("{n_same}/{n}"), largest)
}

fn answers(
    model: &Model,
    config: &EngineConfig,
    prompts: &[Vec<u32>],
    n_decode: usize,
) -> Result<Answers> {
    let longest = prompts.iter().map(Vec::len).max().unwrap_or(0);
    let n_ctx = longest + n_decode + 1;
    let config = EngineConfig {
        n_ctx: Some(n_ctx),
        n_kv_tokens: Some((n_ctx + config.page) * prompts.len()),
        max_seqs: prompts.len(),
        ..config.clone()
    };
    let mut engine = Engine::start(model, None, &config)?;
    let mut ids: Vec<RequestId> = Vec::new();
    for prompt in prompts {
        let mut request = Request::greedy(prompt.clone(), n_decode);
        request.ignore_eos = true;
        request.prompt_output = PromptOutput::Logits;
        request.logprobs = Some(1);
        ids.push(engine.submit(request)?);
    }
    let mut answers = Answers {
        logits: vec![Vec::new(); prompts.len()],
        decoded: vec![Vec::new(); prompts.len()],
    };
    let index = |request: RequestId| ids.iter().position(|id| *id == request);
    while !engine.is_idle() {
        for event in engine.step()? {
            let Some(at) = index(event.request()) else {
                continue;
            };
            match event {
                Event::PromptLogits { logits, .. } => answers.logits[at].extend(logits),
                Event::Token { id, top, .. } => {
                    let logprob = top.first().map_or(f32::NAN, |top| top.logprob);
                    answers.decoded[at].push((id, logprob));
                }
                Event::Failed { .. } => bail!("the model computed no numbers"),
                _ => {}
            }
        }
    }
    Ok(answers)
}
