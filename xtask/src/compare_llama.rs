//! `cargo xtask compare-llama`: compares this engine's logits with llama.cpp's, at every position of a random prompt
//! and of the tokens that this engine then decodes.
//!
//! llama.cpp runs in Python (`llama-cpp-python`), on the same machine in the same run. Both keep K and V in F32: with
//! F16 llama.cpp also rounds Q and the softmax to F16, which hides smaller errors. The error is the mean squared
//! difference over the variance of llama.cpp's logits; unlike the cosine it depends on scale. For MoE models in F16 and
//! BF16, llama.cpp runs a copy in F32. A mixture may route a token that is nearly tied between experts to another one than
//! llama.cpp: up to 1 % of a model's positions are excused, as few as bring the others within the bound. Later tokens attend
//! to such a token; what it passes on to them is small and does not count.
//!
//! With quantized matrices, both round activations to int8. Random models may amplify that, mixtures most of all: it
//! moves a router's logits, and with them the experts of many tokens. For a model beyond its bound, llama.cpp therefore
//! also runs a copy of the same weights in F32. How far its own logits are from those of the copy is what rounding does;
//! ours may be as far, in another direction, so that the bound becomes twice that error, or 2e-2 if that is less.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use rocmforge_engine::{Engine, EngineConfig, Event, PromptOutput, Request};
use rocmforge_gguf::{GgmlType, Gguf, LoadMode, Writer, quant};
use rocmforge_model::Model;
use rocmforge_plan::KvType;
use rocmforge_testkit::models::{self, families};
use std::ops::ControlFlow;

use crate::gen_model::{self, prompt};
use crate::python;

/// Tokens decoded greedily after the prompt.
const N_DECODE: usize = 60;

const SCRIPT: &str = include_str!("llama_logits.py");

/// The most that rounding activations excuses.
const MOST_ROUNDING: f64 = 2e-2;

/// The share of a position's error that later ones may have of it. The model deepseek2 in F32 has two experts at position
/// 586 whose scores differ by a part in 140 000; of its error there, 1.5e-2, 71 of the next 72 positions have 1e-6 to 9e-4.
const MOST_PASSED_ON: f64 = 1e-2;

/// Types of the matrices in which the random models are compared.
const TYPES: [&str; 3] = ["F32", "Q8_0", "Q4_K"];

/// Compares every model; fails if one is outside its bound.
pub(crate) fn run(models: &[PathBuf], lengths: &[usize], python: &Path) -> Result<()> {
    print_header();
    let mut failed = Vec::new();
    for path in models {
        failed.extend(compare(path, lengths, python)?);
    }
    check(&failed)
}

/// Compares the random models of all architectures, or those of `architectures`, in each of [`TYPES`].
pub(crate) fn run_random(architectures: &[String], lengths: &[usize], python: &Path) -> Result<()> {
    let names = models::NAMES.into_iter().chain(families::names());
    let is_chosen = |name: &&str| {
        let arch = models::architecture(name).unwrap_or(name);
        architectures.is_empty() || architectures.iter().any(|chosen| chosen == arch)
    };
    let names: Vec<&str> = names.filter(is_chosen).collect();
    ensure!(
        !names.is_empty(),
        "there is no model of {}",
        architectures.join(", ")
    );
    let folder = crate::root().join("target/compare-llama");
    std::fs::create_dir_all(&folder)?;
    print_header();
    let mut failed = Vec::new();
    for ty in TYPES {
        for name in &names {
            let path = folder.join(format!("{name}-{ty}.gguf"));
            gen_model::write(name, ty, &path)?;
            failed.extend(compare(&path, lengths, python)?);
            std::fs::remove_file(&path)?;
        }
    }
    check(&failed)
}

fn print_header() {
    println!(
        "{:<40} {:>7} {:>12} {:>12} {:>10}",
        "model", "tokens", "error", "bound", "excused"
    );
}

fn check(failed: &[String]) -> Result<()> {
    ensure!(
        failed.is_empty(),
        "outside the bound: {}",
        failed.join(", ")
    );
    Ok(())
}

/// Compares a model; returns what is outside its bound.
fn compare(path: &Path, lengths: &[usize], python: &Path) -> Result<Vec<String>> {
    let gguf = Arc::new(Gguf::open(path, LoadMode::Mmap)?);
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let wide = match is_16_bit_moe(&gguf) {
        true => Some(in_f32(&gguf, &name)?),
        false => None,
    };
    let theirs_path = wide.as_deref().unwrap_or(path);
    let least = bound(&Gguf::open(theirs_path, LoadMode::Mmap)?);
    let has_experts = has_experts(&gguf);
    let model = Model::load(Arc::clone(&gguf))?;
    let mut failed = Vec::new();
    let (mut n_positions, mut n_excused) = (0, 0);
    for &n_tokens in lengths {
        let prompt = prompt(n_tokens, model.config.n_vocab);
        let (ids, ours) = ours(&model, &prompt)?;
        let (prompt, decoded) = ids.split_at(n_tokens);
        let batches: Vec<&[u32]> = [prompt].into_iter().chain(decoded.chunks(1)).collect();
        let theirs = run_script(theirs_path, &batches, python, &[])?;
        let mut errors = relative_errors(&ours, &theirs, ids.len())?;
        let error = mean(&errors);
        if has_experts {
            clear_passed_on(&mut errors, least);
        }
        let n_allowed = if has_experts { ids.len() / 100 } else { 0 };
        let mut bound = least;
        if n_beyond(&mut errors, bound) > n_allowed && is_small_quantized(&gguf) {
            let copy = in_f32(&gguf, &name)?;
            let exact = run_script(&copy, &batches, python, &[])?;
            std::fs::remove_file(&copy)?;
            let of_rounding = mean(&relative_errors(&theirs, &exact, ids.len())?);
            bound = bound.max((2.0 * of_rounding).min(MOST_ROUNDING));
        }
        let n_beyond = n_beyond(&mut errors, bound);
        n_positions += ids.len();
        n_excused += n_beyond;
        let excused = format!("{n_beyond}/{}", ids.len());
        let verdict = if n_beyond == 0 || has_experts {
            ""
        } else {
            failed.push(format!("{name} ({n_tokens} tokens)"));
            "  FAILED"
        };
        println!("{name:<40} {n_tokens:>7} {error:>12.3e} {bound:>12.0e} {excused:>10}{verdict}");
    }
    if has_experts && n_excused * 100 > n_positions {
        failed.push(format!("{name} ({n_excused} of {n_positions} positions)"));
    }
    Ok(failed)
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// Sets errors to 0 that are below [`MOST_PASSED_ON`] of an earlier one of more than a thousand bounds: a token there went
/// to another expert, and later ones attend to it.
fn clear_passed_on(errors: &mut [f64], bound: f64) {
    let mut most = 0.0;
    for error in errors {
        if *error > 1e3 * bound {
            most = error.max(most);
        }
        if *error < MOST_PASSED_ON * most {
            *error = 0.0;
        }
    }
}

/// Returns how many of the largest errors must be left out for a mean of the others below `bound`.
fn n_beyond(errors: &mut [f64], bound: f64) -> usize {
    errors.sort_by(f64::total_cmp);
    let (mut sum, mut n_kept) = (0.0, 0);
    for (i, error) in errors.iter().enumerate() {
        sum += error;
        if sum < bound * (i + 1) as f64 {
            n_kept = i + 1;
        }
    }
    errors.len() - n_kept
}

fn has_experts(gguf: &Gguf) -> bool {
    gguf.tensors().iter().any(|t| t.name.contains("_exps"))
}

/// Whether this is a MoE model whose activations llama.cpp rounds to 16 bits before routing. A token nearly tied
/// between two experts then takes another one than in f32, which changes its logits: of 300 tokens of the random
/// models, three of `mixtral` and one of `qwen3moe`, with 99 % and 78 % of the squared error.
fn is_16_bit_moe(gguf: &Gguf) -> bool {
    let mut tensors = gguf.tensors().iter();
    has_experts(gguf) && tensors.any(|t| matches!(t.ty, GgmlType::F16 | GgmlType::BF16))
}

/// Whether engines multiply some of the matrices with activations in int8, and the model is small enough for a copy.
fn is_small_quantized(gguf: &Gguf) -> bool {
    let tensors = gguf.tensors();
    let n_values: u64 = tensors.iter().map(|t| t.n_elements()).sum();
    n_values < 1 << 28 && tensors.iter().any(|t| t.ty.block_len() > 1)
}

/// Writes a copy of the model converted to F32, and returns its path.
fn in_f32(gguf: &Gguf, name: &str) -> Result<PathBuf> {
    let mut out = Writer::new(gguf.metadata().str("general.architecture")?);
    for (key, value) in gguf.metadata().iter() {
        out.set(key, value);
    }
    for info in gguf.tensors() {
        let mut values = vec![0.0; usize::try_from(info.n_elements())?];
        quant::dequantize(info.ty, gguf.tensor_data(info), &mut values)?;
        out.add_tensor_f32(&info.name, &info.dims, GgmlType::F32, &values)?;
    }
    let folder = crate::root().join("target/compare-llama");
    std::fs::create_dir_all(&folder)?;
    let path = folder.join(format!("{name}.f32"));
    std::fs::write(&path, out.to_vec()?).with_context(|| format!("writing {}", path.display()))?;
    Ok(path)
}

/// The error of llama.cpp's GELU, a lookup table with f16 inputs and outputs.
const GELU_IN_F16: f64 = 1e-6;
/// The same where layers have gates with GELU between them.
const GELU_OF_GATES: f64 = 1e-5;
/// Other architectures with GELU.
const WITH_GELU: [&str; 8] = [
    "gemma",
    "gemma2",
    "gemma3",
    "gpt2",
    "starcoder2",
    "phi2",
    "falcon",
    "grok",
];

/// Returns the loosest bound of the file's matrix formats. The coarser a format, the more engines differ in how they
/// round activations.
pub(crate) fn bound(gguf: &Gguf) -> f64 {
    let arch = gguf.metadata().str("general.architecture").unwrap_or("");
    let least = match arch {
        "gemma3n" | "gemma4" => GELU_OF_GATES,
        arch if WITH_GELU.contains(&arch) => GELU_IN_F16,
        _ => 0.0,
    };
    let matrices = gguf.tensors().iter().filter(|tensor| tensor.dims.len() > 1);
    let of_type = |ty: GgmlType| match ty {
        GgmlType::F32 => 1e-8,
        GgmlType::F16 => 1e-5,
        GgmlType::BF16 => 1e-4,
        ty if ty.block_len() == 32 => 1e-3,
        _ => 5e-3,
    };
    matrices
        .map(|tensor| of_type(tensor.ty))
        .fold(least, f64::max)
}

/// Decodes after the prompt; returns the prompt with all decoded tokens but the last, and the logits of these tokens,
/// `[n_tokens, n_vocab]`.
fn ours(model: &Model, prompt: &[u32]) -> Result<(Vec<u32>, Vec<f32>)> {
    let config = EngineConfig {
        n_ctx: Some(prompt.len() + N_DECODE),
        kv_types: KvType::F32.into(),
        ..EngineConfig::default()
    };
    let mut engine = Engine::on_cpu(model, None, &config)?;
    let mut decode = Request::greedy(prompt.to_vec(), N_DECODE);
    decode.ignore_eos = true;
    let id = engine.submit(decode)?;
    let mut ids = prompt.to_vec();
    engine.run(id, |event| {
        if let Event::Token { id, .. } = event {
            ids.push(*id);
        }
        ControlFlow::Continue(())
    })?;
    let decoded = ids.split_off(ids.len() - 1);
    let mut request = Request::greedy(ids.clone(), 0);
    request.prompt_output = PromptOutput::Logits { from: 0 };
    let id = engine.submit(request)?;
    let mut rows: Vec<Vec<f32>> = Vec::with_capacity(ids.len());
    engine.run(id, |event| {
        if let Event::PromptLogits { logits, .. } = event {
            rows.push(logits.clone());
        }
        ControlFlow::Continue(())
    })?;
    // A prefill of all tokens must give the logits that they were decoded from.
    let next = ids[prompt.len()..].iter().chain(&decoded);
    for (logits, &next) in rows[prompt.len() - 1..].iter().zip(next) {
        let best = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        if logits[next as usize] < best {
            bail!("decoding chose token {next}, which is not the likeliest");
        }
    }
    Ok((ids, rows.concat()))
}

/// Returns llama.cpp's logits after every id, `[n_tokens, n_vocab]`.
pub(crate) fn llama_cpp(model: &Path, prompt: &[u32], python: &Path) -> Result<Vec<f32>> {
    llama_cpp_with(model, prompt, python, &[])
}

/// Like [`llama_cpp`]; `options` are the KV-cache type, then adapters as FILE=SCALE.
pub(crate) fn llama_cpp_with(
    model: &Path,
    prompt: &[u32],
    python: &Path,
    options: &[String],
) -> Result<Vec<f32>> {
    run_script(model, &[prompt], python, options)
}

/// Runs llama.cpp on the ids of all `batches`, one batch after the other.
fn run_script(
    model: &Path,
    batches: &[&[u32]],
    python: &Path,
    options: &[String],
) -> Result<Vec<f32>> {
    let ids_of = |batch: &&[u32]| {
        let ids: Vec<String> = batch.iter().map(u32::to_string).collect();
        ids.join(",")
    };
    let batches: Vec<String> = batches.iter().map(ids_of).collect();
    let mut arguments = vec![model.as_os_str().to_owned(), batches.join(";").into()];
    arguments.extend(options.iter().map(Into::into));
    let logits = python::run(python, SCRIPT, arguments)?;
    let (logits, _) = logits.as_chunks();
    Ok(logits
        .iter()
        .map(|bytes| f32::from_le_bytes(*bytes))
        .collect())
}

/// Returns the mean squared difference of each of `n` positions over the variance of `theirs`.
fn relative_errors(ours: &[f32], theirs: &[f32], n: usize) -> Result<Vec<f64>> {
    ensure!(
        ours.len() == theirs.len(),
        "{} logits here, {} from llama.cpp",
        ours.len(),
        theirs.len()
    );
    let n_logits = theirs.len() as f64;
    let mean = theirs.iter().map(|&x| f64::from(x)).sum::<f64>() / n_logits;
    let squared = theirs.iter().map(|&x| (f64::from(x) - mean).powi(2));
    let variance = squared.sum::<f64>() / n_logits;
    let n_vocab = theirs.len() / n;
    let rows = ours.chunks_exact(n_vocab).zip(theirs.chunks_exact(n_vocab));
    let error = |(ours, theirs): (&[f32], &[f32])| {
        let pairs = ours.iter().zip(theirs);
        let squared = pairs.map(|(&a, &b)| (f64::from(a) - f64::from(b)).powi(2));
        squared.sum::<f64>() / n_vocab as f64 / variance
    };
    let errors: Vec<f64> = rows.map(error).collect();
    ensure!(
        errors.iter().all(|error| error.is_finite()),
        "logits are not finite"
    );
    Ok(errors)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clears_only_what_a_token_of_another_expert_passes_on() {
        let mut errors = [2e-8, 1e-12, 1e-2, 9e-5, 2e-4, 1e-12];
        clear_passed_on(&mut errors, 1e-8);
        assert_eq!(errors, [2e-8, 1e-12, 1e-2, 0.0, 2e-4, 0.0]);
        let mut small = [9e-6, 2e-8];
        clear_passed_on(&mut small, 1e-8);
        assert_eq!(small, [9e-6, 2e-8]);
    }
}
