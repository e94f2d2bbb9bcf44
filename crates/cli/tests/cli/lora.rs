//! `--lora` and `--lora-scaled`.

use std::path::{Path, PathBuf};

use rocmforge_gguf::{GgmlType, Gguf, LoadMode, Writer};

use crate::program::{repository, run};

/// Writes an adapter for one matrix of the built-in model that certainly changes its text.
fn adapter(dir: &Path, arch: &str) -> PathBuf {
    let model = repository("models/forge-mini-Q4_K_M.gguf");
    let model = Gguf::open(&model, LoadMode::Mmap).unwrap();
    let name = "blk.0.ffn_down.weight";
    let dims = &model.tensor(name).unwrap().dims;
    let mut writer = Writer::new(arch);
    writer.set("general.type", "adapter");
    writer.set("adapter.type", "lora");
    writer.set("adapter.lora.alpha", 2f32);
    for (suffix, dims) in [("lora_a", [dims[0], 2]), ("lora_b", [2, dims[1]])] {
        let n = dims[0] * dims[1];
        let values: Vec<f32> = (0..n).map(|i| ((i * 37 % 11) as f32 - 5.0) / 5.0).collect();
        let name = format!("{name}.{suffix}");
        writer
            .add_tensor_f32(&name, &dims, GgmlType::F32, &values)
            .unwrap();
    }
    let path = dir.join(format!("{arch}.gguf"));
    std::fs::write(&path, writer.to_vec().unwrap()).unwrap();
    path
}

#[test]
fn adapters_apply_with_their_scale() {
    let dir = tempfile::tempdir().unwrap();
    let path = adapter(dir.path(), "llama");
    let path = path.to_str().unwrap();
    let text = |more: &[&str]| {
        let args = [
            "generate",
            "-p",
            "Once upon a time",
            "-n",
            "12",
            "--temp",
            "0",
        ];
        run(&[&args, more].concat()).ok().stdout
    };
    let plain = text(&[]);
    let full = text(&["--lora", path]);
    assert_ne!(full, plain);
    assert_eq!(text(&["--lora-scaled", &format!("{path}:0")]), plain);
    assert_eq!(text(&["--lora-scaled", &format!("{path}=1")]), full);
    // They add up.
    let back = format!("{path}:-1");
    assert_eq!(text(&["--lora", path, "--lora-scaled", &back]), plain);
}

#[test]
fn rejects_unusable_adapters() {
    let dir = tempfile::tempdir().unwrap();
    let other = adapter(dir.path(), "qwen2");
    let other = other.to_str().unwrap();
    let model = repository("models/forge-mini-Q4_K_M.gguf");
    let model = model.to_str().unwrap();
    let missing = dir.path().join("missing.gguf");
    let missing = missing.to_str().unwrap();
    for (args, code, part) in [
        (["--lora", other], 1, "qwen2.gguf: it is for `qwen2` models"),
        (["--lora", model], 1, "this is no adapter"),
        (["--lora", missing], 1, "missing.gguf"),
        (["--lora-scaled", model], 2, "the scale is missing"),
        (["-m", other], 1, "--lora"),
    ] {
        run(&[&["generate", "-p", "x", "-n", "1"], &args[..]].concat()).fails(code, part);
    }
}
