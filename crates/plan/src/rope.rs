//! Rotary position embedding tables: cos and sin computed on the host in f64, for every backend alike.

/// A rotation per position: pair `i` turns by `position * inv_freq[i]`, scaled by `magnitude`.
#[derive(Debug, Clone, PartialEq)]
pub struct RopeTable {
    /// Radians per position of each pair; half as many as values rotated.
    pub inv_freq: Vec<f64>,
    /// Factor on both cos and sin; 1 unless the file or YaRN says otherwise.
    pub magnitude: f64,
    /// Frequencies that replace `inv_freq` in a long context.
    pub long: Option<LongContext>,
}

/// The frequencies of contexts that are longer than what a model was first trained for.
#[derive(Debug, Clone, PartialEq)]
pub struct LongContext {
    /// The longest context that keeps the usual frequencies.
    pub n_ctx_original: usize,
    /// As [`RopeTable::inv_freq`].
    pub inv_freq: Vec<f64>,
}

impl RopeTable {
    /// A table for contexts of any length.
    pub fn new(inv_freq: Vec<f64>, magnitude: f64) -> RopeTable {
        RopeTable {
            inv_freq,
            magnitude,
            long: None,
        }
    }

    /// Settles on the frequencies of a context of `n_ctx` tokens. One choice holds for all that the context
    /// will hold, since keys in the cache are already rotated.
    pub fn settle(&mut self, n_ctx: usize) {
        if let Some(long) = self.long.take()
            && n_ctx > long.n_ctx_original
        {
            self.inv_freq = long.inv_freq;
        }
    }

    /// How many values of a head are rotated.
    pub fn n_rot(&self) -> usize {
        2 * self.inv_freq.len()
    }

    /// Writes `(cos, sin)` of what turns a rotated head back by `n_positions`: `out [n_rot / 2, 2]`. Its magnitude is 1:
    /// the head has that of its own rotation already.
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
            for (pair, inv_freq) in row.chunks_exact_mut(2).zip(&self.inv_freq) {
                let (sin, cos) = (f64::from(position) * inv_freq).sin_cos();
                pair[0] = (cos * self.magnitude) as f32;
                pair[1] = (sin * self.magnitude) as f32;
            }
        }
    }
}
