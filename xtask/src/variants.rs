//! `cargo xtask variant-golden`: llama.cpp's logits of random models with a quantized cache or with LoRA
//! adapters, which the tests of the engine compare with.

use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use rocmforge_gguf::{Gguf, LoadMode};
use rocmforge_testkit::adapters;

use crate::compare_llama::llama_cpp_with;
use crate::gen_model::{self, golden_row, prompt};

/// Prompt lengths of the committed logits.
const LENGTHS: [usize; 3] = [1, 17, 300];

/// Writes llama.cpp's logits of the last position of each prompt to the engine's fixtures.
pub(crate) fn golden(python: &Path) -> Result<()> {
    let folder = crate::root().join("target/gen-model");
    gen_model::write_all("F32", &folder)?;
    let mut json = String::from("{\n");
    for (i, variant) in adapters::VARIANTS.iter().enumerate() {
        let path = folder.join(format!("{}-F32.gguf", variant.model));
        let model = Arc::new(Gguf::open(&path, LoadMode::Mmap)?);
        let mut options = vec![variant.kv_type.to_string()];
        for (seed, scale) in variant.adapters {
            let to = folder.join(format!("{}-lora-{seed}.gguf", variant.model));
            let bytes = adapters::adapter(&model, seed)?.to_vec()?;
            std::fs::write(&to, bytes).with_context(|| format!("writing {}", to.display()))?;
            options.push(format!("{}={scale}", to.display()));
        }
        write!(json, "  \"{}\": {{", variant.name)?;
        for (j, n_tokens) in LENGTHS.into_iter().enumerate() {
            let ids = prompt(n_tokens, 512);
            let logits = llama_cpp_with(&path, &ids, python, &options)?;
            let comma = if j == 0 { "" } else { "," };
            let row = golden_row(&logits, n_tokens);
            write!(json, "{comma}\n    \"{n_tokens}\": [{row}]")?;
        }
        let last = i + 1 == adapters::VARIANTS.len();
        writeln!(json, "\n  }}{}", if last { "" } else { "," })?;
    }
    json.push_str("}\n");
    let path = crate::root().join("crates/engine/tests/fixtures/variants.json");
    std::fs::write(&path, json).with_context(|| format!("writing {}", path.display()))?;
    println!("wrote {}", path.display());
    Ok(())
}
