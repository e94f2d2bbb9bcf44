//! OpenELM, recorded like Llama: numbers of heads and widths of networks differ by layer.

use crate::error::LoadError;
use crate::facts::{FeedForward, KeyFacts, ModelConfig, RMS_EPS};
use crate::keys::{Keys, MAX_DIM};

pub(crate) fn facts(keys: &Keys<'_>, family: &KeyFacts) -> Result<ModelConfig, LoadError> {
    let n_ff = keys.sizes("feed_forward_length", keys.n_layers()?, MAX_DIM)?;
    let first = FeedForward::Dense { n_ff: n_ff[0] };
    let mut config = ModelConfig::read(keys, family, RMS_EPS, first)?;
    for (layer, n_ff) in config.layers.iter_mut().zip(n_ff) {
        layer.feed_forward = FeedForward::Dense { n_ff };
    }
    Ok(config)
}
