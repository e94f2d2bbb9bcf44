//! Random LoRA adapters of a model, the same bytes every time, and the cases that tests compare with
//! committed logits of llama.cpp (`cargo xtask variant-golden`).

use rocmforge_gguf::{Error, GgmlType, Gguf, Writer};

use crate::models::uniform;

/// A small random model run with a cache type or adapters.
pub struct Variant {
    /// Its key among the committed logits.
    pub name: &'static str,
    /// One of `models::NAMES`.
    pub model: &'static str,
    /// Type of the KV cache: `F32` or `Q8_0`.
    pub kv_type: &'static str,
    /// Adapters by their seeds, and their scales.
    pub adapters: &'static [(&'static str, f32)],
}

pub const VARIANTS: [Variant; 8] = [
    variant("llama q8_0", "llama", "Q8_0", &[]),
    variant("olmo3 q8_0", "olmo3", "Q8_0", &[]),
    variant("llama lora", "llama", "F32", &[("one", 1.0)]),
    variant(
        "llama lora x2",
        "llama",
        "F32",
        &[("one", 0.7), ("two", -1.5)],
    ),
    variant("qwen2 lora", "qwen2", "F32", &[("one", 1.0)]),
    variant("phi3 lora", "phi3", "F32", &[("one", 1.0)]),
    variant("granite lora", "granite", "F32", &[("one", 0.5)]),
    variant("olmo3 lora", "olmo3", "F32", &[("two", 1.0)]),
];

const fn variant(
    name: &'static str,
    model: &'static str,
    kv_type: &'static str,
    adapters: &'static [(&'static str, f32)],
) -> Variant {
    Variant {
        name,
        model,
        kv_type,
        adapters,
    }
}

/// Rank and alpha of the adapter of `seed`; an alpha of 0 leaves the division by the rank out.
pub fn rank_and_alpha(seed: &str) -> (usize, f32) {
    match seed {
        "one" => (4, 6.0),
        _ => (7, 0.0),
    }
}

/// An adapter of every matrix of `model`. Embeddings that are tied to the output are left out: llama.cpp
/// cannot run those.
pub fn adapter(model: &Gguf, seed: &str) -> Result<Writer<'static>, Error> {
    let tied = model.tensor("output.weight").is_none();
    adapter_of(model, seed, |name| !tied || name != "token_embd.weight")
}

/// An adapter of the matrices of `model` that `wanted` names.
pub fn adapter_of(
    model: &Gguf,
    seed: &str,
    wanted: impl Fn(&str) -> bool,
) -> Result<Writer<'static>, Error> {
    let (rank, alpha) = rank_and_alpha(seed);
    let arch = model.metadata().str("general.architecture")?;
    let mut writer = Writer::new(arch);
    writer.set("general.type", "adapter");
    writer.set("adapter.type", "lora");
    writer.set("adapter.lora.alpha", alpha);
    let matrices = model.tensors().iter().filter(|info| info.dims.len() == 2);
    for info in matrices.filter(|info| wanted(&info.name)) {
        let (n_in, n_out) = (info.dims[0], info.dims[1]);
        // The embedding's first factor has a row for each token.
        let (a, b) = match info.name.as_str() {
            "token_embd.weight" => ([rank as u64, n_out], [rank as u64, n_in]),
            _ => ([n_in, rank as u64], [rank as u64, n_out]),
        };
        for (suffix, dims) in [("lora_a", a), ("lora_b", b)] {
            let name = format!("{}.{suffix}", info.name);
            let n_values = (dims[0] * dims[1]) as usize;
            // Both factors together add about a fifth of what the matrix itself gives.
            let reach = match suffix {
                "lora_a" => (3.0 / dims[0] as f32).sqrt(),
                _ => 0.3 / (rank as f32).sqrt(),
            };
            let values = uniform(&format!("{seed}.{name}"), n_values, 0.0, reach);
            writer.add_tensor_f32(&name, &dims, GgmlType::F32, &values)?;
        }
    }
    Ok(writer)
}
