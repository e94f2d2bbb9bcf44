//! Rotation frequencies of a model: base, frequency factors and scaling.
//!
//! YaRN's blend follows Peng et al. 2023 ("YaRN: Efficient Context Window Extension"), section 3.

use std::f64::consts::PI;

use super::config::{ModelConfig, RopeScaling};
use crate::plan::RopeTable;

/// The table of `config`; `factors` (`rope_freqs.weight`, `[n_rot / 2]`) divide the frequencies.
pub(super) fn table(config: &ModelConfig, factors: Option<&[f32]>) -> RopeTable {
    let n_rot = config.n_rot as f64;
    let original = (0..config.n_rot / 2).map(|pair| {
        let frequency = config.rope_base.powf(-2.0 * pair as f64 / n_rot);
        factors.map_or(frequency, |factors| frequency / f64::from(factors[pair]))
    });
    match config.rope_scaling {
        RopeScaling::None => RopeTable {
            inv_freq: original.collect(),
            magnitude: config.rope_attn_factor,
        },
        RopeScaling::Linear { factor } => RopeTable {
            inv_freq: original.map(|f| f / factor).collect(),
            magnitude: config.rope_attn_factor,
        },
        RopeScaling::Yarn {
            factor,
            n_ctx_original,
            beta_fast,
            beta_slow,
        } => {
            // The pair that makes `turns` rotations within the original context.
            let pair_of = |turns: f64| {
                n_rot * (n_ctx_original / (turns * 2.0 * PI)).ln() / (2.0 * config.rope_base.ln())
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
            RopeTable {
                inv_freq,
                magnitude: config.rope_attn_factor * (1.0 + 0.1 * factor.max(1.0).ln()),
            }
        }
    }
}
