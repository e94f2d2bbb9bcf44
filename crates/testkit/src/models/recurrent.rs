//! Layers with states in place of attention: short convolutions, gated delta nets, Mamba-2, Mamba-1.

use rocmforge_gguf::Error;

use super::Synth;

/// Layers with states.
#[derive(Clone, Copy)]
pub(super) struct Recurrent {
    pub(super) kind: Kind,
    /// The layers that have attention instead; of each so many the last one.
    pub(super) interval: usize,
    pub(super) n_conv: usize,
    /// Heads of values, heads of keys, values per head of a key, and of a value. In Mamba-1, the first is the width from
    /// which steps are computed, and its product with the last the number of values.
    pub(super) heads: [usize; 4],
    /// Whether the outputs of Mamba-2, or the projections of the values of Mamba-1, are normed.
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
    /// Kimi Linear: a decay of each channel.
    Channels,
    /// Ling 3: the decay has a bound.
    BoundedChannels,
    Mamba1,
    /// PLaMo 2.
    Mamba1Heads,
}

impl Recurrent {
    /// Returns whether the files state no heads of K and V for the layers.
    pub(super) fn has_no_heads(&self) -> bool {
        !matches!(
            self.kind,
            Kind::Delta | Kind::DeltaTogether | Kind::DeltaByHead | Kind::Mamba2Beside
        )
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
        if matches!(kind, Kind::Channels | Kind::BoundedChannels) {
            self.set("ssm.conv_kernel", n_conv as u32);
            self.set("kda.head_dim", k_dim as u32);
            return;
        }
        let n_groups = match kind {
            Kind::Mamba1Heads => 0,
            _ => n_k_heads,
        };
        for (key, value) in [
            ("ssm.conv_kernel", n_conv),
            ("ssm.inner_size", n_heads * v_dim),
            ("ssm.state_size", k_dim),
            ("ssm.time_step_rank", n_heads),
            ("ssm.group_count", n_groups),
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
        if matches!(kind, Kind::Channels | Kind::BoundedChannels) {
            return self.channel_layer(recurrent, tensor, n_embd);
        }
        if matches!(kind, Kind::Mamba1 | Kind::Mamba1Heads) {
            return self.selective_layer(recurrent, tensor, n_embd);
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

    fn channel_layer(
        &mut self,
        recurrent: &Recurrent,
        tensor: &dyn Fn(&str) -> String,
        n_embd: usize,
    ) -> Result<(), Error> {
        let Recurrent {
            kind,
            n_conv,
            heads: [n_heads, _, k_dim, _],
            ..
        } = *recurrent;
        let n = n_heads * k_dim;
        for name in ["q", "k", "v"] {
            self.matrix(&tensor(&format!("attn_{name}.weight")), n, n_embd)?;
            let kernel = tensor(&format!("ssm_conv1d_{name}.weight"));
            self.floats(&kernel, &[n_conv, 1, n, 1], (0.1, 0.8))?;
        }
        self.matrix(&tensor("ssm_beta.weight"), n_heads, n_embd)?;
        self.vector(&tensor("ssm_dt.bias"), n, -0.5, 1.0)?;
        self.norm(&tensor("ssm_norm"), k_dim)?;
        self.matrix(&tensor("attn_output.weight"), n_embd, n)?;
        let both = ["ssm_f", "ssm_g"];
        if kind == Kind::BoundedChannels {
            self.floats(&tensor("ssm_a"), &[1, n_heads], (1.5, 1.0))?;
            return both
                .iter()
                .try_for_each(|name| self.matrix(&tensor(&format!("{name}_a.weight")), n, n_embd));
        }
        self.floats(&tensor("ssm_a"), &[1, n_heads, 1, 1], (-0.4, 0.39))?;
        both.iter().try_for_each(|name| {
            self.matrix(&tensor(&format!("{name}_a.weight")), k_dim, n_embd)?;
            self.matrix(&tensor(&format!("{name}_b.weight")), n, k_dim)
        })
    }

    fn selective_layer(
        &mut self,
        recurrent: &Recurrent,
        tensor: &dyn Fn(&str) -> String,
        n_embd: usize,
    ) -> Result<(), Error> {
        let Recurrent {
            kind,
            n_conv,
            heads: [n_heads, _, k_dim, v_dim],
            has_norm,
            ..
        } = *recurrent;
        let n = n_heads * v_dim;
        // PLaMo 2 has as many as follow from the width of the model.
        let (rank, n_steps) = match kind {
            Kind::Mamba1 => (n_heads, n),
            _ => ((n_embd / 16).max(64), n_heads),
        };
        self.matrix(&tensor("ssm_in.weight"), 2 * n, n_embd)?;
        self.matrix(&tensor("ssm_x.weight"), rank + 2 * k_dim, n)?;
        self.matrix(&tensor("ssm_dt.weight"), n_steps, rank)?;
        self.matrix(&tensor("ssm_out.weight"), n_embd, n)?;
        self.floats(&tensor("ssm_conv1d.weight"), &[n_conv, n], (0.1, 0.8))?;
        self.vector(&tensor("ssm_dt.bias"), n_steps, -0.5, 1.0)?;
        self.vector(&tensor("ssm_d"), n_steps, 1.0, 0.5)?;
        // From values that remember long to values that forget soon.
        let decay = (-0.4, 0.39);
        match kind {
            Kind::Mamba1 => {
                self.vector(&tensor("ssm_conv1d.bias"), n, 0.0, 0.3)?;
                self.floats(&tensor("ssm_a"), &[k_dim, n], decay)?;
            }
            _ => self.floats(&tensor("ssm_a"), &[n_heads], decay)?,
        }
        if !has_norm {
            return Ok(());
        }
        for (name, width) in [("dt", rank), ("b", k_dim), ("c", k_dim)] {
            let name = format!("ssm_{name}_norm");
            match kind {
                Kind::Mamba1 => self.norm(&tensor(&name), width)?,
                // Without the usual ending, as in released files.
                _ => self.vector(&tensor(&name), width, 1.0, 0.3)?,
            }
        }
        Ok(())
    }
}
