//! How often a loop with a counter in a scalar register runs, if its code says so.

use super::blocks::{Block, Loop};
use super::code::Instruction;

/// Returns the number of turns of a loop that starts at one constant, adds another, and ends at a third; `None` if it is
/// not such a loop.
pub(crate) fn trips(code: &[Instruction], blocks: &[Block], of: &Loop) -> Option<u64> {
    let header = only(of.blocks.iter().copied().filter(|&block| {
        let mut before = blocks[block].predecessors.iter();
        before.any(|before| !of.blocks.contains(before))
    }))?;
    let latch =
        only({ blocks[header].predecessors.iter().copied() }.filter(|b| of.blocks.contains(b)))?;
    let leaves = |block: &&usize| {
        let mut after = blocks[**block].successors.iter();
        after.any(|after| !of.blocks.contains(after))
    };
    if only(of.blocks.iter().filter(leaves)) != Some(&latch) {
        return None;
    }

    // The comparison decides the jump at the end of the last block.
    let last = &code[blocks[latch].range.clone()];
    let compared = last
        .iter()
        .rev()
        .find(|i| i.mnemonic.starts_with("s_cmp"))?;
    let ends = |name: &str| last[last.len() - 1].mnemonic.starts_with(name);
    let is_equality = ["_eq_", "_lg_"]
        .iter()
        .any(|of| compared.mnemonic.contains(of));
    let [counter, end] = compared.operands.as_slice() else {
        return None;
    };
    if !is_equality || !ends("s_cbranch_scc") {
        return None;
    }
    let end = constant(compared, end)?;

    let inside = of
        .blocks
        .iter()
        .flat_map(|&block| &code[blocks[block].range.clone()]);
    let step = added(only(inside.filter(|i| writes(i, counter)))?)?;
    let before = code[..blocks[header].range.start].iter();
    let start = before.rev().find(|i| writes(i, counter))?;
    let start = match start.mnemonic.as_str() {
        "s_mov_b32" | "s_movk_i32" => constant(start, &start.operands[1])?,
        _ => return None,
    };
    let turns = (end - start).checked_div(step)?;
    (turns > 0 && start + step * turns == end).then_some(turns as u64)
}

/// Returns the only item of an iterator.
fn only<T>(mut items: impl Iterator<Item = T>) -> Option<T> {
    let first = items.next();
    first.filter(|_| items.next().is_none())
}

/// Returns the constant that an operand is. Those of instructions such as `s_movk_i32` have 16 bits.
fn constant(of: &Instruction, operand: &str) -> Option<i64> {
    let Some(hex) = operand.strip_prefix("0x") else {
        return operand.parse().ok();
    };
    let bits = u32::from_str_radix(hex, 16).ok()?;
    let has_16_bits = ["s_movk_", "s_addk_", "s_cmpk_"]
        .iter()
        .any(|name| of.mnemonic.starts_with(name));
    Some(match has_16_bits {
        true => i64::from(bits as u16 as i16),
        false => i64::from(bits as i32),
    })
}

/// What `s_add_co_i32 s2, s2, -1` adds to its register.
fn added(by: &Instruction) -> Option<i64> {
    let name = by.mnemonic.as_str();
    match by.operands.as_slice() {
        [to, from, amount] if name.starts_with("s_add_") && to == from => constant(by, amount),
        [_, amount] if name.starts_with("s_addk_") => constant(by, amount),
        _ => None,
    }
}

/// Whether an instruction writes a register, alone or in a range such as `s[2:3]`.
fn writes(instruction: &Instruction, register: &str) -> bool {
    let name = instruction.mnemonic.as_str();
    let reads_only = ["s_cmp", "s_bitcmp", "s_cbranch", "s_store", "global_store"];
    if reads_only.iter().any(|prefix| name.starts_with(prefix)) {
        return false;
    }
    let Some(to) = instruction.operands.first() else {
        return false;
    };
    let number = |register: &str| register.strip_prefix('s')?.parse::<u32>().ok();
    let range = to
        .strip_prefix("s[")
        .and_then(|rest| rest.strip_suffix(']')?.split_once(':'));
    match (range, number(register)) {
        (Some((first, last)), Some(number)) => {
            let bounds = first.parse::<u32>().ok().zip(last.parse::<u32>().ok());
            bounds.is_none_or(|(first, last)| (first..=last).contains(&number))
        }
        _ => to == register,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa_report::blocks;
    use crate::isa_report::code::code_of;

    fn trips_of(lines: &[&str]) -> Option<u64> {
        let code = code_of(lines);
        let blocks = blocks::blocks(&code).unwrap();
        let loops = blocks::loops(&blocks);
        assert_eq!(loops.len(), 1);
        trips(&code, &blocks, &loops[0])
    }

    #[test]
    fn counts_down_and_up() {
        let down = [
            "s_mov_b32 s2, 4",
            "s_add_co_i32 s2, s2, -1",
            "s_cmp_eq_u32 s2, 0",
            "s_cbranch_scc0 @1",
            "s_endpgm",
        ];
        assert_eq!(trips_of(&down), Some(4));
        let up = [
            "s_mov_b32 s2, 0",
            "s_addk_i32 s2, 0x20",
            "s_cmp_lg_u32 s2, 0x80",
            "s_cbranch_scc1 @1",
            "s_endpgm",
        ];
        assert_eq!(trips_of(&up), Some(4));
        let from_below = [
            "s_movk_i32 s2, 0xff80",
            "s_add_co_i32 s2, s2, 32",
            "s_cmp_eq_u32 s2, 0",
            "s_cbranch_scc0 @1",
            "s_endpgm",
        ];
        assert_eq!(trips_of(&from_below), Some(4));
    }

    #[test]
    fn says_nothing_of_other_loops() {
        // The end is a register; the start is loaded; there is a second way out; no turn ends it.
        let end = [
            "s_mov_b32 s2, 0",
            "s_add_i32 s2, s2, 1",
            "s_cmp_lg_u32 s2, s3",
            "s_cbranch_scc1 @1",
            "s_endpgm",
        ];
        assert_eq!(trips_of(&end), None);
        let start = [
            "s_load_b64 s[2:3], s[0:1], 0x10",
            "s_add_i32 s2, s2, 1",
            "s_cmp_lg_u32 s2, 7",
            "s_cbranch_scc1 @1",
            "s_endpgm",
        ];
        assert_eq!(trips_of(&start), None);
        let exit = [
            "s_mov_b32 s2, 0",
            "s_cbranch_execz @5",
            "s_add_i32 s2, s2, 1",
            "s_cmp_lg_u32 s2, 7",
            "s_cbranch_scc1 @1",
            "s_endpgm",
        ];
        assert_eq!(trips_of(&exit), None);
        let never = [
            "s_mov_b32 s2, 0",
            "s_add_i32 s2, s2, 2",
            "s_cmp_lg_u32 s2, 7",
            "s_cbranch_scc1 @1",
            "s_endpgm",
        ];
        assert_eq!(trips_of(&never), None);
    }
}
