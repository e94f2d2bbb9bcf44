//! Gathering importance matrices, against what llama.cpp's `llama-imatrix` gathered on the same text.

use rocmforge_testkit::models as synth;
use std::ops::ControlFlow;
use std::sync::Arc;

use rocmforge_engine::{Engine, EngineConfig, PrefixSharing};
use rocmforge_evaluate::{Chunks, gather};
use rocmforge_gguf::TokenId;
use rocmforge_gguf::{GgmlType, Gguf, LoadMode};
use rocmforge_model::Model;
use rocmforge_plan::Fusion;
use rocmforge_quantize::imatrix::Imatrix;
use rocmforge_testkit::data::{models, read_json};
use rocmforge_text::tokenizer::{EncodeOptions, Tokenizer};

fn gathered(model: &Model, tokens: &[TokenId], n_ctx: usize) -> Imatrix {
    let config = EngineConfig {
        n_ctx: Some(n_ctx),
        prefix_sharing: PrefixSharing::Off,
        fusion: Fusion::Off,
        // Steps that do not divide a window.
        max_batch_tokens: 24,
        ..EngineConfig::default()
    };
    let mut engine = Engine::on_cpu(model, None, &config).unwrap();
    let chunks = Chunks {
        max: None,
        on_chunk: &mut |_| ControlFlow::Continue(()),
    };
    gather(&mut engine, model, tokens, None, n_ctx, chunks)
        .unwrap()
        .0
}

#[test]
fn sums_are_those_of_llama_cpp() {
    let golden = read_json(&models().join("../crates/engine/tests/fixtures/imatrix.json"));
    let path = models().join("forge-mini-Q4_K_M.gguf");
    let gguf = Arc::new(Gguf::open(&path, LoadMode::Mmap).unwrap());
    let tokenizer = Tokenizer::from_gguf(&gguf, None).unwrap();
    let model = Model::load(gguf).unwrap();
    let options = EncodeOptions {
        add_special: true,
        parse_special: false,
    };
    let tokens = tokenizer.encode(golden["text"].as_str().unwrap(), options);
    let imatrix = gathered(&model, &tokens, 64);
    assert_eq!(
        u64::from(imatrix.n_chunks),
        golden["chunks"].as_u64().unwrap()
    );
    assert_eq!(imatrix.chunk_size, 64);
    let expected = golden["entries"].as_object().unwrap();
    let names = |names: &mut dyn Iterator<Item = &String>| names.cloned().collect::<Vec<_>>();
    assert_eq!(
        names(&mut imatrix.entries.keys()),
        names(&mut expected.keys())
    );
    for (name, entry) in &imatrix.entries {
        let expected: Vec<f64> = serde_json::from_value(expected[name].clone()).unwrap();
        assert_eq!(entry.counts, [expected[0] as u64], "{name}");
        let total: f64 = entry.sums.iter().map(|&sum| f64::from(sum)).sum();
        let columns = entry.sums.iter().step_by(85).map(|&sum| f64::from(sum));
        // Engines round activations differently; a column is less than a sum over all.
        assert!((total / expected[1] - 1.0).abs() < 5e-3, "{name}: {total}");
        for (found, expected) in columns.zip(&expected[2..]) {
            let near = (found / expected - 1.0).abs() < 0.15;
            assert!(near, "{name}: {found} instead of {expected}");
        }
    }
}

#[test]
fn projections_in_one_tensor_count_once() {
    let model = synth::model("phi3", GgmlType::F32).unwrap().unwrap();
    let gguf = Gguf::from_vec(model.to_vec().unwrap()).unwrap();
    let model = Model::load(Arc::new(gguf)).unwrap();
    let imatrix = gathered(&model, &synth::prompt(100, 512), 50);
    let counts = |name: &str| imatrix.entries[name].counts.clone();
    for name in ["attn_qkv", "attn_output", "ffn_up", "ffn_down"] {
        assert_eq!(counts(&format!("blk.3.{name}.weight")), [100], "{name}");
    }
    assert_eq!(imatrix.entries.len(), 4 * 4);
}

#[test]
fn experts_have_sums_of_their_own() {
    for name in ["mixtral", "qwen3moe"] {
        let model = synth::model(name, GgmlType::F32).unwrap().unwrap();
        let gguf = Gguf::from_vec(model.to_vec().unwrap()).unwrap();
        let n_used = gguf
            .metadata()
            .iter()
            .find(|(key, _)| key.ends_with("expert_used_count"))
            .and_then(|(key, _)| gguf.metadata().u32(key).ok())
            .unwrap();
        let model = Model::load(Arc::new(gguf)).unwrap();
        let imatrix = gathered(&model, &synth::prompt(100, 512), 50);
        let entry = |name: &str| &imatrix.entries[&format!("blk.1.{name}.weight")];
        // The router reads what all experts of a token read together.
        let router = entry("ffn_gate_inp");
        assert_eq!(router.counts, [100], "{name}");
        let width = router.sums.len();
        for tensor in ["ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"] {
            let experts = entry(tensor);
            let n_rows: u64 = experts.counts.iter().sum();
            assert_eq!(n_rows, 100 * u64::from(n_used), "{name} {tensor}");
            assert!(experts.counts.iter().filter(|&&n| n > 0).count() > 1);
            for (sums, &n) in experts
                .sums
                .chunks(experts.sums.len() / experts.counts.len())
                .zip(&experts.counts)
            {
                assert_eq!(sums.iter().any(|&sum| sum > 0.0), n > 0, "{name} {tensor}");
            }
        }
        let experts = entry("ffn_gate_exps");
        assert_eq!(experts, entry("ffn_up_exps"));
        for column in 0..width {
            let sums = experts.sums.iter().skip(column).step_by(width);
            let total: f32 = sums.sum();
            let expected = router.sums[column] * n_used as f32;
            assert!((total / expected - 1.0).abs() < 1e-4, "{name} {column}");
        }
    }
}
