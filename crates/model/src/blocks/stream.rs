//! Both ends of the residual stream: the tokens' embeddings, and the logits.

use rocmforge_plan::Value;

use crate::builder::Builder;
use crate::error::LoadError;

const EMBEDDING: &str = "token_embd.weight";
const OUTPUT: &str = "output.weight";

/// Records the embeddings of the tokens, times `scale`.
pub(crate) fn embeddings(m: &mut Builder<'_>, scale: f64) -> Result<Value, LoadError> {
    let (n_vocab, n_embd) = (m.config.n_vocab, m.config.n_embd);
    let table = m.loader.matrix(EMBEDDING, n_vocab, n_embd)?;
    let x = m.plan.embed(table, scale as f32, n_embd);
    m.adapt_embedding(EMBEDDING, scale as f32, x)
}

/// Adds learned position embeddings.
pub(crate) fn add_positions(
    m: &mut Builder<'_>,
    n_positions: usize,
    x: Value,
) -> Result<Value, LoadError> {
    let table = m
        .loader
        .matrix("position_embd.weight", n_positions, x.width())?;
    Ok(m.plan.add_positions(table, x))
}

/// Records the logits of the normed rows `x`, which are already multiplied by `factor`. The output projection is the
/// embedding if it has no tensor of its own.
pub(crate) fn logits(m: &mut Builder<'_>, x: Value, factor: f64) -> Result<Value, LoadError> {
    let n_vocab = m.config.n_vocab;
    let tensor = match m.loader.has(OUTPUT) {
        true => OUTPUT,
        false => EMBEDDING,
    };
    let weight = m.loader.matrix(tensor, n_vocab, x.width())?;
    let scale = match tensor == OUTPUT {
        true => m.loader.scale_of("output")?,
        false => 1.0,
    };
    let bias_factor = factor / f64::from(scale);
    let bias = m
        .loader
        .opt_part("output.bias", n_vocab, 0..n_vocab, bias_factor)?;
    let logits = m.scaled_product(x, tensor, (weight, bias, scale), n_vocab);
    // An adapter of a tied embedding changes only the input side, as it did in training.
    if tensor == OUTPUT {
        m.adapt(x, tensor, 0..n_vocab, logits)?;
    }
    Ok(match m.config.logits_cap {
        Some(cap) => m.plan.soft_cap(cap, logits),
        None => logits,
    })
}
