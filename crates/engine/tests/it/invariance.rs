//! Batch invariance: a request gives the same bits whatever else is in its batches and however its prompt is chunked.

use std::collections::BTreeMap;

use crate::common::cases::{for_each_variant, test_cases};
use crate::common::{apart, forge_mini_file, greedy, load, logits, models};
use rocmforge_cpu::Isa;
use rocmforge_engine::{EngineConfig, Event, KvTokens, PrefixSharing, Request, RequestId};
use rocmforge_plan::Fusion;
use rocmforge_plan::{Dry, Mirostat, SamplingParams, Xtc};
use rocmforge_plan::{KvType, KvTypes};
use rocmforge_testkit::sweep::is_full_run;

const PROMPTS: [&str; 8] = [
    "Once upon a time",
    "<|im_start|>user\nWho are you?<|im_end|>\n<|im_start|>assistant\n",
    "The cat",
    "One winter morning, Simon went to the market and bought a",
    "a",
    "<|im_start|>user\nGive me a JSON object with name Nora and age 34.<|im_end|>\n<|im_start|>assistant\n",
    "There was a house with a red door. In the house lived a family of mice who loved to eat nuts. One day",
    "Hello",
];

/// The ids and the bits of the five best log-probabilities of each step.
type Trace = Vec<(u32, Vec<(u32, u32)>)>;

fn run(
    loaded: &crate::common::Loaded,
    config: &EngineConfig,
    prompts: &[Vec<u32>],
    sampling: &[SamplingParams],
) -> Vec<Trace> {
    let mut engine = loaded.engine(config);
    let mut traces: BTreeMap<RequestId, Trace> = BTreeMap::new();
    for (prompt, sampling) in prompts.iter().zip(sampling) {
        let mut request = Request::greedy(prompt.clone(), 24);
        request.sampling = std::sync::Arc::new(sampling.clone());
        request.logprobs = Some(5);
        request.ignore_eos = true;
        traces.insert(engine.submit(request).unwrap(), Trace::new());
    }
    while !engine.is_idle() {
        for event in engine.step().unwrap() {
            if let Event::Token {
                request, id, top, ..
            } = event
            {
                let bits = top.iter().map(|t| (t.id, t.logprob.to_bits())).collect();
                traces.get_mut(&request).unwrap().push((id, bits));
            }
        }
        engine.check_integrity().unwrap();
    }
    traces.into_values().collect()
}

/// Returns the sampling parameters of the `at`-th prompt.
fn sampling(at: usize) -> SamplingParams {
    let base = SamplingParams {
        seed: 7,
        ..SamplingParams::default()
    };
    match at % 4 {
        0 => SamplingParams {
            repeat_penalty: 1.1,
            ..base
        },
        1 => SamplingParams {
            // Large changes of the state with each token.
            mirostat: Some(Mirostat { tau: 1.0, eta: 1.0 }),
            temperature: 1.5,
            ..base
        },
        2 => SamplingParams {
            dry: Dry {
                multiplier: 2.0,
                allowed_length: 0,
                last_n: 8,
                sequence_breakers: Vec::new(),
                ..Dry::default()
            },
            // Few likely tokens, so that the text repeats itself.
            logit_bias: (300..308).map(|id| (id, 30.0)).collect(),
            ..base
        },
        _ => SamplingParams {
            typical_p: 0.9,
            xtc: Xtc {
                probability: 0.5,
                threshold: 0.1,
            },
            presence_penalty: 0.5,
            penalty_last_n: 4,
            ..base
        },
    }
}

for_each_variant!(
    #[ignore = "exhaustive: formats like others"]
    batching_is_bit_identical
);

fn batching_is_bit_identical(variant: &str) {
    assert_batching(variant, KvType::F16.into());
}

test_cases! {
    batching_with_a_coded_cache_is_bit_identical:
    #[ignore = "exhaustive: types like others"]
    q8_0(KvType::Q8_0.into()),
    f8e4m3(KvType::F8E4M3.into()),
    #[ignore = "exhaustive: types like others"]
    q5_1(KvType::Q5_1.into()),
    #[ignore = "exhaustive: types like others"]
    q4_0(KvType::Q4_0.into()),
    q8_0_q4_0(apart(KvType::Q8_0, KvType::Q4_0)),
}

fn batching_with_a_coded_cache_is_bit_identical(kv_types: KvTypes) {
    assert_batching("Q4_K_M", kv_types);
}

/// Compares eight prompts in one batch with each prompt alone.
fn assert_batching(variant: &str, kv_types: KvTypes) {
    let Some(path) = forge_mini_file(variant) else {
        return;
    };
    let loaded = load(&path);
    let options = rocmforge_text::tokenizer::EncodeOptions {
        parse_special: true,
        ..Default::default()
    };
    let prompts: Vec<Vec<u32>> = PROMPTS
        .iter()
        .map(|text| loaded.tokenizer.encode(text, options))
        .collect();
    // Prompts have different samplers, to detect rows that take another row's state.
    let sampling: Vec<SamplingParams> = (0..PROMPTS.len()).map(sampling).collect();
    let base = EngineConfig {
        n_ctx: Some(256),
        kv_tokens: KvTokens::Exactly(4096),
        kv_types,
        ..EngineConfig::default()
    };
    let alone: Vec<Trace> = prompts
        .iter()
        .zip(&sampling)
        .flat_map(|(prompt, sampling)| {
            let (prompt, sampling) = (std::slice::from_ref(prompt), std::slice::from_ref(sampling));
            run(&loaded, &base, prompt, sampling)
        })
        .collect();
    let configs = [
        base.clone(),
        EngineConfig {
            fusion: Fusion::Off,
            ..base.clone()
        },
        EngineConfig {
            max_seqs: 8,
            max_batch_tokens: 8,
            page: 64,
            ..base.clone()
        },
        EngineConfig {
            max_seqs: 3,
            steps_in_flight: 2,
            n_threads: Some(1),
            ..base.clone()
        },
        // A cache of one context: sequences are preempted and computed again.
        EngineConfig {
            kv_tokens: KvTokens::OneContext,
            page: 16,
            steps_in_flight: 2,
            ..base.clone()
        },
    ];
    for config in configs {
        let together = run(&loaded, &config, &prompts, &sampling);
        for (prompt, (together, alone)) in PROMPTS.iter().zip(together.iter().zip(&alone)) {
            assert_eq!(together, alone, "{variant}: {prompt:?} in {config:?}");
        }
    }
}

test_cases! {
    chunked_prefill_is_bit_identical:
    f16(KvType::F16.into()),
    f32(KvType::F32.into()),
    q8_0(KvType::Q8_0.into()),
    f8e4m3(KvType::F8E4M3.into()),
    q5_1(KvType::Q5_1.into()),
    q4_0(KvType::Q4_0.into()),
    f16_q8_0(apart(KvType::F16, KvType::Q8_0)),
    q8_0_q4_0(apart(KvType::Q8_0, KvType::Q4_0)),
}

fn chunked_prefill_is_bit_identical(kv_types: KvTypes) {
    let loaded = load(&models().join("forge-mini-Q4_K_M.gguf"));
    let text = PROMPTS.concat();
    let prompt = loaded.tokenizer.encode(&text, Default::default());
    // The scalar loops are slow, and tests of the kernels have them with every type. So here they have one, in chunks of one
    // size, unless nothing is left out.
    let has_scalar = kv_types == KvType::F16.into() || is_full_run();
    let isas = Isa::available().into_iter();
    for isa in isas.filter(|&isa| isa != Isa::Scalar || has_scalar) {
        let bits = |max_batch_tokens: usize, n_threads: usize| -> Vec<Vec<u32>> {
            let config = EngineConfig {
                max_batch_tokens,
                max_seqs: 1,
                n_threads: Some(n_threads),
                kv_types,
                page: [16, 32, 64][max_batch_tokens % 3],
                isa,
                ..EngineConfig::default()
            };
            let rows = logits(&mut loaded.engine(&config), &prompt);
            rows.iter()
                .map(|row| row.iter().map(|x| x.to_bits()).collect())
                .collect()
        };
        let whole = bits(512, 2);
        let chunks: &[(usize, usize)] = match kv_types.same() {
            Some(KvType::F16) if isa != Isa::Scalar || is_full_run() => {
                &[(1, 1), (3, 2), (17, 1), (64, 3)]
            }
            Some(KvType::F16) => &[(17, 2)],
            _ => &[(3, 2), (17, 1)],
        };
        for &(max_batch_tokens, n_threads) in chunks {
            assert!(
                bits(max_batch_tokens, n_threads) == whole,
                "{isa:?} {kv_types}: chunks of {max_batch_tokens} on {n_threads} threads"
            );
        }
    }
}

test_cases! {
    prefix_sharing_does_not_change_results:
    f16(KvType::F16.into()),
    q4_0(KvType::Q4_0.into()),
    q8_0_q4_0(apart(KvType::Q8_0, KvType::Q4_0)),
}

fn prefix_sharing_does_not_change_results(kv_types: KvTypes) {
    let loaded = load(&models().join("forge-mini-Q4_K_M.gguf"));
    let prompt = loaded
        .tokenizer
        .encode(&PROMPTS.concat(), Default::default());
    let shared = EngineConfig {
        kv_types,
        ..EngineConfig::default()
    };
    let unshared = EngineConfig {
        prefix_sharing: PrefixSharing::Off,
        ..shared.clone()
    };
    let expected = greedy(&mut loaded.engine(&unshared), &prompt, 16);
    let mut engine = loaded.engine(&shared);
    for turn in 0..3 {
        assert_eq!(greedy(&mut engine, &prompt, 16), expected, "turn {turn}");
    }
    let mut request = Request::greedy(prompt.clone(), 1);
    request.ignore_eos = true;
    let id = engine.submit(request).unwrap();
    let mut cached = None;
    while !engine.is_idle() {
        for event in engine.step().unwrap() {
            if let Event::PromptDone {
                request,
                cached_tokens,
                ..
            } = event
            {
                assert_eq!(request, id);
                cached = Some(cached_tokens);
            }
        }
    }
    assert_eq!(cached, Some((prompt.len() - 1) / 32 * 32));
}
