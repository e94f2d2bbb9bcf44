//! Context shift in the block table: drops tokens from the middle of a sequence and moves later tokens to their
//! positions.
//!
//! Attention reads the slots of a block as consecutive positions, so a hole would count as a key. Holes are therefore
//! closed at once, and only the end of the last block stays unused. One list of moves describes the shift. If whole
//! blocks are dropped, later blocks change their place in the table: their tokens stay in their slots and only their
//! keys are rotated. Otherwise tokens move too. Shared blocks are copied first, and changed blocks leave the prefix
//! index.

use std::collections::BTreeSet;
use std::ops::Range;

use rocmforge_plan::{KvShift, SlotRun};

use super::KvUsage;
use super::block_pool::{BlockId, BlockPool};
use super::block_table::BlockTable;

/// KV-cache usage of a sequence around a context shift: the kept tokens in the old blocks and in the new ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Compaction {
    pub before: KvUsage,
    pub after: KvUsage,
}

impl BlockTable {
    /// Drops the `positions` of a sequence of `n_tokens` tokens. Returns `None` and changes nothing if the pool has too
    /// few blocks for copies of shared ones.
    ///
    /// # Panics
    /// If `positions` is empty or no token follows it. Also if more tokens follow than are dropped, because moves would
    /// overlap, unless whole blocks are dropped.
    pub fn forget(
        &mut self,
        pool: &mut BlockPool,
        positions: Range<usize>,
        n_tokens: usize,
    ) -> Option<(KvShift, Compaction)> {
        let page = pool.page();
        let n_forgotten = positions.len();
        let whole_blocks = n_forgotten.is_multiple_of(page);
        let n_behind = n_tokens - positions.end;
        assert!(
            n_forgotten > 0 && n_behind > 0 && (whole_blocks || n_behind <= n_forgotten),
            "cannot drop {positions:?} of {n_tokens} tokens"
        );
        let n_kept = n_tokens - n_forgotten;
        // Blocks before it do not change.
        let first = positions.start / page;
        let changed = first..n_kept.div_ceil(page);
        // The old block that already holds a block's new content, or most of it.
        let home = |index: usize| index + if whole_blocks { n_forgotten / page } else { 0 };

        let old: Vec<BlockId> = self.blocks().collect();
        let is_own = |index: usize| pool.n_references(old[index]) == 1;
        let in_place: BTreeSet<usize> = changed.clone().map(home).filter(|&i| is_own(i)).collect();
        let n_copies = changed.len() - in_place.len();
        let behind = positions.end / page..n_tokens.div_ceil(page);
        let is_read =
            |i: usize| behind.contains(&i) || (i == first && !positions.start.is_multiple_of(page));
        let given_back = (first..old.len()).filter(|i| !in_place.contains(i));
        // Blocks that no move reads are free at once.
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
        for index in changed.clone() {
            let home = home(index);
            blocks.push(if in_place.contains(&home) {
                pool.forget_content(old[home]);
                old[home]
            } else {
                pool.allocate().expect("the pool has enough free blocks")
            });
        }
        let mut shift = KvShift {
            back_by: n_forgotten as u32,
            ..KvShift::default()
        };
        let slot =
            |blocks: &[BlockId], at: usize| blocks[at / page].0 * page as u32 + (at % page) as u32;
        for position in changed.start * page..n_kept {
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

/// Adds a token move, to the last run if it continues that run on both sides within a block.
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
