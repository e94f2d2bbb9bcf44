//! Random LoRA adapters, with the same bytes every time, and the variants of models whose logits are compared with
//! committed ones of llama.cpp (`cargo xtask variant-golden`).

use rocmforge_gguf::{Error, GgmlType, Gguf, Writer};

use crate::models::uniform;

/// A small random model with a cache type or adapters.
pub struct Variant {
    /// Key of the committed logits.
    pub name: &'static str,
    /// One of `models::NAMES`.
    pub model: &'static str,
    /// Type of the KV cache: `F32` or `Q8_0`.
    pub kv_type: &'static str,
    /// Adapters by seed, with their scales.
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

/// Returns the rank and alpha of the adapter of `seed`; with an alpha of 0 there is no division by the rank.
pub fn rank_and_alpha(seed: &str) -> (usize, f32) {
    match seed {
        "one" => (4, 6.0),
        _ => (7, 0.0),
    }
}

/// Creates an adapter for every matrix of `model`, except embeddings that are tied to the output: llama.cpp cannot run
/// those.
pub fn adapter(model: &Gguf, seed: &str) -> Result<Writer<'static>, Error> {
    let tied = model.tensor("output.weight").is_none();
    adapter_of(model, seed, |name| !tied || name != "token_embd.weight")
}

/// Creates an adapter for the matrices of `model` selected by `wanted`.
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
    // Biases of experts have two dimensions, too.
    let matrices = model
        .tensors()
        .iter()
        .filter(|info| info.dims.len() == 2 && info.name.ends_with(".weight"));
    for info in matrices.filter(|info| wanted(&info.name)) {
        let (n_in, n_out) = (info.dims[0], info.dims[1]);
        // An embedding's first factor has a row per token.
        let (a, b) = match is_embedding(&info.name) {
            true => ([rank as u64, n_out], [rank as u64, n_in]),
            false => ([n_in, rank as u64], [rank as u64, n_out]),
        };
        for (suffix, dims) in [("lora_a", a), ("lora_b", b)] {
            let name = format!("{}.{suffix}", info.name);
            let n_values = (dims[0] * dims[1]) as usize;
            // Both factors together add about a fifth of the matrix's own output.
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

/// Returns whether the tensor `name` is a table with a row per token.
pub fn is_embedding(name: &str) -> bool {
    matches!(name, "token_embd.weight" | "per_layer_token_embd.weight")
}

/// Adds `factor * B A` to a matrix `[n_out, n_in]`: `a` `[rank, n_in]`, `b` `[n_out, rank]`. Of embeddings, `factor * A B^T`:
/// `a` `[n_out, rank]`, `b` `[n_in, rank]`.
pub fn add_product(
    sum: &mut [f64],
    n_in: usize,
    ([a, b], rank, factor): ([&[f64]; 2], usize, f64),
    is_embedding: bool,
) {
    for (i, x) in sum.iter_mut().enumerate() {
        let (row, col) = (i / n_in, i % n_in);
        let terms = (0..rank).map(|r| match is_embedding {
            true => a[row * rank + r] * b[col * rank + r],
            false => b[row * rank + r] * a[r * n_in + col],
        });
        *x += factor * terms.sum::<f64>();
    }
}
