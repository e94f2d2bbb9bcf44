//! Files with a valid header and invalid metadata: loading fails with a helpful error, or the model runs. Nothing
//! panics, hangs or allocates without bound.

use rocmforge_engine::{ConfigError, DeviceError, RequestError};
use std::ops::ControlFlow;
use std::sync::Arc;

use crate::common::cases::test_cases;
use crate::common::{models, test_gpu};
use rocmforge_engine::{Device, Engine, EngineConfig, EngineError, Request};
use rocmforge_gguf::{GgmlType, Gguf, LoadMode, OwnedValue, TensorInfo, Writer};
use rocmforge_model::Model;
use rocmforge_plan::KvType;
use rocmforge_runtime::check::SelfCheck;
use rocmforge_runtime::gpu::{Experts, GpuConfig, GpuLayers, Offload};
use rocmforge_text::chat_template::ChatTemplate;
use rocmforge_text::tokenizer::{EncodeOptions, Tokenizer};

fn forge_mini() -> Gguf {
    Gguf::open(&models().join("forge-mini-Q4_K_M.gguf"), LoadMode::Read).unwrap()
}

/// Returns the file with one key changed (or removed) and each tensor replaced by the result of `tensor`.
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

/// Loads model, tokenizer and chat template, and generates two tokens.
fn run(gguf: Gguf) -> Result<(), Box<dyn std::error::Error>> {
    run_on(Device::Cpu, gguf)
}

fn run_on(device: Device, gguf: Gguf) -> Result<(), Box<dyn std::error::Error>> {
    let gguf = Arc::new(gguf);
    let tokenizer = Arc::new(Tokenizer::from_gguf(&gguf, None)?);
    let model = Model::load(Arc::clone(&gguf))?;
    ChatTemplate::from_gguf(&gguf, &tokenizer, None)?;
    let config = EngineConfig {
        device,
        n_ctx: Some(64).filter(|_| model.config.n_positions.is_none_or(|n| n >= 64)),
        n_threads: Some(1),
        ..EngineConfig::default()
    };
    let mut engine = Engine::start(&model, Some(Arc::clone(&tokenizer)), &config)?;
    let options = EncodeOptions {
        add_special: true,
        parse_special: true,
    };
    let prompt = tokenizer.encode("Once upon <|im_start|> a time", options);
    let id = engine.submit(Request::greedy(prompt, 2))?;
    engine.run(id, |_| ControlFlow::Continue(()))?;
    Ok(())
}

fn check_message(label: &str, result: Result<(), Box<dyn std::error::Error>>) {
    if let Err(error) = result {
        let message = error.to_string();
        assert!(
            !message.contains(['\n', '\r']) && message.len() < 2000,
            "{label}: {message}"
        );
    }
}

test_cases! {
    any_value_of_any_key_is_rejected_or_runs:
    shard_0(0),
    shard_1(1),
    shard_2(2),
    shard_3(3),
}

/// Checks every fourth key, from `shard` on.
fn any_value_of_any_key_is_rejected_or_runs(shard: usize) {
    let (gguf, gpu) = (forge_mini(), test_gpu());
    // An emulated GPU is slow, so it gets one layer.
    let short = changed(&gguf, "llama.block_count", Some(&1u32.into()), |info| {
        let is_later = info.name.starts_with("blk.") && !info.name.starts_with("blk.0.");
        (!is_later).then(|| info.clone())
    });
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
    for key in keys.iter().skip(shard).step_by(4) {
        let whole = |info: &TensorInfo| Some(info.clone());
        check_message(key, run(changed(&gguf, key, None, whole)));
        for value in &values {
            if key == "general.alignment" {
                continue;
            }
            let what = format!("{key} = {value:?}");
            let result = run(changed(&gguf, key, Some(value), whole));
            // A GPU must run or reject what runs on the CPU. Tokenizer keys do not depend on the device.
            if let (Some(gpu), true, true) = (&gpu, key.starts_with("llama."), result.is_ok()) {
                let device = Device::Gpu(gpu.clone());
                let on_gpu = run_on(device, changed(&short, key, Some(value), whole));
                if let Err(error) = &on_gpu
                    && let Some(EngineError::Device(DeviceError::WorkerGone { reason })) =
                        error.downcast_ref()
                {
                    panic!("{what}: {reason}");
                }
                check_message(&what, on_gpu);
            }
            check_message(&what, result);
        }
    }
}

test_cases! {
    any_value_of_a_latent_key_is_rejected_or_runs:
    deepseek2("deepseek2"),
    deepseek2_old("deepseek2_old"),
    mistral4("mistral4"),
    minicpm3("minicpm3"),
}

/// The keys of latent attention and of the layers around it, and tensors that are missing.
fn any_value_of_a_latent_key_is_rejected_or_runs(name: &str) {
    let writer = rocmforge_testkit::models::model_of(name, GgmlType::F32, 2);
    let writer = writer.unwrap().unwrap();
    let arch = match name {
        "deepseek2_old" => "deepseek2",
        name => name,
    };
    let run = |writer: &Writer<'_>| {
        let gguf = Gguf::from_vec(writer.to_vec().unwrap()).unwrap();
        let model = Model::load(Arc::new(gguf))?;
        let config = EngineConfig {
            n_ctx: Some(64),
            n_threads: Some(1),
            ..EngineConfig::default()
        };
        let mut engine = Engine::start(&model, None, &config)?;
        let id = engine.submit(Request::greedy(vec![1, 7, 9], 2))?;
        engine.run(id, |_| ControlFlow::Continue(()))?;
        Ok(())
    };
    run(&writer).unwrap();
    let values: [OwnedValue; 14] = [
        0u32.into(),
        1u32.into(),
        2u32.into(),
        63u32.into(),
        64u32.into(),
        (1u32 << 24).into(),
        (1u32 << 31).into(),
        u64::MAX.into(),
        (-1i32).into(),
        f32::NAN.into(),
        f32::MAX.into(),
        (-1e30f32).into(),
        "".into(),
        vec![1u32, 2].into(),
    ];
    for key in [
        "attention.kv_lora_rank",
        "attention.q_lora_rank",
        "attention.key_length",
        "attention.value_length",
        "attention.key_length_mla",
        "attention.value_length_mla",
        "attention.head_count",
        "attention.head_count_kv",
        "attention.temperature_scale",
        "attention.temperature_length",
        "rope.dimension_count",
        "rope.scaling.factor",
        "rope.scaling.yarn_log_multiplier",
        "leading_dense_block_count",
        "nextn_predict_layers",
        "expert_shared_count",
        "expert_gating_func",
        "expert_group_count",
        "expert_weights_norm",
    ] {
        for value in &values {
            let mut changed = writer.clone();
            changed.set(&format!("{arch}.{key}"), value.clone());
            check_message(&format!("{key} = {value:?}"), run(&changed));
        }
    }
}

/// Returns a pseudo-random value from -0.1 to 0.1.
fn small_value(i: u64) -> f32 {
    (i.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40) as f32 / (1 << 24) as f32 * 0.2 - 0.1
}

/// Returns a model of two layers with two query heads and one KV head of these widths.
fn with_heads(k_dim: usize, v_dim: usize) -> Model {
    const N_EMBD: usize = 32;
    let mut writer = Writer::new("llama");
    for (key, value) in [
        ("block_count", 2),
        ("context_length", 64),
        ("embedding_length", N_EMBD),
        ("feed_forward_length", N_EMBD),
        ("attention.head_count", 2),
        ("attention.head_count_kv", 1),
        ("attention.key_length", k_dim),
        ("attention.value_length", v_dim),
        ("rope.dimension_count", 2),
    ] {
        writer.set(&format!("llama.{key}"), value as u32);
    }
    writer.set("llama.attention.layer_norm_rms_epsilon", 1e-5f32);
    let mut add = |name: &str, dims: &[usize]| {
        let dims: Vec<u64> = dims.iter().map(|&dim| dim as u64).collect();
        let values = 0..dims.iter().product::<u64>();
        let values: Vec<f32> = values.map(small_value).collect();
        writer
            .add_tensor_f32(name, &dims, GgmlType::F32, &values)
            .unwrap();
    };
    add("token_embd.weight", &[N_EMBD, 40]);
    add("output_norm.weight", &[N_EMBD]);
    for layer in 0..2 {
        for (name, dims) in [
            ("attn_norm", &[N_EMBD][..]),
            ("attn_q", &[N_EMBD, 2 * k_dim]),
            ("attn_k", &[N_EMBD, k_dim]),
            ("attn_v", &[N_EMBD, v_dim]),
            ("attn_output", &[2 * v_dim, N_EMBD]),
            ("ffn_norm", &[N_EMBD]),
            ("ffn_gate", &[N_EMBD, N_EMBD]),
            ("ffn_up", &[N_EMBD, N_EMBD]),
            ("ffn_down", &[N_EMBD, N_EMBD]),
        ] {
            add(&format!("blk.{layer}.{name}.weight"), dims);
        }
    }
    let gguf = Gguf::from_vec(writer.to_vec().unwrap()).unwrap();
    Model::load(Arc::new(gguf)).unwrap()
}

fn two_tokens(model: &Model, config: &EngineConfig) -> Result<(), EngineError> {
    let mut engine = Engine::start(model, None, config)?;
    let id = engine.submit(Request::greedy(vec![3, 1, 4, 1, 5], 2))?;
    engine.run(id, |_| ControlFlow::Continue(()))?;
    Ok(())
}

/// Returns devices with all, one and the automatic number of layers on the GPU.
fn offloads(gpu: &GpuConfig) -> [Device; 3] {
    [GpuLayers::All, GpuLayers::Count(1), GpuLayers::Auto].map(|layers| {
        Device::Gpu(GpuConfig {
            offload: Offload {
                layers,
                experts: Experts::WithTheirLayer,
            },
            self_check: SelfCheck::Always,
            ..gpu.clone()
        })
    })
}

#[test]
fn shapes_beyond_gpu_limits_are_rejected_and_run_on_the_cpu() {
    let Some(gpu) = test_gpu() else { return };
    let even = Some("heads of an even number of values, not ");
    let wide = Some("a key and a value with at most 8192 values together, not 8194");
    let cached = Some("values in a cache of F8E4M3, not 8000");
    for ([k_dim, v_dim], kv_type, limit) in [
        ([4, 3], KvType::F16, even),
        ([5, 4], KvType::F16, even),
        ([15, 15], KvType::F16, even),
        ([4096, 4098], KvType::F16, wide),
        ([16, 8000], KvType::F8E4M3, cached),
        ([4, 2], KvType::F16, None),
    ] {
        let model = with_heads(k_dim, v_dim);
        let config = |device| EngineConfig {
            device,
            kv_types: kv_type.into(),
            page: 16,
            n_threads: Some(1),
            ..EngineConfig::default()
        };
        two_tokens(&model, &config(Device::Cpu)).unwrap();
        for device in offloads(&gpu) {
            let what = format!("{k_dim} and {v_dim}, {device:?}");
            match (two_tokens(&model, &config(device)), limit) {
                (Ok(()), None) => {}
                (Err(error @ EngineError::Config(ConfigError::GpuLimit(_))), Some(limit)) => {
                    let message = error.to_string();
                    assert!(message.contains(limit), "{what}: {message}");
                    assert!(message.ends_with("run this model on the CPU"), "{message}");
                }
                (got, _) => panic!("{what}: {got:?}"),
            }
        }
    }
}

#[test]
fn rejects_steps_with_too_many_rows_for_a_gpu() {
    let Some(gpu) = test_gpu() else { return };
    let model = with_heads(16, 16);
    for (max_seqs, max_batch_tokens) in [(70_000, 32), (1, 65_536)] {
        for device in offloads(&gpu) {
            let config = EngineConfig {
                device,
                max_seqs,
                max_batch_tokens,
                ..EngineConfig::default()
            };
            let error = two_tokens(&model, &config).unwrap_err().to_string();
            assert!(error.contains("at most 65535 rows in a step"), "{error}");
        }
    }
    let config = EngineConfig {
        device: Device::Gpu(gpu),
        max_batch_tokens: 65_535,
        ..EngineConfig::default()
    };
    two_tokens(&model, &config).unwrap();
}

#[test]
fn rejects_unsupported_metadata_by_name() {
    let gguf = forge_mini();
    let whole = |info: &TensorInfo| Some(info.clone());
    let cases: [(&str, OwnedValue, &str); 5] = [
        (
            "general.architecture",
            "rwkv7".into(),
            "`rwkv7` is not supported; supported architectures: llama, qwen2, ",
        ),
        ("llama.expert_count", 8u32.into(), "llama.expert_used_count"),
        (
            "llama.rope.scaling.type",
            "dynamic".into(),
            "RoPE scaling `dynamic`",
        ),
        (
            "tokenizer.ggml.model",
            "hybriddna".into(),
            "'hybriddna' is not supported",
        ),
        ("tokenizer.ggml.pre", "nobody".into(), "choose the closest"),
    ];
    for (key, value, part) in cases {
        let message = run(changed(&gguf, key, Some(&value), whole))
            .unwrap_err()
            .to_string();
        assert!(message.contains(part), "{key}: {message}");
    }
}

#[test]
fn tensors_must_match_the_architecture() {
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
        missing.contains("tensor `blk.3.ffn_up.weight`, which llama needs"),
        "{missing}"
    );
    let renamed = with(&|info| {
        Some(TensorInfo {
            name: "blk.3.ffn_up_exps.weight".into(),
            ..info
        })
    });
    assert!(
        renamed.contains("tensor `blk.3.ffn_up.weight`, which llama needs"),
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
        unused.contains("the llama architecture has no use for tensor `blk.0.attn_sinks.weight`"),
        "{unused}"
    );
}

#[test]
fn nan_weights_are_an_error() {
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
    let error = error.downcast_ref().unwrap();
    assert!(
        matches!(error, EngineError::Request(RequestError::NotFinite)),
        "{error}"
    );
}
