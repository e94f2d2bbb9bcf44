//! `cargo xtask compare-devices`: compares a device's logits with the CPU backend's, for single and batched prompts and
//! for the tokens decoded after them.
//!
//! Both round activations the same way and keep K and V in the same type, so that they differ only by the order of
//! sums, by weights rounded to f16 (`gemm_half_*`), and where a value lies between two quantization codes. The error is
//! the mean squared difference over the variance of the CPU's logits. The CPU is given the tokens that the device
//! decoded, so that every step is compared after the same text (teacher forcing).

mod exact;
mod reference;
mod rows;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use rocmforge_engine::{
    Device, Engine, EngineConfig, Event, KvTokens, PromptOutput, Request, RequestId,
};
use rocmforge_gguf::{Gguf, LoadMode};
use rocmforge_model::Model;
use rocmforge_plan::{KvType, KvTypes, TokenLogprob};
use rocmforge_quantize::synthetic::{Draft, Synthetic};
use rocmforge_runtime::gpu::{Experts, GpuConfig, GpuLayers, Offload, OpenOptions, Variants};

use self::reference::{Expected, ExpectedRow, on_cpu};
use self::rows::{Difference, Limit, Row};
use crate::compare_llama::bound;
use crate::gen_model::prompt;
use crate::released;

/// The bound with an 8-bit KV cache: a key between two codes becomes either, which changes all that follows. `rocmforge
/// check` tests each operation by itself.
const CODED_CACHE: f64 = 0.1;
/// The same with steps that are up to 16 times as large, of which rotated keys have as many.
const SMALL_CODES: f64 = 0.4;

/// With `--exact`, how much larger the device's error may be than that of the CPU, by chance.
const THAN_CPU: f64 = 2.0;

/// Number of most likely tokens compared after each decode step.
const N_BEST: usize = 64;

/// The arguments of `compare-devices`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[arg(required_unless_present = "synthetic", value_name = "MODEL")]
    models: Vec<PathBuf>,
    /// A model with random weights, generated in memory as `gen-synthetic` writes it; may be repeated
    #[arg(long, value_name = "SHAPE:TYPE")]
    synthetic: Vec<String>,
    /// Layers of the synthetic models [default: all of the shape; models that are not in the list of shapes have few]
    #[arg(long, requires = "synthetic", value_name = "N")]
    layers: Option<usize>,
    /// The GPU, such as cuda:0, hip:0 or host
    #[arg(long, value_name = "DEVICE")]
    device: String,
    /// Kernels to force, as for `rocmforge generate`
    #[arg(long, value_name = "NAMES")]
    kernel_variant: Option<Variants>,
    /// Layers on the GPU, as for `rocmforge generate`
    #[arg(long, value_name = "N", default_value = "all")]
    gpu_layers: GpuLayers,
    /// Compute MoE experts on the CPU
    #[arg(long)]
    cpu_moe: bool,
    /// Prompt lengths
    #[arg(long, value_delimiter = ',', default_value = "1,17,300")]
    tokens: Vec<usize>,
    /// Batch sizes, in prompts
    #[arg(long, value_delimiter = ',', default_value = "1,4")]
    batch: Vec<usize>,
    /// Compare the prompts' logits with those of the same weights in f16, for which the CPU does not round activations.
    /// The error may be twice the CPU's. For mixtures, in which two roundings often choose other experts
    #[arg(long, conflicts_with = "decode")]
    exact: bool,
    /// Tokens to decode after each prompt
    #[arg(long, default_value_t = 16, value_name = "N")]
    decode: usize,
    /// KV-cache type on both devices, f16, q8_0, fp8, q5_1 or q4_0, or those of keys and of values: q8_0/q4_0
    #[arg(long, default_value = "f16", value_parser = kv_types, value_name = "TYPE")]
    kv_type: KvTypes,
    /// Threads of the CPU backend [default: one per core]
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
}

impl Args {
    fn subjects(&self) -> impl Iterator<Item = Subject> {
        let random = |name: &String| Subject::Synthetic(name.clone(), self.layers);
        let files = self.models.iter().cloned().map(Subject::File);
        files.chain(self.synthetic.iter().map(random))
    }

    /// The configuration for both; the CPU backend ignores the device.
    fn config(&self) -> Result<EngineConfig> {
        let id = self.device.parse().ok();
        let gpu = GpuConfig {
            id: Some(id.with_context(|| format!("there is no device {}", self.device))?),
            open: OpenOptions {
                variants: self.kernel_variant.unwrap_or_default(),
                ..OpenOptions::from_env()
            },
            offload: Offload {
                layers: self.gpu_layers,
                experts: match self.cpu_moe {
                    true => Experts::OnCpu,
                    false => Experts::WithTheirLayer,
                },
            },
            ..GpuConfig::default()
        };
        Ok(EngineConfig {
            device: Device::Gpu(gpu),
            kv_types: self.kv_type,
            n_threads: self.threads,
            ..EngineConfig::default()
        })
    }
}

/// A model to compare, opened when its turn comes.
#[derive(Debug, Clone)]
enum Subject {
    File(PathBuf),
    /// Random weights, generated in memory: `SHAPE:TYPE`, and the number of layers if not all.
    Synthetic(String, Option<usize>),
}

impl Subject {
    fn name(&self) -> String {
        match self {
            Subject::File(path) => {
                let name = path.file_name().unwrap_or_default();
                name.to_string_lossy().into_owned()
            }
            Subject::Synthetic(name, _) => name.clone(),
        }
    }

    /// Opens the model, and prints which matrices have another type than its name says.
    fn open(&self) -> Result<Gguf> {
        let (name, n_layers) = match self {
            Subject::File(path) => return open_file(path),
            Subject::Synthetic(name, n_layers) => (name, *n_layers),
        };
        let draft = synthetic(name, n_layers)?;
        for tensor in draft.plan() {
            if let Some(wanted) = tensor.instead_of {
                println!(
                    "note: {} is {} instead of {}, since its rows of {} are not whole blocks",
                    tensor.name,
                    tensor.to.name(),
                    wanted.name(),
                    tensor.dims[0]
                );
            }
        }
        Ok(draft.open(name)?)
    }
}

/// Returns the random model `SHAPE:TYPE`, where the shape may also be one of few layers.
fn synthetic(name: &str, n_layers: Option<usize>) -> Result<Draft> {
    if let Some(draft) = released::draft(name)? {
        ensure!(n_layers.is_none(), "the layers of {name} cannot be chosen");
        return Ok(draft);
    }
    let synthetic = Synthetic {
        n_layers,
        ..name.parse()?
    };
    Ok(synthetic.draft()?)
}

fn open_file(path: &Path) -> Result<Gguf> {
    Gguf::open(path, LoadMode::Mmap).with_context(|| path.display().to_string())
}

/// Returns the KV-cache types of this name, or of two.
fn kv_types(name: &str) -> Result<KvTypes, String> {
    let (keys, values) = name.split_once('/').unwrap_or((name, name));
    Ok(KvTypes {
        keys: kv_type(keys)?,
        values: kv_type(values)?,
    })
}

/// Returns the KV-cache type of this name.
fn kv_type(name: &str) -> Result<KvType, String> {
    let mut types = KvType::ALL.into_iter();
    types
        .find(|kv_type| kv_type.name() == name)
        .ok_or_else(|| format!("there is no KV-cache type {name}"))
}

/// The device's results for a batch of prompts.
struct Answers {
    /// For each prompt, `[n_tokens, n_vocab]`.
    logits: Vec<Vec<f32>>,
    /// For each prompt, the tokens decoded after it.
    decoded: Vec<Vec<Decoded>>,
}

/// A decoded token, and the most likely tokens at its position.
#[derive(Debug, Clone)]
struct Decoded {
    id: u32,
    best: Vec<TokenLogprob>,
}

/// Compares every model; fails if one is outside its bound.
pub(crate) fn run(args: &Args) -> Result<()> {
    let config = args.config()?;
    let mut failed = Vec::new();
    println!(
        "{:<44} {:>6} {:>5} {:>10} {:>10} {:>7} {:>9} {:>9}",
        "model", "tokens", "batch", "error", "decode", "bound", "same ids", "rerouted"
    );
    for subject in args.subjects() {
        let gguf = Arc::new(subject.open()?);
        let of_cache = |kv_type| match kv_type {
            KvType::F16 | KvType::F32 => 0.0,
            KvType::Q8_0 | KvType::F8E4M3 => CODED_CACHE,
            KvType::Q5_1 | KvType::Q4_0 => SMALL_CODES,
        };
        let KvTypes { keys, values } = args.kv_type;
        let bound = bound(&gguf).max(of_cache(keys)).max(of_cache(values));
        let model = Model::load(Arc::clone(&gguf))?;
        let exact = match args.exact {
            true => Some(Model::load(Arc::new(exact::in_f16(gguf)?))?),
            false => None,
        };
        let n_decode = if args.exact { 0 } else { args.decode };
        let name = subject.name();
        for &n_tokens in &args.tokens {
            for &n_prompts in &args.batch {
                let started = Instant::now();
                let models = (&model, exact.as_ref());
                let places = compare(models, &config, [n_tokens, n_prompts], n_decode)?;
                let limit = match args.exact {
                    true => Limit::of_all(THAN_CPU * Difference::error(&places.cpu)),
                    false => Limit::near_ties(bound),
                };
                let prompt = Difference::of(&places.prompt, limit);
                let decode = Difference::of(&places.decode, limit);
                let is_within = prompt.is_within && decode.is_within;
                let n_decoded = places.decode.len();
                println!(
                    "{name:<44} {n_tokens:>6} {n_prompts:>5} {:>10.2e} {:>10.2e} {:>7.0e} {:>9} {:>9}{}  (CPU {:.1?}, all {:.1?})",
                    prompt.error,
                    decode.error,
                    limit.error,
                    format!("{}/{n_decoded}", places.n_same),
                    format!(
                        "{}/{}",
                        prompt.n_rerouted + decode.n_rerouted,
                        places.prompt.len() + n_decoded
                    ),
                    if is_within { "" } else { "  FAILED" },
                    places.cpu_time,
                    started.elapsed()
                );
                if !is_within {
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

/// The positions compared with the CPU backend.
#[derive(Default)]
struct Places {
    /// Logits after each token of the prompts.
    prompt: Vec<Row>,
    /// Log-probabilities of the most likely tokens at each decode step.
    decode: Vec<Row>,
    /// The CPU's logits after each token of the prompts, if those of `prompt` are compared with exact ones.
    cpu: Vec<Row>,
    /// Decoded tokens that are the CPU's most likely token too.
    n_same: usize,
    /// Time of the CPU backend.
    cpu_time: Duration,
}

/// Runs the prompts on the device, then the prompts with the decoded tokens on the CPU as one prefill. That gives the
/// same bits as decoding there, since the CPU's results do not depend on how a text is split into steps. With a model
/// that is `exact`, both are compared with that.
fn compare(
    (model, exact): (&Model, Option<&Model>),
    config: &EngineConfig,
    [n_tokens, n_prompts]: [usize; 2],
    n_decode: usize,
) -> Result<Places> {
    let n_vocab = model.config.n_vocab;
    let mut texts: Vec<Vec<u32>> = (0..n_prompts)
        .map(|i| prompt(n_tokens + i, n_vocab).split_off(i))
        .collect();
    let device = answers(model, config, &texts, n_decode)?;
    if let Some(decoded) = device.decoded.iter().find(|d| d.len() != n_decode) {
        bail!("{} of {n_decode} tokens were decoded", decoded.len());
    }
    for (text, decoded) in texts.iter_mut().zip(&device.decoded) {
        let n_given = decoded.len().saturating_sub(1);
        text.extend(decoded[..n_given].iter().map(|decoded| decoded.id));
    }
    let started = Instant::now();
    let mut all_expected = on_cpu(model, config, &texts)?;
    let mut places = Places {
        cpu_time: started.elapsed(),
        ..Places::default()
    };
    if let Some(exact) = exact {
        let rounded = std::mem::replace(&mut all_expected, on_cpu(exact, config, &texts)?);
        let pairs = all_expected.iter().zip(&rounded);
        let rows = pairs.flat_map(|(exact, rounded)| exact.rows.iter().zip(&rounded.rows));
        places.cpu = rows
            .map(|(exact, rounded)| difference(exact, &rounded.logits))
            .collect();
    }
    for (i, expected) in all_expected.iter().enumerate() {
        places.add_prompt(&expected.rows[..n_tokens], &device.logits[i])?;
        places.add_decoded(expected, &device.decoded[i], n_tokens - 1);
    }
    Ok(places)
}

impl Places {
    /// Adds the prompt's logits, `found` `[n_tokens, n_vocab]`, a row for each of `expected`.
    fn add_prompt(&mut self, expected: &[ExpectedRow], found: &[f32]) -> Result<()> {
        let n_vocab = expected.first().map_or(0, |row| row.logits.len());
        if found.len() != expected.len() * n_vocab {
            bail!("{} logits for {} tokens", found.len(), expected.len());
        }
        for (found, expected) in found.chunks(n_vocab).zip(expected) {
            self.prompt.push(difference(expected, found));
        }
        Ok(())
    }

    /// Adds decoded tokens, the first of which was chosen from the row `first`.
    fn add_decoded(&mut self, expected: &Expected, decoded: &[Decoded], first: usize) {
        for (decoded, expected) in decoded.iter().zip(&expected.rows[first..]) {
            let logits = &expected.logits;
            // A log-probability is a logit minus a constant, which depends mostly on the likeliest tokens.
            let differences: Vec<f64> = decoded
                .best
                .iter()
                .map(|best| f64::from(best.logprob) - f64::from(logits[best.id as usize]))
                .collect();
            let row = Row::up_to_constant(logits, expected.margin, &differences);
            self.decode.push(row);
            let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            self.n_same += usize::from(logits[decoded.id as usize] == most);
        }
    }
}

/// Compares the logits after a token.
fn difference(expected: &ExpectedRow, found: &[f32]) -> Row {
    let pairs = found.iter().zip(&expected.logits);
    let differences = pairs.map(|(&a, &b)| f64::from(a) - f64::from(b));
    Row::new(&expected.logits, expected.margin, differences)
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
        kv_tokens: KvTokens::Exactly((n_ctx + config.page) * prompts.len()),
        max_seqs: prompts.len(),
        ..config.clone()
    };
    let mut engine = Engine::start(model, None, &config)?;
    let mut ids: Vec<RequestId> = Vec::new();
    for prompt in prompts {
        let mut request = Request::greedy(prompt.clone(), n_decode);
        request.ignore_eos = true;
        request.prompt_output = PromptOutput::Logits { from: 0 };
        request.logprobs = Some(N_BEST);
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
                    answers.decoded[at].push(Decoded { id, best: top });
                }
                Event::Failed { .. } => bail!("the logits are NaN or infinite"),
                _ => {}
            }
        }
    }
    Ok(answers)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Three logits with the variance 2/9 ln(2)^2, computed by hand.
    #[test]
    fn decode_error_is_relative_to_the_variance_of_logits() {
        let logits: Vec<f32> = [0.25f32, 0.5, 0.25].map(f32::ln).to_vec();
        let row = || ExpectedRow {
            logits: logits.clone(),
            margin: f64::INFINITY,
        };
        let expected = Expected {
            rows: vec![row(), row(), row()],
        };
        let at = |id, best: &[(u32, f32)]| {
            let best = best.iter().map(|&(id, p)| (id, p.ln()));
            let best = best.map(|(id, logprob)| TokenLogprob { id, logprob });
            Decoded {
                id,
                best: best.collect(),
            }
        };
        let exact = at(1, &[(1, 0.5), (0, 0.25)]);
        // Its second token is twice as likely as it should be: differences of 0 and ln(2).
        let wrong = at(0, &[(1, 0.5), (0, 0.5)]);
        for (decoded, error, n_same) in [
            (vec![], 0.0, 0),
            (vec![exact.clone()], 0.0, 1),
            (vec![wrong.clone()], 2.25, 0),
            (vec![wrong.clone(), exact.clone()], 1.125, 1),
        ] {
            let mut places = Places::default();
            places.add_decoded(&expected, &decoded, 1);
            let found = Difference::of(&places.decode, Limit::near_ties(10.0));
            assert!((found.error - error).abs() < 1e-6, "{found:?}");
            assert_eq!(places.n_same, n_same);
            assert_eq!(places.decode.len(), decoded.len());
        }
    }

    #[test]
    fn rejects_wrong_numbers_of_logits() {
        let row = ExpectedRow {
            logits: vec![1.0, 2.0],
            margin: f64::INFINITY,
        };
        for found in [&[][..], &[1.0], &[1.0, 2.0, 3.0], &[1.0, 2.0, 3.0, 4.0]] {
            let result = Places::default().add_prompt(std::slice::from_ref(&row), found);
            assert!(result.is_err(), "{found:?}");
        }
        assert!(Places::default().add_prompt(&[row], &[1.0, 2.0]).is_ok());
    }
}
