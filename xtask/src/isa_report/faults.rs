//! Faults that a kernel must not have, and the exceptions.

use super::blocks::Block;
use super::code::Instruction;
use super::dataflow;
use super::family::Family;
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
    /// Attention of few rows on CDNA whose registers leave room for one wave per SIMD: nothing runs while it waits for
    /// the cache of keys and values.
    OneWave,
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

/// The most vector registers of a lane with which a SIMD of CDNA 2 and later holds two waves.
const REGISTERS_OF_TWO_WAVES: u64 = 256;

/// A fault that is accepted in a kernel, and why.
struct Exception {
    fault: Fault,
    /// Each of these modules has each of these kernels for each of these targets with the fault.
    modules: &'static [&'static str],
    kernels: &'static [&'static str],
    targets: &'static [&'static str],
    #[expect(dead_code, reason = "documentation")]
    reason: &'static str,
}

const EXCEPTIONS: &[Exception] = &[
    Exception {
        fault: Fault::ScalarSpill,
        modules: &["gemv.Q3_K", "gemv.Q6_K", "gemv.IQ1_M"],
        kernels: &["gemv_2_8", "gemv_listed_2_8"],
        targets: &["gfx942", "gfx950"],
        reason: "two to five addresses of eight rows are kept in lanes of a vector register during the loop",
    },
    Exception {
        fault: Fault::ScalarSpill,
        modules: &["gemv.IQ1_S"],
        kernels: &["gemv_2_8"],
        targets: &["gfx942", "gfx950"],
        reason: "as gemv.Q3_K",
    },
    Exception {
        fault: Fault::ScalarSpill,
        modules: &["gemv.Q6_K", "gemv.IQ1_M"],
        kernels: &["gemv_tiled_2_4"],
        targets: &["gfx906", "gfx908", "gfx90a"],
        reason: "as gemv.Q3_K: one address",
    },
    Exception {
        fault: Fault::ScalarSpill,
        modules: &["attention_decode.F8E4M3"],
        kernels: &["decode_512_4"],
        targets: &["gfx90a", "gfx950"],
        reason: "up to four scalars are kept in lanes of a vector register; the vector registers suffice",
    },
    Exception {
        fault: Fault::ScalarSpill,
        modules: &["attention_decode.Q5_1"],
        kernels: &["decode_512_4"],
        targets: &["gfx90a"],
        reason: "as attention_decode.F8E4M3",
    },
    Exception {
        fault: Fault::OneWave,
        modules: &["attention_decode.Q5_1"],
        kernels: &[
            "decode_64_4",
            "decode_64_8",
            "decode_80_4",
            "decode_80_8",
            "decode_96_4",
            "decode_96_8",
            "decode_128_4",
            "decode_128_8",
            "decode_256_4",
            "decode_256_8",
        ],
        targets: &["gfx90a", "gfx942", "gfx950"],
        reason: "260 to 281 registers, since codes have 5 bits and minimums; few use this type",
    },
    Exception {
        fault: Fault::OneWave,
        modules: &["attention_decode.F16"],
        kernels: &["decode_256_8"],
        targets: &["gfx950"],
        reason: "258 registers; gfx942 has 256",
    },
];

/// Whether the fault is excepted.
pub(crate) fn is_excepted(module: &str, kernel: &str, target: &str, fault: Fault) -> bool {
    excepted(module, kernel, target).any(|excepted| excepted == fault)
}

/// Returns the faults that are accepted in a kernel.
pub(crate) fn excepted(module: &str, kernel: &str, target: &str) -> impl Iterator<Item = Fault> {
    let of_kernel = EXCEPTIONS.iter().filter(move |e| {
        e.modules.contains(&module) && e.kernels.contains(&kernel) && e.targets.contains(&target)
    });
    of_kernel.map(|e| e.fault)
}

/// Returns the faults of a kernel, each kind once, with the evidence. `whole` has for each instruction whether it runs
/// with all lanes on.
pub(crate) fn of(
    name: &str,
    kernel: &Kernel,
    blocks: &[Block],
    whole: &[Option<bool>],
    metadata: &Metadata,
) -> Vec<(Fault, String)> {
    let Kernel { family, code, .. } = kernel;
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
    let is_large = metadata.vgprs > REGISTERS_OF_TWO_WAVES;
    if name.starts_with("decode_") && family.has_one_register_file() && is_large {
        let n = metadata.vgprs;
        faults.push((
            Fault::OneWave,
            format!("has {n} vector registers, so one wave per SIMD"),
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
    if *family == Family::Rdna4 {
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
