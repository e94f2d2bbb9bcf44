//! Gemma 3n: four residual streams, low-rank layers beside attention, sparse gates in the first ten layers, inputs of every
//! layer, and from the 21st layer on those that share the KV cache of others. llama.cpp fixes these numbers, and the
//! widths of the inputs and of the low-rank layers.

use rocmforge_gguf::{Error, GgmlType};

use super::{N_EMBD, N_VOCAB, Synth, uniform};

const N_STREAMS: usize = 4;
/// Values of the input of each layer.
const N_INPUTS: usize = 256;
const RANK: usize = 64;
const N_HEADS: usize = 4;
const N_KV_HEADS: usize = 2;
const HEAD_DIM: usize = 64;
const N_FF: usize = 256;
/// Layers with a KV cache of their own.
const N_CACHES: usize = 20;
const N_SPARSE: usize = 10;

impl Synth {
    pub(super) fn gemma3n_facts(&mut self) {
        let layers = 0..self.n_layers;
        let windows: Vec<bool> = layers.clone().map(|layer| layer % 5 < 4).collect();
        let sparsity = layers.map(|layer| match layer < N_SPARSE {
            true => 1.644_853_6,
            false => f32::NEG_INFINITY,
        });
        let sparsity: Vec<f32> = sparsity.collect();
        self.set("attention.head_count", N_HEADS as u32);
        self.set("attention.head_count_kv", N_KV_HEADS as u32);
        self.set("attention.key_length", HEAD_DIM as u32);
        self.set("attention.value_length", HEAD_DIM as u32);
        self.set("attention.sliding_window", 20u32);
        self.set("attention.sliding_window_pattern", windows);
        let n_shared = self.n_layers.saturating_sub(N_CACHES);
        self.set("attention.shared_kv_layers", n_shared as u32);
        self.set("feed_forward_length", vec![N_FF as i32; self.n_layers]);
        self.set("rope.freq_base", 1_000_000f32);
        self.set("altup.active_idx", 0u32);
        self.set("altup.num_inputs", N_STREAMS as u32);
        self.set("activation_sparsity_scale", sparsity);
        self.set("embedding_length_per_layer_input", N_INPUTS as u32);
    }

    pub(super) fn gemma3n_inputs(&mut self) -> Result<(), Error> {
        let width = N_INPUTS * self.n_layers;
        self.matrix("per_layer_token_embd.weight", N_VOCAB, width)?;
        self.matrix("per_layer_model_proj.weight", width, N_EMBD)?;
        self.vector("per_layer_proj_norm.weight", N_INPUTS, 1.0, 0.3)?;
        let shape = [N_STREAMS - 1, N_EMBD, N_EMBD];
        self.expert_matrices("altup_proj.weight", shape)?;
        self.expert_matrices("altup_unembd_proj.weight", shape)
    }

    pub(super) fn gemma3n_layer(&mut self, tensor: &dyn Fn(&str) -> String) -> Result<(), Error> {
        let (n_q, n_kv) = (N_HEADS * HEAD_DIM, N_KV_HEADS * HEAD_DIM);
        for norm in [
            "attn_norm",
            "ffn_norm",
            "altup_router_norm",
            "altup_correct_scale",
        ] {
            self.norm(&tensor(norm), N_EMBD)?;
        }
        // Small additions to the streams: with larger ones, rounding errors would double in each of the many layers.
        for norm in [
            "post_attention_norm",
            "post_ffw_norm",
            "post_norm",
            "laurel_post_norm",
        ] {
            let norm = format!("{}.weight", tensor(norm));
            self.vector(&norm, N_EMBD, 0.25, 0.1)?;
        }
        // Scores are not scaled, and would be so large that a single position had all the weight.
        let mean = 1.5 / (HEAD_DIM as f32).sqrt();
        self.vector(&tensor("attn_q_norm.weight"), HEAD_DIM, mean, 0.3 * mean)?;
        self.norm(&tensor("attn_k_norm"), HEAD_DIM)?;
        for (name, n_out, n_in) in [
            ("attn_q", n_q, N_EMBD),
            ("attn_k", n_kv, N_EMBD),
            ("attn_v", n_kv, N_EMBD),
            ("attn_output", N_EMBD, n_q),
            ("ffn_gate", N_FF, N_EMBD),
            ("ffn_up", N_FF, N_EMBD),
            ("ffn_down", N_EMBD, N_FF),
            ("inp_gate", N_INPUTS, N_EMBD),
            ("proj", N_EMBD, N_INPUTS),
            ("laurel_l", RANK, N_EMBD),
            ("laurel_r", N_EMBD, RANK),
        ] {
            self.linear(&tensor(name), n_out, n_in)?;
        }
        // Its input is divided by its width.
        let reach = (3.0 * N_EMBD as f32).sqrt();
        self.small(&tensor("altup_router.weight"), [N_STREAMS, N_EMBD], reach)?;
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
        let values = uniform(name, n_out * n_in, 0.0, reach);
        let dims = [n_in as u64, n_out as u64];
        self.writer
            .add_tensor_f32(name, &dims, GgmlType::F32, &values)?;
        Ok(())
    }
}
