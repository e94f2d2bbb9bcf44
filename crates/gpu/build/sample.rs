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

/// Whether CI leaves a module out for a target.
pub(crate) fn is_left_out(module: &Module, target: &str) -> bool {
    let format = module.name.split_once('.').map(|(_, value)| value);
    format.is_some_and(|format| SAMPLED.contains(&format)) && !SAMPLED_ON.contains(&target)
}
