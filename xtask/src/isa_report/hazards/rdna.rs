//! Hazards of gfx11 and gfx12 between vector instructions.

use super::{Hazards, Recent, is_transcendental, is_vector, is_vector_memory, waits_for};
use crate::isa_report::family::Family;
use crate::isa_report::registers;

/// Vector instructions, and transcendental ones among them, after which a transcendental result may be read.
const ENOUGH_VECTOR: u8 = 6;
const ENOUGH_TRANSCENDENTAL: u8 = 2;

impl Hazards<'_> {
    /// Applies an instruction to the recent ones that matter, and returns what is wrong with it.
    pub(super) fn step_rdna(&self, at: usize, recent: &mut Vec<Recent>) -> Option<String> {
        let (instruction, access) = (&self.kernel.code[at], &self.kernel.accesses[at]);
        // Memory instructions wait for the vector unit.
        if is_vector_memory(access) || waits_for(instruction, "va_vdst") {
            recent.retain(|r| !is_transcendental(&self.kernel.code[r.at]));
        }
        if !is_vector(access) {
            return None;
        }
        let finding = recent
            .iter()
            .find_map(|earlier| self.too_close(earlier, at));
        let is_nop = instruction.mnemonic.starts_with("v_nop");
        let is_transcendental = is_transcendental(instruction);
        recent.retain_mut(|r| {
            let earlier = &self.kernel.code[r.at];
            r.distance += 1;
            r.n_transcendental += u8::from(is_transcendental);
            if earlier.mnemonic.starts_with("v_cmpx") {
                // The scheduler drops v_nop.
                is_nop
            } else if earlier.is_matrix() {
                false
            } else {
                r.distance < ENOUGH_VECTOR && r.n_transcendental < ENOUGH_TRANSCENDENTAL
            }
        });
        let is_gfx11 = matches!(self.kernel.family, Family::Rdna3 | Family::Rdna35);
        let matters = instruction.is_matrix()
            || (is_transcendental && self.kernel.family == Family::Rdna3)
            || (instruction.mnemonic.starts_with("v_cmpx") && is_gfx11);
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

    fn too_close(&self, recent: &Recent, at: usize) -> Option<String> {
        let (earlier, later) = (&self.kernel.code[recent.at], &self.kernel.code[at]);
        let (written, access) = (
            &self.kernel.accesses[recent.at].writes,
            &self.kernel.accesses[at],
        );
        let place = || (self.kernel.place(at), self.kernel.place(recent.at));
        if earlier.mnemonic.starts_with("v_cmpx") {
            return later.mnemonic.starts_with("v_permlane").then(|| {
                let (later, earlier) = place();
                format!("{later} needs a vector instruction after {earlier}")
            });
        }
        if earlier.is_matrix() {
            // The hardware waits for C, but not for the indices of a sparse matrix.
            let n = if later.mnemonic.starts_with("v_swmmac") {
                3
            } else {
                2
            };
            let inputs = later.operands.iter().skip(1).take(n);
            let mut inputs = inputs.filter_map(|operand| registers::parse(operand));
            let reads = later.is_matrix() && inputs.any(|i| written.iter().any(|w| w.overlaps(i)));
            return reads.then(|| {
                let (later, earlier) = place();
                format!("{later} reads the result of {earlier} as A or B without v_nop in between")
            });
        }
        access.has_read(written).then(|| {
            let (later, earlier) = place();
            format!("{later} reads the result of {earlier} too soon, without a wait for va_vdst")
        })
    }
}
