//! Layers with states in place of attention: short convolutions, gated delta nets, Mamba-2.

use rocmforge_gguf::Error;

use super::Synth;

/// Layers with states.
#[derive(Clone, Copy)]
pub(super) struct Recurrent {
    pub(super) kind: Kind,
    /// The layers that have attention instead; of each so many the last one.
    pub(super) interval: usize,
    pub(super) n_conv: usize,
    /// Heads of values, heads of keys, values per head of a key, and of a value.
    pub(super) heads: [usize; 4],
    /// Whether the outputs of Mamba-2 are normed.
    pub(super) has_norm: bool,
}

#[derive(Clone, Copy, PartialEq)]
pub(super) enum Kind {
    ShortConv,
    /// Qwen 3.5.
    Delta,
    /// Qwen3-Next.
    DeltaTogether,
    /// Qwen3-Next in old files: all projections in one tensor, by head of keys.
    DeltaByHead,
    Mamba2,
    /// Beside attention (Falcon-H1).
    Mamba2Beside,
}

impl Recurrent {
    /// Returns whether the files state no heads of K and V for the layers.
    pub(super) fn has_no_heads(&self) -> bool {
        matches!(self.kind, Kind::ShortConv | Kind::Mamba2)
    }

    pub(super) fn is_in(&self, layer: usize) -> bool {
        !(layer + 1).is_multiple_of(self.interval)
    }
}

impl Synth {
    pub(super) fn recurrent_facts(&mut self, recurrent: &Recurrent) {
        let Recurrent {
            kind,
            n_conv,
            heads: [n_heads, n_k_heads, k_dim, v_dim],
            ..
        } = *recurrent;
        if kind == Kind::ShortConv {
            self.set("shortconv.l_cache", n_conv as u32);
            return;
        }
        for (key, value) in [
            ("ssm.conv_kernel", n_conv),
            ("ssm.inner_size", n_heads * v_dim),
            ("ssm.state_size", k_dim),
            ("ssm.time_step_rank", n_heads),
            ("ssm.group_count", n_k_heads),
        ] {
            self.set(key, value as u32);
        }
    }

    pub(super) fn recurrent_layer(
        &mut self,
        recurrent: &Recurrent,
        tensor: &dyn Fn(&str) -> String,
        n_embd: usize,
    ) -> Result<(), Error> {
        let Recurrent {
            kind,
            n_conv,
            heads: [n_heads, n_k_heads, k_dim, v_dim],
            ..
        } = *recurrent;
        if kind == Kind::ShortConv {
            self.matrix(&tensor("shortconv.in_proj.weight"), 3 * n_embd, n_embd)?;
            self.matrix(&tensor("shortconv.out_proj.weight"), n_embd, n_embd)?;
            let kernel = tensor("shortconv.conv.weight");
            return self.floats(&kernel, &[n_conv, n_embd], (0.0, 1.0));
        }
        let (n_k, n_v) = (n_k_heads * k_dim, n_heads * v_dim);
        let n_mixed = 2 * n_k + n_v;
        let kernel = tensor("ssm_conv1d.weight");
        self.floats(&kernel, &[n_conv, n_mixed], (0.1, 0.8))?;
        self.matrix(&tensor("ssm_out.weight"), n_embd, n_v)?;
        self.vector(&tensor("ssm_dt.bias"), n_heads, -0.5, 1.0)?;
        // From heads that remember long to heads that forget soon.
        let decay = (-0.4, 0.39);
        if matches!(kind, Kind::Mamba2 | Kind::Mamba2Beside) {
            self.matrix(&tensor("ssm_in.weight"), n_v + n_mixed + n_heads, n_embd)?;
            self.vector(&tensor("ssm_conv1d.bias"), n_mixed, 0.0, 0.3)?;
            self.floats(&tensor("ssm_a"), &[1, n_heads], decay)?;
            self.floats(&tensor("ssm_d"), &[1, n_heads], (1.0, 0.5))?;
            if !recurrent.has_norm {
                return Ok(());
            }
            let of_group = [n_v / n_k_heads, n_k_heads];
            return self.floats(&tensor("ssm_norm.weight"), &of_group, (1.0, 0.3));
        }
        self.vector(&tensor("ssm_a"), n_heads, decay.0, decay.1)?;
        self.norm(&tensor("ssm_norm"), v_dim)?;
        match kind {
            Kind::DeltaByHead => {
                self.matrix(&tensor("ssm_in.weight"), n_mixed + n_v, n_embd)?;
            }
            _ => {
                self.matrix(&tensor("attn_qkv.weight"), n_mixed, n_embd)?;
                self.matrix(&tensor("attn_gate.weight"), n_v, n_embd)?;
            }
        }
        match kind {
            Kind::Delta => {
                self.matrix(&tensor("ssm_beta.weight"), n_heads, n_embd)?;
                self.matrix(&tensor("ssm_alpha.weight"), n_heads, n_embd)
            }
            _ => self.matrix(&tensor("ssm_ba.weight"), 2 * n_heads, n_embd),
        }
    }
}
