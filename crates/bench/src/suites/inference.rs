//! Measures a model as users run it: time to first token and generation, with one and several sequences.
//!
//! Both come from the same runs through the engine, with random tokens and greedy sampling.

use std::cell::RefCell;
use std::rc::Rc;

use rocmforge_engine::{EngineConfig, KvTokens};
use rocmforge_model::Model;
use rocmforge_plan::KvType;
use rocmforge_plan::{BatchShape, OpCost, PlanCost};

use crate::case::{Case, On, Part, Prepared, Work};
use crate::error::BenchError;
use crate::harness::Stop;
use crate::options::{Effort, Subject};
use crate::requests::{Requests, Run, Watch, Workload, kv_tokens};
use crate::target::{Opened, Target};

const PROMPTS: [usize; 3] = [128, 512, 2048];
const BATCHES: [usize; 3] = [1, 4, 8];
const N_GEN: usize = 32;

const QUICK_PROMPTS: [usize; 2] = [8, 16];
const QUICK_BATCHES: [usize; 2] = [1, 2];
const QUICK_N_GEN: usize = 2;

/// Prompt tokens per step on a GPU, as in serving where memory is not scarce.
const GPU_CHUNK_TOKENS: usize = 2048;
const PAGE: usize = 32;

pub(super) fn cases(effort: Effort, subject: Subject<'_>) -> Vec<Case> {
    let prompts = effort.pick(&PROMPTS[..], &QUICK_PROMPTS[..]);
    let n_gen = effort.pick(N_GEN, QUICK_N_GEN);
    let batches = effort.pick(&BATCHES[..], &QUICK_BATCHES[..]).iter();
    let of_batch = |&n_seqs: &usize| {
        let longest = prompts.last().copied().unwrap_or(0);
        let engine = SharedEngine::new(subject, n_seqs, longest + n_gen);
        prompts.iter().map(move |&n_prompt| {
            let prompt = format!("pp{n_prompt}/B{n_seqs}");
            let parts = vec![format!("ttft/{prompt}"), format!("decode/{prompt}")];
            let shape = format!("{n_prompt} tokens x {n_seqs}");
            case(parts, shape, &engine, [n_prompt, n_gen])
        })
    };
    batches.flat_map(of_batch).collect()
}

/// Generation of several sequences.
pub(super) fn decode_case(name: String, subject: Subject<'_>, n_seqs: usize, n_gen: usize) -> Case {
    let engine = SharedEngine::new(subject, n_seqs, n_gen + 1);
    let shape = format!("{n_gen} tokens x {n_seqs}");
    case(vec![name], shape, &engine, [0, n_gen])
}

/// With two parts, the first is the time to first token and the last is generation.
fn case(
    parts: Vec<String>,
    shape: String,
    engine: &Rc<SharedEngine>,
    [n_prompt, n_gen]: [usize; 2],
) -> Case {
    let (engine, first) = (Rc::clone(engine), 2 - parts.len());
    let workload = Workload {
        n_prompt,
        n_gen,
        n_depth: 0,
    };
    Case {
        parts,
        format: engine.format.clone(),
        shape,
        on: On::All,
        has_model: true,
        prepare: Box::new(move |target, stop| {
            let Prepared { mut parts, mut run } =
                prepare(Rc::clone(&engine), target, workload, stop)?;
            Ok(Prepared {
                parts: parts.split_off(first),
                run: Box::new(move |n, stop| Ok(run(n, stop)?.split_off(first))),
            })
        }),
    }
}

/// An engine shared by cases with the same number of sequences, so that the weights are on a GPU only once.
struct SharedEngine {
    model: Model,
    format: Option<String>,
    n_seqs: usize,
    /// Number of positions of the longest case.
    n_ctx: usize,
    started: RefCell<Option<Requests>>,
}

impl SharedEngine {
    fn new(subject: Subject<'_>, n_seqs: usize, n_tokens: usize) -> Rc<SharedEngine> {
        Rc::new(SharedEngine {
            model: subject.model.clone(),
            format: subject.format.map(str::to_string),
            n_seqs,
            n_ctx: n_tokens + 2,
            started: RefCell::default(),
        })
    }

    fn config(&self, target: &Target) -> EngineConfig {
        let (device, isa, n_threads) = target.engine_device();
        let config = EngineConfig {
            n_ctx: Some(self.n_ctx),
            max_seqs: self.n_seqs,
            kv_tokens: KvTokens::Exactly(kv_tokens(self.n_seqs, 0, self.n_ctx, PAGE)),
            page: PAGE,
            kv_types: KvType::F16.into(),
            device,
            isa,
            n_threads: Some(n_threads),
            ..EngineConfig::default()
        };
        match target.on {
            Opened::Cpu(_) => config,
            Opened::Gpu(_) => EngineConfig {
                steps_in_flight: 2,
                max_batch_tokens: GPU_CHUNK_TOKENS,
                ..config
            },
        }
    }

    fn run(&self, workload: &Workload, watch: Watch, stop: &Stop<'_>) -> Result<Run, BenchError> {
        let mut started = self.started.borrow_mut();
        let requests = started.as_mut().expect("a case is prepared before it runs");
        let run = requests.run(workload, watch, stop);
        if run.is_err() {
            // Aborted requests stay in the engine.
            *started = None;
        }
        run
    }
}

/// Both parts of the workload.
fn prepare<'t>(
    engine: Rc<SharedEngine>,
    target: &'t Target,
    workload: Workload,
    stop: &Stop<'_>,
) -> Result<Prepared<'t>, BenchError> {
    if engine.started.borrow().is_none() {
        let requests = Requests::new(&engine.model, &engine.config(target), 0)?;
        *engine.started.borrow_mut() = Some(requests);
    }
    let counts_peak = rocmforge_cpu::memory::reset_peak();
    let watched = engine.run(&workload, Watch::Yes, stop)?;
    let of_process = rocmforge_cpu::memory::peak_bytes().filter(|_| counts_peak);
    let n_prompt = workload.n_prompt.max(1);
    let steps = [
        (&watched.first_steps, n_prompt),
        (&watched.rest_steps, workload.n_gen),
    ];
    let mut parts: Vec<Part> = steps
        .into_iter()
        .map(|(steps, n_tokens)| Part {
            work: work(&engine.model, steps, n_tokens * engine.n_seqs),
            ..Part::default()
        })
        .collect();
    let started = engine.started.borrow();
    let info = started.as_ref().map(Requests::backend_info);
    let kv_bytes = info.map_or(0, |info| info.kv_bytes);
    // A GPU's memory is allocated at the start.
    let peak_bytes = match info.and_then(|info| info.device_memory) {
        Some(memory) => Some(memory.total),
        None => of_process,
    };
    for part in &mut parts {
        part.metrics.insert("kv_bytes".to_string(), kv_bytes as f64);
        if let Some(peak_bytes) = peak_bytes {
            let peak_bytes = peak_bytes as f64;
            part.metrics
                .insert("peak_memory_bytes".to_string(), peak_bytes);
        }
        part.notes.extend(notes(&engine));
    }
    drop(started);
    Ok(Prepared {
        parts,
        run: Box::new(move |n, stop| {
            let mut seconds = vec![0.0; 2];
            for _ in 0..n {
                let run = engine.run(&workload, Watch::No, stop)?;
                seconds[0] += run.first.as_secs_f64();
                seconds[1] += run.rest.as_secs_f64();
            }
            Ok(seconds)
        }),
    })
}

/// Returns the work of the steps: reads of weights and KV cache, and the arithmetic with them.
fn work(model: &Model, steps: &[BatchShape], n_tokens: usize) -> Work {
    let cost = PlanCost {
        plan: &model.plan,
        weights: &model.weights,
        kv_types: KvType::F16.into(),
    };
    let ops =
        |shape: &BatchShape| -> OpCost { model.plan.ops.iter().map(|op| cost.op(op, shape)).sum() };
    let total: OpCost = steps.iter().map(ops).sum();
    Work {
        bytes: total.weight_bytes + total.kv_bytes,
        f32_ops: total.f32_ops,
        i8_ops: total.i8_ops,
        elements: 0,
        tokens: n_tokens as u64,
    }
}

fn notes(engine: &SharedEngine) -> Vec<String> {
    let mut notes = Vec::new();
    let n_ctx_train = engine.model.config.n_ctx_train;
    if engine.n_ctx > n_ctx_train {
        notes.push(format!(
            "the model was trained for {n_ctx_train} positions; text beyond them is meaningless"
        ));
    }
    let started = engine.started.borrow();
    for (reason, n) in started
        .iter()
        .flat_map(|requests| &requests.backend_info().slow_ops)
    {
        notes.push(format!(
            "slow path: no fast kernel for {reason}, {n} operations per step"
        ));
    }
    notes
}
