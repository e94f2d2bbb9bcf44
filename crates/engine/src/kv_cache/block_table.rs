//! The block table: the KV-cache blocks of one sequence.

use super::block_pool::{BlockId, BlockPool};
use super::prefix::PrefixHash;
use rocmforge_gguf::TokenId;

/// The blocks of a sequence, in order of position.
#[derive(Debug, Default)]
pub struct BlockTable {
    blocks: Vec<BlockId>,
    /// Leading blocks that are in the prefix index.
    n_indexed: usize,
    last_hash: Option<PrefixHash>,
    /// Whether a context shift dropped tokens. Later keys and values depend on them too, so a hash of the remaining
    /// tokens does not identify the content.
    has_forgotten: bool,
}

impl BlockTable {
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
            let hash = pool.hash_block(self.last_hash, block);
            let Some(block) = pool.find(hash) else { break };
            self.blocks.push(block);
            self.last_hash = Some(hash);
        }
        self.n_indexed = self.blocks.len();
        self.n_indexed * pool.page()
    }

    /// Allocates blocks for `n_tokens` tokens in total. Returns `false` and changes nothing if the pool has too few.
    pub fn reserve(&mut self, pool: &mut BlockPool, n_tokens: usize) -> bool {
        let missing = n_tokens
            .div_ceil(pool.page())
            .saturating_sub(self.blocks.len());
        if missing > pool.n_free() {
            return false;
        }
        for _ in 0..missing {
            self.blocks
                .push(pool.allocate().expect("the pool has enough free blocks"));
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
            .skip(self.n_indexed)
        {
            let hash = pool.hash_block(self.last_hash, tokens);
            pool.index(self.blocks[at], hash);
            self.last_hash = Some(hash);
            self.n_indexed = at + 1;
        }
    }

    /// Releases all blocks, the last ones first, so that the start of a prefix stays reusable longest.
    pub fn release(&mut self, pool: &mut BlockPool) {
        for block in self.blocks.drain(..).rev() {
            pool.release(block);
        }
        *self = BlockTable::default();
    }

    /// Replaces the blocks after a context shift. The first `n_same` are unchanged.
    pub(super) fn replace(&mut self, blocks: Vec<BlockId>, n_same: usize) {
        self.blocks = blocks;
        self.n_indexed = self.n_indexed.min(n_same);
        self.has_forgotten = true;
    }

    pub fn blocks(&self) -> &[BlockId] {
        &self.blocks
    }

    /// Returns the cache slot of the token at `position`: `block * page + offset`.
    pub fn slot(&self, page: usize, position: usize) -> u32 {
        self.blocks[position / page].0 * page as u32 + (position % page) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(n: usize, salt: u32) -> Vec<TokenId> {
        (0..n as u32).map(|i| i * 7 + salt).collect()
    }

    fn check(pool: &BlockPool, tables: &[&BlockTable]) {
        pool.check_integrity(tables.iter().map(|table| table.blocks()))
            .unwrap();
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
        assert_eq!(second.blocks(), &first.blocks()[..2]);
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
    fn slots_follow_the_block_table() {
        let mut pool = BlockPool::new(3, 4);
        let mut table = BlockTable::default();
        assert!(table.reserve(&mut pool, 9));
        let expected: Vec<u32> = (0..9)
            .map(|i| table.blocks()[i / 4].0 * 4 + (i % 4) as u32)
            .collect();
        let got: Vec<u32> = (0..9).map(|i| table.slot(4, i)).collect();
        assert_eq!(got, expected);
    }
}
