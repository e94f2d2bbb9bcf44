//! Requests that a GPU can sample itself: logit bias, penalties, top-k, top-p, min-p and temperature in this order,
//! then one draw. Default requests qualify; samplers without effect may be anywhere in the order.

use super::random::{Use, uniform};
use rocmforge_plan::SampleRow;
use rocmforge_plan::SamplerKind;

/// The samplers that a GPU has, in its order.
const ORDER: [SamplerKind; 5] = [
    SamplerKind::Penalties,
    SamplerKind::TopK,
    SamplerKind::TopP,
    SamplerKind::MinP,
    SamplerKind::Temperature,
];

/// From how many tokens a row is drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kept {
    /// From this many best ones; above 0.
    Best(usize),
    All,
}

/// The sampler parameters of a row. Those of absent samplers have no effect.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct FixedOrder {
    pub(crate) kept: Kept,
    pub(crate) top_p: f32,
    /// Natural logarithm of min-p.
    pub(crate) ln_min_p: f32,
    /// 0 takes the best token.
    pub(crate) temperature: f32,
    /// The random number of the draw, in `[0, 1)`.
    pub(crate) uniform: f64,
}

impl FixedOrder {
    /// Returns `None` if the request needs other samplers, another order, or more than `max_top_k` candidates but not all
    /// tokens.
    pub(crate) fn of(row: &SampleRow, max_top_k: usize) -> Option<FixedOrder> {
        let params = &*row.params;
        let runs = |kind| params.samplers.contains(&kind) && params.has_effect(kind);
        let mut order = ORDER.iter();
        let mut running = params.samplers.iter().filter(|&&kind| runs(kind));
        let is_in_order = running.all(|kind| order.any(|next| next == kind));
        let is_fixed = params.mirostat.is_none()
            && params.dynamic_temperature.range == 0.0
            && params.has_ordered_bias();
        if !is_in_order || !is_fixed {
            return None;
        }
        let kept = match params.is_greedy(&params.samplers) {
            true => Kept::Best(1),
            false if !runs(SamplerKind::TopK) => Kept::All,
            false if params.top_k <= max_top_k => Kept::Best(params.top_k),
            false => return None,
        };
        let or = |kind, value: f32, none: f32| if runs(kind) { value } else { none };
        Some(FixedOrder {
            kept,
            top_p: or(SamplerKind::TopP, params.top_p, 1.0),
            ln_min_p: or(SamplerKind::MinP, params.min_p.ln(), f32::NEG_INFINITY),
            temperature: or(SamplerKind::Temperature, params.temperature, 1.0),
            uniform: uniform(params.seed, row.index, Use::Token),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use rocmforge_plan::{Dry, DynamicTemperature, Mirostat, SamplingParams, Xtc};

    fn of(params: SamplingParams) -> Option<FixedOrder> {
        let row = SampleRow {
            params: Arc::new(params),
            index: 0,
            counts: Vec::new(),
            dry: None,
            mu: None,
            logprobs: None,
            mask: None,
        };
        FixedOrder::of(&row, 100)
    }

    #[test]
    fn default_requests_qualify() {
        let found = of(SamplingParams::default()).unwrap();
        let expected = FixedOrder {
            kept: Kept::Best(40),
            top_p: 0.95,
            ln_min_p: 0.05f32.ln(),
            temperature: 0.8,
            uniform: found.uniform,
        };
        assert_eq!(found, expected);
        assert!((0.0..1.0).contains(&found.uniform));
    }

    #[test]
    fn absent_samplers_have_no_effect() {
        use SamplerKind::{MinP, Temperature, TopK, Xtc};
        // Samplers without effect may be anywhere.
        let samplers = vec![Xtc, TopK];
        let found = of(SamplingParams {
            samplers,
            ..SamplingParams::default()
        });
        let found = found.unwrap();
        assert_eq!((found.top_p, found.temperature), (1.0, 1.0));
        assert_eq!(found.ln_min_p, f32::NEG_INFINITY);
        // A greedy choice needs no top-k, even with penalties.
        let found = of(SamplingParams {
            samplers: vec![SamplerKind::Penalties, MinP, Temperature],
            repeat_penalty: 1.1,
            ..SamplingParams::greedy()
        });
        let found = found.unwrap();
        assert_eq!((found.kept, found.temperature), (Kept::Best(1), 0.0));
    }

    #[test]
    fn without_top_k_all_tokens_are_kept() {
        use SamplerKind::{Temperature, TopP};
        let all = SamplingParams {
            top_k: 0,
            ..SamplingParams::default()
        };
        let no_top_k = SamplingParams {
            samplers: vec![TopP, Temperature],
            ..SamplingParams::default()
        };
        for params in [all, no_top_k] {
            assert_eq!(of(params).unwrap().kept, Kept::All);
        }
    }

    #[test]
    fn other_requests_are_left_to_the_host() {
        use SamplerKind::{Penalties, Temperature, TopK, TopP};
        let plain = SamplingParams::default;
        let xtc = Xtc {
            probability: 0.5,
            threshold: 0.1,
        };
        let dry = Dry {
            multiplier: 0.8,
            ..Dry::default()
        };
        let dynamic_temperature = DynamicTemperature {
            range: 0.2,
            exponent: 1.0,
        };
        #[rustfmt::skip]
        let cases = [
            ("too many candidates", SamplingParams { top_k: 101, ..plain() }),
            ("another order", SamplingParams { samplers: vec![TopK, Temperature, TopP], ..plain() }),
            ("late penalties", SamplingParams { samplers: vec![TopK, Penalties], presence_penalty: 1.0, ..plain() }),
            ("typical", SamplingParams { typical_p: 0.9, ..plain() }),
            ("sigma", SamplingParams { top_n_sigma: 1.0, ..plain() }),
            ("XTC", SamplingParams { xtc, ..plain() }),
            ("DRY", SamplingParams { dry, ..plain() }),
            ("dynamic temperature", SamplingParams { dynamic_temperature, ..plain() }),
            ("Mirostat", SamplingParams { mirostat: Some(Mirostat::default()), ..plain() }),
            ("bias out of order", SamplingParams { logit_bias: vec![(2, 1.0), (2, 1.0)], ..plain() }),
        ];
        for (name, params) in cases {
            assert_eq!(of(params), None, "{name}");
        }
    }
}
