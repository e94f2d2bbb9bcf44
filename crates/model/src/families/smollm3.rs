//! SmolLM 3: Llama without RoPE in every fourth layer (NoPE).

use crate::error::LoadError;
use crate::experts;
use crate::facts::{KeyFacts, ModelConfig, RMS_EPS};
use crate::keys::Keys;

pub(crate) fn facts(keys: &Keys<'_>, family: &KeyFacts) -> Result<ModelConfig, LoadError> {
    let mut config = ModelConfig::read(keys, family, RMS_EPS, experts::dense(keys)?)?;
    // The file has no key for this; llama.cpp has the same constant.
    for layer in config.layers.iter_mut().skip(3).step_by(4) {
        layer.rope = None;
    }
    Ok(config)
}
