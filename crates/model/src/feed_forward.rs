//! The second half of a layer: the feed-forward network, in the forms that families have.

use super::arch::FeedForward;
use super::decoder::{Buffers, Wiring};
use crate::error::LoadError;

impl Wiring<'_> {
    /// `x += feed_forward(norm(x))`, or with the norm around it.
    pub(super) fn feed_forward(&mut self, layer: usize) -> Result<(), LoadError> {
        let c = self.config;
        let Buffers {
            gate,
            up,
            activated,
            product,
            ..
        } = self.buffers;
        let name = |tensor: &str| format!("blk.{layer}.{tensor}");

        let input = self.block_input(&name("ffn_norm"))?;
        match c.arch.feed_forward() {
            FeedForward::Gated(activation) => {
                self.linear(input, &name("ffn_gate"), c.n_ff, c.n_embd, gate)?;
                self.linear(input, &name("ffn_up"), c.n_ff, c.n_embd, up)?;
                self.plan.gated_activation(activation, gate, up, activated);
            }
            FeedForward::FusedGated(activation) => {
                let both = name("ffn_up");
                self.linear_rows(input, &both, 2 * c.n_ff, c.n_embd, 0..c.n_ff, gate)?;
                self.linear_rows(input, &both, 2 * c.n_ff, c.n_embd, c.n_ff..2 * c.n_ff, up)?;
                self.plan.gated_activation(activation, gate, up, activated);
            }
            FeedForward::Plain(activation) => {
                self.linear(input, &name("ffn_up"), c.n_ff, c.n_embd, up)?;
                self.plan.activate(activation, up, activated);
            }
        }
        self.linear(activated, &name("ffn_down"), c.n_embd, c.n_ff, product)?;
        self.block_output(&name("post_ffw_norm"))
    }
}
