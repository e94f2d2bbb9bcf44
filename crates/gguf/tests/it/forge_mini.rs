//! Opens the model that ships with the repository and compares it with facts read by the Python package `gguf` 0.19.

use std::path::{Path, PathBuf};

use rocmforge_gguf::{Error, GgmlType, Gguf, LoadMode, Value};

fn path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/forge-mini-Q4_K_M.gguf")
}

#[test]
fn mapped_and_read_files_are_equal() {
    let mapped = Gguf::open(&path(), LoadMode::Mmap).unwrap();
    let read = Gguf::open(&path(), LoadMode::Read).unwrap();
    assert_eq!(mapped.version(), 3);
    assert_eq!(mapped.tensors(), read.tensors());
    assert_eq!(
        mapped.file_bytes(),
        std::fs::metadata(path()).unwrap().len()
    );
    for (a, b) in mapped.tensors().iter().zip(read.tensors()) {
        assert!(mapped.tensor_data(a) == read.tensor_data(b), "{}", a.name);
        assert_eq!(mapped.tensor_data(a).len() as u64, a.n_bytes);
        assert_eq!(mapped.tensor(&a.name), Some(a));
    }
    assert!(mapped.tensor("no such tensor").is_none());
}

#[test]
fn metadata_matches_the_python_package() {
    let file = Gguf::open(&path(), LoadMode::Mmap).unwrap();
    let m = file.metadata();
    assert_eq!(m.len(), 31);
    assert_eq!(m.str("general.architecture").unwrap(), "llama");
    assert_eq!(m.u32("llama.feed_forward_length").unwrap(), 1024);
    assert_eq!(m.u64("llama.vocab_size").unwrap(), 4096);
    assert_eq!(
        m.f32("llama.attention.layer_norm_rms_epsilon").unwrap(),
        1e-5
    );
    assert!(!m.bool("tokenizer.ggml.add_bos_token").unwrap());
    assert_eq!(m.opt_u32("llama.expert_count").unwrap(), None);
    let tokens = m.strings("tokenizer.ggml.tokens").unwrap();
    assert_eq!(tokens.len(), 4096);
    assert_eq!(tokens.get(0), Some(&b"<|endoftext|>"[..]));
    assert_eq!(tokens.get(2048), Some(&b"List"[..]));
    assert_eq!(tokens.get(4095), Some("Ġamong".as_bytes()));
    assert_eq!(tokens.get(4096), None);
    assert!((0..4096).map(|i| tokens.get(i).unwrap()).eq(tokens));
    let types = m.i32s("tokenizer.ggml.token_type").unwrap();
    assert_eq!((types.len(), types[0], types[2048]), (4096, 3, 1));
    assert_eq!(m.strings("tokenizer.ggml.merges").unwrap().len(), 3831);
    let (first, value) = m.iter().next().unwrap();
    assert_eq!(first, "general.architecture");
    assert!(matches!(value, Value::String(b"llama")));
}

#[test]
fn tensor_infos_match_the_python_package() {
    let file = Gguf::open(&path(), LoadMode::Mmap).unwrap();
    assert_eq!(file.tensors().len(), 92);
    for (name, dims, ty, n_bytes, offset) in [
        (
            "output_norm.weight",
            &[256][..],
            GgmlType::F32,
            1024,
            133568,
        ),
        (
            "token_embd.weight",
            &[256, 4096],
            GgmlType::Q6_K,
            860160,
            134592,
        ),
        (
            "blk.0.attn_k.weight",
            &[256, 128],
            GgmlType::Q4_K,
            18432,
            994752,
        ),
        (
            "blk.0.ffn_down.weight",
            &[1024, 256],
            GgmlType::Q6_K,
            215040,
            1114816,
        ),
        (
            "blk.9.ffn_up.weight",
            &[256, 1024],
            GgmlType::Q4_K,
            147456,
            6777536,
        ),
    ] {
        let t = file.tensor(name).unwrap();
        assert_eq!(
            (&t.dims[..], t.ty, t.n_bytes, t.offset),
            (dims, ty, n_bytes, offset)
        );
        assert_eq!(t.n_elements(), dims.iter().product::<u64>());
        assert_eq!(t.row_len(), dims[0]);
        assert_eq!(t.n_rows() * t.row_len(), t.n_elements());
    }
}

#[test]
fn errors_name_the_key_and_both_types() {
    let file = Gguf::open(&path(), LoadMode::Mmap).unwrap();
    let m = file.metadata();
    let check = |error: Error, parts: &[&str]| {
        let text = error.to_string();
        assert!(!text.contains('\n'), "{text}");
        for part in parts {
            assert!(text.contains(part), "{text}: no {part}");
        }
    };
    check(
        m.u32("llama.none").unwrap_err(),
        &["'llama.none'", "missing"],
    );
    check(
        m.u32("general.name").unwrap_err(),
        &["'general.name'", "string", "u32"],
    );
    check(
        m.opt_f32("llama.block_count").unwrap_err(),
        &["'llama.block_count'", "u32", "f32"],
    );
    check(
        m.strings("tokenizer.ggml.token_type").unwrap_err(),
        &["array of 4096 i32", "strings"],
    );
    check(
        m.str("tokenizer.ggml.tokens").unwrap_err(),
        &["array of 4096 string", "a string"],
    );
    check(
        m.u32s("tokenizer.ggml.tokens").unwrap_err(),
        &["array of 4096 string", "u32"],
    );
}

#[test]
fn rejects_paths_that_are_not_gguf_files() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR"));
    let missing = Gguf::open(&dir.join("missing\n.gguf"), LoadMode::Mmap).unwrap_err();
    assert!(missing.to_string().contains("missing\\n.gguf"), "{missing}");
    let directory = Gguf::open(dir, LoadMode::Mmap).unwrap_err();
    assert!(directory.to_string().contains("a directory"), "{directory}");
    let manifest = Gguf::open(&dir.join("Cargo.toml"), LoadMode::Mmap).unwrap_err();
    assert!(manifest.to_string().contains("not a GGUF"), "{manifest}");
}
