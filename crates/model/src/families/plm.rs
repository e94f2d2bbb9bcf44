//! PLM: latent attention; its networks are those of Arcee.

use crate::error::LoadError;
use crate::experts;
use crate::facts::{KeyFacts, ModelConfig, RMS_EPS, scale_of_width};
use crate::families::deepseek2::set_latent;
use crate::keys::Keys;

pub(crate) fn facts(keys: &Keys<'_>, family: &KeyFacts) -> Result<ModelConfig, LoadError> {
    let mut config = ModelConfig::read(keys, family, RMS_EPS, experts::dense(keys)?)?;
    set_latent(keys, &mut config)?;
    for layer in &mut config.layers {
        layer.scores.scale = scale_of_width(layer.k_dim);
    }
    Ok(config)
}
