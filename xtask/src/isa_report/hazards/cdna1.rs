//! Hazards of gfx908's matrix unit. Its instructions keep C and the result in registers of their own, the only ones that
//! they write; `v_accvgpr_read` and `v_accvgpr_write` copy from and to them. The hardware waits for plain registers.

use super::gfx9::{Pair, passes};
use super::is_vector_memory;
use crate::isa_report::code::Instruction;
use crate::isa_report::registers::{self, EXEC, Registers, Unit};

const READ: &str = "v_accvgpr_read";
const WRITE: &str = "v_accvgpr_write";

/// Whether an instruction copies from or to a register of the matrix unit.
pub(super) fn copies(instruction: &Instruction) -> bool {
    [READ, WRITE]
        .iter()
        .any(|name| instruction.mnemonic.starts_with(name))
}

impl Pair<'_> {
    /// Returns the wait states that the matrix unit needs between the two instructions. `after_copy` says whether a copy
    /// comes right before the later one.
    pub(super) fn of_cdna1(&self, after_copy: impl FnOnce() -> bool) -> u8 {
        let reads = self.later.mnemonic.starts_with(READ);
        let writes = self.later.mnemonic.starts_with(WRITE);
        let is_matrix = self.later.is_matrix();
        let mut needed = 0;
        let mut need = |states: u8, applies: bool| {
            if applies {
                needed = needed.max(states);
            }
        };
        if is_vector_memory(self.after) && self.reads_plain_result() {
            need(2, self.earlier.mnemonic.starts_with(READ));
            need(2, !copies(self.earlier) && after_copy());
        }
        if (is_matrix || writes) && self.before.unit == Unit::Vector {
            need(4, self.before.writes_any(EXEC));
            need(2, self.reads_plain_result());
        }
        let inputs = is_matrix && (self.result_is_input(1) || self.result_is_input(2));
        let c = operand(self.later, 3).filter(|_| is_matrix);
        let adds = c.is_some_and(|c| self.before.writes_any(c));
        if self.earlier.mnemonic.starts_with(WRITE) {
            need(3, inputs || (reads && self.reads_result()));
            need(1, adds);
        }
        if self.earlier.is_matrix() {
            let passes = passes(self.earlier, self.family);
            need(4, inputs);
            // As C of the same registers, the result is forwarded.
            need(2, adds && c != self.before.writes.first().copied());
            need(passes + 2, reads && self.reads_result());
            need(passes - 1, writes && self.writes_result());
            let c = operand(self.earlier, 3);
            let overwrites_c = c.is_some_and(|c| self.after.writes_any(c));
            need(passes.saturating_sub(3), writes && overwrites_c);
        }
        needed
    }

    fn reads_plain_result(&self) -> bool {
        let written = self.before.writes.iter();
        let mut plain = written.filter(|registers| registers.is_plain_vector());
        plain.any(|registers| self.after.has_read(&[*registers]))
    }
}

fn operand(instruction: &Instruction, n: usize) -> Option<Registers> {
    registers::parse(instruction.operands.get(n)?)
}

#[cfg(test)]
mod tests {
    use crate::isa_report::hazards::tests::check_states;

    fn check(earlier: &[&str], n: usize, later: &str) {
        check_states("gfx908", earlier, n, later);
    }

    #[test]
    fn results_of_matrix_instructions() {
        let small = "v_mfma_f32_4x4x4f16 a[0:3], v[8:9], v[10:11], a[4:7]";
        let middle = "v_mfma_f32_16x16x16f16 a[0:3], v[8:9], v[10:11], a[4:7]";
        let large = "v_mfma_i32_32x32x8i8 a[0:15], v20, v21, a[16:31]";
        for (matrix, read, write) in [(small, 4, 1), (middle, 10, 7), (large, 18, 15)] {
            check(&[matrix], read, "v_accvgpr_read_b32 v0, a3");
            check(&[matrix], write, "v_accvgpr_write_b32 a3, v30");
        }
        for (matrix, write_c) in [(small, 0), (middle, 5)] {
            check(&[matrix], write_c, "v_accvgpr_write_b32 a4, v30");
        }
        check(&[large], 13, "v_accvgpr_write_b32 a16, v30");
        let input = "v_mfma_f32_16x16x16f16 a[20:23], a[2:3], v[10:11], a[20:23]";
        check(&[middle], 4, input);
        let overlaps = "v_mfma_f32_16x16x16f16 a[20:23], v[8:9], v[10:11], a[2:5]";
        check(&[middle], 2, overlaps);
        let same = "v_mfma_f32_16x16x16f16 a[0:3], v[8:9], v[10:11], a[0:3]";
        check(&[middle], 0, same);
        check(&[middle], 0, "v_mov_b32_e32 v8, 0");
    }

    #[test]
    fn copies_to_and_from_the_matrix_unit() {
        let write = "v_accvgpr_write_b32 a0, v5";
        check(&[write], 3, "v_accvgpr_read_b32 v0, a0");
        let input = "v_mfma_f32_16x16x16f16 a[20:23], v[10:11], a[0:1], a[20:23]";
        check(&[write], 3, input);
        let adds = "v_mfma_f32_16x16x16f16 a[0:3], v[10:11], v[12:13], a[0:3]";
        check(&[write], 1, adds);
        let read = "v_accvgpr_read_b32 v0, a1";
        check(&[read], 2, "global_store_dword v2, v0, s[0:1]");
        check(&[read], 2, "ds_write_b32 v0, v2");
        check(&[read], 0, "v_mov_b32_e32 v3, v0");
        let unrelated = "v_accvgpr_read_b32 v5, a1";
        let vector = ["v_mov_b32_e32 v0, 0", unrelated];
        check(&vector, 1, "global_store_dword v2, v0, s[0:1]");
        check(&vector[..1], 0, "global_store_dword v2, v0, s[0:1]");
    }

    #[test]
    fn vector_instructions_before_the_matrix_unit() {
        let matrix = "v_mfma_f32_16x16x16f16 a[0:3], v[8:9], v[10:11], a[0:3]";
        for later in [matrix, "v_accvgpr_write_b32 a0, v8"] {
            check(&["v_mov_b32_e32 v8, v2"], 2, later);
            check(&["v_cmpx_eq_u32_e32 vcc, 0, v9"], 4, later);
            check(&["v_mov_b32_e32 v3, v2"], 0, later);
        }
    }
}
