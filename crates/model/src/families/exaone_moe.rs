//! K-EXAONE: Llama with norms of heads, experts after leading dense layers, and windows in three of four layers; only
//! these rotate.

use crate::error::LoadError;
use crate::experts::{stated_experts, with_stated_shared};
use crate::facts::{KeyFacts, ModelConfig};
use crate::families::mixtures::read_with_dense_lead;
use crate::keys::Keys;
use crate::windows::{require_window, rotate_windows_only, set_windows};

pub(crate) fn facts(keys: &Keys<'_>, family: &KeyFacts) -> Result<ModelConfig, LoadError> {
    let experts = stated_experts(keys, None)?;
    let experts = with_stated_shared(keys, experts, Some(experts.n_ff))?;
    let mut config = read_with_dense_lead(keys, family, experts)?;
    require_window(keys)?;
    let rope = config.ropes[0];
    set_windows(keys, &mut config, rope, (None, 4))?;
    rotate_windows_only(&mut config);
    Ok(config)
}
