//! Shows that `waits` and `hazards` find what they should: takes each wait out of a correct kernel in turn and counts
//! how often that gives a finding.

use std::fmt;
use std::ops::AddAssign;

use super::blocks::Block;
use super::code::Instruction;
use super::dataflow::{self, Flow as _};
use super::hazards::Hazards;
use super::registers::Kernel;
use super::waits::Waits;

/// Bytes of a line of the cache of instructions.
const CACHE_LINE: u64 = 64;

/// Waits that were taken out.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) n: usize,
    /// Those that are missed.
    pub(crate) found: usize,
    /// Those of the others that have nothing to wait for, as far as registers show: they order memory for other waves.
    pub(crate) idle: usize,
}

/// The waits of kernels that were taken out, by what they wait for.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Proof {
    pub(crate) memory: Tally,
    pub(crate) hazards: Tally,
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Tally) {
        self.n += other.n;
        self.found += other.found;
        self.idle += other.idle;
    }
}

impl AddAssign for Proof {
    fn add_assign(&mut self, other: Proof) {
        self.memory += other.memory;
        self.hazards += other.hazards;
    }
}

impl fmt::Display for Proof {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(
            f,
            "waits for memory: {}; waits for hazards: {}",
            self.memory, self.hazards
        )
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let Tally { n, found, idle } = self;
        let share = *found as f64 / (*n).max(1) as f64 * 100.0;
        let covered = n - found - idle;
        write!(
            f,
            "{share:.1} % of {n} found, {idle} have nothing to wait for, {covered} are covered by others"
        )
    }
}

/// Takes out the waits of a kernel without findings.
pub(crate) fn prove(kernel: &Kernel, blocks: &[Block]) -> Proof {
    let waits = |without| Waits { kernel, without };
    let hazards = |without| Hazards { kernel, without };
    let pending = dataflow::solve(&waits(None), blocks);
    let recent = dataflow::solve(&hazards(None), blocks);
    let mut proof = Proof::default();
    for (number, block) in blocks.iter().enumerate() {
        let (Some(mut before), Some(mut near)) = (pending[number].clone(), recent[number].clone())
        else {
            continue;
        };
        for at in block.range.clone() {
            let name = kernel.code[at].mnemonic.as_str();
            let is_hazard = ["s_nop", "v_nop", "s_wait_alu", "s_waitcnt_depctr"].contains(&name);
            let is_wait = is_hazard || name.starts_with("s_wait");
            if is_wait && !aligns(kernel.code, blocks, at) {
                let (waits, hazards) = (waits(Some(at)), hazards(Some(at)));
                let early = dataflow::first_finding_from(&waits, blocks, &pending, number);
                let near_too = || dataflow::first_finding_from(&hazards, blocks, &recent, number);
                let found = early.or_else(near_too).is_some();
                let (tally, is_effective) = if is_hazard {
                    (&mut proof.hazards, hazards.is_effective(at, &near))
                } else {
                    (&mut proof.memory, waits.is_effective(at, &before))
                };
                *tally += Tally {
                    n: 1,
                    found: found.into(),
                    idle: usize::from(!found && !is_effective),
                };
            }
            waits(None).step(at, &mut before);
            hazards(None).step(at, &mut near);
        }
    }
    proof
}

/// Whether an instruction is one of those that move the start of a block, a loop's, to a line of the cache.
fn aligns(code: &[Instruction], blocks: &[Block], at: usize) -> bool {
    let rest = code[at..].iter();
    let n = rest.take_while(|i| i.mnemonic == "s_nop").count();
    let next = at + n;
    n > 0
        && code.get(next).is_some_and(|i| i.address % CACHE_LINE == 0)
        && blocks.iter().any(|block| block.range.start == next)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa_report::blocks::blocks;
    use crate::isa_report::code::code_of;

    #[test]
    fn what_aligns_a_loop_is_no_wait() {
        // The loop begins after so many instructions of 4 bytes.
        for (start, n) in [(16, 0), (15, 15)] {
            let mut lines = vec!["s_nop 0"; start];
            let jump = format!("s_cbranch_scc1 @{start}");
            lines.extend(["s_add_u32 s0, s0, 1", &jump, "s_endpgm"]);
            let code = code_of(&lines);
            let kernel = Kernel::new("gfx1100", &code).unwrap();
            let proof = prove(&kernel, &blocks(&code).unwrap());
            assert_eq!(proof.hazards.n, n, "{start}");
        }
    }

    #[test]
    fn counts_the_waits_that_are_missed() {
        let code = code_of(&[
            "s_load_b64 s[0:1], s[0:1], 0x0",
            "s_waitcnt lgkmcnt(0)", // found
            "global_load_b32 v1, v0, s[0:1]",
            "s_waitcnt vmcnt(0)", // found
            "v_exp_f32_e32 v1, v1",
            "s_waitcnt_depctr depctr_va_vdst(0)", // found
            "v_add_f32_e32 v1, v1, v1",
            "s_waitcnt_depctr depctr_va_vdst(0)", // idle
            "s_waitcnt_vscnt null, 0x0",          // idle
            "ds_load_b32 v2, v0",
            "s_waitcnt lgkmcnt(0)", // covered
            "s_waitcnt lgkmcnt(0)", // idle
            "v_mov_b32_e32 v3, v2",
            "s_nop 0", // found
            "s_sendmsg sendmsg(MSG_DEALLOC_VGPRS)",
            "s_endpgm",
        ]);
        let proof = prove(
            &Kernel::new("gfx1100", &code).unwrap(),
            &blocks(&code).unwrap(),
        );
        let tally = |n, found, idle| Tally { n, found, idle };
        assert_eq!(proof.memory, tally(5, 2, 2));
        assert_eq!(proof.hazards, tally(3, 2, 1));
        assert_eq!(
            proof.to_string(),
            "waits for memory: 40.0 % of 5 found, 2 have nothing to wait for, 1 are covered by others; \
             waits for hazards: 66.7 % of 3 found, 1 have nothing to wait for, 0 are covered by others"
        );
    }
}
