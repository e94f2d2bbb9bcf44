//! What leaves the device in a step.

mod graphs;

use rocmforge_gguf::{GgmlType, Gguf};
use rocmforge_gpu::{Event, Trace};
use rocmforge_model::Model;
use rocmforge_plan::{BatchSeq, Fusion, InputToken, Mirostat, SamplingParams};
use rocmforge_testkit::models as synth;
use std::sync::Mutex;

use super::choices::tests::gpu;
use super::*;
use crate::check::FirstUse;
use crate::config::EngineConfig;
use crate::self_check::{PassedChecks, SelfCheck};

const PAGE: usize = 16;
const N_SEQS: usize = 3;

fn backend(gpu: &Gpu, model: &Model, graphs: Graphs) -> GpuBackend {
    backend_of(gpu, model, (graphs, [PAGE, N_SEQS]))
}

/// For `n_ctx` positions of each sequence and `max_tokens` rows of a step.
fn backend_of(
    gpu: &Gpu,
    model: &Model,
    (graphs, [n_ctx, max_tokens]): (Graphs, [usize; 2]),
) -> GpuBackend {
    let mut plan = model.compiled_plan(Fusion::On);
    plan.rope.iter_mut().for_each(|table| table.settle(n_ctx));
    let options = GpuOptions {
        n_ctx,
        max_tokens,
        max_logits: N_SEQS,
        max_sampled: N_SEQS,
        max_seqs: N_SEQS,
        answers_at_once: N_SEQS,
        page: PAGE,
        n_blocks: N_SEQS * n_ctx.div_ceil(PAGE),
        n_slots: 0,
        kv_types: KvTypes::default(),
        batch_invariant: false,
        graphs,
        isa: Isa::detect(),
        n_threads: 1,
    };
    GpuBackend::new(gpu.clone(), plan, &model.weights, options).unwrap()
}

/// Opens the emulated GPU with Hopper's kernels.
pub(super) fn hopper() -> Option<Gpu> {
    if !rocmforge_gpu::image_targets().contains(&"host-nv") {
        println!("skipped: built without the target host-nv");
        return None;
    }
    Some(Gpu::open("host:nv".parse().unwrap()).unwrap())
}

/// A step in which each sequence decodes its first token.
fn batch(step: u64, want: impl Fn(usize) -> Want) -> Batch {
    let n = N_SEQS as u32;
    Batch {
        step,
        tokens: (0..n).map(|i| InputToken::Id(10 + i)).collect(),
        positions: vec![0; N_SEQS],
        slots: (0..n).map(|i| i * PAGE as u32).collect(),
        seqs: (0..N_SEQS)
            .map(|i| BatchSeq {
                first_row: i,
                n_rows: 1,
                first_pos: 0,
                block_table: vec![i as u32].into(),
                state: None,
            })
            .collect(),
        logits: (0..N_SEQS)
            .map(|row| LogitsRow {
                row,
                want: want(row),
            })
            .collect(),
        ..Batch::default()
    }
}

fn run(backend: &mut GpuBackend, batch: Batch) -> Vec<RowOutput> {
    let (to, result) = std::sync::mpsc::channel();
    backend.submit(batch, Box::new(move |output| to.send(output).unwrap()));
    backend.finish(Wait::All);
    result.recv().unwrap().unwrap().rows
}

/// Returns the names of the kernels of a step, sorted.
fn kernels(gpu: &Gpu, backend: &mut GpuBackend, batch: Batch) -> Vec<&'static str> {
    let origin = Event::new(gpu).unwrap();
    origin.record().unwrap();
    let mut trace = Trace::new(gpu);
    let step = || {
        run(backend, batch);
        Ok(())
    };
    trace.record(step).unwrap();
    let times = trace.times(&origin).unwrap();
    let mut names: Vec<&str> = times.iter().map(|time| time.kernel).collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// Where three sequences may answer, their weights lie in tiles, and products of their rows take codes.
#[test]
fn rows_of_three_sequences_are_multiplied_as_codes() {
    let Some(gpu) = hopper() else { return };
    for (name, ty, kernel) in [
        ("llama", GgmlType::Q4_K, "gemm_octet_q4_k"),
        ("qwen3moe", GgmlType::Q6_K, "gemm_octet_experts_q6_k"),
    ] {
        let writer = synth::model(name, ty).unwrap().unwrap();
        let gguf = Gguf::from_vec(writer.to_vec().unwrap()).unwrap();
        let model = Model::load(Arc::new(gguf)).unwrap();
        let mut backend = backend(&gpu, &model, Graphs::Off);
        let names = kernels(&gpu, &mut backend, batch(0, |_| Want::Logits));
        assert!(names.contains(&kernel), "{name}: {names:?}");
        assert!(
            !names.iter().any(|name| name.starts_with("gemm_half")),
            "{names:?}"
        );
        // The router has F32 weights.
        let has_gemvs = names.iter().any(|name| name.starts_with("gemv"));
        assert_eq!(has_gemvs, name == "qwen3moe", "{name}: {names:?}");
    }
}

/// A single token of a mixture is routed in a launch with the norm before it. Of more, gate and up are converted in one with their
/// activation.
#[test]
fn mixtures_take_fused_launches() {
    let Some(gpu) = hopper() else { return };
    // Norms of narrow rows are by teams otherwise, which have no such launch.
    let gpu = gpu.with_variants("norms=block".parse().unwrap());
    let writer = synth::model("qwen3moe", GgmlType::Q8_0).unwrap().unwrap();
    let gguf = Gguf::from_vec(writer.to_vec().unwrap()).unwrap();
    let model = Model::load(Arc::new(gguf)).unwrap();
    let mut backend = backend(&gpu, &model, Graphs::Off);
    let several = kernels(&gpu, &mut backend, batch(0, |_| Want::Logits));
    assert!(several.contains(&"gated_half_q8x32"), "{several:?}");
    assert!(!several.contains(&"gated"), "{several:?}");
    let mut one = batch(1, |_| Want::Logits);
    one.tokens.truncate(1);
    one.positions.truncate(1);
    one.slots.truncate(1);
    one.seqs.truncate(1);
    one.logits.truncate(1);
    let one = kernels(&gpu, &mut backend, one);
    assert!(one.contains(&"router_one"), "{one:?}");
    assert!(!one.contains(&"route_one"), "{one:?}");
}

/// What fused launches leave as it was is nothing that the check before the first use compares.
#[test]
fn mixtures_pass_the_check_before_the_first_use() {
    let Some(gpu) = gpu() else { return };
    let gpu = gpu.with_variants("norms=block".parse().unwrap());
    let config = EngineConfig {
        n_threads: Some(1),
        ..EngineConfig::default()
    };
    let writer = synth::model("qwen3moe", GgmlType::Q8_0).unwrap().unwrap();
    let gguf = Gguf::from_vec(writer.to_vec().unwrap()).unwrap();
    let model = Model::load(Arc::new(gguf)).unwrap();
    let always = (&SelfCheck::Always, Graphs::On);
    let (check, _) = FirstUse::due((&gpu, None), &model, &config, always).unwrap();
    check.expect("always due").compare_operations(&gpu).unwrap();
}

/// What OpenAI's clients send by default, with and without top-p and log-probabilities.
fn client_row(row: usize, index: u64) -> Want {
    Want::Sample(SampleRow {
        params: Arc::new(SamplingParams {
            temperature: 1.0,
            top_k: 0,
            top_p: [1.0, 0.9, 1.0][row],
            min_p: 0.0,
            seed: 5,
            ..SamplingParams::default()
        }),
        index,
        counts: Vec::new(),
        dry: None,
        mu: None,
        logprobs: [None, Some(20), Some(0)][row],
        mask: None,
    })
}

/// Steps that are timed before service leave nothing behind.
#[test]
fn timed_steps_change_no_result() {
    let Some(gpu) = gpu() else { return };
    let writer = synth::model_of("llama", GgmlType::F32, 1).unwrap().unwrap();
    let gguf = Gguf::from_vec(writer.to_vec().unwrap()).unwrap();
    let model = Model::load(Arc::new(gguf)).unwrap();
    let logits = |backend: &mut GpuBackend| -> Vec<u32> {
        let rows = run(backend, batch(0, |_| Want::Logits));
        let rows = rows.iter().flat_map(|row| match row {
            RowOutput::Logits(row) => row.iter().map(|x| x.to_bits()),
            _ => unreachable!("logits were wanted"),
        });
        rows.collect()
    };
    for graphs in [Graphs::Off, Graphs::OfSeveral, Graphs::On] {
        let expected = logits(&mut backend(&gpu, &model, graphs));
        let mut timed = backend(&gpu, &model, graphs);
        for _ in 0..2 {
            assert!(!timed.time_steps().unwrap().is_zero());
        }
        // Steps of one sequence.
        assert_eq!(timed.graphs.is_empty(), graphs != Graphs::On);
        assert_eq!(logits(&mut timed), expected);
    }
}

/// Both are timed, and graphs stay on, for what the check decides.
#[test]
fn graphs_are_compared_with_launches() {
    let Some(gpu) = gpu() else { return };
    let writer = synth::model("llama", GgmlType::F32).unwrap().unwrap();
    let gguf = Gguf::from_vec(writer.to_vec().unwrap()).unwrap();
    let model = Model::load(Arc::new(gguf)).unwrap();
    // Emulated steps are slow; there are as many as positions.
    let mut backend = backend_of(&gpu, &model, (Graphs::On, [2, N_SEQS]));
    let GraphCheck::Same(times) = backend.compare_graphs().unwrap() else {
        panic!("graphs work here");
    };
    assert!(!times.graph.is_zero() && !times.launches.is_zero());
    assert_eq!(backend.options.graphs, Graphs::On);
    assert!(backend.notices.is_empty());
    let ms = |graph, launches| {
        let [graph, launches] = [graph, launches].map(Duration::from_millis);
        StepTimes { graph, launches }.are_launched()
    };
    assert!(ms(100, 96) && !ms(100, 98) && !ms(96, 100));
}

/// Passed checks in memory.
#[derive(Debug, Default)]
pub(super) struct Passed(Mutex<Vec<String>>);

impl PassedChecks for Passed {
    fn contains(&self, key: &str) -> bool {
        self.0.lock().unwrap().iter().any(|known| known == key)
    }

    fn insert(&self, key: &str) {
        self.0.lock().unwrap().push(key.to_string());
    }
}

/// The next start knows what a check found to be faster, and asks nothing else of the device.
#[test]
fn a_passed_check_keeps_what_is_faster() {
    let Some(gpu) = gpu() else { return };
    let writer = synth::model("llama", GgmlType::F32).unwrap().unwrap();
    let gguf = Gguf::from_vec(writer.to_vec().unwrap()).unwrap();
    let model = Model::load(Arc::new(gguf)).unwrap();
    let config = EngineConfig::default();
    for faster in [Graphs::On, Graphs::OfSeveral] {
        let store = SelfCheck::FirstUse(Arc::new(Passed::default()));
        let due = || FirstUse::due((&gpu, None), &model, &config, (&store, Graphs::On)).unwrap();
        let (check, graphs) = due();
        assert_eq!(graphs, Graphs::On);
        check.expect("nothing is stored yet").passed(faster);
        let (check, graphs) = due();
        assert!(check.is_none());
        assert_eq!(graphs, faster);
    }
}

/// Rows without top-k and with log-probabilities copy nothing to the host, and give what the host makes of the logits.
#[test]
fn the_default_of_clients_copies_no_logits() {
    let Some(gpu) = gpu() else { return };
    let writer = synth::model("llama", GgmlType::F32).unwrap().unwrap();
    let gguf = Gguf::from_vec(writer.to_vec().unwrap()).unwrap();
    let model = Model::load(Arc::new(gguf)).unwrap();
    for (graphs, n_steps) in [(Graphs::Off, 2), (Graphs::On, 4)] {
        let mut backend = backend(&gpu, &model, graphs);
        let logits = run(&mut backend, batch(0, |_| Want::Logits));
        assert!(gpu.bytes_copied_to_host() > 0, "logits are counted");
        // A graph is recorded in the second step and replayed from then on.
        for step in 1..=n_steps {
            let before = gpu.bytes_copied_to_host();
            let client = batch(step, |row| client_row(row, step));
            let got = run(&mut backend, client.clone());
            assert_eq!(gpu.bytes_copied_to_host(), before, "step {step}");
            let mut all: Vec<f32> = Vec::new();
            for row in &logits {
                let RowOutput::Logits(row) = row else {
                    unreachable!("logits were wanted");
                };
                all.extend(row);
            }
            let wanted: Vec<&LogitsRow> = client.logits.iter().collect();
            let tokens = &client.tokens;
            let pool = Pool::new(1);
            let expected = output::rows(Isa::detect(), &pool, &mut all, tokens, &wanted, &[]);
            for (got, expected) in got.iter().zip(&expected) {
                check(got, expected);
            }
        }
        let mirostat = SamplingParams {
            mirostat: Some(Mirostat::default()),
            ..SamplingParams::default()
        };
        let before = gpu.bytes_copied_to_host();
        let host = batch(12, |row| match client_row(row, 0) {
            Want::Sample(sample) => Want::Sample(SampleRow {
                params: Arc::new(mirostat.clone()),
                ..sample
            }),
            want => want,
        });
        run(&mut backend, host);
        assert!(
            gpu.bytes_copied_to_host() > before,
            "the host samples these"
        );
    }
}

fn check(got: &RowOutput, expected: &RowOutput) {
    let parts = |row: &RowOutput| match row {
        RowOutput::Sampled {
            sampled,
            logprob,
            top,
        } => (sampled.id, *logprob, top.clone()),
        other => panic!("{other:?}"),
    };
    let ((id, logprob, top), (wanted_id, wanted_logprob, wanted_top)) =
        (parts(got), parts(expected));
    assert_eq!(id, wanted_id);
    let is_close = |a: f32, b: f32| (a - b).abs() < 1e-4;
    assert_eq!(logprob.is_some(), wanted_logprob.is_some());
    assert!(is_close(
        logprob.unwrap_or(0.0),
        wanted_logprob.unwrap_or(0.0)
    ));
    assert_eq!(top.len(), wanted_top.len());
    for (got, wanted) in top.iter().zip(&wanted_top) {
        assert!(got.id == wanted.id && is_close(got.logprob, wanted.logprob));
    }
}

/// A prompt of latent attention, whose second part meets keys and values of heads unless it comes in pieces.
#[test]
fn a_prompt_attends_to_heads() {
    const N_CTX: usize = 136;
    let Some(gpu) = hopper() else { return };
    let writer = synth::families::model_of("deepseek3", GgmlType::Q8_0, 1).unwrap();
    let gguf = Gguf::from_vec(writer.unwrap().to_vec().unwrap()).unwrap();
    let model = Model::load(Arc::new(gguf)).unwrap();
    let part = |step: usize, first: usize, n: usize| {
        let positions = first as u32..(first + n) as u32;
        let blocks: Vec<u32> = (0..N_CTX.div_ceil(PAGE) as u32).collect();
        Batch {
            step: step as u64,
            tokens: { positions.clone() }
                .map(|i| InputToken::Id(i * 7 % 60))
                .collect(),
            slots: positions.clone().collect(),
            positions: positions.collect(),
            seqs: vec![BatchSeq {
                first_row: 0,
                n_rows: n,
                first_pos: first,
                block_table: blocks.into(),
                state: None,
            }],
            logits: vec![LogitsRow {
                row: n - 1,
                want: Want::Logits,
            }],
            ..Batch::default()
        }
    };
    // Of parts of so many rows: the logits after the last one.
    let logits = |parts: &[(usize, usize)]| -> Vec<f32> {
        let mut backend = backend_of(&gpu, &model, (Graphs::Off, [N_CTX, N_CTX]));
        let (mut first, mut rows) = (0, Vec::new());
        for (step, &(n, n_to_heads)) in parts.iter().enumerate() {
            let batch = part(step, first, n);
            assert_eq!(backend.n_to_heads(&batch), n_to_heads, "step {step}");
            rows = run(&mut backend, batch);
            first += n;
        }
        assert_eq!(first, N_CTX);
        match rows.remove(0) {
            RowOutput::Logits(row) => row,
            other => panic!("{other:?}"),
        }
    };
    let found = logits(&[(6, 0), (130, N_CTX)]);
    let expected = logits(&[(6, 0), (65, 0), (65, 0)]);
    let size: f64 = expected.iter().map(|x| f64::from(*x).powi(2)).sum();
    let pairs = found.iter().zip(&expected);
    let error: f64 = { pairs }
        .map(|(a, b)| (f64::from(*a) - f64::from(*b)).powi(2))
        .sum();
    // Both round to f16, in different places.
    let error = (error / size).sqrt();
    assert!(error < 4e-2 && error > 0.0, "{error:.1e}");
}

#[test]
fn graphs_are_padded_to_few_sizes() {
    let sizes = [1, 3, 33, 64, 65, 96, 97, 1000].map(super::bucket);
    assert_eq!(sizes, [1, 4, 64, 64, 96, 96, 128, 1024]);
}
