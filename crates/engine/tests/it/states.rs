//! Models whose layers keep states of sequences: the bits of their logits do not depend on how a prompt is divided, on
//! company, on prefixes that other requests left, and on preemption.

use std::collections::BTreeMap;
use std::sync::Arc;

use rocmforge_engine::{
    ContextPolicy, Device, Engine, EngineConfig, Event, KvTokens, PrefixSharing, Request, RequestId,
};
use rocmforge_gguf::{GgmlType, Gguf, Writer};
use rocmforge_model::Model;
use rocmforge_plan::{Fusion, Side};
use rocmforge_runtime::check;
use rocmforge_runtime::check::{Coverage, Extent, OpCheck, SelfCheck};
use rocmforge_runtime::gpu::{Experts, GpuConfig, GpuLayers, Graphs, Offload};
use rocmforge_testkit::models::{families, prompt};

use crate::common::cases::test_cases;
use crate::common::device::difference;
use crate::common::{greedy, logits, test_gpu};

fn load(name: &str) -> Model {
    loaded(families::model(name, GgmlType::Q4_0).unwrap().unwrap())
}

/// Returns the first layers of a model.
fn short(name: &str, ty: GgmlType, n_layers: usize) -> Model {
    loaded(families::model_of(name, ty, n_layers).unwrap().unwrap())
}

fn loaded(writer: Writer<'_>) -> Model {
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

/// `for_each_state!(check)` defines a test for each family with states. Those with layers like another's have the attribute that
/// is given.
macro_rules! for_each_state {
    ($(#[$like:meta])? $check:ident) => {
        test_cases! {
            $check:
            lfm2("lfm2"),
            $(#[$like])?
            lfm2moe("lfm2moe"),
            qwen35("qwen35"),
            $(#[$like])?
            qwen35_wide("qwen35_wide"),
            $(#[$like])?
            qwen35moe("qwen35moe"),
            $(#[$like])?
            qwen3next("qwen3next"),
            $(#[$like])?
            qwen3next_old("qwen3next_old"),
            mamba2("mamba2"),
            $(#[$like])?
            granitehybrid("granitehybrid"),
            $(#[$like])?
            granitehybrid_moe("granitehybrid_moe"),
            falcon_h1("falcon_h1"),
            $(#[$like])?
            nemotron_h("nemotron_h"),
            nemotron_h_moe("nemotron_h_moe"),
            $(#[$like])?
            nemotron_h_latent("nemotron_h_latent"),
            kimi_linear("kimi_linear"),
            jamba("jamba"),
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

for_each_state!(
    #[ignore = "exhaustive: layers like others"]
    requests_get_what_they_get_alone
);

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

fn on_gpu(gpu: &GpuConfig) -> EngineConfig {
    EngineConfig {
        device: Device::Gpu(gpu.clone()),
        ..config()
    }
}

fn on_layers(gpu: &GpuConfig, n: usize) -> EngineConfig {
    on_gpu(&GpuConfig {
        offload: Offload {
            layers: GpuLayers::Count(n),
            experts: Experts::WithTheirLayer,
        },
        ..gpu.clone()
    })
}

/// A conversation on a GPU: each turn begins from a snapshot, and gets what a fresh engine computes.
#[test]
fn a_gpu_keeps_states() {
    let Some(gpu) = test_gpu() else { return };
    let model = short("qwen35", GgmlType::Q4_0, 2);
    let mut engine = Engine::start(&model, None, &on_gpu(&gpu)).unwrap();
    let info = engine.backend_info();
    assert!(info.parts.is_empty(), "all is on the GPU: {:?}", info.parts);
    assert_eq!(info.notices, [] as [String; 0]);
    // Four slots for each of eight sequences.
    assert_eq!(info.state_bytes, 32 * model.plan.state_bytes());
    let mut text = prompt(70, model.config.n_vocab);
    for turn in 0..3 {
        let n_hits = engine.stats().prefix.hits;
        let answer = greedy(&mut engine, &text, 6);
        let fresh = EngineConfig {
            prefix_sharing: PrefixSharing::Off,
            ..on_gpu(&gpu)
        };
        let mut fresh = Engine::start(&model, None, &fresh).unwrap();
        assert_eq!(answer, greedy(&mut fresh, &text, 6), "turn {turn}");
        // All whole pages before the last question.
        let wanted = match turn {
            0 => 0,
            _ => (text.len() as u64 - 21) / 32 * 32,
        };
        assert_eq!(engine.stats().prefix.hits - n_hits, wanted, "turn {turn}");
        text.extend(answer);
        text.extend(prompt(20, model.config.n_vocab));
        engine.check_integrity().unwrap();
    }
}

test_cases! {
    thirty_turns_compute_only_what_is_new:
    on_the_cpu(false),
    on_a_gpu(true),
}

/// A conversation of 30 turns, which parts into two in its middle that go on by turns: each turn computes the last question,
/// and less than a page of what is before it.
fn thirty_turns_compute_only_what_is_new(is_on_gpu: bool) {
    const PAGE: usize = 32;
    let (config, n_answer, n_branch) = match is_on_gpu {
        false => (config(), 4, 10),
        // An emulated one is slow.
        true => {
            let Some(gpu) = test_gpu() else { return };
            (on_gpu(&gpu), 2, 3)
        }
    };
    let model = short("qwen35", GgmlType::Q4_0, 2);
    let mut engine = Engine::start(&model, None, &config).unwrap();
    let n_vocab = model.config.n_vocab as u32;
    let mut turn = |text: &mut Vec<u32>, question: u32, n_known: usize| {
        text.extend([question % n_vocab; 3]);
        let n_hits = engine.stats().prefix.hits;
        let answer = greedy(&mut engine, text, n_answer);
        let n_cached = (engine.stats().prefix.hits - n_hits) as usize;
        assert_eq!(n_cached, n_known / PAGE * PAGE, "question {question}");
        engine.check_integrity().unwrap();
        text.extend(answer);
    };
    let mut text = prompt(37, model.config.n_vocab);
    turn(&mut text, 100, 0);
    let mut branches: Vec<Vec<u32>> = Vec::new();
    for question in 101..130 {
        if question == 115 {
            branches = vec![text.clone(), text.clone()];
        }
        // The last token of an answer has not been computed.
        let n_known = text.len() - 1;
        turn(&mut text, question, n_known);
    }
    for question in 0..n_branch {
        for (branch, text) in branches.iter_mut().enumerate() {
            let n_known = text.len() - 1;
            turn(text, 200 + 100 * branch as u32 + question, n_known);
        }
    }
    // The answers are those of an engine that has no cache.
    let fresh = EngineConfig {
        prefix_sharing: PrefixSharing::Off,
        ..config
    };
    let mut fresh = Engine::start(&model, None, &fresh).unwrap();
    for text in branches.iter().chain([&text]) {
        let (before, answer) = text.split_at(text.len() - n_answer);
        assert_eq!(greedy(&mut fresh, before, n_answer), answer);
    }
}

// The second number is that of operations which a layer's launches save.
test_cases! {
    a_gpu_computes_what_the_cpu_does:
    lfm2("lfm2", 0),
    qwen35_wide("qwen35_wide", 9 + 2),
    mamba2("mamba2", 7),
    kimi_linear("kimi_linear", 13),
    bailingmoe3("bailingmoe3", 14),
    nemotron_h("nemotron_h", 7),
    jamba("jamba", 8),
    plamo2("plamo2", 7),
}

/// Every operation of a prompt and of a decode step, and the states after it.
fn a_gpu_computes_what_the_cpu_does(name: &str, n_saved: usize) {
    let Some(gpu) = test_gpu() else { return };
    let model = short(name, GgmlType::Q4_0, 2);
    let tokens = prompt(60, model.config.n_vocab);
    let report = check::check(
        &model,
        &on_gpu(&gpu),
        &tokens,
        &Extent::after(20, Coverage::Distinct),
    )
    .unwrap();
    let failures: Vec<&OpCheck> = report.failures().collect();
    assert!(failures.is_empty(), "{name}: {failures:#?}");
    let plan = model.compiled_plan(Fusion::On);
    let n_linear = plan.ops.iter().filter(|op| op.name() == "linear_attention");
    let n_launched = plan.ops.len() - n_linear.count() * n_saved;
    assert!(report.n_ops <= 4 * n_launched, "{name}: {}", report.n_ops);
}

test_cases! {
    graphs_replay_steps_with_states:
    lfm2("lfm2", SelfCheck::Always),
    qwen35("qwen35", SelfCheck::Never),
    mamba2("mamba2", SelfCheck::Never),
}

/// One sequence, and four whose steps are padded as they end, with and without graphs, have the same bits.
fn graphs_replay_steps_with_states(name: &str, self_check: SelfCheck) {
    let Some(gpu) = test_gpu() else { return };
    let model = short(name, GgmlType::Q4_0, 2);
    let prompts: Vec<Vec<u32>> = [40, 3, 17, 1]
        .map(|n| prompt(n, model.config.n_vocab))
        .to_vec();
    let run = |graphs, self_check, steps_in_flight| {
        let gpu = GpuConfig {
            graphs,
            self_check,
            ..gpu.clone()
        };
        let config = EngineConfig {
            steps_in_flight,
            ..on_gpu(&gpu)
        };
        let mut engine = Engine::start(&model, None, &config).unwrap();
        assert_eq!(engine.backend_info().notices, [] as [String; 0]);
        let mut all = Vec::new();
        for prompts in [&prompts[..1], &prompts] {
            for (i, prompt) in prompts.iter().enumerate() {
                let mut request = Request::greedy(prompt.clone(), 4 + i);
                request.logprobs = Some(1);
                request.ignore_eos = true;
                engine.submit(request).unwrap();
            }
            while !engine.is_idle() {
                for event in engine.step().unwrap() {
                    if let Event::Token { id, top, .. } = event {
                        all.push((id, top[0].logprob.to_bits()));
                    }
                }
                engine.check_integrity().unwrap();
            }
        }
        all
    };
    let expected = run(Graphs::Off, SelfCheck::Never, 1);
    let recorded = run(Graphs::On, self_check, 2);
    assert_eq!(recorded, expected, "{name}");
}

test_cases! {
    layers_with_states_may_be_on_both_sides:
    mamba2("mamba2"),
    falcon_h1("falcon_h1"),
    nemotron_h_moe("nemotron_h_moe"),
}

/// Any number of layers, up to that of the file, on the GPU.
fn layers_with_states_may_be_on_both_sides(name: &str) {
    let Some(gpu) = test_gpu() else { return };
    let model = short(name, GgmlType::F16, 4);
    let text = prompt(20, model.config.n_vocab);
    let mut on_cpu = Engine::on_cpu(&model, None, &config()).unwrap();
    let expected = logits(&mut on_cpu, &text).concat();
    let n_layers = model.config.n_layers();
    for n in [1, n_layers / 2, n_layers] {
        let mut engine = Engine::start(&model, None, &on_layers(&gpu, n)).unwrap();
        let info = engine.backend_info();
        let on = |side| info.parts.iter().find(|part| part.side == side);
        match n < n_layers {
            true => assert_eq!(on(Side::Gpu).map(|part| part.n_layers), Some(n), "{name}"),
            false => assert!(info.parts.is_empty(), "{name}"),
        }
        assert!(info.state_bytes >= model.plan.state_bytes());
        let d = difference(&logits(&mut engine, &text).concat(), &expected);
        assert!(d <= 1e-5, "{name}, {n} layers: {d:e}");
    }
    let refused = Engine::start(&model, None, &on_layers(&gpu, n_layers + 2));
    let refused = refused.err().unwrap().to_string();
    assert!(refused.contains(&format!("{n_layers} layers")), "{refused}");
}
