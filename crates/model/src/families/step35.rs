//! Step 3.5: a gate for each head of attention's output, half as many rotated values in layers without a window, and
//! experts whose SwiGLU is clamped in some layers.

use rocmforge_plan::{Activation, ExpertScores};

use crate::error::LoadError;
use crate::experts::{make_unrouted_dense, stated_experts, with_stated_shared};
use crate::facts::{FeedForward, KeyFacts, ModelConfig, RMS_EPS};
use crate::keys::Keys;
use crate::rope::{FrequencyFactors, Rope};
use crate::windows::{require_pattern, require_window, set_windows};

pub(crate) fn facts(keys: &Keys<'_>, family: &KeyFacts) -> Result<ModelConfig, LoadError> {
    let experts = stated_experts(keys, Some(ExpertScores::Sigmoid))?;
    let experts = with_stated_shared(keys, experts, None)?;
    let mut config = ModelConfig::read(keys, family, RMS_EPS, FeedForward::Mixture(experts))?;
    make_unrouted_dense(keys, &mut config)?;
    let all = config.ropes[0];
    config.ropes[0] = Rope {
        n_rot: all.n_rot / 2,
        factors: FrequencyFactors::FirstOf(all.n_rot),
        ..all
    };
    let in_window = Rope {
        base: keys.positive("rope.freq_base_swa")?.unwrap_or(10_000.0),
        ..all.unscaled()
    };
    require_window(keys)?;
    require_pattern(keys)?;
    set_windows(keys, &mut config, in_window, (None, 1))?;
    let n_blocks = config.n_layers() + config.n_nextn;
    let limits = |key| keys.positives_or_zeros(key, n_blocks);
    let of_experts = limits("swiglu_clamp_exp")?;
    let of_networks = limits("swiglu_clamp_shexp")?;
    for (index, layer) in config.layers.iter_mut().enumerate() {
        let gate = format!("blk.{index}.attn_gate.weight");
        let has_gate = keys.gguf.tensor(&gate).is_some();
        layer.gate = has_gate.then_some(Activation::Sigmoid);
        layer.limit = of_networks[index];
        if let FeedForward::Mixture(experts) = &mut layer.feed_forward {
            experts.limit = of_experts[index];
        }
    }
    Ok(config)
}
