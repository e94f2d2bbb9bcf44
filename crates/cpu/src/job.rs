//! One matrix product as its tiles see it: weights, activations, and what happens to the output.

use rocmforge_plan::{OutMode, Weight, act_format};

use crate::acts::Acts;
use crate::pool::Tile;

/// One product, as its tiles see it.
pub(crate) struct Job<'a> {
    pub w: Weight<'a>,
    pub acts: &'a Acts,
    /// Factor on the products, before the bias.
    pub scale: f32,
    pub bias: Option<&'a [f32]>,
    pub mode: OutMode,
}

impl Job<'_> {
    /// Checks the shapes for `out_len` values of output, and returns the bytes of a weight row.
    ///
    /// # Panics
    /// If shapes do not match.
    pub(crate) fn check(&self, out_len: usize) -> usize {
        let row_bytes = self.w.check();
        let (w, acts) = (&self.w, self.acts);
        assert_eq!(acts.n_in(), w.n_in, "acts are [n_tokens, n_in]");
        assert_eq!(acts.format(), act_format(w.ty), "{} weights", w.ty.name());
        assert_eq!(
            out_len,
            acts.n_tokens() * w.n_out,
            "out is [n_tokens, n_out]"
        );
        let bias = self.bias;
        assert!(bias.is_none_or(|b| b.len() == w.n_out), "bias is [n_out]");
        row_bytes
    }

    /// Scales products of `token` with the weight rows from `first` on, adds bias and residual, and writes them to the
    /// tile.
    #[inline]
    pub(crate) fn write(&self, tile: &mut Tile<'_>, token: usize, first: usize, values: &[f32]) {
        let at = first - tile.cols().start;
        let out = &mut tile.row(token)[at..at + values.len()];
        for (i, (out, y)) in out.iter_mut().zip(values).enumerate() {
            let y = y * self.scale;
            let y = self.bias.map_or(y, |bias| y + bias[first + i]);
            *out = match self.mode {
                OutMode::Store => y,
                OutMode::Add => *out + y,
            };
        }
    }
}
