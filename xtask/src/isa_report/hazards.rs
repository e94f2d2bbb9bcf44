//! Finds hazards: pairs of instructions that the hardware does not keep apart and that need other instructions between
//! them. The rules are those that LLVM's GCNHazardRecognizer and AMDGPUWaitSGPRHazards handle, those of CDNA also in
//! AMD's ISA guides under "Manually Inserted Wait States".
//!
//! `gfx9` has the rules of gfx906 and of CDNA, which count wait states, `cdna1` those of gfx908's matrix unit; `rdna` has
//! those of gfx11 and gfx12 for vector instructions, `scalar_reads` that of scalar registers on gfx12. gfx1030 to gfx1036
//! have none that the kernels can meet: those of gfx10 are of gfx1010 to gfx1013. Both gfx11 and gfx12 need an `s_nop`
//! before vector registers are released.
//!
//! Not checked: matrix instructions on f64; conversions of gfx950 to FP4 and FP6; mode registers (`s_setreg`,
//! `s_getreg`); stores in a row with loads, and rows of loads further back than LLVM looks, which matter with XNACK only;
//! shifts of 64 bits whose amount is in the last register of gfx90a; LDS-direct loads; rules of waves of 64 lanes on
//! gfx11, where the kernels use 32; calls, which `blocks` rejects.

mod cdna1;
mod gfx9;
mod rdna;
mod scalar_reads;

use super::code::Instruction;
use super::dataflow::Flow;
use super::family::Family;
use super::registers::{Access, Kernel, Unit};
use scalar_reads::ScalarReads;

/// The analysis of a kernel.
pub(crate) struct Hazards<'a> {
    pub(crate) kernel: &'a Kernel<'a>,
    /// An instruction to leave out.
    pub(crate) without: Option<usize>,
}

/// An earlier instruction that a later one may be too close to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Recent {
    at: usize,
    /// Wait states since, on CDNA; vector instructions since, on RDNA.
    distance: u8,
    /// Transcendental instructions since.
    n_transcendental: u8,
}

/// What is known between two instructions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct State {
    /// By `at`.
    recent: Vec<Recent>,
    scalar_reads: ScalarReads,
    /// Whether the last instruction was `s_nop`.
    after_nop: bool,
}

impl Flow for Hazards<'_> {
    type State = State;

    fn start(&self) -> State {
        State {
            recent: Vec::new(),
            scalar_reads: ScalarReads::default(),
            after_nop: false,
        }
    }

    fn join(&self, state: &mut State, other: &State) -> bool {
        let mut changed = state.after_nop && !other.after_nop;
        state.after_nop &= other.after_nop;
        changed |= state.scalar_reads.join(&other.scalar_reads);
        for new in &other.recent {
            match state
                .recent
                .binary_search_by_key(&new.at, |recent| recent.at)
            {
                Ok(found) => {
                    let old = &mut state.recent[found];
                    let nearer = Recent {
                        at: old.at,
                        distance: old.distance.min(new.distance),
                        n_transcendental: old.n_transcendental.min(new.n_transcendental),
                    };
                    changed |= *old != nearer;
                    *old = nearer;
                }
                Err(place) => {
                    state.recent.insert(place, *new);
                    changed = true;
                }
            }
        }
        changed
    }

    fn step(&self, at: usize, state: &mut State) -> Option<String> {
        if self.without == Some(at) {
            return None;
        }
        let finding = match self.kernel.family {
            Family::Rdna2 => None,
            Family::Vega20 | Family::Cdna1 | Family::Cdna2 | Family::Cdna3 | Family::Cdna4 => {
                self.step_gfx9(at, &mut state.recent)
            }
            Family::Rdna3 | Family::Rdna35 => self.step_rdna(at, &mut state.recent),
            Family::Rdna4 => {
                let scalar = self.step_scalar(at, &mut state.scalar_reads);
                self.step_rdna(at, &mut state.recent).or(scalar)
            }
        };
        let Instruction {
            mnemonic, operands, ..
        } = &self.kernel.code[at];
        let releases =
            mnemonic == "s_sendmsg" && operands.iter().any(|o| o.contains("MSG_DEALLOC_VGPRS"));
        let release = (releases && !state.after_nop)
            .then(|| format!("{} needs s_nop right before it", self.kernel.place(at)));
        state.after_nop = mnemonic == "s_nop";
        finding.or(release)
    }
}

impl Hazards<'_> {
    fn step_scalar(&self, at: usize, state: &mut ScalarReads) -> Option<String> {
        let Kernel { code, accesses, .. } = self.kernel;
        let early = state.step(&code[at], &accesses[at])?;
        Some(format!("{} reads {early}", self.kernel.place(at)))
    }

    /// Whether a wait has something to wait for: recent instructions, or scalar registers that were written.
    pub(crate) fn is_effective(&self, at: usize, state: &State) -> bool {
        let mut after = state.clone();
        let complete = Hazards {
            kernel: self.kernel,
            without: None,
        };
        complete.step(at, &mut after);
        after.after_nop = state.after_nop;
        after != *state
    }
}

/// Whether a vector instruction is transcendental, which a unit of its own executes.
fn is_transcendental(instruction: &Instruction) -> bool {
    let names = [
        "v_exp_", "v_log_", "v_rcp_", "v_rsq_", "v_sqrt_", "v_sin_", "v_cos_",
    ];
    names
        .iter()
        .any(|prefix| instruction.mnemonic.starts_with(prefix))
}

fn is_vector(access: &Access) -> bool {
    access.unit == Unit::Vector
}

fn is_vector_memory(access: &Access) -> bool {
    matches!(access.unit, Unit::Memory | Unit::Shared)
}

/// Whether a wait for the ALU, `s_wait_alu` or `s_waitcnt_depctr`, waits for a part such as `va_vdst` to finish.
fn waits_for(instruction: &Instruction, part: &str) -> bool {
    let waits = |word: &str| {
        let counter = word
            .strip_prefix("depctr_")
            .and_then(|word| word.strip_suffix("(0)"));
        counter == Some(part)
    };
    ["s_wait_alu", "s_waitcnt_depctr"].contains(&instruction.mnemonic.as_str())
        && instruction
            .operands
            .iter()
            .flat_map(|operand| operand.split_whitespace())
            .any(waits)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa_report::blocks::blocks;
    use crate::isa_report::code::code_of;
    use crate::isa_report::dataflow::findings;

    fn found(target: &str, lines: &[&str]) -> Vec<String> {
        let code = code_of(&[lines, &["s_endpgm"]].concat());
        let kernel = Kernel::new(target, &code).unwrap();
        let hazards = Hazards {
            kernel: &kernel,
            without: None,
        };
        findings(&hazards, &blocks(&code).unwrap())
    }

    /// `earlier` and `later` need at least `n` of `between` in between.
    fn check(target: &str, earlier: &[&str], (between, n): (&str, usize), later: &str) {
        for count in n.saturating_sub(1)..=n {
            let lines = [earlier, &vec![between; count], &[later]].concat();
            let found = found(target, &lines);
            assert_eq!(
                found.is_empty(),
                count == n,
                "{target} {lines:?}: {found:?}"
            );
        }
    }

    /// As `check`, with wait states in between.
    pub(super) fn check_states(target: &str, earlier: &[&str], n: usize, later: &str) {
        check(target, earlier, ("s_nop 0", n), later);
        if let Some(more) = n.checked_sub(1).filter(|_| n > 0) {
            let nop = format!("s_nop {more}");
            check(target, earlier, (&nop, 1), later);
        }
    }

    #[test]
    fn results_of_matrix_instructions_of_cdna2() {
        let gfx90a = |n, later| {
            let matrix = "v_mfma_f32_16x16x16f16 v[0:3], v[8:9], v[10:11], v[4:7]";
            check_states("gfx90a", &[matrix], n, later);
        };
        gfx90a(11, "v_add_f32_e32 v20, v20, v3");
        gfx90a(11, "v_mov_b32_e32 v3, 0");
        gfx90a(11, "global_store_dword v20, v3, s[0:1]");
        gfx90a(
            11,
            "v_mfma_f32_16x16x16f16 v[20:23], v[2:3], v[10:11], v[20:23]",
        );
        gfx90a(0, "v_mfma_f32_16x16x16f16 v[0:3], v[8:9], v[10:11], v[0:3]");
        gfx90a(
            8,
            "v_mfma_f32_16x16x16f16 v[20:23], v[8:9], v[10:11], v[2:5]",
        );
        gfx90a(7, "v_mov_b32_e32 v4, 0");
        gfx90a(0, "v_mov_b32_e32 v8, 0");
        gfx90a(0, "s_mov_b32 s0, 0");
        let matrix = "v_mfma_i32_32x32x8i8 a[0:15], v20, v21, a[0:15]";
        check_states("gfx90a", &[matrix], 19, "v_accvgpr_read_b32 v0, a15");
    }

    #[test]
    fn a_matrix_instruction_waits_for_the_last_one_that_wrote_what_it_reads() {
        let first = "v_mfma_f32_16x16x16f16 v[0:3], v[8:9], v[10:11], v[0:3]";
        let overwrites = "v_mfma_f32_16x16x16f16 v[2:5], v[8:9], v[10:11], v[0:3]";
        let later = "v_mfma_f32_16x16x16f16 v[2:5], v[8:9], v[10:11], v[2:5]";
        assert_eq!(found("gfx90a", &[first, overwrites, later]), [""; 0]);
        // A jump leaves it out.
        let jump = "s_cbranch_scc0 1@3";
        assert_eq!(found("gfx90a", &[first, jump, overwrites, later]).len(), 1);
    }

    #[test]
    fn results_of_matrix_instructions_of_cdna3() {
        let gfx942 = |matrix, n, later| check_states("gfx942", &[matrix], n, later);
        let add = "v_add_f32_e32 v20, v20, v3";
        gfx942(
            "v_mfma_f32_16x16x16_f16 v[0:3], v[8:9], v[10:11], 0",
            7,
            add,
        );
        gfx942("v_mfma_i32_16x16x32_i8 v[0:3], v[8:9], v[10:11], 0", 7, add);
        gfx942(
            "v_mfma_f32_32x32x8_f16 v[0:15], v[20:21], v[22:23], 0",
            11,
            add,
        );
        gfx942("v_mfma_f32_16x16x4_f32 v[0:3], v8, v10, 0", 10, add);
        let overlaps = "v_mfma_f32_16x16x16_f16 v[20:23], v[8:9], v[10:11], v[2:5]";
        gfx942(
            "v_mfma_f32_16x16x16_f16 v[0:3], v[8:9], v[10:11], 0",
            5,
            overlaps,
        );
        gfx942("v_mfma_f32_16x16x4_f32 v[0:3], v8, v10, 0", 0, overlaps);
        let overwrites_c = "v_mov_b32_e32 v4, 0";
        gfx942(
            "v_mfma_f32_16x16x16_f16 v[0:3], v[8:9], v[10:11], v[4:7]",
            3,
            overwrites_c,
        );
        for (n, load) in [
            (0, "global_load_dword v4, v20, s[0:1]"),
            (3, "ds_read_b32 v4, v20"),
        ] {
            let matrix = "v_mfma_f32_16x16x16_f16 v[0:3], v[8:9], v[10:11], v[4:7]";
            gfx942(matrix, n, load);
        }
        gfx942(
            "v_mfma_f32_16x16x4_f32 v[0:3], v8, v10, v[4:7]",
            0,
            overwrites_c,
        );
    }

    #[test]
    fn results_of_matrix_instructions_of_cdna4() {
        let gfx950 = |matrix, n, later| check_states("gfx950", &[matrix], n, later);
        let add = "v_add_f32_e32 v20, v20, v3";
        let matrix = "v_mfma_f32_16x16x32_f16 v[0:3], v[8:11], v[12:15], v[4:7]";
        gfx950(matrix, 8, add);
        gfx950(matrix, 8, "v_mov_b32_e32 v3, 0");
        gfx950(matrix, 8, "global_store_dword v20, v3, s[0:1]");
        gfx950(matrix, 3, "v_mov_b32_e32 v4, 0");
        let overlaps = "v_mfma_f32_16x16x32_f16 v[20:23], v[8:11], v[12:15], v[2:5]";
        gfx950(matrix, 6, overlaps);
        let reads_a = "v_mfma_f32_16x16x32_f16 v[20:23], v[0:3], v[12:15], v[20:23]";
        gfx950(matrix, 8, reads_a);
        let slow = "v_mfma_f32_16x16x4_f32 v[0:3], v8, v10, v[4:7]";
        gfx950(slow, 10, add);
        gfx950(slow, 0, overlaps);
        gfx950(
            "v_mfma_i32_32x32x16_i8 v[0:15], v[20:21], v[22:23], 0",
            12,
            add,
        );
        gfx950(
            "v_mfma_f32_4x4x4_16b_f16 v[0:3], v[8:9], v[10:11], 0",
            5,
            add,
        );
        let deepest = "v_mfma_f32_32x32x64_f8f6f4 v[0:15], v[20:27], v[28:35], 0";
        gfx950(deepest, 20, add);
    }

    #[test]
    fn lanes_are_exchanged_after_wait_states_on_cdna4() {
        let swap = "v_permlane32_swap_b32_e32 v0, v1";
        for write in ["v_mov_b32_e32 v0, v2", "v_mov_b32_e32 v1, v2"] {
            check_states("gfx950", &[write], 2, swap);
        }
        check_states("gfx950", &["v_cmpx_eq_u32_e32 vcc, 0, v9"], 4, swap);
    }

    #[test]
    fn wait_states_of_gfx906() {
        let check = |earlier, n, later| check_states("gfx906", &[earlier], n, later);
        let dpp = "v_mov_b32_dpp v1, v0 row_ror:8 row_mask:0xf bank_mask:0xf";
        check("v_mov_b32_e32 v0, v2", 2, dpp);
        check("v_cmpx_eq_u32_e32 vcc, 0, v5", 5, dpp);
        let divide = "v_div_fmas_f32 v0, v1, v2, v3";
        check("v_cmp_eq_u32_e32 vcc, 0, v5", 4, divide);
        check("v_readfirstlane_b32 s0, v5", 4, "v_readlane_b32 s2, v7, s0");
        let load = "global_load_dword v1, v2, s[0:1]";
        check("v_readfirstlane_b32 s0, v5", 5, load);
        let store = "global_store_dwordx4 v0, v[2:5], s[0:1]";
        check(store, 1, "v_mov_b32_e32 v5, 0");
        check("s_mov_b32 m0, s1", 1, "s_sendmsg sendmsg(MSG_INTERRUPT)");
        let address = "global_load_dwordx2 v[2:3], v[2:3], off";
        check(address, 1, "global_load_dword v4, v[2:3], off");
        // The hardware waits for these.
        check(
            "v_dot4_i32_i8 v1, v2, v3, v1",
            0,
            "v_add_u32_e32 v4, v4, v1",
        );
        check("v_exp_f32_e32 v0, v1", 0, "v_add_f32_e32 v2, v2, v0");
    }

    #[test]
    fn wait_states_after_vector_instructions_of_cdna() {
        for target in ["gfx90a", "gfx942", "gfx950"] {
            let check = |earlier, n, later| check_states(target, &[earlier], n, later);
            let dpp = "v_mov_b32_dpp v1, v0 row_ror:8 row_mask:0xf bank_mask:0xf";
            check("v_mov_b32_e32 v0, v2", 2, dpp);
            check("v_mov_b32_e32 v1, v2", 2, dpp);
            check("v_cmpx_eq_u32_e32 vcc, 0, v5", 5, dpp);
            check("v_mov_b32_e32 v3, v2", 0, dpp);
            check(
                "v_cmp_eq_u32_e32 vcc, 0, v5",
                4,
                "v_div_fmas_f32 v0, v1, v2, v3",
            );
            check("v_readfirstlane_b32 s0, v5", 4, "v_readlane_b32 s2, v7, s0");
            check(
                "v_readfirstlane_b32 s0, v5",
                5,
                "global_load_dword v1, v2, s[0:1]",
            );
            check("s_mov_b32 s0, 0", 0, "global_load_dword v1, v2, s[0:1]");
            check(
                "v_dot4c_i32_i8_e32 v1, v2, v3",
                3,
                "v_add_u32_e32 v4, v4, v1",
            );
            check(
                "v_dot4c_i32_i8_e32 v1, v2, v3",
                0,
                "v_dot4c_i32_i8_e32 v1, v4, v5",
            );
            check(
                "v_dot4c_i32_i8_e32 v1, v2, v3",
                3,
                "v_dot4c_i32_i8_e32 v4, v1, v5",
            );
            let matrix = match target {
                "gfx90a" => "v_mfma_f32_16x16x16f16 v[4:7], v[0:1], v[2:3], v[4:7]",
                _ => "v_mfma_f32_16x16x16_f16 v[4:7], v[0:1], v[2:3], v[4:7]",
            };
            check("v_mov_b32_e32 v5, 0", 2, matrix);
            check("v_cmpx_eq_u32_e32 vcc, 0, v9", 4, matrix);
            check("s_mov_b32 m0, s1", 1, "global_load_lds_dword v[0:1], off");
        }
    }

    #[test]
    fn wait_states_that_differ_between_cdna2_and_cdna3() {
        let check = |earlier, (cdna2, cdna3), later| {
            check_states("gfx90a", &[earlier], cdna2, later);
            check_states("gfx942", &[earlier], cdna3, later);
            check_states("gfx950", &[earlier], cdna3, later);
        };
        let store = "global_store_dwordx4 v0, v[2:5], s[0:1]";
        check(store, (1, 2), "v_mov_b32_e32 v5, 0");
        check(
            "global_store_dwordx2 v0, v[2:3], s[0:1]",
            (0, 0),
            "v_mov_b32_e32 v3, 0",
        );
        check(
            "v_cmp_eq_u32_e64 s[0:1], 0, v5",
            (0, 2),
            "v_cndmask_b32_e64 v0, v1, v2, s[0:1]",
        );
        check("v_exp_f32_e32 v0, v1", (0, 1), "v_add_f32_e32 v2, v2, v0");
        check("v_mov_b32_e32 v0, v1", (0, 1), "v_readfirstlane_b32 s0, v0");
        check(
            "v_cmpx_eq_u32_e32 vcc, 0, v9",
            (0, 4),
            "v_readfirstlane_b32 s0, v0",
        );
        let half =
            "v_cvt_f16_f32_sdwa v0, v1 dst_sel:WORD_1 dst_unused:UNUSED_PRESERVE src0_sel:DWORD";
        check(half, (0, 1), "v_add_f32_e32 v2, v2, v0");
        let half = "v_cvt_pk_fp8_f32 v0, v1, v2 op_sel:[0,0,1]";
        check(half, (0, 1), "v_add_f32_e32 v2, v2, v0");
        check(half, (0, 1), "v_mov_b32_e32 v0, v1");
        let packed = "v_pk_add_f32 v[0:1], v[2:3], v[4:5] op_sel:[0,1] op_sel_hi:[1,1]";
        check(packed, (0, 0), "v_add_f32_e32 v2, v2, v0");
    }

    #[test]
    fn memory_accesses_in_a_row_keep_their_addresses() {
        let load = "global_load_dword v4, v[2:3], off";
        let overwrites = "global_load_dwordx2 v[2:3], v[2:3], off";
        check_states("gfx90a", &[load], 1, overwrites);
        check_states("gfx942", &[overwrites], 1, load);
        check_states(
            "gfx942",
            &["s_load_dword s4, s[0:1], 0x0"],
            1,
            "s_load_dword s0, s[0:1], 0x4",
        );
        assert_eq!(found("gfx90a", &[overwrites]), Vec::<String>::new());
        assert_eq!(found("gfx1100", &[load, overwrites]), Vec::<String>::new());
    }

    #[test]
    fn a_transcendental_result_is_not_read_soon_on_gfx1100() {
        let (exp, add) = ("v_exp_f32_e32 v0, v1", "v_add_f32_e32 v2, v2, v0");
        check("gfx1100", &[exp], ("v_mov_b32_e32 v3, 0", 6), add);
        check("gfx1100", &[exp], ("v_rcp_f32_e32 v3, v4", 2), add);
        check(
            "gfx1100",
            &[exp],
            ("s_waitcnt_depctr depctr_va_vdst(0)", 1),
            add,
        );
        check("gfx1100", &[exp], ("ds_load_b32 v5, v6", 1), add);
        check(
            "gfx1100",
            &[exp],
            ("s_nop 7", 0),
            "v_add_f32_e32 v2, v2, v3",
        );
        for target in ["gfx1030", "gfx1151", "gfx1201"] {
            check(target, &[exp], ("s_nop 0", 0), add);
        }
    }

    #[test]
    fn a_matrix_result_is_not_the_next_input() {
        let wmma = "v_wmma_f32_16x16x16_f16 v[0:7], v[16:23], v[24:31], v[0:7]";
        let input = "v_wmma_f32_16x16x16_f16 v[32:39], v[0:7], v[24:31], v[32:39]";
        for target in ["gfx1100", "gfx1151", "gfx1201"] {
            check(target, &[wmma], ("v_nop", 1), input);
            check(target, &[wmma], ("v_nop", 0), wmma);
        }
        let sparse = "v_swmmac_f32_16x16x32_f16 v[32:39], v[40:43], v[44:51], v0";
        check("gfx1201", &[wmma], ("v_nop", 1), sparse);
    }

    #[test]
    fn v_permlane_after_v_cmpx_on_gfx11() {
        let compare = "v_cmpx_eq_u32_e32 0, v9";
        let swap = "v_permlanex16_b32 v1, v2, s0, s1";
        check("gfx1100", &[compare], ("v_mov_b32_e32 v2, v2", 1), swap);
        let nop = found("gfx1100", &[compare, "v_nop", swap]);
        assert_eq!(nop.len(), 1);
        check("gfx1030", &[compare], ("s_nop 0", 0), swap);
    }

    #[test]
    fn scalar_registers_that_vector_instructions_read_on_gfx12() {
        let read = "v_mov_b32_e32 v0, s4";
        let check = |lines: &[&str], wait, later: &str| check("gfx1201", lines, (wait, 1), later);
        // Registers count in pairs.
        for written in ["s_mov_b32 s4, 0", "s_mov_b32 s5, 0"] {
            let register = &written[10..12];
            let later = format!("s_add_co_u32 s7, {register}, s8");
            check(&[read, written], "s_wait_alu depctr_sa_sdst(0)", &later);
            check(&[read, written], "s_load_b32 s10, s[8:9], 0x0", &later);
        }
        let compare = "v_cmp_eq_u32_e64 s4, 0, v5";
        let select = "v_cndmask_b32_e64 v0, v1, v2, s4";
        check(&[read, compare], "s_wait_alu depctr_va_sdst(0)", select);
        let compare = "v_cmp_eq_u32_e32 vcc_lo, 0, v5";
        let select = "v_cndmask_b32_e32 v0, v1, v2, vcc_lo";
        check(&[select, compare], "s_wait_alu depctr_va_vcc(0)", select);
        let clean: &[&[&str]] = &[
            &["s_mov_b32 s4, 0", read],
            &[read, "s_mov_b32 s6, 0", "s_mov_b32 s7, s6"],
            // Scalar instructions wait for the vector unit.
            &[select, compare, "s_and_b32 s0, s0, vcc_lo", select],
        ];
        for lines in clean {
            assert_eq!(found("gfx1201", lines), Vec::<String>::new(), "{lines:?}");
        }
        assert_eq!(
            found("gfx1100", &[read, "s_mov_b32 s4, 0", read]),
            Vec::<String>::new()
        );
    }

    #[test]
    fn vector_registers_are_released_after_a_nop() {
        let release = "s_sendmsg sendmsg(MSG_DEALLOC_VGPRS)";
        for target in ["gfx1100", "gfx1201"] {
            check(target, &["s_mov_b32 s0, 0"], ("s_nop 0", 1), release);
        }
    }

    #[test]
    fn the_nearest_path_counts() {
        let lines = [
            "v_mov_b32_e32 v0, v2",
            "s_cbranch_scc1 @4",
            "s_nop 0",
            "s_nop 0",
            "v_mov_b32_dpp v1, v0 row_ror:8 row_mask:0xf bank_mask:0xf",
        ];
        assert_eq!(found("gfx90a", &lines).len(), 1);
        // The jump is a wait state.
        let lines = [&lines[..3], &["v_nop"], &lines[4..]].concat();
        assert_eq!(found("gfx90a", &lines).len(), 1);
    }
}
