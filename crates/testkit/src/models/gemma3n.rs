//! Gemma 3n: four residual streams, low-rank layers beside attention, sparse gates in the first ten layers, inputs of every
//! layer, and from the 21st layer on those that share the KV cache of others. llama.cpp fixes these numbers, and the
//! widths of the inputs and of the low-rank layers.

use rocmforge_gguf::Error;

use super::{N_EMBD, N_VOCAB, Synth};

/// What differs between models.
pub(super) struct Gemma3n {
    pub(super) n_embd: usize,
    /// Query heads, heads of K and V, values per head.
    pub(super) heads: [usize; 3],
    pub(super) n_ff: usize,
}

/// The shape of the model `gemma3n`.
pub(super) const GEMMA3N: Gemma3n = Gemma3n {
    n_embd: N_EMBD,
    heads: [4, 2, 64],
    n_ff: 256,
};

const N_STREAMS: usize = 4;
/// Values of the input of each layer.
const N_INPUTS: usize = 256;
const RANK: usize = 64;
/// Layers with a KV cache of their own.
const N_CACHES: usize = 20;
const N_SPARSE: usize = 10;

impl Synth {
    pub(super) fn gemma3n_facts(&mut self, shape: &Gemma3n) {
        let [n_heads, n_kv_heads, head_dim] = shape.heads;
        let layers = 0..self.n_layers;
        let windows: Vec<bool> = layers.clone().map(|layer| layer % 5 < 4).collect();
        let sparsity = layers.map(|layer| match layer < N_SPARSE {
            true => 1.644_853_6,
            false => f32::NEG_INFINITY,
        });
        let sparsity: Vec<f32> = sparsity.collect();
        self.set("attention.head_count", n_heads as u32);
        self.set("attention.head_count_kv", n_kv_heads as u32);
        self.set("attention.key_length", head_dim as u32);
        self.set("attention.value_length", head_dim as u32);
        self.set("attention.sliding_window", 20u32);
        self.set("attention.sliding_window_pattern", windows);
        let n_shared = self.n_layers.saturating_sub(N_CACHES);
        self.set("attention.shared_kv_layers", n_shared as u32);
        self.set(
            "feed_forward_length",
            vec![shape.n_ff as i32; self.n_layers],
        );
        self.set("rope.freq_base", 1_000_000f32);
        self.set("altup.active_idx", 0u32);
        self.set("altup.num_inputs", N_STREAMS as u32);
        self.set("activation_sparsity_scale", sparsity);
        self.set("embedding_length_per_layer_input", N_INPUTS as u32);
    }

    pub(super) fn gemma3n_inputs(&mut self, shape: &Gemma3n) -> Result<(), Error> {
        let n_embd = shape.n_embd;
        let width = N_INPUTS * self.n_layers;
        self.matrix("per_layer_token_embd.weight", N_VOCAB, width)?;
        self.matrix("per_layer_model_proj.weight", width, n_embd)?;
        self.vector("per_layer_proj_norm.weight", N_INPUTS, 1.0, 0.3)?;
        let shape = [N_STREAMS - 1, n_embd, n_embd];
        self.expert_matrices("altup_proj.weight", shape)?;
        self.expert_matrices("altup_unembd_proj.weight", shape)
    }

    pub(super) fn gemma3n_layer(
        &mut self,
        shape: &Gemma3n,
        tensor: &dyn Fn(&str) -> String,
    ) -> Result<(), Error> {
        let Gemma3n {
            n_embd,
            heads: [n_heads, n_kv_heads, head_dim],
            n_ff,
        } = *shape;
        let (n_q, n_kv) = (n_heads * head_dim, n_kv_heads * head_dim);
        for norm in [
            "attn_norm",
            "ffn_norm",
            "altup_router_norm",
            "altup_correct_scale",
        ] {
            self.norm(&tensor(norm), n_embd)?;
        }
        // Small additions to the streams: with larger ones, rounding errors would double in each of the many layers.
        for norm in [
            "post_attention_norm",
            "post_ffw_norm",
            "post_norm",
            "laurel_post_norm",
        ] {
            let norm = format!("{}.weight", tensor(norm));
            self.vector(&norm, n_embd, 0.25, 0.1)?;
        }
        // Scores are not scaled, and would be so large that a single position had all the weight.
        let mean = 1.5 / (head_dim as f32).sqrt();
        self.vector(&tensor("attn_q_norm.weight"), head_dim, mean, 0.3 * mean)?;
        self.norm(&tensor("attn_k_norm"), head_dim)?;
        for (name, n_out, n_in) in [
            ("attn_q", n_q, n_embd),
            ("attn_k", n_kv, n_embd),
            ("attn_v", n_kv, n_embd),
            ("attn_output", n_embd, n_q),
            ("ffn_gate", n_ff, n_embd),
            ("ffn_up", n_ff, n_embd),
            ("ffn_down", n_embd, n_ff),
            ("inp_gate", N_INPUTS, n_embd),
            ("proj", n_embd, N_INPUTS),
            ("laurel_l", RANK, n_embd),
            ("laurel_r", n_embd, RANK),
        ] {
            self.linear(&tensor(name), n_out, n_in)?;
        }
        // Its input is divided by its width.
        let reach = (3.0 * n_embd as f32).sqrt();
        self.small(&tensor("altup_router.weight"), [N_STREAMS, n_embd], reach)?;
        let n_pairs = N_STREAMS * N_STREAMS;
        self.small(
            &tensor("altup_predict_coef.weight"),
            [n_pairs, N_STREAMS],
            0.2,
        )?;
        self.small(&tensor("altup_correct_coef.weight"), [N_STREAMS; 2], 0.4)
    }

    /// Adds a matrix in F32, as converters do for small ones.
    fn small(&mut self, name: &str, [n_out, n_in]: [usize; 2], reach: f32) -> Result<(), Error> {
        self.floats(name, &[n_in, n_out], (0.0, reach))
    }
}
