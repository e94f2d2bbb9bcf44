//! Sampling on the CPU: chooses a token from a row of logits.
//!
//! The samplers, their definitions and their default order are llama.cpp's; each has its file. Random numbers depend
//! only on the seed and the token's index in its sequence, and all other state is in the [`SampleRow`]. A request
//! therefore gets the same tokens whatever else is in its batches.

mod candidates;
mod dry;
mod fixed_order;
mod mirostat;
mod penalties;
mod random;
mod temperature;
mod truncate;
mod xtc;

use rocmforge_cpu::Isa;

pub(crate) use fixed_order::{FixedOrder, Kept};

use candidates::{Candidates, top_k};
use random::{Use, uniform};
use rocmforge_plan::{SampleRow, Sampled, SamplerKind, SamplingParams, TokenLogprob};

/// Samples a token. `logits` is `[n_vocab]` and may be changed. `just_sampled` is the row's input token if the engine
/// did not have it yet when it built `row`.
pub fn sample(
    isa: Isa,
    logits: &mut [f32],
    row: &SampleRow,
    just_sampled: Option<Sampled>,
) -> Sampled {
    let params = &*row.params;
    let chance = |use_| uniform(params.seed, row.index, use_);
    penalties::add_bias(logits, &params.logit_bias);
    let mut candidates = Candidates::All(logits);
    if let Some(mirostat) = &params.mirostat {
        temperature::scale(isa, &mut candidates, params.temperature);
        let mu = just_sampled.map_or(row.mu, |sampled| sampled.mu);
        let (id, mu) = mirostat::draw(candidates, mirostat, mu, chance(Use::Token));
        return Sampled { id, mu: Some(mu) };
    }
    // A greedy request can skip the samplers after the last one that may change the best token.
    let decides = |&kind: &SamplerKind| params.may_change_best(kind);
    let n_deciding = params
        .samplers
        .iter()
        .rposition(decides)
        .map_or(0, |at| at + 1);
    let (deciding, others) = params.samplers.split_at(n_deciding);
    for &kind in deciding {
        run(isa, kind, &mut candidates, row, just_sampled);
    }
    let id = if params.is_greedy(others) {
        candidates.best(isa)
    } else {
        // A temperature at the end changes the weights only, for which nothing has to be sorted.
        let is_fixed = params.dynamic_temperature.range <= 0.0 && params.temperature > 0.0;
        let (others, temperature) = match others.split_last() {
            Some((SamplerKind::Temperature, others)) if is_fixed => (others, params.temperature),
            _ => (others, 1.0),
        };
        for &kind in others {
            run(isa, kind, &mut candidates, row, just_sampled);
        }
        candidates.draw(isa, temperature, chance(Use::Token))
    };
    Sampled { id, mu: None }
}

/// Returns whether a request always takes the token with the best logit, whatever its history.
pub fn takes_best(params: &SamplingParams) -> bool {
    params.mirostat.is_none()
        && params.logit_bias.is_empty()
        && params.is_greedy(&params.samplers)
        && !params
            .samplers
            .iter()
            .any(|&kind| params.may_change_best(kind))
}

/// Applies one sampler.
fn run(
    isa: Isa,
    kind: SamplerKind,
    candidates: &mut Candidates<'_>,
    row: &SampleRow,
    just_sampled: Option<Sampled>,
) {
    let params = &*row.params;
    let just_sampled = just_sampled.map(|sampled| sampled.id);
    match kind {
        SamplerKind::Penalties => {
            if params.has_penalties() {
                penalties::penalize(candidates, params, &row.counts, just_sampled);
            }
        }
        SamplerKind::Dry => {
            if let Some(history) = row.dry.as_ref().filter(|_| params.has_dry()) {
                let mut text = history.tokens.clone();
                text.extend(just_sampled);
                dry::penalize(candidates, &params.dry, &history.breakers, &text);
            }
        }
        SamplerKind::TopNSigma => truncate::top_n_sigma(candidates, params.top_n_sigma),
        SamplerKind::TopK => candidates.keep_best(params.top_k),
        SamplerKind::TypicalP => truncate::typical_p(candidates, params.typical_p),
        SamplerKind::TopP => truncate::top_p(isa, candidates, params.top_p),
        SamplerKind::MinP => truncate::min_p(candidates, params.min_p),
        SamplerKind::Xtc => {
            let chance = uniform(params.seed, row.index, Use::Xtc);
            xtc::exclude_top_choices(candidates, &params.xtc, chance);
        }
        SamplerKind::Temperature => temperature::scale_by_entropy(
            isa,
            candidates,
            params.temperature,
            &params.dynamic_temperature,
        ),
    }
}

/// Returns the `k` best tokens with their log-probabilities, best first.
pub fn top_logprobs(logits: &[f32], log_sum_exp: f32, k: usize) -> Vec<TokenLogprob> {
    if k == 0 {
        return Vec::new();
    }
    top_k(logits, k)
        .into_iter()
        .map(|c| TokenLogprob {
            id: c.id,
            logprob: c.logit - log_sum_exp,
        })
        .collect()
}

#[cfg(test)]
mod oracle;
#[cfg(test)]
mod tests;
