//! Context shift on the CPU. In a one-layer model, keys and values depend only on their token and position, so a
//! shifted context must predict the same as a fresh run over the kept tokens. Deeper models are compared with llama.cpp
//! over the same shifts.

use rocmforge_engine::ConfigError;
use rocmforge_testkit::models as synth;
use std::collections::BTreeMap;
use std::sync::Arc;

use crate::common::{apart, load, logits, models, read_json};
use rocmforge_engine::{
    ContextPolicy, Engine, EngineConfig, EngineError, Event, FinishReason, KvTokens, Request,
    RequestId, StopCause,
};
use rocmforge_gguf::TokenId;
use rocmforge_gguf::{GgmlType, Gguf};
use rocmforge_model::Model;
use rocmforge_plan::KvType;
use rocmforge_plan::SamplingParams;
use rocmforge_text::tokenizer::{Detokenizer, LeadingSpace, SpecialText};

const N_CTX: usize = 48;
const N_SINKS: usize = 4;
const SHIFT: ContextPolicy = ContextPolicy::Shift { n_sinks: N_SINKS };

/// Returns a random model with `n_layers`, or with enough layers for all its features.
fn model(name: &str, n_layers: Option<usize>) -> Model {
    let ty = GgmlType::F32;
    let writer = match n_layers {
        None => synth::model(name, ty).unwrap(),
        Some(n_layers) => synth::model_of(name, ty, n_layers).unwrap(),
    };
    let bytes = writer.unwrap().to_vec().unwrap();
    Model::load(Arc::new(Gguf::from_vec(bytes).unwrap())).unwrap()
}

fn config() -> EngineConfig {
    EngineConfig {
        n_ctx: Some(N_CTX),
        context_policy: SHIFT,
        page: 16,
        max_batch_tokens: 24,
        n_threads: Some(1),
        ..EngineConfig::default()
    }
}

/// The output of a request.
#[derive(Debug, Default, PartialEq)]
struct Answer {
    ids: Vec<TokenId>,
    /// Log-probabilities of all tokens, by id, at each step.
    logprobs: Vec<Vec<f32>>,
    text: String,
    reason: Option<FinishReason>,
}

/// Runs `requests` in one batch.
fn run(engine: &mut Engine, requests: &[Request]) -> Vec<Answer> {
    let ids: Vec<RequestId> = requests
        .iter()
        .map(|request| engine.submit(request.clone()).unwrap())
        .collect();
    let mut answers: BTreeMap<RequestId, Answer> = BTreeMap::new();
    while !engine.is_idle() {
        for event in engine.step().unwrap() {
            let answer = answers.entry(event.request()).or_default();
            match event {
                Event::Token { id, text, top, .. } => {
                    answer.ids.push(id);
                    answer.text.push_str(&text);
                    let mut row = vec![0.0; top.len()];
                    top.iter().for_each(|t| row[t.id as usize] = t.logprob);
                    answer.logprobs.push(row);
                }
                Event::Finished { text, reason, .. } => {
                    answer.text.push_str(&text);
                    answer.reason = Some(reason);
                }
                Event::Failed { .. } => panic!("logits are NaN or infinite"),
                _ => {}
            }
        }
        engine.check_integrity().unwrap();
    }
    ids.iter().map(|id| answers.remove(id).unwrap()).collect()
}

/// Returns a greedy request that reports `n_vocab` log-probabilities per token, if set.
fn request(prompt: &[TokenId], n: usize, n_vocab: Option<usize>) -> Request {
    Request {
        ignore_eos: true,
        logprobs: n_vocab,
        ..Request::greedy(prompt.to_vec(), n)
    }
}

fn log_softmax(logits: &[f32]) -> Vec<f32> {
    let sum: f64 = logits.iter().map(|&x| f64::from(x).exp()).sum();
    let log_sum = sum.ln() as f32;
    logits.iter().map(|x| x - log_sum).collect()
}

/// Returns the largest difference of log-probabilities between generation with shifts of 32 tokens and fresh runs over
/// the tokens that each shift kept, and the number of shifts.
fn difference_to_fresh_runs(config: &EngineConfig, model: &Model) -> (f32, usize) {
    let n_vocab = model.config.n_vocab;
    let prompt = synth::prompt(40, n_vocab);
    let mut engine = Engine::start(model, None, config).unwrap();
    let answer = run(&mut engine, &[request(&prompt, 90, Some(n_vocab))]).remove(0);
    assert_eq!(answer.reason, Some(FinishReason::Length));

    // The tokens by position, and for each prediction its position and its index in the answer.
    let mut held: Vec<TokenId> = prompt;
    let mut predicted: Vec<(usize, usize)> = vec![(held.len() - 1, 0)];
    let mut worst = 0f32;
    let mut n_shifts = 0;
    let n_answer = answer.ids.len();
    for (index, &id) in answer.ids.iter().enumerate() {
        if held.len() == N_CTX || index + 1 == n_answer {
            let fresh = logits(&mut engine, &held);
            for &(position, index) in &predicted {
                let expected = log_softmax(&fresh[position]);
                let pairs = answer.logprobs[index].iter().zip(expected);
                // Very unlikely tokens are not compared.
                let errors = pairs
                    .filter(|(_, e)| *e > -12.0)
                    .map(|(a, b)| (a - b).abs());
                worst = errors.fold(worst, f32::max);
            }
            predicted.clear();
        }
        if held.len() == N_CTX {
            held.drain(N_SINKS..N_SINKS + 32);
            n_shifts += 1;
        }
        held.push(id);
        predicted.push((held.len() - 1, index + 1));
    }
    assert_eq!(engine.context_shifts().n_shifts, n_shifts);
    assert_eq!(engine.context_shifts().n_tokens, 32 * n_shifts);
    (worst, n_shifts)
}

#[test]
fn shifted_context_matches_a_fresh_run_in_one_layer() {
    // Rotations of neighbours and of halves, of a part of a head, scaled, by YaRN and LongRoPE with their factors;
    // norms of heads, biases and a window; the last part of the keys of latent attention.
    let archs = [
        "llama",
        "qwen2",
        "qwen3",
        "phi3",
        "olmo3",
        "gemma2",
        "gemma3",
        "mixtral",
        "deepseek2",
        "minicpm3",
    ];
    for name in archs {
        let model = model(name, Some(1));
        let config = EngineConfig {
            kv_types: KvType::F32.into(),
            ..config()
        };
        let (worst, n_shifts) = difference_to_fresh_runs(&config, &model);
        assert_eq!(n_shifts, 3, "{name}");
        assert!(worst < 2e-4, "{name}: {worst}");
    }
    // The error of rounding a rotated key again.
    for (kv_types, bound) in [
        (KvType::F16.into(), 0.01),
        (KvType::Q8_0.into(), 0.15),
        (KvType::Q5_1.into(), 0.6),
        (KvType::Q4_0.into(), 1.2),
        // Values keep their bits.
        (apart(KvType::F32, KvType::Q4_0), 2e-4),
        (apart(KvType::F16, KvType::Q8_0), 0.01),
        (apart(KvType::Q8_0, KvType::Q4_0), 0.15),
        (apart(KvType::Q4_0, KvType::F32), 1.2),
    ] {
        let config = EngineConfig {
            kv_types,
            ..config()
        };
        let (worst, _) = difference_to_fresh_runs(&config, &model("llama", Some(1)));
        assert!(worst < bound, "{kv_types}: {worst}");
    }
}

#[test]
fn batching_and_steps_in_flight_do_not_change_results() {
    let model = model("llama", None);
    let n_vocab = model.config.n_vocab;
    let prompts = [
        synth::prompt(40, n_vocab),
        synth::prompt(47, n_vocab),
        vec![5],
    ];
    let sampled = Arc::new(SamplingParams {
        seed: 3,
        repeat_penalty: 1.3,
        penalty_last_n: 20,
        ..SamplingParams::default()
    });
    let mut requests: Vec<Request> = prompts
        .iter()
        .map(|p| request(p, 110, Some(n_vocab)))
        .collect();
    requests[1].sampling = sampled;
    // One request that stops, and one with other sinks.
    requests.push(Request {
        context_policy: Some(ContextPolicy::Stop),
        ..requests[0].clone()
    });
    requests.push(Request {
        context_policy: Some(ContextPolicy::Shift { n_sinks: 17 }),
        ..requests[0].clone()
    });
    let alone: Vec<Answer> = requests
        .iter()
        .map(|request| {
            let mut engine = Engine::start(&model, None, &config()).unwrap();
            run(&mut engine, std::slice::from_ref(request)).remove(0)
        })
        .collect();
    assert_eq!(alone[3].reason, Some(FinishReason::Context));
    assert_ne!(alone[0].ids[20..], alone[4].ids[20..]);
    for steps_in_flight in [1, 2] {
        // A cache of two contexts and a block: sequences are preempted and computed again.
        let config = EngineConfig {
            steps_in_flight,
            kv_tokens: KvTokens::Exactly(2 * N_CTX + 16),
            ..config()
        };
        let mut engine = Engine::start(&model, None, &config).unwrap();
        assert!(
            run(&mut engine, &requests) == alone,
            "{steps_in_flight} in flight"
        );
        assert!(engine.context_shifts().n_shifts > 8);
    }
}

#[test]
fn text_and_stop_strings_work_across_shifts() {
    let loaded = load(&models().join("forge-mini-Q4_K_M.gguf"));
    let config = EngineConfig {
        n_ctx: Some(64),
        ..config()
    };
    let mut engine = loaded.engine(&config);
    let prompt = [594, 677, 265, 507];
    let long = run(&mut engine, &[request(&prompt, 200, None)]).remove(0);
    assert_eq!(long.ids.len(), 200);
    let mut detokenizer = Detokenizer::new(SpecialText::Hide, LeadingSpace::Keep);
    let mut text = String::new();
    for &id in &long.ids {
        text.push_str(&detokenizer.push(&loaded.tokenizer, id));
    }
    text.push_str(&detokenizer.finish());
    assert_eq!(long.text, text);
    // A stop string long after the first shift; the text before it is complete.
    let at = text
        .char_indices()
        .nth(text.chars().count() * 3 / 4)
        .unwrap()
        .0;
    let stop = text[at..].chars().take(12).collect::<String>();
    let first = text.find(&stop).unwrap();
    let stopped = Request {
        stop: vec![stop],
        ..request(&prompt, 200, None)
    };
    let stopped = run(&mut engine, &[stopped]).remove(0);
    assert_eq!(stopped.text, text[..first]);
    let cause = StopCause::Text(0);
    assert_eq!(stopped.reason, Some(FinishReason::Stop(cause)));
}

#[test]
fn rejects_contexts_that_cannot_shift() {
    let learned = model("gpt2", Some(1));
    let start = |model: &Model, config: &EngineConfig| Engine::start(model, None, config);
    let refused = start(&learned, &config()).err().unwrap();
    assert!(
        matches!(refused, EngineError::Config(ConfigError::FixedPositions)),
        "{refused}"
    );
    let stops = EngineConfig {
        context_policy: ContextPolicy::Stop,
        ..config()
    };
    let mut engine = start(&learned, &stops).unwrap();
    let request = Request {
        context_policy: Some(SHIFT),
        ..Request::greedy(vec![1], 1)
    };
    let refused = engine.submit(request).unwrap_err().to_string();
    assert!(refused.contains("the context policy `stop`"), "{refused}");

    let rotates = model("llama", Some(1));
    for (n_ctx, n_sinks) in [(5, 4), (1, 4), (48, 47), (48, usize::MAX)] {
        let config = EngineConfig {
            n_ctx: Some(n_ctx),
            context_policy: ContextPolicy::Shift { n_sinks },
            ..config()
        };
        let refused = start(&rotates, &config).err().unwrap().to_string();
        assert!(refused.contains("fewer sinks"), "{refused}");
    }
    // The smallest context that shifts: every new token drops the one before the last.
    let config = EngineConfig {
        n_ctx: Some(6),
        ..config()
    };
    let mut engine = start(&rotates, &config).unwrap();
    let answer = run(&mut engine, &[request_of(20)]).remove(0);
    assert_eq!(answer.ids.len(), 20);
    assert_eq!(engine.context_shifts().n_shifts, 16);
}

fn request_of(n: usize) -> Request {
    request(&[1, 7, 9], n, None)
}

/// The fixture is made by `cargo xtask shift-golden`.
#[test]
fn shifted_context_matches_llama_cpp() {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/fixtures/context_shift.json"
    );
    for (name, case) in read_json(path.as_ref()).as_object().unwrap() {
        let golden = &case["llama_cpp"];
        let (prompt, expected) = (
            crate::common::ids(&case["prompt_ids"]),
            crate::common::ids(&golden["ids"]),
        );
        // The margin below which the best token may differ, and the bound of log-probabilities.
        let (model, kv_type, [clear_margin, bound]) = match name.as_str() {
            "forge-mini" => {
                let path = models().join("forge-mini-Q4_K_M.gguf");
                (load(&path).model, KvType::F16, [0.3, 0.7])
            }
            name => (model(name, None), KvType::F32, [0.002, 0.002]),
        };
        let config = EngineConfig {
            n_ctx: Some(case["n_ctx"].as_u64().unwrap() as usize),
            kv_types: kv_type.into(),
            ..config()
        };
        let mut engine = Engine::start(&model, None, &config).unwrap();
        let request = request(&prompt, expected.len(), Some(model.config.n_vocab));
        let answer = run(&mut engine, &[request]).remove(0);
        let n_forgotten = engine.context_shifts().n_tokens as u64;
        assert_eq!(Some(n_forgotten), golden["n_forgotten"].as_u64(), "{name}");
        let rows = golden["top"].as_array().unwrap();
        let mut n_equal = 0;
        for (step, (row, &id)) in rows.iter().zip(&expected).enumerate() {
            let entry = |i: usize| {
                let (id, logprob) = (&row[i][0], &row[i][1]);
                (
                    id.as_u64().unwrap() as usize,
                    logprob.as_f64().unwrap() as f32,
                )
            };
            for (other, wanted) in [entry(0), entry(1)] {
                let got = answer.logprobs[step][other];
                assert!(
                    (got - wanted).abs() < bound,
                    "{name} step {step}: {got}, not {wanted}"
                );
            }
            if answer.ids[step] != id {
                let margin = entry(0).1 - entry(1).1;
                assert!(margin < clear_margin, "{name} step {step}: margin {margin}");
                break;
            }
            n_equal += 1;
        }
        println!("{name}: {n_equal} equal steps");
        assert!(n_equal > 64, "{name}: {n_equal} equal steps");
    }
}
