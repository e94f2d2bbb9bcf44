//! Gemma 4: layers that differ in heads, widths and windows. `gemma4` has inputs of every layer and layers that share
//! the KV cache of others, as E2B and E4B; `gemma4_wide` has values that are the keys and heads of 512, as 31B;
//! `gemma4_moe` has experts beside the network of all layers but the first, as 26B has in all.

use rocmforge_gguf::Error;

use super::{EXPERT_N_FF, N_EMBD, N_EXPERTS, N_HEADS, N_VOCAB, Synth};
use rocmforge_gguf::{GgmlType, Writer};

/// Width, network and layers of a drafter.
const ASSISTANT_N_EMBD: usize = 128;
const ASSISTANT_N_FF: usize = 192;
const ASSISTANT_N_LAYERS: usize = 4;

/// Creates the drafter of the model `target` of Gemma 4, in a file of its own, with matrices of type `ty`; `None` if there is no
/// such model.
pub fn assistant(target: &str, ty: GgmlType) -> Option<Result<Writer<'static>, Error>> {
    let name = match target {
        "gemma4" | "gemma4_moe" => "gemma4_assistant",
        "gemma4_wide" => "gemma4_wide",
        _ => return None,
    };
    let build = || {
        let names = (name, "gemma4-assistant");
        let mut model = Synth::new(names, ty, ASSISTANT_N_LAYERS);
        model.begin(name);
        model.gemma4_facts();
        for (key, value) in [
            ("embedding_length", ASSISTANT_N_EMBD),
            ("embedding_length_out", N_EMBD),
            ("nextn_predict_layers", ASSISTANT_N_LAYERS),
            ("attention.shared_kv_layers", ASSISTANT_N_LAYERS),
            ("feed_forward_length", ASSISTANT_N_FF),
        ] {
            model.set(key, value as u32);
        }
        model.assistant_tensors()?;
        Ok(model.writer)
    };
    Some(build())
}

/// Values of the input of each layer.
const N_INPUTS: usize = 32;

impl Synth {
    fn is_wide(&self) -> bool {
        self.name == "gemma4_wide"
    }

    fn has_inputs(&self) -> bool {
        self.name == "gemma4"
    }

    fn has_experts(&self, layer: usize) -> bool {
        self.name == "gemma4_moe" && layer > 0
    }

    fn has_window(&self, layer: usize) -> bool {
        layer % 4 != 3 && layer + 1 != self.n_layers
    }

    fn n_shared(&self) -> usize {
        match self.has_inputs() && self.n_layers >= 8 {
            true => 4,
            false => 0,
        }
    }

    /// Values per head, and KV heads.
    fn heads_of(&self, layer: usize) -> [usize; 2] {
        match (self.is_wide(), self.has_window(layer)) {
            (false, true) => [64, 2],
            (false, false) => [128, 1],
            (true, true) => [256, 4],
            (true, false) => [512, 1],
        }
    }

    fn n_ff_of(&self, layer: usize) -> usize {
        match layer < self.n_layers / 2 {
            true => 256,
            false => 512,
        }
    }

    pub(super) fn gemma4_facts(&mut self) {
        let layers = 0..self.n_layers;
        let windows: Vec<bool> = layers.clone().map(|il| self.has_window(il)).collect();
        let n_kv: Vec<i32> = layers
            .clone()
            .map(|il| self.heads_of(il)[1] as i32)
            .collect();
        let n_ff: Vec<i32> = layers.map(|il| self.n_ff_of(il) as i32).collect();
        let [global, _] = self.heads_of(self.n_layers - 1);
        let [in_window, _] = self.heads_of(0);
        self.set("attention.head_count_kv", n_kv);
        self.set("feed_forward_length", n_ff);
        self.set("attention.key_length", global as u32);
        self.set("attention.value_length", global as u32);
        self.set("attention.key_length_swa", in_window as u32);
        self.set("attention.value_length_swa", in_window as u32);
        self.set("rope.dimension_count", global as u32);
        self.set("rope.dimension_count_swa", in_window as u32);
        self.set("rope.freq_base", 1_000_000f32);
        self.set("rope.freq_base_swa", 5_000f32);
        self.set("attention.sliding_window", 20u32);
        self.set("attention.sliding_window_pattern", windows);
        self.set("attention.shared_kv_layers", self.n_shared() as u32);
        let n_inputs = if self.has_inputs() { N_INPUTS } else { 0 };
        self.set("embedding_length_per_layer_input", n_inputs as u32);
        self.set("final_logit_softcapping", 5f32);
        if self.name == "gemma4_moe" {
            self.experts(3);
            self.set("expert_feed_forward_length", EXPERT_N_FF as u32);
        }
    }

    pub(super) fn gemma4_inputs(&mut self) -> Result<(), Error> {
        let [global, _] = self.heads_of(self.n_layers - 1);
        self.vector("rope_freqs.weight", global / 2, 4.0, 3.0)?;
        if !self.has_inputs() {
            return Ok(());
        }
        let width = N_INPUTS * self.n_layers;
        self.matrix("per_layer_token_embd.weight", N_VOCAB, width)?;
        self.matrix("per_layer_model_proj.weight", width, N_EMBD)?;
        self.vector("per_layer_proj_norm.weight", N_INPUTS, 1.0, 0.3)
    }

    pub(super) fn gemma4_layer(
        &mut self,
        layer: usize,
        tensor: &dyn Fn(&str) -> String,
    ) -> Result<(), Error> {
        let [dim, n_kv] = self.heads_of(layer);
        let has_cache = layer < self.n_layers - self.n_shared();
        self.linear(&tensor("attn_q"), N_HEADS * dim, N_EMBD)?;
        // Scores are not scaled, and would be so large that a single position had all the weight.
        let mean = 1.5 / (dim as f32).sqrt();
        self.vector(&tensor("attn_q_norm.weight"), dim, mean, 0.3 * mean)?;
        self.linear(&tensor("attn_output"), N_EMBD, N_HEADS * dim)?;
        if has_cache {
            self.linear(&tensor("attn_k"), n_kv * dim, N_EMBD)?;
            self.norm(&tensor("attn_k_norm"), dim)?;
            if !self.is_wide() || self.has_window(layer) {
                self.linear(&tensor("attn_v"), n_kv * dim, N_EMBD)?;
            }
        }
        for norm in [
            "attn_norm",
            "post_attention_norm",
            "ffn_norm",
            "post_ffw_norm",
        ] {
            self.norm(&tensor(norm), N_EMBD)?;
        }
        self.vector(&tensor("layer_output_scale.weight"), 1, 0.7, 0.2)?;
        let n_ff = self.n_ff_of(layer);
        self.linear(&tensor("ffn_gate"), n_ff, N_EMBD)?;
        self.linear(&tensor("ffn_up"), n_ff, N_EMBD)?;
        self.linear(&tensor("ffn_down"), N_EMBD, n_ff)?;
        if self.has_experts(layer) {
            self.gemma4_experts(tensor)?;
        }
        if self.has_inputs() {
            self.linear(&tensor("inp_gate"), N_INPUTS, N_EMBD)?;
            self.linear(&tensor("proj"), N_EMBD, N_INPUTS)?;
            self.norm(&tensor("post_norm"), N_EMBD)?;
        }
        Ok(())
    }

    fn gemma4_experts(&mut self, tensor: &dyn Fn(&str) -> String) -> Result<(), Error> {
        for norm in ["post_ffw_norm_1", "pre_ffw_norm_2", "post_ffw_norm_2"] {
            self.norm(&tensor(norm), N_EMBD)?;
        }
        self.router(&tensor("ffn_gate_inp.weight"), [N_EXPERTS, N_EMBD])?;
        // Its input is divided by the root of its width.
        let root = (N_EMBD as f32).sqrt();
        self.vector(&tensor("ffn_gate_inp.scale"), N_EMBD, root, 0.5 * root)?;
        let (both, down) = ("ffn_gate_up_exps.weight", "ffn_down_exps.weight");
        self.expert_matrices(&tensor(both), [N_EXPERTS, 2 * EXPERT_N_FF, N_EMBD])?;
        self.expert_matrices(&tensor(down), [N_EXPERTS, N_EMBD, EXPERT_N_FF])?;
        self.vector(&tensor("ffn_down_exps.scale"), N_EXPERTS, 1.0, 0.5)
    }

    fn assistant_tensors(&mut self) -> Result<(), Error> {
        let n_embd = ASSISTANT_N_EMBD;
        self.matrix("token_embd.weight", N_VOCAB, n_embd)?;
        // It is sure of its drafts.
        self.vector("output_norm.weight", n_embd, 6.0, 2.0)?;
        let [global, _] = self.heads_of(self.n_layers - 1);
        self.vector("rope_freqs.weight", global / 2, 4.0, 3.0)?;
        self.matrix("nextn.pre_projection.weight", n_embd, 2 * N_EMBD)?;
        self.matrix("nextn.post_projection.weight", N_EMBD, n_embd)?;
        for layer in 0..self.n_layers {
            let tensor = |name: &str| format!("blk.{layer}.{name}");
            let [dim, _] = self.heads_of(layer);
            self.linear(&tensor("attn_q"), N_HEADS * dim, n_embd)?;
            let mean = 1.5 / (dim as f32).sqrt();
            self.vector(&tensor("attn_q_norm.weight"), dim, mean, 0.3 * mean)?;
            self.linear(&tensor("attn_output"), n_embd, N_HEADS * dim)?;
            for norm in [
                "attn_norm",
                "post_attention_norm",
                "ffn_norm",
                "post_ffw_norm",
            ] {
                self.norm(&tensor(norm), n_embd)?;
            }
            self.vector(&tensor("layer_output_scale.weight"), 1, 0.7, 0.2)?;
            self.linear(&tensor("ffn_gate"), ASSISTANT_N_FF, n_embd)?;
            self.linear(&tensor("ffn_up"), ASSISTANT_N_FF, n_embd)?;
            self.linear(&tensor("ffn_down"), n_embd, ASSISTANT_N_FF)?;
        }
        Ok(())
    }
}
