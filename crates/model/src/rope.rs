//! Rotation frequencies of a model: base, frequency factors and scaling.
//!
//! YaRN's blend follows Peng et al. 2023 ("YaRN: Efficient Context Window Extension"), section 3. LongRoPE's
//! two sets of factors and when each counts follow llama.cpp's `get_rope_factors`.

use std::f64::consts::PI;

use super::config::{ModelConfig, RopeScaling, Rotation};
use rocmforge_plan::{LongContext, RopeTable};

/// Frequency factors of a file; they divide the frequencies of each pair.
#[derive(Debug, Default)]
pub(super) struct Factors {
    /// `rope_freqs.weight` or `rope_factors_short.weight`.
    pub(super) usual: Option<Vec<f32>>,
    /// `rope_factors_long.weight`, for contexts longer than the original one.
    pub(super) long: Option<Vec<f32>>,
}

/// The table of `rotation` in a model of `config`.
pub(super) fn table(config: &ModelConfig, rotation: &Rotation, factors: &Factors) -> RopeTable {
    let n_rot = config.n_rot as f64;
    let frequencies = |factors| frequencies(rotation.base, config.n_rot, factors);
    let original = frequencies(factors.usual.as_deref());
    let attn_factor = rotation.attn_factor;
    match rotation.scaling {
        RopeScaling::None => RopeTable::new(original.collect(), attn_factor),
        RopeScaling::Linear { factor } => {
            RopeTable::new(original.map(|f| f / factor).collect(), attn_factor)
        }
        RopeScaling::LongRope {
            factor,
            n_ctx_original,
        } => RopeTable {
            long: Some(LongContext {
                n_ctx_original,
                inv_freq: frequencies(factors.long.as_deref())
                    .map(|f| f / factor)
                    .collect(),
            }),
            ..RopeTable::new(original.map(|f| f / factor).collect(), attn_factor)
        },
        RopeScaling::Yarn {
            factor,
            n_ctx_original,
            beta_fast,
            beta_slow,
        } => {
            // The pair that makes `turns` rotations within the original context.
            let pair_of = |turns: f64| {
                n_rot * (n_ctx_original / (turns * 2.0 * PI)).ln() / (2.0 * rotation.base.ln())
            };
            let low = pair_of(beta_fast).floor().max(0.0);
            let high = pair_of(beta_slow).ceil().min(n_rot - 1.0);
            let blend = |pair: usize, frequency: f64| {
                let interpolated = ((pair as f64 - low) / (high - low).max(0.001)).clamp(0.0, 1.0);
                frequency * (interpolated / factor + (1.0 - interpolated))
            };
            let inv_freq = original
                .enumerate()
                .map(|(pair, frequency)| blend(pair, frequency))
                .collect();
            RopeTable::new(inv_freq, attn_factor * (1.0 + 0.1 * factor.max(1.0).ln()))
        }
    }
}

/// Radians per position of each pair, before scaling.
fn frequencies(base: f64, n_rot: usize, factors: Option<&[f32]>) -> impl Iterator<Item = f64> + '_ {
    (0..n_rot / 2).map(move |pair| {
        let frequency = base.powf(-2.0 * pair as f64 / n_rot as f64);
        factors.map_or(frequency, |factors| frequency / f64::from(factors[pair]))
    })
}
