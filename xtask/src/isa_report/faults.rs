//! Faults that a kernel must not have, and the exceptions.

use super::blocks::Block;
use super::code::Instruction;
use super::dataflow;
use super::hazards::Hazards;
use super::metadata::Metadata;
use super::registers::Kernel;
use super::waits::Waits;

/// A kind of fault in a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fault {
    /// Spilled vector registers.
    VectorSpill,
    /// Spilled scalar registers.
    ScalarSpill,
    /// Scratch memory, or instructions that could access it.
    Scratch,
    /// A collective instruction under a narrowed EXEC.
    Narrowed,
    /// Code for gfx12 of a compiler that omits waits (LLVM pull request 100067).
    NoAluWait,
    /// A register that is used, or a barrier that is passed, before a memory access has returned.
    MissingWait,
    /// Instructions that need others in between, since the hardware does not keep them apart.
    Hazard,
    /// `v_cvt_pk_f32_fp8` or `_bf8` on gfx12, where it is unreliable (SWDEV-532959; `kv_codes.h`).
    PackedFromFp8,
}

/// A kernel for gfx12 with at least this many instructions has places that need `s_wait_alu`: the fewest are 4, in 192.
const INSTRUCTIONS_WITH_WAIT: usize = 128;

/// A fault that is accepted in a kernel, and why.
struct Exception {
    module: &'static str,
    kernel: &'static str,
    fault: Fault,
    #[expect(dead_code, reason = "documentation")]
    reason: &'static str,
}

const EXCEPTIONS: &[Exception] = &[
    Exception {
        module: "gemv",
        kernel: "gemv_2_8",
        fault: Fault::ScalarSpill,
        reason: "on gfx942 the addresses of eight rows are kept in lanes of a vector register during the loop",
    },
    Exception {
        module: "gemv",
        kernel: "gemv_listed_2_8",
        fault: Fault::ScalarSpill,
        reason: "as gemv_2_8: one to three addresses, with Q3_K and Q6_K",
    },
    Exception {
        module: "gemv",
        kernel: "gemv_tiled_2_4",
        fault: Fault::ScalarSpill,
        reason: "as gemv_2_8, on gfx90a: one to nine addresses, with Q3_K and Q6_K",
    },
    Exception {
        module: "attention_decode.F8E4M3",
        kernel: "decode_512_4",
        fault: Fault::ScalarSpill,
        reason: "on gfx90a four scalars are kept in lanes of a vector register; the vector registers suffice",
    },
    Exception {
        module: "attention_decode.Q5_1",
        kernel: "decode_512_4",
        fault: Fault::ScalarSpill,
        reason: "as attention_decode.F8E4M3",
    },
];

/// Whether the fault is excepted. `module` may include its format.
pub(crate) fn is_excepted(module: &str, kernel: &str, fault: Fault) -> bool {
    let file = module.split('.').next().unwrap_or(module);
    EXCEPTIONS
        .iter()
        .any(|e| (e.module == module || e.module == file) && e.kernel == kernel && e.fault == fault)
}

/// Returns the faults of a kernel, each kind once, with the evidence. `whole` has for each instruction whether it runs
/// with all lanes on.
pub(crate) fn of(
    kernel: &Kernel,
    blocks: &[Block],
    whole: &[Option<bool>],
    metadata: &Metadata,
) -> Vec<(Fault, String)> {
    let Kernel { target, code, .. } = kernel;
    let mut faults = Vec::new();
    let spills = [
        (Fault::VectorSpill, metadata.vector_spills, "vector"),
        (Fault::ScalarSpill, metadata.scalar_spills, "scalar"),
    ];
    for (fault, n, kind) in spills {
        if n > 0 {
            faults.push((fault, format!("spills {n} {kind} registers")));
        }
    }
    if metadata.scratch_bytes > 0 {
        let bytes = metadata.scratch_bytes;
        faults.push((
            Fault::Scratch,
            format!("uses {bytes} bytes of scratch memory per lane"),
        ));
    }
    let reached = || code.iter().zip(whole).filter(|(_, whole)| whole.is_some());
    let listed = |of: Vec<&Instruction>| {
        let first = of.first()?;
        Some(format!(
            "{} at {:#x} ({} in all)",
            first.mnemonic,
            first.address,
            of.len()
        ))
    };
    let flat = reached()
        .filter(|(i, _)| i.is_flat_or_scratch())
        .map(|(i, _)| i);
    if let Some(list) = listed(flat.collect()) {
        faults.push((
            Fault::Scratch,
            format!("may access scratch memory by {list}"),
        ));
    }
    let narrowed = reached().filter(|(i, whole)| i.is_collective() && **whole == Some(false));
    if let Some(list) = listed(narrowed.map(|(i, _)| i).collect()) {
        faults.push((Fault::Narrowed, format!("lanes may be off at {list}")));
    }
    let without = None;
    let early = dataflow::findings(&Waits { kernel, without }, blocks);
    let near = dataflow::findings(&Hazards { kernel, without }, blocks);
    for (fault, findings) in [(Fault::MissingWait, early), (Fault::Hazard, near)] {
        if let Some(first) = findings.first() {
            faults.push((fault, format!("{first} ({} in all)", findings.len())));
        }
    }
    if target.starts_with("gfx12") {
        let n = reached().count();
        if n >= INSTRUCTIONS_WITH_WAIT && !reached().any(|(i, _)| i.mnemonic == "s_wait_alu") {
            let what = format!("has no s_wait_alu in {n} instructions");
            faults.push((Fault::NoAluWait, what));
        }
        let packed = reached().filter(|(i, _)| i.mnemonic.starts_with("v_cvt_pk_f32_"));
        if let Some(list) = listed(packed.map(|(i, _)| i).collect()) {
            faults.push((Fault::PackedFromFp8, format!("converts by {list}")));
        }
    }
    faults
}
