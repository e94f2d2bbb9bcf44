//! Both ends of a drafter in a file of its own: the embeddings of tokens, and the logits. They are the model's where the file has
//! no tensors for them.

use rocmforge_plan::{Projection, Value, act_format};

use crate::blocks::stream::embeddings_by;
use crate::builder::Builder;
use crate::error::LoadError;
use crate::target::{EMBEDDING, OUTPUT, OUTPUT_IDS, Target};

/// Records the embeddings of tokens, times `scale`: by the drafter's file, or else as the model has them.
pub(crate) fn drafter_embeddings(
    m: &mut Builder<'_>,
    target: &Target<'_>,
    scale: f64,
) -> Result<Value, LoadError> {
    if m.loader.has(EMBEDDING) {
        return embeddings_by(m, scale, EMBEDDING);
    }
    let (n_embd, model) = (m.config.n_embd, target.model);
    target.same("width of embeddings", n_embd, model.config.n_embd)?;
    let table = m.loader.push_shared(&model.weights, target.embedding());
    Ok(m.plan.embed(table, scale as f32, n_embd))
}

/// Records the logits of the normed rows `x`: of the tokens that the drafter's file lists, or of all. Its matrix is that of the
/// model if the file has none.
pub(crate) fn drafter_logits(
    m: &mut Builder<'_>,
    target: &Target<'_>,
    x: Value,
) -> Result<Value, LoadError> {
    let model = target.model;
    let n_vocab = model.config.n_vocab;
    m.output_ids = m.loader.opt_token_ids(OUTPUT_IDS, n_vocab)?;
    let n_logits = m.output_ids.as_ref().map_or(n_vocab, Vec::len);
    if m.loader.has(OUTPUT) || m.output_ids.is_some() {
        return m.linear(x, "output", n_logits);
    }
    target.same("hidden width", x.width(), model.config.n_embd)?;
    let id = target.output();
    let format = act_format(model.weights.matrix(id).ty);
    let weight = m.loader.push_shared(&model.weights, id);
    Ok(m.plan.matmul(x, Projection::of(weight, format), n_logits))
}
