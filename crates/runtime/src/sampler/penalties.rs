//! Samplers that change single logits, as llama.cpp defines them: logit bias, and penalties on tokens in the recent
//! text (Keskar et al. 2019 for the factor).

use super::candidates::Candidates;
use rocmforge_gguf::TokenId;
use rocmforge_plan::SamplingParams;

/// Adds a bias to each listed token.
pub(crate) fn add_bias(logits: &mut [f32], bias: &[(TokenId, f32)]) {
    for &(id, bias) in bias {
        if let Some(logit) = logits.get_mut(id as usize) {
            *logit += bias;
        }
    }
}

/// Applies the repeat, frequency and presence penalties. `counts` is sorted by id; `just_sampled` counts once more.
pub(crate) fn penalize(
    candidates: &mut Candidates<'_>,
    params: &SamplingParams,
    counts: &[(TokenId, u32)],
    just_sampled: Option<TokenId>,
) {
    let mut counts = counts.to_vec();
    if let Some(id) = just_sampled {
        match counts.binary_search_by_key(&id, |&(id, _)| id) {
            Ok(at) => counts[at].1 += 1,
            Err(at) => counts.insert(at, (id, 1)),
        }
    }
    candidates.adjust(&counts, |logit, &count| {
        let scaled = if logit > 0.0 {
            logit / params.repeat_penalty
        } else {
            logit * params.repeat_penalty
        };
        scaled - (count as f32 * params.frequency_penalty + params.presence_penalty)
    });
}
