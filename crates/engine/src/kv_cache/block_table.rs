//! The block table: the KV-cache blocks of one sequence.

use std::sync::Arc;

use super::block_pool::{BlockId, BlockPool};
use super::prefix::PrefixHash;
use rocmforge_gguf::TokenId;

/// The blocks of a sequence, in order of position.
#[derive(Debug, Default)]
pub struct BlockTable {
    /// Shared with the steps in flight, as plain numbers: a table that changes while a step reads it is copied.
    blocks: Arc<Vec<u32>>,
    /// The hashes of the leading blocks that are in the prefix index.
    hashes: Vec<PrefixHash>,
    /// The salt in the chain of hashes, and the blocks before it.
    salt: Option<PrefixHash>,
    n_unsalted: usize,
    /// Whether a context shift dropped tokens. Later keys and values depend on them too, so a hash of the remaining
    /// tokens does not identify the content.
    has_forgotten: bool,
}

impl BlockTable {
    /// Creates an empty table whose blocks are shared only with tables of the same `salt`, except the first `n_unsalted`.
    pub fn new(salt: Option<PrefixHash>, n_unsalted: usize) -> BlockTable {
        BlockTable {
            salt,
            n_unsalted,
            ..BlockTable::default()
        }
    }

    /// Shares existing blocks that hold a prefix of `tokens`, up to `max_tokens` tokens. Returns the number of tokens
    /// in them.
    ///
    /// # Panics
    /// If the table is not empty.
    pub fn share_prefix(
        &mut self,
        pool: &mut BlockPool,
        tokens: &[TokenId],
        max_tokens: usize,
    ) -> usize {
        assert!(self.blocks.is_empty(), "sharing starts at the first block");
        for block in tokens[..max_tokens.min(tokens.len())].chunks_exact(pool.page()) {
            let hash = pool.hash_block(self.parent(pool), block);
            let Some(block) = pool.find(hash) else { break };
            Arc::make_mut(&mut self.blocks).push(block.0);
            self.hashes.push(hash);
        }
        self.hashes.len() * pool.page()
    }

    /// Releases the blocks after the last one at whose end `slots` has a snapshot of states. Returns that snapshot, with a
    /// reference, and the number of tokens before it.
    ///
    /// # Panics
    /// If a block is not in the prefix index.
    pub fn cut_to_snapshot(
        &mut self,
        pool: &mut BlockPool,
        slots: &mut BlockPool,
    ) -> (usize, Option<BlockId>) {
        assert_eq!(self.blocks.len(), self.hashes.len(), "shared blocks only");
        let ends = self.hashes.iter().enumerate().rev();
        let found = { ends }.find_map(|(at, hash)| Some((at + 1, slots.find(*hash)?)));
        let n_kept = found.map_or(0, |(n, _)| n);
        self.hashes.truncate(n_kept);
        let beyond = Arc::make_mut(&mut self.blocks).split_off(n_kept);
        for block in beyond.into_iter().rev() {
            pool.release(BlockId(block));
        }
        (n_kept * pool.page(), found.map(|(_, snapshot)| snapshot))
    }

    /// Returns how many blocks no other table has. Shared ones are the first.
    pub fn n_own(&self, pool: &BlockPool) -> usize {
        let is_shared = |&block: &u32| pool.n_references(BlockId(block)) > 1;
        self.blocks.len() - self.blocks.partition_point(is_shared)
    }

    /// Returns the hash of the first `n_blocks` blocks, if they are in the prefix index.
    pub(super) fn hash_of(&self, n_blocks: usize) -> Option<PrefixHash> {
        self.hashes.get(n_blocks.checked_sub(1)?).copied()
    }

    /// Returns what the hash of the next block depends on.
    fn parent(&self, pool: &BlockPool) -> Option<PrefixHash> {
        let last = self.hashes.last().copied();
        match (last, self.salt) {
            (Some(last), Some(salt)) if self.hashes.len() == self.n_unsalted => {
                Some(pool.salted_after(last, salt))
            }
            (None, salt) if self.n_unsalted == 0 => salt,
            _ => last,
        }
    }

    /// Allocates blocks for `n_tokens` tokens in total. Returns `false` and changes nothing if the pool has too few.
    pub fn reserve(&mut self, pool: &mut BlockPool, n_tokens: usize) -> bool {
        let missing = n_tokens
            .div_ceil(pool.page())
            .saturating_sub(self.blocks.len());
        if missing > pool.n_free() {
            return false;
        }
        if missing > 0 {
            let blocks = Arc::make_mut(&mut self.blocks);
            for _ in 0..missing {
                let block = pool.allocate().expect("the pool has enough free blocks");
                blocks.push(block.0);
            }
        }
        true
    }

    /// Indexes the full blocks of `tokens`, the tokens whose K and V are submitted. Does nothing after a context shift.
    pub fn index_full_blocks(&mut self, pool: &mut BlockPool, tokens: &[TokenId]) {
        if self.has_forgotten {
            return;
        }
        for (at, tokens) in tokens
            .chunks_exact(pool.page())
            .enumerate()
            .skip(self.hashes.len())
        {
            let hash = pool.hash_block(self.parent(pool), tokens);
            pool.index(BlockId(self.blocks[at]), hash);
            self.hashes.push(hash);
        }
    }

    /// Releases all blocks, the last ones first, so that the start of a prefix stays reusable longest.
    pub fn release(&mut self, pool: &mut BlockPool) {
        for block in self.blocks().rev() {
            pool.release(block);
        }
        *self = BlockTable::new(self.salt, self.n_unsalted);
    }

    /// Removes all blocks from the prefix index, shared ones too: their content may be wrong.
    pub fn forget_content(&self, pool: &mut BlockPool) {
        for block in self.blocks() {
            pool.forget_content(block);
        }
    }

    /// Replaces the blocks after a context shift. The first `n_same` are unchanged.
    pub(super) fn replace(&mut self, blocks: Vec<BlockId>, n_same: usize) {
        self.blocks = Arc::new(blocks.into_iter().map(|block| block.0).collect());
        self.hashes.truncate(n_same);
        self.has_forgotten = true;
    }

    /// Returns the blocks in order of position.
    pub fn blocks(&self) -> impl DoubleEndedIterator<Item = BlockId> + ExactSizeIterator + '_ {
        self.blocks.iter().map(|&block| BlockId(block))
    }

    /// Returns the numbers of the blocks, shared with this table until it changes.
    pub fn shared(&self) -> Arc<Vec<u32>> {
        Arc::clone(&self.blocks)
    }

    /// Returns the cache slot of the token at `position`: `block * page + offset`.
    pub fn slot(&self, page: usize, position: usize) -> u32 {
        self.blocks[position / page] * page as u32 + (position % page) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(n: usize, salt: u32) -> Vec<TokenId> {
        (0..n as u32).map(|i| i * 7 + salt).collect()
    }

    fn check(pool: &BlockPool, tables: &[&BlockTable]) {
        let blocks = tables.iter().flat_map(|table| table.blocks());
        pool.check_integrity(blocks).unwrap();
    }

    #[test]
    fn reuses_a_released_prefix_until_its_blocks_are_reallocated() {
        let mut pool = BlockPool::new(8, 4);
        let prompt = tokens(10, 0);
        let mut first = BlockTable::default();
        assert!(first.reserve(&mut pool, 10));
        first.index_full_blocks(&mut pool, &prompt);
        check(&pool, &[&first]);

        let mut second = BlockTable::default();
        assert_eq!(second.share_prefix(&mut pool, &prompt, 9), 8);
        assert!(second.blocks().eq(first.blocks().take(2)));
        check(&pool, &[&first, &second]);
        first.release(&mut pool);
        second.release(&mut pool);
        check(&pool, &[]);
        assert_eq!(pool.n_free(), 8);

        let mut third = BlockTable::default();
        assert_eq!(
            third.share_prefix(&mut pool, &prompt, 7),
            4,
            "at most `max_tokens`"
        );
        third.release(&mut pool);
        let mut other = BlockTable::default();
        assert_eq!(other.share_prefix(&mut pool, &tokens(10, 1), 9), 0);
        assert!(other.reserve(&mut pool, 32));
        check(&pool, &[&other]);
        assert!(!third.reserve(&mut pool, 1), "all blocks are in use");
        other.release(&mut pool);
        assert_eq!(
            third.share_prefix(&mut pool, &prompt, 9),
            0,
            "the content was overwritten"
        );
        check(&pool, &[&third]);
    }

    #[test]
    fn shares_a_block_only_after_the_same_prefix() {
        let mut pool = BlockPool::new(8, 4);
        let mut table = BlockTable::default();
        let mut prompt = tokens(8, 0);
        assert!(table.reserve(&mut pool, 8));
        table.index_full_blocks(&mut pool, &prompt);
        prompt[0] += 1;
        let mut other = BlockTable::default();
        assert_eq!(other.share_prefix(&mut pool, &prompt, 8), 0);
    }

    #[test]
    fn shares_only_with_the_same_salt() {
        let mut pool = BlockPool::new(8, 4);
        let prompt = tokens(8, 0);
        let salted = |pool: &BlockPool, salt: &str| BlockTable::new(Some(pool.salted(salt)), 0);
        let mut table = salted(&pool, "a");
        assert!(table.reserve(&mut pool, 8));
        table.index_full_blocks(&mut pool, &prompt);
        table.release(&mut pool);
        assert_eq!(pool.n_cached(), 2);
        let other = salted(&pool, "b");
        let mut shared = |mut table: BlockTable| {
            let n = table.share_prefix(&mut pool, &prompt, 8);
            table.release(&mut pool);
            check(&pool, &[&table]);
            n
        };
        assert_eq!(shared(BlockTable::default()), 0);
        assert_eq!(shared(other), 0);
        // A table keeps its salt when it is released.
        assert_eq!(shared(table), 8);
    }

    /// Tables of two salts share two blocks, and what follows only with the same salt, after the same blocks.
    #[test]
    fn salts_follow_shared_blocks() {
        let mut pool = BlockPool::new(32, 4);
        let mut shared = |salt: &str, n_unsalted: usize, prompt: &[TokenId]| {
            let mut table = BlockTable::new(Some(pool.salted(salt)), n_unsalted);
            let n = table.share_prefix(&mut pool, prompt, prompt.len());
            assert!(table.reserve(&mut pool, prompt.len()));
            table.index_full_blocks(&mut pool, prompt);
            table.release(&mut pool);
            check(&pool, &[&table]);
            n
        };
        let prompt = tokens(16, 0);
        assert_eq!(shared("a", 2, &prompt), 0);
        assert_eq!(shared("a", 2, &prompt), 16);
        assert_eq!(shared("b", 2, &prompt), 8);
        assert_eq!(shared("b", 2, &prompt), 16);
        // Another number of shared blocks, or others: those that follow are others.
        assert_eq!(shared("a", 1, &prompt), 4);
        assert_eq!(shared("a", 0, &prompt), 0);
        let mut other = prompt.clone();
        other[5] += 1;
        assert_eq!(shared("a", 2, &other), 4);
    }

    #[test]
    fn forgotten_content_is_not_found_again() {
        let mut pool = BlockPool::new(8, 4);
        let prompt = tokens(8, 0);
        for forget in [
            |table: &BlockTable, pool: &mut BlockPool| table.forget_content(pool),
            |_: &BlockTable, pool: &mut BlockPool| pool.forget_all_content(),
        ] {
            let mut table = BlockTable::default();
            assert!(table.reserve(&mut pool, 8));
            table.index_full_blocks(&mut pool, &prompt);
            forget(&table, &mut pool);
            table.release(&mut pool);
            check(&pool, &[]);
            assert_eq!(pool.n_cached(), 0);
            assert_eq!(table.share_prefix(&mut pool, &prompt, 8), 0);
        }
    }

    #[test]
    fn slots_follow_the_block_table() {
        let mut pool = BlockPool::new(3, 4);
        let mut table = BlockTable::default();
        assert!(table.reserve(&mut pool, 9));
        let expected: Vec<u32> = (0..9)
            .map(|i| table.shared()[i / 4] * 4 + (i % 4) as u32)
            .collect();
        let got: Vec<u32> = (0..9).map(|i| table.slot(4, i)).collect();
        assert_eq!(got, expected);
    }
}
