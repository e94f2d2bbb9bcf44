//! What CI leaves out, to save time.

use crate::modules::Module;
use crate::targets::is_emulated;

/// Formats whose modules CI compiles for the targets of [`WITH_ALL_FORMATS`] only, of which host-nv checks memory accesses.
/// In them, `kernels/quant.h` unpacks codes with the same integer operations everywhere; what differs by target are the
/// products, which other formats compile for all targets: floats, and codes with and without minimums, in groups of 16 and of
/// 32, from a table. `.ci/run --full`, releases and every other list of targets have all modules.
const SAMPLED: &[&str] = &[
    "Q1_0", "Q2_0", "Q4_1", "Q5_0", "Q5_1", "Q3_K", "Q5_K", "IQ4_NL", "IQ4_XS", "TQ1_0", "TQ2_0",
    "NVFP4", "IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S",
];

/// The emulated GPU that tests of models find first, which has no matrix units, and one with them.
const WITH_ALL_FORMATS: &[&str] = &["host-quick", "host-nv"];

/// The GPUs for which CI compiles attention in all types of the KV cache, and the types for most others: FP8, which GPUs have
/// instructions of their own for, and some of those that all read alike.
const WITH_ALL_CACHES: &[&str] = &["gfx1100", "host-quick", "host-nv"];
const CACHES: &[&str] = &["F16", "Q8_0", "Q4_0", "F8E4M3"];

/// The older GPUs of each kind, whose modules differ from newer ones in the same places. CI compiles this type of the
/// cache for them.
const OLDER: &[&str] = &["gfx1030", "gfx90a", "sm_80"];
const CACHED_ON_OLDER: &str = "F16";

/// Those of them that no test runs, not even with a stub driver. CI compiles these formats for them.
const OLDER_WITH_FEW: &[&str] = &["gfx90a", "sm_80"];
const FEW: &[&str] = &["F32", "F16", "Q8_0", "Q4_K"];

/// Modules of the KV cache: those of attention, and others.
const ATTENTION: &[&str] = &["attention_decode", "attention_prefill"];
const OF_CACHE: &[&str] = &["rope_kv", "kv_move"];

/// Whether CI leaves a module out for a target.
pub(crate) fn is_left_out(module: &Module, target: &str) -> bool {
    let Some((name, value)) = module.name.split_once('.') else {
        return false;
    };
    let is_attention = ATTENTION.contains(&name);
    if is_attention || OF_CACHE.contains(&name) {
        if OLDER.contains(&target) {
            return value != CACHED_ON_OLDER;
        }
        let has_all = WITH_ALL_CACHES.contains(&target) || !is_attention && is_emulated(target);
        return !has_all && !CACHES.contains(&value);
    }
    if OLDER_WITH_FEW.contains(&target) {
        return !FEW.contains(&value);
    }
    SAMPLED.contains(&value) && !WITH_ALL_FORMATS.contains(&target)
}
