//! LoRA adapters on the CPU, against llama.cpp and against merged weights; and rejection of invalid adapters.

use rocmforge_model::LoadError;
use rocmforge_testkit::models as synth;
use std::path::Path;
use std::sync::Arc;

use crate::common::cases::for_each_model;
use crate::common::{greedy, logits, read_json};
use rocmforge_engine::{Engine, EngineConfig};
use rocmforge_gguf::{GgmlType, Gguf, OwnedValue, Writer, quant};
use rocmforge_model::{Adapter, Model};
use rocmforge_plan::KvType;
use rocmforge_testkit::adapters::{
    VARIANTS, adapter, adapter_of, add_product, is_embedding, rank_and_alpha,
};
use rocmforge_testkit::exact;
use rocmforge_testkit::sweep::is_full_run;

fn open(writer: &Writer<'_>) -> Arc<Gguf> {
    Arc::new(Gguf::from_vec(writer.to_vec().unwrap()).unwrap())
}

fn base(name: &str, ty: GgmlType) -> Arc<Gguf> {
    open(&synth::model(name, ty).unwrap().unwrap())
}

/// Returns adapters for `model` by seed and scale.
fn adapters_of(model: &Gguf, list: &[(&str, f32)]) -> Vec<Adapter> {
    let one = |&(seed, scale): &(&str, f32)| {
        Adapter::new(seed, open(&adapter(model, seed).unwrap()), scale).unwrap()
    };
    list.iter().map(one).collect()
}

/// Returns the logits at every position.
fn all_logits(model: &Model, config: EngineConfig, prompt: &[u32]) -> Vec<Vec<f32>> {
    let config = EngineConfig {
        n_ctx: Some(prompt.len() + 8),
        ..config
    };
    logits(&mut Engine::on_cpu(model, None, &config).unwrap(), prompt)
}

/// Returns a configuration with an F32 cache.
fn exact() -> EngineConfig {
    EngineConfig {
        kv_types: KvType::F32.into(),
        ..EngineConfig::default()
    }
}

#[test]
fn logits_match_llama_cpp() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let golden = read_json(&fixtures.join("variants.json"));
    for variant in &VARIANTS {
        let gguf = base(variant.model, GgmlType::F32);
        let adapters = adapters_of(&gguf, variant.adapters);
        let model = Model::load_with(gguf, &adapters).unwrap();
        // With keys in Q8_0, llama.cpp also quantizes queries, and it rounds the running sum over values to F16.
        let (kv_type, bound) = match variant.kv_type {
            "Q8_0" => (KvType::Q8_0, 3e-2),
            _ => (KvType::F32, 1e-3),
        };
        for (n_tokens, expected) in golden[variant.name].as_object().unwrap() {
            let prompt = synth::prompt(n_tokens.parse().unwrap(), model.config.n_vocab);
            let config = EngineConfig {
                kv_types: kv_type.into(),
                ..EngineConfig::default()
            };
            let rows = all_logits(&model, config, &prompt);
            let got = rows.last().unwrap().iter().step_by(37);
            let expected: Vec<f64> = expected
                .as_array()
                .unwrap()
                .iter()
                .map(|logit| logit.as_f64().unwrap())
                .collect();
            assert_eq!(got.len(), expected.len());
            let reach = expected.iter().fold(0f64, |most, x| most.max(x.abs()));
            let error = got
                .zip(&expected)
                .fold(0f64, |most, (got, x)| most.max((f64::from(*got) - x).abs()));
            println!("{}, {n_tokens} tokens: {:.1e}", variant.name, error / reach);
            assert!(
                error < bound * reach,
                "{}, {n_tokens} tokens: error {error} of {reach}",
                variant.name
            );
        }
    }
}

fn values(gguf: &Gguf, name: &str) -> Vec<f64> {
    let info = gguf.tensor(name).unwrap();
    let mut values = vec![0.0; info.n_elements() as usize];
    quant::dequantize(info.ty, gguf.tensor_data(info), &mut values).unwrap();
    exact::widened(&values)
}

/// Returns the model with every `W` replaced by `W + factor * B A`, in F32. Tied embeddings become separate.
fn merged(model: &Gguf, adapters: &[(Arc<Gguf>, f64)]) -> Model {
    let mut writer = Writer::new("");
    for (key, value) in model.metadata().iter() {
        writer.set(key, OwnedValue::from(value));
    }
    if model.tensor("output.weight").is_none() {
        let info = model.tensor("token_embd.weight").unwrap();
        let data = model.tensor_data(info).to_vec();
        let added = writer.add_tensor("output.weight", &info.dims, info.ty, data);
        added.unwrap();
    }
    for info in model.tensors() {
        let mut sum = values(model, &info.name);
        for (adapter, factor) in adapters {
            let part = |suffix: &str| format!("{}.{suffix}", info.name);
            if adapter.tensor(&part("lora_a")).is_none() {
                continue;
            }
            let (a, b) = (
                values(adapter, &part("lora_a")),
                values(adapter, &part("lora_b")),
            );
            let n_in = info.dims[0] as usize;
            let rank = adapter.tensor(&part("lora_b")).unwrap().dims[0] as usize;
            let of_rank = ([&a[..], &b], rank, *factor);
            add_product(&mut sum, n_in, of_rank, is_embedding(&info.name));
        }
        let sum = exact::narrowed(&sum);
        writer
            .add_tensor_f32(&info.name, &info.dims, GgmlType::F32, &sum)
            .unwrap();
    }
    Model::load(open(&writer)).unwrap()
}

/// Returns the norm of the difference divided by the norm of `b`.
fn difference(a: &[Vec<f32>], b: &[Vec<f32>]) -> f64 {
    let pairs = a.iter().flatten().zip(b.iter().flatten());
    let squares = pairs.map(|(a, b)| f64::from(a - b).powi(2)).sum::<f64>();
    let size: f64 = b.iter().flatten().map(|x| f64::from(*x).powi(2)).sum();
    (squares / size).sqrt()
}

for_each_model!(adapters_match_merged_weights);

fn adapters_match_merged_weights(name: &str) {
    let prompt = synth::prompt(40, 512);
    // Adapters of more layers take the same path.
    let gguf = match is_full_run() {
        true => base(name, GgmlType::F32),
        false => open(&synth::model_of(name, GgmlType::F32, 2).unwrap().unwrap()),
    };
    let plain = Model::load(Arc::clone(&gguf)).unwrap();
    let list = [("one", 0.7f32), ("two", -1.5)];
    // Tied embeddings too.
    let files: Vec<(Arc<Gguf>, f64)> = list
        .iter()
        .map(|&(seed, scale)| {
            let (rank, alpha) = rank_and_alpha(seed);
            let factor = match alpha {
                0.0 => 1.0,
                alpha => f64::from(alpha) / rank as f64,
            };
            // Not factors of products as they are in the file, and no rank above that of the matrix.
            let takes = |name: &str| {
                name != "position_embd.weight"
                    && !name.ends_with("attn_kv_b.weight")
                    && !name.contains("altup_")
                    && !plain.skipped.iter().any(|tensor| tensor.name == name)
            };
            let file = open(&adapter_of(&gguf, seed, takes).unwrap());
            (file, factor * f64::from(scale))
        })
        .collect();
    let adapters: Vec<Adapter> = files
        .iter()
        .zip(list)
        .map(|((file, _), (seed, scale))| Adapter::new(seed, Arc::clone(file), scale).unwrap())
        .collect();
    let changed = Model::load_with(Arc::clone(&gguf), &adapters).unwrap();
    let merged = merged(&gguf, &files);
    let [plain, changed, merged] =
        [plain, changed, merged].map(|model| all_logits(&model, exact(), &prompt));
    let error = difference(&changed, &merged);
    println!("{name}: {error:.1e}");
    assert!(error < 1e-5, "{name}: {error}");
    assert!(difference(&plain, &merged) > 0.1, "{name}");
}

/// Checks quantized base weights, and factors of the types that converters write.
#[test]
fn factors_may_have_any_type() {
    let prompt = synth::prompt(20, 512);
    let gguf = base("llama", GgmlType::F32);
    let original = open(&adapter(&gguf, "one").unwrap());
    let run = |base: &Arc<Gguf>, ty: GgmlType| {
        let mut writer = Writer::new("llama");
        for (key, value) in original.metadata().iter() {
            writer.set(key, OwnedValue::from(value));
        }
        for info in original.tensors() {
            let exact: Vec<f32> = values(&original, &info.name)
                .into_iter()
                .map(|x| x as f32)
                .collect();
            // Rows of the rank are shorter than a block.
            let ty = match info.dims[0] % ty.block_len() as u64 {
                0 => ty,
                _ => GgmlType::F16,
            };
            writer
                .add_tensor_f32(&info.name, &info.dims, ty, &exact)
                .unwrap();
        }
        let adapter = Adapter::new("typed", open(&writer), 1.0).unwrap();
        let model = Model::load_with(Arc::clone(base), &[adapter]).unwrap();
        all_logits(&model, exact(), &prompt)
    };
    let expected = run(&gguf, GgmlType::F32);
    for (ty, bound) in [
        (GgmlType::F16, 2e-3),
        (GgmlType::BF16, 2e-2),
        (GgmlType::Q8_0, 4e-2),
    ] {
        let error = difference(&run(&gguf, ty), &expected);
        println!("adapter in {}: {error:.1e}", ty.name());
        assert!(error > 0.0 && error < bound, "{}: {error}", ty.name());
    }
    // GEMMs with quantized weights round activations, which has a large effect with random weights.
    let blocks = base("llama", GgmlType::Q8_0);
    let error = difference(&run(&blocks, GgmlType::F16), &expected);
    let plain = all_logits(&Model::load(blocks).unwrap(), exact(), &prompt);
    let effect = difference(&plain, &expected);
    println!("model in Q8_0: {error:.1e}, without the adapter {effect:.1e}");
    assert!(error < 0.1 && effect > 3.0 * error, "{error} {effect}");
}

#[test]
fn adapter_of_scale_0_is_bit_identical_to_none() {
    let prompt = synth::prompt(30, 512);
    for name in ["llama", "phi3"] {
        let gguf = base(name, GgmlType::Q8_0);
        let off = adapters_of(&gguf, &[("one", 0.0)]);
        let plain = Model::load(Arc::clone(&gguf)).unwrap();
        let changed = Model::load_with(gguf, &off).unwrap();
        assert_eq!(
            all_logits(&changed, exact(), &prompt),
            all_logits(&plain, exact(), &prompt),
            "{name}"
        );
    }
}

#[test]
fn chunked_prefill_is_bit_identical() {
    let gguf = base("phi3", GgmlType::Q8_0);
    let adapters = adapters_of(&gguf, &[("one", 1.0), ("two", 0.5)]);
    let model = Model::load_with(gguf, &adapters).unwrap();
    let prompt = synth::prompt(70, 512);
    let run = |max_batch_tokens, n_threads| {
        let config = EngineConfig {
            max_batch_tokens,
            max_seqs: 1,
            n_threads: Some(n_threads),
            ..EngineConfig::default()
        };
        let rows = all_logits(&model, config, &prompt);
        let bits = |row: Vec<f32>| row.into_iter().map(f32::to_bits).collect::<Vec<_>>();
        rows.into_iter().map(bits).collect::<Vec<_>>()
    };
    let whole = run(512, 2);
    for (max_batch_tokens, n_threads) in [(1, 1), (3, 2), (17, 3)] {
        assert!(
            run(max_batch_tokens, n_threads) == whole,
            "{max_batch_tokens}"
        );
    }
    let mut engine = Engine::on_cpu(&model, None, &EngineConfig::default()).unwrap();
    assert_eq!(greedy(&mut engine, &prompt, 8).len(), 8);
}

/// A label, a change to an adapter of the first layer's `attn_q`, and a part of the error; empty if it is valid.
type Break = (&'static str, fn(&mut Parts), &'static str);

/// The parts of an adapter file.
struct Parts {
    facts: Vec<(&'static str, OwnedValue)>,
    /// Name, dimensions, value of all elements.
    tensors: Vec<(&'static str, Vec<u64>, f32)>,
    scale: f32,
}

impl Parts {
    fn set(&mut self, key: &'static str, value: impl Into<OwnedValue>) {
        self.facts.retain(|(known, _)| *known != key);
        self.facts.push((key, value.into()));
    }
}

#[test]
fn rejects_invalid_and_mismatched_adapters() {
    let model = base("llama", GgmlType::F32);
    let cases: [Break; 21] = [
        ("whole", |_| {}, ""),
        (
            "a model",
            |p| p.set("general.type", "model"),
            "general.type is `model`",
        ),
        (
            "no type",
            |p| p.facts.retain(|(key, _)| *key != "general.type"),
            "general.type is missing",
        ),
        (
            "another kind",
            |p| p.set("adapter.type", "dora\u{7}"),
            "type `dora",
        ),
        (
            "a kind that is a number",
            |p| p.set("adapter.type", 3u32),
            "adapter.type",
        ),
        (
            "another architecture",
            |p| p.set("general.architecture", "qwen2"),
            "for `qwen2` models, and this model is `llama`",
        ),
        (
            "aLoRA",
            |p| p.set("adapter.alora.invocation_tokens", vec![5u32]),
            "aLoRA",
        ),
        (
            "alpha",
            |p| p.set("adapter.lora.alpha", f32::NAN),
            "adapter.lora.alpha is NaN",
        ),
        ("scale", |p| p.scale = f32::INFINITY, "the scale is inf"),
        ("too much", |p| p.scale = f32::MAX, "not finite"),
        ("nothing", |p| p.tensors.clear(), "no tensors"),
        (
            "one half",
            |p| p.tensors.truncate(1),
            "has .lora_a but no .lora_b",
        ),
        (
            "the other half",
            |p| drop(p.tensors.remove(0)),
            "has .lora_b but no .lora_a",
        ),
        (
            "a norm",
            |p| p.tensors.push(("blk.0.attn_norm.weight", vec![256], 1.0)),
            "neither .lora_a nor .lora_b",
        ),
        (
            "an unknown tensor",
            |p| {
                p.tensors[0].0 = "blk.9.attn_q.weight.lora_a";
                p.tensors[1].0 = "blk.9.attn_q.weight.lora_b";
            },
            "`blk.9.attn_q.weight`, which the model does not have",
        ),
        (
            "a vector",
            |p| {
                p.tensors[0].0 = "output_norm.weight.lora_a";
                p.tensors[1].0 = "output_norm.weight.lora_b";
            },
            "not a matrix that adapters can change",
        ),
        (
            "another width",
            |p| p.tensors[0].1 = vec![128, 4],
            "whose product is not [256, 256]",
        ),
        (
            "two ranks",
            |p| p.tensors[1].1 = vec![5, 256],
            "whose product is not [256, 256]",
        ),
        (
            "the highest rank",
            |p| {
                p.tensors[0].1 = vec![256, 256];
                p.tensors[1].1 = vec![256, 256];
            },
            "",
        ),
        (
            "a rank that no matrix of its size has",
            |p| {
                p.tensors[0].1 = vec![256, 257];
                p.tensors[1].1 = vec![257, 256];
            },
            "`blk.0.attn_q.weight` have rank 257, which is above the limit of 256",
        ),
        ("experts", |p| p.tensors[1].1 = vec![4, 256, 2], "experts"),
    ];
    for (what, change, wanted) in cases {
        let mut parts = Parts {
            facts: Vec::new(),
            tensors: vec![
                ("blk.0.attn_q.weight.lora_a", vec![256, 4], 2.0),
                ("blk.0.attn_q.weight.lora_b", vec![4, 256], 0.1),
            ],
            scale: 1.0,
        };
        parts.set("general.architecture", "llama");
        parts.set("general.type", "adapter");
        parts.set("adapter.type", "lora");
        change(&mut parts);
        let mut writer = Writer::new("");
        for (key, value) in parts.facts {
            writer.set(key, value);
        }
        for (name, dims, value) in parts.tensors {
            let values = vec![value; dims.iter().product::<u64>() as usize];
            writer
                .add_tensor_f32(name, &dims, GgmlType::F32, &values)
                .unwrap();
        }
        let result = Adapter::new("file.gguf", open(&writer), parts.scale)
            .and_then(|adapter| Model::load_with(Arc::clone(&model), &[adapter]));
        match result {
            Ok(_) => assert_eq!(wanted, "", "{what} is accepted"),
            Err(error) => {
                let message = error.to_string();
                assert!(
                    message.contains("LoRA adapter file.gguf: "),
                    "{what}: {message}"
                );
                assert!(
                    !wanted.is_empty() && message.contains(wanted),
                    "{what}: {message}"
                );
                assert!(!message.contains('\u{7}'), "{what}: {message}");
            }
        }
    }
    let as_model = Model::load(open(&adapter(&model, "one").unwrap())).unwrap_err();
    assert!(matches!(as_model, LoadError::Adapter { .. }));
    assert!(as_model.to_string().contains("as an adapter"), "{as_model}");
}
