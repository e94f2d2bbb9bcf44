//! Files whose header is valid and whose facts are not: loading is an error that says what to do, or the model
//! runs. Nothing panics, hangs or takes memory without bound.

mod common;

use std::sync::Arc;

use common::models;
use rocmforge_engine::chat_template::ChatTemplate;
use rocmforge_engine::model::Model;
use rocmforge_engine::tokenizer::{EncodeOptions, Tokenizer};
use rocmforge_engine::{Continue, Engine, EngineConfig, EngineError, Request};
use rocmforge_gguf::{Gguf, LoadMode, OwnedValue, TensorInfo, Writer};

fn forge_mini() -> Gguf {
    Gguf::open(&models().join("forge-mini-Q4_K_M.gguf"), LoadMode::Read).unwrap()
}

/// The file with one key changed (or removed) and the tensors that `tensor` leaves, under the names it gives.
fn changed(
    gguf: &Gguf,
    key: &str,
    value: Option<&OwnedValue>,
    tensor: impl Fn(&TensorInfo) -> Option<TensorInfo>,
) -> Gguf {
    let mut writer = Writer::new("llama");
    for (name, old) in gguf.metadata().iter() {
        if name != key {
            writer.set(name, old);
        }
    }
    if let Some(value) = value {
        writer.set(key, value.clone());
    }
    for info in gguf.tensors() {
        if let Some(new) = tensor(info) {
            let data = &gguf.tensor_data(info)[..new.n_bytes as usize];
            writer
                .add_tensor(&new.name, &new.dims, new.ty, data)
                .unwrap();
        }
    }
    Gguf::from_vec(writer.to_vec().unwrap()).unwrap()
}

/// Loads everything and generates two tokens.
fn run(gguf: Gguf) -> Result<(), EngineError> {
    let gguf = Arc::new(gguf);
    let tokenizer = Arc::new(Tokenizer::from_gguf(&gguf, None)?);
    let model = Model::load(Arc::clone(&gguf))?;
    ChatTemplate::from_gguf(&gguf, &tokenizer, None)?;
    let config = EngineConfig {
        n_threads: Some(1),
        ..EngineConfig::default()
    };
    let mut engine = Engine::on_cpu(&model, Some(Arc::clone(&tokenizer)), &config)?;
    let options = EncodeOptions {
        add_special: true,
        parse_special: true,
    };
    let prompt = tokenizer.encode("Once upon <|im_start|> a time", options);
    let id = engine.submit(Request::greedy(prompt, 2))?;
    engine.run(id, |_| Continue::Yes)?;
    Ok(())
}

fn check_message(label: &str, result: Result<(), EngineError>) {
    if let Err(error) = result {
        let message = error.to_string();
        assert!(
            !message.contains(['\n', '\r']) && message.len() < 2000,
            "{label}: {message}"
        );
    }
}

#[test]
fn any_value_of_any_key_is_refused_or_runs() {
    let gguf = forge_mini();
    let values: Vec<OwnedValue> = vec![
        0u32.into(),
        1u32.into(),
        3u32.into(),
        (1u32 << 31).into(),
        u64::MAX.into(),
        (1u64 << 60).into(),
        (-1i32).into(),
        f32::NAN.into(),
        f32::INFINITY.into(),
        (-1.0f32).into(),
        1e30f32.into(),
        true.into(),
        "".into(),
        "\u{1b}[31mx\n".into(),
        vec![1u32, 2].into(),
        vec!["a"].into(),
        Vec::<i32>::new().into(),
    ];
    let keys: Vec<String> = gguf
        .metadata()
        .iter()
        .map(|(key, _)| key.to_string())
        .collect();
    for key in &keys {
        let whole = |info: &TensorInfo| Some(info.clone());
        check_message(key, run(changed(&gguf, key, None, whole)));
        for value in &values {
            if key == "general.alignment" {
                continue;
            }
            check_message(
                &format!("{key} = {value:?}"),
                run(changed(&gguf, key, Some(value), whole)),
            );
        }
    }
}

#[test]
fn facts_that_are_not_supported_are_refused_by_name() {
    let gguf = forge_mini();
    let whole = |info: &TensorInfo| Some(info.clone());
    let cases: [(&str, OwnedValue, &str); 5] = [
        (
            "general.architecture",
            "mamba".into(),
            "`mamba` is not supported; supported are: llama, qwen2, qwen2moe, qwen3, qwen3moe, granite, smollm3, olmo2, phi3, gemma2, gemma3, gpt2, starcoder2",
        ),
        ("llama.expert_count", 8u32.into(), "llama.expert_used_count"),
        (
            "llama.rope.scaling.type",
            "dynamic".into(),
            "RoPE scaling `dynamic`",
        ),
        (
            "tokenizer.ggml.model",
            "bert".into(),
            "'bert' is not supported",
        ),
        ("tokenizer.ggml.pre", "nobody".into(), "--pre NAME"),
    ];
    for (key, value, part) in cases {
        let message = run(changed(&gguf, key, Some(&value), whole))
            .unwrap_err()
            .to_string();
        assert!(message.contains(part), "{key}: {message}");
    }
}

#[test]
fn tensors_must_be_those_of_the_wiring() {
    let gguf = forge_mini();
    let name = "blk.3.ffn_up.weight";
    let with = |change: &dyn Fn(TensorInfo) -> Option<TensorInfo>| {
        run(changed(&gguf, "", None, |info| {
            if info.name == name {
                change(info.clone())
            } else {
                Some(info.clone())
            }
        }))
        .unwrap_err()
        .to_string()
    };
    let missing = with(&|_| None);
    assert!(
        missing.contains("no tensor `blk.3.ffn_up.weight`"),
        "{missing}"
    );
    let renamed = with(&|info| {
        Some(TensorInfo {
            name: "blk.3.ffn_up_exps.weight".into(),
            ..info
        })
    });
    assert!(
        renamed.contains("no tensor `blk.3.ffn_up.weight`"),
        "{renamed}"
    );
    let shape = with(&|info| {
        let dims = vec![info.dims[0], info.dims[1] / 2];
        Some(TensorInfo {
            dims,
            n_bytes: info.n_bytes / 2,
            ..info
        })
    });
    assert!(
        shape.contains("has shape [256, 512], expected [256, 1024]"),
        "{shape}"
    );

    let mut writer = Writer::new("llama");
    for (key, value) in gguf.metadata().iter() {
        writer.set(key, value);
    }
    for info in gguf.tensors() {
        writer
            .add_tensor(&info.name, &info.dims, info.ty, gguf.tensor_data(info))
            .unwrap();
    }
    writer
        .add_tensor(
            "blk.0.attn_sinks.weight",
            &[1],
            rocmforge_gguf::GgmlType::F32,
            &[0; 4],
        )
        .unwrap();
    let unused = run(Gguf::from_vec(writer.to_vec().unwrap()).unwrap())
        .unwrap_err()
        .to_string();
    assert!(
        unused.contains("`blk.0.attn_sinks.weight` is not part of the llama wiring"),
        "{unused}"
    );
}

#[test]
fn weights_that_are_not_numbers_are_an_error_and_not_a_text() {
    let gguf = forge_mini();
    let nan = f32::NAN.to_le_bytes().repeat(256);
    let mut writer = Writer::new("llama");
    for (key, value) in gguf.metadata().iter() {
        writer.set(key, value);
    }
    for info in gguf.tensors() {
        let is_norm = info.name == "output_norm.weight";
        let data = if is_norm {
            &nan[..]
        } else {
            gguf.tensor_data(info)
        };
        writer
            .add_tensor(&info.name, &info.dims, info.ty, data)
            .unwrap();
    }
    let error = run(Gguf::from_vec(writer.to_vec().unwrap()).unwrap()).unwrap_err();
    assert!(matches!(error, EngineError::NotFinite), "{error}");
}
