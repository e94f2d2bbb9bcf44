//! Random sequences that grow, share prefixes, shift and end, against a simulated device that records what each slot
//! was computed from.

use std::collections::HashSet;

use super::*;
use crate::context::n_forgotten;
use rocmforge_gguf::TokenId;

/// The content of a slot: the token, its current position, and a hash of the entries before it when it was computed.
#[derive(Debug, Clone, PartialEq)]
struct Entry {
    token: TokenId,
    position: usize,
    seen: u64,
}

struct Random(u64);

impl Random {
    /// SplitMix64.
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ (z >> 31)) % n as u64) as usize
    }
}

fn blocks(table: &BlockTable) -> Vec<BlockId> {
    table.blocks().collect()
}

#[derive(Default)]
struct Sequence {
    table: BlockTable,
    tokens: Vec<TokenId>,
    /// The expected content of its positions.
    entries: Vec<Entry>,
}

impl Sequence {
    /// Returns the entry of the next token.
    fn next(&self, token: TokenId) -> Entry {
        let fold = |hash: u64, entry: &Entry| {
            (hash ^ u64::from(entry.token) ^ entry.seen).wrapping_mul(0x0000_0100_0000_01B3)
        };
        Entry {
            token,
            position: self.entries.len(),
            seen: self.entries.iter().fold(7, fold),
        }
    }
}

/// Applies a shift as a device may: all reads first, in any order. Asserts that no run reads a slot another one writes.
fn run(slots: &mut [Option<Entry>], shift: &KvShift, page: usize) {
    let mut moves = Vec::new();
    for (runs, back_by) in [(&shift.copied, 0), (&shift.turned, shift.back_by)] {
        for run in runs {
            for first in [run.from, run.to] {
                let last = first + run.n_tokens - 1;
                assert_eq!(first as usize / page, last as usize / page, "{run:?}");
            }
            moves.extend((0..run.n_tokens).map(|i| (run.from + i, run.to + i, back_by)));
        }
    }
    let read: HashSet<u32> = moves.iter().map(|m| m.0).collect();
    let written: HashSet<u32> = moves.iter().map(|m| m.1).collect();
    assert_eq!(written.len(), moves.len(), "no slot is written twice");
    for (from, to, _) in &moves {
        assert!(
            from == to || !read.contains(to),
            "slot {to} is read and written"
        );
    }
    let values: Vec<Option<Entry>> = moves.iter().map(|m| slots[m.0 as usize].clone()).collect();
    for ((_, to, back_by), value) in moves.iter().zip(values) {
        let mut entry = value.expect("moved slots were written");
        entry.position -= *back_by as usize;
        slots[*to as usize] = Some(entry);
    }
}

#[test]
fn accounting_holds_for_random_sequences() {
    let (mut n_shifts, mut n_refused) = (0, 0);
    for seed in 0..120u64 {
        let mut random = Random(seed);
        let page = [4, 16][random.below(2)];
        let n_ctx = 6 + random.below(70);
        let n_sinks = random.below((n_ctx - 1).min(12));
        let n_blocks = n_ctx.div_ceil(page) * (1 + random.below(4));
        let mut pool = BlockPool::new(n_blocks, page);
        let mut slots: Vec<Option<Entry>> = vec![None; n_blocks * page];
        let mut sequences: Vec<Sequence> = Vec::new();
        for _ in 0..400 {
            match random.below(10) {
                0 if sequences.len() < 4 => {
                    let mut new = Sequence::default();
                    let n = 1 + random.below(n_ctx);
                    let salt = random.below(2) as u32;
                    let tokens: Vec<TokenId> = (0..n as u32).map(|i| i * 3 + salt).collect();
                    let n_shared = new.table.share_prefix(&mut pool, &tokens, n - 1);
                    for &token in &tokens[..n_shared] {
                        let entry = new.next(token);
                        new.entries.push(entry);
                    }
                    new.tokens = tokens[..n_shared].to_vec();
                    sequences.push(new);
                }
                1 if !sequences.is_empty() => {
                    let at = random.below(sequences.len());
                    sequences.swap_remove(at).table.release(&mut pool);
                }
                _ if !sequences.is_empty() => {
                    let at = random.below(sequences.len());
                    let sequence = &mut sequences[at];
                    let n_tokens = sequence.entries.len();
                    if n_tokens == n_ctx {
                        let n = n_forgotten(n_ctx, n_sinks, page);
                        let forgotten = n_sinks..n_sinks + n;
                        let before = blocks(&sequence.table);
                        let found = sequence
                            .table
                            .forget(&mut pool, forgotten.clone(), n_tokens);
                        match found {
                            None => {
                                n_refused += 1;
                                assert_eq!(blocks(&sequence.table), before);
                                let alone = sequences.len() == 1;
                                assert!(!alone, "a lone sequence can always shift");
                            }
                            Some((shift, compaction)) => {
                                n_shifts += 1;
                                run(&mut slots, &shift, page);
                                sequence.entries.drain(forgotten);
                                for (i, entry) in sequence.entries.iter_mut().enumerate() {
                                    entry.position = i;
                                }
                                let Compaction { before, after } = compaction;
                                let n_kept = sequence.entries.len();
                                assert_eq!([before.n_tokens, after.n_tokens], [n_kept; 2]);
                                assert_eq!(after.n_slots, n_kept.div_ceil(page) * page);
                                assert!(before.fragmentation() >= after.fragmentation());
                            }
                        }
                    } else {
                        let n = (1 + random.below(20)).min(n_ctx - n_tokens);
                        if sequence.table.reserve(&mut pool, n_tokens + n) {
                            for _ in 0..n {
                                let at = sequence.entries.len();
                                // Prefixes that other sequences have too.
                                let salt = sequence.tokens.first().copied().unwrap_or(0) % 3;
                                let token = sequence.tokens.len() as u32 * 3 + salt;
                                let entry = sequence.next(token);
                                let slot = sequence.table.slot(page, at);
                                slots[slot as usize] = Some(entry.clone());
                                sequence.entries.push(entry);
                                sequence.tokens.push(token);
                            }
                            let tokens = sequence.tokens.clone();
                            sequence.table.index_full_blocks(&mut pool, &tokens);
                        }
                    }
                }
                _ => {}
            }
            let tables = sequences.iter().map(|sequence| &sequence.table);
            pool.check_integrity(tables.flat_map(BlockTable::blocks))
                .unwrap_or_else(|error| panic!("seed {seed}: {error}"));
            for sequence in &sequences {
                for (position, entry) in sequence.entries.iter().enumerate() {
                    let slot = sequence.table.slot(page, position) as usize;
                    assert_eq!(slots[slot].as_ref(), Some(entry), "seed {seed}");
                }
            }
        }
    }
    assert!(n_shifts > 500 && n_refused > 20, "{n_shifts} {n_refused}");
}

#[test]
fn whole_blocks_stay_in_place_and_shared_ones_are_copied() {
    let mut pool = BlockPool::new(8, 4);
    let tokens: Vec<TokenId> = (0..16).collect();
    let mut first = BlockTable::default();
    assert!(first.reserve(&mut pool, 16));
    first.index_full_blocks(&mut pool, &tokens);
    let mut second = BlockTable::default();
    assert_eq!(second.share_prefix(&mut pool, &tokens, 12), 12);

    // Blocks 0 and 1 are dropped, except for the sinks, which move into a copy of the shared block 2.
    let [_, b1, b2, b3] = blocks(&first)[..] else {
        panic!("four blocks");
    };
    let (shift, compaction) = first.forget(&mut pool, 2..10, 16).unwrap();
    let copy = blocks(&first)[0];
    assert_eq!(blocks(&first), [copy, b3]);
    assert!(![b1, b2, b3].contains(&copy));
    let run = |from: u32, to: u32, n_tokens| SlotRun { from, to, n_tokens };
    assert_eq!(shift.copied, [run(0, copy.0 * 4, 2)]);
    let turned = [
        run(b2.0 * 4 + 2, copy.0 * 4 + 2, 2),
        run(b3.0 * 4, b3.0 * 4, 4),
    ];
    assert_eq!((shift.turned, shift.back_by), (turned.to_vec(), 8));
    assert_eq!(compaction.before.fragmentation(), 0.5);
    assert_eq!(compaction.after.fragmentation(), 0.0);

    // Changed blocks are no longer indexed; shared ones are unchanged.
    let mut third = BlockTable::default();
    assert_eq!(third.share_prefix(&mut pool, &tokens, 16), 12);
    assert_eq!(blocks(&third), blocks(&second));
    let tables = [&first, &second, &third];
    let held = tables.into_iter().flat_map(BlockTable::blocks);
    pool.check_integrity(held).unwrap();
}

#[test]
fn changes_nothing_without_blocks_for_copies() {
    let mut pool = BlockPool::new(4, 4);
    let tokens: Vec<TokenId> = (0..16).collect();
    let mut first = BlockTable::default();
    assert!(first.reserve(&mut pool, 16));
    first.index_full_blocks(&mut pool, &tokens);
    let mut second = BlockTable::default();
    assert_eq!(second.share_prefix(&mut pool, &tokens, 16), 16);
    let before = blocks(&first);
    assert!(first.forget(&mut pool, 0..8, 16).is_none());
    assert_eq!(blocks(&first), before);
    second.release(&mut pool);
    assert!(first.forget(&mut pool, 0..8, 16).is_some());
    assert_eq!(blocks(&first), before[2..]);
    pool.check_integrity(first.blocks()).unwrap();
}
