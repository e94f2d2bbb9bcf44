//! Turns rows of logits into outputs on the host: all rows of the CPU backend, and the rows that a GPU cannot sample
//! itself.

use std::sync::Mutex;

use rocmforge_cpu as cpu;
use rocmforge_cpu::{Isa, Pool};

use crate::sampler;
use rocmforge_plan::{InputToken, LogitsRow, RowOutput, SampleRow, Sampled, TokenMask, Want};

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
    // Here, so that no thread of the pool waits.
    for wanted in wanted {
        if let Want::Sample(SampleRow {
            mask: Some(mask), ..
        }) = &wanted.want
        {
            let _ = mask.wait();
        }
    }
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

/// Takes the tokens that the mask does not allow out of the choice.
fn forbid(logits: &mut [f32], mask: Option<&[u32]>) {
    let Some(mask) = mask else {
        return;
    };
    let (masked, beyond) = logits.split_at_mut(logits.len().min(32 * mask.len()));
    beyond.fill(f32::NEG_INFINITY);
    for (logits, &word) in masked.chunks_mut(32).zip(mask) {
        for (bit, logit) in logits.iter_mut().enumerate() {
            if word >> bit & 1 == 0 {
                *logit = f32::NEG_INFINITY;
            }
        }
    }
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
            let mask = sample.mask.as_deref().map(TokenMask::wait).transpose();
            let Ok(mask) = mask else {
                return RowOutput::NoMask;
            };
            let Some(k) = sample.logprobs else {
                forbid(logits, mask);
                return RowOutput::Sampled {
                    sampled: sampler::sample(isa, logits, sample, just_sampled),
                    logprob: None,
                    top: Vec::new(),
                };
            };
            let log_sum_exp = cpu::log_sum_exp(isa, logits);
            let top = sampler::top_logprobs(logits, log_sum_exp, k);
            // Samplers and the mask change logits in place.
            let computed = logits.to_vec();
            forbid(logits, mask);
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use rocmforge_plan::{ConstraintError, SamplingParams};

    fn row(mask: Arc<TokenMask>, logprobs: Option<usize>) -> Want {
        Want::Sample(SampleRow {
            params: Arc::new(SamplingParams::greedy()),
            index: 0,
            counts: Vec::new(),
            dry: None,
            mu: None,
            logprobs,
            mask: Some(mask),
        })
    }

    /// 40 logits that grow with the id, except the last one, which no mask of 35 tokens reaches.
    fn output(mask: &Arc<TokenMask>, logprobs: Option<usize>) -> RowOutput {
        let mut logits: Vec<f32> = (0..40).map(|id| id as f32 / 8.0).collect();
        let wanted = LogitsRow {
            row: 0,
            want: row(Arc::clone(mask), logprobs),
        };
        let tokens = [InputToken::Id(0)];
        let pool = Pool::new(1);
        rows(Isa::Scalar, &pool, &mut logits, &tokens, &[&wanted], &[]).remove(0)
    }

    #[test]
    fn masked_tokens_are_not_chosen_but_keep_their_probability() {
        for (words, expected) in [
            (vec![u32::MAX, 0b111], 34),
            (vec![u32::MAX], 31),
            (vec![1 << 7 | 1 << 3, 0], 7),
            (vec![0, 1], 32),
        ] {
            let mask = Arc::new(TokenMask::default());
            mask.set(Ok(words));
            let RowOutput::Sampled { sampled, .. } = output(&mask, None) else {
                panic!("a token is allowed");
            };
            assert_eq!(sampled.id, expected);
            let RowOutput::Sampled {
                sampled,
                logprob: Some(logprob),
                top,
            } = output(&mask, Some(2))
            else {
                panic!("a token is allowed");
            };
            assert_eq!(sampled.id, expected);
            // The best tokens are the model's.
            assert_eq!([top[0].id, top[1].id], [39, 38]);
            let sum: f64 = (0..40).map(|id| (f64::from(id) / 8.0).exp()).sum();
            let exact = f64::from(expected) / 8.0 - sum.ln();
            assert!(
                (f64::from(logprob) - exact).abs() < 1e-5,
                "{logprob} {exact}"
            );
        }
    }

    #[test]
    fn a_row_waits_for_its_mask() {
        let mask = Arc::new(TokenMask::default());
        let late = Arc::clone(&mask);
        let setter = std::thread::spawn(move || {
            std::thread::yield_now();
            late.set(Ok(vec![1 << 5]));
            // The first one counts.
            late.set(Ok(vec![1 << 6]));
        });
        let RowOutput::Sampled { sampled, .. } = output(&mask, None) else {
            panic!("a token is allowed");
        };
        assert_eq!(sampled.id, 5);
        setter.join().unwrap();
        let failed = Arc::new(TokenMask::default());
        failed.set(Err(ConstraintError("no".into())));
        assert_eq!(output(&failed, None), RowOutput::NoMask);
    }
}
