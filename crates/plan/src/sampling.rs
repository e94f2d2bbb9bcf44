//! The parameters of sampling, one set for each request. Names and defaults are llama.cpp's.

use std::sync::Arc;

use crate::SamplerKind;
use crate::error::ParameterError;
use rocmforge_gguf::TokenId;

/// How the next token is chosen. The logit bias comes first, then the samplers in their order, then one
/// draw from what they left.
#[derive(Debug, Clone, PartialEq)]
pub struct SamplingParams {
    /// The samplers in the order in which they run; those not listed do not.
    pub samplers: Vec<SamplerKind>,
    /// Added to the logits of these tokens; negative infinity forbids a token.
    pub logit_bias: Vec<(TokenId, f32)>,
    /// 0 takes the best token; larger is more varied.
    pub temperature: f32,
    pub dynamic_temperature: DynamicTemperature,
    /// Only the `top_k` best tokens; 0 means all.
    pub top_k: usize,
    /// The smallest set of best tokens whose probability reaches `top_p`; 1 means all.
    pub top_p: f32,
    /// Only tokens with at least `min_p` times the best one's probability; 0 means all.
    pub min_p: f32,
    /// The tokens whose information is closest to the distribution's entropy, up to this probability; 1
    /// means all.
    pub typical_p: f32,
    /// Only tokens whose logit is at most this many standard deviations below the best; 0 or less means all.
    pub top_n_sigma: f32,
    pub xtc: Xtc,
    /// Logits of tokens seen in the window are divided (positive) or multiplied (negative) by this; 1 is off.
    pub repeat_penalty: f32,
    /// Subtracted from the logit of a token that occurs in the window; 0 is off.
    pub presence_penalty: f32,
    /// Subtracted for each occurrence in the window; 0 is off.
    pub frequency_penalty: f32,
    /// How many of the last tokens, prompt included, the penalties look at.
    pub penalty_last_n: usize,
    pub dry: Dry,
    /// Takes the place of all samplers; only logit bias and `temperature` come before it.
    pub mirostat: Option<Mirostat>,
    /// Random seed; the same request with the same seed gives the same tokens in any company.
    pub seed: u64,
}

/// A temperature between `temperature - range` and `temperature + range`, by the entropy of the candidates.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DynamicTemperature {
    /// 0 is off.
    pub range: f32,
    /// Power of the normalized entropy.
    pub exponent: f32,
}

/// Exclude top choices: of the tokens above a threshold all but the least likely are left out.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Xtc {
    /// How often it happens; 0 is off.
    pub probability: f32,
    /// Probability from which a token counts as a top choice; above 0.5 is off.
    pub threshold: f32,
}

/// "Don't repeat yourself": a token that would go on with a repetition loses
/// `multiplier * base ^ (length - allowed_length)` of its logit.
#[derive(Debug, Clone, PartialEq)]
pub struct Dry {
    /// 0 is off.
    pub multiplier: f32,
    pub base: f32,
    /// Repetitions shorter than this, in tokens, are free.
    pub allowed_length: usize,
    /// How many of the last tokens, prompt included, are searched.
    pub last_n: usize,
    /// A repetition does not reach across these texts. Without a tokenizer there are none.
    pub sequence_breakers: Vec<String>,
}

/// Mirostat 2.0 (Basu et al. 2021): keeps the surprise of the text near `tau` bits a token.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Mirostat {
    /// Wanted surprise in bits.
    pub tau: f32,
    /// Learning rate.
    pub eta: f32,
}

/// Breakers of one request; each costs a pass over the vocabulary.
const MAX_BREAKERS: usize = 32;
/// Bytes of one breaker.
const MAX_BREAKER_BYTES: usize = 40;

impl Default for SamplingParams {
    fn default() -> SamplingParams {
        SamplingParams {
            samplers: SamplerKind::ALL.to_vec(),
            logit_bias: Vec::new(),
            temperature: 0.8,
            dynamic_temperature: DynamicTemperature {
                range: 0.0,
                exponent: 1.0,
            },
            top_k: 40,
            top_p: 0.95,
            min_p: 0.05,
            typical_p: 1.0,
            top_n_sigma: -1.0,
            xtc: Xtc {
                probability: 0.0,
                threshold: 0.1,
            },
            repeat_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            penalty_last_n: 64,
            dry: Dry::default(),
            mirostat: None,
            seed: 0,
        }
    }
}

impl Default for Dry {
    fn default() -> Dry {
        Dry {
            multiplier: 0.0,
            base: 1.75,
            allowed_length: 2,
            last_n: 64,
            sequence_breakers: ["\n", ":", "\"", "*"].map(String::from).to_vec(),
        }
    }
}

impl Default for Mirostat {
    fn default() -> Mirostat {
        Mirostat { tau: 5.0, eta: 0.1 }
    }
}

impl SamplingParams {
    /// The best token every time.
    pub fn greedy() -> SamplingParams {
        SamplingParams {
            temperature: 0.0,
            ..SamplingParams::default()
        }
    }

    /// Whether penalties change the logits.
    pub fn has_penalties(&self) -> bool {
        self.runs(SamplerKind::Penalties)
            && self.penalty_last_n > 0
            && (self.repeat_penalty != 1.0
                || self.presence_penalty != 0.0
                || self.frequency_penalty != 0.0)
    }

    /// Whether DRY changes the logits.
    pub fn has_dry(&self) -> bool {
        self.runs(SamplerKind::Dry) && self.dry.multiplier > 0.0 && self.dry.last_n > 0
    }

    fn runs(&self, kind: SamplerKind) -> bool {
        self.mirostat.is_none() && self.samplers.contains(&kind)
    }

    /// Whether `samplers` leave nothing but the best token.
    pub fn is_greedy(&self, samplers: &[SamplerKind]) -> bool {
        self.temperature == 0.0
            && self.dynamic_temperature.range == 0.0
            && samplers.contains(&SamplerKind::Temperature)
    }

    /// Whether `kind`, where it runs, may change anything.
    pub fn has_effect(&self, kind: SamplerKind) -> bool {
        match kind {
            SamplerKind::TopNSigma => self.top_n_sigma > 0.0,
            SamplerKind::TopK => self.top_k > 0,
            SamplerKind::TopP => self.top_p < 1.0,
            SamplerKind::MinP => self.min_p > 0.0,
            SamplerKind::Temperature => {
                self.temperature != 1.0 || self.dynamic_temperature.range > 0.0
            }
            SamplerKind::Penalties
            | SamplerKind::Dry
            | SamplerKind::TypicalP
            | SamplerKind::Xtc => self.may_change_best(kind),
        }
    }

    /// Whether biases are by ascending id, one for each token.
    pub fn has_ordered_bias(&self) -> bool {
        self.logit_bias.is_sorted_by(|(a, _), (b, _)| a < b)
    }

    /// Puts biases in order; those of the same token are added up.
    pub fn order_bias(params: &mut Arc<SamplingParams>) {
        if params.has_ordered_bias() {
            return;
        }
        let bias = &mut Arc::make_mut(params).logit_bias;
        bias.sort_by_key(|&(id, _)| id);
        bias.dedup_by(|(id, more), (kept, sum)| {
            let is_same = id == kept;
            *sum += if is_same { *more } else { 0.0 };
            is_same
        });
    }

    /// Whether `kind` may change which of the candidates is the best.
    pub fn may_change_best(&self, kind: SamplerKind) -> bool {
        match kind {
            SamplerKind::Penalties => self.has_penalties(),
            SamplerKind::Dry => self.has_dry(),
            SamplerKind::TypicalP => self.typical_p < 1.0,
            SamplerKind::Xtc => self.xtc.probability > 0.0,
            SamplerKind::TopNSigma
            | SamplerKind::TopK
            | SamplerKind::TopP
            | SamplerKind::MinP
            | SamplerKind::Temperature => false,
        }
    }

    /// Refuses values that have no meaning, by name.
    pub fn validate(&self) -> Result<(), ParameterError> {
        let finite = "a finite number";
        let not_negative = "0 or more";
        let share = "between 0 and 1";
        let is_share = |v: f32| (0.0..=1.0).contains(&v);
        let is_not_negative = |v: f32| v.is_finite() && v >= 0.0;
        let DynamicTemperature { range, exponent } = self.dynamic_temperature;
        let Mirostat { tau, eta } = self.mirostat.unwrap_or_default();
        let (dry, xtc) = (&self.dry, &self.xtc);
        let is_penalty = self.repeat_penalty > 0.0 && (1.0 / self.repeat_penalty).is_finite();
        #[rustfmt::skip]
        let values = [
            ("temperature", self.temperature, is_not_negative(self.temperature), not_negative),
            ("dynatemp-range", range, is_not_negative(range), not_negative),
            ("dynatemp-exp", exponent, is_not_negative(exponent), not_negative),
            ("top-p", self.top_p, is_share(self.top_p), share),
            ("min-p", self.min_p, is_share(self.min_p), share),
            ("typical-p", self.typical_p, is_share(self.typical_p), share),
            ("top-n-sigma", self.top_n_sigma, self.top_n_sigma.is_finite(), finite),
            ("xtc-probability", xtc.probability, is_share(xtc.probability), share),
            ("xtc-threshold", xtc.threshold, is_share(xtc.threshold), share),
            ("repeat-penalty", self.repeat_penalty, self.repeat_penalty.is_finite() && is_penalty, "above 0"),
            ("presence-penalty", self.presence_penalty, self.presence_penalty.is_finite(), finite),
            ("frequency-penalty", self.frequency_penalty, self.frequency_penalty.is_finite(), finite),
            ("dry-multiplier", dry.multiplier, is_not_negative(dry.multiplier), not_negative),
            ("dry-base", dry.base, dry.base.is_finite() && dry.base >= 1.0, "1 or more"),
            ("mirostat-ent", tau, is_not_negative(tau), not_negative),
            ("mirostat-lr", eta, is_not_negative(eta), not_negative),
        ];
        for (name, value, ok, wanted) in values {
            if !ok {
                return refuse(name, value.to_string(), wanted);
            }
        }
        for (at, kind) in self.samplers.iter().enumerate() {
            if self.samplers[..at].contains(kind) {
                return refuse(
                    "samplers",
                    format!("{kind} and {kind}"),
                    "each at most once",
                );
            }
        }
        for &(id, bias) in &self.logit_bias {
            if bias.is_nan() || bias == f32::INFINITY {
                return refuse(
                    "logit-bias",
                    format!("{bias} for token {id}"),
                    "a finite number, or -inf to forbid the token",
                );
            }
        }
        let breakers = &dry.sequence_breakers;
        if breakers.len() > MAX_BREAKERS {
            return refuse(
                "the number of DRY sequence breakers",
                breakers.len().to_string(),
                "32 or less",
            );
        }
        for text in breakers {
            if text.is_empty() || text.len() > MAX_BREAKER_BYTES {
                return refuse(
                    "the length of a DRY sequence breaker",
                    format!("{} bytes", text.len()),
                    "1 to 40 bytes",
                );
            }
        }
        Ok(())
    }
}

fn refuse(name: &'static str, value: String, wanted: &'static str) -> Result<(), ParameterError> {
    Err(ParameterError {
        name,
        value,
        wanted,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_valid() {
        assert!(SamplingParams::default().validate().is_ok());
        assert!(SamplingParams::greedy().validate().is_ok());
    }

    #[test]
    fn values_without_meaning_are_refused_by_name() {
        type Change = fn(&mut SamplingParams, f32);
        let numbers: [(&str, Change, &[f32]); 16] = [
            ("temperature", |p, v| p.temperature = v, &[-0.1]),
            (
                "dynatemp-range",
                |p, v| p.dynamic_temperature.range = v,
                &[-1.0],
            ),
            (
                "dynatemp-exp",
                |p, v| p.dynamic_temperature.exponent = v,
                &[-1.0],
            ),
            ("top-p", |p, v| p.top_p = v, &[-0.1, 1.1]),
            ("min-p", |p, v| p.min_p = v, &[-0.1, 1.1]),
            ("typical-p", |p, v| p.typical_p = v, &[-0.1, 1.1]),
            ("top-n-sigma", |p, v| p.top_n_sigma = v, &[]),
            (
                "xtc-probability",
                |p, v| p.xtc.probability = v,
                &[-0.1, 1.1],
            ),
            ("xtc-threshold", |p, v| p.xtc.threshold = v, &[-0.1, 1.1]),
            (
                "repeat-penalty",
                |p, v| p.repeat_penalty = v,
                &[0.0, -1.0, 1e-40],
            ),
            ("presence-penalty", |p, v| p.presence_penalty = v, &[]),
            ("frequency-penalty", |p, v| p.frequency_penalty = v, &[]),
            ("dry-multiplier", |p, v| p.dry.multiplier = v, &[-1.0]),
            ("dry-base", |p, v| p.dry.base = v, &[0.9]),
            (
                "mirostat-ent",
                |p, v| p.mirostat.get_or_insert_default().tau = v,
                &[-1.0],
            ),
            (
                "mirostat-lr",
                |p, v| p.mirostat.get_or_insert_default().eta = v,
                &[-1.0],
            ),
        ];
        let refused = |params: SamplingParams, name: &str| {
            let message = params.validate().unwrap_err().to_string();
            assert!(message.starts_with(name), "{message}");
        };
        for (name, change, values) in numbers {
            for &value in values.iter().chain(&[f32::NAN, f32::INFINITY]) {
                let mut params = SamplingParams::default();
                change(&mut params, value);
                refused(params, name);
            }
        }
        type Spoil = fn(&mut SamplingParams);
        let others: [(&str, Spoil); 5] = [
            ("samplers is top_k and top_k", |p| {
                p.samplers = vec![SamplerKind::TopK; 2]
            }),
            ("logit-bias", |p| p.logit_bias = vec![(1, f32::NAN)]),
            ("logit-bias", |p| p.logit_bias = vec![(1, f32::INFINITY)]),
            ("the length", |p| {
                p.dry.sequence_breakers = vec![String::new()]
            }),
            ("the number", |p| {
                p.dry.sequence_breakers = vec!["a".into(); 33]
            }),
        ];
        for (name, change) in others {
            let mut params = SamplingParams::default();
            change(&mut params);
            refused(params, name);
        }
        let fine = SamplingParams {
            samplers: Vec::new(),
            logit_bias: vec![(1, f32::NEG_INFINITY)],
            ..SamplingParams::default()
        };
        assert!(fine.validate().is_ok());
    }
}
