//! Log-probabilities that are saved, and the divergence from them.

use std::fs;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use rocmforge_engine::{Engine, EngineConfig};
use rocmforge_evaluate::{
    Divergence, DivergenceError, Perplexity, Row, SavedLogits, SavedLogitsError, SavedLogitsWriter,
    divergence, perplexity, save_logits,
};
use rocmforge_gguf::{Gguf, LoadMode, TokenId};
use rocmforge_model::Model;
use rocmforge_plan::KvType;
use rocmforge_testkit::data::{conformance, forge_mini, models, read_json};
use rocmforge_text::tokenizer::{EncodeOptions, Tokenizer};

const N_CTX: usize = 64;

fn go_on(_: &Perplexity) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

fn engine(model: &Model, n_ctx: usize, kv_type: KvType) -> Engine {
    let config = EngineConfig {
        n_ctx: Some(n_ctx),
        kv_types: kv_type.into(),
        // Does not divide the window length.
        max_batch_tokens: 24,
        ..EngineConfig::default()
    };
    Engine::on_cpu(model, None, &config).unwrap()
}

/// The first tokens of a text for forge-mini.
fn tokens(n: usize) -> Vec<TokenId> {
    let fixture = read_json(&models().join("../crates/evaluate/tests/fixtures/imatrix.json"));
    let tokenizer = Tokenizer::from_gguf(&forge_mini(), None).unwrap();
    let text = fixture["text"].as_str().unwrap().repeat(3);
    let tokens = tokenizer.encode(&text, EncodeOptions::default());
    tokens[..n].to_vec()
}

/// Saves the log-probabilities of `tokens` in a new file.
fn save(path: &Path, model: &Model, tokens: &[TokenId]) -> Perplexity {
    let mut engine = engine(model, N_CTX, KvType::F16);
    let text = (tokens, None);
    let file = fs::File::create(path).unwrap();
    save_logits(&mut engine, text, N_CTX, None, file, &mut go_on).unwrap()
}

fn compare(path: &Path, model: &Model, kv_type: KvType) -> Divergence {
    let mut base = SavedLogits::open(path).unwrap();
    let mut engine = engine(model, base.n_ctx(), kv_type);
    divergence(&mut engine, &mut base, None, None, &mut go_on).unwrap()
}

#[test]
fn a_model_does_not_diverge_from_itself() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("saved");
    let model = Model::load(forge_mini()).unwrap();
    // The rest is no whole window.
    let tokens = tokens(3 * N_CTX + 5);
    let saved = save(&path, &model, &tokens);
    let mut engine = engine(&model, N_CTX, KvType::F16);
    let scored = perplexity(&mut engine, &tokens, None, N_CTX, None, go_on).unwrap();
    assert!(
        (saved.ppl / scored.ppl - 1.0).abs() < 1e-5,
        "{saved:?} {scored:?}"
    );
    assert_eq!([saved.chunks, saved.tokens], [scored.chunks, scored.tokens]);

    let same = compare(&path, &model, KvType::F16);
    assert_eq!(
        (same.perplexity.ppl, same.perplexity.chunks),
        (saved.ppl, 3)
    );
    // Saved numbers are rounded to 16 / 65535, and the least likely tokens are left out. How much that is differs by CPU.
    assert!(same.kl.mean.abs() < 2e-6 && same.kl_max < 1e-4, "{same:?}");
    assert!(
        same.base_ppl <= saved.ppl * 1.001 && same.same_top.mean == 1.0,
        "{same:?}"
    );

    let other = compare(&path, &model, KvType::Q4_0);
    assert!(
        other.kl.mean > 1e-4 && other.kl.mean > 50.0 * same.kl.mean.abs(),
        "{other:?}"
    );
    assert!(other.kl_median <= other.kl_99 && other.kl_99 <= other.kl_max);
    assert!(other.probability_rms > same.probability_rms);
}

/// The divergence of a distribution from another one, computed from both.
#[test]
fn rows_have_the_probabilities_of_logits() {
    let logits: Vec<f32> = (0..301)
        .map(|i| ((i * 37 % 101) as f32 - 50.0) * 0.3)
        .collect();
    let sum: f64 = logits.iter().map(|&x| f64::from(x).exp()).sum();
    let most = logits.iter().fold(f32::MIN, |most, &x| most.max(x));
    let row = Row::new(&logits);
    assert_eq!(row.n_vocab(), logits.len());
    for (token, &x) in logits.iter().enumerate() {
        let exact = f64::from(x) - sum.ln();
        let least = f64::from(most) - 16.0 - sum.ln();
        let error = (f64::from(row.log_prob(token)) - exact.max(least)).abs();
        assert!(error < 2e-4, "token {token}: {error}");
    }
    // Equal logits.
    let flat = Row::new(&[2.0; 8]);
    assert!((flat.log_prob(3) - 0.125f32.ln()).abs() < 1e-6);
}

/// The bytes of a file as `llama-perplexity` writes it.
fn bytes(n_vocab: usize) -> Vec<u8> {
    let mut bytes = b"_logits_".to_vec();
    for number in [4, n_vocab as i32, 1, 7, 1, 2, 3] {
        bytes.extend(i32::to_le_bytes(number));
    }
    bytes.extend(0.5f32.to_le_bytes());
    bytes.extend((-8.0f32).to_le_bytes());
    let codes = (0..n_vocab.next_multiple_of(2)).map(|i| i as u16);
    bytes.extend(codes.flat_map(u16::to_le_bytes));
    bytes
}

#[test]
fn files_have_the_format_of_llama_cpp() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("saved");
    fs::write(&path, bytes(9)).unwrap();
    let mut saved = SavedLogits::open(&path).unwrap();
    assert_eq!(
        (saved.n_ctx(), saved.n_vocab(), saved.tokens()),
        (4, 9, &[7, 1, 2, 3][..])
    );
    let mut row = Row::default();
    saved.read(&mut row).unwrap();
    assert_eq!([row.log_prob(0), row.log_prob(8)], [-8.0, -4.0]);
    let mut written = Vec::new();
    let mut writer = SavedLogitsWriter::new(&mut written, saved.tokens(), 4, 9).unwrap();
    writer.write(&row).unwrap();
    writer.finish().unwrap();
    let mut expected = bytes(9);
    // The code that fills up the row.
    expected[20 + 16 + 8 + 18..].fill(0);
    assert_eq!(written, expected);
}

#[test]
fn damaged_files_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("saved");
    let whole = bytes(9);
    let refused = |bytes: &[u8]| -> String {
        fs::write(&path, bytes).unwrap();
        let Err(error) = SavedLogits::open(&path) else {
            panic!("{} bytes are not refused", bytes.len())
        };
        error.to_string()
    };
    for n in 0..whole.len() {
        refused(&whole[..n]);
    }
    refused(&[&whole[..], &[0]].concat());
    for at in 0..8 {
        let mut bytes = whole.clone();
        bytes[at] ^= 1;
        assert!(refused(&bytes).contains("--save-logits"));
    }
    // Sizes, of which no memory is reserved.
    for at in [8, 12, 16] {
        for number in [0, 1, 3, -1, i32::MIN, i32::MAX] {
            let mut bytes = whole.clone();
            bytes[at..at + 4].copy_from_slice(&i32::to_le_bytes(number));
            if bytes != whole {
                refused(&bytes);
            }
        }
    }
    for token in [-1, 9, i32::MAX] {
        let mut bytes = whole.clone();
        bytes[28..32].copy_from_slice(&i32::to_le_bytes(token));
        assert!(refused(&bytes).contains("not in its vocabulary"));
    }
    assert!(SavedLogits::open(dir.path()).is_err());
    // The scale of a row, and its least number.
    for (at, number) in [
        (36, f32::NAN),
        (36, f32::MAX),
        (40, f32::NAN),
        (40, f32::INFINITY),
    ] {
        let mut bytes = whole.clone();
        bytes[at..at + 4].copy_from_slice(&number.to_le_bytes());
        fs::write(&path, &bytes).unwrap();
        let result = SavedLogits::open(&path).unwrap().read(&mut Row::default());
        assert!(matches!(result, Err(SavedLogitsError::NotFinite)));
    }

    // Of another vocabulary.
    fs::write(&path, &whole).unwrap();
    let mut base = SavedLogits::open(&path).unwrap();
    let model = Model::load(forge_mini()).unwrap();
    let mut engine = engine(&model, 16, KvType::F16);
    let result = divergence(&mut engine, &mut base, None, None, &mut go_on);
    let Err(DivergenceError::Saved(SavedLogitsError::Vocabulary { got, wanted })) = result else {
        panic!("{result:?}")
    };
    assert_eq!([got, wanted], [9, model.config.n_vocab]);
}

/// The expected values are those of llama.cpp (commit 0c1e5709) on a CPU, of the F16 file's saved log-probabilities:
/// `llama-perplexity --kl-divergence --kl-divergence-base FILE -c 256`.
#[test]
#[ignore = "exhaustive: run by .ci/run --full"]
fn divergence_of_quantized_models_matches_llama_cpp() {
    let Some(folder) = conformance("models") else {
        return;
    };
    let load = |name: &str| {
        let path = folder.join(format!("forge-mini-{name}.gguf"));
        Arc::new(Gguf::open(&path, LoadMode::Mmap).unwrap())
    };
    let base = load("F16");
    let tokenizer = Tokenizer::from_gguf(&base, None).unwrap();
    let options = EncodeOptions {
        add_special: true,
        parse_special: false,
    };
    let text = fs::read(folder.join("heldout.txt")).unwrap();
    let tokens = tokenizer.encode_bytes(&text, options);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("saved");
    let model = Model::load(base).unwrap();
    let mut from = engine(&model, 256, KvType::F16);
    let text = (&tokens[..], None);
    let file = fs::File::create(&path).unwrap();
    save_logits(&mut from, text, 256, Some(8), file, &mut go_on).unwrap();
    for (name, [kl, stderr], same_top) in [
        ("Q4_K_M", [0.001_488, 0.000_468], 0.9626),
        ("Q8_0", [0.000_041, 0.000_007], 0.989_17),
    ] {
        let model = Model::load(load(name)).unwrap();
        let got = compare(&path, &model, KvType::F16);
        println!("{name}: {got:?}");
        assert!((got.kl.mean - kl).abs() < stderr, "{name}: {:?}", got.kl);
        assert!((got.same_top.mean - same_top).abs() < 0.005, "{name}");
    }
}
