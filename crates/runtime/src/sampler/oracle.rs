//! Tests of every sampler against llama.cpp's.
//!
//! The tables were made with llama.cpp (llama-cpp-python 0.3.36): candidates with [`LOGITS`] went through
//! `llama_sampler_init_*` and `llama_sampler_apply`. The tables hold the softmax over the remaining candidates, by id,
//! to five digits. XTC ran with probability 1. For DRY and the penalties the tokens went through
//! `llama_sampler_accept`; DRY's breakers are from forge-mini's vocabulary.

use std::path::Path;
use std::sync::Arc;

use rocmforge_gguf::{Gguf, LoadMode};

use super::candidates::probabilities;
use super::*;
use rocmforge_gguf::TokenId;
use rocmforge_plan::DryHistory;
use rocmforge_plan::{Breakers, Dry, DynamicTemperature, Mirostat, Xtc};
use rocmforge_text::tokenizer::{EncodeOptions, Tokenizer};

/// ln p + 1.5, rounded, for p = 0.30, 0.22, 0.14, 0.10, 0.08, 0.06, 0.05, 0.03, 0.015, 0.005 for tokens
/// 3, 0, 7, 1, 9, 2, 5, 8, 4, 6.
const LOGITS: [f32; 10] = [
    -0.0141, -0.8026, -1.3134, 0.296, -2.6997, -1.4957, -3.7983, -0.4661, -2.0066, -1.0257,
];

type Left = [(TokenId, f64)];

fn row(params: SamplingParams, counts: &[(TokenId, u32)]) -> SampleRow {
    SampleRow {
        params: Arc::new(params),
        index: 0,
        counts: counts.to_vec(),
        dry: None,
        mu: None,
        logprobs: None,
        mask: None,
    }
}

/// Returns the candidates that the samplers of `order` leave, with their probabilities.
fn left(order: &str, params: &SamplingParams, counts: &[(TokenId, u32)]) -> Vec<(TokenId, f64)> {
    let row = row(params.clone(), counts);
    let mut logits = LOGITS;
    let mut candidates = Candidates::All(&mut logits);
    for name in order.split(';') {
        run(
            Isa::Scalar,
            name.parse().unwrap(),
            &mut candidates,
            &row,
            None,
        );
    }
    let best = candidates.best_first();
    let ids = best.iter().map(|c| c.id);
    let mut left: Vec<_> = ids.zip(probabilities(best)).collect();
    left.sort_by_key(|&(id, _)| id);
    left
}

fn check(name: &str, got: &Left, expected: &Left) {
    let close = |(a, b): (&(TokenId, f64), &(TokenId, f64))| a.0 == b.0 && (a.1 - b.1).abs() < 2e-5;
    let same = got.len() == expected.len() && got.iter().zip(expected).all(close);
    assert!(same, "{name}: {got:?}, expected {expected:?}");
}

#[rustfmt::skip]
const ALL: &Left = &[
    (0, 0.22001), (1, 0.10000), (2, 0.06000), (3, 0.29999), (4, 0.01500),
    (5, 0.05000), (6, 0.00500), (7, 0.14000), (8, 0.03000), (9, 0.08000),
];

#[test]
fn typical_p_matches_llama_cpp() {
    #[rustfmt::skip]
    let cases: [(f32, &Left); 5] = [
        (0.2, &[(1, 0.41666), (7, 0.58334)]),
        (0.5, &[(0, 0.40741), (1, 0.18518), (7, 0.25926), (9, 0.14815)]),
        (0.9, &[(0, 0.23158), (1, 0.10526), (2, 0.06316), (3, 0.31578), (5, 0.05263), (7, 0.14737), (9, 0.08421)]),
        (0.99, &[(0, 0.22111), (1, 0.10050), (2, 0.06030), (3, 0.30150), (4, 0.01508), (5, 0.05025), (7, 0.14071), (8, 0.03015), (9, 0.08040)]),
        (1.0, ALL),
    ];
    for (typical_p, expected) in cases {
        let params = SamplingParams {
            typical_p,
            ..SamplingParams::default()
        };
        check(
            &format!("typical_p {typical_p}"),
            &left("typ_p", &params, &[]),
            expected,
        );
    }
}

#[test]
fn top_n_sigma_matches_llama_cpp() {
    #[rustfmt::skip]
    let cases: [(f32, &Left); 4] = [
        (0.5, &[(0, 0.42309), (3, 0.57691)]),
        (1.0, &[(0, 0.28948), (1, 0.13158), (3, 0.39473), (7, 0.18421)]),
        (1.5, &[(0, 0.24445), (1, 0.11111), (2, 0.06667), (3, 0.33332), (7, 0.15556), (9, 0.08889)]),
        (-1.0, ALL),
    ];
    for (top_n_sigma, expected) in cases {
        let params = SamplingParams {
            top_n_sigma,
            top_k: 0,
            ..SamplingParams::default()
        };
        check(
            &format!("top_n_sigma {top_n_sigma}"),
            &left("top_n_sigma", &params, &[]),
            expected,
        );
        // Sorted first, by a sampler that keeps all.
        let params = SamplingParams {
            top_k: 10,
            ..params
        };
        check(
            &format!("top_k;top_n_sigma {top_n_sigma}"),
            &left("top_k;top_n_sigma", &params, &[]),
            expected,
        );
    }
}

#[test]
fn xtc_matches_llama_cpp() {
    #[rustfmt::skip]
    let cases: [(f32, &Left); 6] = [
        (0.05, &[(4, 0.15000), (5, 0.50001), (6, 0.05000), (8, 0.29999)]),
        (0.1, &[(1, 0.20833), (2, 0.12500), (4, 0.03125), (5, 0.10417), (6, 0.01042), (7, 0.29167), (8, 0.06250), (9, 0.16667)]),
        (0.2, &[(0, 0.31429), (1, 0.14285), (2, 0.08571), (4, 0.02143), (5, 0.07143), (6, 0.00714), (7, 0.20000), (8, 0.04285), (9, 0.11429)]),
        (0.25, ALL),
        (0.31, ALL),
        (0.51, ALL),
    ];
    for (threshold, expected) in cases {
        let xtc = Xtc {
            probability: 1.0,
            threshold,
        };
        let params = SamplingParams {
            xtc,
            ..SamplingParams::default()
        };
        check(
            &format!("xtc {threshold}"),
            &left("xtc", &params, &[]),
            expected,
        );
    }
}

#[test]
fn temperature_matches_llama_cpp() {
    #[rustfmt::skip]
    let cases: [(f32, f32, f32, &Left); 5] = [
        (0.8, 0.5, 1.0, &[(0, 0.20916), (1, 0.10421), (2, 0.06636), (3, 0.27509), (4, 0.01949), (5, 0.05648), (6, 0.00738), (7, 0.14029), (8, 0.03596), (9, 0.08556)]),
        (1.0, 1.0, 2.0, &[(0, 0.19236), (1, 0.10880), (2, 0.07521), (3, 0.24069), (4, 0.02761), (5, 0.06593), (6, 0.01248), (7, 0.13875), (8, 0.04557), (9, 0.09259)]),
        (0.5, 0.9, 0.5, &[(0, 0.19891), (1, 0.10727), (2, 0.07190), (3, 0.25360), (4, 0.02428), (5, 0.06233), (6, 0.01027), (7, 0.13961), (8, 0.04178), (9, 0.09007)]),
        (0.7, 0.0, 1.0, &[(0, 0.24985), (1, 0.08100), (2, 0.03905), (3, 0.38911), (4, 0.00539), (5, 0.03009), (6, 0.00112), (7, 0.13099), (8, 0.01450), (9, 0.05889)]),
        (0.0, 0.5, 1.0, &[(0, 0.26558), (1, 0.03988), (2, 0.01168), (3, 0.55979), (4, 0.00042), (5, 0.00753), (6, 0.00003), (7, 0.08957), (8, 0.00221), (9, 0.02332)]),
    ];
    for (temperature, range, exponent, expected) in cases {
        let params = SamplingParams {
            temperature,
            dynamic_temperature: DynamicTemperature { range, exponent },
            ..SamplingParams::default()
        };
        check(
            &format!("temperature {temperature} +- {range}"),
            &left("temperature", &params, &[]),
            expected,
        );
    }
}

#[test]
fn sampler_order_matches_llama_cpp() {
    let params = SamplingParams {
        top_k: 6,
        typical_p: 0.8,
        top_p: 0.85,
        min_p: 0.2,
        xtc: Xtc {
            probability: 1.0,
            threshold: 0.15,
        },
        temperature: 1.7,
        top_n_sigma: 1.2,
        repeat_penalty: 1.5,
        frequency_penalty: 0.2,
        presence_penalty: 0.3,
        ..SamplingParams::default()
    };
    // The text 3, 3, 0, 5.
    let counts = [(0, 1), (3, 2), (5, 1)];
    #[rustfmt::skip]
    let penalized: &Left = &[(0, 0.20464), (1, 0.15444), (2, 0.09267), (3, 0.20846), (7, 0.21623), (9, 0.12356)];
    #[rustfmt::skip]
    let cases: [(&str, &Left); 12] = [
        ("top_n_sigma;top_k;typ_p;top_p;min_p;xtc;temperature", &[(7, 1.0)]),
        ("temperature;xtc;min_p;top_p;typ_p;top_k;top_n_sigma", &[(0, 0.56608), (7, 0.43392)]),
        ("xtc;top_p;temperature", &[(0, 0.29303), (1, 0.18428), (2, 0.13645), (7, 0.22462), (9, 0.16162)]),
        ("top_p;xtc;temperature", &[(1, 0.26066), (2, 0.19301), (7, 0.31772), (9, 0.22860)]),
        ("temperature;min_p", &[(0, 0.18724), (1, 0.11775), (2, 0.08719), (3, 0.22471), (5, 0.07832), (7, 0.14352), (8, 0.05799), (9, 0.10327)]),
        ("min_p;temperature", &[(0, 0.21679), (1, 0.13634), (2, 0.10095), (3, 0.26017), (7, 0.16618), (9, 0.11957)]),
        ("temperature;typ_p;top_k", &[(0, 0.21679), (1, 0.13634), (2, 0.10095), (3, 0.26017), (7, 0.16618), (9, 0.11957)]),
        ("temperature", &[(0, 0.17684), (1, 0.11121), (2, 0.08235), (3, 0.21223), (4, 0.03643), (5, 0.07398), (6, 0.01909), (7, 0.13556), (8, 0.05477), (9, 0.09753)]),
        ("top_k", &[(0, 0.24445), (1, 0.11111), (2, 0.06667), (3, 0.33332), (7, 0.15556), (9, 0.08889)]),
        ("top_k;penalties", penalized),
        ("penalties;top_k", penalized),
        ("penalties;top_p", penalized),
    ];
    for (order, expected) in cases {
        check(order, &left(order, &params, &counts), expected);
    }
}

#[test]
fn logit_bias_matches_llama_cpp() {
    let mut logits = LOGITS;
    penalties::add_bias(
        &mut logits,
        &[(0, -1.25), (9, 2.0), (3, f32::NEG_INFINITY), (99, 1.0)],
    );
    let best = top_k(&logits, 0);
    let mut left: Vec<_> = best
        .iter()
        .map(|c| c.id)
        .zip(probabilities(&best))
        .collect();
    left.sort_by_key(|&(id, _)| id);
    #[rustfmt::skip]
    let expected = [(0, 0.05979), (1, 0.09486), (2, 0.05692), (4, 0.01423), (5, 0.04743), (6, 0.00474), (7, 0.13281), (8, 0.02846), (9, 0.56076)];
    check("logit_bias", &left, &expected);
}

#[test]
fn mirostat_matches_llama_cpp() {
    // The tokens that llama.cpp drew, each with the number of remaining candidates and its probability.
    type Path = [(TokenId, usize, f64)];
    #[rustfmt::skip]
    let paths: [(f32, f32, f32, &Path); 3] = [
        (1.0, 0.3, 1.0, &[(3, 1, 1.0), (3, 2, 0.57691), (3, 2, 0.57691), (0, 2, 0.42309), (3, 2, 0.57691), (3, 2, 0.57691)]),
        (2.0, 0.1, 0.7, &[
            (3, 4, 0.45726), (3, 5, 0.42767), (9, 5, 0.06473), (3, 4, 0.45726), (3, 4, 0.45726), (3, 5, 0.42767),
            (3, 5, 0.42767), (3, 5, 0.42767), (3, 5, 0.42767), (0, 5, 0.27461), (1, 5, 0.08902), (3, 5, 0.42767),
        ]),
        (0.4, 0.5, 1.5, &[
            (3, 1, 1.0), (3, 1, 1.0), (3, 1, 1.0), (3, 1, 1.0), (3, 1, 1.0),
            (3, 1, 1.0), (3, 1, 1.0), (3, 1, 1.0), (3, 1, 1.0), (3, 2, 0.55150),
        ]),
    ];
    for (tau, eta, temperature, path) in paths {
        let mirostat = Mirostat { tau, eta };
        let mut mu = 2.0 * tau;
        for (step, &(id, n, probability)) in path.iter().enumerate() {
            let mut logits = LOGITS;
            let mut candidates = Candidates::All(&mut logits);
            temperature::scale(Isa::Scalar, &mut candidates, temperature);
            let left = mirostat::keep_expected(&mut candidates, mu);
            assert_eq!(left.len(), n, "tau {tau}, step {step}, mu {mu}");
            let at = candidates
                .best_first()
                .iter()
                .position(|c| c.id == id)
                .unwrap();
            assert!(
                (left[at] - probability).abs() < 2e-5,
                "tau {tau}, step {step}"
            );
            mu = super::mirostat::next_mu(&mirostat, mu, left[at]);
        }
    }
}

fn forge_mini() -> Tokenizer {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/forge-mini-Q4_K_M.gguf");
    Tokenizer::from_gguf(&Gguf::open(&file, LoadMode::Mmap).unwrap(), None).unwrap()
}

#[test]
fn dry_matches_llama_cpp() {
    let tokenizer = forge_mini();
    let defaults: &[&str] = &["\n", ":", "\"", "*"];
    let mat = "the cat sat on the mat. the cat sat on the mat. the cat sat on";
    let lines = "the cat sat on:\nthe mat. the cat sat on:\nthe mat.";
    let mouse = "one day the mouse said yes. one day the mouse said";
    type Settings = (f32, f32, usize, usize);
    type Penalties = [(TokenId, f32)];
    // Text; multiplier, base, allowed length and window; breakers; penalties.
    #[rustfmt::skip]
    let cases: [(&str, Settings, &[&str], &Penalties); 9] = [
        ("the cat sat on the mat and the cat sat", (0.8, 1.75, 2, 64), defaults, &[(370, 0.8)]),
        (mat, (1.5, 2.0, 1, 64), &[], &[(280, 1536.0)]),
        (mat, (1.5, 2.0, 1, 12), &[], &[(280, 12.0)]),
        (lines, (0.8, 1.75, 2, 64), defaults, &[(280, 2.45)]),
        (lines, (0.8, 1.75, 2, 64), &[], &[(280, 22.9783)]),
        (mouse, (1.0, 1.3, 2, 64), &["day the"], &[(2196, 1.0)]),
        (mouse, (1.0, 1.3, 2, 64), &["mouse sa"], &[(2196, 1.69)]),
        (mouse, (1.0, 1.3, 0, 64), &[], &[(22, 1.0), (280, 1.0), (360, 1.0), (381, 1.0), (609, 1.0), (1747, 1.0), (2196, 2.8561)]),
        ("a a a a a a a a", (1.0, 1.1, 2, 64), &[], &[(265, 1.4641)]),
    ];
    let options = EncodeOptions {
        add_special: false,
        parse_special: false,
    };
    for (text, settings, breakers, expected) in cases {
        let (multiplier, base, allowed_length, last_n) = settings;
        let texts: Vec<String> = breakers.iter().map(|&text| text.into()).collect();
        let breakers = Arc::new(Breakers::new(tokenizer.overlapping_sequences(&texts)));
        let tokens = tokenizer.encode(text, options);
        let dry = Dry {
            multiplier,
            base,
            allowed_length,
            last_n,
            sequence_breakers: texts,
        };
        check_dry(tokenizer.n_vocab(), dry, breakers, &tokens, expected);
    }
    // The exponent is capped before an f32 overflows.
    let dry = Dry {
        multiplier: 2.0,
        base: 3.0,
        allowed_length: 1,
        last_n: 300,
        sequence_breakers: Vec::new(),
    };
    check_dry(10, dry, Arc::default(), &[5; 250], &[(5, 2.956_176_6e38)]);
}

/// Checks with all tokens known to the engine, and with the last one pending.
fn check_dry(
    n_vocab: usize,
    dry: Dry,
    breakers: Arc<Breakers>,
    tokens: &[TokenId],
    expected: &[(TokenId, f32)],
) {
    let params = SamplingParams {
        dry,
        ..SamplingParams::default()
    };
    let (&last, others) = tokens.split_last().unwrap();
    let just_sampled = Some(Sampled { id: last, mu: None });
    for (known, just_sampled) in [(tokens, None), (others, just_sampled)] {
        let mut row = row(params.clone(), &[]);
        row.dry = Some(DryHistory {
            tokens: known.to_vec(),
            breakers: Arc::clone(&breakers),
        });
        let mut logits = vec![0.0; n_vocab];
        let mut candidates = Candidates::All(&mut logits);
        run(
            Isa::Scalar,
            SamplerKind::Dry,
            &mut candidates,
            &row,
            just_sampled,
        );
        let changed = logits
            .iter()
            .enumerate()
            .filter(|&(_, &logit)| logit != 0.0);
        let penalties: Vec<_> = changed
            .map(|(id, &logit)| (id as TokenId, -logit))
            .collect();
        let close = |(a, b): (&(TokenId, f32), &(TokenId, f32))| {
            a.0 == b.0 && (a.1 - b.1).abs() <= 1e-4 * b.1
        };
        let same = penalties.len() == expected.len() && penalties.iter().zip(expected).all(close);
        assert!(
            same,
            "{:?}: {penalties:?}, expected {expected:?}",
            params.dry
        );
    }
}
