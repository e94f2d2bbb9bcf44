//! What a drafter takes of the layers of the model that checks its drafts: the values of three of them side by side, times a
//! matrix of the drafter's file (EAGLE-3, Li et al. 2025). The model's plan computes the product and exports it, so that no more
//! leaves the device than the drafter's width.

use std::sync::Arc;

use rocmforge_plan::{Factor, Projection, Value, WeightId, Weights, act_format};

use crate::builder::Builder;

/// The number of layers whose values are taken.
pub(crate) const N_TAPS: usize = 3;

/// The values of some layers, and what becomes of them.
pub(crate) struct Taps {
    /// Layers by index, in the order of the matrix's columns: what each of them takes in. The number of all layers stands for
    /// what the last one returns.
    pub(crate) layers: [usize; N_TAPS],
    /// The RMS norm of these values side by side, if there is one, and its epsilon.
    pub(crate) norm: Option<(Vec<f32>, f32)>,
    /// Those of the drafter's file.
    pub(crate) weights: Arc<Weights>,
    /// `[n_out, N_TAPS * n_embd]`, and a factor on the product.
    pub(crate) matrix: (WeightId, f32),
    /// The layers so far.
    pub(crate) n_seen: usize,
    pub(crate) values: [Option<Value>; N_TAPS],
}

impl Builder<'_> {
    /// Begins a layer, which takes in the values `x` of the residual stream.
    pub(crate) fn begin_layer(&mut self, x: Value) {
        self.plan.begin_layer();
        self.tap(x);
    }

    /// Takes the values `x` between two layers, or after the last one, if a drafter wants them.
    pub(crate) fn tap(&mut self, x: Value) {
        let Some(taps) = &mut self.taps else { return };
        let at = taps.n_seen;
        taps.n_seen += 1;
        if !taps.layers.contains(&at) {
            return;
        }
        // What follows may change `x` in place.
        let copy = self.plan.part(x, 1, 0, x.width());
        for (value, of) in taps.values.iter_mut().zip(taps.layers) {
            if of == at {
                *value = Some(copy);
            }
        }
        if let [Some(first), Some(second), Some(third)] = taps.values {
            self.export = Some(self.project([first, second, third]));
        }
    }

    /// Returns what the drafter takes, once all values are known.
    fn project(&mut self, values: [Value; N_TAPS]) -> Value {
        let taps = self.taps.as_ref().expect("the values are of taps");
        let [first, second, third] = values;
        let width = first.width();
        let joined = self.plan.join_heads(1, first, Some((second, width)));
        let mut joined = self.plan.join_heads(1, joined, Some((third, width)));
        if let Some((norm, eps)) = &taps.norm {
            let weight = self.loader.push_vector(norm.clone());
            joined = self.plan.rms_norm(joined, weight, *eps);
        }
        let (id, scale) = taps.matrix;
        let matrix = taps.weights.matrix(id);
        let format = act_format(matrix.ty);
        let weight = self.loader.push_shared(&taps.weights, id);
        let linear = Projection::of(weight, format);
        let product = self.plan.matmul(joined, linear, matrix.n_out);
        match scale {
            1.0 => product,
            scale => self.plan.scale(Factor::Constant(scale), product),
        }
    }
}
