//! Context shift on an emulated GPU, against the CPU backend.

use rocmforge_testkit::models as synth;
use std::collections::BTreeMap;
use std::sync::Arc;

use crate::common::{load, models, test_device, test_gpu};
use rocmforge_engine::{
    ContextPolicy, Device, Engine, EngineConfig, Event, KvTokens, Request, RequestId,
};
use rocmforge_gguf::{GgmlType, Gguf};
use rocmforge_model::Model;

/// The generated ids, each with the log-probabilities by id at its step, if requested.
type Answer = Vec<(u32, Vec<f32>)>;

fn run(engine: &mut Engine, requests: &[Request]) -> Vec<Answer> {
    let submitted = requests
        .iter()
        .map(|request| engine.submit(request.clone()));
    let ids: Vec<RequestId> = submitted.map(|id| id.unwrap()).collect();
    let mut answers: BTreeMap<RequestId, Answer> = BTreeMap::new();
    while !engine.is_idle() {
        for event in engine.step().unwrap() {
            if let Event::Token {
                request, id, top, ..
            } = event
            {
                let mut row = vec![0.0; top.len()];
                top.iter().for_each(|t| row[t.id as usize] = t.logprob);
                answers.entry(request).or_default().push((id, row));
            }
        }
        engine.check_integrity().unwrap();
    }
    ids.iter().map(|id| answers.remove(id).unwrap()).collect()
}

/// Covers both kinds of shift: whole blocks in a context of 64, and single tokens in a context too small for that. An
/// emulated GPU is slow, so it gets the small context and few layers.
#[test]
fn shifted_context_matches_cpu() {
    let Some(gpu) = test_gpu() else { return };
    // RoPE on a part of a head, scaled; on halves, with a window; on neighbours, with layers without RoPE.
    let (models, n_ctx, n) = match test_device() {
        Some(_) => (
            &[("phi3", None), ("gemma3", None), ("smollm3", None)][..],
            64,
            60,
        ),
        None => (&[("phi3", Some(1)), ("gemma2", Some(2))][..], 20, 6),
    };
    for &(name, n_layers) in models {
        let ty = GgmlType::F32;
        let writer = match n_layers {
            None => synth::model(name, ty).unwrap(),
            Some(n_layers) => synth::model_of(name, ty, n_layers).unwrap(),
        };
        let gguf = Gguf::from_vec(writer.unwrap().to_vec().unwrap()).unwrap();
        let model = Model::load(Arc::new(gguf)).unwrap();
        let n_vocab = model.config.n_vocab;
        // They share their first block, which neither may change for the other.
        let requests = |logprobs| {
            [n_ctx - 2, n_ctx - 3].map(|n_prompt| Request {
                ignore_eos: true,
                logprobs,
                ..Request::greedy(synth::prompt(n_prompt, n_vocab), n)
            })
        };
        let start = |device: &Device, steps_in_flight: usize| {
            let config = EngineConfig {
                device: device.clone(),
                n_ctx: Some(n_ctx),
                context_policy: ContextPolicy::Shift { n_sinks: 4 },
                kv_tokens: KvTokens::Exactly(4 * n_ctx),
                max_seqs: 2,
                page: 16,
                max_batch_tokens: 64,
                n_threads: Some(1),
                steps_in_flight,
                ..EngineConfig::default()
            };
            Engine::start(&model, None, &config).unwrap()
        };
        let mut cpu = start(&Device::Cpu, 1);
        let expected = run(&mut cpu, &requests(Some(n_vocab)));
        assert!(cpu.context_shifts().n_shifts >= 2);
        let device = Device::Gpu(gpu.clone());
        if name == "phi3" {
            let got = run(&mut start(&device, 1), &requests(Some(n_vocab)));
            for (got, expected) in got.iter().flatten().zip(expected.iter().flatten()) {
                assert_eq!(got.0, expected.0, "{name}");
                for (a, b) in got.1.iter().zip(&expected.1) {
                    assert!((a - b).abs() < 0.02 || *b < -12.0, "{name}: {a}, not {b}");
                }
            }
        }
        // With graphs, and with tokens that only the GPU knows when it shifts.
        let got = run(&mut start(&device, 2), &requests(None));
        let ids = |answers: &[Answer]| -> Vec<Vec<u32>> {
            let ids = |answer: &Answer| answer.iter().map(|(id, _)| *id).collect();
            answers.iter().map(ids).collect()
        };
        assert_eq!(ids(&got), ids(&expected), "{name}");
    }
}

#[test]
fn shifted_forge_mini_matches_cpu() {
    let (Some(gpu), Some(_)) = (test_gpu(), test_device()) else {
        println!("skipped: too slow on an emulated GPU; set ROCMFORGE_TEST_DEVICE to a device");
        return;
    };
    let (n_ctx, n_prompt, n) = (256, 200, 400);
    let model = load(&models().join("forge-mini-Q4_K_M.gguf")).model;
    let n_vocab = model.config.n_vocab;
    let prompt: Vec<u32> = (0..n_prompt)
        .map(|i| (i * 97 + 5) % n_vocab as u32)
        .collect();
    let [cpu, gpu] = [Device::Cpu, Device::Gpu(gpu)].map(|device| {
        let config = EngineConfig {
            device,
            n_ctx: Some(n_ctx),
            context_policy: ContextPolicy::Shift { n_sinks: 4 },
            ..EngineConfig::default()
        };
        let mut engine = Engine::start(&model, None, &config).unwrap();
        let request = Request {
            ignore_eos: true,
            logprobs: Some(n_vocab),
            ..Request::greedy(prompt.clone(), n)
        };
        let answer = run(&mut engine, &[request]).remove(0);
        assert!(engine.context_shifts().n_shifts > 0);
        answer
    });
    let mut worst = 0f64;
    for (step, (got, expected)) in gpu.iter().zip(&cpu).enumerate() {
        worst = worst.max(relative_squared_error(&got.1, &expected.1));
        // The bound of Q4_K_M without shifts.
        assert!(worst < 5e-3, "step {step}: {worst}");
        if got.0 != expected.0 {
            // The texts differ from here on; the two tokens were nearly tied.
            let [of_gpu, of_cpu] = [got.0, expected.0].map(|id| id as usize);
            let margin = |answer: &[f32]| (answer[of_cpu] - answer[of_gpu]).abs();
            let (here, there) = (margin(&expected.1), margin(&got.1));
            assert!(here.min(there) < 0.25, "step {step}: {here}, {there}");
            println!("texts differ from step {step} on: margins {here} and {there}");
            break;
        }
    }
    println!("relative squared error of the logits: {worst:.2e} at most");
}

/// Returns the squared error relative to the variance of `expected`. Rows of log-probabilities stand for logits, which
/// differ from them by a constant.
fn relative_squared_error(got: &[f32], expected: &[f32]) -> f64 {
    let mean = |row: &[f32]| row.iter().map(|&x| f64::from(x)).sum::<f64>() / row.len() as f64;
    let (of_got, of_expected) = (mean(got), mean(expected));
    let pairs = got.iter().zip(expected);
    let [wrong, all] = pairs.fold([0.0; 2], |[wrong, all], (&a, &b)| {
        let (a, b) = (f64::from(a) - of_got, f64::from(b) - of_expected);
        [wrong + (a - b).powi(2), all + b * b]
    });
    wrong / all
}
