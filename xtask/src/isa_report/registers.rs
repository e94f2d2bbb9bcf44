//! The registers that an instruction reads and writes, from its text in a listing. Names differ by generation; what is
//! the same register has one number here.

use super::code::Instruction;
use super::family::Family;
use super::scalar::writes_first;

/// Consecutive registers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Registers {
    pub(crate) first: u16,
    pub(crate) n: u16,
}

/// Numbers of registers: scalar ones from 0, vector ones from 256, those of the matrix unit from 512.
pub(crate) const COUNT: usize = 768;
pub(crate) const VCC: Registers = Registers { first: 106, n: 2 };
pub(crate) const M0: Registers = Registers { first: 124, n: 1 };
pub(crate) const EXEC: Registers = Registers { first: 126, n: 2 };
/// Stands for the shared memory of a block.
pub(crate) const SHARED: Registers = Registers { first: 128, n: 1 };
const TRAP: u16 = 108;
const VECTOR: u16 = 256;
const MATRIX: u16 = 512;

impl Registers {
    pub(crate) fn range(self) -> std::ops::Range<usize> {
        usize::from(self.first)..usize::from(self.first + self.n)
    }

    pub(crate) fn overlaps(self, other: Registers) -> bool {
        self.first < other.first + other.n && other.first < self.first + self.n
    }

    pub(crate) fn is_vector(self) -> bool {
        self.first >= VECTOR
    }

    /// Whether they are vector registers that are not of the matrix unit.
    pub(crate) fn is_plain_vector(self) -> bool {
        (VECTOR..MATRIX).contains(&self.first)
    }

    /// Whether they are scalar registers, VCC included.
    pub(crate) fn is_scalar(self) -> bool {
        self.first < M0.first
    }
}

/// Returns the name of a register, such as `v12`.
pub(crate) fn name(register: usize) -> String {
    let number = register as u16;
    match number {
        _ if number == SHARED.first => "shared memory".into(),
        106 => "vcc_lo".into(),
        107 => "vcc_hi".into(),
        124 => "m0".into(),
        126 => "exec_lo".into(),
        127 => "exec_hi".into(),
        _ if number < TRAP => format!("s{number}"),
        _ if number < VECTOR => format!("ttmp{}", number - TRAP),
        _ if number < MATRIX => format!("v{}", number - VECTOR),
        _ => format!("a{}", number - MATRIX),
    }
}

/// A kernel's code.
pub(crate) struct Kernel<'a> {
    pub(crate) family: Family,
    pub(crate) code: &'a [Instruction],
    /// Of each instruction.
    pub(crate) accesses: Vec<Access>,
}

impl<'a> Kernel<'a> {
    /// # Errors
    /// If the rules of the target are not known.
    pub(crate) fn new(target: &str, code: &'a [Instruction]) -> Result<Kernel<'a>, String> {
        Ok(Kernel {
            family: Family::of(target)?,
            code,
            accesses: code.iter().map(Access::of).collect(),
        })
    }

    /// Names an instruction and its address, for messages.
    pub(crate) fn place(&self, at: usize) -> String {
        let Instruction {
            mnemonic, address, ..
        } = &self.code[at];
        format!("{mnemonic} at {address:#x}")
    }
}

/// The part of a compute unit that executes an instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unit {
    Vector,
    Scalar,
    /// Scalar loads.
    ScalarMemory,
    /// Accesses of vector registers to global and scratch memory.
    Memory,
    Shared,
}

/// What an instruction reads and writes.
pub(crate) struct Access {
    pub(crate) unit: Unit,
    pub(crate) writes: Vec<Registers>,
    pub(crate) reads: Vec<Registers>,
}

impl Access {
    /// Returns the accesses of an instruction.
    pub(crate) fn of(instruction: &Instruction) -> Access {
        let name = instruction.mnemonic.as_str();
        let mut access = Access {
            unit: unit(name),
            writes: Vec::new(),
            reads: Vec::new(),
        };
        // Two instructions in one: `v_dual_mov_b32 v1, v2 :: v_dual_mul_f32 v3, v4, v5`.
        let second = instruction.operands.iter().position(|o| o.contains("::"));
        let (first, second) = match second {
            Some(at) if name.starts_with("v_dual_") => {
                let (last, rest) = instruction.operands[at]
                    .split_once("::")
                    .unwrap_or_default();
                let (name, operand) = rest.trim().split_once(' ').unwrap_or_default();
                access.add(name, operand, &instruction.operands[at + 1..]);
                (&instruction.operands[..at], Some(last))
            }
            _ => (instruction.operands.as_slice(), None),
        };
        let (head, tail) = first
            .split_first()
            .map_or(("", first), |(h, t)| (h.as_str(), t));
        access.add(name, head, tail);
        access.reads.extend(second.and_then(parse));
        access
    }

    fn add(&mut self, name: &str, head: &str, tail: &[String]) {
        let n_written = n_written(name, head, tail);
        let is_read_too = reads_what_it_writes(name);
        for (at, operand) in [head]
            .into_iter()
            .chain(tail.iter().map(String::as_str))
            .enumerate()
        {
            let Some(registers) = parse(operand) else {
                continue;
            };
            if at < n_written {
                self.writes.push(registers);
            }
            if at >= n_written || is_read_too {
                self.reads.push(registers);
            }
        }
        if name.starts_with("v_cmpx") || name.contains("_saveexec_") {
            self.writes.push(EXEC);
        }
        let reads_vcc = ["v_div_fmas", "v_dual_cndmask", "s_cbranch_vcc"];
        if reads_vcc.iter().any(|prefix| name.starts_with(prefix)) {
            self.reads.push(VCC);
        }
    }

    pub(crate) fn has_read(&self, of: &[Registers]) -> bool {
        self.reads.iter().any(|r| of.iter().any(|w| r.overlaps(*w)))
    }

    pub(crate) fn writes_any(&self, of: Registers) -> bool {
        self.writes.iter().any(|w| w.overlaps(of))
    }
}

fn unit(name: &str) -> Unit {
    let scalar_memory = [
        "s_load_",
        "s_buffer_load_",
        "s_store_",
        "s_memtime",
        "s_memrealtime",
        "s_dcache_",
        "s_prefetch_",
    ];
    let memory = [
        "global_", "flat_", "scratch_", "buffer_", "tbuffer_", "image_",
    ];
    if name.starts_with("v_") {
        Unit::Vector
    } else if name.starts_with("ds_") {
        Unit::Shared
    } else if scalar_memory.iter().any(|prefix| name.starts_with(prefix)) {
        Unit::ScalarMemory
    } else if memory.iter().any(|prefix| name.starts_with(prefix)) {
        Unit::Memory
    } else {
        Unit::Scalar
    }
}

/// Returns how many of the first operands are written.
fn n_written(name: &str, head: &str, tail: &[String]) -> usize {
    let has = |parts: &[&str]| parts.iter().any(|part| name.contains(part));
    let starts = |starts: &[&str]| starts.iter().any(|start| name.starts_with(start));
    let modifiers = tail.last().map_or(head, String::as_str);
    match unit(name) {
        Unit::Vector if name == "v_nop" || name.starts_with("v_nop_") => 0,
        // Older generations also write a scalar register.
        Unit::Vector if name.starts_with("v_cmpx") => usize::from(tail.len() >= 2),
        Unit::Vector
            if has(&["_co_", "_swap_"]) || starts(&["v_div_scale", "v_mad_u64", "v_mad_i64"]) =>
        {
            2
        }
        Unit::Vector => 1,
        Unit::Scalar => usize::from(writes_first(name) || name.starts_with("s_sendmsg_rtn")),
        Unit::ScalarMemory => usize::from(has(&["_load_", "_memtime", "_memrealtime"])),
        Unit::Memory if has(&["_atomic_"]) => {
            let returns = ["glc", "sc0", "th:TH_ATOMIC_RETURN"];
            usize::from(
                modifiers
                    .split_whitespace()
                    .any(|word| returns.contains(&word)),
            )
        }
        Unit::Memory => usize::from(has(&["_load_"]) && !loads_to_shared(name, modifiers)),
        Unit::Shared => {
            let returns = [
                "read", "load", "permute", "swizzle", "_rtn", "consume", "append",
            ];
            usize::from(has(&returns))
        }
    }
}

/// Whether a load from global memory goes to shared memory.
pub(crate) fn loads_to_shared(name: &str, modifiers: &str) -> bool {
    name.starts_with("global_load_lds_") || modifiers.split_whitespace().any(|word| word == "lds")
}

fn reads_what_it_writes(name: &str) -> bool {
    let starts = [
        "v_fmac_",
        "v_pk_fmac_",
        "v_dual_fmac_",
        "v_mac_",
        "v_writelane",
        "s_addk_",
        "s_mulk_",
        "s_fmac_",
        "s_bitset",
        "s_cmov",
    ];
    let is_accumulating_dot = name.starts_with("v_dot") && name.contains("c_");
    // `v_swap_b32`, and `v_permlane32_swap_b32` of gfx950.
    let swaps = name.starts_with("v_") && name.contains("_swap");
    is_accumulating_dot || swaps || starts.iter().any(|start| name.starts_with(start))
}

/// Parses an operand, possibly followed by modifiers.
pub(crate) fn parse(operand: &str) -> Option<Registers> {
    let word = operand.split_whitespace().next()?;
    let word = word.trim_start_matches(['-', '|']).trim_end_matches('|');
    let word = match word.split_once('(') {
        Some(("abs" | "neg" | "sext", inner)) => inner.trim_end_matches(')'),
        _ => word,
    };
    // Halves of a register.
    let word = word
        .strip_suffix(".l")
        .or(word.strip_suffix(".h"))
        .unwrap_or(word);
    let one = |first| Some(Registers { first, n: 1 });
    match word {
        "vcc" => return Some(VCC),
        "vcc_lo" => return one(VCC.first),
        "vcc_hi" => return one(VCC.first + 1),
        "exec" => return Some(EXEC),
        "exec_lo" => return one(EXEC.first),
        "exec_hi" => return one(EXEC.first + 1),
        "m0" => return Some(M0),
        _ => {}
    }
    let (base, rest) = match word.strip_prefix("ttmp") {
        Some(rest) => (TRAP, rest),
        None => match word.as_bytes().first()? {
            b's' => (0, &word[1..]),
            b'v' => (VECTOR, &word[1..]),
            b'a' => (MATRIX, &word[1..]),
            _ => return None,
        },
    };
    let number = |digits: &str| digits.parse::<u8>().ok().map(u16::from);
    let range = rest
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'));
    let (first, last) = match range.map(|range| range.split_once(':').unwrap_or((range, range))) {
        Some((first, last)) => (number(first)?, number(last)?),
        None => (number(rest)?, number(rest)?),
    };
    Some(Registers {
        first: base + first,
        n: last.checked_sub(first)? + 1,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa_report::code::code_of;

    fn check(line: &str, unit: Unit, writes: &[&str], reads: &[&str]) {
        let code = code_of(&[line]);
        let access = Access::of(&code[0]);
        let parse_all = |names: &[&str]| -> Vec<Registers> {
            names.iter().map(|name| parse(name).unwrap()).collect()
        };
        assert_eq!(access.unit, unit, "{line}");
        assert_eq!(access.writes, parse_all(writes), "{line}");
        assert_eq!(access.reads, parse_all(reads), "{line}");
    }

    #[test]
    fn reads_and_writes_of_vector_instructions() {
        let check =
            |line, writes: &[&str], reads: &[&str]| check(line, Unit::Vector, writes, reads);
        check("v_fma_f32 v1, -v2, |s3|, 1.0", &["v1"], &["v2", "s3"]);
        check("v_fmac_f32_e32 v1, v2, v3", &["v1"], &["v1", "v2", "v3"]);
        check(
            "v_fma_mix_f32 v1, v2, v3, v4 op_sel:[0,1,0] op_sel_hi:[1,1,0]",
            &["v1"],
            &["v2", "v3", "v4"],
        );
        check(
            "v_cmp_gt_u32_e64 s[2:3], v0, s7",
            &["s[2:3]"],
            &["v0", "s7"],
        );
        check("v_cmpx_gt_u32_e64 s7, v0", &["exec"], &["s7", "v0"]);
        check(
            "v_cmpx_gt_u32_e32 vcc, s7, v0",
            &["vcc", "exec"],
            &["s7", "v0"],
        );
        check(
            "v_add_co_ci_u32_e64 v2, null, s1, 0, s0",
            &["v2"],
            &["s1", "s0"],
        );
        check(
            "v_mad_u64_u32 v[2:3], s[8:9], v6, s30, v[4:5]",
            &["v[2:3]", "s[8:9]"],
            &["v6", "s30", "v[4:5]"],
        );
        check(
            "v_div_fmas_f32 v1, v2, v3, v4",
            &["v1"],
            &["v2", "v3", "v4", "vcc"],
        );
        check("v_readlane_b32 s4, v66, s5", &["s4"], &["v66", "s5"]);
        check("v_accvgpr_read_b32 v118, a17", &["v118"], &["a17"]);
        check(
            "v_mov_b16_e64 v142.h, v1.l op_sel:[0,1]",
            &["v142"],
            &["v1"],
        );
        check(
            "v_dual_cndmask_b32 v15, v34, v29 :: v_dual_fmac_f32 v26, s1, v14",
            &["v26", "v15"],
            &["v26", "s1", "v14", "v34", "vcc", "v29"],
        );
        check("v_nop", &[], &[]);
    }

    #[test]
    fn reads_and_writes_of_scalar_instructions() {
        let check =
            |line, writes: &[&str], reads: &[&str]| check(line, Unit::Scalar, writes, reads);
        check("s_add_u32 s1, s2, ttmp9", &["s1"], &["s2", "ttmp9"]);
        check("s_cmp_lt_u32 s1, s2", &[], &["s1", "s2"]);
        check("s_cmpk_lt_u32 s1, 0x204", &[], &["s1"]);
        check("s_addk_i32 s1, 0x80", &["s1"], &["s1"]);
        check(
            "s_and_saveexec_b64 s[2:3], vcc",
            &["s[2:3]", "exec"],
            &["vcc"],
        );
        check("s_cbranch_vccnz 7 @0", &[], &["vcc"]);
        check("s_mov_b32 m0, s1", &["m0"], &["s1"]);
        check(
            "s_sendmsg_rtn_b64 s[0:1], sendmsg(MSG_RTN_GET_REALTIME)",
            &["s[0:1]"],
            &[],
        );
    }

    #[test]
    fn reads_and_writes_of_memory_instructions() {
        check(
            "global_load_dwordx4 v[2:5], v[2:3], off offset:3072",
            Unit::Memory,
            &["v[2:5]"],
            &["v[2:3]"],
        );
        check(
            "global_store_b64 v0, v[2:3], s[0:1]",
            Unit::Memory,
            &[],
            &["v0", "v[2:3]", "s[0:1]"],
        );
        check(
            "global_load_lds_dword v[0:1], off",
            Unit::Memory,
            &[],
            &["v[0:1]"],
        );
        check(
            "s_load_b128 s[4:7], s[0:1], s2",
            Unit::ScalarMemory,
            &["s[4:7]"],
            &["s[0:1]", "s2"],
        );
        check(
            "ds_bpermute_b32 v1, v2, v3",
            Unit::Shared,
            &["v1"],
            &["v2", "v3"],
        );
        check(
            "ds_write2_b32 v1, v2, v3 offset1:1",
            Unit::Shared,
            &[],
            &["v1", "v2", "v3"],
        );
    }

    #[test]
    fn names_parse_back() {
        for text in [
            "s5", "vcc_lo", "vcc_hi", "ttmp9", "m0", "exec_lo", "v255", "a7",
        ] {
            let registers = parse(text).unwrap();
            assert_eq!(name(registers.first.into()), text);
        }
        for text in [
            "null",
            "0",
            "off",
            "src_scc",
            "sendmsg(1)",
            "vmcnt(0)",
            "1.0",
            "row_mask:0xf",
            "",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
