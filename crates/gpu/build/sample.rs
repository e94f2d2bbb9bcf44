//! What CI leaves out, to save time.

use crate::modules::Module;

/// Formats whose modules CI compiles for the targets of [`SAMPLED_ON`] only. In them, `kernels/quant.h` unpacks codes
/// with the same integer operations everywhere; what differs by target are the products, which other formats compile for
/// all targets: floats, and codes with and without minimums, in groups of 16 and of 32, from a table. `.ci/run --full`, releases and every other list of targets have all modules.
const SAMPLED: &[&str] = &[
    "Q1_0", "Q2_0", "Q4_1", "Q5_0", "Q5_1", "Q3_K", "Q5_K", "IQ4_NL", "IQ4_XS", "TQ1_0", "TQ2_0",
    "NVFP4", "IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S",
];

/// A GPU of each vendor, an emulated GPU without matrix units, which is also the first that tests of models find, and one
/// with them.
const SAMPLED_ON: &[&str] = &["gfx1100", "sm_90a", "host-gfx10", "host-nv"];

/// Types of the KV cache that CI does not compile for the targets of [`NOT_CACHED_ON`]: the older GPUs of each kind, whose
/// modules of the others differ from newer ones in the same places.
const CACHE_TYPES: &[&str] = &["Q8_0", "F8E4M3", "Q5_1", "Q4_0"];
const NOT_CACHED_ON: &[&str] = &["gfx1030", "gfx90a", "sm_80"];

/// Modules of the KV cache.
const OF_CACHE: &[&str] = &[
    "attention_decode",
    "attention_prefill",
    "rope_kv",
    "kv_move",
];

/// Whether CI leaves a module out for a target.
pub(crate) fn is_left_out(module: &Module, target: &str) -> bool {
    let Some((name, value)) = module.name.split_once('.') else {
        return false;
    };
    match OF_CACHE.contains(&name) {
        true => CACHE_TYPES.contains(&value) && NOT_CACHED_ON.contains(&target),
        false => SAMPLED.contains(&value) && !SAMPLED_ON.contains(&target),
    }
}
