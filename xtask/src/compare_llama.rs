//! Logits of this engine beside llama.cpp's, at every position of a random prompt.
//!
//! llama.cpp runs in a Python that has `llama-cpp-python`, on the same machine in the same run. Both keep K and
//! V in F32: with F16 llama.cpp rounds Q and the softmax to F16 too, which hides smaller errors. The measure
//! is the mean squared difference over the variance of llama.cpp's logits: unlike a cosine it sees scale.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use rocmforge::engine::kv_cache::KvType;
use rocmforge::engine::model::Model;
use rocmforge::engine::{Continue, Engine, EngineConfig, Event, PromptOutput, Request};
use rocmforge::gguf::{GgmlType, Gguf, LoadMode};

use crate::gen_model::prompt;

const SCRIPT: &str = include_str!("llama_logits.py");

/// Compares every model and fails if one is outside its bound.
pub(crate) fn run(models: &[PathBuf], lengths: &[usize], python: &Path) -> Result<()> {
    let mut failed = Vec::new();
    println!(
        "{:<40} {:>7} {:>12} {:>12}",
        "model", "tokens", "error", "bound"
    );
    for path in models {
        let gguf = Arc::new(Gguf::open(path, LoadMode::Mmap)?);
        let bound = bound(&gguf);
        let model = Model::load(gguf)?;
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        for &n_tokens in lengths {
            let prompt = prompt(n_tokens, model.config.n_vocab);
            let ours = ours(&model, &prompt)?;
            let theirs = llama_cpp(path, &prompt, python)?;
            let error = relative_error(&ours, &theirs)?;
            let verdict = if error < bound { "" } else { "  FAILED" };
            println!("{name:<40} {n_tokens:>7} {error:>12.3e} {bound:>12.0e}{verdict}");
            if error.is_nan() || error >= bound {
                failed.push(format!("{name} ({n_tokens} tokens)"));
            }
        }
    }
    if !failed.is_empty() {
        bail!("outside the bound: {}", failed.join(", "));
    }
    Ok(())
}

/// The loosest bound of the file's matrix formats: rounding of activations differs between engines by more
/// the coarser a format is.
fn bound(gguf: &Gguf) -> f64 {
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
        .fold(0.0, f64::max)
}

/// `[n_tokens, n_vocab]`.
fn ours(model: &Model, prompt: &[u32]) -> Result<Vec<f32>> {
    let config = EngineConfig {
        n_ctx: Some(prompt.len()),
        kv_type: KvType::F32,
        ..EngineConfig::default()
    };
    let mut engine = Engine::on_cpu(model, None, &config)?;
    let mut request = Request::greedy(prompt.to_vec(), 0);
    request.prompt_output = PromptOutput::Logits;
    let id = engine.submit(request)?;
    let mut all = Vec::with_capacity(prompt.len() * model.config.n_vocab);
    engine.run(id, |event| {
        if let Event::PromptLogits { logits, .. } = event {
            all.extend_from_slice(logits);
        }
        Continue::Yes
    })?;
    Ok(all)
}

/// llama.cpp's, as [`ours`].
pub(crate) fn llama_cpp(model: &Path, prompt: &[u32], python: &Path) -> Result<Vec<f32>> {
    llama_cpp_with(model, prompt, python, &[])
}

/// As [`llama_cpp`]; `options` are a type of the KV cache, and adapters as FILE=SCALE.
pub(crate) fn llama_cpp_with(
    model: &Path,
    prompt: &[u32],
    python: &Path,
    options: &[String],
) -> Result<Vec<f32>> {
    let ids: Vec<String> = prompt.iter().map(u32::to_string).collect();
    let output = Command::new(python)
        .args(["-c", SCRIPT])
        .arg(model)
        .arg(ids.join(","))
        .args(options)
        .output()
        .with_context(|| format!("cannot run {}", python.display()))?;
    if !output.status.success() {
        bail!(
            "llama.cpp failed: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(output
        .stdout
        .chunks_exact(4)
        .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
        .collect())
}

fn relative_error(ours: &[f32], theirs: &[f32]) -> Result<f64> {
    if ours.len() != theirs.len() {
        bail!(
            "{} logits here, {} from llama.cpp",
            ours.len(),
            theirs.len()
        );
    }
    let n = theirs.len() as f64;
    let mean = theirs.iter().map(|&x| f64::from(x)).sum::<f64>() / n;
    let variance = theirs
        .iter()
        .map(|&x| (f64::from(x) - mean).powi(2))
        .sum::<f64>()
        / n;
    let squared = ours
        .iter()
        .zip(theirs)
        .map(|(&a, &b)| (f64::from(a) - f64::from(b)).powi(2))
        .sum::<f64>()
        / n;
    Ok(squared / variance)
}
