//! Which layers have a sliding window.

use rocmforge_gguf::Value;
use rocmforge_plan::Mask;

use crate::embedding::Reads;
use crate::error::LoadError;
use crate::facts::ModelConfig;
use crate::keys::{Keys, MAX_LAYERS};
use crate::rope::Rope;

/// Metadata key of which layers have windows.
const PATTERN: &str = "attention.sliding_window_pattern";

/// Sets the file's window, or `default`, on the layers that the file lists, or on all but the last of each `period`.
/// These layers rotate by `rope`.
pub(crate) fn set_windows(
    keys: &Keys<'_>,
    config: &mut ModelConfig,
    rope: Rope,
    (default, period): (Option<u32>, usize),
) -> Result<(), LoadError> {
    let has_window = |layer: usize, period: usize| layer % period < period - 1;
    set(keys, config, rope, default, (period, &has_window))
}

/// As [`set_windows`], on all but the first of each `period`.
pub(crate) fn set_windows_after_first(
    keys: &Keys<'_>,
    config: &mut ModelConfig,
    rope: Rope,
    period: usize,
) -> Result<(), LoadError> {
    let has_window = |layer: usize, period: usize| !layer.is_multiple_of(period);
    set(keys, config, rope, None, (period, &has_window))
}

fn set(
    keys: &Keys<'_>,
    config: &mut ModelConfig,
    rope: Rope,
    default: Option<u32>,
    pattern: Pattern<'_>,
) -> Result<(), LoadError> {
    let window = keys.meta.opt_u32(&keys.key("attention.sliding_window"))?;
    let Some(window) = window.or(default).filter(|&window| window > 0) else {
        return Ok(());
    };
    let pattern = windowed(keys, config, pattern)?;
    let of_window = config.ropes.len();
    config.ropes.push(rope);
    let windowed = config.layers.iter_mut().zip(pattern);
    for (layer, _) in windowed.filter(|(_, windowed)| *windowed) {
        layer.mask = match config.reads {
            Reads::Backward => Mask::Window(window),
            // Half of the window on each side.
            Reads::BothSides => Mask::Near(window / 2),
        };
        layer.rope = Some(of_window);
    }
    Ok(())
}

/// The period of layers with and without windows, and whether a layer of a period has one.
type Pattern<'a> = (usize, &'a dyn Fn(usize, usize) -> bool);

/// Refuses a file that does not say which layers have windows.
pub(crate) fn require_pattern(keys: &Keys<'_>) -> Result<(), LoadError> {
    match keys.meta.get(&keys.key(PATTERN)) {
        Some(Value::Array(_)) => Ok(()),
        Some(_) => Err(keys.bad(PATTERN, "no list", "a flag for each layer")),
        None => Err(keys.bad(PATTERN, "missing", "a flag for each layer")),
    }
}

/// Refuses a file without the width of windows.
pub(crate) fn require_window(keys: &Keys<'_>) -> Result<(), LoadError> {
    keys.size("attention.sliding_window", u32::MAX as usize)
        .map(drop)
}

/// Returns the rotation of layers with a window: `rope` with the base that the file has for them.
pub(crate) fn with_window_base(keys: &Keys<'_>, rope: Rope) -> Result<Rope, LoadError> {
    let base = keys.positive("rope.freq_base_swa")?;
    Ok(Rope {
        base: base.unwrap_or(rope.base),
        ..rope
    })
}

/// Leaves Q and K of layers without a window as they are (NoPE).
pub(crate) fn rotate_windows_only(config: &mut ModelConfig) {
    let layers = config.layers.iter_mut();
    for layer in layers.filter(|layer| layer.mask == Mask::All) {
        layer.rope = None;
    }
}

/// Returns which layers have a window, from a flag per layer or a period.
fn windowed(
    keys: &Keys<'_>,
    config: &ModelConfig,
    (period, has_window): Pattern<'_>,
) -> Result<Vec<bool>, LoadError> {
    let n_layers = config.n_layers();
    // Flags may include those of the layers that predict further tokens.
    let is_length = |n: usize| n == n_layers || n == n_layers + config.n_nextn;
    let bad = |value: String| keys.bad(PATTERN, value, "a flag for each layer, or a period");
    let period = match keys.meta.get(&keys.key(PATTERN)) {
        None => period,
        Some(Value::Array(flags)) => {
            let flag = |value: Value<'_>| match value {
                Value::Bool(flag) => Some(flag),
                other => other.as_int().map(|n| n != 0),
            };
            let flags: Option<Vec<bool>> = flags.iter().take(MAX_LAYERS + 1).map(flag).collect();
            return match flags {
                Some(flags) if is_length(flags.len()) => Ok(flags),
                Some(flags) => Err(bad(format!("{} flags", flags.len()))),
                None => Err(bad("another kind of list".to_string())),
            };
        }
        Some(value) => value
            .as_int()
            .and_then(|n| usize::try_from(n).ok())
            .ok_or_else(|| bad("no number".to_string()))?,
    };
    let has_window = |layer: usize| period == 0 || has_window(layer, period);
    Ok((0..n_layers).map(has_window).collect())
}
