//! Embeddings and scores of `rocmforge_testkit::models::embeddings` against llama.cpp, and on a GPU against the CPU. `cargo
//! xtask embedding-golden` makes the fixture with llama.cpp (llama-cpp-python 0.3.36, K and V in F32).

use std::path::Path;
use std::sync::Arc;

use rocmforge_engine::{
    Device, Engine, EngineConfig, EngineError, Event, FinishReason, KvTokens, Request, RequestError,
};
use rocmforge_gguf::{GgmlType, Gguf, Writer};
use rocmforge_model::{Embedding, LoadError, Model, PooledTokens, Pooling, Purpose};
use rocmforge_plan::KvType;
use rocmforge_testkit::models::embeddings::{self, CASES, LENGTHS};
use rocmforge_testkit::models::prompt;

use crate::common::cases::test_cases;
use crate::common::{exact_gpu, read_json};

fn gguf(name: &str, ty: GgmlType) -> Arc<Gguf> {
    let writer = embeddings::model(name, ty).unwrap().unwrap();
    Arc::new(Gguf::from_vec(writer.to_vec().unwrap()).unwrap())
}

fn load(name: &str, ty: GgmlType, pooling: Pooling) -> Model {
    let purpose = Purpose::Embeddings(Some(pooling));
    Model::load_for(purpose, gguf(name, ty), &[]).unwrap()
}

fn pooling(name: &str) -> Pooling {
    let mut all = Pooling::ALL.into_iter();
    all.find(|pooling| pooling.name() == name).unwrap()
}

fn config() -> EngineConfig {
    EngineConfig {
        n_ctx: Some(256),
        kv_tokens: KvTokens::Exactly(1024),
        kv_types: KvType::F32.into(),
        ..EngineConfig::default()
    }
}

/// Returns the results of all texts, which share steps if they fit.
fn embed(engine: &mut Engine, embedding: &Embedding, texts: &[Vec<u32>]) -> Vec<Vec<f32>> {
    let submit = |text: &Vec<u32>| {
        let request = Request::embedding(text.clone(), embedding.tokens);
        engine.submit(request).unwrap()
    };
    let ids: Vec<_> = texts.iter().map(submit).collect();
    let mut results = vec![Vec::new(); texts.len()];
    while !engine.is_idle() {
        for event in engine.step().unwrap() {
            if let Event::Embedding { request, values } = event {
                let at = ids.iter().position(|id| *id == request).unwrap();
                assert!(results[at].is_empty(), "one embedding of each text");
                results[at] = values;
                embedding.finish(&mut results[at]);
            }
        }
        engine.check_integrity().unwrap();
    }
    results
}

/// Returns 1 minus the cosine of the angle between two vectors.
fn distance(a: &[f32], b: &[f32]) -> f64 {
    let dot = |a: &[f32], b: &[f32]| -> f64 {
        let pairs = a.iter().zip(b);
        pairs.map(|(&a, &b)| f64::from(a) * f64::from(b)).sum()
    };
    1.0 - dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}

test_cases! {
    embeddings_match_llama_cpp:
    bert("bert"), bert_scores("bert_scores"), bert_labels("bert_labels"), nomic_bert("nomic_bert"),
    nomic_bert_moe("nomic_bert_moe"), jina_bert_v2("jina_bert_v2"), jina_bert_v2_code("jina_bert_v2_code"),
    jina_bert_v2_scores("jina_bert_v2_scores"), llama_embed("llama_embed"), eurobert("eurobert"), neo_bert("neo_bert"),
    jina_bert_v3("jina_bert_v3"), modern_bert("modern_bert"), modern_bert_silu("modern_bert_silu"), modern_bert_scores("modern_bert_scores"),
    gemma_embedding("gemma_embedding"), qwen3_embedding("qwen3_embedding"), qwen3_scores("qwen3_scores"),
    nomic_bert_thirds("nomic_bert_thirds"), nomic_bert_moe_small("nomic_bert_moe_small"),
    jina_bert_v3_wide("jina_bert_v3_wide"), gemma_embedding_wide("gemma_embedding_wide"),
    llama_embed_thirds("llama_embed_thirds"), eurobert_single("eurobert_single"),
    neo_bert_scores("neo_bert_scores"),
}

/// Each text alone, and all together.
fn embeddings_match_llama_cpp(name: &str) {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let golden = read_json(&fixtures.join("embeddings.json"));
    let case = CASES.iter().find(|case| case.name == name).unwrap();
    // llama.cpp computes GELU with a table of f16 values.
    let (farthest, widest) = match name {
        "nomic_bert" | "modern_bert_silu" | "qwen3_embedding" | "qwen3_scores" | "llama_embed"
        | "eurobert" | "neo_bert" => (1e-11, 1e-5),
        _ => (1e-6, 3e-3),
    };
    for how in case.poolings {
        let model = load(name, GgmlType::F32, pooling(how));
        let embedding = model.config.embedding.clone().unwrap();
        let mut engine = Engine::on_cpu(&model, None, &config()).unwrap();
        let texts = LENGTHS.map(|n| prompt(n, model.config.n_vocab));
        let together = embed(&mut engine, &embedding, &texts);
        for (i, text) in texts.iter().enumerate() {
            let n_tokens = text.len();
            let alone = embed(&mut engine, &embedding, std::slice::from_ref(text));
            assert_eq!(alone[0], together[i], "{name} {how}, {n_tokens} tokens");
            let expected = golden[format!("{name} {how}")][n_tokens.to_string()].as_array();
            let expected: Vec<f32> = expected
                .unwrap()
                .iter()
                .map(|x| x.as_f64().unwrap() as f32)
                .collect();
            let got = embeddings::kept(&alone[0]);
            assert_eq!(got.len(), expected.len());
            let d = distance(&got, &expected);
            println!("{name} {how}, {n_tokens} tokens: {d:.1e}");
            if *how != "rank" {
                assert!(d <= farthest, "{name} {how}, {n_tokens} tokens: {d:e}");
            }
            // A score may be near 0.
            let least = if *how == "rank" { 0.3 } else { 0.0 };
            let reach = expected
                .iter()
                .fold(least, |most: f32, x| most.max(x.abs()));
            for (got, expected) in got.iter().zip(&expected) {
                let is_near = (got - expected).abs() <= widest * reach;
                assert!(
                    is_near,
                    "{name} {how}, {n_tokens} tokens: {got}, expected {expected}"
                );
            }
        }
    }
}

/// Types in which activations are converted, too.
#[test]
fn embeddings_of_other_types_match_llama_cpp() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let golden = read_json(&fixtures.join("embeddings.json"));
    for (name, ty) in embeddings::QUANTIZED {
        let case = CASES.iter().find(|case| case.name == name).unwrap();
        let how = case.poolings[0];
        let model = load(name, ty, pooling(how));
        let embedding = model.config.embedding.clone().unwrap();
        let mut engine = Engine::on_cpu(&model, None, &config()).unwrap();
        let texts = LENGTHS.map(|n| prompt(n, model.config.n_vocab));
        let all = embed(&mut engine, &embedding, &texts);
        for (n_tokens, got) in LENGTHS.into_iter().zip(all) {
            let entry = &golden[format!("{name} {} {how}", ty.name())];
            let expected = entry[n_tokens.to_string()].as_array().unwrap().iter();
            let expected: Vec<f32> = expected.map(|x| x.as_f64().unwrap() as f32).collect();
            let d = distance(&embeddings::kept(&got), &expected);
            let ty = ty.name();
            println!("{name} {ty}, {n_tokens} tokens: {d:.1e}");
            assert!(d <= 1e-3, "{name} {ty}, {n_tokens} tokens: {d:e}");
        }
    }
}

#[test]
fn the_cases_cover_every_model() {
    for case in CASES {
        let name = format!("\"{}\"", case.name);
        let tested = embeddings_match_llama_cpp::ARGUMENTS;
        assert!(tested.contains(&name.as_str()), "{name}");
    }
}

test_cases! {
    embeddings_on_a_gpu_match_the_cpu:
    bert("bert"), bert_scores("bert_scores"), nomic_bert("nomic_bert"), nomic_bert_moe("nomic_bert_moe"),
    jina_bert_v2("jina_bert_v2"), jina_bert_v2_code("jina_bert_v2_code"), modern_bert("modern_bert"),
    gemma_embedding("gemma_embedding"), qwen3_scores("qwen3_scores"), jina_bert_v2_scores("jina_bert_v2_scores"),
    llama_embed("llama_embed"), eurobert("eurobert"), neo_bert("neo_bert"),
    nomic_bert_thirds("nomic_bert_thirds"), nomic_bert_moe_small("nomic_bert_moe_small"),
    jina_bert_v3_wide("jina_bert_v3_wide"), gemma_embedding_wide("gemma_embedding_wide"),
    llama_embed_thirds("llama_embed_thirds"), eurobert_single("eurobert_single"),
    neo_bert_scores("neo_bert_scores"),
}

/// docs/MODELS.md is made from this list.
#[test]
fn the_listed_models_are_compared() {
    let listed = embeddings::ON_GPU.map(|name| format!("\"{name}\""));
    assert_eq!(embeddings_on_a_gpu_match_the_cpu::ARGUMENTS, listed);
}

fn embeddings_on_a_gpu_match_the_cpu(name: &str) {
    let Some(gpu) = exact_gpu() else { return };
    let case = CASES.iter().find(|case| case.name == name).unwrap();
    let model = load(name, GgmlType::F16, pooling(case.poolings[0]));
    let embedding = model.config.embedding.clone().unwrap();
    let config = |device: &Device| EngineConfig {
        n_ctx: Some(96),
        kv_tokens: KvTokens::Exactly(256),
        ..EngineConfig::default().on(device.clone())
    };
    let texts = [1, 7, 33, 70].map(|n| prompt(n, model.config.n_vocab));
    let [expected, got] = [Device::Cpu, Device::Gpu(gpu)].map(|device| {
        let mut engine = Engine::start(&model, None, &config(&device)).unwrap();
        embed(&mut engine, &embedding, &texts)
    });
    for (text, (got, expected)) in texts.iter().zip(got.iter().zip(&expected)) {
        let reach = expected.iter().fold(0f32, |most, x| most.max(x.abs()));
        for (got, expected) in got.iter().zip(expected) {
            let is_near = (got - expected).abs() <= 2e-3 * reach;
            assert!(
                is_near,
                "{name}, {} tokens: {got}, expected {expected}",
                text.len()
            );
        }
    }
}

/// What a text is loaded for decides what requests may ask for.
#[test]
fn text_and_embeddings_exclude_each_other() {
    let refused = |engine: &mut Engine, request: Request| match engine.submit(request) {
        Err(EngineError::Request(error)) => error,
        other => panic!("{other:?}"),
    };
    let model = load("qwen3_embedding", GgmlType::F32, Pooling::Last);
    let mut engine = Engine::on_cpu(&model, None, &config()).unwrap();
    let error = refused(&mut engine, Request::greedy(vec![1], 1));
    assert!(
        matches!(error, RequestError::LoadedForEmbeddings),
        "{error}"
    );
    let error = refused(&mut engine, Request::greedy(vec![1], 0));
    assert!(
        matches!(error, RequestError::LoadedForEmbeddings),
        "{error}"
    );

    let model = Model::load(gguf("qwen3_embedding", GgmlType::F32)).unwrap();
    let mut engine = Engine::on_cpu(&model, None, &config()).unwrap();
    let request = Request::embedding(vec![1], PooledTokens::Last);
    let error = refused(&mut engine, request);
    assert!(matches!(error, RequestError::LoadedForText), "{error}");

    let error = Model::load(gguf("bert", GgmlType::F32)).unwrap_err();
    assert!(matches!(error, LoadError::EmbeddingsOnly { .. }), "{error}");
}

/// A text longer than a step is refused if its tokens see those after them. Otherwise it is computed in several steps.
#[test]
fn whole_texts_must_fit_into_a_step() {
    let config = EngineConfig {
        max_batch_tokens: 64,
        ..config()
    };
    let model = load("bert", GgmlType::F32, Pooling::Mean);
    let mut engine = Engine::on_cpu(&model, None, &config).unwrap();
    let request = |n| Request::embedding(prompt(n, 512), PooledTokens::All);
    let error = engine.submit(request(65)).unwrap_err().to_string();
    assert!(
        error.contains("65 tokens") && error.contains("up to 64"),
        "{error}"
    );
    let id = engine.submit(request(64)).unwrap();
    let mut reason = None;
    engine
        .run(id, |event| {
            if let Event::Finished { reason: why, .. } = event {
                reason = Some(*why);
            }
            std::ops::ControlFlow::Continue(())
        })
        .unwrap();
    assert_eq!(reason, Some(FinishReason::Length));

    let model = load("qwen3_embedding", GgmlType::F32, Pooling::Mean);
    let embedding = model.config.embedding.clone().unwrap();
    let texts = [prompt(130, 512)];
    let [in_steps, at_once] = [64, 256].map(|max_batch_tokens| {
        let config = EngineConfig {
            max_batch_tokens,
            ..config.clone()
        };
        let mut engine = Engine::on_cpu(&model, None, &config).unwrap();
        embed(&mut engine, &embedding, &texts)
    });
    assert_eq!(in_steps, at_once);
}

/// Whatever the metadata says, a model that loads computes finite values or fails with a sentence.
#[test]
fn hostile_metadata_runs_or_is_refused() {
    let values: [rocmforge_gguf::OwnedValue; 9] = [
        0u32.into(),
        1u32.into(),
        2u32.into(),
        7u32.into(),
        u32::MAX.into(),
        f32::MAX.into(),
        1e-30f32.into(),
        false.into(),
        vec![true, false, true].into(),
    ];
    let keys = [
        "attention.causal",
        "attention.head_count",
        "attention.head_count_kv",
        "attention.layer_norm_epsilon",
        "attention.sliding_window",
        "attention.sliding_window_pattern",
        "expert_used_count",
        "moe_every_n_layers",
        "pooling_type",
        "rope.dimension_count",
        "rope.freq_base",
        "rope.freq_base_swa",
    ];
    let mut n_run = 0;
    for name in ["bert", "nomic_bert_moe", "jina_bert_v2_code", "modern_bert"] {
        let gguf = gguf(name, GgmlType::F32);
        let arch = gguf.metadata().str("general.architecture").unwrap();
        for key in keys {
            for value in &values {
                let full = format!("{arch}.{key}");
                let mut writer = Writer::new(arch);
                for (old, value) in gguf.metadata().iter().filter(|(old, _)| *old != full) {
                    writer.set(old, value);
                }
                writer.set(&full, value.clone());
                for info in gguf.tensors() {
                    let data = gguf.tensor_data(info);
                    writer
                        .add_tensor(&info.name, &info.dims, info.ty, data)
                        .unwrap();
                }
                let changed = Arc::new(Gguf::from_vec(writer.to_vec().unwrap()).unwrap());
                let model = match Model::load_for(Purpose::Embeddings(None), changed, &[]) {
                    Ok(model) => model,
                    Err(error) => {
                        let text = error.to_string();
                        assert!(!text.contains('\n') && text.len() < 500, "{text}");
                        continue;
                    }
                };
                let embedding = model.config.embedding.clone().unwrap();
                let mut engine = Engine::on_cpu(&model, None, &config()).unwrap();
                let request = Request::embedding(prompt(20, 512), embedding.tokens);
                let id = engine.submit(request).unwrap();
                let ran = engine.run(id, |_| std::ops::ControlFlow::Continue(()));
                n_run += usize::from(ran.is_ok());
            }
        }
    }
    assert!(n_run > 100, "{n_run}");
}
