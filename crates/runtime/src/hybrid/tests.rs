//! Placements that the engine does not choose, and steps that fail midway.

use std::path::Path;
use std::sync::mpsc;

use rocmforge_cpu::Isa;
use rocmforge_gguf::{Gguf, LoadMode};
use rocmforge_gpu::image_targets;

use super::*;
use crate::error::DeviceError;
use crate::executor::{Executor, Pending};
use crate::gpu::Graphs;
use rocmforge_model::Model;
use rocmforge_plan::KvType;
use rocmforge_plan::{BatchSeq, InputToken, LogitsRow, Want};
use rocmforge_plan::{Fusion, Split};

const PAGE: usize = 16;

fn model() -> Model {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/forge-mini-Q4_K_M.gguf");
    Model::load(Arc::new(Gguf::open(&path, LoadMode::Mmap).unwrap())).unwrap()
}

fn options() -> HybridOptions {
    let isa = Isa::detect();
    HybridOptions {
        cpu: CpuOptions {
            isa,
            n_threads: 1,
            page: PAGE,
            n_blocks: 1,
            kv_types: KvType::F16.into(),
            n_slots: 1,
        },
        gpu: GpuOptions {
            n_ctx: PAGE,
            max_tokens: 4,
            max_logits: 4,
            max_sampled: 4,
            max_seqs: 1,
            answers_at_once: 1,
            page: PAGE,
            n_blocks: 1,
            n_slots: 0,
            kv_types: KvType::F16.into(),
            batch_invariant: false,
            graphs: Graphs::On,
            isa,
            n_threads: 1,
        },
    }
}

fn plan(model: &Model) -> Plan {
    let mut plan = model.compiled_plan(Fusion::On);
    plan.rope.iter_mut().for_each(|table| table.settle(PAGE));
    plan
}

/// Returns an emulated GPU that reports reads outside of its memory.
fn gpu() -> Option<Gpu> {
    let mut personas =
        { image_targets().into_iter() }.filter_map(|target| target.strip_prefix("host-"));
    let Some(persona) = personas.find(|&persona| persona != "quick") else {
        println!("skipped: built without the target host");
        return None;
    };
    Some(Gpu::host(persona).unwrap())
}

/// The embedded model with its first layers on the GPU, and its last layers and the output on the CPU.
fn upside_down(model: &Model) -> Option<HybridBackend> {
    let gpu = gpu()?;
    let plan = plan(model);
    let split = Split {
        n_gpu_layers: 8,
        experts: Side::Gpu,
    };
    let sides = Placement::split(&plan, split);
    let other = sides.sides().iter().map(|side| match side {
        Side::Cpu => Side::Gpu,
        Side::Gpu => Side::Cpu,
    });
    let placement = Placement::new(&plan, other.collect());
    Some(HybridBackend::new(gpu, plan, placement, &model.weights, options()).unwrap())
}

/// A step of one token at `position`, whose sequence has its KV cache in `block`.
fn batch(position: usize, block: u32) -> Batch {
    Batch {
        step: position as u64,
        shifts: Vec::new(),
        tokens: vec![InputToken::Id((position * 97 + 5) as u32)],
        positions: vec![position as u32],
        slots: vec![position as u32],
        seqs: vec![BatchSeq {
            first_row: 0,
            n_rows: 1,
            first_pos: position,
            block_table: vec![block].into(),
            state: None,
        }],
        logits: vec![LogitsRow {
            row: 0,
            want: Want::Logits,
        }],
        ..Batch::default()
    }
}

fn run(backend: &mut dyn Backend, batch: Batch) -> Result<Vec<f32>, RuntimeError> {
    let (reply, result) = mpsc::channel();
    backend.submit(batch, Box::new(move |output| reply.send(output).unwrap()));
    let mut output = result.try_recv().expect("the step is over")?;
    match output.rows.pop() {
        Some(RowOutput::Logits(logits)) => Ok(logits),
        other => panic!("{other:?}"),
    }
}

fn close(got: &[f32], expected: &[f32]) {
    let sum = |values: &mut dyn Iterator<Item = f32>| values.map(f64::from).sum::<f64>();
    let mean = (sum(&mut expected.iter().copied()) / expected.len() as f64) as f32;
    let pairs = got.iter().zip(expected);
    let error = sum(&mut pairs.map(|(a, b)| (a - b).powi(2)));
    let variance = sum(&mut expected.iter().map(|b| (b - mean).powi(2)));
    assert!(error <= 5e-3 * variance, "{error:e} of {variance:e}");
}

#[test]
fn samples_on_the_cpu_and_recovers_from_failed_steps() {
    let model = model();
    let Some(mut hybrid) = upside_down(&model) else {
        return;
    };
    let mut cpu = CpuBackend::new(plan(&model), Arc::clone(&model.weights), options().cpu);
    let mut both = |hybrid: &mut HybridBackend, position: usize| {
        let expected = run(&mut cpu, batch(position, 0)).unwrap();
        close(&run(hybrid, batch(position, 0)).unwrap(), &expected);
    };
    (0..3).for_each(|position| both(&mut hybrid, position));
    // The device fails at a read outside its cache, before operations of both sides.
    for _ in 0..2 {
        let error = run(&mut hybrid, batch(3, 1 << 20)).unwrap_err();
        assert!(
            matches!(error, RuntimeError::Device(DeviceError::Gpu(_))),
            "{error}"
        );
    }
    // Later results are not taken for those of the failed steps.
    (3..5).for_each(|position| both(&mut hybrid, position));
}

/// The first step fails while the next one, whose token it was to sample, is in flight. The device's thread goes on.
#[test]
fn a_token_of_a_failed_first_step_ends_no_thread() {
    let model = model();
    let cpu = || CpuBackend::new(plan(&model), Arc::clone(&model.weights), options().cpu);
    let expected = run(&mut cpu(), batch(0, 0)).unwrap();
    let check = |executor: Executor, fails: &[Batch]| {
        let next = Batch {
            tokens: vec![InputToken::Sampled { row: 0 }],
            ..batch(1, 0)
        };
        let steps = fails.iter().chain([&next]).cloned();
        let pending: Vec<Pending> = steps.map(|step| executor.submit(step)).collect();
        let mut results: Vec<_> = pending.into_iter().map(Pending::wait).collect();
        // Nobody uses the results of the step after a failed one.
        if let Some(Err(error)) = results.pop() {
            assert!(
                matches!(error, RuntimeError::Device(DeviceError::Gpu(_))),
                "{error}"
            );
        }
        assert!(results.iter().all(Result::is_err));
        let output = executor.submit(batch(0, 0)).wait().unwrap();
        let [RowOutput::Logits(logits)] = &output.rows[..] else {
            panic!("{output:?}");
        };
        close(logits, &expected);
    };
    // No step of the CPU fails: it sees the token of a step that it never ran.
    let on_cpu = cpu();
    check(Executor::start(2, || Ok((on_cpu, ()))).unwrap().0, &[]);
    if gpu().is_none() {
        return;
    }
    let on_gpu = || {
        let model = super::tests::model();
        let gpu = gpu().expect("there is one");
        let gpu = GpuBackend::new(gpu, plan(&model), &model.weights, options().gpu)?;
        Ok((gpu, ()))
    };
    let on_both = || {
        Ok((
            upside_down(&super::tests::model()).expect("there is one"),
            (),
        ))
    };
    let failed = [batch(0, 1 << 20)];
    check(Executor::start(2, on_gpu).unwrap().0, &failed);
    check(Executor::start(2, on_both).unwrap().0, &failed);
}
