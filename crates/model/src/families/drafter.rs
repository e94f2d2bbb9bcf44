//! The layer of a file that predicts the token after the next one (multi-token prediction, DeepSeek-V3 report, section 2.2),
//! as a model beside that of the file's other layers.

use rocmforge_plan::Value;

use crate::blocks::{embeddings_by, last_norm, logits, logits_by};
use crate::builder::Builder;
use crate::error::LoadError;
use crate::families::{llama, seed_oss};

/// DeepSeek V3 and R1, GLM 4.7 Flash.
pub(crate) fn record_as_llama(m: &mut Builder<'_>) -> Result<Value, LoadError> {
    record(m, "ffn_norm")
}

/// GLM 4.5 to 4.7, Qwen3-Next, Qwen 3.5 to 3.8.
pub(crate) fn record_as_seed_oss(m: &mut Builder<'_>) -> Result<Value, LoadError> {
    record(m, seed_oss::FFN_NORM)
}

/// Records the layer that predicts the token after the next one, from the last hidden values of a token, normed, and the
/// embedding of the next token. It returns its own last hidden values, from which it can go on.
fn record(m: &mut Builder<'_>, ffn_norm: &str) -> Result<Value, LoadError> {
    let hidden = m.plan.import(m.config.n_embd);
    let layer = m.config.layer(m.first_of_drafter);
    let eps = m.config.norm_eps;
    let own = |m: &Builder<'_>, name: &str, others: &'static str| {
        let own = layer.tensor(name);
        match m.loader.has(&format!("{own}.weight")) {
            true => own,
            false => others.to_string(),
        }
    };
    let embedding = own(m, "nextn.embed_tokens", "token_embd");
    let tokens = embeddings_by(m, 1.0, &format!("{embedding}.weight"))?;
    let tokens = m.rms_norm(tokens, &layer.tensor("nextn.enorm"), eps)?;
    let hidden = m.rms_norm(hidden, &layer.tensor("nextn.hnorm"), eps)?;
    let (both, n_embd) = ([tokens, hidden], m.config.n_embd);
    let x = m.side_by_side(both, &layer.tensor("nextn.eh_proj"), n_embd)?;
    let x = llama::record_layer(m, layer, ffn_norm, x)?;
    let norm = own(m, "nextn.shared_head_norm", "output_norm");
    let x = last_norm(m, x, &norm)?;
    let head = own(m, "nextn.shared_head_head", "");
    match head.is_empty() {
        true => logits(m, x, 1.0),
        false => logits_by(m, x, 1.0, &format!("{head}.weight")),
    }
}
