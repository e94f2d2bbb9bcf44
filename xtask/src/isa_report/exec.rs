//! Which instructions of a kernel run while lanes are switched off. A collective instruction there reads lanes that
//! were not computed: silently wrong numbers.
//!
//! A forward data flow over the basic blocks. Each set of lanes that EXEC takes has a name, by the instruction or the
//! meeting of paths where it came about, and is known to have at least the lanes of that name's; registers are known to
//! hold a named set, or what is missing from one set to another. All lanes are in the set `WHOLE`, which is what a
//! kernel begins with, and the compiler's ways to restore it are followed: `s_or exec, exec, saved`, the two sides of an
//! if with `xor`, and loops that gather the lanes that have left. What is not understood counts as narrowed.

use std::collections::BTreeMap;

use super::blocks::Block;
use super::code::Instruction;
use super::scalar::{Kind, Logic, Operand, parse_operand, writes_first};

/// A set of lanes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Lanes {
    Whole,
    /// Of an instruction, by its index.
    At(usize),
    /// Where paths meet that had different sets, by block.
    Meet(usize),
}

/// What is known of a register. Of any other nothing is.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Value {
    None,
    Set(Lanes),
    /// Together with the lanes of the first set, it has all of the second.
    Rest(Lanes, Lanes),
}

#[derive(Debug, Clone, PartialEq)]
struct State {
    exec: Lanes,
    registers: BTreeMap<u16, Value>,
}

/// For each instruction whether it runs with all lanes; `None` for what cannot be reached.
pub(crate) fn whole(code: &[Instruction], blocks: &[Block], wave_size: u64) -> Vec<Option<bool>> {
    let mut flow = Flow {
        wide: wave_size == 64,
        parents: BTreeMap::new(),
    };
    let mut met = vec![false; blocks.len()];
    let mut out: Vec<Option<State>> = vec![None; blocks.len()];
    let mut whole = vec![None; code.len()];
    // Each round takes away from what is known, so it ends; the bound is for faults of this program.
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
    /// Waves of 64 lanes, whose sets take two registers.
    wide: bool,
    /// The set that another was cut from.
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

    /// The set that a value fills EXEC up to.
    fn filled(&self, exec: Lanes, value: Value) -> Option<Lanes> {
        match value {
            Value::None => Some(exec),
            Value::Set(set) if self.is_within(exec, set) => Some(set),
            Value::Rest(of, to) if of == exec => Some(to),
            _ => None,
        }
    }

    /// What is known where paths meet.
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
            // On older targets it also writes the register that it names first.
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

    /// Operations on sets of lanes.
    fn logic(&mut self, at: usize, logic: Logic, operands: [Operand; 3], state: &mut State) {
        let [to, a, b] = operands;
        let old = state.exec;
        if logic.saves {
            // EXEC is the second operand of these, but the first of those that invert it.
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
                // Whoever was on is not, and the reverse: both together are what the operand and EXEC were.
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
        // What is taken away, or exchanged, from EXEC fills it up again.
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
            // At least what is known of either: the saved set rather than EXEC.
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
            // What is missing, without what is there: as much.
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

    /// EXEC becomes a set of which nothing is known but that it lies within the old one.
    fn narrow(&mut self, at: usize, state: &mut State) {
        let old = state.exec;
        self.forget_name(at, state);
        state.exec = Lanes::At(at);
        if old != state.exec {
            self.parents.insert(state.exec, old);
        }
    }

    /// The instruction runs again: what was known of the sets of the last time is of no use.
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

    /// The instructions that may run with lanes off.
    fn narrowed(wave_size: u64, lines: &[&str]) -> Vec<usize> {
        let code = code_of(lines);
        let whole = whole(&code, &blocks(&code).unwrap(), wave_size);
        let found = whole.iter().enumerate().filter(|(_, w)| **w == Some(false));
        found.map(|(at, _)| at).collect()
    }

    #[test]
    fn an_if_is_over_where_its_lanes_come_back() {
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
    fn what_was_saved_and_overwritten_brings_nothing_back() {
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
    fn both_sides_of_an_if_are_followed() {
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
    fn a_loop_that_lanes_leave_ends_with_all() {
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
    fn a_loop_of_the_whole_wave_stays_whole() {
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
    fn comparisons_that_write_exec_narrow_it() {
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
