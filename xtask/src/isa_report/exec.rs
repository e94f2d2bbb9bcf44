//! Finds the instructions of a kernel that may run while lanes are off (a narrowed EXEC). A collective instruction
//! there reads lanes that were not computed: silently wrong numbers.
//!
//! A forward data-flow analysis over the basic blocks. Each set of lanes that EXEC takes is named after the instruction
//! or join point that created it. A register is known to hold a named set, or the difference of two. A kernel starts
//! with `Whole`, all lanes. The analysis follows the compiler's ways to restore it: `s_or exec, exec, saved`, the two
//! sides of an if with `xor`, and loops that collect the lanes that have left. Anything else counts as narrowed.

use std::collections::BTreeMap;

use super::blocks::Block;
use super::code::Instruction;
use super::scalar::{Kind, Logic, Operand, parse_operand, writes_first};

/// A set of lanes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Lanes {
    Whole,
    /// Created by the instruction with this index.
    At(usize),
    /// Created at the start of this block, where paths with different sets join.
    Meet(usize),
}

/// What is known of a register's value. Other registers are unknown.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Value {
    None,
    Set(Lanes),
    /// With the lanes of the first set added, at least the second set.
    Rest(Lanes, Lanes),
}

/// What is known between two instructions.
#[derive(Debug, Clone, PartialEq)]
struct State {
    exec: Lanes,
    registers: BTreeMap<u16, Value>,
}

/// Returns for each instruction whether it runs with all lanes on; `None` if it is unreachable.
pub(crate) fn whole(code: &[Instruction], blocks: &[Block], wave_size: u64) -> Vec<Option<bool>> {
    let mut flow = Flow {
        wide: wave_size == 64,
        parents: BTreeMap::new(),
    };
    let mut met = vec![false; blocks.len()];
    let mut out: Vec<Option<State>> = vec![None; blocks.len()];
    let mut whole = vec![None; code.len()];
    // Each round only removes knowledge, so it ends; the bound guards against bugs here.
    for _ in 0..blocks.len() * 8 + 8 {
        let mut changed = false;
        for (number, block) in blocks.iter().enumerate() {
            let mut incoming: Vec<&State> = block
                .predecessors
                .iter()
                .filter_map(|&before| out[before].as_ref())
                .collect();
            let start = State {
                exec: Lanes::Whole,
                registers: BTreeMap::new(),
            };
            if number == 0 {
                incoming.push(&start);
            }
            if incoming.is_empty() {
                continue;
            }
            let mut state = flow.meet(number, &incoming, &mut met[number]);
            for at in block.range.clone() {
                whole[at] = Some(state.exec == Lanes::Whole);
                flow.step(at, &code[at], &mut state);
            }
            if out[number].as_ref() != Some(&state) {
                out[number] = Some(state);
                changed = true;
            }
        }
        if !changed {
            return whole;
        }
    }
    vec![Some(false); code.len()]
}

struct Flow {
    /// Waves of 64 lanes, whose masks take two registers.
    wide: bool,
    /// The superset that each set was narrowed from.
    parents: BTreeMap<Lanes, Lanes>,
}

impl Flow {
    fn is_within(&self, mut set: Lanes, of: Lanes) -> bool {
        for _ in 0..64 {
            if set == of || of == Lanes::Whole {
                return true;
            }
            match self.parents.get(&set) {
                Some(&parent) => set = parent,
                None => return false,
            }
        }
        false
    }

    /// Returns the set that EXEC becomes when `value` is added to it.
    fn filled(&self, exec: Lanes, value: Value) -> Option<Lanes> {
        match value {
            Value::None => Some(exec),
            Value::Set(set) if self.is_within(exec, set) => Some(set),
            Value::Rest(of, to) if of == exec => Some(to),
            _ => None,
        }
    }

    /// Returns what is known where paths join.
    fn meet(&mut self, block: usize, incoming: &[&State], met: &mut bool) -> State {
        let (first, others) = incoming.split_first().expect("a path leads here");
        *met |= others.iter().any(|other| other.exec != first.exec);
        let here = Lanes::Meet(block);
        let exec = if *met { here } else { first.exec };
        if *met {
            let mut parent = first.exec;
            for _ in 0..64 {
                if parent != here && incoming.iter().all(|s| self.is_within(s.exec, parent)) {
                    break;
                }
                parent = self.parents.get(&parent).copied().unwrap_or(Lanes::Whole);
            }
            self.parents.insert(here, parent);
        }
        let mut registers = BTreeMap::new();
        for (&register, &value) in &first.registers {
            let values = incoming.iter().map(|s| s.registers.get(&register).copied());
            let same = values.clone().all(|other| other == Some(value));
            let target = |s: &&State| self.filled(s.exec, *s.registers.get(&register)?);
            let fills =
                target(first).filter(|set| incoming.iter().all(|s| target(s) == Some(*set)));
            if same && !(exec == here && value.has(here)) {
                registers.insert(register, value);
            } else if let Some(set) = fills.filter(|&set| set != here) {
                registers.insert(register, Value::Rest(exec, set));
            }
        }
        State { exec, registers }
    }

    fn step(&mut self, at: usize, instruction: &Instruction, state: &mut State) {
        let name = instruction.mnemonic.as_str();
        let operand = |n: usize| {
            let text = instruction.operands.get(n).map(String::as_str);
            text.map_or(Operand::Other, parse_operand)
        };
        if name.starts_with("v_cmpx") {
            // On older targets it also writes its first operand.
            self.forget(state, operand(0));
            self.narrow(at, state);
            return;
        }
        let lanes = if self.wide { "_b64" } else { "_b32" };
        match name.strip_suffix(lanes).and_then(Logic::parse) {
            Some(logic) => self.logic(at, logic, [operand(0), operand(1), operand(2)], state),
            None => {
                if writes_first(name) {
                    self.forget(state, operand(0));
                    if operand(0) == Operand::Exec {
                        self.narrow(at, state);
                    }
                }
                if ["_co_", "div_scale", "mad_u64_u32", "mad_i64_i32"]
                    .iter()
                    .any(|part| name.contains(part))
                {
                    self.forget(state, operand(1));
                }
            }
        }
    }

    /// Applies a logic instruction on lane masks.
    fn logic(&mut self, at: usize, logic: Logic, operands: [Operand; 3], state: &mut State) {
        let [to, a, b] = operands;
        let old = state.exec;
        if logic.saves {
            // EXEC is the second operand, or the first of the instructions that invert it.
            let (x, y) = if logic.inverts_exec {
                (a, Operand::Exec)
            } else {
                (Operand::Exec, a)
            };
            let new = self.combine(at, logic.kind, x, y, state);
            self.forget(state, to);
            self.remember(state, to, Some(Value::Set(old)));
            self.set_exec(at, new, state);
            if matches!(logic.kind, Kind::Xor | Kind::AndNot) {
                // The lanes that were on are off now, and the reverse; together they are the operand and EXEC.
                let whole = match (new, logic.inverts_exec) {
                    (Some(Value::Rest(of, set)), true) if of == old => set,
                    _ => old,
                };
                self.remember(state, to, Some(Value::Rest(state.exec, whole)));
            }
            return;
        }
        let new = match logic.kind {
            Kind::Move => self.value(state, a),
            _ => self.combine(at, logic.kind, a, b, state),
        };
        if to != Operand::Exec {
            self.forget(state, to);
            self.remember(state, to, new);
            return;
        }
        // Lanes that are removed from EXEC, or swapped, restore it later.
        let taken = match logic.kind {
            Kind::AndNot if a == Operand::Exec => Some(b),
            Kind::Xor if a == Operand::Exec => Some(b),
            Kind::Xor if b == Operand::Exec => Some(a),
            _ => None,
        };
        let filled = taken.map(|register| match self.value(state, register) {
            Some(Value::Rest(of, set)) if of == old => set,
            _ => old,
        });
        self.set_exec(at, new, state);
        if let (Some(register), Some(set)) = (taken, filled) {
            self.remember(state, register, Some(Value::Rest(state.exec, set)));
        }
    }

    fn combine(
        &mut self,
        at: usize,
        kind: Kind,
        a: Operand,
        b: Operand,
        state: &mut State,
    ) -> Option<Value> {
        use Value::{None as Empty, Rest, Set};
        let (x, y) = (self.value(state, a), self.value(state, b));
        match (kind, x, y) {
            (Kind::Or, Some(Set(Lanes::Whole)), _) | (Kind::Or, _, Some(Set(Lanes::Whole))) => {
                Some(Set(Lanes::Whole))
            }
            (Kind::Or, Some(Empty), other) | (Kind::Or, other, Some(Empty)) => other,
            (Kind::Or, Some(Set(set)), Some(Rest(of, to)))
            | (Kind::Or, Some(Rest(of, to)), Some(Set(set)))
                if self.is_within(of, set) =>
            {
                Some(Set(to))
            }
            // Keep what is known of the saved set rather than of EXEC.
            (Kind::Or, Some(Set(x)), Some(Set(y))) => {
                Some(Set(if a == Operand::Exec { y } else { x }))
            }
            (Kind::Or, Some(Rest(of, to)), other) | (Kind::Or, other, Some(Rest(of, to))) => {
                match other {
                    Some(Rest(other, _)) if of != state.exec && other == state.exec => y,
                    _ => Some(Rest(of, to)),
                }
            }
            (Kind::Or, Some(Set(x)), None) if a == Operand::Exec => Some(Set(x)),
            (Kind::Or, None, Some(Set(y))) if b == Operand::Exec => Some(Set(y)),
            (Kind::And, Some(Set(Lanes::Whole)), Some(other)) if a != Operand::Exec => Some(other),
            (Kind::And, Some(other), Some(Set(Lanes::Whole))) if b != Operand::Exec => Some(other),
            (Kind::And, Some(x), Some(y)) if x == y => Some(x),
            (Kind::And, ..) if a == Operand::Exec || b == Operand::Exec => {
                self.forget_name(at, state);
                self.parents.insert(Lanes::At(at), state.exec);
                Some(Set(Lanes::At(at)))
            }
            (Kind::Xor, Some(Set(x)), Some(Set(y))) if x != y && self.is_within(x, y) => {
                Some(Rest(x, y))
            }
            (Kind::Xor, Some(Set(x)), Some(Set(y))) if x != y && self.is_within(y, x) => {
                Some(Rest(y, x))
            }
            (Kind::AndNot, Some(Set(x)), Some(Set(y))) => Some(Rest(y, x)),
            // Removing lanes that the difference does not have changes nothing.
            (Kind::AndNot, Some(Rest(of, to)), Some(Set(y))) if of == y => Some(Rest(of, to)),
            _ => None,
        }
    }

    fn value(&self, state: &State, operand: Operand) -> Option<Value> {
        match operand {
            Operand::Exec => Some(Value::Set(state.exec)),
            Operand::Ones => Some(Value::Set(Lanes::Whole)),
            Operand::Zero => Some(Value::None),
            Operand::Register(first, _) => state.registers.get(&first).copied(),
            Operand::Other => None,
        }
    }

    fn set_exec(&mut self, at: usize, value: Option<Value>, state: &mut State) {
        match value {
            Some(Value::Set(set)) => state.exec = set,
            Some(Value::Rest(_, to)) => {
                self.narrow(at, state);
                self.parents.insert(state.exec, to);
            }
            _ => self.narrow(at, state),
        }
    }

    /// Sets EXEC to an unknown subset of the old set.
    fn narrow(&mut self, at: usize, state: &mut State) {
        let old = state.exec;
        self.forget_name(at, state);
        state.exec = Lanes::At(at);
        if old != state.exec {
            self.parents.insert(state.exec, old);
        }
    }

    /// Forgets the set of an earlier iteration of this instruction.
    fn forget_name(&self, at: usize, state: &mut State) {
        state.registers.retain(|_, value| !value.has(Lanes::At(at)));
    }

    fn forget(&self, state: &mut State, operand: Operand) {
        if let Operand::Register(first, n) = operand {
            let before = u16::from(self.wide);
            state
                .registers
                .retain(|&register, _| register + before < first || register >= first + n);
        }
    }

    fn remember(&self, state: &mut State, operand: Operand, value: Option<Value>) {
        if let (Operand::Register(first, _), Some(value)) = (operand, value) {
            state.registers.insert(first, value);
        }
    }
}

impl Value {
    fn has(self, name: Lanes) -> bool {
        match self {
            Value::None => false,
            Value::Set(set) => set == name,
            Value::Rest(of, to) => of == name || to == name,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa_report::blocks::blocks;
    use crate::isa_report::code::code_of;

    /// Returns the instructions that may run with lanes off.
    fn narrowed(wave_size: u64, lines: &[&str]) -> Vec<usize> {
        let code = code_of(lines);
        let whole = whole(&code, &blocks(&code).unwrap(), wave_size);
        let found = whole.iter().enumerate().filter(|(_, w)| **w == Some(false));
        found.map(|(at, _)| at).collect()
    }

    #[test]
    fn lanes_are_restored_after_an_if() {
        let lines = [
            "v_cmp_gt_u32_e32 vcc_lo, s2, v0",
            "s_and_saveexec_b32 s0, vcc_lo",
            "s_cbranch_execz @4",
            "v_mov_b32_e32 v1, 0",
            "s_or_b32 exec_lo, exec_lo, s0",
            "s_endpgm",
        ];
        assert_eq!(narrowed(32, &lines), [2, 3, 4]);
    }

    #[test]
    fn an_overwritten_mask_restores_nothing() {
        let lines = [
            "s_and_saveexec_b64 s[2:3], vcc",
            "s_load_dword s3, s[4:5], 0x0",
            "s_or_b64 exec, exec, s[2:3]",
            "v_mov_b32_e32 v1, 0",
            "s_endpgm",
        ];
        assert_eq!(narrowed(64, &lines), [1, 2, 3, 4]);
    }

    #[test]
    fn follows_both_sides_of_an_if() {
        let forms: [&[&str]; 2] = [
            &[
                "s_or_saveexec_b64 s[2:3], s[2:3]",
                "s_xor_b64 exec, exec, s[2:3]",
            ],
            &["s_andn2_saveexec_b64 s[2:3], s[2:3]", "s_nop 0"],
        ];
        for middle in forms {
            let mut lines = vec![
                "s_and_saveexec_b64 s[2:3], vcc",
                "s_xor_b64 s[2:3], exec, s[2:3]",
                "s_cbranch_execz @4",
                "v_mov_b32_e32 v1, 0",
            ];
            lines.extend(middle);
            lines.extend([
                "s_cbranch_execz @8",
                "v_mov_b32_e32 v1, 1",
                "s_or_b64 exec, exec, s[2:3]",
                "v_mov_b32_e32 v1, 2",
                "s_endpgm",
            ]);
            let found = narrowed(64, &lines);
            let sides = |at: &usize| [3, 7].contains(at);
            assert_eq!(found.iter().filter(|at| sides(at)).count(), 2, "{middle:?}");
            assert!(!found.contains(&9), "{middle:?}");
        }
    }

    #[test]
    fn lanes_are_restored_after_a_divergent_loop() {
        let lines = [
            "s_mov_b32 s4, 0",
            "v_add_nc_u32_e32 v1, 1, v1",
            "v_cmp_le_u32_e32 vcc_lo, s2, v1",
            "s_or_b32 s4, vcc_lo, s4",
            "s_and_not1_b32 exec_lo, exec_lo, s4",
            "s_cbranch_execnz @1",
            "s_or_b32 exec_lo, exec_lo, s4",
            "s_endpgm",
        ];
        assert_eq!(narrowed(32, &lines), [1, 2, 3, 4, 5, 6]);
    }

    #[test]
    fn a_uniform_loop_keeps_all_lanes() {
        let lines = [
            "s_mov_b32 s4, 0",
            "s_add_i32 s4, s4, 1",
            "v_permlanex16_b32 v1, v1, s5, s6",
            "s_cmp_lt_u32 s4, s2",
            "s_cbranch_scc1 @1",
            "s_endpgm",
        ];
        assert_eq!(narrowed(32, &lines), [0; 0]);
    }

    #[test]
    fn v_cmpx_narrows_exec() {
        let lines = [
            "s_mov_b32 s14, exec_lo",
            "v_cmpx_gt_u32_e64 s11, v0",
            "s_cbranch_execz @4",
            "s_barrier",
            "s_or_b32 exec_lo, exec_lo, s14",
            "s_endpgm",
        ];
        assert_eq!(narrowed(32, &lines), [2, 3, 4]);
    }
}
