//! Real files: vocabularies of released models, and one model quantized by llama.cpp. They are not part of the
//! repository; ROCMFORGE_CONFORMANCE_DATA names their folder.

use std::path::PathBuf;

use rocmforge_gguf::{GgmlType, Gguf, LoadMode, TensorInfo, quant};

fn data() -> Option<PathBuf> {
    let folder = std::env::var_os("ROCMFORGE_CONFORMANCE_DATA").map(PathBuf::from);
    if folder.is_none() {
        println!("skipped: ROCMFORGE_CONFORMANCE_DATA is not set");
    }
    folder
}

fn values(file: &Gguf, t: &TensorInfo) -> Vec<f32> {
    let mut out = vec![0.0; t.n_elements() as usize];
    quant::dequantize(t.ty, file.tensor_data(t), &mut out).unwrap();
    out
}

#[test]
fn opens_vocabularies_of_released_models() {
    let Some(data) = data() else { return };
    for (name, n_tokens) in [
        ("llama-bpe", 128_256),
        ("llama-spm", 32_000),
        ("qwen2", 151_936),
        ("gpt-2", 50_257),
        ("phi-3", 32_064),
        ("deepseek-llm", 102_400),
    ] {
        let path = data.join(format!("data/vocab/ggml-vocab-{name}.gguf"));
        let file = Gguf::open(&path, LoadMode::Mmap).unwrap();
        let tokens = file.metadata().strings("tokenizer.ggml.tokens").unwrap();
        assert_eq!(tokens.len(), n_tokens, "{name}");
        assert_eq!(tokens.iter().count(), n_tokens, "{name}");
        let i = n_tokens - 3;
        assert_eq!(tokens.get(i), tokens.iter().nth(i), "{name}");
    }
}

/// Every tensor that llama.cpp converted without an importance matrix has the same bytes after [`quant::quantize`].
#[test]
fn quantize_matches_llama_cpp() {
    let Some(data) = data() else { return };
    let open = |name: &str| {
        let path = data.join("data/models").join(name);
        Gguf::open(&path, LoadMode::Mmap).unwrap()
    };
    let original = open("stories260K.gguf");
    for ty in [
        GgmlType::F16,
        GgmlType::BF16,
        GgmlType::Q8_0,
        GgmlType::Q4_0,
    ] {
        let file = open(&format!("stories260K-{}.gguf", ty.name()));
        let mut n_compared = 0;
        for t in file.tensors().iter().filter(|t| t.ty == ty) {
            let source = values(&original, original.tensor(&t.name).unwrap());
            let mut got = vec![0; t.n_bytes as usize];
            quant::quantize(ty, &source, &mut got).unwrap();
            assert!(got == file.tensor_data(t), "{} {}", ty.name(), t.name);
            n_compared += 1;
        }
        assert!(n_compared > 10, "{}: {n_compared} tensors", ty.name());
    }
}

/// Each format stays close to the original, which a misplaced bit would prevent.
#[test]
fn quantized_models_are_close_to_the_original() {
    let Some(data) = data() else { return };
    let open = |name: &str| {
        let path = data.join("models").join(name);
        Gguf::open(&path, LoadMode::Mmap).unwrap()
    };
    let original = open("forge-mini-BF16.gguf");
    for (name, bound) in [
        ("Q2_K", 0.33),
        ("Q3_K_M", 0.17),
        ("Q4_0", 0.11),
        ("Q4_1", 0.10),
        ("Q4_K_M", 0.09),
        ("Q5_0", 0.06),
        ("Q5_1", 0.06),
        ("Q5_K_M", 0.06),
        ("Q6_K", 0.03),
        ("Q8_0", 0.01),
        ("MXFP4", 0.14),
    ] {
        let file = open(&format!("forge-mini-{name}.gguf"));
        let mut worst = 0.0f64;
        for t in file.tensors() {
            let exact = values(&original, original.tensor(&t.name).unwrap());
            let got = values(&file, t);
            let square = |x: f32| f64::from(x) * f64::from(x);
            let error: f64 = got.iter().zip(&exact).map(|(g, e)| square(g - e)).sum();
            let norm: f64 = exact.iter().map(|&e| square(e)).sum();
            worst = worst.max((error / norm).sqrt());
        }
        println!("{name}: worst relative error of a tensor {worst:.4}");
        assert!(worst < bound, "{name}: {worst}");
    }
}
