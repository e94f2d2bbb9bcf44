//! What differs from layer to layer: which rotate by position, and which see only a window.

use rocmforge_gguf::Value;

use super::arch::Architecture;
use super::config::MAX_LAYERS;
use super::keys::Keys;
use crate::error::LoadError;

/// How one layer sees the tokens before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LayerView {
    /// Whether Q and K are rotated by position.
    pub rotates: bool,
    /// Only the last `window` positions are visible; such layers rotate as `rope_in_window` says.
    pub window: Option<u32>,
}

/// Which layers rotate and which see a window.
pub(super) fn layers(
    keys: &Keys<'_>,
    arch: Architecture,
    n_layers: usize,
) -> Result<Vec<LayerView>, LoadError> {
    let plain = LayerView {
        rotates: !arch.learns_positions(),
        window: None,
    };
    let mut layers = vec![plain; n_layers];
    match arch {
        // Without its key in the file: llama.cpp has the same constant.
        Architecture::SmolLm3 => layers
            .iter_mut()
            .skip(3)
            .step_by(4)
            .for_each(|layer| layer.rotates = false),
        Architecture::Granite => {
            let finetuned = keys.meta.opt_bool(&keys.key("rope.scaling.finetuned"))?;
            let rotates = finetuned.unwrap_or(true);
            layers.iter_mut().for_each(|layer| layer.rotates = rotates);
        }
        Architecture::Olmo2 => set_windows(keys, &mut layers, None, 4)?,
        Architecture::Gemma2 => set_windows(keys, &mut layers, Some(4096), 2)?,
        Architecture::Gemma3 => set_windows(keys, &mut layers, None, 6)?,
        // Phi's files have a window that converters have filled in wrongly; llama.cpp ignores it as well.
        Architecture::Llama
        | Architecture::Qwen2
        | Architecture::Qwen2Moe
        | Architecture::Qwen3
        | Architecture::Qwen3Moe
        | Architecture::Phi3
        | Architecture::Gpt2
        | Architecture::StarCoder2 => {}
    }
    Ok(layers)
}

/// The window of the file or `default`, for the layers that the file names, or all but the last of each
/// `period`.
fn set_windows(
    keys: &Keys<'_>,
    layers: &mut [LayerView],
    default: Option<u32>,
    period: usize,
) -> Result<(), LoadError> {
    let window = keys.meta.opt_u32(&keys.key("attention.sliding_window"))?;
    let Some(window) = window.or(default).filter(|&window| window > 0) else {
        return Ok(());
    };
    let pattern = windowed(keys, layers.len(), period)?;
    for (layer, windowed) in layers.iter_mut().zip(pattern) {
        layer.window = windowed.then_some(window);
    }
    Ok(())
}

/// The layers with a window: a flag for each, or a period whose last layer has none.
fn windowed(keys: &Keys<'_>, n_layers: usize, period: usize) -> Result<Vec<bool>, LoadError> {
    const NAME: &str = "attention.sliding_window_pattern";
    let bad = |value: String| keys.bad(NAME, value, "a flag for each layer, or a period");
    let period = match keys.meta.get(&keys.key(NAME)) {
        None => period,
        Some(Value::Array(flags)) => {
            let flag = |value: Value<'_>| match value {
                Value::Bool(flag) => Some(flag),
                other => other.as_int().map(|n| n != 0),
            };
            let flags: Option<Vec<bool>> = flags.iter().take(MAX_LAYERS + 1).map(flag).collect();
            return match flags {
                Some(flags) if flags.len() == n_layers => Ok(flags),
                Some(flags) => Err(bad(format!("{} flags", flags.len()))),
                None => Err(bad("another kind of list".to_string())),
            };
        }
        Some(value) => value
            .as_int()
            .and_then(|n| usize::try_from(n).ok())
            .ok_or_else(|| bad("no number".to_string()))?,
    };
    let has_window = |layer: usize| period == 0 || layer % period < period - 1;
    Ok((0..n_layers).map(has_window).collect())
}
