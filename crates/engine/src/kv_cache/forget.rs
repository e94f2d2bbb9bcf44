//! Forgetting tokens in the middle of a sequence: those behind them take their positions.
//!
//! Attention takes the slots of a page for consecutive positions, so a hole would be a key that takes part: holes are
//! closed at once, and what is unused afterwards is the end of the last page. One list of moves does it all. Where whole
//! pages are forgotten, the pages behind them change their place in the table, tokens stay in their slots and only their
//! keys turn; else tokens move too. A block that others use is copied instead, and what changes can no longer be found by
//! its hash.

use std::collections::BTreeSet;
use std::ops::Range;

use rocmforge_plan::{KvShift, SlotRun};

use super::KvUsage;
use super::block_pool::{BlockId, BlockPool};
use super::block_table::BlockTable;

/// The pages of a sequence with holes in them, and without.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Compaction {
    pub before: KvUsage,
    pub after: KvUsage,
}

impl BlockTable {
    /// Forgets the `positions` of a sequence of `n_tokens` tokens. `None` if the pool has too few blocks for copies of
    /// shared ones; then nothing has changed.
    ///
    /// # Panics
    /// If nothing is forgotten, nothing stands behind it, or more stands behind it than is forgotten, except in whole
    /// pages: moves would overlap.
    pub fn forget(
        &mut self,
        pool: &mut BlockPool,
        positions: Range<usize>,
        n_tokens: usize,
    ) -> Option<(KvShift, Compaction)> {
        let page = pool.page();
        let n_forgotten = positions.len();
        let by_pages = n_forgotten.is_multiple_of(page);
        let n_behind = n_tokens - positions.end;
        assert!(
            n_forgotten > 0 && n_behind > 0 && (by_pages || n_behind <= n_forgotten),
            "{positions:?} of {n_tokens} tokens are forgotten"
        );
        let n_kept = n_tokens - n_forgotten;
        // Pages before it hold what stays as it is.
        let first = positions.start / page;
        let pages = first..n_kept.div_ceil(page);
        // Where a page's new content is already, or most of what stands before it.
        let home = |index: usize| index + if by_pages { n_forgotten / page } else { 0 };

        let old = self.blocks().to_vec();
        let is_own = |index: usize| pool.n_references(old[index]) == 1;
        let in_place: BTreeSet<usize> = pages.clone().map(home).filter(|&i| is_own(i)).collect();
        let n_copies = pages.len() - in_place.len();
        let behind = positions.end / page..n_tokens.div_ceil(page);
        let is_read =
            |i: usize| behind.contains(&i) || (i == first && !positions.start.is_multiple_of(page));
        let given_back = (first..old.len()).filter(|i| !in_place.contains(i));
        // What nothing is read of may be written at once.
        let (read, free): (Vec<usize>, Vec<usize>) = given_back.partition(|&i| is_read(i));
        let n_freed = free.iter().filter(|&&i| is_own(i)).count();
        if n_copies > pool.n_free() + n_freed {
            return None;
        }
        let before = usage(old.len() * page, n_kept);
        for i in free.into_iter().rev() {
            pool.release(old[i]);
        }
        let mut blocks = old[..first].to_vec();
        for index in pages.clone() {
            let home = home(index);
            blocks.push(if in_place.contains(&home) {
                pool.forget_content(old[home]);
                old[home]
            } else {
                pool.allocate().expect("the pool has as many as it says")
            });
        }
        let mut shift = KvShift {
            back_by: n_forgotten as u32,
            ..KvShift::default()
        };
        let slot =
            |blocks: &[BlockId], at: usize| blocks[at / page].0 * page as u32 + (at % page) as u32;
        for position in pages.start * page..n_kept {
            let to = slot(&blocks, position);
            if position < positions.start {
                let from = slot(&old, position);
                if from != to {
                    push(&mut shift.copied, [from, to], page);
                }
            } else {
                let from = slot(&old, position + n_forgotten);
                push(&mut shift.turned, [from, to], page);
            }
        }
        for i in read.into_iter().rev() {
            pool.release(old[i]);
        }
        let after = usage(blocks.len() * page, n_kept);
        self.replace(blocks, first);
        Some((shift, Compaction { before, after }))
    }
}

fn usage(n_slots: usize, n_tokens: usize) -> KvUsage {
    KvUsage { n_slots, n_tokens }
}

/// Adds a token, to the last run if it follows it on both sides.
fn push(runs: &mut Vec<SlotRun>, [from, to]: [u32; 2], page: usize) {
    let begins_block = |slot: u32| (slot as usize).is_multiple_of(page);
    match runs.last_mut() {
        Some(run)
            if [run.from + run.n_tokens, run.to + run.n_tokens] == [from, to]
                && !begins_block(from)
                && !begins_block(to) =>
        {
            run.n_tokens += 1
        }
        _ => runs.push(SlotRun {
            from,
            to,
            n_tokens: 1,
        }),
    }
}

#[cfg(test)]
#[path = "forget/tests.rs"]
mod tests;
