//! EAGLE-3, a drafter in a file of its own, for any of the random models of 256 values and 4 layers or more.

use rocmforge_gguf::{Error, GgmlType, Writer};

use super::{N_CTX, N_EMBD, N_HEADS, N_KV_HEADS, N_VOCAB, Synth};

const N_FF: usize = 384;
/// Values of the residual stream of [`Eagle3::Narrow`].
const NARROW: usize = 128;
/// Tokens of which [`Eagle3::Short`] has logits.
pub const N_SHORT: usize = 320;

/// What a drafter has of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Eagle3 {
    /// It embeds tokens as the model does, and has logits of a part of the vocabulary.
    Short,
    /// It is narrower than the model, has an embedding and logits of all tokens, and norms what it takes.
    Narrow,
}

impl Eagle3 {
    /// Returns the kind of the drafter `name`.
    pub fn named(name: &str) -> Option<Eagle3> {
        match name {
            "eagle3" => Some(Eagle3::Short),
            "eagle3_narrow" => Some(Eagle3::Narrow),
            _ => None,
        }
    }
}

/// Creates a drafter with matrices of type `ty`.
pub fn eagle3(kind: Eagle3, ty: GgmlType) -> Result<Writer<'static>, Error> {
    let is_narrow = kind == Eagle3::Narrow;
    let n_embd = if is_narrow { NARROW } else { N_EMBD };
    let name = if is_narrow { "eagle3_narrow" } else { "eagle3" };
    let mut model = Synth::new((name, "eagle3"), ty, 1);
    let head_dim = N_EMBD / N_HEADS;
    model.vocabulary();
    for (key, value) in [
        ("block_count", 1),
        ("context_length", N_CTX),
        ("embedding_length", n_embd),
        ("feed_forward_length", N_FF),
        ("attention.head_count", N_HEADS),
        ("attention.head_count_kv", N_KV_HEADS),
        ("attention.key_length", head_dim),
        ("attention.value_length", head_dim),
        ("target_hidden_size", N_EMBD),
        ("vocab_size", N_VOCAB),
    ] {
        model.set(key, value as u32);
    }
    model.set("attention.layer_norm_rms_epsilon", 1e-5f32);
    model.set("rope.freq_base", 10_000f32);
    model.set("rope.dimension_count", head_dim as u32);
    let layers = if is_narrow { [2, 0, 4] } else { [1, 2, 3] };
    model.set("target_layers", layers.to_vec());
    model.set("norm_before_residual", is_narrow);
    model.set("norm_before_fc", is_narrow);
    model.matrix("fc.weight", n_embd, 3 * N_EMBD)?;
    // It is sure of its drafts.
    model.vector("output_norm.weight", n_embd, 4.0, 1.5)?;
    if is_narrow {
        model.matrix("token_embd.weight", N_VOCAB, n_embd)?;
        model.matrix("output.weight", N_VOCAB, n_embd)?;
        model.norm("enc.output_norm", 3 * N_EMBD)?;
        model.vector("rope_freqs.weight", head_dim / 2, 4.0, 3.0)?;
    } else {
        model.matrix("output.weight", N_SHORT, n_embd)?;
        let ids = (0..N_SHORT).flat_map(|i| (short_id(i) as i64).to_le_bytes());
        let (dims, ids) = ([N_SHORT as u64], ids.collect::<Vec<u8>>());
        { &mut model.writer }.add_tensor("d2t", &dims, GgmlType::I64, ids)?;
    }
    let (n_q, n_kv) = (N_HEADS * head_dim, N_KV_HEADS * head_dim);
    for (name, n_out, n_in) in [
        ("attn_q", n_q, 2 * n_embd),
        ("attn_k", n_kv, 2 * n_embd),
        ("attn_v", n_kv, 2 * n_embd),
        ("attn_output", n_embd, n_q),
        ("ffn_gate", N_FF, n_embd),
        ("ffn_up", N_FF, n_embd),
        ("ffn_down", n_embd, N_FF),
    ] {
        model.linear(&format!("blk.0.{name}"), n_out, n_in)?;
    }
    for norm in ["attn_norm", "attn_norm_2", "ffn_norm"] {
        model.norm(&format!("blk.0.{norm}"), n_embd)?;
    }
    Ok(model.writer)
}

/// Returns the token of a logit of [`Eagle3::Short`].
pub fn short_id(logit: usize) -> usize {
    logit * 8 / 5
}
