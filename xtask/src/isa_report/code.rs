//! Parses the output of `llvm-objdump -d` for AMD into kernels and instructions with their jump targets.

use std::collections::BTreeMap;

/// A machine instruction.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Instruction {
    pub(crate) address: u64,
    pub(crate) mnemonic: String,
    /// As printed; the last one includes modifiers, such as `off offset:16`.
    pub(crate) operands: Vec<String>,
    /// The target of a branch.
    pub(crate) target: Option<u64>,
}

/// The code of a kernel, by ascending address.
pub(crate) struct Code {
    pub(crate) name: String,
    pub(crate) instructions: Vec<Instruction>,
}

/// Returns the kernels of an object's disassembly.
pub(crate) fn parse(text: &str) -> Vec<Code> {
    let mut kernels: Vec<Code> = Vec::new();
    let mut starts = BTreeMap::new();
    // Jumps name a symbol and an offset. Symbols may come later, so jumps are resolved at the end.
    let mut jumps: Vec<(usize, usize, String)> = Vec::new();
    for line in text.lines() {
        if let Some((address, name)) = label(line) {
            starts.insert(name.to_owned(), address);
            kernels.push(Code {
                name: name.into(),
                instructions: Vec::new(),
            });
        } else if let (Some(kernel), Some((instruction, jump))) =
            (kernels.len().checked_sub(1), instruction(line))
        {
            let instructions = &mut kernels[kernel].instructions;
            if let Some(jump) = jump {
                jumps.push((kernel, instructions.len(), jump));
            }
            instructions.push(instruction);
        }
    }
    for (kernel, at, jump) in jumps {
        let (symbol, distance) = match jump.split_once("+0x") {
            Some((symbol, hex)) => (symbol, u64::from_str_radix(hex, 16).ok()),
            None => (jump.as_str(), Some(0)),
        };
        kernels[kernel].instructions[at].target = starts
            .get(symbol)
            .zip(distance)
            .map(|(start, distance)| start + distance);
    }
    kernels
}

/// Parses `0000000000001600 <argmax>:`.
fn label(line: &str) -> Option<(u64, &str)> {
    let (address, name) = line.strip_suffix(">:")?.split_once(" <")?;
    Some((u64::from_str_radix(address, 16).ok()?, name))
}

/// Parses `\ts_cbranch_execz 454    // 000000001648: BFA501C6 <argmax+0x764>` into an instruction and its jump.
fn instruction(line: &str) -> Option<(Instruction, Option<String>)> {
    let (code, comment) = line.strip_prefix('\t')?.split_once("//")?;
    let (address, rest) = comment.trim().split_once(':')?;
    let code = code.trim();
    let (mnemonic, operands) = code.split_once(' ').unwrap_or((code, ""));
    let operands = operands
        .split(',')
        .map(str::trim)
        .filter(|operand| !operand.is_empty())
        .map(String::from)
        .collect();
    let jump = rest
        .split_once('<')
        .and_then(|(_, symbol)| symbol.strip_suffix('>'));
    let instruction = Instruction {
        address: u64::from_str_radix(address, 16).ok()?,
        mnemonic: mnemonic.into(),
        operands,
        target: None,
    };
    let jump = jump.filter(|_| instruction.is_branch());
    let jump = jump.map(String::from);
    Some((instruction, jump))
}

impl Instruction {
    /// Whether it reads other lanes, which must be on: under a narrowed EXEC it reads stale values.
    pub(crate) fn is_collective(&self) -> bool {
        let name = self.mnemonic.as_str();
        let lds = ["ds_bpermute", "ds_permute", "ds_swizzle"];
        name.starts_with("v_permlane")
            || name.contains("_dpp")
            || lds.iter().any(|prefix| name.starts_with(prefix))
            || self.is_matrix()
    }

    /// Whether another instruction than the next one may follow.
    pub(crate) fn is_branch(&self) -> bool {
        self.mnemonic.contains("branch")
    }

    /// Whether it runs on the matrix unit.
    pub(crate) fn is_matrix(&self) -> bool {
        ["v_wmma", "v_swmmac", "v_mfma", "v_smfmac"]
            .iter()
            .any(|prefix| self.mnemonic.starts_with(prefix))
    }

    pub(crate) fn is_dot(&self) -> bool {
        self.mnemonic.starts_with("v_dot")
    }

    /// Whether it may access scratch memory: directly, by a flat address, or by a buffer on targets without scratch
    /// instructions. The kernels use buffers for nothing else.
    pub(crate) fn is_flat_or_scratch(&self) -> bool {
        ["flat_", "scratch_"]
            .iter()
            .any(|prefix| self.mnemonic.starts_with(prefix))
            || self.mnemonic.starts_with("buffer_load_")
            || self.mnemonic.starts_with("buffer_store_")
    }

    /// Whether its load is marked non-temporal (streamed).
    pub(crate) fn is_streamed(&self) -> bool {
        let modifiers = self.operands.last().map_or("", String::as_str);
        modifiers
            .split_whitespace()
            .any(|word| ["slc", "nt", "th:TH_LOAD_NT"].contains(&word))
    }

    /// Bytes loaded per lane from global memory; `None` if it is no such load.
    pub(crate) fn loaded_bytes(&self) -> Option<u64> {
        let width = self.mnemonic.strip_prefix("global_load_")?;
        let width = width.strip_prefix("lds_").unwrap_or(width);
        Some(match width.split('_').next().unwrap_or(width) {
            "b128" | "dwordx4" => 16,
            "b96" | "dwordx3" => 12,
            "b64" | "dwordx2" => 8,
            "b32" | "dword" => 4,
            "u16" | "i16" | "ushort" | "sshort" | "short" => 2,
            // Loads into half a register: `d16_b16`, `d16_hi_b16`; of a byte `d16_u8`.
            "d16" if width.ends_with("b16") => 2,
            _ => 1,
        })
    }
}

/// Returns a kernel at address 0 with an instruction every 4 bytes; `@N` jumps to the N-th.
#[cfg(test)]
pub(crate) fn code_of(lines: &[&str]) -> Vec<Instruction> {
    let mut text = String::from("0000000000000000 <k>:\n");
    for (at, line) in lines.iter().enumerate() {
        let (line, jump) = line.split_once('@').unwrap_or((line, ""));
        let jump = jump
            .parse::<usize>()
            .map_or(String::new(), |to| format!(" <k+{:#x}>", to * 4));
        text += &format!("\t{line} // {:012X}: 00000000{jump}\n", at * 4);
    }
    parse(&text).remove(0).instructions
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_a_listing() {
        let text = "\nDisassembly of section .text:\n\n0000000000001600 <first>:\n\
            \ts_load_b64 s[10:11], s[0:1], 0x10                          // 000000001604: F4040280 F8000010\n\
            \tglobal_load_b128 v[9:12], v[9:10], off offset:32 slc dlc   // 00000000160C: DC5E0000 097C0009\n\
            \ts_cbranch_execz 65534                                      // 000000001614: BFA501C6 <first+0xc>\n\
            \ts_endpgm                                                   // 000000001618: BFB00000\n\n\
            0000000000001700 <second>:\n\
            \ts_branch 3                                                 // 000000001700: BFA00003 <second>\n";
        let kernels = parse(text);
        assert_eq!(kernels.len(), 2);
        let first = &kernels[0];
        assert_eq!(
            (first.name.as_str(), first.instructions.len()),
            ("first", 4)
        );
        let load = &first.instructions[1];
        assert_eq!(load.address, 0x160c);
        assert_eq!(
            load.operands,
            ["v[9:12]", "v[9:10]", "off offset:32 slc dlc"]
        );
        assert_eq!((load.loaded_bytes(), load.is_streamed()), (Some(16), true));
        assert_eq!(first.instructions[2].target, Some(0x160c));
        assert_eq!(kernels[1].instructions[0].target, Some(0x1700));
    }

    #[test]
    fn reads_load_widths_of_every_generation() {
        let cases = [
            ("global_load_dwordx4", Some(16)),
            ("global_load_b96", Some(12)),
            ("global_load_dwordx2", Some(8)),
            ("global_load_b32", Some(4)),
            ("global_load_ushort", Some(2)),
            ("global_load_u16", Some(2)),
            ("global_load_short_d16_hi", Some(2)),
            ("global_load_d16_b16", Some(2)),
            ("global_load_d16_hi_b16", Some(2)),
            ("global_load_d16_u8", Some(1)),
            ("global_load_ubyte", Some(1)),
            ("global_store_dword", None),
            ("ds_read_b128", None),
        ];
        for (mnemonic, bytes) in cases {
            let instruction = Instruction {
                address: 0,
                mnemonic: mnemonic.into(),
                operands: Vec::new(),
                target: None,
            };
            assert_eq!(instruction.loaded_bytes(), bytes, "{mnemonic}");
        }
    }
}
