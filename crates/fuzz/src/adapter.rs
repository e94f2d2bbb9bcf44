//! Target `adapter`: loads any file as a LoRA adapter of a one-layer model.

use std::sync::{Arc, OnceLock};

use rocmforge_gguf::{GgmlType, Gguf, Writer};
use rocmforge_model::{Adapter, Model};

use crate::gguf::check_message;

/// Width of the model, and of all matrices but the embedding.
pub(crate) const N_EMBD: u64 = 32;
pub(crate) const N_VOCAB: u64 = 8;

pub(crate) fn run(data: &[u8]) {
    let Ok(file) = Gguf::from_vec(data.to_vec()) else {
        return;
    };
    let loaded = Adapter::new("fuzzed", Arc::new(file), 0.5)
        .and_then(|adapter| Model::load_with(base(), &[adapter]));
    if let Err(error) = loaded {
        check_message(error);
    }
}

/// Returns the model that adapters are applied to.
fn base() -> Arc<Gguf> {
    static BASE: OnceLock<Arc<Gguf>> = OnceLock::new();
    let base = BASE.get_or_init(|| {
        let bytes = model().to_vec().expect("the model is a valid file");
        Arc::new(Gguf::from_vec(bytes).expect("the model is a valid file"))
    });
    Arc::clone(base)
}

fn model() -> Writer<'static> {
    let mut writer = Writer::new("llama");
    for (key, value) in [
        ("block_count", 1),
        ("context_length", 16),
        ("embedding_length", N_EMBD as u32),
        ("feed_forward_length", N_EMBD as u32),
        ("attention.head_count", 2),
    ] {
        writer.set(&format!("llama.{key}"), value);
    }
    writer.set("llama.attention.layer_norm_rms_epsilon", 1e-5f32);
    let norms = ["output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"];
    let matrices = [
        "attn_q",
        "attn_k",
        "attn_v",
        "attn_output",
        "ffn_gate",
        "ffn_up",
        "ffn_down",
    ];
    let matrices = matrices.map(|name| (format!("blk.0.{name}"), vec![N_EMBD; 2]));
    let norms = norms.map(|name| (name.to_string(), vec![N_EMBD]));
    let embedding = [("token_embd".to_string(), vec![N_EMBD, N_VOCAB])];
    for (name, dims) in embedding.into_iter().chain(norms).chain(matrices) {
        let values = vec![0.5; dims.iter().product::<u64>() as usize];
        writer
            .add_tensor_f32(&format!("{name}.weight"), &dims, GgmlType::F32, &values)
            .expect("the tensors are of the model");
    }
    writer
}
