//! A request gives the same bits whatever shares its batches and however its prompt is cut.

use std::collections::BTreeMap;

use crate::common::{forge_mini_files, greedy, load, logits, models};
use rocmforge_cpu::Isa;
use rocmforge_engine::{EngineConfig, Event, PrefixSharing, Request, RequestId};
use rocmforge_plan::Fusion;
use rocmforge_plan::KvType;
use rocmforge_plan::{Dry, Mirostat, SamplingParams, Xtc};

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

/// Ids and the bits of the five best log-probabilities of each step.
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

/// The sampling of the `at`-th prompt.
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
            // The state changes much with each token.
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
            // A text of few tokens repeats itself all the time.
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

#[test]
fn eight_prompts_together_give_what_each_gives_alone() {
    let embedded = models().join("forge-mini-Q4_K_M.gguf");
    let coded = [KvType::Q8_0, KvType::F8E4M3].map(|kv_type| {
        let what = format!("Q4_K_M, cache in {}", kv_type.name());
        ((what, embedded.clone()), kv_type)
    });
    let files = forge_mini_files()
        .into_iter()
        .map(|file| (file, KvType::F16));
    for ((variant, path), kv_type) in files.chain(coded) {
        let loaded = load(&path);
        let options = rocmforge_text::tokenizer::EncodeOptions {
            parse_special: true,
            ..Default::default()
        };
        let prompts: Vec<Vec<u32>> = PROMPTS
            .iter()
            .map(|text| loaded.tokenizer.encode(text, options))
            .collect();
        // Each prompt has samplers of its own, so that a row that took another's state would show.
        let sampling: Vec<SamplingParams> = (0..PROMPTS.len()).map(sampling).collect();
        let base = EngineConfig {
            n_ctx: Some(256),
            n_kv_tokens: Some(4096),
            kv_type,
            ..EngineConfig::default()
        };
        let alone: Vec<Trace> = prompts
            .iter()
            .zip(&sampling)
            .flat_map(|(prompt, sampling)| {
                let (prompt, sampling) =
                    (std::slice::from_ref(prompt), std::slice::from_ref(sampling));
                run(&loaded, &base, prompt, sampling)
            })
            .collect();
        let companies = [
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
            // A cache for one context only: sequences give way and are computed again.
            EngineConfig {
                n_kv_tokens: None,
                page: 16,
                steps_in_flight: 2,
                ..base.clone()
            },
        ];
        for config in companies {
            let together = run(&loaded, &config, &prompts, &sampling);
            for (prompt, (together, alone)) in PROMPTS.iter().zip(together.iter().zip(&alone)) {
                assert_eq!(together, alone, "{variant}: {prompt:?} in {config:?}");
            }
        }
    }
}

#[test]
fn a_prompt_s_logits_do_not_depend_on_its_chunks() {
    let loaded = load(&models().join("forge-mini-Q4_K_M.gguf"));
    let text = PROMPTS.concat();
    let prompt = loaded.tokenizer.encode(&text, Default::default());
    let kv_types = [KvType::F16, KvType::F32, KvType::Q8_0, KvType::F8E4M3];
    let cases = Isa::available()
        .into_iter()
        .flat_map(|isa| kv_types.map(|kv_type| (isa, kv_type)));
    for (isa, kv_type) in cases {
        let bits = |max_batch_tokens: usize, n_threads: usize| -> Vec<Vec<u32>> {
            let config = EngineConfig {
                max_batch_tokens,
                max_seqs: 1,
                n_threads: Some(n_threads),
                kv_type,
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
        for (max_batch_tokens, n_threads) in [(1, 1), (3, 2), (17, 1), (64, 3)] {
            assert!(
                bits(max_batch_tokens, n_threads) == whole,
                "{isa:?} {kv_type:?}: chunks of {max_batch_tokens} on {n_threads} threads"
            );
        }
    }
}

#[test]
fn a_shared_prefix_changes_nothing() {
    let loaded = load(&models().join("forge-mini-Q4_K_M.gguf"));
    let prompt = loaded
        .tokenizer
        .encode(&PROMPTS.concat(), Default::default());
    let shared = EngineConfig::default();
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
            } = event
            {
                assert_eq!(request, id);
                cached = Some(cached_tokens);
            }
        }
    }
    assert_eq!(cached, Some((prompt.len() - 1) / 32 * 32));
}
