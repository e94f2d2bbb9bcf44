//! Drafts from a model beside the one that checks them: a smaller one of the same vocabulary, the layers of the model's own file
//! that predict further tokens ahead (multi-token prediction), or EAGLE-3, which was made for it. The last two take each token
//! with the hidden values of the token before: the checking model's, or their own for a drafted one. It computes the tokens of
//! each sequence in a cache of its own, and then one drafted token after the other; wrong ones are overwritten by the next draft.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use rocmforge_gguf::TokenId;
use rocmforge_plan::{
    Batch, BatchSeq, InputToken, LogitsRow, RowOutput, SampleRow, SamplingParams, Want,
};
use rocmforge_runtime::{Executor, Limits, RuntimeError, Started};

use super::hidden::Hidden;
use super::{Drafter, Trust, Wanted};
use crate::kv_cache::{BlockPool, BlockTable};
use crate::request::RequestId;

/// A draft usually ends before a token that the model finds less likely than this.
pub(super) const LEAST_PROBABILITY: f32 = 0.2;
/// First tokens of at least these probabilities have each level of [`Trust`].
const LEVELS: [f32; Trust::N_LEVELS] = [0.0, 0.5, 0.85];

/// A drafter with a model.
pub struct ModelDrafter {
    executor: Executor,
    limits: Limits,
    pool: BlockPool,
    caches: HashMap<RequestId, Cache>,
    /// Tokens of the vocabulary of this model, and of the model that checks drafts.
    own_vocab: usize,
    n_vocab: usize,
    next_step: u64,
    /// Values of a row of hidden values, if the model takes those of the checking model.
    hidden_width: Option<usize>,
    /// The tokens that it samples, as the checking model calls them; `None` if both call them alike.
    output_ids: Option<Arc<[TokenId]>>,
    name: &'static str,
    /// A draft ends before a less likely token.
    least: f32,
}

/// What the cache holds of a sequence.
#[derive(Default)]
struct Cache {
    table: BlockTable,
    /// The first token, by its index in the sequence, that is computed here.
    start: usize,
    /// The tokens that are computed; the last ones may be of a draft.
    tokens: Vec<TokenId>,
    /// Of the tokens before those.
    hidden: Hidden,
}

impl Cache {
    /// Forgets all tokens, and begins with the one at `start`.
    fn restart(&mut self, pool: &mut BlockPool, start: usize) {
        self.table.release(pool);
        *self = Cache {
            start,
            hidden: std::mem::take(&mut self.hidden),
            ..Cache::default()
        };
    }
}

/// A draft in progress.
struct Run {
    /// Its index among the wanted ones.
    at: usize,
    request: RequestId,
    /// Whether its last token was unlikely.
    is_over: bool,
    /// The hidden values of the last token, which the model made itself.
    hidden: Vec<f32>,
}

impl ModelDrafter {
    /// The most tokens that it computes in a step.
    pub const MAX_TOKENS: usize = 256;

    /// Drafts with a started model without states, whose cache has pages of `page` tokens and whose vocabulary has `own_vocab`
    /// tokens, for one with `n_vocab` tokens.
    ///
    /// # Panics
    /// If the model keeps states.
    pub fn new(started: Started, page: usize, own_vocab: usize, n_vocab: usize) -> ModelDrafter {
        let resolved = started.resolved;
        assert_eq!(
            resolved.n_slots, 0,
            "drafts are dropped, and a state cannot go back"
        );
        ModelDrafter {
            executor: started.executor,
            limits: resolved.limits,
            pool: BlockPool::new(resolved.n_blocks, page),
            caches: HashMap::new(),
            own_vocab,
            n_vocab,
            next_step: 0,
            hidden_width: None,
            output_ids: None,
            name: "draft",
            least: LEAST_PROBABILITY,
        }
    }

    /// Ends drafts before a token that the model finds less likely than `least`.
    #[must_use]
    pub fn with_least(self, least: f32) -> ModelDrafter {
        ModelDrafter { least, ..self }
    }

    /// Drafts with the started layers of the checking model's file that predict further tokens ahead. They take its hidden values
    /// of `hidden_width` numbers: that model's plan must export them.
    ///
    /// # Panics
    /// As [`ModelDrafter::new`].
    pub fn of_hidden(
        started: Started,
        page: usize,
        n_vocab: usize,
        hidden_width: usize,
    ) -> ModelDrafter {
        ModelDrafter {
            hidden_width: Some(hidden_width),
            name: "mtp",
            ..ModelDrafter::new(started, page, n_vocab, n_vocab)
        }
    }

    /// Drafts with a started drafter of EAGLE-3, whose vocabulary has `own_vocab` tokens, for a model with `n_vocab` tokens. It
    /// takes hidden values of `hidden_width` numbers: that model's plan must export them. `output_ids` are the tokens of its
    /// logits ([`Model::output_ids`](rocmforge_model::Model::output_ids)).
    ///
    /// # Panics
    /// As [`ModelDrafter::new`].
    pub fn eagle3(
        started: Started,
        page: usize,
        [own_vocab, n_vocab]: [usize; 2],
        hidden_width: usize,
        output_ids: Option<Arc<[TokenId]>>,
    ) -> ModelDrafter {
        ModelDrafter {
            hidden_width: Some(hidden_width),
            output_ids,
            name: "eagle3",
            ..ModelDrafter::new(started, page, own_vocab, n_vocab)
        }
    }

    /// Prepares the cache for a draft. Returns `false` if that is not possible: there is no room, or hidden values are missing.
    fn begin(&mut self, one: &Wanted<'_>) -> bool {
        let cache = self.caches.entry(one.request).or_default();
        let Some(known) = one
            .tokens
            .get(cache.start..)
            .filter(|known| !known.is_empty())
        else {
            return false;
        };
        let same = cache.tokens.iter().zip(known);
        let n_same = same.take_while(|(a, b)| a == b).count();
        // What follows the last token is not kept.
        cache.tokens.truncate(n_same.min(known.len() - 1));
        let needed = cache.start + cache.tokens.len()..one.tokens.len();
        if self.hidden_width.is_some() && !cache.hidden.has_before(needed) {
            return false;
        }
        let is_known = |id: &TokenId| (*id as usize) < self.own_vocab;
        let are_known = known[cache.tokens.len()..].iter().all(is_known);
        let n_tokens = known.len() + one.n_most;
        are_known && n_tokens <= self.limits.n_ctx && cache.table.reserve(&mut self.pool, n_tokens)
    }

    /// Computes the tokens that the drafts are still without, as far as a step takes them. Returns the output rows, each with
    /// its run.
    fn step(
        &mut self,
        wanted: &[Wanted<'_>],
        runs: &mut [Run],
    ) -> Result<Vec<(usize, RowOutput)>, RuntimeError> {
        let mut batch = Batch {
            step: self.next_step,
            exports: self.hidden_width.is_some(),
            ..Batch::default()
        };
        self.next_step += 1;
        let mut sampled = Vec::new();
        for (index, run) in runs.iter().enumerate() {
            let one = &wanted[run.at];
            let n_left = self.limits.max_tokens.min(Self::MAX_TOKENS) - batch.tokens.len();
            if run.is_over || n_left == 0 || batch.logits.len() == self.limits.max_logits {
                continue;
            }
            let cache = self.caches.get_mut(&run.request).expect("it was begun");
            let first_pos = cache.tokens.len();
            let first = cache.start + first_pos;
            let known = one.tokens.iter().chain(&one.draft);
            let tokens: Vec<TokenId> = known.skip(first).take(n_left).copied().collect();
            let first_row = batch.tokens.len();
            for (i, &token) in tokens.iter().enumerate() {
                if self.hidden_width.is_some() {
                    let hidden = match first + i < one.tokens.len() {
                        true => cache.hidden.before(first + i),
                        false => &run.hidden,
                    };
                    batch.imports.extend(hidden);
                }
                batch.tokens.push(InputToken::Id(token));
                batch.positions.push((first_pos + i) as u32);
                let slot = cache.table.slot(self.pool.page(), first_pos + i);
                batch.slots.push(slot);
            }
            batch.seqs.push(BatchSeq {
                first_row,
                n_rows: tokens.len(),
                first_pos,
                block_table: cache.table.shared(),
                state: None,
            });
            cache.tokens.extend(tokens);
            if cache.start + cache.tokens.len() == one.tokens.len() + one.draft.len() {
                sampled.push(index);
                batch.logits.push(LogitsRow {
                    row: batch.tokens.len() - 1,
                    want: Want::Sample(greedy_row()),
                });
            }
        }
        let last_rows: Vec<usize> = batch.logits.iter().map(|wanted| wanted.row).collect();
        let output = self.executor.submit(batch).wait()?;
        if let Some(width) = self.hidden_width {
            for (&index, row) in sampled.iter().zip(last_rows) {
                runs[index].hidden = output.exports[row * width..(row + 1) * width].to_vec();
            }
        }
        let mut rows = output.rows;
        if let Some(ids) = &self.output_ids {
            for row in &mut rows {
                if let RowOutput::Sampled { sampled, .. } = row {
                    sampled.id = ids[sampled.id as usize];
                }
            }
        }
        Ok(sampled.into_iter().zip(rows).collect())
    }
}

/// The most likely token, with its probability.
pub(super) fn greedy_row() -> SampleRow {
    static GREEDY: LazyLock<Arc<SamplingParams>> =
        LazyLock::new(|| Arc::new(SamplingParams::greedy()));
    SampleRow {
        params: Arc::clone(&GREEDY),
        index: 0,
        counts: Vec::new(),
        dry: None,
        mu: None,
        logprobs: Some(0),
        mask: None,
    }
}

/// Adds the token of a [`greedy_row`] to a draft, unless it is out of the `n_vocab` tokens of the model that checks it, or less
/// likely than `least`. Returns whether the draft goes on.
pub(super) fn take(one: &mut Wanted<'_>, output: RowOutput, n_vocab: usize, least: f32) -> bool {
    let RowOutput::Sampled {
        sampled,
        logprob: Some(logprob),
        ..
    } = output
    else {
        return false;
    };
    let probability = logprob.exp();
    if one.draft.is_empty() {
        let level = LEVELS.partition_point(|&least| least <= probability);
        one.trust = Trust(level.saturating_sub(1));
    }
    let is_known = (sampled.id as usize) < n_vocab;
    // Not if it is no number.
    if !(is_known && probability >= least) {
        return false;
    }
    one.draft.push(sampled.id);
    one.draft.len() < one.n_most
}

impl Drafter for ModelDrafter {
    fn name(&self) -> &'static str {
        self.name
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
            if self.begin(one) {
                runs.push(Run {
                    at,
                    request: one.request,
                    is_over: false,
                    hidden: Vec::new(),
                });
            }
        }
        let mut is_first = true;
        while runs.iter().any(|run| !run.is_over) {
            let outputs = self.step(wanted, &mut runs)?;
            // The batch does not wait for a long text; it is read on at the next call.
            if std::mem::take(&mut is_first) {
                for (index, run) in runs.iter_mut().enumerate() {
                    let is_behind = outputs.iter().all(|(of, _)| *of != index);
                    wanted[run.at].is_behind = is_behind;
                    run.is_over |= is_behind;
                }
            }
            for (index, output) in outputs {
                let run = &mut runs[index];
                let one = &mut wanted[run.at];
                run.is_over = !take(one, output, self.n_vocab, self.least);
            }
        }
        if self.hidden_width.is_some() {
            for one in wanted.iter() {
                let cache = self.caches.get_mut(&one.request).expect("it was begun");
                // Drafted tokens are computed again, from the hidden values of the checking model.
                let n_known = one.tokens.len().saturating_sub(cache.start);
                cache.tokens.truncate(n_known);
                cache.hidden.drop_before(cache.start + cache.tokens.len());
            }
        }
        Ok(())
    }

    fn takes_hidden(&self) -> bool {
        self.hidden_width.is_some()
    }

    fn computed(&mut self, request: RequestId, first: usize, hidden: &[f32]) {
        let Some(width) = self.hidden_width else {
            return;
        };
        let cache = self.caches.entry(request).or_default();
        cache.hidden.add(width, first, hidden);
        // What is computed next takes the hidden values before it.
        let next = cache.start + cache.tokens.len();
        if !cache.hidden.has_before(next..next + 1) {
            cache.restart(&mut self.pool, cache.hidden.first() + 1);
        }
    }

    fn end(&mut self, request: RequestId) {
        if let Some(mut cache) = self.caches.remove(&request) {
            cache.table.release(&mut self.pool);
        }
    }
}
