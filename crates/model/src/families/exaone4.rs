//! EXAONE 4, recorded like OLMo 2, with norms of each head. In the model of 64 layers, three of four layers have a window,
//! and only these rotate.

use crate::error::LoadError;
use crate::experts;
use crate::facts::{KeyFacts, ModelConfig, RMS_EPS};
use crate::keys::Keys;
use crate::windows::{rotate_windows_only, set_windows};

pub(crate) fn facts(keys: &Keys<'_>, family: &KeyFacts) -> Result<ModelConfig, LoadError> {
    let mut config = ModelConfig::read(keys, family, RMS_EPS, experts::dense(keys)?)?;
    // llama.cpp, too, knows the model with windows by its layers.
    if config.n_layers() == 64 {
        let rope = config.ropes[0];
        set_windows(keys, &mut config, rope, (Some(4096), 4))?;
        rotate_windows_only(&mut config);
    }
    Ok(config)
}
