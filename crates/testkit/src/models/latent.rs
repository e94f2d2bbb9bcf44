//! Latent attention (MLA) of the random models: DeepSeek 2, Mistral 4, MiniCPM 3.

use rocmforge_gguf::Error;

use super::{EXPERT_N_FF, N_EMBD, N_HEADS, Synth, Values};

/// Shape of latent attention.
#[derive(Clone, Copy)]
pub(super) struct Latent {
    pub(super) n_heads: usize,
    /// Width of the vector from which queries are computed; 0 if they are computed directly.
    pub(super) q_rank: usize,
    /// Width of the cached vector, without its rotated values.
    pub(super) kv_rank: usize,
    /// Plain values of a key, before the rotated ones.
    pub(super) n_plain: usize,
    pub(super) n_rot: usize,
    pub(super) v_dim: usize,
    pub(super) matrices: HeadMatrices,
}

/// How a file holds the matrices of the heads.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum HeadMatrices {
    /// `attn_k_b` transposed, and `attn_v_b`.
    Apart,
    /// In one tensor, `attn_kv_b`.
    Joined,
}

const SMALL: Latent = Latent {
    n_heads: N_HEADS,
    q_rank: 96,
    kv_rank: 64,
    n_plain: 32,
    n_rot: 32,
    v_dim: 48,
    matrices: HeadMatrices::Apart,
};
/// Number of shared experts, each as wide as the others.
const N_SHARED: usize = 2;

impl Synth {
    /// The shape of the model's attention, if it is latent.
    pub(super) fn latent(&self) -> Option<Latent> {
        match self.name {
            "deepseek2" => Some(Latent { q_rank: 0, ..SMALL }),
            "deepseek2_old" => Some(Latent {
                matrices: HeadMatrices::Joined,
                ..SMALL
            }),
            "mistral4" => Some(SMALL),
            "minicpm3" => Some(Latent {
                // The width of a value follows from the model's.
                v_dim: N_EMBD / N_HEADS,
                matrices: HeadMatrices::Joined,
                ..SMALL
            }),
            _ => None,
        }
    }

    /// Sets the keys of latent attention itself.
    pub(super) fn latent_widths(&mut self, latent: &Latent) {
        let k_dim = latent.n_plain + latent.n_rot;
        let mut sizes = vec![
            ("attention.q_lora_rank", latent.q_rank),
            ("attention.kv_lora_rank", latent.kv_rank),
            ("rope.dimension_count", latent.n_rot),
        ];
        match latent.matrices {
            HeadMatrices::Apart => sizes.extend([
                ("attention.head_count_kv", 1),
                ("attention.key_length", latent.kv_rank + latent.n_rot),
                ("attention.value_length", latent.kv_rank),
                ("attention.key_length_mla", k_dim),
                ("attention.value_length_mla", latent.v_dim),
            ]),
            HeadMatrices::Joined => {
                sizes.extend([
                    ("attention.head_count_kv", latent.n_heads),
                    ("attention.key_length", k_dim),
                ]);
                if self.arch != "minicpm3" {
                    sizes.push(("attention.value_length", latent.v_dim));
                }
            }
        }
        for (key, size) in sizes {
            self.set(key, size as u32);
        }
    }

    /// Sets the keys of [`super::NAMES`]'s models with latent attention.
    pub(super) fn latent_facts(&mut self, latent: &Latent) {
        self.latent_widths(latent);
        if self.name == "minicpm3" {
            self.set("rope.scaling.original_context_length", 256u32);
            return;
        }
        for (key, size) in [
            ("leading_dense_block_count", 1),
            ("expert_feed_forward_length", EXPERT_N_FF),
            ("expert_shared_count", N_SHARED),
            ("expert_gating_func", 1),
        ] {
            self.set(key, size as u32);
        }
        self.experts(3);
        self.set("expert_weights_scale", 1.5f32);
        self.set("expert_weights_norm", self.name != "deepseek2");
        let log_multiplier = match self.name {
            "deepseek2" => 0.0707f32,
            "mistral4" => 0.2,
            _ => return,
        };
        self.set("rope.scaling.type", "yarn");
        self.set("rope.scaling.factor", 8f32);
        self.set("rope.scaling.original_context_length", 256u32);
        self.set("rope.scaling.yarn_log_multiplier", log_multiplier);
        if self.name == "mistral4" {
            self.set("attention.temperature_scale", 0.5f32);
            self.set("attention.temperature_length", 24u32);
        }
    }

    /// Adds the shared experts of these models.
    pub(super) fn shared_experts(&mut self, tensor: &dyn Fn(&str) -> String) -> Result<(), Error> {
        let n_ff = N_SHARED * EXPERT_N_FF;
        self.matrix(&tensor("ffn_gate_shexp.weight"), n_ff, N_EMBD)?;
        self.matrix(&tensor("ffn_up_shexp.weight"), n_ff, N_EMBD)?;
        self.matrix(&tensor("ffn_down_shexp.weight"), N_EMBD, n_ff)
    }

    pub(super) fn latent_attention(
        &mut self,
        latent: &Latent,
        tensor: &dyn Fn(&str) -> String,
        n_embd: usize,
    ) -> Result<(), Error> {
        let Latent {
            n_heads,
            q_rank,
            kv_rank,
            n_plain,
            n_rot,
            v_dim,
            matrices,
        } = *latent;
        let n_q = n_heads * (n_plain + n_rot);
        match q_rank {
            0 => self.linear(&tensor("attn_q"), n_q, n_embd)?,
            _ => {
                self.linear(&tensor("attn_q_a"), q_rank, n_embd)?;
                self.norm(&tensor("attn_q_a_norm"), q_rank)?;
                self.linear(&tensor("attn_q_b"), n_q, q_rank)?;
            }
        }
        self.linear(&tensor("attn_kv_a_mqa"), kv_rank + n_rot, n_embd)?;
        self.norm(&tensor("attn_kv_a_norm"), kv_rank)?;
        match matrices {
            HeadMatrices::Apart => {
                for (name, n_out, n_in) in [
                    ("attn_k_b.weight", kv_rank, n_plain),
                    ("attn_v_b.weight", v_dim, kv_rank),
                ] {
                    let dims = [n_in, n_out, n_heads];
                    self.tensor(&tensor(name), &dims, Values::Matrix)?;
                }
            }
            HeadMatrices::Joined => {
                self.linear(&tensor("attn_kv_b"), n_heads * (n_plain + v_dim), kv_rank)?;
            }
        }
        self.linear(&tensor("attn_output"), n_embd, n_heads * v_dim)
    }
}
