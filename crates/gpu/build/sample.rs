//! What CI leaves out, to save time. `.ci/run --full`, releases and every other list of targets have all modules.
//!
//! In every format, `kernels/quant.h` unpacks codes with the same integer operations on all GPUs. What differs by GPU are
//! the products, which a few formats show. A new format is left out for most GPUs until it is listed here.

use crate::modules::Module;
use crate::targets::is_emulated;

/// Formats of weights and types of the KV cache that CI compiles for a GPU.
struct Sample {
    formats: &'static [&'static str],
    caches: &'static [&'static str],
}

/// Floats, codes with and without minimums, and in groups of 16, among them the formats of the built-in model; of the cache also
/// FP8, which these GPUs have instructions of their own for.
const FEW: Sample = Sample {
    formats: &["F32", "F16", "Q8_0", "Q4_K", "Q6_K"],
    caches: &["F16", "F8E4M3"],
};

/// Also other widths, and codes of a table.
const MOST: Sample = Sample {
    formats: &[
        "F32", "F16", "BF16", "Q4_0", "Q8_0", "Q2_K", "Q4_K", "Q6_K", "MXFP4",
    ],
    caches: &["F16", "Q8_0", "Q4_0", "F8E4M3"],
};

/// The sample for a GPU; `None` for all modules.
fn sample(target: &str) -> Option<Sample> {
    match target {
        // The emulated GPU of tests of models, and of kernels in what the others lack.
        "host-quick" => None,
        // Emulated GPUs of AMD and NVIDIA with matrix units, which check memory accesses.
        "host-gfx11" | "host-nv" => Some(MOST),
        // Other units and waves, and the compiler's code for real GPUs.
        _ => Some(FEW),
    }
}

/// Whether CI leaves a module out for a target.
pub(crate) fn is_left_out(module: &Module, target: &str) -> bool {
    let (Some((name, value)), Some(sample)) = (module.name.split_once('.'), sample(target)) else {
        return false;
    };
    let values = match name {
        "attention_decode" | "attention_prefill" | "kv_halves" => sample.caches,
        // Small, and compared in all types on every emulated GPU.
        "rope_kv" | "kv_move" if is_emulated(target) => return false,
        "rope_kv" | "kv_move" => sample.caches,
        _ => sample.formats,
    };
    !values.contains(&value)
}
