//! Small random models of every wiring, the same bytes every time: the tests run them against committed
//! logits of llama.cpp, and `cargo xtask gen-model` writes them as files for llama.cpp itself.
//!
//! Weights mean nothing; they are scaled so that activations stay finite, and every factor, window and
//! norm that a wiring has is far enough from its neutral value that leaving it out changes the logits.

use rocmforge_gguf::{Error, GgmlType, OwnedValue, Writer};

/// Names that [`model`] takes: architectures, and `olmo3`, which is `olmo2` with windows and YaRN.
pub(crate) const NAMES: [&str; 8] = [
    "llama", "qwen2", "qwen3", "granite", "smollm3", "olmo2", "olmo3", "phi3",
];

const N_LAYERS: usize = 4;
const N_EMBD: usize = 256;
const N_FF: usize = 512;
const N_HEADS: usize = 8;
const N_KV_HEADS: usize = 2;
const HEAD_DIM: usize = N_EMBD / N_HEADS;
const N_VOCAB: usize = 512;
/// What Phi rotates of a head.
const PHI_N_ROT: usize = 24;

/// A token sequence of the vocabulary, for which there are committed logits.
pub(crate) fn prompt(n_tokens: usize, n_vocab: usize) -> Vec<u32> {
    let id = |i: usize| (i as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 33;
    (0..n_tokens)
        .map(|i| (id(i) % n_vocab as u64) as u32)
        .collect()
}

/// The model `name` with matrices of type `ty`; `None` if the name is not one of [`NAMES`].
pub(crate) fn model(name: &str, ty: GgmlType) -> Option<Result<Writer<'static>, Error>> {
    let name = NAMES.into_iter().find(|known| *known == name)?;
    let build = || {
        let arch = if name == "olmo3" { "olmo2" } else { name };
        let mut model = Synth {
            writer: Writer::new(arch),
            arch,
            ty,
        };
        model.facts(name);
        model.vocabulary();
        model.tensors(name)?;
        Ok(model.writer)
    };
    Some(build())
}

struct Synth {
    writer: Writer<'static>,
    arch: &'static str,
    ty: GgmlType,
}

impl Synth {
    fn set(&mut self, key: &str, value: impl Into<OwnedValue>) {
        self.writer.set(&format!("{}.{key}", self.arch), value);
    }

    fn facts(&mut self, name: &str) {
        // llama.cpp expects Phi's tokens of a file whose name says so.
        self.writer.set("general.name", "random");
        for (key, value) in [
            ("block_count", N_LAYERS),
            ("context_length", 2048),
            ("embedding_length", N_EMBD),
            ("feed_forward_length", N_FF),
            ("attention.head_count", N_HEADS),
            ("attention.head_count_kv", N_KV_HEADS),
            ("vocab_size", N_VOCAB),
        ] {
            self.set(key, value as u32);
        }
        self.set("attention.layer_norm_rms_epsilon", 1e-5f32);
        self.set("rope.freq_base", 10_000f32);
        match name {
            "granite" => {
                self.set("embedding_scale", 12f32);
                self.set("residual_scale", 0.22f32);
                self.set("attention.scale", 0.3f32);
                self.set("logit_scale", 8f32);
            }
            "olmo3" => {
                self.set("attention.sliding_window", 64u32);
                self.set("rope.scaling.type", "yarn");
                self.set("rope.scaling.factor", 8f32);
                self.set("rope.scaling.original_context_length", 256u32);
            }
            "phi3" => {
                self.set("rope.dimension_count", PHI_N_ROT as u32);
                self.set("rope.scaling.original_context_length", 256u32);
                self.set("rope.scaling.attn_factor", 1.19f32);
                // Present in released files and without effect in llama.cpp.
                self.set("attention.sliding_window", 64u32);
            }
            _ => {}
        }
    }

    /// A SentencePiece vocabulary of bytes and numbered words.
    fn vocabulary(&mut self) {
        let special = ["<unk>", "<s>", "</s>"].map(str::to_string);
        let bytes = (0..=255).map(|byte| format!("<0x{byte:02X}>"));
        let words = (special.len() + 256..N_VOCAB).map(|id| format!("\u{2581}w{id}"));
        let tokens: Vec<String> = special.into_iter().chain(bytes).chain(words).collect();
        let (unknown, control, byte, normal) = (2, 3, 6, 1);
        let types = (0..N_VOCAB).map(|id| match id {
            0 => unknown,
            1 | 2 => control,
            id if id < 259 => byte,
            _ => normal,
        });
        let w = &mut self.writer;
        w.set("tokenizer.ggml.model", "llama");
        w.set("tokenizer.ggml.token_type", types.collect::<Vec<i32>>());
        let scores = (0..N_VOCAB).map(|id| -(id as f32));
        w.set("tokenizer.ggml.scores", scores.collect::<Vec<f32>>());
        w.set("tokenizer.ggml.tokens", tokens);
        w.set("tokenizer.ggml.bos_token_id", 1u32);
        w.set("tokenizer.ggml.eos_token_id", 2u32);
    }

    fn tensors(&mut self, name: &str) -> Result<(), Error> {
        let (n_q, n_kv) = (N_EMBD, N_KV_HEADS * HEAD_DIM);
        self.matrix("token_embd.weight", N_VOCAB, N_EMBD)?;
        if !matches!(name, "granite" | "smollm3") {
            self.matrix("output.weight", N_VOCAB, N_EMBD)?;
        }
        self.vector("output_norm.weight", N_EMBD, 1.0, 0.3)?;
        if name == "phi3" {
            self.vector("rope_factors_short.weight", PHI_N_ROT / 2, 1.3, 0.3)?;
            self.vector("rope_factors_long.weight", PHI_N_ROT / 2, 6.0, 4.0)?;
        }
        for layer in 0..N_LAYERS {
            let tensor = |name: &str| format!("blk.{layer}.{name}");
            let (attn_norm, ffn_norm) = match self.arch {
                "olmo2" => ("post_attention_norm.weight", "post_ffw_norm.weight"),
                _ => ("attn_norm.weight", "ffn_norm.weight"),
            };
            self.vector(&tensor(attn_norm), N_EMBD, 1.0, 0.3)?;
            self.vector(&tensor(ffn_norm), N_EMBD, 1.0, 0.3)?;
            match self.arch {
                "qwen3" => {
                    self.vector(&tensor("attn_q_norm.weight"), HEAD_DIM, 1.0, 0.3)?;
                    self.vector(&tensor("attn_k_norm.weight"), HEAD_DIM, 1.0, 0.3)?;
                }
                "olmo2" => {
                    self.vector(&tensor("attn_q_norm.weight"), n_q, 1.0, 0.3)?;
                    self.vector(&tensor("attn_k_norm.weight"), n_kv, 1.0, 0.3)?;
                }
                "qwen2" => {
                    for (name, width) in [("q", n_q), ("k", n_kv), ("v", n_kv)] {
                        self.vector(&tensor(&format!("attn_{name}.bias")), width, 0.0, 0.5)?;
                    }
                }
                _ => {}
            }
            self.matrix(&tensor("attn_output.weight"), N_EMBD, n_q)?;
            self.matrix(&tensor("ffn_down.weight"), N_EMBD, N_FF)?;
            if self.arch == "phi3" {
                self.matrix(&tensor("attn_qkv.weight"), n_q + 2 * n_kv, N_EMBD)?;
                self.matrix(&tensor("ffn_up.weight"), 2 * N_FF, N_EMBD)?;
            } else {
                self.matrix(&tensor("attn_q.weight"), n_q, N_EMBD)?;
                self.matrix(&tensor("attn_k.weight"), n_kv, N_EMBD)?;
                self.matrix(&tensor("attn_v.weight"), n_kv, N_EMBD)?;
                self.matrix(&tensor("ffn_gate.weight"), N_FF, N_EMBD)?;
                self.matrix(&tensor("ffn_up.weight"), N_FF, N_EMBD)?;
            }
        }
        Ok(())
    }

    /// `[n_out, n_in]`, values of variance `1 / n_in`.
    fn matrix(&mut self, name: &str, n_out: usize, n_in: usize) -> Result<(), Error> {
        let reach = (3.0 / n_in as f64).sqrt() as f32;
        let values = uniform(name, n_out * n_in, 0.0, reach);
        let dims = [n_in as u64, n_out as u64];
        self.writer.add_tensor_f32(name, &dims, self.ty, &values)?;
        Ok(())
    }

    /// `len` values within `reach` of `mean`.
    fn vector(&mut self, name: &str, len: usize, mean: f32, reach: f32) -> Result<(), Error> {
        let values = uniform(name, len, mean, reach);
        self.writer
            .add_tensor_f32(name, &[len as u64], GgmlType::F32, &values)?;
        Ok(())
    }
}

/// Values of the tensor `name`: splitmix64, seeded with its FNV-1a hash.
pub(crate) fn uniform(name: &str, n: usize, mean: f32, reach: f32) -> Vec<f32> {
    let mut state = name.bytes().fold(0xCBF2_9CE4_8422_2325u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3)
    });
    let mut next = || {
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (state ^ (state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    };
    // The upper 24 bits are exact in f32.
    let unit = |bits: u64| (bits >> 40) as f32 / (1 << 23) as f32 - 1.0;
    (0..n).map(|_| mean + reach * unit(next())).collect()
}
