//! RoPE of a model: what its file says, and the table of frequencies from base, frequency factors and scaling.
//!
//! YaRN's blend follows Peng et al. 2023 ("YaRN: Efficient Context Window Extension"), section 3, with `beta_fast` and
//! `beta_slow` from the file for every family, as in the models' own code (transformers, `_compute_yarn_parameters`).
//! llama.cpp 0.3.36 reads the two for Grok and Mistral 3 only and takes 32 and 1 for all others. LongRoPE's two sets of
//! factors, and when each is used, follow llama.cpp's `get_rope_factors`.

use std::f64::consts::PI;

use rocmforge_plan::{LongContext, RopeStyle, RopeTable};

use crate::error::LoadError;
use crate::keys::Keys;
use crate::weights::WeightLoader;

/// How RoPE positions are scaled for contexts longer than the trained one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum RopeScaling {
    None,
    /// Positions divided by `factor`.
    Linear {
        factor: f64,
    },
    /// YaRN (Peng et al. 2023): keeps high frequencies and divides low ones by `factor`.
    Yarn {
        factor: f64,
        n_ctx_original: f64,
        beta_fast: f64,
        beta_slow: f64,
    },
    /// LongRoPE (Ding et al. 2024): one tensor of frequency factors for contexts up to `n_ctx_original` and another
    /// for longer ones; positions are also divided by `factor`, which files of Phi leave at 1.
    LongRope {
        factor: f64,
        n_ctx_original: usize,
    },
}

/// Which tensors of frequency factors a rotation uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrequencyFactors {
    Never,
    /// Those of LongRoPE, if the rotation is scaled so.
    LongRope,
    /// Also `rope_freqs.weight`, if the file has it.
    IfPresent,
    /// As `IfPresent`, of a tensor that has factors for this number of rotated values: the first ones.
    FirstOf(usize),
}

/// A way to rotate Q and K.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rope {
    pub style: RopeStyle,
    /// Number of values per head that are rotated.
    pub n_rot: usize,
    /// Base of the frequencies; wavelengths grow to about `2 pi base` positions.
    pub base: f64,
    pub scaling: RopeScaling,
    /// Factor on the rotated values, with any scaling.
    pub attn_factor: f64,
    pub factors: FrequencyFactors,
}

impl Rope {
    pub(crate) fn read(
        keys: &Keys<'_>,
        style: RopeStyle,
        factors: FrequencyFactors,
        [n_rot, n_ctx_train]: [usize; 2],
    ) -> Result<Rope, LoadError> {
        let kind = keys.meta.opt_str(&keys.key("rope.scaling.type"))?;
        Ok(Rope {
            style,
            n_rot,
            base: keys.positive("rope.freq_base")?.unwrap_or(10_000.0),
            scaling: scaling(keys, kind, n_ctx_train)?,
            attn_factor: keys.positive("rope.scaling.attn_factor")?.unwrap_or(1.0),
            factors,
        })
    }

    /// The same rotation for short contexts, such as those of windows: without scaling and frequency factors.
    pub(crate) fn unscaled(self) -> Rope {
        Rope {
            scaling: RopeScaling::None,
            attn_factor: 1.0,
            factors: FrequencyFactors::Never,
            ..self
        }
    }
}

/// Reads the scaling of the given kind.
pub(crate) fn scaling(
    keys: &Keys<'_>,
    kind: Option<&str>,
    n_ctx_train: usize,
) -> Result<RopeScaling, LoadError> {
    // Early files have the linear factor under its first name and no scaling type.
    let factor = match keys.positive("rope.scaling.factor")? {
        Some(factor) => factor,
        None => keys.positive("rope.scale_linear")?.unwrap_or(1.0),
    };
    let n_ctx_original = || {
        let original = keys.opt_size("rope.scaling.original_context_length", u32::MAX as usize)?;
        Ok::<_, LoadError>(original.unwrap_or(n_ctx_train))
    };
    match kind {
        None | Some("none") if factor == 1.0 => Ok(RopeScaling::None),
        None | Some("linear") => Ok(RopeScaling::Linear { factor }),
        Some("none") => Ok(RopeScaling::None),
        // Llama 3's scaling is in a tensor of frequency factors (`rope_freqs.weight`); the type adds nothing.
        Some("llama3") => Ok(RopeScaling::None),
        Some("yarn") => Ok(RopeScaling::Yarn {
            factor,
            n_ctx_original: n_ctx_original()? as f64,
            beta_fast: keys
                .positive("rope.scaling.yarn_beta_fast")?
                .unwrap_or(32.0),
            beta_slow: keys.positive("rope.scaling.yarn_beta_slow")?.unwrap_or(1.0),
        }),
        Some("longrope") => Ok(RopeScaling::LongRope {
            factor,
            n_ctx_original: n_ctx_original()?,
        }),
        Some(other) => {
            Err(keys.unsupported(format!("RoPE scaling `{}`", rocmforge_gguf::shown(other))))
        }
    }
}

/// Frequency factors of a file. Each divides the frequency of one pair.
#[derive(Debug, Default)]
pub(crate) struct Factors {
    /// `rope_freqs.weight` or `rope_factors_short.weight`.
    usual: Option<Vec<f32>>,
    /// `rope_factors_long.weight`, for contexts longer than the original one.
    long: Option<Vec<f32>>,
}

/// Reads the frequency factors that `rope` uses.
pub(crate) fn factors(rope: &Rope, loader: &mut WeightLoader<'_>) -> Result<Factors, LoadError> {
    let n_rot = match rope.factors {
        FrequencyFactors::FirstOf(n_rot) => n_rot,
        _ => rope.n_rot,
    };
    let mut read = |name: &str| -> Result<Option<Vec<f32>>, LoadError> {
        let factors = loader.opt_values(name, n_rot / 2)?;
        let valid = |factor: &f32| factor.is_finite() && *factor > 0.0;
        if factors.iter().flatten().all(valid) {
            return Ok(factors);
        }
        Err(LoadError::BadMetadata {
            key: name.to_string(),
            value: "not positive".into(),
            wanted: "positive factors",
        })
    };
    match (rope.factors, rope.scaling) {
        (FrequencyFactors::Never, _) => Ok(Factors::default()),
        (_, RopeScaling::LongRope { .. }) => {
            let [short, long] = ["rope_factors_short.weight", "rope_factors_long.weight"];
            let read = [read(short)?, read(long)?];
            match read {
                [None, _] => Err(loader.missing(short)),
                [_, None] => Err(loader.missing(long)),
                [usual, long] => Ok(Factors { usual, long }),
            }
        }
        (FrequencyFactors::LongRope, _) => Ok(Factors::default()),
        (FrequencyFactors::IfPresent | FrequencyFactors::FirstOf(_), _) => Ok(Factors {
            usual: read("rope_freqs.weight")?,
            long: None,
        }),
    }
}

/// Computes the table of a rotation.
pub(crate) fn table(rope: &Rope, factors: &Factors) -> RopeTable {
    let n_rot = rope.n_rot as f64;
    let frequencies = |factors| frequencies(rope.base, rope.n_rot, factors);
    let original = frequencies(factors.usual.as_deref());
    let attn_factor = rope.attn_factor;
    match rope.scaling {
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
            // Index of the pair that makes `turns` rotations within the original context.
            let pair_of = |turns: f64| {
                n_rot * (n_ctx_original / (turns * 2.0 * PI)).ln() / (2.0 * rope.base.ln())
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Width, base, original context, factor, and the two betas; the frequencies that `_compute_yarn_parameters` of
    /// transformers 4.57.1 returns, computed in f64, and the factor on the rotated values.
    type Case = ([f64; 6], &'static [f64], f64);

    const CASES: &[Case] = &[
        (
            [16.0, 1e4, 32.0, 4.0, 32.0, 1.0],
            &[
                1.0,
                0.19764235376052372,
                0.025,
                0.007905694150420948,
                0.0025,
                0.000790569415042095,
                0.00025,
                7.905694150420948e-05,
            ],
            1.138629436111989,
        ),
        (
            [16.0, 1e4, 512.0, 4.0, 8.0, 2.0],
            &[
                1.0,
                0.31622776601683794,
                0.1,
                0.019764235376052368,
                0.0025,
                0.000790569415042095,
                0.00025,
                7.905694150420948e-05,
            ],
            1.138629436111989,
        ),
        (
            [16.0, 1e6, 32768.0, 8.0, 64.0, 0.5],
            &[
                1.0,
                0.1778279410038923,
                0.03162277660168379,
                0.004393291603049602,
                0.0005625000000000001,
                6.112835472008797e-05,
                3.952847075210474e-06,
                7.029266564879364e-07,
            ],
            1.2079441541679836,
        ),
        (
            [8.0, 5e5, 4096.0, 2.0, 16.0, 4.0],
            &[
                1.0,
                0.03760603093086393,
                0.0007071067811865475,
                2.6591479484724945e-05,
            ],
            1.0693147180559945,
        ),
    ];

    #[test]
    fn yarn_uses_both_betas_as_transformers_does() {
        for ([n_rot, base, n_ctx_original, factor, beta_fast, beta_slow], expected, magnitude) in
            CASES
        {
            let rope = Rope {
                style: RopeStyle::Neox,
                n_rot: *n_rot as usize,
                base: *base,
                scaling: RopeScaling::Yarn {
                    factor: *factor,
                    n_ctx_original: *n_ctx_original,
                    beta_fast: *beta_fast,
                    beta_slow: *beta_slow,
                },
                attn_factor: 1.0,
                factors: FrequencyFactors::Never,
            };
            let table = table(&rope, &Factors::default());
            assert_eq!(table.inv_freq.len(), expected.len());
            for (found, expected) in table.inv_freq.iter().zip(*expected) {
                assert!((found / expected - 1.0).abs() < 1e-12, "{found} {expected}");
            }
            assert!((table.magnitude - magnitude).abs() < 1e-12);
        }
    }
}
