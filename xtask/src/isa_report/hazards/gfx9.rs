//! Hazards of gfx9: pairs of instructions with too few wait states in between. An instruction is one wait state, and
//! `s_nop N` is N + 1. `cdna1` has the rules of the matrix unit of gfx908.

use super::{Hazards, Recent, cdna1, is_transcendental, is_vector, is_vector_memory};
use crate::isa_report::code::Instruction;
use crate::isa_report::family::Family;
use crate::isa_report::registers::{self, Access, EXEC, Kernel, M0, Registers, Unit, VCC};

/// The most wait states that a rule needs after a matrix instruction, and after others.
const MOST_AFTER_MATRIX: u8 = 20;
const MOST: u8 = 5;
/// As far as LLVM looks back in a row of memory accesses.
const ROW: usize = 5;

impl Hazards<'_> {
    /// Applies an instruction to the recent ones, and returns what is wrong with it.
    pub(super) fn step_gfx9(&self, at: usize, recent: &mut Vec<Recent>) -> Option<String> {
        let (instruction, access) = (&self.kernel.code[at], &self.kernel.accesses[at]);
        let finding = recent.iter().find_map(|earlier| {
            let needed = self.needed(earlier.at, at, recent);
            (needed > earlier.distance).then(|| {
                format!(
                    "{} comes {} wait states after {}, which needs {needed}",
                    self.kernel.place(at),
                    earlier.distance,
                    self.kernel.place(earlier.at)
                )
            })
        });
        let finding = finding.or_else(|| self.overwrites_address(at));
        let states = wait_states(instruction);
        recent.retain_mut(|r| {
            r.distance = r.distance.saturating_add(states);
            let is_matrix = self.kernel.code[r.at].is_matrix();
            r.distance < if is_matrix { MOST_AFTER_MATRIX } else { MOST }
        });
        let matters = is_vector(access)
            || access.writes_any(M0)
            || (access.unit == Unit::Memory && access.writes.is_empty());
        if matters {
            recent.retain(|r| r.at != at);
            let place = recent.partition_point(|r| r.at < at);
            recent.insert(
                place,
                Recent {
                    at,
                    distance: 0,
                    n_transcendental: 0,
                },
            );
        }
        finding
    }

    /// Finds accesses to memory in a row, one of which overwrites what it or another one reads. With XNACK, which the
    /// images allow, they are repeated together after a page fault.
    fn overwrites_address(&self, at: usize) -> Option<String> {
        let accesses = &self.kernel.accesses;
        let access = &accesses[at];
        if !matches!(access.unit, Unit::Memory | Unit::ScalarMemory) {
            return None;
        }
        let overlap = |one: usize, other: usize| accesses[one].has_read(&accesses[other].writes);
        let before = (0..at).rev().filter(|before| Some(*before) != self.without);
        let row = before.take_while(|before| accesses[*before].unit == access.unit);
        let mut row = row.take(ROW);
        let other = row.find(|before| {
            let before = *before;
            !accesses[before].writes.is_empty()
                && [(before, at), (at, before), (before, before), (at, at)]
                    .into_iter()
                    .any(|(one, other)| overlap(one, other))
        })?;
        Some(format!(
            "{} and {} overwrite an address without another instruction in between",
            self.kernel.place(at),
            self.kernel.place(other)
        ))
    }

    /// Returns the wait states needed between two instructions, given all instructions shortly before the later one.
    fn needed(&self, earlier: usize, later: usize, recent: &[Recent]) -> u8 {
        let code = &self.kernel.code;
        let family = self.kernel.family;
        let pair = Pair {
            family,
            earlier: &self.kernel.code[earlier],
            before: &self.kernel.accesses[earlier],
            later: &self.kernel.code[later],
            after: &self.kernel.accesses[later],
        };
        if family == Family::Cdna1 {
            let after_copy = || {
                let mut last = recent.iter().filter(|r| r.distance == 0);
                last.any(|r| cdna1::copies(&code[r.at]))
            };
            return pair.of_cdna1(after_copy).max(pair.of_others());
        }
        if pair.earlier.is_matrix() {
            return if pair.later.is_matrix() {
                match self.is_overwritten(earlier, later) {
                    true => 0,
                    false => pair.matrix_to_matrix(),
                }
            } else {
                pair.after_matrix()
            };
        }
        pair.of_others()
    }
}

impl Hazards<'_> {
    /// Whether a matrix instruction in between, which no jump leaves out, overwrites all that the later one reads of the
    /// earlier one's result. Then the later one waits for that instruction alone.
    fn is_overwritten(&self, earlier: usize, later: usize) -> bool {
        let Kernel { code, accesses, .. } = self.kernel;
        let result = accesses[earlier].writes[0];
        let reads = accesses[later].reads.iter();
        let read: Vec<usize> = reads
            .flat_map(|read| read.range())
            .filter(|register| result.range().contains(register))
            .collect();
        let between = code.iter().enumerate().take(later).skip(earlier + 1);
        let mut between = between.take_while(|(_, instruction)| !instruction.is_branch());
        between.any(|(at, instruction)| {
            let written = accesses[at].writes.first();
            let written = written.filter(|_| instruction.is_matrix());
            written.is_some_and(|written| read.iter().all(|at| written.range().contains(at)))
        })
    }
}

fn wait_states(instruction: &Instruction) -> u8 {
    let n = match instruction.operands.first() {
        Some(n) if instruction.mnemonic == "s_nop" => n.parse().unwrap_or(0),
        _ => 0,
    };
    n + 1
}

/// Two instructions, and what the first writes and the second reads and writes.
pub(super) struct Pair<'a> {
    pub(super) family: Family,
    pub(super) earlier: &'a Instruction,
    pub(super) before: &'a Access,
    pub(super) later: &'a Instruction,
    pub(super) after: &'a Access,
}

impl Pair<'_> {
    /// Rules whose first instruction is none of the matrix unit.
    fn of_others(&self) -> u8 {
        match self.before.unit {
            Unit::Vector if self.earlier.is_matrix() => 0,
            Unit::Vector => self.after_vector(),
            Unit::Scalar => self.after_m0(),
            _ => self.after_store(),
        }
    }

    fn reads(&self, registers: Registers) -> bool {
        self.after.reads.iter().any(|read| read.overlaps(registers))
    }

    pub(super) fn reads_result(&self) -> bool {
        self.after.has_read(&self.before.writes)
    }

    pub(super) fn writes_result(&self) -> bool {
        let mut written = self.before.writes.iter();
        written.any(|&registers| self.after.writes_any(registers))
    }

    pub(super) fn result_is_input(&self, operand: usize) -> bool {
        let input = self.later.operands.get(operand);
        let input = input.and_then(|operand| registers::parse(operand));
        input.is_some_and(|input| self.before.writes_any(input))
    }

    fn matrix_to_matrix(&self) -> u8 {
        let passes = passes(self.earlier, self.family);
        let is_gfx940 = self.family.is_gfx940();
        if self.result_is_input(1) || self.result_is_input(2) {
            return passes + self.after_result(passes);
        }
        // As C of the same registers, the result is forwarded.
        let sparse = self.later.mnemonic.starts_with("v_smfmac");
        let c = registers::parse(&self.later.operands[if sparse { 0 } else { 3 }]);
        let d = self.before.writes[0];
        let (is_fast, then_fast) = (is_fast(self.earlier), is_fast(self.later));
        match c {
            Some(c) if c == d => match is_gfx940 && passes == 2 {
                true => 2,
                false => 0,
            },
            Some(c) if c.overlaps(d) => match is_gfx940 {
                true if !is_fast && then_fast => 0,
                true if is_fast => {
                    let is_longer = self.family == Family::Cdna4 && (then_fast || passes != 2);
                    passes + 1 + u8::from(is_longer)
                }
                _ => passes,
            },
            _ => 0,
        }
    }

    /// Wait states after the passes of a matrix instruction until its result may be used, except as C.
    fn after_result(&self, passes: u8) -> u8 {
        match self.family {
            Family::Cdna3 | Family::Cdna4 if !is_fast(self.earlier) => 2,
            Family::Cdna4 if passes != 2 => 4,
            _ => 3,
        }
    }

    /// Vector and memory instructions that touch registers of a matrix instruction.
    fn after_matrix(&self) -> u8 {
        if !is_vector(self.after) && !is_vector_memory(self.after) {
            return 0;
        }
        let passes = passes(self.earlier, self.family);
        if self.reads_result() || self.writes_result() {
            return passes + self.after_result(passes);
        }
        let c = self.earlier.operands.get(3);
        let c = c.and_then(|operand| registers::parse(operand));
        // What a load of device memory writes comes later than the last pass.
        let overwrites_c =
            self.after.unit != Unit::Memory && c.is_some_and(|c| self.after.writes_any(c));
        let is_slow = self.family.is_gfx940() && !is_fast(self.earlier);
        if overwrites_c && !is_slow {
            passes - 1
        } else {
            0
        }
    }

    fn after_vector(&self) -> u8 {
        let name = self.later.mnemonic.as_str();
        // gfx906 and gfx908 wait for dot products themselves.
        let is_dot = self.earlier.is_dot() && self.family.has_one_register_file();
        let writes_exec = self.before.writes_any(EXEC);
        if self.later.is_matrix() && self.family != Family::Cdna1 {
            return if writes_exec {
                4
            } else if !is_dot && self.reads_result() {
                2
            } else {
                0
            };
        }
        let mut needed = 0;
        let mut need = |states: u8, applies: bool| {
            if applies {
                needed = needed.max(states);
            }
        };
        if is_vector_memory(self.after) {
            let scalar = |r: &&Registers| r.is_scalar();
            let scalars = self.before.writes.iter().filter(scalar);
            let reads = |r: &Registers| self.after.unit == Unit::Memory && self.reads(*r);
            need(5, scalars.into_iter().any(reads));
            need(3, is_dot && (self.reads_result() || self.writes_result()));
        }
        if !is_vector(self.after) {
            return needed;
        }
        let source = |n: usize| self.later.operands.get(n).and_then(|o| registers::parse(o));
        let written = |r: Option<Registers>| r.is_some_and(|r| self.before.writes_any(r));
        if name.contains("_dpp") {
            // It also reads what it writes, for lanes that are off.
            let all = self.after.reads.iter().chain(&self.after.writes);
            let mut vectors = all.filter(|r| r.is_vector());
            need(2, vectors.any(|r| self.before.writes_any(*r)));
            need(5, writes_exec);
        }
        need(
            4,
            name.starts_with("v_div_fmas") && self.before.writes_any(VCC),
        );
        let picks_lane = ["v_readlane", "v_writelane"]
            .iter()
            .any(|p| name.starts_with(p));
        let lane = source(2).filter(|r| r.is_scalar());
        need(4, picks_lane && written(lane));
        if is_dot {
            let same = self.earlier.mnemonic == self.later.mnemonic;
            // The accumulator of the same instruction is forwarded.
            let reads = if same {
                written(source(1)) || written(source(2))
            } else {
                self.reads_result()
            };
            need(3, reads || (!same && self.writes_result()));
        }
        if name.starts_with("v_permlane") && self.family == Family::Cdna4 {
            need(2, self.reads_result());
            need(4, writes_exec && self.earlier.mnemonic.starts_with("v_cmp"));
        }
        if self.family.is_gfx940() {
            let reads_lane = ["v_readlane", "v_readfirstlane"]
                .iter()
                .any(|p| name.starts_with(p));
            let scalars = self.before.writes.iter().filter(|r| r.is_scalar());
            need(2, scalars.into_iter().any(|r| self.reads(*r)));
            need(1, reads_lane && written(source(1)));
            need(4, (reads_lane || picks_lane) && writes_exec);
            need(
                1,
                is_transcendental(self.earlier)
                    && !is_transcendental(self.later)
                    && self.reads_result(),
            );
            let touches_result = self.reads_result() || self.writes_result();
            need(1, writes_part(self.earlier) && touches_result);
        }
        needed
    }

    /// A vector instruction overwrites the data of a store of more than 8 bytes per lane.
    fn after_store(&self) -> u8 {
        let wide = ["store_dwordx3", "store_dwordx4"];
        if !is_vector(self.after) || !wide.iter().any(|w| self.earlier.mnemonic.contains(w)) {
            return 0;
        }
        let data = self.earlier.operands.get(1);
        let data = data.and_then(|operand| registers::parse(operand));
        match data.is_some_and(|data| self.after.writes_any(data)) {
            true if self.family.is_gfx940() => 2,
            true => 1,
            false => 0,
        }
    }

    /// An instruction reads M0 implicitly.
    fn after_m0(&self) -> u8 {
        let name = self.later.mnemonic.as_str();
        let modifiers = self.later.operands.last().map_or("", String::as_str);
        let reads = name.contains("s_movrel")
            || name.contains("_addtid_")
            || name.starts_with("s_sendmsg")
            || registers::loads_to_shared(name, modifiers);
        u8::from(reads)
    }
}

/// Returns the passes of a matrix instruction: steps of 4 cycles. From LLVM's SISchedule.td.
pub(super) fn passes(instruction: &Instruction, family: Family) -> u8 {
    let name = instruction.mnemonic.as_str();
    let shape = name.split('_').find(|part| part.matches('x').count() >= 2);
    let mut sides = shape.unwrap_or("").split('x').map(|side| {
        let digits = side.split(|c: char| !c.is_ascii_digit()).next();
        digits.and_then(|digits| digits.parse().ok()).unwrap_or(0)
    });
    let (rows, _, depth): (u32, Option<u32>, u32) = (
        sides.next().unwrap_or(0),
        sides.next(),
        sides.next().unwrap_or(0),
    );
    let is_gfx940 = family.is_gfx940();
    // CDNA 3 doubled the rate of the deep shapes, those of one block. On FP8, the deepest of CDNA 4 take twice as long.
    let is_deepest = name.contains("f8f6f4");
    let is_deep = name.starts_with("v_smfmac") || rows * depth >= 256 || name.contains("xf32");
    match rows {
        4 => 2,
        16 if is_gfx940 && is_deep && !is_deepest => 4,
        16 => 8,
        _ if is_gfx940 && is_deep && !is_deepest => 8,
        _ => 16,
    }
}

/// Whether a matrix instruction runs on the fast part of the matrix unit: all types but f32 and f64.
fn is_fast(instruction: &Instruction) -> bool {
    let inputs = instruction.mnemonic.rsplit('x').next().unwrap_or("");
    let inputs = inputs.trim_start_matches(|c: char| c.is_ascii_digit() || c == '_');
    !(inputs == "f32" || inputs == "f64") || instruction.mnemonic.contains("_xf32")
}

/// Whether a vector instruction writes half of its register: `dst_sel:WORD_1`, or `op_sel` with a further entry for the
/// result, which packed instructions do not have.
fn writes_part(instruction: &Instruction) -> bool {
    let operands = &instruction.operands;
    let modifiers = operands.last().map_or("", String::as_str);
    let selects = |word: &str| word.starts_with("dst_sel:") && word != "dst_sel:DWORD";
    // Listings divide at commas: `v2 op_sel:[0`, `0`, `1]`.
    let n_sources = operands
        .iter()
        .position(|operand| operand.contains(" op_sel:["));
    let entries = n_sources.and_then(|n| operands.get(n + 1..=2 * n));
    let for_result = entries.and_then(<[String]>::split_last);
    let selects_result = for_result.is_some_and(|(last, others)| {
        last.starts_with("1]") && !others.iter().any(|other| other.contains(']'))
    });
    selects_result || modifiers.split_whitespace().any(selects)
}
