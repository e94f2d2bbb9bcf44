//! Combinations of GPU modes on an emulated GPU: context shift, 8-bit KV caches, LoRA adapters, layers or experts on
//! the CPU. Each must match the CPU backend within the bounds of a GPU; graphs must match single launches bit by bit.

use rocmforge_testkit::adapters;
use rocmforge_testkit::models as synth;
use std::collections::BTreeMap;
use std::sync::Arc;

use crate::common::cases::test_cases;
use crate::common::device::config;
use crate::common::{apart, conformance, load, logits, test_gpu};
use rocmforge_engine::{ContextPolicy, Device, Engine, EngineConfig, Event, Request, RequestId};
use rocmforge_gguf::{GgmlType, Gguf, Writer};
use rocmforge_model::{Adapter, Model};
use rocmforge_plan::{KvType, KvTypes};
use rocmforge_runtime::gpu::{Experts, GpuConfig, GpuLayers, Graphs, Offload};

const STOP: ContextPolicy = ContextPolicy::Stop;
const SHIFT: ContextPolicy = ContextPolicy::Shift { n_sinks: 4 };
const ALL: GpuLayers = GpuLayers::All;
const HALF: GpuLayers = GpuLayers::Count(1);

/// A combination of modes. The model has one layer if all of it is on the GPU, otherwise two.
#[derive(Clone, Copy, Debug)]
struct Mode {
    model: &'static str,
    kv_types: KvTypes,
    layers: GpuLayers,
    experts: Experts,
    policy: ContextPolicy,
    /// Adapters by seed and scale.
    adapters: &'static [(&'static str, f32)],
}

fn mode(
    model: &'static str,
    kv_types: impl Into<KvTypes>,
    layers: GpuLayers,
    policy: ContextPolicy,
) -> Mode {
    Mode {
        model,
        kv_types: kv_types.into(),
        layers,
        experts: Experts::WithTheirLayer,
        policy,
        adapters: &[],
    }
}

test_cases! {
    combined_modes_match_cpu:
    gpt2(mode("gpt2", KvType::F16, ALL, STOP)),
    #[ignore = "exhaustive: modes that others combine"]
    qwen3_q8_0_shift(mode("qwen3", KvType::Q8_0, ALL, SHIFT)),
    qwen3_f8_shift_lora(Mode {
        adapters: &[("one", 0.7), ("two", -0.5)],
        ..mode("qwen3", KvType::F8E4M3, ALL, SHIFT)
    }),
    #[ignore = "exhaustive: modes that others combine"]
    llama_f8_half_lora(Mode {
        adapters: &[("one", 1.0)],
        ..mode("llama", KvType::F8E4M3, HALF, STOP)
    }),
    #[ignore = "exhaustive: modes that others combine"]
    phi3_q8_0_half_shift(mode("phi3", KvType::Q8_0, HALF, SHIFT)),
    #[ignore = "exhaustive: modes that others combine"]
    llama_q4_0_shift(mode("llama", KvType::Q4_0, ALL, SHIFT)),
    llama_q8_0_q4_0_shift(mode("llama", apart(KvType::Q8_0, KvType::Q4_0), ALL, SHIFT)),
    phi3_f16_q8_0_half_shift(mode("phi3", apart(KvType::F16, KvType::Q8_0), HALF, SHIFT)),
    #[ignore = "exhaustive: modes that others combine"]
    deepseek2_q8_0_shift(mode("deepseek2", KvType::Q8_0, ALL, SHIFT)),
    deepseek2_f8_half_cpu_experts(Mode {
        experts: Experts::OnCpu,
        ..mode("deepseek2", KvType::F8E4M3, HALF, STOP)
    }),
    minicpm3_shift(mode("minicpm3", KvType::F16, ALL, SHIFT)),
    mixtral_f8_cpu_experts_shift_lora(Mode {
        experts: Experts::OnCpu,
        adapters: &[("two", 1.0)],
        ..mode("mixtral", KvType::F8E4M3, ALL, SHIFT)
    }),
}

/// Compares a GPU with the CPU backend within the bounds of a GPU, and graphs with single launches bit by bit.
fn combined_modes_match_cpu(mode: Mode) {
    let Some(gpu) = test_gpu() else { return };
    let model = mode.load();
    let n_vocab = model.config.n_vocab;
    let on_gpu = |graphs, steps_in_flight| RunOn::Gpu {
        graphs,
        steps_in_flight,
    };
    let run = |run_on, n_logprobs| {
        let mut engine = mode.start(&model, &gpu, run_on);
        mode.run(&mut engine, &model, n_logprobs)
    };
    let expected = run(RunOn::Cpu, Some(n_vocab));
    let launched = run(on_gpu(Graphs::Off, 1), Some(n_vocab));
    let ids = |rows: &[Row]| rows.iter().map(|row| row.0).collect::<Vec<u32>>();
    assert_eq!(ids(&launched), ids(&expected), "{mode:?}");
    let d = difference(&launched, &expected);
    // A key may round to another code than on the CPU.
    println!("{mode:?}: {d:.1e}");
    assert!(d < 0.05, "{mode:?}: {d}");
    let recorded = run(on_gpu(Graphs::On, 1), Some(n_vocab));
    assert_eq!(bits(&recorded), bits(&launched), "{mode:?}");
    // With two steps in flight, only the GPU knows the last token when the context shifts.
    let ahead = run(on_gpu(Graphs::On, 2), None);
    assert_eq!(ids(&ahead), ids(&launched), "{mode:?}");
}

/// The device of a run.
#[derive(Clone, Copy, Debug)]
enum RunOn {
    Cpu,
    Gpu {
        graphs: Graphs,
        steps_in_flight: usize,
    },
}

impl Mode {
    /// Returns whether the CPU runs a part of the model.
    fn is_shared(&self) -> bool {
        self.layers == HALF || self.experts == Experts::OnCpu
    }

    fn load(&self) -> Model {
        let n_layers = if self.is_shared() { 2 } else { 1 };
        let writer = synth::model_of(self.model, GgmlType::F32, n_layers);
        let gguf = open(&writer.unwrap().unwrap());
        let load = |&(seed, scale): &(&str, f32)| {
            let file = open(&adapters::adapter(&gguf, seed).unwrap());
            Adapter::new(seed, file, scale).unwrap()
        };
        let adapters: Vec<Adapter> = self.adapters.iter().map(load).collect();
        Model::load_with(gguf, &adapters).unwrap()
    }

    fn start(&self, model: &Model, gpu: &GpuConfig, run_on: RunOn) -> Engine {
        let (device, steps_in_flight) = match run_on {
            RunOn::Cpu => (Device::Cpu, 1),
            RunOn::Gpu {
                graphs,
                steps_in_flight,
            } => {
                let offload = Offload {
                    layers: self.layers,
                    experts: self.experts,
                };
                let gpu = GpuConfig {
                    graphs,
                    offload,
                    ..gpu.clone()
                };
                (Device::Gpu(gpu), steps_in_flight)
            }
        };
        // Small, so that it is soon full: an emulated GPU is slow.
        let n_ctx = if self.policy == STOP { 32 } else { 12 };
        let config = EngineConfig {
            kv_types: self.kv_types,
            context_policy: self.policy,
            n_ctx: Some(n_ctx),
            steps_in_flight,
            ..config(&device)
        };
        let engine = Engine::start(model, None, &config).unwrap();
        let has_parts = self.is_shared() && !matches!(run_on, RunOn::Cpu);
        let n_parts = engine.backend_info().parts.len();
        assert_eq!(n_parts, if has_parts { 2 } else { 0 });
        engine
    }

    /// Generates with two sequences in one batch. Returns ids, and log-probabilities of `n_logprobs` tokens at each
    /// step.
    fn run(&self, engine: &mut Engine, model: &Model, n_logprobs: Option<usize>) -> Vec<Row> {
        let prompts = [10, 9].map(|n| synth::prompt(n, model.config.n_vocab));
        let ids = prompts.map(|prompt| {
            let request = Request {
                ignore_eos: true,
                logprobs: n_logprobs,
                ..Request::greedy(prompt, 6)
            };
            engine.submit(request).unwrap()
        });
        let mut rows: BTreeMap<RequestId, Vec<Row>> = BTreeMap::new();
        while !engine.is_idle() {
            for event in engine.step().unwrap() {
                if let Event::Token {
                    request, id, top, ..
                } = event
                {
                    let mut logprobs = vec![0.0; top.len()];
                    top.iter().for_each(|t| logprobs[t.id as usize] = t.logprob);
                    rows.entry(request).or_default().push((id, logprobs));
                }
            }
            engine.check_integrity().unwrap();
        }
        let shifts = engine.context_shifts().n_shifts;
        assert_eq!(shifts > 0, self.policy != STOP, "{self:?}: {shifts} shifts");
        ids.iter().flat_map(|id| rows.remove(id).unwrap()).collect()
    }
}

fn open(writer: &Writer<'_>) -> Arc<Gguf> {
    Arc::new(Gguf::from_vec(writer.to_vec().unwrap()).unwrap())
}

/// A token id, and log-probabilities by id.
type Row = (u32, Vec<f32>);

fn bits(rows: &[Row]) -> Vec<(u32, Vec<u32>)> {
    let bits = |logprobs: &[f32]| logprobs.iter().map(|x| x.to_bits()).collect();
    rows.iter().map(|(id, row)| (*id, bits(row))).collect()
}

/// Returns the largest difference of log-probabilities above -12.
fn difference(got: &[Row], expected: &[Row]) -> f32 {
    let pairs = got.iter().zip(expected);
    let pairs = pairs.flat_map(|((_, a), (_, b))| a.iter().zip(b));
    let likely = pairs.filter(|(_, expected)| **expected > -12.0);
    likely.fold(0.0, |worst, (a, b)| worst.max((a - b).abs()))
}

test_cases! {
    small_quantized_heads_match_cpu:
    q8_0(KvType::Q8_0.into()),
    f8e4m3(KvType::F8E4M3.into()),
    q5_1(KvType::Q5_1.into()),
    q4_0(KvType::Q4_0.into()),
    q8_0_q4_0(apart(KvType::Q8_0, KvType::Q4_0)),
}

/// Checks heads of 8 values, which are one block each and run on the generic attention kernel.
fn small_quantized_heads_match_cpu(kv_types: KvTypes) {
    let (Some(gpu), Some(data)) = (test_gpu(), conformance("data")) else {
        return;
    };
    let model = load(&data.join("models/stories260K.gguf")).model;
    let prompt = synth::prompt(9, model.config.n_vocab);
    let [cpu, gpu] = [Device::Cpu, Device::Gpu(gpu)].map(|device| {
        let config = EngineConfig {
            kv_types,
            ..config(&device)
        };
        let mut engine = Engine::start(&model, None, &config).unwrap();
        let n_bytes = 256 * model.kv_bytes_per_token(kv_types);
        assert_eq!(engine.backend_info().kv_bytes, n_bytes);
        logits(&mut engine, &prompt).concat()
    });
    let d = crate::common::device::difference(&gpu, &cpu);
    println!("{kv_types}: {d:.1e}");
    assert!(d < 2e-2, "{kv_types}: {d:e}");
}
