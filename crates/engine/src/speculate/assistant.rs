//! Drafts from a model whose layers read the KV cache of the model that checks them (the drafters of Gemma 4). It has nothing
//! to compute of a prompt: the first token of a draft takes the last hidden values of that model, later ones take its own. All
//! of them see the same positions, those before the last known token.

use std::collections::HashMap;

use rocmforge_plan::{Batch, BatchSeq, InputToken, LogitsRow, Want};
use rocmforge_runtime::{Executor, Limits, RuntimeError, Started};

use super::hidden::Hidden;
use super::model::{LEAST_PROBABILITY, greedy_row, take};
use super::{Drafter, MAX_DRAFT, Wanted};
use crate::request::RequestId;

/// A drafter that reads the cache of the model that checks drafts.
pub struct AssistantDrafter {
    executor: Executor,
    limits: Limits,
    /// Tokens of a block of that cache.
    page: usize,
    n_vocab: usize,
    /// Values of a row of hidden values.
    width: usize,
    /// Those of the last tokens of each sequence.
    hidden: HashMap<RequestId, Hidden>,
    next_step: u64,
    /// A draft ends before a less likely token.
    least: f32,
}

/// A draft in progress.
struct Run {
    /// Its index among the wanted ones.
    at: usize,
    /// What the next token is computed from.
    hidden: Vec<f32>,
    is_over: bool,
}

impl AssistantDrafter {
    /// Drafts with a drafter from [`start_beside`](rocmforge_runtime::start_beside), for a model with `n_vocab` tokens that
    /// exports hidden values of `width` numbers, and whose cache has pages of `page` tokens.
    pub fn new(started: Started, page: usize, n_vocab: usize, width: usize) -> AssistantDrafter {
        AssistantDrafter {
            executor: started.executor,
            limits: started.resolved.limits,
            page,
            n_vocab,
            width,
            hidden: HashMap::new(),
            next_step: 0,
            least: LEAST_PROBABILITY,
        }
    }

    /// Ends drafts before a token that the model finds less likely than `least`.
    #[must_use]
    pub fn with_least(self, least: f32) -> AssistantDrafter {
        AssistantDrafter { least, ..self }
    }

    /// Returns the hidden values from which a draft begins, if all that it depends on is known.
    fn begin(&mut self, one: &Wanted<'_>) -> Option<Vec<f32>> {
        let cached = one.cached.as_ref()?;
        let hidden = self.hidden.get_mut(&one.request)?;
        let last = one.tokens.len().checked_sub(1)?;
        // What came after was computed of drafted tokens that were wrong.
        hidden.drop_from(last);
        let is_ready = hidden.has_before(last..last + 1) && cached.n_positions > 0;
        let has_room = one.n_most > 0 && cached.n_positions < self.limits.n_ctx;
        (is_ready && has_room).then(|| hidden.before(last).to_vec())
    }

    /// Computes the next token of each draft that goes on. Returns whether any goes on still.
    fn step(&mut self, wanted: &mut [Wanted<'_>], runs: &mut [Run]) -> Result<bool, RuntimeError> {
        let mut batch = Batch {
            step: self.next_step,
            exports: true,
            ..Batch::default()
        };
        self.next_step += 1;
        let mut going_on: Vec<&mut Run> = runs.iter_mut().filter(|run| !run.is_over).collect();
        for (row, run) in going_on.iter().enumerate() {
            let one = &wanted[run.at];
            let cached = one.cached.as_ref().expect("it was begun");
            let last = one.draft.last().or(one.tokens.last());
            let position = cached.n_positions - 1;
            batch.tokens.push(InputToken::Id(*last.expect("a token")));
            batch.positions.push(position as u32);
            // Nothing is written there.
            batch.slots.push(cached.table.slot(self.page, position));
            batch.imports.extend(&run.hidden);
            batch.seqs.push(BatchSeq {
                first_row: row,
                n_rows: 1,
                first_pos: position,
                block_table: cached.table.shared(),
                state: None,
            });
            batch.logits.push(LogitsRow {
                row,
                want: Want::Sample(greedy_row()),
            });
        }
        if going_on.is_empty() {
            return Ok(false);
        }
        let output = self.executor.submit(batch).wait()?;
        let hidden = output.exports.chunks_exact(self.width);
        for ((run, row), hidden) in going_on.iter_mut().zip(output.rows).zip(hidden) {
            let one = &mut wanted[run.at];
            run.is_over = !take(one, row, self.n_vocab, self.least);
            run.hidden = hidden.to_vec();
        }
        Ok(true)
    }
}

impl Drafter for AssistantDrafter {
    fn name(&self) -> &'static str {
        "assistant"
    }

    fn needs_all(&self) -> bool {
        true
    }

    fn most_sequences(&self) -> usize {
        self.limits.max_seqs
    }

    fn draft(&mut self, wanted: &mut [Wanted<'_>]) -> Result<(), RuntimeError> {
        let mut runs: Vec<Run> = Vec::new();
        for (at, one) in wanted.iter().enumerate() {
            if let Some(hidden) = self.begin(one) {
                runs.push(Run {
                    at,
                    hidden,
                    is_over: false,
                });
            }
        }
        while self.step(wanted, &mut runs)? {}
        Ok(())
    }

    fn takes_hidden(&self) -> bool {
        true
    }

    fn computed(&mut self, request: RequestId, first: usize, hidden: &[f32]) {
        // The next draft begins after one of a checked draft's tokens.
        let n_rows = hidden.len() / self.width;
        let n_before = n_rows.saturating_sub(MAX_DRAFT + 1);
        let of_request = self.hidden.entry(request).or_default();
        let last = &hidden[n_before * self.width..];
        of_request.add(self.width, first + n_before, last);
        of_request.drop_before((first + n_before).max(1));
    }

    fn lose_cache(&mut self) -> bool {
        self.executor.close();
        true
    }

    fn end(&mut self, request: RequestId) {
        self.hidden.remove(&request);
    }
}
