//! Both ends of the residual stream: the tokens' embeddings, and the logits.

use rocmforge_plan::{Factor, Value};

use crate::builder::Builder;
use crate::classifier::Classifier;
use crate::embedding::{Embedding, PooledTokens, Pooling};
use crate::error::LoadError;

const EMBEDDING: &str = "token_embd.weight";
const OUTPUT: &str = "output.weight";

/// Records the embeddings of the tokens, times `scale`.
pub(crate) fn embeddings(m: &mut Builder<'_>, scale: f64) -> Result<Value, LoadError> {
    embeddings_by(m, scale, EMBEDDING)
}

/// As [`embeddings`], from the matrix `tensor`.
pub(crate) fn embeddings_by(
    m: &mut Builder<'_>,
    scale: f64,
    tensor: &str,
) -> Result<Value, LoadError> {
    let (n_vocab, n_embd) = (m.config.n_vocab, m.config.n_embd);
    let table = m.loader.matrix(tensor, n_vocab, n_embd)?;
    let x = m.plan.embed(table, scale as f32, n_embd);
    m.adapt_embedding(tensor, scale as f32, x)
}

/// Adds the embedding of the first kind of tokens, which all tokens of a text are, if the file has it.
pub(crate) fn add_token_type(m: &mut Builder<'_>, x: Value) -> Result<Value, LoadError> {
    const TABLE: &str = "token_types.weight";
    let Some(n_types) = m.loader.n_rows(TABLE) else {
        return Ok(x);
    };
    let n_types = usize::try_from(n_types).unwrap_or(usize::MAX);
    let first = m.loader.rows(TABLE, n_types, x.width(), 0..1)?;
    Ok(m.plan.add_positions(first, x))
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

/// Records the norm `tensor` of the rows whose logits are needed. If the plan returns what a drafter takes, this is the norm of
/// all rows.
pub(crate) fn last_norm(m: &mut Builder<'_>, x: Value, tensor: &str) -> Result<Value, LoadError> {
    let eps = m.config.norm_eps;
    m.tap(x);
    if !m.exports {
        let x = m.plan.select_rows(x);
        return m.rms_norm(x, tensor, eps);
    }
    let normed = m.rms_norm(x, tensor, eps)?;
    m.export = Some(normed);
    Ok(m.plan.select_rows(normed))
}

/// Records the logits of the normed rows `x`, which are already multiplied by `factor`. The output projection is the
/// embedding if it has no tensor of its own. For embeddings, the rows themselves take the place of the logits.
pub(crate) fn logits(m: &mut Builder<'_>, x: Value, factor: f64) -> Result<Value, LoadError> {
    skip_heads(m);
    if let Some(embedding) = &m.config.embedding {
        let x = match factor {
            1.0 => x,
            _ => m.plan.scale(Factor::Constant((1.0 / factor) as f32), x),
        };
        return hidden(m, embedding, x);
    }
    let tensor = match m.loader.has(OUTPUT) {
        true => OUTPUT,
        false => EMBEDDING,
    };
    logits_by(m, x, factor, tensor)
}

/// As [`logits`], by the matrix `tensor`.
pub(crate) fn logits_by(
    m: &mut Builder<'_>,
    x: Value,
    factor: f64,
    tensor: &str,
) -> Result<Value, LoadError> {
    let n_vocab = m.config.n_vocab;
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

/// Records what a model that computes only embeddings has in place of logits: the rows `x`, or the scores of them.
pub(crate) fn embedding(m: &mut Builder<'_>, x: Value) -> Result<Value, LoadError> {
    skip_heads(m);
    let embedding = m.config.embedding.as_ref();
    let embedding = embedding.expect("such a model is loaded for embeddings");
    hidden(m, embedding, x)
}

/// Leaves out the projections after the hidden values that the model does not need.
fn skip_heads(m: &mut Builder<'_>) {
    let is_of_scores = |name: &str| name.starts_with("cls.");
    let pooling = m
        .config
        .embedding
        .as_ref()
        .map(|embedding| embedding.pooling);
    if pooling != Some(Pooling::Rank) {
        let reason = "it makes scores of hidden values, for the pooling `rank`";
        m.loader.skip(reason, is_of_scores);
    }
    if pooling.is_some() {
        let reason = "it makes logits of hidden values, which embeddings do not need";
        m.loader.skip(reason, |name| name.starts_with("output."));
    }
}

/// Records the rows `x`, or the classifier's scores of them.
fn hidden(m: &mut Builder<'_>, embedding: &Embedding, x: Value) -> Result<Value, LoadError> {
    const DENSE: &str = "cls.weight";
    const OUTPUT: &str = "cls.output.weight";
    if embedding.pooling != Pooling::Rank {
        return Ok(x);
    }
    let n_scores = embedding.labels.len().max(1);
    if embedding.tokens == PooledTokens::All {
        let shape = [x.width(), n_scores];
        m.classifier = Some(Classifier::read(m, embedding.activation, shape)?);
        return Ok(x);
    }
    let has_output = m.loader.has(OUTPUT);
    let mut x = x;
    if !has_output && !m.loader.has(DENSE) {
        return Err(m.loader.missing(OUTPUT));
    }
    if m.loader.has(DENSE) {
        let n_out = if has_output { x.width() } else { n_scores };
        x = m.linear(x, "cls", n_out)?;
        x = match embedding.activation.in_plan() {
            Some(activation) => m.plan.activate(activation, x),
            // A cap of 1 is tanh itself.
            None => m.plan.soft_cap(1.0, x),
        };
        if m.loader.has("cls.norm.weight") {
            x = m.scaled_layer_norm(x, "cls.norm", 1.0)?;
        }
    }
    match has_output {
        true => m.linear(x, "cls.output", n_scores),
        false => Ok(x),
    }
}
