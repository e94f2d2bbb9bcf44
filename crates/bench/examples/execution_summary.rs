//! Prints what a model split between a GPU and the CPU executes on each of them, for a prompt and some tokens.
//!
//! `execution_summary MODEL DEVICE LAYERS`, such as `models/forge-mini-Q4_K_M.gguf cuda:0 5`, or `host:nv` for an
//! emulated GPU. The GPU computes the last LAYERS layers and the output.

use std::error::Error;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use rocmforge_bench::requests::random_prompt;
use rocmforge_engine::{Device, Engine, EngineConfig, Request};
use rocmforge_gguf::{Gguf, LoadMode};
use rocmforge_model::Model;
use rocmforge_plan::PlanCost;
use rocmforge_profile::ops::PlanOps;
use rocmforge_profile::telemetry::{self, BackendExecutionSummary};
use rocmforge_runtime::gpu::{GpuConfig, GpuLayers, Offload};
use rocmforge_runtime::times::{StepObserver, StepTimes};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const N_PROMPT: usize = 32;
const N_GENERATED: usize = 4;
/// Events printed individually.
const N_SHOWN: usize = 12;

/// Records the times of each step; called on the device's thread.
#[derive(Clone, Default)]
struct Steps(Arc<Mutex<Vec<StepTimes>>>);

impl StepObserver for Steps {
    fn step(&mut self, times: StepTimes) {
        let mut steps = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        steps.push(times);
    }
}

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [model, device, layers] = &args[..] else {
        return Err("expected MODEL DEVICE LAYERS".into());
    };
    let gguf = Gguf::open(Path::new(model), LoadMode::Mmap)?;
    let model = Model::load(Arc::new(gguf))?;
    let offload = Offload {
        layers: GpuLayers::Count(layers.parse()?),
        ..Offload::default()
    };
    let config = EngineConfig {
        device: Device::Gpu(GpuConfig {
            id: Some(device.parse()?),
            offload,
            ..GpuConfig::default()
        }),
        n_ctx: Some(N_PROMPT + N_GENERATED),
        ..EngineConfig::default()
    };
    let mut engine = Engine::start(&model, None, &config)?;
    let steps = Steps::default();
    engine.observe_steps(Some(Box::new(steps.clone())));
    let prompt = random_prompt(N_PROMPT, model.config.n_vocab);
    engine.submit(Request::greedy(prompt, N_GENERATED))?;
    while !engine.is_idle() {
        engine.step()?;
    }

    let plan = engine.running_plan(&model);
    let ops = PlanOps::new(PlanCost {
        plan: &plan,
        weights: &model.weights,
        kv_types: config.kv_types,
    });
    println!("{}", engine.backend_info().device);
    let steps = steps.0.lock().unwrap_or_else(PoisonError::into_inner);
    let mut summary = BackendExecutionSummary::default();
    for step in steps.iter() {
        summary.add_step(step, &ops, device);
    }
    let mut events = steps
        .iter()
        .flat_map(|step| telemetry::events(step, &ops, device));
    for event in events.by_ref().take(N_SHOWN) {
        println!("{event:?}");
    }
    println!("and {} more", events.count());
    println!("{summary:#?}");
    Ok(())
}
