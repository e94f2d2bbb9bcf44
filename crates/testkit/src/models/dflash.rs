//! DFlash, a drafter in a file of its own that predicts blocks of tokens, for any of the random models of 256 values and 4 layers
//! or more.

use rocmforge_gguf::{Error, GgmlType, Writer};

use super::{N_CTX, N_EMBD, N_KV_HEADS, N_VOCAB, Synth};

const N_FF: usize = 384;
const N_LAYERS: usize = 2;
/// Tokens of which [`Dflash::Own`] has logits.
pub const N_SHORT: usize = 320;

/// What a drafter has of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dflash {
    /// It embeds tokens and makes logits as the model does.
    Shared,
    /// It has all that files may have: an embedding, logits of a part of the vocabulary, a layer with a window and sinks, one
    /// whose values are its keys, norms after each block, factors, and GELU.
    Own,
}

impl Dflash {
    /// Returns the kind of the drafter `name`.
    pub fn named(name: &str) -> Option<Dflash> {
        [Dflash::Shared, Dflash::Own]
            .into_iter()
            .find(|kind| kind.name() == name)
    }

    fn name(self) -> &'static str {
        match self {
            Dflash::Shared => "dflash",
            Dflash::Own => "dflash_own",
        }
    }

    /// The model's layers whose values it takes.
    pub fn layers(self) -> &'static [u32] {
        match self {
            Dflash::Shared => &[1, 3],
            Dflash::Own => &[2, 0, 4, 1],
        }
    }

    /// Tokens of a block.
    pub fn n_block(self) -> usize {
        match self {
            Dflash::Shared => 4,
            Dflash::Own => 5,
        }
    }

    /// The token that stands for those that are predicted.
    pub fn mask(self) -> u32 {
        match self {
            Dflash::Shared => 3,
            Dflash::Own => N_VOCAB as u32 - 1,
        }
    }

    pub fn n_heads(self) -> usize {
        match self {
            Dflash::Shared => 8,
            Dflash::Own => 4,
        }
    }

    pub fn head_dim(self) -> usize {
        match self {
            Dflash::Shared => 32,
            Dflash::Own => 64,
        }
    }
}

/// Creates a drafter with matrices of type `ty`.
pub fn dflash(kind: Dflash, ty: GgmlType) -> Result<Writer<'static>, Error> {
    let mut model = Synth::new((kind.name(), "dflash"), ty, N_LAYERS);
    let (n_heads, head_dim) = (kind.n_heads(), kind.head_dim());
    model.vocabulary();
    { &mut model.writer }.set("tokenizer.ggml.mask_token_id", kind.mask());
    for (key, value) in [
        ("block_count", N_LAYERS),
        ("context_length", N_CTX),
        ("embedding_length", N_EMBD),
        ("feed_forward_length", N_FF),
        ("attention.head_count", n_heads),
        ("attention.head_count_kv", N_KV_HEADS),
        ("attention.key_length", head_dim),
        ("attention.value_length", head_dim),
        ("rope.dimension_count", head_dim),
        ("vocab_size", N_VOCAB),
        ("block_size", kind.n_block()),
    ] {
        model.set(key, value as u32);
    }
    model.set("attention.layer_norm_rms_epsilon", 1e-5f32);
    model.set("rope.freq_base", 10_000f32);
    model.set("target_layers", kind.layers().to_vec());
    model.matrix("fc.weight", N_EMBD, kind.layers().len() * N_EMBD)?;
    model.norm("enc.output_norm", N_EMBD)?;
    // It is sure of its drafts.
    model.vector("output_norm.weight", N_EMBD, 4.0, 1.5)?;
    if kind == Dflash::Own {
        own(&mut model)?;
    }
    let (n_q, n_kv) = (n_heads * head_dim, N_KV_HEADS * head_dim);
    for layer in 0..N_LAYERS {
        let tensor = |name: &str| format!("blk.{layer}.{name}");
        for (name, n_out, n_in) in [
            ("attn_q", n_q, N_EMBD),
            ("attn_k", n_kv, N_EMBD),
            ("attn_v", n_kv, N_EMBD),
            ("attn_output", N_EMBD, n_q),
            ("ffn_gate", N_FF, N_EMBD),
            ("ffn_up", N_FF, N_EMBD),
            ("ffn_down", N_EMBD, N_FF),
        ] {
            let has_no_values = kind == Dflash::Own && layer == 1;
            if name != "attn_v" || !has_no_values {
                model.linear(&tensor(name), n_out, n_in)?;
            }
        }
        for (norm, width) in [
            ("attn_norm", N_EMBD),
            ("ffn_norm", N_EMBD),
            ("attn_q_norm", head_dim),
            ("attn_k_norm", head_dim),
        ] {
            model.norm(&tensor(norm), width)?;
        }
        if kind == Dflash::Own {
            model.norm(&tensor("post_attention_norm"), N_EMBD)?;
            model.norm(&tensor("post_ffw_norm"), N_EMBD)?;
            model.vector(&tensor("layer_output_scale.weight"), 1, 0.7, 0.2)?;
        }
    }
    Ok(model.writer)
}

/// Adds what only [`Dflash::Own`] has, except parts of its layers.
fn own(model: &mut Synth) -> Result<(), Error> {
    let (n_heads, head_dim) = (Dflash::Own.n_heads(), Dflash::Own.head_dim());
    model.set("attention.sliding_window", 9u32);
    model.set("attention.sliding_window_pattern", vec![true, false]);
    model.set("attention.scale", 0.2f32);
    model.set("attention.value_scale", 1.3f32);
    model.set("embedding_scale", 2.5f32);
    model.set("hidden_activation", "gelu");
    model.matrix("token_embd.weight", N_VOCAB, N_EMBD)?;
    model.matrix("output.weight", N_SHORT, N_EMBD)?;
    model.vector("rope_freqs.weight", head_dim / 2, 4.0, 3.0)?;
    model.vector("blk.0.attn_sinks.weight", n_heads, 1.0, 1.0)?;
    let ids = (0..N_SHORT).flat_map(|i| (short_id(i) as i64).to_le_bytes());
    let (dims, ids) = ([N_SHORT as u64], ids.collect::<Vec<u8>>());
    { &mut model.writer }.add_tensor("d2t", &dims, GgmlType::I64, ids)?;
    Ok(())
}

/// Returns the token of a logit of [`Dflash::Own`].
pub fn short_id(logit: usize) -> usize {
    logit * 8 / 5
}
