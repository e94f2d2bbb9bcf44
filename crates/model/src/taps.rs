//! What a drafter takes of the layers of the model that checks its drafts: the values of some of them side by side, times a matrix
//! of the drafter's file (EAGLE-3, Li et al. 2025; DFlash). The model's plan computes the product and exports it, so that no more
//! leaves the device than the drafter's width.

use std::sync::Arc;

use rocmforge_gguf::Gguf;
use rocmforge_plan::{Factor, Projection, Value, WeightId, Weights, act_format};

use crate::builder::Builder;
use crate::error::LoadError;
use crate::facts::ModelConfig;
use crate::keys::Keys;
use crate::target::same;
use crate::weights::{Faults, WeightLoader};

/// Metadata key of the layers whose values are taken.
pub(crate) const TARGET_LAYERS: &str = "target_layers";
/// The matrix that makes hidden values of those of the layers.
const MATRIX: &str = "fc";

/// The values of some layers, and what becomes of them.
pub(crate) struct Taps {
    /// Layers by index, in the order of the matrix's columns: what each of them takes in. The number of all layers stands for
    /// what the last one returns.
    layers: Vec<usize>,
    /// The RMS norm of these values side by side, if there is one, and its epsilon.
    norm: Option<(Vec<f32>, f32)>,
    /// Those of the drafter's file.
    weights: Arc<Weights>,
    /// `[n_out, n_taps * n_embd]`, and a factor on the product.
    matrix: (WeightId, f32),
    /// The layers so far.
    n_seen: usize,
    /// Of each of `layers`.
    values: Vec<Option<Value>>,
}

impl Taps {
    /// Reads what the plan of a model exports for the drafter of a file, by the configurations of this drafter and of the model:
    /// the values of `layers`, normed by the tensor `norm` if there is one.
    pub(crate) fn read(
        (keys, gguf): (&Keys<'_>, &Arc<Gguf>),
        [own, target]: [&ModelConfig; 2],
        layers: Vec<usize>,
        norm: Option<&str>,
    ) -> Result<Taps, LoadError> {
        let n_target = own.n_target.expect("drafters say for which width");
        same(keys.arch, "hidden width", [n_target, target.n_embd])?;
        let n_layers = target.n_layers();
        let last = layers.iter().fold(n_layers, |last, &at| last.max(at));
        same(keys.arch, "last layer", [last, n_layers])?;
        let n_in = layers.len() * n_target;
        let mut loader = WeightLoader::new(Arc::clone(gguf), keys.arch, Faults::Refuse);
        let matrix = loader.matrix(&format!("{MATRIX}.weight"), own.n_embd, n_in)?;
        let scale = loader.scale_of(MATRIX)?;
        let norm = match norm {
            Some(norm) => Some((loader.required_values(norm, n_in)?, own.norm_eps)),
            None => None,
        };
        loader.skip("it belongs to the drafter", |_| true);
        let (weights, _) = loader.finish()?;
        Ok(Taps {
            values: vec![None; layers.len()],
            layers,
            norm,
            weights: Arc::new(weights),
            matrix: (matrix, scale),
            n_seen: 0,
        })
    }
}

/// Leaves out the tensors of a drafter with which the model computes.
pub(crate) fn skip(loader: &mut WeightLoader<'_>) {
    let reason = "the model for which it drafts computes with it";
    loader.skip(reason, |name| {
        name.strip_prefix(MATRIX)
            .is_some_and(|rest| rest.starts_with('.'))
    });
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
        for (value, of) in taps.values.iter_mut().zip(&taps.layers) {
            if *of == at {
                *value = Some(copy);
            }
        }
        let values: Option<Vec<Value>> = taps.values.iter().copied().collect();
        if let Some(values) = values {
            self.export = Some(self.project(&values));
        }
    }

    /// Returns what the drafter takes, once all values are known.
    fn project(&mut self, values: &[Value]) -> Value {
        let taps = self.taps.as_ref().expect("the values are of taps");
        let mut joined = values[0];
        for &next in &values[1..] {
            joined = self.plan.join_heads(1, joined, Some((next, next.width())));
        }
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
