//! Llama 4 (Scout, Maverick): three of four layers attend within chunks; they rotate Q and K and then norm them without
//! weights. The others see all positions, rotate nothing, and sharpen their scores with the position. The weights of
//! experts multiply their inputs.

use rocmforge_plan::{ExpertScores, ExpertWeights, Growth, Mask, Weighed};

use crate::error::LoadError;
use crate::experts::{experts, make_dense};
use crate::facts::{FeedForward, HeadNorm, KeyFacts, ModelConfig, RMS_EPS, SharedExpert};
use crate::keys::{Keys, MAX_DIM, MAX_LAYERS};
use crate::windows::{set_windows, with_window_base};

/// Positions of a chunk, which files do not state.
const CHUNK: u32 = 8192;

/// Every one of so many layers, the last of them, rotates nothing.
const PERIOD: usize = 4;

/// Number of experts of Maverick, which has no norms of heads.
const N_EXPERTS_WITHOUT_NORMS: usize = 128;

pub(crate) fn facts(keys: &Keys<'_>, family: &KeyFacts) -> Result<ModelConfig, LoadError> {
    const STEP: &str = "interleave_moe_layer_step";
    if keys.opt_count("attention.sliding_window", u32::MAX as usize)? == Some(0) {
        return Err(keys.unsupported("layers that all see everything (sliding window 0)"));
    }
    let mut experts = experts(keys, ExpertWeights::Scores)?;
    experts.router.scores = ExpertScores::Sigmoid;
    experts.router.scale = 1.0;
    experts.weighed = Weighed::Inputs;
    experts.n_ff = keys.size("expert_feed_forward_length", MAX_DIM)?;
    experts.shared = Some(SharedExpert {
        n_ff: experts.n_ff,
        is_gated: false,
    });
    let mut config = ModelConfig::read(keys, family, RMS_EPS, FeedForward::Mixture(experts))?;
    let step = keys.size(STEP, MAX_LAYERS)?;
    make_dense(keys, &mut config, |layer| !(layer + 1).is_multiple_of(step))?;
    let in_chunk = with_window_base(keys, config.ropes[0])?;
    set_windows(keys, &mut config, in_chunk, (Some(CHUNK), PERIOD))?;
    for (index, layer) in config.layers.iter_mut().enumerate() {
        if let Mask::Window(_) = layer.mask {
            layer.mask = Mask::Chunk(CHUNK);
        }
        if (index + 1).is_multiple_of(PERIOD) {
            layer.rope = None;
            layer.scores.growth = Some(Growth {
                slope: 0.1,
                step: CHUNK,
                offset: 1,
            });
        } else if experts.n_experts != N_EXPERTS_WITHOUT_NORMS {
            layer.head_norm = HeadNorm::PlainAfterRope;
        }
    }
    Ok(config)
}
