//! `cargo xtask compare-devices`: a device's logits beside those of the CPU backend on the same models, prompts alone
//! and several at once, and what it then decodes.
//!
//! Both convert activations alike and keep K and V in the same type, so that they differ by the order of sums only, and
//! where a sum lies between two codes. The measure is the mean squared difference over the variance of the CPU's logits.
//! The CPU is given the tokens that the device decoded, so every step is compared after the same text (teacher forcing).

mod reference;
mod rows;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use rocmforge_engine::{Device, Engine, EngineConfig, Event, PromptOutput, Request, RequestId};
use rocmforge_gguf::{Gguf, LoadMode};
use rocmforge_model::Model;
use rocmforge_plan::KvType;
use rocmforge_plan::TokenLogprob;
use rocmforge_quantize::synthetic::Synthetic;
use rocmforge_runtime::gpu::{GpuConfig, Offload, OpenOptions, Variants};

use self::reference::{Expected, ExpectedRow, on_cpu};
use self::rows::{Difference, Row};
use crate::compare_llama::bound;
use crate::gen_model::prompt;

/// The bound with a cache of 8 bits: a key between two codes becomes either, and all that is computed of it moves. `check`
/// says whether each operation is right.
const CODED_CACHE: f64 = 0.1;

/// How many of the likeliest tokens are compared after each step of decoding.
const N_BEST: usize = 64;

/// What to compare.
pub(crate) struct Comparison {
    pub(crate) models: Vec<Subject>,
    /// Lengths of the prompts.
    pub(crate) lengths: Vec<usize>,
    /// Prompts at once.
    pub(crate) batches: Vec<usize>,
    /// Tokens to decode after each prompt.
    pub(crate) n_decode: usize,
    pub(crate) device: Device,
    pub(crate) kv_type: KvType,
    /// Of the CPU backend; `None` takes every core.
    pub(crate) n_threads: Option<usize>,
}

/// A model, which is opened when it is its turn.
#[derive(Debug, Clone)]
pub(crate) enum Subject {
    File(PathBuf),
    /// Random weights, made in memory: its name `SHAPE:TYPE`, and its layers where not all of the shape's.
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

    /// Says which matrices have another type than the one in the name.
    fn open(&self) -> Result<Gguf> {
        let (name, n_layers) = match self {
            Subject::File(path) => return open_file(path),
            Subject::Synthetic(name, n_layers) => (name, *n_layers),
        };
        let synthetic = Synthetic {
            n_layers,
            ..name.parse()?
        };
        for tensor in synthetic.plan()? {
            if let Some(wanted) = tensor.instead_of {
                println!(
                    "note: {} is {} in place of {}, since its rows of {} are no whole blocks",
                    tensor.name,
                    tensor.to.name(),
                    wanted.name(),
                    tensor.dims[0]
                );
            }
        }
        Ok(synthetic.open()?)
    }
}

fn open_file(path: &Path) -> Result<Gguf> {
    Gguf::open(path, LoadMode::Mmap).with_context(|| path.display().to_string())
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
    /// Of every prompt, the tokens decoded after it.
    decoded: Vec<Vec<Decoded>>,
}

/// A token that was chosen, and the likeliest ones at its place.
#[derive(Debug, Clone)]
struct Decoded {
    id: u32,
    best: Vec<TokenLogprob>,
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
        "{:<44} {:>6} {:>5} {:>10} {:>10} {:>7} {:>9} {:>9}",
        "model", "tokens", "batch", "error", "decode", "bound", "same ids", "rerouted"
    );
    for subject in &comparison.models {
        let gguf = Arc::new(subject.open()?);
        let bound = match comparison.kv_type {
            KvType::F16 | KvType::F32 => bound(&gguf),
            KvType::Q8_0 | KvType::F8E4M3 => bound(&gguf).max(CODED_CACHE),
        };
        let model = Model::load(gguf)?;
        let name = subject.name();
        for &n_tokens in &comparison.lengths {
            for &n_prompts in &comparison.batches {
                let started = Instant::now();
                let places = compare(&model, comparison, [n_tokens, n_prompts])?;
                let prompt = Difference::of(&places.prompt, bound);
                let decode = Difference::of(&places.decode, bound);
                let is_within = prompt.is_within && decode.is_within;
                let n_decoded = places.decode.len();
                println!(
                    "{name:<44} {n_tokens:>6} {n_prompts:>5} {:>10.2e} {:>10.2e} {bound:>7.0e} {:>9} {:>9}{}  (CPU {:.1?}, all {:.1?})",
                    prompt.error,
                    decode.error,
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

/// What was compared with the CPU backend.
#[derive(Default)]
struct Places {
    /// The logits after each token of the prompts.
    prompt: Vec<Row>,
    /// The log-probabilities of the likeliest tokens, where each token was decoded.
    decode: Vec<Row>,
    /// Decoded tokens that the CPU finds likeliest, too.
    n_same: usize,
    /// What the CPU took.
    cpu_time: Duration,
}

/// The prompts on the device; then, on the CPU, the prompts and what the device decoded, which gives the bits of
/// decoding there, since nothing depends on how a text is cut.
fn compare(
    model: &Model,
    comparison: &Comparison,
    [n_tokens, n_prompts]: [usize; 2],
) -> Result<Places> {
    let n_vocab = model.config.n_vocab;
    let mut texts: Vec<Vec<u32>> = (0..n_prompts)
        .map(|i| prompt(n_tokens + i, n_vocab).split_off(i))
        .collect();
    let config = EngineConfig {
        device: comparison.device.clone(),
        kv_type: comparison.kv_type,
        n_threads: comparison.n_threads,
        ..EngineConfig::default()
    };
    let device = answers(model, &config, &texts, comparison.n_decode)?;
    if let Some(decoded) = device
        .decoded
        .iter()
        .find(|d| d.len() != comparison.n_decode)
    {
        bail!(
            "{} of {} tokens were decoded",
            decoded.len(),
            comparison.n_decode
        );
    }
    for (text, decoded) in texts.iter_mut().zip(&device.decoded) {
        let n_given = decoded.len().saturating_sub(1);
        text.extend(decoded[..n_given].iter().map(|decoded| decoded.id));
    }
    let started = Instant::now();
    let all_expected = on_cpu(model, &config, &texts)?;
    let mut places = Places {
        cpu_time: started.elapsed(),
        ..Places::default()
    };
    for (i, expected) in all_expected.iter().enumerate() {
        places.add_prompt(&expected.rows[..n_tokens], &device.logits[i])?;
        places.add_decoded(expected, &device.decoded[i], n_tokens - 1);
    }
    Ok(places)
}

impl Places {
    /// `found` is `[n_tokens, n_vocab]`, one row for each of `expected`.
    fn add_prompt(&mut self, expected: &[ExpectedRow], found: &[f32]) -> Result<()> {
        let n_vocab = expected.first().map_or(0, |row| row.logits.len());
        if found.len() != expected.len() * n_vocab {
            bail!("{} logits for {} tokens", found.len(), expected.len());
        }
        for (found, expected) in found.chunks(n_vocab).zip(expected) {
            let differences = found
                .iter()
                .zip(&expected.logits)
                .map(|(&a, &b)| f64::from(a) - f64::from(b));
            let row = Row::new(&expected.logits, expected.margin, differences);
            self.prompt.push(row);
        }
        Ok(())
    }

    /// The first token was chosen at the row `first`.
    fn add_decoded(&mut self, expected: &Expected, decoded: &[Decoded], first: usize) {
        for (decoded, expected) in decoded.iter().zip(&expected.rows[first..]) {
            let logits = &expected.logits;
            // A log-probability is a logit less a constant, which depends on the likeliest tokens most.
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
                Event::Failed { .. } => bail!("the model computed no numbers"),
                _ => {}
            }
        }
    }
    Ok(answers)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Three logits whose variance is 2/9 ln(2)^2, by hand.
    #[test]
    fn decoding_is_measured_in_the_variance_of_logits() {
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
            let found = Difference::of(&places.decode, 10.0);
            assert!((found.error - error).abs() < 1e-6, "{found:?}");
            assert_eq!(places.n_same, n_same);
            assert_eq!(places.decode.len(), decoded.len());
        }
    }

    #[test]
    fn logits_that_are_missing_are_an_error() {
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
