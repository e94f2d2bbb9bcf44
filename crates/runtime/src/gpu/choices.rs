//! Decides for each row of a step where its token is sampled. The device takes the best logit or samples as
//! `kernels/sample.hip` does. The host reads the logits of all other rows and samples them itself.

use rocmforge_gpu::ops::{ALL_TOKENS, Candidates, MAX_LOGPROBS, MAX_TOP_K, SampleEntry, SampleRow};

use crate::sampler::{self, FixedOrder, Kept};
use rocmforge_plan::{Batch, InputToken, LogitsRow, Want};

/// Logit biases and token counts that the device stores for a step: enough for 64 rows with the default penalty window.
/// The host samples rows whose lists no longer fit.
pub(crate) const MAX_ENTRIES: usize = 64 * 64;

/// A row whose best logit is taken. Rows sampled on the host use it as a placeholder.
const BEST: SampleRow = SampleRow {
    uniform: 0.0,
    top_k: 0,
    top_p: 1.0,
    ln_min_p: f32::NEG_INFINITY,
    temperature: 0.0,
    repeat_penalty: 1.0,
    frequency_penalty: 0.0,
    presence_penalty: 0.0,
    input_row: u32::MAX,
    first_bias: 0,
    n_biases: 0,
    first_count: 0,
    n_counts: 0,
    n_logprobs: 0,
    pad: 0,
};

/// The sampling kernels of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Chooser {
    /// Argmax in every row.
    Best,
    /// The sampler, for steps with at least one sampled row.
    Sample {
        candidates: Candidates,
        logprobs: Logprobs,
    },
}

/// When the tokens of a step are chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Choosing {
    /// As the last part of what is queued for the step.
    InStep,
    /// When the masks of its rows are known: the device runs the model meanwhile.
    AfterMasks,
}

/// Whether a step computes log-probabilities.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Logprobs {
    No,
    Yes,
}

/// How the output rows of a step are sampled.
#[derive(Debug, Default)]
pub(crate) struct Choices {
    /// Sampling parameters of each output row.
    pub(crate) rows: Vec<SampleRow>,
    /// Logit biases and token counts of all rows.
    pub(crate) entries: Vec<SampleEntry>,
    /// Rows that the host samples, ascending.
    pub(crate) host_rows: Vec<usize>,
    /// Rows whose masks the device applies, ascending.
    pub(crate) masked_rows: Vec<usize>,
}

impl Choices {
    /// Decides for each output row of `batch`.
    pub(crate) fn of(batch: &Batch) -> Choices {
        let mut choices = Choices::default();
        for (index, wanted) in batch.logits.iter().enumerate() {
            let row = choices.row(batch, wanted);
            match (&row, &wanted.want) {
                (None, _) => choices.host_rows.push(index),
                (Some(_), Want::Sample(sample)) if sample.mask.is_some() => {
                    choices.masked_rows.push(index);
                }
                _ => {}
            }
            choices.rows.push(row.unwrap_or(BEST));
        }
        choices
    }

    pub(crate) fn choosing(&self) -> Choosing {
        match self.masked_rows.is_empty() {
            true => Choosing::InStep,
            false => Choosing::AfterMasks,
        }
    }

    pub(crate) fn chooser(&self) -> Chooser {
        let any = |is: fn(&SampleRow) -> bool| self.rows.iter().any(is);
        let from_all = any(|row| row.top_k == ALL_TOKENS);
        let from_best = any(|row| row.top_k > 0 && row.top_k != ALL_TOKENS);
        let candidates = match (from_best, from_all) {
            (false, false) => return Chooser::Best,
            (true, false) => Candidates::Best,
            (false, true) => Candidates::All,
            (true, true) => Candidates::Mixed,
        };
        let logprobs = match any(|row| row.n_logprobs > 0) {
            true => Logprobs::Yes,
            false => Logprobs::No,
        };
        Chooser::Sample {
            candidates,
            logprobs,
        }
    }

    /// Returns the parameters of a row, or `None` if the host samples it.
    fn row(&mut self, batch: &Batch, wanted: &LogitsRow) -> Option<SampleRow> {
        let Want::Sample(sample) = &wanted.want else {
            return None;
        };
        // Log-probabilities are those before the mask.
        if sample.mask.is_some() && sample.logprobs.is_some() {
            return None;
        }
        let params = &*sample.params;
        if sample.logprobs.is_none() && sampler::takes_best(params) {
            return Some(BEST);
        }
        let choice = FixedOrder::of(sample, MAX_TOP_K)?;
        let (bias, counts) = (&params.logit_bias, &sample.counts);
        // Biases and penalties change the logits before the device reads them for log-probabilities.
        let is_adjusted = !bias.is_empty() || params.has_penalties();
        let n_logprobs = match sample.logprobs {
            None => 0,
            Some(n) if n <= MAX_LOGPROBS && !is_adjusted => n as u32 + 1,
            Some(_) => return None,
        };
        if self.entries.len() + bias.len() + counts.len() > MAX_ENTRIES {
            return None;
        }
        let first_bias = self.entries.len();
        self.entries.extend(bias.iter().map(|&(id, bias)| {
            let value = bias.to_bits();
            SampleEntry { id, value }
        }));
        let first_count = self.entries.len();
        let counts_of = |&(id, value): &(u32, u32)| SampleEntry { id, value };
        self.entries.extend(counts.iter().map(counts_of));
        let row = SampleRow {
            uniform: choice.uniform,
            top_k: match choice.kept {
                Kept::Best(n) => n as u32,
                Kept::All => ALL_TOKENS,
            },
            n_logprobs,
            top_p: choice.top_p,
            ln_min_p: choice.ln_min_p,
            temperature: choice.temperature,
            first_bias: first_bias as u32,
            n_biases: bias.len() as u32,
            first_count: first_count as u32,
            n_counts: counts.len() as u32,
            ..BEST
        };
        if !params.has_penalties() {
            return Some(row);
        }
        Some(SampleRow {
            repeat_penalty: params.repeat_penalty,
            frequency_penalty: params.frequency_penalty,
            presence_penalty: params.presence_penalty,
            // The counts do not include this token: it was not known yet.
            input_row: match batch.tokens[wanted.row] {
                InputToken::Sampled { .. } => wanted.row as u32,
                InputToken::Id(_) => u32::MAX,
            },
            ..row
        })
    }
}

#[cfg(test)]
#[path = "choices/tests.rs"]
pub(super) mod tests;
