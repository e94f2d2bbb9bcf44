//! Mamba-1, alone (also Falcon Mamba) and with attention in some layers (Jamba, with and without experts), and PLaMo 2, whose
//! scan has steps of heads.

use rocmforge_plan::ExpertWeights;

use crate::error::LoadError;
use crate::experts::{self, experts, make_unrouted_dense};
use crate::facts::{Experts, FeedForward, KeyFacts, ModelConfig, RMS_EPS};
use crate::keys::Keys;
use crate::recurrent::{Recurrent, SelectiveNorms, mamba1, plamo2};

pub(crate) fn facts(keys: &Keys<'_>, family: &KeyFacts) -> Result<ModelConfig, LoadError> {
    let recurrent = Recurrent::Selective(mamba1(keys, SelectiveNorms::Weighed)?);
    let feed_forward = match experts::n_experts(keys)? {
        0 => experts::dense(keys)?,
        // The file states no other width for experts.
        _ => FeedForward::Mixture(Experts {
            n_ff: experts::n_ff(keys)?,
            ..experts(keys, ExpertWeights::Scores)?
        }),
    };
    let mut config = ModelConfig::read_hybrid(keys, (family, RMS_EPS), feed_forward, recurrent)?;
    make_unrouted_dense(keys, &mut config)?;
    for layer in &mut config.layers {
        layer.rope = None;
    }
    Ok(config)
}

/// Mamba-1 alone, whose layers have no networks.
pub(crate) fn mamba(keys: &Keys<'_>, family: &KeyFacts) -> Result<ModelConfig, LoadError> {
    let norms = match keys.meta.opt_bool(&keys.key("ssm.dt_b_c_rms"))? {
        Some(true) => SelectiveNorms::Plain,
        Some(false) | None => SelectiveNorms::None,
    };
    let recurrent = Recurrent::Selective(mamba1(keys, norms)?);
    let none = FeedForward::Dense { n_ff: 0 };
    let config = ModelConfig::read_hybrid(keys, (family, RMS_EPS), none, recurrent)?;
    match config.layers.iter().all(|layer| layer.recurrent.is_some()) {
        true => Ok(config),
        false => Err(keys.unsupported("attention")),
    }
}

/// PLaMo 2.
pub(crate) fn plamo(keys: &Keys<'_>, family: &KeyFacts) -> Result<ModelConfig, LoadError> {
    let recurrent = Recurrent::Selective(plamo2(keys)?);
    ModelConfig::read_hybrid(keys, (family, RMS_EPS), experts::dense(keys)?, recurrent)
}
