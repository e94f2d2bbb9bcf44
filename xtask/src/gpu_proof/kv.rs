//! The part `kv`: operations, logits, perplexity and decode speed with each type of the KV cache.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;

use super::proof::{Proof, Words as _, output};
use super::records;

/// The types, and the share by which each one's perplexity may differ from that of F16.
const TYPES: [(&str, f64); 5] = [
    ("f16", 0.0),
    ("q8_0", 0.005),
    ("fp8", 0.02),
    ("q5_1", 0.01),
    ("q4_0", 0.01),
];

/// From this depth on a smaller cache must be at least as fast as F16, less what runs differ by.
const DEEP: f64 = 32_768.0;
const NOISE: f64 = 0.02;

pub(super) fn run(proof: &mut Proof) -> Result<()> {
    let models = proof.pack.join("models");
    let mini = models.join("forge-mini-Q4_K_M.gguf");
    for (ty, _) in TYPES {
        println!("--kv-type {ty}");
        let mut check = proof.rocmforge("check");
        proof.step(check.arg("-m").arg(&mini).args(["--kv-type", ty]));
        let flags = format!("--kv-type {ty} --tokens 1,17,300 --batch 1,4");
        proof.step(proof.compare().words(&flags).arg(&mini));
    }
    let result = perplexities(proof, &mini, &models.join("heldout.txt"), "");
    proof.check(result);
    // stories260K has heads of 8 values. It was trained with a line break between stories.
    let stories = proof.work.join("stories.txt");
    if let Ok(text) = fs::read_to_string(models.join("tinystories_valid_part.txt")) {
        fs::write(&stories, text.replace("<|endoftext|>", "\n"))?;
    }
    let model = models.join("stories260K.gguf");
    let result = perplexities(proof, &model, &stories, "--ctx 256 --chunks 40");
    proof.check(result);
    // With four layers of llama-3.1-8b attention has the share of a layer that it has there, and less of a token.
    let file = proof.synthetic("llama-3.1-8b", "Q4_K_M", Some(4))?;
    let mut bench = proof.rocmforge("bench");
    bench.arg("-m").arg(file).args(["-d", &proof.args.depths]);
    let text = output(bench.words("-p 0 -n 32 -r 3 --kv-type f16,q8_0,fp8,q5_1,q4_0 -o jsonl"))?;
    fs::write(proof.results.join("kv.jsonl"), &text)?;
    let result = speeds(&records::lines(&text)?);
    proof.check(result);
    Ok(())
}

/// Compares the perplexities of a model with each type.
fn perplexities(proof: &Proof, model: &Path, text: &Path, flags: &str) -> Result<()> {
    for file in [model, text] {
        if !file.is_file() {
            println!("skipped: no {}", file.display());
            return Ok(());
        }
    }
    let mut half = None;
    for (ty, bound) in TYPES {
        let mut command = proof.rocmforge("perplexity");
        command.arg("-m").arg(model).arg("-f").arg(text);
        command.args(["--json", "--kv-type", ty]).words(flags);
        let report = serde_json::from_str(&output(&mut command)?)?;
        let ppl = records::number(&report, "ppl")?;
        let half = *half.get_or_insert(ppl);
        let share = ppl / half - 1.0;
        let name = model.file_name().unwrap_or_default().to_string_lossy();
        println!(
            "perplexity of {name} with --kv-type {ty}: {ppl:.4} ({:+.3} %)",
            share * 100.0
        );
        ensure!(
            ppl > 0.0 && share.abs() <= bound,
            "{ty} differs by more than {bound}"
        );
    }
    Ok(())
}

/// Prints the speed of each type at each depth, and its ratio to that of F16.
fn speeds(records: &[Value]) -> Result<()> {
    println!(
        "{:<8} {:<6} {:>12} {:>10}",
        "depth", "type", "tokens/s", "to f16"
    );
    let mut slow = Vec::new();
    for record in records {
        let depth = records::number(record, "n_depth")?;
        let ty = record["type_k"]
            .as_str()
            .context("a record without type_k")?;
        let speed = records::number(record, "avg_ts")?;
        let half = records::mean_speed(records, |r| {
            r["type_k"] == "f16" && r["n_depth"] == record["n_depth"]
        })?;
        let ratio = speed / half;
        println!("{depth:<8} {ty:<6} {speed:>12.2} {ratio:>10.3}");
        if depth >= DEEP && ratio < 1.0 - NOISE {
            slow.push(format!("{ty} at {depth}"));
        }
    }
    if !slow.is_empty() {
        bail!("slower than f16: {}", slow.join(", "));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn smaller_caches_must_be_as_fast_at_depth() {
        let records = |depth: u64, speed: f64| {
            let record = |ty: &str, speed: f64| serde_json::json!({"n_depth": depth, "type_k": ty, "avg_ts": speed});
            [record("f16", 100.0), record("q8_0", speed)]
        };
        assert!(speeds(&records(32_768, 99.0)).is_ok());
        assert!(speeds(&records(32_768, 97.0)).is_err());
        assert!(speeds(&records(4096, 50.0)).is_ok());
        assert!(speeds(&records(0, 50.0)[1..]).is_err());
    }
}
