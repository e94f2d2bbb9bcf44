//! A GPU with `batch_invariant`: random traffic gives each request the bits that it has alone.
//!
//! Requests come at random, share prefixes, continue each other's answers, are preempted and computed again; prompts are
//! computed in chunks of several sizes. `ROCMFORGE_TEST_DEVICE` names a GPU to use instead of emulated ones.

use std::collections::BTreeMap;
use std::sync::Arc;

use rocmforge_engine::{
    Device, Engine, EngineConfig, Event, KvTokens, PrefixSharing, Request, RequestId,
};
use rocmforge_gguf::{GgmlType, Gguf};
use rocmforge_model::Model;
use rocmforge_plan::{KvType, KvTypes};
use rocmforge_runtime::gpu::GpuConfig;
use rocmforge_testkit::models as synth;
use rocmforge_testkit::models::families;
use rocmforge_testkit::sweep::is_full_run;

use crate::common::cases::test_cases;
use crate::common::device::{config, short_model};
use crate::common::{apart, hopper, logits, test_gpu};

/// Positions of a sequence: more than two tiles of keys.
const N_CTX: usize = 112;
const N_GENERATED: usize = 6;

/// Numbers that look random.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % n
    }
}

/// Generated tokens with the bits of the log-probability, which depends on every bit of a step's logits.
type Trace = Vec<(u32, u32)>;

/// The first emulated GPU of this build, and with `on_hopper` that with Hopper's kernels too, which is slow since it checks
/// memory accesses; or the GPU that tests are to run on.
fn gpus(on_hopper: bool) -> Vec<Device> {
    let mut gpus: Vec<GpuConfig> = test_gpu().into_iter().collect();
    if std::env::var_os("ROCMFORGE_TEST_DEVICE").is_none() && (on_hopper || is_full_run()) {
        gpus.extend(hopper().filter(|hopper| gpus.iter().all(|gpu| gpu.id != hopper.id)));
    }
    let invariant = |gpu| GpuConfig {
        batch_invariant: true,
        ..gpu
    };
    gpus.into_iter()
        .map(|gpu| Device::Gpu(invariant(gpu)))
        .collect()
}

fn request(prompt: &[u32]) -> Request {
    Request {
        ignore_eos: true,
        logprobs: Some(1),
        ..Request::greedy(prompt.to_vec(), N_GENERATED)
    }
}

/// Submits the prompts after random numbers of steps, and returns what each request gets.
fn traces(engine: &mut Engine, prompts: &[Vec<u32>], random: &mut Random) -> Vec<Trace> {
    let mut traces: BTreeMap<RequestId, Trace> = BTreeMap::new();
    let mut left = prompts.iter();
    loop {
        for prompt in left.by_ref().take(random.below(4)) {
            traces.insert(engine.submit(request(prompt)).unwrap(), Trace::new());
        }
        if engine.is_idle() && traces.len() == prompts.len() {
            return traces.into_values().collect();
        }
        for event in engine.step().unwrap() {
            if let Event::Token {
                request, id, top, ..
            } = event
            {
                let trace = traces.get_mut(&request).unwrap();
                trace.push((id, top[0].logprob.to_bits()));
            }
        }
        engine.check_integrity().unwrap();
    }
}

/// Prompts of all lengths. Some begin with the same tokens; the last one continues the answer to the first.
fn prompts(n_vocab: usize, mut alone: impl FnMut(&[u32]) -> Trace) -> Vec<Vec<u32>> {
    let text = synth::prompt(600, n_vocab);
    let mut prompts: Vec<Vec<u32>> = [1, 2, 9, 17, 66]
        .into_iter()
        .enumerate()
        .map(|(i, n)| text[80 * i..][..n].to_vec())
        .collect();
    for n in [1, 23] {
        prompts.push([&text[..34], &text[100..][..n]].concat());
    }
    let answer = alone(&prompts[4]).into_iter().map(|(id, _)| id);
    let next = prompts[5]
        .iter()
        .copied()
        .chain(answer)
        .chain(text[..20].iter().copied());
    prompts.push(next.collect());
    prompts
}

test_cases! {
    traffic_does_not_change_bits:
    llama_q4_k("llama", GgmlType::Q4_K, KvType::F16.into(), true),
    qwen3_q8_0_q4_0_cache("qwen3", GgmlType::Q8_0, apart(KvType::Q8_0, KvType::Q4_0), false),
}

#[test]
#[ignore = "exhaustive: run by .ci/run --full"]
fn traffic_of_experts_and_in_a_small_cache_does_not_change_bits() {
    traffic_does_not_change_bits("qwen2moe", GgmlType::F16, KvType::F16.into(), true);
    traffic_does_not_change_bits("qwen3", GgmlType::Q8_0, KvType::Q4_0.into(), true);
}

fn traffic_does_not_change_bits(name: &str, ty: GgmlType, kv_types: KvTypes, on_hopper: bool) {
    let model = short_model(name, ty, 1);
    for device in gpus(on_hopper) {
        check(name, &model, kv_types, &device);
    }
}

/// Layers with states: each sequence has one row in a step of answers, and begins from snapshots.
#[test]
fn traffic_does_not_change_bits_after_states() {
    let writer = families::model_of("qwen35", GgmlType::Q4_0, 2)
        .unwrap()
        .unwrap();
    let gguf = Gguf::from_vec(writer.to_vec().unwrap()).unwrap();
    let model = Model::load(Arc::new(gguf)).unwrap();
    for device in gpus(false) {
        check("qwen35", &model, KvType::F16.into(), &device);
    }
}

fn check(name: &str, model: &Model, kv_types: KvTypes, device: &Device) {
    let base = EngineConfig {
        n_ctx: Some(N_CTX),
        kv_tokens: KvTokens::Exactly(2 * N_CTX),
        max_batch_tokens: 128,
        max_seqs: 1,
        kv_types,
        ..config(device)
    };
    let mut engine = Engine::start(model, None, &base).unwrap();
    let mut alone =
        |prompt: &[u32]| traces(&mut engine, &[prompt.to_vec()], &mut Random(1)).remove(0);
    let prompts = prompts(model.config.n_vocab, &mut alone);
    let expected: Vec<Trace> = prompts.iter().map(|prompt| alone(prompt)).collect();
    let random = &mut Random(7);
    // In the second round, all prompts are in the cache.
    let n_rounds = 1 + usize::from(is_full_run());
    // The second cache is so small that sequences are preempted.
    for (max_seqs, max_batch_tokens, n_contexts) in [(12, 24, 6), (5, 70, 1)] {
        let config = EngineConfig {
            max_seqs,
            max_batch_tokens,
            kv_tokens: KvTokens::Exactly(n_contexts * N_CTX),
            prefix_sharing: PrefixSharing::On,
            steps_in_flight: 2,
            ..base.clone()
        };
        let mut engine = Engine::start(model, None, &config).unwrap();
        for round in 0..n_rounds {
            let found = traces(&mut engine, &prompts, random);
            for (i, (found, expected)) in found.iter().zip(&expected).enumerate() {
                assert_eq!(
                    found, expected,
                    "{name}, prompt {i}, {max_batch_tokens} tokens, round {round}, {device:?}"
                );
            }
        }
        let stats = engine.stats();
        assert!(stats.prefix.hits > 0, "prompts are found in the cache");
        // Fewer sequences of models with states run at once.
        let is_full = n_contexts == 1 && model.plan.states.is_empty();
        assert!(stats.preemptions > 0 || !is_full, "a sequence is preempted");
    }
}

test_cases! {
    chunks_do_not_change_bits:
    llama("llama", 1, true),
    gemma3("gemma3", 2, true),
    qwen2moe("qwen2moe", 1, true),
    deepseek2("deepseek2", 2, false),
}

/// All logits of a prompt. Activations of F16 weights are not rounded to codes, which would hide most differences.
fn chunks_do_not_change_bits(name: &str, n_layers: usize, on_hopper: bool) {
    let model = short_model(name, GgmlType::F16, n_layers);
    let prompt = synth::prompt(40, model.config.n_vocab);
    for device in gpus(on_hopper) {
        let bits = |max_batch_tokens| {
            let config = EngineConfig {
                max_batch_tokens,
                max_seqs: 1,
                ..config(&device)
            };
            let mut engine = Engine::start(&model, None, &config).unwrap();
            let rows = logits(&mut engine, &prompt).concat();
            rows.into_iter().map(f32::to_bits).collect::<Vec<u32>>()
        };
        let chunks = bits(9);
        assert!(chunks == bits(40), "{name}, {device:?}");
    }
}
