//! The control-flow graph of a kernel: basic blocks and natural loops.

use std::collections::BTreeSet;
use std::ops::Range;

use super::code::Instruction;

/// A basic block: instructions entered only at the first and left only after the last.
pub(crate) struct Block {
    pub(crate) range: Range<usize>,
    pub(crate) successors: Vec<usize>,
    pub(crate) predecessors: Vec<usize>,
}

/// A natural loop: the blocks dominated by its header that lead back to it.
pub(crate) struct Loop {
    pub(crate) blocks: BTreeSet<usize>,
}

/// Returns the reachable blocks, the entry first.
///
/// # Errors
/// If an instruction hides where control goes.
pub(crate) fn blocks(code: &[Instruction]) -> Result<Vec<Block>, String> {
    let position = |address: u64| code.binary_search_by_key(&address, |i| i.address).ok();
    let mut leaders = BTreeSet::from([0]);
    for (at, instruction) in code.iter().enumerate() {
        let name = instruction.mnemonic.as_str();
        if [
            "s_setpc",
            "s_swappc",
            "s_call",
            "s_cbranch_g",
            "s_cbranch_j",
        ]
        .iter()
        .any(|prefix| name.starts_with(prefix))
        {
            return Err(format!("{name} at {:#x} is a call", instruction.address));
        }
        if instruction.target.is_some() || is_end(name) || name == "s_branch" {
            leaders.insert(at + 1);
        }
        if is_jump(name) {
            let target = instruction
                .target
                .and_then(position)
                .ok_or_else(|| format!("{name} at {:#x} leaves the kernel", instruction.address))?;
            leaders.insert(target);
        }
    }
    leaders.retain(|&at| at < code.len());
    let starts: Vec<usize> = leaders.into_iter().collect();
    let block_at = |at: usize| starts.binary_search(&at).ok();
    let mut blocks = Vec::with_capacity(starts.len());
    for (index, &start) in starts.iter().enumerate() {
        let end = starts.get(index + 1).copied().unwrap_or(code.len());
        let last = &code[end - 1];
        let mut successors = Vec::new();
        if last.mnemonic != "s_branch" && !is_end(&last.mnemonic) && end < code.len() {
            successors.push(index + 1);
        }
        let target = last.target.filter(|_| is_jump(&last.mnemonic));
        successors.extend(target.and_then(position).and_then(block_at));
        successors.dedup();
        blocks.push(Block {
            range: start..end,
            successors,
            predecessors: Vec::new(),
        });
    }
    Ok(reachable(blocks))
}

fn is_jump(name: &str) -> bool {
    name == "s_branch" || name.starts_with("s_cbranch")
}

fn is_end(name: &str) -> bool {
    name.starts_with("s_endpgm") || name == "s_code_end"
}

/// Drops unreachable blocks, such as the padding after the end, and fills in `predecessors`.
fn reachable(blocks: Vec<Block>) -> Vec<Block> {
    let mut number = vec![None; blocks.len()];
    let mut stack: Vec<usize> = (!blocks.is_empty()).then_some(0).into_iter().collect();
    while let Some(block) = stack.pop() {
        if number[block].is_none() {
            number[block] = Some(0);
            stack.extend(&blocks[block].successors);
        }
    }
    let kept = number.iter_mut().flatten().enumerate();
    kept.for_each(|(new, number)| *number = new);
    let mut kept: Vec<Block> = blocks
        .into_iter()
        .zip(&number)
        .filter(|(_, number)| number.is_some())
        .map(|(mut block, _)| {
            block.successors = block.successors.iter().filter_map(|&s| number[s]).collect();
            block
        })
        .collect();
    for block in 0..kept.len() {
        for successor in kept[block].successors.clone() {
            kept[successor].predecessors.push(block);
        }
    }
    kept
}

/// Returns all loops; loops that share a header are one.
pub(crate) fn loops(blocks: &[Block]) -> Vec<Loop> {
    let dominators = dominators(blocks);
    let mut loops = Vec::new();
    for header in 0..blocks.len() {
        let latches = &blocks[header].predecessors;
        let latches = latches.iter().filter(|&&latch| dominators[latch][header]);
        let mut stack: Vec<usize> = latches.copied().collect();
        if stack.is_empty() {
            continue;
        }
        let mut body = BTreeSet::from([header]);
        while let Some(block) = stack.pop() {
            if body.insert(block) {
                stack.extend(&blocks[block].predecessors);
            }
        }
        loops.push(Loop { blocks: body });
    }
    loops
}

/// Returns `[block][by]`: whether every path from the entry to `block` goes through `by`.
fn dominators(blocks: &[Block]) -> Vec<Vec<bool>> {
    let n = blocks.len();
    let mut all = vec![vec![true; n]; n];
    if let Some(entry) = all.first_mut() {
        entry.fill(false);
        entry[0] = true;
    }
    let mut changed = true;
    while changed {
        changed = false;
        for block in 1..n {
            let mut new = vec![true; n];
            for &before in &blocks[block].predecessors {
                for (new, of) in new.iter_mut().zip(&all[before]) {
                    *new &= of;
                }
            }
            new[block] = true;
            if new != all[block] {
                all[block] = new;
                changed = true;
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa_report::code::code_of;

    #[test]
    fn finds_nested_loops() {
        let code = code_of(&[
            "s_mov_b32 s0, 0",
            "s_mov_b32 s1, 0",
            "s_add_i32 s1, s1, 1",
            "s_cbranch_scc1 @2",
            "s_cbranch_scc0 @1",
            "s_endpgm",
            "s_code_end",
        ]);
        let blocks = blocks(&code).unwrap();
        let ranges: Vec<_> = blocks.iter().map(|block| block.range.clone()).collect();
        assert_eq!(ranges, [0..1, 1..2, 2..4, 4..5, 5..6]);
        let loops = loops(&blocks);
        let bodies: Vec<_> = loops.iter().map(|l| l.blocks.clone()).collect();
        assert_eq!(bodies, [BTreeSet::from([1, 2, 3]), BTreeSet::from([2])]);
    }

    #[test]
    fn rejects_calls() {
        let code = code_of(&["s_swappc_b64 s[30:31], s[4:5]", "s_endpgm"]);
        assert!(blocks(&code).is_err());
    }
}
