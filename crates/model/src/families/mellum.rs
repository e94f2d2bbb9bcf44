//! Mellum 2: Qwen 3 with experts, and windows in three of four layers, whose rotation is not scaled.

use crate::error::LoadError;
use crate::facts::{KeyFacts, ModelConfig};
use crate::families::qwen;
use crate::keys::Keys;
use crate::windows::set_windows;

pub(crate) fn facts(keys: &Keys<'_>, family: &KeyFacts) -> Result<ModelConfig, LoadError> {
    let mut config = qwen::mixture(keys, family)?;
    let in_window = config.ropes[0].unscaled();
    set_windows(keys, &mut config, in_window, (None, 4))?;
    Ok(config)
}
