//! gpt-oss: sinks, windows in every other layer, biases everywhere, experts with a clamped SwiGLU.

use rocmforge_gguf::Error;

use super::{EXPERT_N_FF, N_EMBD, N_EXPERTS, N_HEADS, Synth};

const HEAD_DIM: usize = 64;
const N_KV_HEADS: usize = 1;

impl Synth {
    pub(super) fn gpt_oss_facts(&mut self) {
        self.set("attention.head_count_kv", N_KV_HEADS as u32);
        self.set("attention.key_length", HEAD_DIM as u32);
        self.set("attention.value_length", HEAD_DIM as u32);
        self.set("attention.sliding_window", 20u32);
        self.set("rope.scaling.type", "yarn");
        self.set("rope.scaling.factor", 8f32);
        self.set("rope.scaling.original_context_length", 64u32);
        self.experts(3);
        self.set("expert_feed_forward_length", EXPERT_N_FF as u32);
    }

    pub(super) fn gpt_oss_layer(&mut self, tensor: &dyn Fn(&str) -> String) -> Result<(), Error> {
        self.norm(&tensor("attn_norm"), N_EMBD)?;
        self.norm(&tensor("post_attention_norm"), N_EMBD)?;
        let (n_q, n_kv) = (N_HEADS * HEAD_DIM, N_KV_HEADS * HEAD_DIM);
        for (name, n_out, n_in) in [
            ("attn_q", n_q, N_EMBD),
            ("attn_k", n_kv, N_EMBD),
            ("attn_v", n_kv, N_EMBD),
            ("attn_output", N_EMBD, n_q),
        ] {
            self.matrix(&tensor(&format!("{name}.weight")), n_out, n_in)?;
            self.vector(&tensor(&format!("{name}.bias")), n_out, 0.0, 0.5)?;
        }
        // Below, among and above the scores.
        self.vector(&tensor("attn_sinks.weight"), N_HEADS, 1.0, 3.0)?;
        self.mixture(tensor, EXPERT_N_FF)?;
        self.vector(&tensor("ffn_gate_inp.bias"), N_EXPERTS, 0.0, 0.5)?;
        for (name, n_out) in [
            ("ffn_gate_exps.bias", EXPERT_N_FF),
            ("ffn_up_exps.bias", EXPERT_N_FF),
            ("ffn_down_exps.bias", N_EMBD),
        ] {
            // Wide enough that the clamps of both sides of SwiGLU matter.
            self.rows(&tensor(name), [N_EXPERTS, n_out], 0.0, 8.0)?;
        }
        Ok(())
    }
}
