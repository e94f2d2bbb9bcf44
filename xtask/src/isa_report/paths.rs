//! Paths through a turn of a loop.

use std::collections::BTreeMap;

use super::blocks::{Block, Loop};

/// Cycles of a wave: of all vector instructions, and of the matrix instructions among them.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Cycles {
    pub(crate) vector: f64,
    pub(crate) matrix: f64,
}

/// Returns the cycles of the path through a turn that has the most matrix instructions, and of such paths the fewest
/// others. `cycles` gives those of a block, as often as it runs in a turn.
pub(crate) fn leanest(
    blocks: &[Block],
    of: &Loop,
    cycles: &dyn Fn(usize) -> Cycles,
) -> Option<Cycles> {
    let header = of.blocks.iter().copied().find(|&block| {
        let mut before = blocks[block].predecessors.iter();
        before.any(|before| !of.blocks.contains(before))
    })?;
    let mut search = Search {
        blocks,
        of,
        header,
        cycles,
        known: BTreeMap::new(),
    };
    search.from(header)
}

struct Search<'a> {
    blocks: &'a [Block],
    of: &'a Loop,
    header: usize,
    cycles: &'a dyn Fn(usize) -> Cycles,
    /// Of paths from a block to the end of the turn; `None` while they are searched, and if there are none.
    known: BTreeMap<usize, Option<Cycles>>,
}

impl Search<'_> {
    fn from(&mut self, block: usize) -> Option<Cycles> {
        if let Some(known) = self.known.get(&block) {
            return *known;
        }
        // Jumps back to a block of this path end a turn of an inner loop.
        self.known.insert(block, None);
        let mut best: Option<Cycles> = None;
        for &next in &self.blocks[block].successors {
            let rest = if next == self.header {
                Some(Cycles::default())
            } else if self.of.blocks.contains(&next) {
                self.from(next)
            } else {
                None
            };
            let is_better = |rest: &Cycles| {
                best.is_none_or(|best| (rest.matrix, best.vector) > (best.matrix, rest.vector))
            };
            best = rest.filter(is_better).or(best);
        }
        let own = (self.cycles)(block);
        let found = best.map(|rest| Cycles {
            vector: own.vector + rest.vector,
            matrix: own.matrix + rest.matrix,
        });
        self.known.insert(block, found);
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa_report::blocks;
    use crate::isa_report::code::code_of;

    /// A branch around a block without matrix instructions, one around a block with them, and an inner loop.
    #[test]
    fn takes_what_has_the_most_matrix_instructions_and_the_fewest_others() {
        let code = code_of(&[
            "s_mov_b32 s0, 0",
            "s_cbranch_vccz @3",
            "v_fma_f32 v0, v1",
            "s_cbranch_execz @5",
            "v_wmma_i32_16x16x16_iu8 v[8:15], v[0:1], v[2:3], 0",
            "v_add_f32 v0, v1",
            "s_cbranch_scc0 @5",
            "s_cbranch_scc1 @1",
            "s_endpgm",
        ]);
        let blocks = blocks::blocks(&code).unwrap();
        let loops = blocks::loops(&blocks);
        let outer = loops.iter().max_by_key(|l| l.blocks.len()).unwrap();
        let cycles = |block: usize| {
            let of = |prefix: &str| {
                let all = code[blocks[block].range.clone()].iter();
                all.filter(|i| i.mnemonic.starts_with(prefix)).count() as f64
            };
            Cycles {
                vector: of("v_"),
                matrix: of("v_wmma"),
            }
        };
        let found = leanest(&blocks, outer, &cycles);
        assert_eq!(
            found,
            Some(Cycles {
                vector: 2.0,
                matrix: 1.0
            })
        );
    }
}
