//! The classifier of a reranker that scores the mean over all tokens. It follows the pooling, so the host computes it.

use rocmforge_plan::Activation;

use crate::builder::Builder;
use crate::embedding::HeadActivation;
use crate::error::LoadError;

/// Two projections with a function and a norm between them. Either projection may be missing.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Classifier {
    dense: Option<Layer>,
    activation: HeadActivation,
    /// The weight of the layer norm, and its epsilon.
    norm: Option<(Vec<f32>, f32)>,
    output: Option<Layer>,
}

/// A matrix, row-major, and its bias.
#[derive(Debug, Clone, PartialEq)]
struct Layer {
    weight: Vec<f32>,
    bias: Option<Vec<f32>>,
}

impl Classifier {
    /// Reads the classifier of hidden values of `width` with `n_scores` scores.
    pub(crate) fn read(
        m: &mut Builder<'_>,
        activation: HeadActivation,
        [width, n_scores]: [usize; 2],
    ) -> Result<Classifier, LoadError> {
        let has_output = m.loader.has("cls.output.weight");
        if !has_output && !m.loader.has("cls.weight") {
            return Err(m.loader.missing("cls.output.weight"));
        }
        let n_dense = if has_output { width } else { n_scores };
        let dense = Layer::read(m, "cls", [n_dense, width])?;
        let norm = match dense.is_some() {
            true => m.loader.opt_values("cls.norm.weight", n_dense)?,
            false => None,
        };
        Ok(Classifier {
            dense,
            activation,
            norm: norm.map(|weight| (weight, m.config.norm_eps)),
            output: Layer::read(m, "cls.output", [n_scores, width])?,
        })
    }

    /// Returns the scores of pooled hidden values.
    pub(crate) fn scores(&self, hidden: &[f32]) -> Vec<f32> {
        let mut x: Vec<f64> = hidden.iter().map(|&x| f64::from(x)).collect();
        if let Some(dense) = &self.dense {
            x = dense.product(&x);
            x.iter_mut().for_each(|x| *x = self.activation.of(*x));
            if let Some((weight, eps)) = &self.norm {
                normalize(&mut x, weight, *eps);
            }
        }
        if let Some(output) = &self.output {
            x = output.product(&x);
        }
        x.into_iter().map(|x| x as f32).collect()
    }
}

impl HeadActivation {
    /// Returns the function as an operation of a plan; `None` for tanh.
    pub(crate) fn in_plan(self) -> Option<Activation> {
        match self {
            HeadActivation::Gelu => Some(Activation::GeluTanh),
            HeadActivation::Tanh => None,
        }
    }

    fn of(self, x: f64) -> f64 {
        match self {
            HeadActivation::Tanh => x.tanh(),
            HeadActivation::Gelu => {
                let root = (2.0 / std::f64::consts::PI).sqrt();
                x / 2.0 * (1.0 + (root * (x + 0.044715 * x.powi(3))).tanh())
            }
        }
    }
}

impl Layer {
    fn read(
        m: &mut Builder<'_>,
        tensor: &str,
        [n_out, n_in]: [usize; 2],
    ) -> Result<Option<Layer>, LoadError> {
        let weight = format!("{tensor}.weight");
        let Some(weight) = m.loader.opt_matrix_values(&weight, [n_out, n_in])? else {
            return Ok(None);
        };
        Ok(Some(Layer {
            weight,
            bias: m.loader.opt_values(&format!("{tensor}.bias"), n_out)?,
        }))
    }

    fn product(&self, x: &[f64]) -> Vec<f64> {
        let rows = self.weight.chunks_exact(x.len());
        let mut out: Vec<f64> = rows
            .map(|row| row.iter().zip(x).map(|(&w, x)| f64::from(w) * x).sum())
            .collect();
        for (out, &bias) in out.iter_mut().zip(self.bias.iter().flatten()) {
            *out += f64::from(bias);
        }
        out
    }
}

/// Layer norm without a bias.
fn normalize(x: &mut [f64], weight: &[f32], eps: f32) {
    let n = x.len() as f64;
    let mean = x.iter().sum::<f64>() / n;
    let variance = x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n;
    let factor = 1.0 / (variance + f64::from(eps)).sqrt();
    for (x, &weight) in x.iter_mut().zip(weight) {
        *x = (*x - mean) * factor * f64::from(weight);
    }
}
