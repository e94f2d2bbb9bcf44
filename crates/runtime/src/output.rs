//! Turns rows of logits into outputs on the host: all rows of the CPU backend, and the rows that a GPU cannot sample
//! itself.

use std::sync::Mutex;

use rocmforge_cpu as cpu;
use rocmforge_cpu::{Isa, Pool};

use crate::sampler;
use rocmforge_plan::{InputToken, LogitsRow, RowOutput, Sampled, Want};

/// Samples, scores or copies the rows of `logits`, `[wanted.len(), n_vocab]`, and may change them. `tokens` is the
/// step's input; `last_sampled` has the tokens sampled by the rows of the previous step.
pub(crate) fn rows(
    isa: Isa,
    pool: &Pool,
    logits: &mut [f32],
    tokens: &[InputToken],
    wanted: &[&LogitsRow],
    last_sampled: &[Option<Sampled>],
) -> Vec<RowOutput> {
    if wanted.is_empty() {
        return Vec::new();
    }
    let n_vocab = logits.len() / wanted.len();
    let outputs: Mutex<Vec<Option<RowOutput>>> = Mutex::new(vec![None; wanted.len()]);
    pool.for_each_rows(logits, n_vocab, 1, &|index, row| {
        let wanted = wanted[index];
        let just_sampled = match tokens[wanted.row] {
            InputToken::Sampled { row } => sampled_by(last_sampled, row),
            InputToken::Id(_) => None,
        };
        let output = output_of(isa, row, &wanted.want, just_sampled);
        outputs
            .lock()
            .expect("no task panics while it holds the lock")[index] = Some(output);
    });
    let outputs = outputs
        .into_inner()
        .expect("no task panics while it holds the lock");
    outputs
        .into_iter()
        .map(|output| output.expect("every row has run"))
        .collect()
}

/// Returns what a row of the previous step sampled; `None` if it could not, or if that step failed.
pub(crate) fn sampled_by(last_sampled: &[Option<Sampled>], row: usize) -> Option<Sampled> {
    last_sampled.get(row).copied().flatten()
}

/// Returns the token each row sampled, if any.
pub(crate) fn sampled(rows: &[RowOutput]) -> Vec<Option<Sampled>> {
    let sampled = |row: &RowOutput| match row {
        RowOutput::Sampled { sampled, .. } => Some(*sampled),
        _ => None,
    };
    rows.iter().map(sampled).collect()
}

/// Returns whether the best logit is finite.
fn has_finite_best(isa: Isa, logits: &[f32]) -> bool {
    cpu::argmax(isa, logits).is_some_and(|best| logits[best].is_finite())
}

fn output_of(
    isa: Isa,
    logits: &mut [f32],
    want: &Want,
    just_sampled: Option<Sampled>,
) -> RowOutput {
    let is_usable = match want {
        Want::Logits => true,
        Want::Hidden => logits.iter().all(|x| x.is_finite()),
        Want::Sample(_) | Want::Score { .. } => has_finite_best(isa, logits),
    };
    if !is_usable {
        return RowOutput::NotFinite;
    }
    match want {
        Want::Sample(sample) => {
            let Some(k) = sample.logprobs else {
                return RowOutput::Sampled {
                    sampled: sampler::sample(isa, logits, sample, just_sampled),
                    logprob: None,
                    top: Vec::new(),
                };
            };
            let log_sum_exp = cpu::log_sum_exp(isa, logits);
            let top = sampler::top_logprobs(logits, log_sum_exp, k);
            // Samplers change logits in place.
            let computed = logits.to_vec();
            let sampled = sampler::sample(isa, logits, sample, just_sampled);
            RowOutput::Sampled {
                logprob: Some(computed[sampled.id as usize] - log_sum_exp),
                sampled,
                top,
            }
        }
        Want::Score { target, top } => {
            let log_sum_exp = cpu::log_sum_exp(isa, logits);
            let logprob = logits[*target as usize] - log_sum_exp;
            RowOutput::Scored {
                logprob,
                top: sampler::top_logprobs(logits, log_sum_exp, *top),
            }
        }
        Want::Logits => RowOutput::Logits(logits.to_vec()),
        Want::Hidden => RowOutput::Hidden(logits.to_vec()),
    }
}
