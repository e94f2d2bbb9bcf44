//! What `inspect` says about files that do not run here: what they are, and everything that is missing.

use std::fs;
use std::path::Path;

use rocmforge_gguf::{GgmlType, Gguf, LoadMode, TensorInfo, Writer};
use rocmforge_testkit::models::dflash::{Dflash, dflash};
use rocmforge_testkit::models::eagle3::{Eagle3, eagle3};
use serde_json::{Value, json};

use crate::program::{Run, repository, run};

/// Writes the file and inspects it: as JSON and as text.
fn inspect(dir: &Path, bytes: &[u8]) -> (Value, String) {
    let path = dir.join("model.gguf");
    fs::write(&path, bytes).unwrap();
    let path = path.to_str().unwrap();
    let text = run(&["inspect", path]).ok().text().to_string();
    (run(&["inspect", path, "--json"]).json(), text)
}

fn of(writer: &Writer<'_>) -> (Value, String) {
    let dir = tempfile::tempdir().unwrap();
    inspect(dir.path(), &writer.to_vec().unwrap())
}

/// A file of this architecture with one tensor.
fn file(arch: &str) -> Writer<'static> {
    let mut writer = Writer::new(arch);
    writer.set("tokenizer.ggml.model", "none");
    writer
        .add_tensor("blk.0.x.weight", &[4], GgmlType::F32, vec![0; 16])
        .unwrap();
    writer
}

/// The built-in model with each tensor replaced by the result of `tensor`.
fn forge_mini(tensor: impl Fn(&TensorInfo) -> Option<TensorInfo>) -> Writer<'static> {
    let path = repository("models/forge-mini-Q4_K_M.gguf");
    let gguf = Gguf::open(&path, LoadMode::Read).unwrap();
    let mut writer = Writer::new("llama");
    for (key, value) in gguf.metadata().iter() {
        writer.set(key, value);
    }
    for info in gguf.tensors() {
        if let Some(new) = tensor(info) {
            let data = gguf.tensor_data(info)[..new.n_bytes as usize].to_vec();
            writer
                .add_tensor(&new.name, &new.dims, new.ty, data)
                .unwrap();
        }
    }
    writer
}

#[test]
fn everything_that_is_missing_is_listed() {
    let mut writer = Writer::new("fantasy");
    writer.set("tokenizer.ggml.model", "gpt2");
    writer.set("tokenizer.ggml.pre", "nobody");
    let types = [("plain", GgmlType::F32), ("strange", GgmlType::F32)];
    for (name, ty) in types {
        writer.add_tensor(name, &[4], ty, vec![0; 16]).unwrap();
    }
    // A type that GGML uses for activations only.
    writer
        .add_tensor("coded", &[32], GgmlType::Q8_1, vec![0; 36])
        .unwrap();
    let mut bytes = writer.to_vec().unwrap();
    // Behind the name: the number of dimensions, the dimension, the type.
    let name = bytes.windows(7).position(|at| at == b"strange").unwrap();
    bytes[name + 7 + 4 + 8..][..4].copy_from_slice(&1234u32.to_le_bytes());
    let dir = tempfile::tempdir().unwrap();
    let (report, text) = inspect(dir.path(), &bytes);
    let names = [
        "architecture fantasy",
        "format type 1234",
        "format Q8_1",
        "pre-tokenizer nobody",
    ];
    assert_eq!(report["missing"], json!(names));
    assert_eq!(report["runs_here"], false);
    assert_eq!(report["kind"], "a language model");
    assert!(text.contains("runs here     no\n"), "{text}");
    for name in names {
        assert!(text.contains(name), "{name} in {text}");
    }
    assert!(text.contains("rocmforge models --supported"), "{text}");
    assert!(text.contains("without tensors of unknown formats, of which there are 1"));

    let mut tokens = file("fantasy");
    tokens.set("tokenizer.ggml.model", "nothing");
    let expected = json!(["architecture fantasy", "tokenizer model nothing"]);
    assert_eq!(of(&tokens).0["missing"], expected);
}

#[test]
fn every_missing_tensor_is_listed() {
    let gone = ["blk.3.ffn_up.weight", "blk.5.attn_norm.weight"];
    let mut writer = forge_mini(|info| {
        let info = info.clone();
        match &*info.name {
            name if gone.contains(&name) => None,
            "blk.7.attn_q.weight" => Some(TensorInfo {
                dims: vec![info.dims[0], info.dims[1] / 2],
                n_bytes: info.n_bytes / 2,
                ..info
            }),
            _ => Some(info),
        }
    });
    writer
        .add_tensor("blk.0.odd.weight", &[4], GgmlType::F32, vec![0; 16])
        .unwrap();
    let (report, text) = of(&writer);
    let expected = json!([
        "tensor blk.3.ffn_up.weight",
        "tensor blk.5.attn_norm.weight",
        "tensor blk.7.attn_q.weight",
        "use of tensor blk.0.odd.weight",
    ]);
    assert_eq!(report["missing"], expected);
    assert_eq!(report["runs"], false);
    assert!(report["problem"].as_str().unwrap().contains("ffn_up"));
    assert!(text.contains("expected [256, 256]"), "{text}");

    // A model without its layers: the text is cut.
    let (report, text) = of(&forge_mini(|info| {
        (!info.name.starts_with("blk.")).then(|| info.clone())
    }));
    let missing = report["missing"].as_array().unwrap();
    assert_eq!(missing.len(), 90);
    assert!(text.contains("and 78 more, which --json lists"), "{text}");
}

#[test]
fn metadata_that_is_missing_is_named() {
    let mut writer = forge_mini(|info| Some(info.clone()));
    writer.set("llama.attention.head_count", 0u32);
    writer.set("tokenizer.ggml.pre", "nobody");
    assert_eq!(
        of(&writer).0["missing"],
        json!([
            "metadata llama.attention.head_count",
            "pre-tokenizer nobody"
        ])
    );
}

#[test]
fn a_sentence_says_what_a_file_is() {
    let with = |arch: &str, key: &str, value: &str| {
        let mut writer = file(arch);
        writer.set(key, value);
        writer
    };
    let mut reranker = file("qwen3");
    reranker.set("qwen3.pooling_type", 4u32);
    let mut embedding = file("fantasy");
    embedding.set("fantasy.pooling_type", 3u32);
    let mut vocabulary = Writer::new("llama");
    vocabulary.set("tokenizer.ggml.model", "none");
    for (writer, kind, missing) in [
        (
            with("llama", "general.type", "adapter"),
            "a LoRA adapter for `llama` models; add it to its model with --lora",
            &["base model"][..],
        ),
        (
            with("fantasy", "general.type", "adapter"),
            "a LoRA adapter for `fantasy` models",
            &["base model", "architecture fantasy"],
        ),
        (
            with("llama", "general.type", "imatrix"),
            "an importance matrix",
            &["weights"],
        ),
        (
            file("clip"),
            "the part of a model that sees or hears (mmproj)",
            &["language model", "architecture clip"],
        ),
        (
            file("controlvector"),
            "a control vector",
            &["base model", "architecture controlvector"],
        ),
        (
            file("dflash"),
            "a draft model; give it to the model it was made for with --speculate",
            &["model to draft for"],
        ),
        (
            file("eagle3"),
            "a draft model; give it to the model it was made for with --speculate",
            &["model to draft for"],
        ),
        (
            file("gemma4-assistant"),
            "a draft model for `gemma4` models; give it to the model it was made for with --speculate draft:FILE",
            &["model to draft for"],
        ),
        (
            eagle3(Eagle3::Short, GgmlType::Q4_0).unwrap(),
            "a draft model; give it to the model it was made for",
            &["model to draft for"],
        ),
        (
            dflash(Dflash::Own, GgmlType::Q4_0).unwrap(),
            "a draft model; give it to the model it was made for",
            &["model to draft for"],
        ),
        (
            file("flux"),
            "a model that makes images or video, not text",
            &["architecture flux"],
        ),
        (embedding, "an embedding model", &["architecture fantasy"]),
        (
            vocabulary,
            "a vocabulary without weights; tokenize works with it",
            &["weights"],
        ),
        (
            Writer::new("llama"),
            "metadata without weights",
            &["weights", "metadata tokenizer.ggml.model"],
        ),
    ] {
        let (report, text) = of(&writer);
        let found = report["kind"].as_str().unwrap();
        assert!(found.starts_with(kind), "{found}");
        assert_eq!(report["missing"], json!(missing), "{kind}");
        assert_eq!(report["runs_here"], false);
        assert!(text.contains(kind), "{text}");
    }
    assert!(
        of(&reranker).0["kind"]
            .as_str()
            .unwrap()
            .starts_with("a reranker")
    );
}

#[test]
fn files_of_a_split_model_are_one() {
    let dir = tempfile::tempdir().unwrap();
    for part in 0..2u16 {
        let mut writer = Writer::new("fantasy");
        writer.set("split.no", part);
        writer.set("split.count", 2u16);
        writer.set("split.tensors.count", 2i32);
        let name = format!("blk.{part}.x.weight");
        writer
            .add_tensor(&name, &[4], GgmlType::F32, vec![0; 16])
            .unwrap();
        let name = format!("m-{:05}-of-00002.gguf", part + 1);
        fs::write(dir.path().join(name), writer.to_vec().unwrap()).unwrap();
    }
    let first = dir.path().join("m-00001-of-00002.gguf");
    let report = run(&["inspect", first.to_str().unwrap(), "--json"]).json();
    assert_eq!(report["kind"], "a language model, in 2 files");
    assert_eq!(report["tensors"].as_array().unwrap().len(), 2);
    let expected = json!(["architecture fantasy", "metadata tokenizer.ggml.model"]);
    assert_eq!(report["missing"], expected);
}

#[test]
fn memory_decides_too() {
    let report = run(&["inspect", "--json"]).json();
    assert_eq!(report["runs_here"], true);
    assert_eq!(report["missing"], json!([]));
    let cpu = &report["memory"]["devices"][0];
    assert_eq!(
        (&cpu["id"], &cpu["fits"], &cpu["ctx"]),
        (&json!("cpu"), &json!("yes"), &json!(2048))
    );
    let bytes = |name: &str| report["memory"][name].as_u64().unwrap();
    let parts = bytes("weight_bytes") + bytes("kv_bytes") + bytes("buffer_bytes");
    // Also the buffers of rows of logits, and what is left free.
    let needed = cpu["needed_bytes"].as_u64().unwrap();
    assert!((parts..2 * parts).contains(&needed), "{needed} {parts}");

    // 10 TB of KV cache.
    let large = ["inspect", "--ctx", "2000000000"];
    let Run { stdout, .. } = run(&large).ok();
    let text = String::from_utf8(stdout).unwrap();
    assert!(text.contains("runs here     no\nmissing       memory: "));
    let report = run(&[&large[..], &["--json"]].concat()).json();
    assert_eq!(report["missing"], json!(["memory"]));
    assert_eq!(
        (&report["runs"], &report["runs_here"]),
        (&json!(true), &json!(false))
    );
    let cpu = &report["memory"]["devices"][0];
    assert_eq!(cpu["fits"], "no");
    assert!(
        cpu["problem"]
            .as_str()
            .unwrap()
            .contains("use a context of")
    );
}
