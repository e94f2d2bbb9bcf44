//! Laguna: attention whose output has a gate for each head or value, more heads and another rotation in layers with a
//! window, and experts after leading dense layers.

use rocmforge_plan::{Activation, ExpertScores};

use crate::error::LoadError;
use crate::experts::{stated_experts, with_stated_shared};
use crate::facts::{KeyFacts, ModelConfig};
use crate::families::mixtures::read_with_dense_lead;
use crate::keys::{Keys, MAX_DIM, MAX_EXPERTS};
use crate::rope::Rope;
use crate::windows::set_windows_after_first;

pub(crate) fn facts(keys: &Keys<'_>, family: &KeyFacts) -> Result<ModelConfig, LoadError> {
    let experts = stated_experts(keys, Some(ExpertScores::Sigmoid))?;
    let n_shared = keys.opt_count("expert_shared_count", MAX_EXPERTS)?;
    let n_ff = experts.n_ff.saturating_mul(n_shared.unwrap_or(1));
    let experts = with_stated_shared(keys, experts, Some(n_ff))?;
    let mut config = read_with_dense_lead(keys, family, experts)?;
    let global = config.ropes[0];
    let in_window = Rope {
        base: keys.positive("rope.freq_base_swa")?.unwrap_or(global.base),
        n_rot: keys
            .opt_size("rope.dimension_count_swa", MAX_DIM)?
            .unwrap_or(global.n_rot),
        ..global.unscaled()
    };
    set_windows_after_first(keys, &mut config, in_window, 4)?;
    for layer in &mut config.layers {
        layer.gate = Some(Activation::Softplus);
    }
    Ok(config)
}
