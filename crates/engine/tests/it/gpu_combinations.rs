//! Modes of a GPU together, on the CPU that plays one: contexts that shift, caches of 8 bits, adapters, layers or
//! experts that stay on the CPU. Each gives what the CPU backend gives, within the bounds of a GPU, and as graphs what
//! it gives launch by launch, to the last bit.

use rocmforge_testkit::adapters;
use rocmforge_testkit::models as synth;
use std::collections::BTreeMap;
use std::sync::Arc;

use crate::common::device::config;
use crate::common::{conformance, load, logits, test_gpu};
use rocmforge_engine::{ContextPolicy, Device, Engine, EngineConfig, Event, Request, RequestId};
use rocmforge_gguf::{GgmlType, Gguf, Writer};
use rocmforge_model::{Adapter, Model};
use rocmforge_plan::KvType;
use rocmforge_runtime::gpu::{Experts, GpuConfig, GpuLayers, Graphs, Offload};

const STOP: ContextPolicy = ContextPolicy::Stop;
const SHIFT: ContextPolicy = ContextPolicy::Shift { n_sinks: 4 };
const ALL: GpuLayers = GpuLayers::All;
const HALF: GpuLayers = GpuLayers::Count(1);

/// Of models of one layer where all are the GPU's, else of two.
#[derive(Clone, Copy, Debug)]
struct Mode {
    model: &'static str,
    kv_type: KvType,
    layers: GpuLayers,
    experts: Experts,
    policy: ContextPolicy,
    /// By seed and scale.
    adapters: &'static [(&'static str, f32)],
}

const fn mode(
    model: &'static str,
    kv_type: KvType,
    layers: GpuLayers,
    policy: ContextPolicy,
) -> Mode {
    Mode {
        model,
        kv_type,
        layers,
        experts: Experts::WithTheirLayer,
        policy,
        adapters: &[],
    }
}

const MODES: [Mode; 6] = [
    mode("gpt2", KvType::F16, ALL, STOP),
    mode("qwen3", KvType::Q8_0, ALL, SHIFT),
    Mode {
        adapters: &[("one", 0.7), ("two", -0.5)],
        ..mode("qwen3", KvType::F8E4M3, ALL, SHIFT)
    },
    Mode {
        adapters: &[("one", 1.0)],
        ..mode("llama", KvType::F8E4M3, HALF, STOP)
    },
    mode("phi3", KvType::Q8_0, HALF, SHIFT),
    Mode {
        experts: Experts::OnCpu,
        adapters: &[("two", 1.0)],
        ..mode("mixtral", KvType::F8E4M3, ALL, SHIFT)
    },
];

/// How an engine runs its steps.
#[derive(Clone, Copy, Debug)]
enum Way {
    Cpu,
    Gpu {
        graphs: Graphs,
        steps_in_flight: usize,
    },
}

impl Mode {
    /// Whether the CPU has a part, too.
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

    fn start(&self, model: &Model, gpu: &GpuConfig, way: Way) -> Engine {
        let (device, steps_in_flight) = match way {
            Way::Cpu => (Device::Cpu, 1),
            Way::Gpu {
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
        // Small, so that it is soon full: the CPU takes its time to play a GPU.
        let n_ctx = if self.policy == STOP { 32 } else { 12 };
        let config = EngineConfig {
            kv_type: self.kv_type,
            context_policy: self.policy,
            n_ctx: Some(n_ctx),
            steps_in_flight,
            ..config(&device)
        };
        let engine = Engine::start(model, None, &config).unwrap();
        let has_parts = self.is_shared() && !matches!(way, Way::Cpu);
        let n_parts = engine.backend_info().parts.len();
        assert_eq!(n_parts, if has_parts { 2 } else { 0 });
        engine
    }

    /// What two sequences together go on with: ids, and log-probabilities of `n_logprobs` tokens before each choice.
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

/// An id, and log-probabilities by id.
type Row = (u32, Vec<f32>);

fn bits(rows: &[Row]) -> Vec<(u32, Vec<u32>)> {
    let bits = |logprobs: &[f32]| logprobs.iter().map(|x| x.to_bits()).collect();
    rows.iter().map(|(id, row)| (*id, bits(row))).collect()
}

/// The largest difference of log-probabilities, of what is not all but impossible.
fn difference(got: &[Row], expected: &[Row]) -> f32 {
    let pairs = got.iter().zip(expected);
    let pairs = pairs.flat_map(|((_, a), (_, b))| a.iter().zip(b));
    let likely = pairs.filter(|(_, expected)| **expected > -12.0);
    likely.fold(0.0, |worst, (a, b)| worst.max((a - b).abs()))
}

#[test]
fn modes_together_go_on_as_on_the_cpu_as_graphs_and_as_launches() {
    let Some(gpu) = test_gpu() else { return };
    for mode in MODES {
        let model = mode.load();
        let n_vocab = model.config.n_vocab;
        let way = |graphs, steps_in_flight| Way::Gpu {
            graphs,
            steps_in_flight,
        };
        let run = |way, n_logprobs| {
            let mut engine = mode.start(&model, &gpu, way);
            mode.run(&mut engine, &model, n_logprobs)
        };
        let expected = run(Way::Cpu, Some(n_vocab));
        let launched = run(way(Graphs::Off, 1), Some(n_vocab));
        let ids = |rows: &[Row]| rows.iter().map(|row| row.0).collect::<Vec<u32>>();
        assert_eq!(ids(&launched), ids(&expected), "{mode:?}");
        let d = difference(&launched, &expected);
        // What the GPU computes of a key may lie on the other side of the middle between two codes.
        println!("{mode:?}: {d:.1e}");
        assert!(d < 0.05, "{mode:?}: {d}");
        let recorded = run(way(Graphs::On, 1), Some(n_vocab));
        assert_eq!(bits(&recorded), bits(&launched), "{mode:?}");
        // With tokens that only the device knows when the context shifts.
        let ahead = run(way(Graphs::On, 2), None);
        assert_eq!(ids(&ahead), ids(&launched), "{mode:?}");
    }
}

/// Heads of 8 values, a block of Q8_0 each, and wide enough for no kernel of their own.
#[test]
fn small_heads_in_8_bits_give_the_logits_of_the_cpu() {
    let (Some(gpu), Some(data)) = (test_gpu(), conformance("data")) else {
        return;
    };
    let model = load(&data.join("models/stories260K.gguf")).model;
    let prompt = synth::prompt(9, model.config.n_vocab);
    for kv_type in [KvType::Q8_0, KvType::F8E4M3] {
        let [cpu, gpu] = [Device::Cpu, Device::Gpu(gpu.clone())].map(|device| {
            let config = EngineConfig {
                kv_type,
                ..config(&device)
            };
            let mut engine = Engine::start(&model, None, &config).unwrap();
            let n_bytes = 256 * model.kv_bytes_per_token(kv_type);
            assert_eq!(engine.backend_info().kv_bytes, n_bytes);
            logits(&mut engine, &prompt).concat()
        });
        let d = crate::common::device::difference(&gpu, &cpu);
        println!("{kv_type:?}: {d:.1e}");
        assert!(d < 2e-2, "{kv_type:?}: {d:e}");
    }
}
