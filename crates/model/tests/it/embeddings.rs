//! Files of models for embeddings with other metadata and without tensors: each is loaded, or refused with a sentence that
//! names the key or tensor.

use std::sync::Arc;

use rocmforge_gguf::{GgmlType, Gguf, OwnedValue};
use rocmforge_model::{LoadError, Model, PooledTokens, Pooling, Purpose};
use rocmforge_testkit::models::embeddings::{self, CASES};

use crate::plans::{open, rewritten};

const KEYS: [&str; 12] = [
    "attention.causal",
    "attention.layer_norm_epsilon",
    "attention.sliding_window",
    "attention.sliding_window_pattern",
    "classifier.output_labels",
    "classifier.pooling_type",
    "context_length",
    "expert_count",
    "expert_used_count",
    "hidden_activation",
    "moe_every_n_layers",
    "pooling_type",
];

fn load(gguf: &Arc<Gguf>) -> Result<Model, LoadError> {
    Model::load_for(Purpose::Embeddings(None), gguf.clone(), &[])
}

fn file(name: &str) -> Arc<Gguf> {
    open(&embeddings::model(name, GgmlType::Q8_0).unwrap().unwrap())
}

#[test]
fn hostile_metadata_is_refused_with_a_sentence() {
    for case in CASES {
        let name = case.name;
        let gguf = file(name);
        let arch = gguf.metadata().str("general.architecture").unwrap();
        load(&gguf).unwrap_or_else(|error| panic!("{name}: {error}"));
        for key in KEYS {
            let full = format!("{arch}.{key}");
            for value in values() {
                let mut changed = rewritten(&gguf, |it| it != full, |it| (it.to_string(), None));
                let what = format!("{name}: {key} = {value:?}");
                if let Some(value) = value {
                    changed.set(&full, value);
                }
                if let Err(error) = load(&open(&changed)) {
                    let names_another = error.to_string().contains("metadata `");
                    let is_named = names_another || names_its_reason(&error, key);
                    assert!(is_named, "{what}: {error}");
                }
            }
        }
    }
}

/// Each tensor of the file is needed, or may be missing: biases, token types, and norms that few models have.
#[test]
fn files_without_a_tensor_are_refused() {
    let optional = |name: &str| {
        let parts = [
            "attn_q_norm",
            "attn_k_norm",
            "attn_norm_2",
            "token_types",
            "dense_2",
            "cls.weight",
        ];
        (name.ends_with(".bias") && !name.contains("norm"))
            || parts.iter().any(|part| name.contains(part))
    };
    for case in CASES {
        let name = case.name;
        let gguf = file(name);
        for info in gguf.tensors() {
            let missing = rewritten(&gguf, |it| it != info.name, |it| (it.to_string(), None));
            match load(&open(&missing)) {
                // A network without gates.
                Ok(_) if name.starts_with("jina_bert_v2") && info.name.contains("ffn_gate") => {}
                Ok(_) if name.starts_with("modern_bert") && info.name == "cls.norm.weight" => {}
                Ok(_) => assert!(optional(&info.name), "{name} loads without {}", info.name),
                Err(error) => assert!(
                    error.to_string().contains("tensor `"),
                    "{name} without {}: {error}",
                    info.name
                ),
            }
        }
    }
}

/// What the file says, what the user asks for, and what the architecture takes otherwise.
#[test]
fn the_pooling_follows_from_file_and_user() {
    let with = |name: &str, key: &str, number: u32| {
        let gguf = file(name);
        let arch = gguf.metadata().str("general.architecture").unwrap();
        let full = format!("{arch}.{key}");
        let mut changed = rewritten(&gguf, |it| it != full, |it| (it.to_string(), None));
        changed.set(&full, number);
        open(&changed)
    };
    let pooling = |gguf: &_, wanted| {
        let purpose = Purpose::Embeddings(wanted);
        let model = Model::load_for(purpose, Arc::clone(gguf), &[]).unwrap();
        let embedding = model.config.embedding.unwrap();
        (embedding.pooling, embedding.tokens)
    };
    let [mean, cls, last] = [
        (Pooling::Mean, PooledTokens::All),
        (Pooling::Cls, PooledTokens::First),
        (Pooling::Last, PooledTokens::Last),
    ];
    assert_eq!(pooling(&file("bert"), None), mean);
    assert_eq!(pooling(&file("qwen3_embedding"), None), last);
    for (number, expected) in [(0, mean), (1, mean), (2, cls), (3, last)] {
        let gguf = with("bert", "pooling_type", number);
        assert_eq!(pooling(&gguf, None), expected, "{number}");
        assert_eq!(pooling(&gguf, Some(Pooling::Cls)), cls);
    }
    let rank = |tokens| (Pooling::Rank, tokens);
    assert_eq!(
        pooling(&file("bert_scores"), None),
        rank(PooledTokens::First)
    );
    assert_eq!(
        pooling(&file("qwen3_scores"), None),
        rank(PooledTokens::Last)
    );
    let gguf = with("qwen3_scores", "classifier.pooling_type", 2);
    assert_eq!(pooling(&gguf, None), rank(PooledTokens::First));
}

/// What a file has beside the hidden values is left out by name.
#[test]
fn heads_that_nothing_needs_are_left_out() {
    let skipped = |name: &str, purpose| {
        let model = Model::load_for(purpose, file(name), &[]).unwrap();
        let names = model.skipped.into_iter().map(|skipped| skipped.name);
        names.collect::<Vec<_>>()
    };
    assert_eq!(
        skipped("qwen3_scores", Purpose::Text),
        ["cls.output.weight"]
    );
    let mean = Purpose::Embeddings(Some(Pooling::Mean));
    let cls = [
        "cls.weight",
        "cls.bias",
        "cls.output.weight",
        "cls.output.bias",
    ];
    let mut found = skipped("bert_scores", mean);
    found.sort();
    let mut expected = cls.to_vec();
    expected.sort();
    assert_eq!(found, expected);
    let llama = rocmforge_testkit::models::model("llama", GgmlType::Q8_0);
    let llama = open(&llama.unwrap().unwrap());
    let model = Model::load_for(mean, llama, &[]).unwrap();
    let names: Vec<&str> = model.skipped.iter().map(|it| it.name.as_str()).collect();
    assert_eq!(names, ["output.weight"]);
}

fn values() -> Vec<Option<OwnedValue>> {
    vec![
        None,
        Some(0u32.into()),
        Some(1u32.into()),
        Some(3u32.into()),
        Some(u32::MAX.into()),
        Some(u64::MAX.into()),
        Some((-1i32).into()),
        Some(2.5f32.into()),
        Some(f32::NAN.into()),
        Some(f32::MAX.into()),
        Some(true.into()),
        Some("text".into()),
        Some(vec![1i32, 2].into()),
        Some(vec![false; 5000].into()),
    ]
}

/// Whether an error names a key, a tensor or what is not supported.
fn names_its_reason(error: &LoadError, key: &str) -> bool {
    let text = error.to_string();
    let reasons = [key, "metadata key '", "tensor `", "which is not supported"];
    reasons.iter().any(|reason| text.contains(reason))
}
