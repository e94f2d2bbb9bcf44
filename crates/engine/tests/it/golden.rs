//! Comparison with llama.cpp's results: with its greedy ids as input, the same best tokens with the same logit gaps; in
//! free generation, the same ids until two tokens are nearly tied; and the same perplexity.

use crate::common::cases::{for_each_variant, test_cases};
use crate::common::{
    apart, best, conformance, forge_mini_file, golden, greedy, ids, load, logits, read_json,
};
use rocmforge_engine::EngineConfig;
use rocmforge_evaluate::perplexity;
use rocmforge_plan::{KvType, KvTypes};
use rocmforge_testkit::data::{forge_mini_path, forge_mtp_path};
use rocmforge_text::tokenizer::EncodeOptions;
use serde_json::Value;
use std::ops::ControlFlow;
use std::path::Path;

const WITH_BOS: EncodeOptions = EncodeOptions {
    add_special: true,
    parse_special: false,
};

/// Returns the tolerances for llama.cpp's arithmetic: the margin below which the best token may differ, and the allowed
/// difference of gaps between the best logits.
fn bounds(variant: &str) -> (f32, f32) {
    match variant {
        "F32" | "F16" => (0.02, 0.01),
        "BF16" => (0.1, 0.05),
        _ => (0.3, 0.35),
    }
}

/// Compares one row of logits with llama.cpp's best tokens.
fn check_row(label: &str, logits: &[f32], top: &Value, (clear_margin, gap_bound): (f32, f32)) {
    let top: Vec<(usize, f32)> = top
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| {
            (
                entry[0].as_u64().unwrap() as usize,
                entry[1].as_f64().unwrap() as f32,
            )
        })
        .collect();
    let margin = top[0].1 - top[1].1;
    if margin > clear_margin {
        assert_eq!(
            best(logits, 1)[0],
            top[0].0,
            "{label}: llama.cpp's margin is {margin}"
        );
    }
    for other in &top[1..3] {
        let expected = top[0].1 - other.1;
        let got = logits[top[0].0] - logits[other.0];
        assert!(
            expected >= 6.0 || (got - expected).abs() <= gap_bound,
            "{label}: the gap to token {} is {got}, llama.cpp's is {expected}",
            other.0
        );
    }
}

for_each_variant!(
    #[ignore = "exhaustive: formats like others"]
    forge_mini_matches_llama_cpp
);

fn forge_mini_matches_llama_cpp(variant: &str) {
    let Some(path) = forge_mini_file(variant) else {
        return;
    };
    let golden = golden();
    let loaded = load(&path);
    let mut engine = loaded.engine(&EngineConfig::default());
    let bounds = bounds(variant);
    for (name, case) in golden["variants"][variant]["prompts"].as_object().unwrap() {
        let label = format!("{variant} {name}");
        let (prompt, expected) = (ids(&case["prompt_ids"]), ids(&case["greedy_ids"]));
        let margins: Vec<f32> = case["margins"]
            .as_array()
            .unwrap()
            .iter()
            .map(|m| m.as_f64().unwrap() as f32)
            .collect();

        assert_eq!(margins.len(), expected.len(), "{label}");
        assert_eq!(case["top5"].as_array().unwrap().len(), 8, "{label}");

        let forced = [&prompt[..], &expected[..expected.len() - 1]].concat();
        let rows = logits(&mut engine, &forced);
        let generated = &rows[prompt.len() - 1..];
        for (step, (row, &margin)) in generated.iter().zip(&margins).enumerate() {
            if margin > bounds.0 {
                assert_eq!(
                    best(row, 1)[0],
                    expected[step] as usize,
                    "{label} step {step}: margin {margin}"
                );
            }
        }
        for (step, top) in case["top5"].as_array().unwrap().iter().enumerate() {
            check_row(
                &format!("{label} step {step}"),
                &generated[step],
                top,
                bounds,
            );
        }

        let clear = margins
            .iter()
            .position(|&margin| margin < bounds.0)
            .unwrap_or(expected.len());
        let free = greedy(&mut engine, &prompt, expected.len());
        assert_eq!(free[..clear], expected[..clear], "{label}: free running");
    }
}

#[test]
fn stories_matches_llama_cpp() {
    let Some(data) = conformance("data") else {
        return;
    };
    let config = EngineConfig {
        kv_types: KvType::F32.into(),
        ..EngineConfig::default()
    };
    for row in read_json(&data.join("golden/llamacpp_greedy.json"))
        .as_array()
        .unwrap()
    {
        let file = row["model"].as_str().unwrap();
        let variant = file
            .trim_end_matches(".gguf")
            .split_once('-')
            .map_or("F32", |(_, variant)| variant);
        let loaded = load(&data.join("models").join(file));
        let (prompt, expected) = (ids(&row["prompt_ids"]), ids(&row["greedy_ids"]));
        assert_eq!(
            loaded
                .tokenizer
                .encode(row["prompt"].as_str().unwrap(), WITH_BOS),
            prompt
        );
        let mut engine = loaded.engine(&config);

        let steps = row["steps"].as_array().unwrap();
        let forced: Vec<u32> = steps
            .iter()
            .map(|step| step["token"].as_u64().unwrap() as u32)
            .collect();
        let rows = logits(&mut engine, &forced);
        for (position, (logits, step)) in rows.iter().zip(steps).enumerate() {
            let label = format!("{file} position {position}");
            check_row(&label, logits, &step["top"], bounds(variant));
            if variant == "F32" {
                let sum: f64 = logits.iter().map(|&x| f64::from(x)).sum();
                let expected = step["sum"].as_f64().unwrap();
                // 512 logits, each within 4e-3 of llama.cpp's.
                assert!(
                    (sum - expected).abs() < 2.0,
                    "{label}: logits sum to {sum}, llama.cpp's to {expected}"
                );
            }
        }

        let margin = |step: &Value| {
            (step["top"][0][1].as_f64().unwrap() - step["top"][1][1].as_f64().unwrap()) as f32
        };
        let generated = &steps[prompt.len() - 1..];
        let clear = generated
            .iter()
            .position(|step| margin(step) < bounds(variant).0)
            .unwrap_or(generated.len());
        let free = greedy(&mut engine, &prompt, expected.len());
        assert_eq!(free[..clear], expected[..clear], "{file}: free running");
    }
}

/// Measures the perplexity of `text` under the model at `path`. Returns it with its standard error.
fn measure(
    path: &Path,
    text: &[u8],
    n_ctx: usize,
    max_chunks: Option<usize>,
    kv_types: KvTypes,
) -> (f64, f64) {
    let loaded = load(path);
    let tokenizer = &loaded.tokenizer;
    let tokens = tokenizer.encode_bytes(text, WITH_BOS);
    let bos = tokenizer.adds_bos().then(|| tokenizer.bos()).flatten();
    let config = EngineConfig {
        n_ctx: Some(n_ctx),
        kv_types,
        ..EngineConfig::default()
    };
    let mut engine = loaded.engine(&config);
    let result = perplexity(&mut engine, &tokens, bos, n_ctx, max_chunks, |_| {
        ControlFlow::Continue(())
    })
    .unwrap();
    (result.ppl, result.stderr)
}

fn check_perplexity(
    label: &str,
    (ppl, stderr): (f64, f64),
    expected: f64,
    expected_stderr: Option<f64>,
) {
    println!("{label}: {ppl:.4} +- {stderr:.5}, llama.cpp {expected:.4}");
    assert!(
        (ppl / expected - 1.0).abs() < 0.005,
        "{label}: {ppl}, expected {expected}"
    );
    if let Some(expected) = expected_stderr {
        assert!(
            (stderr / expected - 1.0).abs() < 0.05,
            "{label}: standard error {stderr}, expected {expected}"
        );
    }
}

test_cases! {
    perplexity_of_forge_mini_matches_llama_cpp:
    q4_k_m("Q4_K_M"),
}

// Logits and ids of every variant are compared above; this is the same kernels on more text.
#[test]
#[ignore = "exhaustive: run by .ci/run --full"]
fn perplexity_of_every_forge_mini_variant_matches_llama_cpp() {
    for variant in golden()["variants"].as_object().unwrap().keys() {
        perplexity_of_forge_mini_matches_llama_cpp(variant);
    }
}

fn perplexity_of_forge_mini_matches_llama_cpp(variant: &str) {
    let (Some(folder), Some(path)) = (conformance("models"), forge_mini_file(variant)) else {
        return;
    };
    let text = std::fs::read(folder.join("heldout.txt")).unwrap();
    let golden = golden();
    let expected = &golden["variants"][variant];
    let got = measure(&path, &text, 512, None, KvType::F16.into());
    check_perplexity(
        variant,
        got,
        expected["perplexity"].as_f64().unwrap(),
        expected["perplexity_err"].as_f64(),
    );
}

/// The expected values are those of llama.cpp (commit 0c1e5709) on a CPU: `llama-perplexity -m forge-mtp-Q6_K.gguf -f heldout.txt
/// -c 512 -ctk f16 -ctv f16 -fa on`.
#[test]
#[ignore = "exhaustive: run by .ci/run --full"]
fn perplexity_of_forge_mtp_matches_llama_cpp() {
    let Some(folder) = conformance("models") else {
        return;
    };
    let text = std::fs::read(folder.join("heldout.txt")).unwrap();
    let got = measure(&forge_mtp_path(), &text, 512, None, KvType::F16.into());
    check_perplexity("forge-mtp", got, 2.3142, Some(0.03148));
}

test_cases! {
    perplexity_with_a_coded_cache_matches_f16:
    q4_k_m(&forge_mini_path(), 3),
}

#[test]
#[ignore = "exhaustive: run by .ci/run --full"]
fn perplexity_of_more_text_with_a_coded_cache_matches_f16() {
    perplexity_with_a_coded_cache_matches_f16(&forge_mini_path(), 16);
    perplexity_with_a_coded_cache_matches_f16(&forge_mtp_path(), 16);
    if let Some(folder) = conformance("models") {
        perplexity_with_a_coded_cache_matches_f16(&folder.join("forge-mini-F16.gguf"), 16);
    }
}

/// Compares the perplexity of the first chunks with coded caches to that with an F16 cache, within relative bounds. Q8_0
/// loses almost nothing, the others a little.
fn perplexity_with_a_coded_cache_matches_f16(file: &Path, n_chunks: usize) {
    let Some(folder) = conformance("models") else {
        return;
    };
    let text = std::fs::read(folder.join("heldout.txt")).unwrap();
    let ppl = |kv_types| measure(file, &text, 512, Some(n_chunks), kv_types).0;
    let half = ppl(KvType::F16.into());
    for (kv_types, bound) in [
        (KvType::Q8_0.into(), 0.005),
        (KvType::F8E4M3.into(), 0.02),
        (KvType::Q5_1.into(), 0.01),
        (KvType::Q4_0.into(), 0.01),
        (apart(KvType::F16, KvType::Q8_0), 0.005),
        (apart(KvType::Q8_0, KvType::Q5_1), 0.01),
        (apart(KvType::Q8_0, KvType::Q4_0), 0.01),
    ] {
        let coded = ppl(kv_types);
        let label = format!("{} {kv_types}", file.display());
        check_coded(&label, coded, half, bound);
    }
}

fn check_coded(label: &str, coded: f64, half: f64, bound: f64) {
    println!("{label}: {coded:.4}, with a cache in F16 {half:.4}");
    assert!((coded / half - 1.0).abs() < bound, "{label}");
    assert!(coded != half, "{label}");
}

/// Heads of 8 values, each one quantization block, average out little of the rounding.
#[test]
fn perplexity_of_stories_with_an_8_bit_cache_matches_f16() {
    let Some(data) = conformance("data") else {
        return;
    };
    let text = std::fs::read(data.join("text/tinystories_valid_part.txt")).unwrap();
    let path = data.join("models/stories260K.gguf");
    let ppl = |kv_type: KvType| measure(&path, &text[..20_000], 256, Some(16), kv_type.into()).0;
    let half = ppl(KvType::F16);
    for (kv_type, bound) in [(KvType::Q8_0, 0.005), (KvType::F8E4M3, 0.02)] {
        check_coded(
            &format!("stories260K {kv_type:?}"),
            ppl(kv_type),
            half,
            bound,
        );
    }
}

#[test]
fn perplexity_of_stories_matches_llama_cpp() {
    let Some(data) = conformance("data") else {
        return;
    };
    for row in read_json(&data.join("golden/llamacpp_ppl.json"))
        .as_array()
        .unwrap()
    {
        let source = row["text"].as_str().unwrap();
        let (file, _) = source.split_once(' ').unwrap();
        let text = std::fs::read_to_string(data.join("text").join(file))
            .unwrap()
            .replace("<|endoftext|>", "\n");
        let text: String = text.chars().take(200_000).collect();
        let n_ctx = row["n_ctx"].as_u64().unwrap() as usize;
        let chunks = row["chunks"].as_u64().unwrap() as usize;
        let model = row["model"].as_str().unwrap();
        let got = measure(
            &data.join("models").join(model),
            text.as_bytes(),
            n_ctx,
            Some(chunks),
            KvType::F32.into(),
        );
        check_perplexity(
            &format!("{model} on {file}"),
            got,
            row["ppl"].as_f64().unwrap(),
            None,
        );
    }
}
