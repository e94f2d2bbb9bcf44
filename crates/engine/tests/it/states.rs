//! Models whose layers keep states of sequences: the bits of their logits do not depend on how a prompt is divided, on
//! company, on prefixes that other requests left, and on preemption.

use std::collections::BTreeMap;
use std::sync::Arc;

use rocmforge_engine::{
    ContextPolicy, Device, Engine, EngineConfig, Event, KvTokens, PrefixSharing, Request, RequestId,
};
use rocmforge_gguf::{GgmlType, Gguf};
use rocmforge_model::Model;
use rocmforge_plan::Side;
use rocmforge_testkit::models::{families, prompt};

use crate::common::cases::test_cases;
use crate::common::{greedy, logits, test_gpu};

fn load(name: &str) -> Model {
    let writer = families::model(name, GgmlType::Q4_0).unwrap().unwrap();
    let gguf = Gguf::from_vec(writer.to_vec().unwrap()).unwrap();
    Model::load(Arc::new(gguf)).unwrap()
}

fn config() -> EngineConfig {
    EngineConfig {
        n_ctx: Some(512),
        kv_tokens: KvTokens::Exactly(4096),
        max_seqs: 8,
        n_threads: Some(2),
        ..EngineConfig::default()
    }
}

/// `for_each_state!(check)` defines a test for each family with states.
macro_rules! for_each_state {
    ($check:ident) => {
        test_cases! {
            $check:
            lfm2("lfm2"),
            lfm2moe("lfm2moe"),
            qwen35("qwen35"),
            qwen35_wide("qwen35_wide"),
            qwen35moe("qwen35moe"),
            qwen3next("qwen3next"),
            qwen3next_old("qwen3next_old"),
            mamba2("mamba2"),
            granitehybrid("granitehybrid"),
            granitehybrid_moe("granitehybrid_moe"),
            falcon_h1("falcon_h1"),
            nemotron_h("nemotron_h"),
            nemotron_h_moe("nemotron_h_moe"),
            nemotron_h_latent("nemotron_h_latent"),
        }
    };
}

for_each_state!(logits_have_the_same_bits_in_any_chunks);

fn logits_have_the_same_bits_in_any_chunks(name: &str) {
    let model = load(name);
    let prompt = prompt(150, model.config.n_vocab);
    let run = |chunk: usize, n_threads: usize| {
        let config = EngineConfig {
            max_seqs: 1,
            max_batch_tokens: chunk,
            n_threads: Some(n_threads),
            ..config()
        };
        let mut engine = Engine::on_cpu(&model, None, &config).unwrap();
        logits(&mut engine, &prompt)
    };
    let whole = run(150, 2);
    for (chunk, n_threads) in [(1, 2), (7, 1), (64, 3)] {
        assert!(run(chunk, n_threads) == whole, "{name}, chunks of {chunk}");
    }
}

/// The ids and the bits of the best log-probabilities of each step.
type Trace = Vec<(u32, Vec<u32>)>;

/// Runs requests of 24 tokens together, and aborts every fourth one after some; returns what the others got, and the tokens
/// of prompts that came from the cache.
fn run(engine: &mut Engine, prompts: &[Vec<u32>]) -> (Vec<Option<Trace>>, usize) {
    let mut traces: BTreeMap<RequestId, Trace> = BTreeMap::new();
    let mut aborted = Vec::new();
    let mut n_cached = 0;
    for (at, prompt) in prompts.iter().enumerate() {
        let mut request = Request::greedy(prompt.clone(), 40);
        request.logprobs = Some(3);
        request.ignore_eos = true;
        let id = engine.submit(request).unwrap();
        traces.insert(id, Trace::new());
        if at % 4 == 3 && prompts.len() > 1 {
            aborted.push(id);
        }
    }
    while !engine.is_idle() {
        for event in engine.step().unwrap() {
            match event {
                Event::Token {
                    request, id, top, ..
                } => {
                    let bits = top.iter().map(|t| t.logprob.to_bits()).collect();
                    let trace = traces.get_mut(&request).unwrap();
                    trace.push((id, bits));
                    if trace.len() == 9 && aborted.contains(&request) {
                        engine.abort(request);
                    }
                }
                Event::PromptDone { cached_tokens, .. } => n_cached += cached_tokens,
                _ => {}
            }
        }
        engine.check_integrity().unwrap();
    }
    let traces = traces.into_iter();
    let finished = traces.map(|(id, trace)| (!aborted.contains(&id)).then_some(trace));
    (finished.collect(), n_cached)
}

for_each_state!(requests_get_what_they_get_alone);

/// Prompts with common beginnings, together, one after the other on what the first left, and with too little memory for all.
fn requests_get_what_they_get_alone(name: &str) {
    let model = load(name);
    let n_vocab = model.config.n_vocab as u32;
    let prompts: Vec<Vec<u32>> = (0..8)
        .map(|i| {
            let mut prompt = prompt(20 + 17 * i, n_vocab as usize);
            let n = prompt.len();
            prompt[n - 5..]
                .iter_mut()
                .for_each(|id| *id = (*id + i as u32) % n_vocab);
            prompt
        })
        .collect();
    let alone: Vec<Trace> = prompts
        .iter()
        .map(|prompt| {
            let config = EngineConfig {
                prefix_sharing: PrefixSharing::Off,
                ..config()
            };
            let mut engine = Engine::on_cpu(&model, None, &config).unwrap();
            let (mut traces, _) = run(&mut engine, std::slice::from_ref(prompt));
            traces.remove(0).unwrap()
        })
        .collect();
    let tight = EngineConfig {
        n_ctx: Some(192),
        kv_tokens: KvTokens::Exactly(256),
        ..config()
    };
    for (what, config) in [("together", config()), ("in little memory", tight)] {
        let mut engine = Engine::on_cpu(&model, None, &config).unwrap();
        for _ in 0..2 {
            let (together, _) = run(&mut engine, &prompts);
            for (at, (found, expected)) in together.iter().zip(&alone).enumerate() {
                if let Some(found) = found {
                    assert!(found == expected, "{name}, {what}, {at}");
                }
            }
        }
        let is_tight = what == "in little memory";
        assert_eq!(engine.stats().preemptions > 0, is_tight, "{name}, {what}");
    }
    // A conversation: the next turn has the answer and another question.
    let mut engine = Engine::on_cpu(&model, None, &config()).unwrap();
    let mut text = prompts[3].clone();
    for turn in 0..4 {
        let (mut traces, n_cached) = run(&mut engine, std::slice::from_ref(&text));
        let trace = traces.remove(0).unwrap();
        let fresh = EngineConfig {
            prefix_sharing: PrefixSharing::Off,
            ..config()
        };
        let mut fresh = Engine::on_cpu(&model, None, &fresh).unwrap();
        let (mut expected, _) = run(&mut fresh, std::slice::from_ref(&text));
        assert!(trace == expected.remove(0).unwrap(), "{name}, turn {turn}");
        // All whole pages before the last question, whose five tokens are new.
        let known = text.len() - 6;
        let wanted = if turn == 0 { 0 } else { known / 32 * 32 };
        assert_eq!(n_cached, wanted, "{name}, turn {turn}");
        text.extend(trace.iter().map(|(id, _)| id));
        text.extend([7 + turn; 5]);
    }
}

#[test]
fn contexts_with_states_do_not_shift() {
    let model = load("qwen35");
    let shift = ContextPolicy::Shift { n_sinks: 4 };
    let config_of = |context_policy| EngineConfig {
        context_policy,
        ..config()
    };
    let refused = Engine::on_cpu(&model, None, &config_of(shift))
        .err()
        .unwrap();
    assert!(
        refused.to_string().contains("cannot forget a token"),
        "{refused}"
    );
    let mut engine = Engine::on_cpu(&model, None, &config()).unwrap();
    let mut request = Request::greedy(vec![1, 2, 3], 4);
    request.context_policy = Some(shift);
    let refused = engine.submit(request).err().unwrap();
    assert!(
        refused.to_string().contains("cannot forget a token"),
        "{refused}"
    );
}

/// What keeps states runs on the CPU, and the rest of the model on the GPU, which says so.
#[test]
fn a_gpu_leaves_states_to_the_cpu() {
    let Some(gpu) = test_gpu() else { return };
    let model = load("qwen35");
    let config = EngineConfig {
        device: Device::Gpu(gpu),
        ..config()
    };
    let mut engine = Engine::start(&model, None, &config).unwrap();
    let info = engine.backend_info();
    let n_states = model.plan.states.len();
    let on = |side| info.parts.iter().find(|part| part.side == side).unwrap();
    assert_eq!(on(Side::Cpu).n_ops, n_states + 1);
    assert!(on(Side::Gpu).n_ops > 3 * n_states);
    let says = |notice: &String| notice.contains("computed on the CPU");
    assert!(info.notices.iter().any(says), "{:?}", info.notices);
    assert!(info.state_bytes >= model.plan.state_bytes());
    // From the start, and from the snapshot after the prompt.
    let text = prompt(70, model.config.n_vocab);
    let first = greedy(&mut engine, &text, 4);
    assert_eq!(engine.stats().prefix.hits, 0);
    assert_eq!(first, greedy(&mut engine, &text, 4));
    assert_eq!(engine.stats().prefix.hits, 64);
}
