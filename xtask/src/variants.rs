//! `cargo xtask variant-golden`: records llama.cpp's logits of random models with a quantized KV cache or LoRA
//! adapters, for the engine's tests.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use rocmforge_gguf::{Gguf, LoadMode};
use rocmforge_testkit::adapters;

use crate::compare_llama::llama_cpp_with;
use crate::gen_model::{self, golden_model, write_golden};

/// Records llama.cpp's logits of every case for the engine's tests.
pub(crate) fn golden(python: &Path) -> Result<()> {
    let folder = crate::root().join("target/gen-model");
    gen_model::write_all("F32", &folder)?;
    let mut cases = Vec::new();
    for variant in adapters::VARIANTS {
        let path = folder.join(format!("{}-F32.gguf", variant.model));
        let model = Arc::new(Gguf::open(&path, LoadMode::Mmap)?);
        let mut options = vec![variant.kv_type.to_string()];
        for (seed, scale) in variant.adapters {
            let to = folder.join(format!("{}-lora-{seed}.gguf", variant.model));
            let bytes = adapters::adapter(&model, seed)?.to_vec()?;
            std::fs::write(&to, bytes).with_context(|| format!("writing {}", to.display()))?;
            options.push(format!("{}={scale}", to.display()));
        }
        let logits = |ids: &[u32]| llama_cpp_with(&path, ids, python, &options);
        cases.push(golden_model(variant.name, logits)?);
    }
    write_golden("crates/engine/tests/fixtures/variants.json", &cases)
}
