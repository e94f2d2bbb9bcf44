//! Ministral 3 and Devstral 2: Llama with YaRN and scores that grow with the position.

use rocmforge_plan::Growth;

use crate::error::LoadError;
use crate::facts::{KeyFacts, ModelConfig};
use crate::families::llama;
use crate::keys::Keys;
use crate::rope::RopeScaling;

pub(crate) fn facts(keys: &Keys<'_>, family: &KeyFacts) -> Result<ModelConfig, LoadError> {
    let mut config = llama::facts(keys, family)?;
    let original = keys.opt_size("rope.scaling.original_context_length", u32::MAX as usize)?;
    let step = original.unwrap_or(config.n_ctx_train) as u32;
    let slope = keys.positive_or_zero("attention.temperature_scale")?;
    for layer in &mut config.layers {
        layer.scores.growth = slope.map(|slope| Growth {
            slope: slope as f32,
            step,
            offset: 0,
        });
    }
    divide_yarn_magnitude(keys, &mut config)?;
    Ok(config)
}

/// Divides the factor that YaRN puts on the rotated values by one with the file's multiplier, as transformers does with
/// `mscale_all_dim`. A multiplier of 1 leaves no factor.
fn divide_yarn_magnitude(keys: &Keys<'_>, config: &mut ModelConfig) -> Result<(), LoadError> {
    let multiplier = keys.positive_or_zero("rope.scaling.yarn_log_multiplier")?;
    for rope in &mut config.ropes {
        if let (RopeScaling::Yarn { factor, .. }, Some(multiplier)) = (rope.scaling, multiplier) {
            rope.attn_factor /= 1.0 + 0.1 * multiplier * factor.max(1.0).ln();
        }
    }
    Ok(())
}
