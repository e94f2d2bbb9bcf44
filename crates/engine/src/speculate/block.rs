//! Drafts from a model that predicts all tokens of a draft at once (DFlash). It has a cache of its own, with a position for each
//! token that the checking model has computed: one plan writes keys and values there, which are made of that model's hidden values.
//! Another takes a block of tokens, the last known one and masks after it, and its logits of the masks are of the next tokens. What
//! it writes itself is overwritten when those tokens, or others in their place, have been computed.

use std::collections::HashMap;
use std::sync::Arc;

use rocmforge_gguf::TokenId;
use rocmforge_model::{DraftBlock, Model};
use rocmforge_plan::{Batch, BatchSeq, InputToken, LogitsRow, RowOutput, Want};
use rocmforge_runtime::{Executor, Limits, RuntimeError, Started};

use super::hidden::Hidden;
use super::model::{LEAST_PROBABILITY, ModelDrafter, greedy_row, take};
use super::{Drafter, Wanted};
use crate::kv_cache::{BlockPool, BlockTable};
use crate::request::RequestId;

/// A drafter that predicts blocks.
pub struct BlockDrafter {
    /// Writes the cache.
    context: Executor,
    /// Predicts, after what is in the cache.
    predictor: Executor,
    /// Tokens whose keys and values a step writes.
    max_written: usize,
    /// Of the steps that predict.
    limits: Limits,
    pool: BlockPool,
    caches: HashMap<RequestId, Cache>,
    block: DraftBlock,
    /// Tokens of the vocabulary of this model, and of the model that checks drafts.
    own_vocab: usize,
    n_vocab: usize,
    /// Values of a row of hidden values.
    width: usize,
    /// The tokens of its logits, as the checking model calls them; `None` if both call them alike.
    output_ids: Option<Arc<[TokenId]>>,
    next_step: u64,
    /// A draft ends before a less likely token.
    least: f32,
}

/// What the cache holds of a sequence.
#[derive(Default)]
struct Cache {
    table: BlockTable,
    /// The token, by its index in the sequence, at the first position.
    start: usize,
    /// Positions that are written.
    n_written: usize,
    /// Those of the tokens after them.
    hidden: Hidden,
}

impl Cache {
    /// Returns the first token, by its index in the sequence, that has no position yet.
    fn next(&self) -> usize {
        self.start + self.n_written
    }
}

impl BlockDrafter {
    /// Drafts with the started `drafts`, a drafter of blocks, for a model with `n_vocab` tokens that exports what it takes:
    /// `[context, predictor]` are the model that writes its cache, whose pages have `page` tokens, and the drafter on that cache
    /// ([`start_beside`](rocmforge_runtime::start_beside)), whose steps take a block or more.
    ///
    /// # Panics
    /// If `drafts` predicts no blocks, or one does not fit in a step.
    pub fn new(
        [context, predictor]: [Started; 2],
        page: usize,
        drafts: &Model,
        n_vocab: usize,
    ) -> BlockDrafter {
        let config = &drafts.config;
        let block = config.draft_block.expect("a drafter of blocks");
        let limits = predictor.resolved.limits;
        let most = limits.max_tokens;
        assert!(block.n_tokens <= most, "a block in a step of {most} tokens");
        let resolved = context.resolved;
        BlockDrafter {
            context: context.executor,
            predictor: predictor.executor,
            max_written: resolved.limits.max_tokens.min(ModelDrafter::MAX_TOKENS),
            limits,
            pool: BlockPool::new(resolved.n_blocks, page),
            caches: HashMap::new(),
            block,
            own_vocab: config.n_vocab,
            n_vocab,
            width: config.n_embd,
            output_ids: drafts.output_ids.clone(),
            next_step: 0,
            least: LEAST_PROBABILITY,
        }
    }

    /// Ends drafts before a token that the model finds less likely than `least`.
    #[must_use]
    pub fn with_least(self, least: f32) -> BlockDrafter {
        BlockDrafter { least, ..self }
    }

    /// Prepares the cache for a draft. Returns `false` if that is not possible: there is no room, or hidden values are missing.
    fn begin(&mut self, one: &Wanted<'_>) -> bool {
        let cache = self.caches.entry(one.request).or_default();
        let Some((&token, before)) = one.tokens.split_last() else {
            return false;
        };
        let next = cache.next();
        let is_known = (token as usize) < self.own_vocab;
        if !is_known || before.len() < next {
            return false;
        }
        let has_all = next == before.len() || cache.hidden.has_before(next + 1..before.len() + 1);
        let n_positions = before.len() - cache.start + self.block.n_tokens;
        has_all
            && n_positions <= self.limits.n_ctx
            && cache.table.reserve(&mut self.pool, n_positions)
    }

    /// Writes the positions of known tokens that the sequences `at` are still without, as far as a step takes them. Returns the
    /// sequences that are without none.
    fn write(
        &mut self,
        wanted: &mut [Wanted<'_>],
        at: &[usize],
    ) -> Result<Vec<usize>, RuntimeError> {
        let mut batch = self.batch();
        let mut ready = Vec::new();
        for &index in at {
            let one = &mut wanted[index];
            let cache = self.caches.get_mut(&one.request).expect("it was begun");
            let first = cache.next();
            let n_missing = one.tokens.len() - 1 - first;
            let n = n_missing.min(self.max_written - batch.tokens.len());
            for token in first..first + n {
                batch.imports.extend(cache.hidden.before(token + 1));
            }
            // Only their hidden values are read.
            let tokens = std::iter::repeat_n(0, n);
            add_rows(&mut batch, cache, self.pool.page(), tokens);
            cache.n_written += n;
            cache.hidden.drop_before(cache.next() + 1);
            one.is_behind = n < n_missing;
            if !one.is_behind {
                ready.push(index);
            }
        }
        if !batch.tokens.is_empty() {
            self.context.submit(batch).wait()?;
        }
        Ok(ready)
    }

    /// Drafts for the sequences `at`.
    fn predict(&mut self, wanted: &mut [Wanted<'_>], at: &[usize]) -> Result<(), RuntimeError> {
        let mut batch = self.batch();
        let DraftBlock { n_tokens, mask, .. } = self.block;
        for &index in at {
            let one = &wanted[index];
            let cache = self.caches.get_mut(&one.request).expect("it was begun");
            let first_row = batch.tokens.len();
            let known = one.tokens.last().copied();
            let masks = std::iter::repeat_n(mask, n_tokens - 1);
            add_rows(
                &mut batch,
                cache,
                self.pool.page(),
                known.into_iter().chain(masks),
            );
            let rows = first_row + 1..first_row + 1 + self.n_drafted(one);
            batch.logits.extend(rows.map(|row| LogitsRow {
                row,
                want: Want::Sample(greedy_row()),
            }));
        }
        let mut rows = self.predictor.submit(batch).wait()?.rows.into_iter();
        for &index in at {
            let one = &mut wanted[index];
            let of_one: Vec<RowOutput> = rows.by_ref().take(self.n_drafted(one)).collect();
            for mut row in of_one {
                if let (Some(ids), RowOutput::Sampled { sampled, .. }) =
                    (&self.output_ids, &mut row)
                {
                    sampled.id = ids[sampled.id as usize];
                }
                if !take(one, row, self.n_vocab, self.least) {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Returns how many tokens a draft has.
    fn n_drafted(&self, one: &Wanted<'_>) -> usize {
        one.n_most.min(self.block.n_tokens - 1)
    }

    fn batch(&mut self) -> Batch {
        let step = self.next_step;
        self.next_step += 1;
        Batch {
            step,
            ..Batch::default()
        }
    }
}

/// Adds the rows of `tokens` of a sequence to a step, at the positions after those that are written.
fn add_rows(batch: &mut Batch, cache: &Cache, page: usize, tokens: impl Iterator<Item = TokenId>) {
    let (first_row, first_pos) = (batch.tokens.len(), cache.n_written);
    batch.tokens.extend(tokens.map(InputToken::Id));
    let n_rows = batch.tokens.len() - first_row;
    if n_rows == 0 {
        return;
    }
    for position in first_pos..first_pos + n_rows {
        batch.positions.push(position as u32);
        batch.slots.push(cache.table.slot(page, position));
    }
    batch.seqs.push(BatchSeq {
        first_row,
        n_rows,
        first_pos,
        block_table: cache.table.shared(),
        state: None,
    });
}

impl Drafter for BlockDrafter {
    fn name(&self) -> &'static str {
        "dflash"
    }

    fn needs_all(&self) -> bool {
        true
    }

    fn drafts_at_once(&self) -> bool {
        true
    }

    fn most_sequences(&self) -> usize {
        self.limits.max_seqs
    }

    fn draft(&mut self, wanted: &mut [Wanted<'_>]) -> Result<(), RuntimeError> {
        let begun: Vec<usize> = (0..wanted.len())
            .filter(|&at| self.begin(&wanted[at]))
            .collect();
        let ready = self.write(wanted, &begun)?;
        let n_tokens = self.block.n_tokens;
        let by_rows = self.limits.max_tokens / n_tokens;
        let by_logits = self.limits.max_logits / (n_tokens - 1);
        for some in ready.chunks(by_rows.min(by_logits)) {
            self.predict(wanted, some)?;
        }
        Ok(())
    }

    fn takes_hidden(&self) -> bool {
        true
    }

    fn computed(&mut self, request: RequestId, first: usize, hidden: &[f32]) {
        let cache = self.caches.entry(request).or_default();
        cache.hidden.add(self.width, first, hidden);
        let after_next = cache.next() + 1;
        if !cache.hidden.has_before(after_next..after_next) {
            cache.table.release(&mut self.pool);
            cache.start = cache.hidden.first();
            cache.n_written = 0;
        }
    }

    fn end(&mut self, request: RequestId) {
        if let Some(mut cache) = self.caches.remove(&request) {
            cache.table.release(&mut self.pool);
        }
    }
}
