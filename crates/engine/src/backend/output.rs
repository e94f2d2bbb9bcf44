//! From rows of logits to what a batch wants of them, on the host: for every backend whose device has none of it to do.

use std::sync::Mutex;

use rocmforge_cpu::{self as cpu, Isa, Pool};

use crate::batch::{Batch, InputToken, RowOutput, Sampled, Want};
use crate::sampler;

/// Samples, scores or copies the wanted rows of `logits` `[n_rows, n_vocab]`, which it may change.
/// `last_sampled` is what the rows of the step before sampled.
pub(super) fn rows(
    isa: Isa,
    pool: &Pool,
    logits: &mut [f32],
    batch: &Batch,
    last_sampled: &[Option<Sampled>],
) -> Vec<RowOutput> {
    if batch.logits.is_empty() {
        return Vec::new();
    }
    let n_vocab = logits.len() / batch.logits.len();
    let outputs: Mutex<Vec<Option<RowOutput>>> = Mutex::new(vec![None; batch.logits.len()]);
    pool.for_each_rows(logits, n_vocab, 1, &|index, row| {
        let wanted = &batch.logits[index];
        let just_sampled = match batch.tokens[wanted.row] {
            InputToken::Sampled { row } => last_sampled[row],
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

/// What each row sampled, if it did.
pub(super) fn sampled(rows: &[RowOutput]) -> Vec<Option<Sampled>> {
    let sampled = |row: &RowOutput| match row {
        RowOutput::Sampled { sampled, .. } => Some(*sampled),
        _ => None,
    };
    rows.iter().map(sampled).collect()
}

/// Whether the best logit is a number, not NaN or infinite.
fn has_finite_best(isa: Isa, logits: &[f32]) -> bool {
    cpu::argmax(isa, logits).is_some_and(|best| logits[best].is_finite())
}

fn output_of(
    isa: Isa,
    logits: &mut [f32],
    want: &Want,
    just_sampled: Option<Sampled>,
) -> RowOutput {
    if *want != Want::Logits && !has_finite_best(isa, logits) {
        return RowOutput::NotFinite;
    }
    match want {
        Want::Sample(sample) => {
            let top = match sample.top_logprobs {
                0 => Vec::new(),
                k => sampler::top_logprobs(logits, cpu::log_sum_exp(isa, logits), k),
            };
            RowOutput::Sampled {
                sampled: sampler::sample(isa, logits, sample, just_sampled),
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
    }
}
