//! Rotary position embedding (RoPE) tables: cos and sin, computed on the host in f64 for every backend.

/// RoPE frequencies: pair `i` rotates by `position * inv_freq[i]` and is scaled by `magnitude`.
#[derive(Debug, Clone, PartialEq)]
pub struct RopeTable {
    /// Radians per position of each pair; half as many entries as rotated values.
    pub inv_freq: Vec<f64>,
    /// Factor on both cos and sin; 1 unless the file or YaRN says otherwise.
    pub magnitude: f64,
    /// Frequencies that replace `inv_freq` for a long context.
    pub long: Option<LongContext>,
    /// How many positions later than that of its token a row is turned.
    pub ahead: u32,
}

/// Frequencies for contexts longer than the one a model was first trained for.
#[derive(Debug, Clone, PartialEq)]
pub struct LongContext {
    /// The longest context that uses the usual frequencies.
    pub n_ctx_original: usize,
    /// As [`RopeTable::inv_freq`].
    pub inv_freq: Vec<f64>,
}

impl RopeTable {
    /// Creates a table that is the same for every context length.
    pub fn new(inv_freq: Vec<f64>, magnitude: f64) -> RopeTable {
        RopeTable {
            inv_freq,
            magnitude,
            long: None,
            ahead: 0,
        }
    }

    /// Fixes the frequencies for a context of `n_ctx` tokens. The choice holds for the whole context, since keys in the
    /// cache are already rotated.
    pub fn settle(&mut self, n_ctx: usize) {
        if let Some(long) = self.long.take()
            && n_ctx > long.n_ctx_original
        {
            self.inv_freq = long.inv_freq;
        }
    }

    /// Number of rotated values per head.
    pub fn n_rot(&self) -> usize {
        2 * self.inv_freq.len()
    }

    /// Writes the `(cos, sin)` that rotate a head back by `n_positions`: `out [n_rot / 2, 2]`. The magnitude is 1,
    /// because the head was already scaled by its own rotation.
    pub fn fill_back(&self, n_positions: u32, out: &mut [f32]) {
        assert_eq!(out.len(), self.n_rot(), "a pair of values for each");
        for (pair, inv_freq) in out.chunks_exact_mut(2).zip(&self.inv_freq) {
            let (sin, cos) = (-f64::from(n_positions) * inv_freq).sin_cos();
            pair[0] = cos as f32;
            pair[1] = sin as f32;
        }
    }

    /// Writes `(cos, sin)` of every pair: `out [n_positions, n_rot / 2, 2]`.
    pub fn fill(&self, positions: &[u32], out: &mut [f32]) {
        assert_eq!(
            out.len(),
            positions.len() * self.n_rot(),
            "one row for each position"
        );
        for (row, &position) in out.chunks_exact_mut(self.n_rot()).zip(positions) {
            let position = f64::from(position) + f64::from(self.ahead);
            for (pair, inv_freq) in row.chunks_exact_mut(2).zip(&self.inv_freq) {
                let (sin, cos) = (position * inv_freq).sin_cos();
                pair[0] = (cos * self.magnitude) as f32;
                pair[1] = (sin * self.magnitude) as f32;
            }
        }
    }
}
