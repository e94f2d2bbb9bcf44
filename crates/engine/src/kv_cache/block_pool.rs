//! The block pool: reference counts, the free list and the prefix index.

use std::collections::{HashMap, VecDeque};

use super::prefix::{PrefixHash, PrefixHasher};
use rocmforge_gguf::TokenId;

/// A block of the device's cache: `page` tokens in every layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockId(pub u32);

#[derive(Debug, Clone, Default)]
struct Block {
    /// Sequences that use it.
    refs: u32,
    /// The hash of its content, once it is full and indexed.
    hash: Option<PrefixHash>,
    /// Incremented whenever the block leaves or enters the free list, to recognize stale entries.
    epoch: u64,
}

/// All blocks of one cache.
#[derive(Debug, Clone)]
pub struct BlockPool {
    page: usize,
    blocks: Vec<Block>,
    /// Free blocks with the epoch of their entry, least recently used first. An entry of another epoch is stale.
    free: VecDeque<(BlockId, u64)>,
    n_free: usize,
    /// Free blocks with reusable content.
    n_cached: usize,
    by_hash: HashMap<PrefixHash, BlockId>,
    hasher: PrefixHasher,
}

impl BlockPool {
    /// Creates `n_blocks` empty blocks of `page` tokens.
    pub fn new(n_blocks: usize, page: usize) -> BlockPool {
        assert!(
            page > 0 && u32::try_from(n_blocks * page).is_ok(),
            "slots are 32-bit"
        );
        BlockPool {
            page,
            blocks: vec![Block::default(); n_blocks],
            free: (0..n_blocks as u32).map(|id| (BlockId(id), 0)).collect(),
            n_free: n_blocks,
            n_cached: 0,
            by_hash: HashMap::new(),
            hasher: PrefixHasher::default(),
        }
    }

    /// Returns the number of tokens per block.
    pub fn page(&self) -> usize {
        self.page
    }

    pub fn n_blocks(&self) -> usize {
        self.blocks.len()
    }

    /// Returns the number of unused blocks, with or without reusable content.
    pub fn n_free(&self) -> usize {
        self.n_free
    }

    /// Returns the number of unused blocks with reusable content.
    pub fn n_cached(&self) -> usize {
        self.n_cached
    }

    /// Allocates the least recently used free block; `None` if all are in use.
    pub(super) fn allocate(&mut self) -> Option<BlockId> {
        loop {
            let (id, epoch) = self.free.pop_front()?;
            let block = &mut self.blocks[id.0 as usize];
            if block.refs > 0 || block.epoch != epoch {
                continue;
            }
            block.refs = 1;
            block.epoch += 1;
            self.n_free -= 1;
            self.n_cached -= usize::from(block.hash.is_some());
            self.forget_content(id);
            return Some(id);
        }
    }

    /// Finds the block with the content of `hash` and adds a reference to it.
    pub(super) fn find(&mut self, hash: PrefixHash) -> Option<BlockId> {
        let id = *self.by_hash.get(&hash)?;
        let block = &mut self.blocks[id.0 as usize];
        if block.refs == 0 {
            block.epoch += 1;
            self.n_free -= 1;
            self.n_cached -= 1;
        }
        block.refs += 1;
        Some(id)
    }

    /// Indexes a full block by its content. If another block already has the same content, that one stays indexed.
    pub(super) fn index(&mut self, id: BlockId, hash: PrefixHash) {
        let block = &mut self.blocks[id.0 as usize];
        debug_assert!(block.refs > 0, "only used blocks are indexed");
        if block.hash.is_none() && !self.by_hash.contains_key(&hash) {
            block.hash = Some(hash);
            self.by_hash.insert(hash, id);
        }
    }

    /// Returns the number of sequences that use the block.
    pub(super) fn n_references(&self, id: BlockId) -> u32 {
        self.blocks[id.0 as usize].refs
    }

    /// Removes a block from the prefix index before its content changes.
    pub(super) fn forget_content(&mut self, id: BlockId) {
        if let Some(hash) = self.blocks[id.0 as usize].hash.take() {
            self.by_hash.remove(&hash);
        }
    }

    /// Removes the block with the content of `hash` from the prefix index, unless a sequence uses it.
    pub(super) fn forget(&mut self, hash: PrefixHash) {
        if let Some(id) = self.find(hash) {
            if self.n_references(id) == 1 {
                self.forget_content(id);
            }
            self.release(id);
        }
    }

    /// Removes all blocks from the prefix index: their content may be wrong.
    pub(crate) fn forget_all_content(&mut self) {
        for block in &mut self.blocks {
            block.hash = None;
        }
        self.by_hash.clear();
        self.n_cached = 0;
    }

    /// Drops one reference.
    pub(crate) fn release(&mut self, id: BlockId) {
        let block = &mut self.blocks[id.0 as usize];
        block.refs = block
            .refs
            .checked_sub(1)
            .expect("a block is released once for each reference");
        if block.refs == 0 {
            block.epoch += 1;
            self.n_free += 1;
            let entry = (id, block.epoch);
            // A block without reusable content is reused first.
            if block.hash.is_some() {
                self.n_cached += 1;
                self.free.push_back(entry)
            } else {
                self.free.push_front(entry)
            }
            self.drop_stale_entries();
        }
    }

    /// Keeps the free list within a constant factor of the number of blocks.
    fn drop_stale_entries(&mut self) {
        if self.free.len() > 2 * self.blocks.len() + 16 {
            let blocks = &self.blocks;
            self.free.retain(|&(id, epoch)| {
                blocks[id.0 as usize].refs == 0 && blocks[id.0 as usize].epoch == epoch
            });
        }
    }

    /// Returns the hash that the chain of a sequence begins with.
    pub(crate) fn salted(&self, salt: &str) -> PrefixHash {
        self.hasher.salted(salt)
    }

    /// Returns the hash that the chain of a sequence goes on with behind blocks that have no salt.
    pub(super) fn salted_after(&self, last: PrefixHash, salt: PrefixHash) -> PrefixHash {
        self.hasher.joined(last, salt)
    }

    pub(super) fn hash_block(&self, parent: Option<PrefixHash>, tokens: &[TokenId]) -> PrefixHash {
        debug_assert_eq!(tokens.len(), self.page);
        self.hasher.block(parent, tokens)
    }

    /// Checks the accounting against the blocks that sequences hold: reference counts match, no block leaks or is both free
    /// and used, and the prefix index is consistent. Returns the first violation as an error.
    pub fn check_integrity(&self, held: impl Iterator<Item = BlockId>) -> Result<(), String> {
        let mut refs = vec![0u32; self.blocks.len()];
        for id in held {
            refs[id.0 as usize] += 1;
        }
        let mut listed = vec![0u32; self.blocks.len()];
        for &(id, epoch) in &self.free {
            let block = &self.blocks[id.0 as usize];
            if block.refs == 0 && block.epoch == epoch {
                listed[id.0 as usize] += 1;
            }
        }
        for (id, block) in self.blocks.iter().enumerate() {
            if block.refs != refs[id] {
                return Err(format!(
                    "block {id} has {} references, the tables hold {}",
                    block.refs, refs[id]
                ));
            }
            let wanted = u32::from(block.refs == 0);
            if listed[id] != wanted {
                return Err(format!(
                    "block {id} with {} references is listed free {} times",
                    block.refs, listed[id]
                ));
            }
            if let Some(hash) = block.hash
                && self.by_hash.get(&hash) != Some(&BlockId(id as u32))
            {
                return Err(format!("block {id} is not where the index says"));
            }
        }
        let free = self.blocks.iter().filter(|block| block.refs == 0).count();
        if free != self.n_free {
            return Err(format!(
                "{free} blocks are free, {} are counted",
                self.n_free
            ));
        }
        let is_cached = |block: &&Block| block.refs == 0 && block.hash.is_some();
        let cached = self.blocks.iter().filter(is_cached).count();
        if cached != self.n_cached {
            return Err(format!(
                "{cached} free blocks have content, {} are counted",
                self.n_cached
            ));
        }
        let indexed = self
            .blocks
            .iter()
            .filter(|block| block.hash.is_some())
            .count();
        if indexed != self.by_hash.len() {
            return Err(format!(
                "{indexed} blocks have content, the index has {}",
                self.by_hash.len()
            ));
        }
        Ok(())
    }
}
