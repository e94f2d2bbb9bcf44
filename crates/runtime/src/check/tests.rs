//! The check passes correct backends and names wrong operations.

use std::path::Path;

use rocmforge_cpu::Pool;
use rocmforge_gguf::{GgmlType, Gguf, LoadMode, Writer};
use rocmforge_gpu::DeviceInfo;
use rocmforge_gpu::ops::CHUNK_ROWS;

use super::difference::{Difference, compare_rows, term_norms};
use super::first_use::CHUNKED_ROWS;

use rocmforge_plan::{KvShift, Side};

use super::*;
use crate::cpu::LayerCache;
use crate::error::{DeviceError, RuntimeError};
use rocmforge_plan::{Fusion, KvSpec, Mask, Values};
use rocmforge_plan::{KvType, KvTypes};
use rocmforge_testkit::models::{self as synth, families};
use rocmforge_testkit::sweep::first;

fn model() -> Model {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/forge-mini-Q4_K_M.gguf");
    Model::load(Arc::new(Gguf::open(&path, LoadMode::Mmap).unwrap())).unwrap()
}

/// Few layers, for tests that compare every operation with the scalar one.
fn short_model() -> Model {
    loaded(
        synth::model_of("llama", GgmlType::Q4_K, 2)
            .unwrap()
            .unwrap(),
    )
}

fn loaded(writer: Writer<'_>) -> Model {
    Model::load(Arc::new(Gguf::from_vec(writer.to_vec().unwrap()).unwrap())).unwrap()
}

fn tokens(model: &Model) -> Vec<TokenId> {
    let n_vocab = model.config.n_vocab as TokenId;
    (0..40).map(|i| (i * 97 + 5) % n_vocab).collect()
}

fn config(isa: Isa) -> EngineConfig {
    EngineConfig {
        isa,
        page: 16,
        n_threads: Some(2),
        ..EngineConfig::default()
    }
}

const STEPS: [Step; 4] = [Step::Prompt, Step::Decode, Step::Few, Step::Single];

#[test]
fn kernels_of_this_machine_pass() {
    let model = model();
    let isas = Isa::available().into_iter();
    let all = isas.flat_map(|isa| [Fusion::On, Fusion::Off].map(|fusion| (isa, fusion)));
    for (isa, fusion) in all {
        let config = EngineConfig {
            fusion,
            ..config(isa)
        };
        let report = check(
            &model,
            &config,
            &tokens(&model),
            &Extent::after(40, Coverage::Distinct),
        )
        .unwrap();
        let plan = model.compiled_plan(fusion);
        assert_eq!(report.n_ops, STEPS.len() * plan.ops.len());
        let failures: Vec<&OpCheck> = report.failures().collect();
        assert!(failures.is_empty(), "{isa}: {failures:#?}");
        // Every kind of operation of the plan is compared in each step.
        for step in STEPS {
            let mut ran: Vec<&str> = plan.ops.iter().map(Op::name).collect();
            let checks = report.checks.iter().filter(|check| check.step == step);
            let mut compared: Vec<&str> = checks.map(|check| check.op).collect();
            ran.sort_unstable();
            ran.dedup();
            compared.sort_unstable();
            compared.dedup();
            assert_eq!(ran, compared);
        }
        if isa == Isa::Scalar {
            assert!(report.checks.iter().all(|check| check.max_abs == 0.0));
        }
    }
}

#[test]
fn full_coverage_compares_every_operation() {
    let model = model();
    let config = config(Isa::detect());
    let report = check(
        &model,
        &config,
        &tokens(&model),
        &Extent::after(0, Coverage::All),
    )
    .unwrap();
    assert_eq!(report.checks.len(), report.n_ops);
    let tensors = report.checks.iter().flat_map(|check| &check.tensor);
    let tensors: HashSet<&str> = tensors.flat_map(|names| names.split(" + ")).collect();
    // Seven matrices in each of ten layers, and the embedding.
    assert_eq!(tensors.len(), 71);
    assert_eq!(report.failures().count(), 0);
}

/// Returns a CPU backend with the KV cache that `script` needs.
fn backend(
    model: &Model,
    plan: &Plan,
    script: &Script,
    (isa, kv_types): (Isa, KvTypes),
) -> CpuBackend {
    let options = CpuOptions {
        isa,
        n_threads: 1,
        page: 16,
        n_blocks: script.n_blocks,
        kv_types,
        n_slots: 2,
    };
    CpuBackend::new(plan.clone(), Arc::clone(&model.weights), options)
}

/// A backend that computes one operation wrongly.
struct Wrong {
    backend: CpuBackend,
    index: usize,
    harm: fn(&mut Memory<'_>),
}

impl Stepwise for Wrong {
    fn run_one(&mut self, index: usize, batch: &Batch) -> Result<(), RuntimeError> {
        self.backend.run_one(index, batch)?;
        if index == self.index {
            let mut memory = self.backend.memory(batch)?.into_owned();
            (self.harm)(&mut memory);
            self.backend.set_memory(&memory);
        }
        Ok(())
    }

    fn run_shift(&mut self, shift: &KvShift) -> Result<(), RuntimeError> {
        let turned_too_far = KvShift {
            back_by: shift.back_by + self.index as u32,
            ..shift.clone()
        };
        self.backend.run_shift(&turned_too_far)
    }

    fn memory(&self, batch: &Batch) -> Result<Memory<'_>, RuntimeError> {
        self.backend.memory(batch)
    }
}

/// A backend whose attention rounds KV cache values to f16.
struct Rounding {
    backend: CpuBackend,
}

impl Stepwise for Rounding {
    fn run_one(&mut self, index: usize, batch: &Batch) -> Result<(), RuntimeError> {
        self.backend.run_rounded(index, batch)
    }

    fn run_shift(&mut self, shift: &KvShift) -> Result<(), RuntimeError> {
        self.backend.run_shift(shift)
    }

    fn memory(&self, batch: &Batch) -> Result<Memory<'_>, RuntimeError> {
        self.backend.memory(batch)
    }
}

/// With a quantized KV cache, prefill may use values rounded to f16, decode may not, and other errors still fail.
#[test]
fn only_prefill_may_round_quantized_cache_values() {
    let model = short_model();
    let script = Script::new(&tokens(&model), 20, 16, (PROMPT_ROWS, None));
    let ops = &model.plan.ops;
    let attention = (0..ops.len()).filter(|&i| matches!(ops[i], Op::Attention { .. }));
    let attention: Vec<usize> = attention.collect();
    let same = KvType::ALL.map(KvTypes::from).into_iter();
    let apart = [(KvType::F16, KvType::Q8_0), (KvType::Q4_0, KvType::F32)];
    let apart = apart.map(|(keys, values)| KvTypes { keys, values });
    for kv_types in same
        .chain(apart)
        .filter(|&types| types != KvTypes::default())
    {
        let backend = |isa| backend(&model, &model.plan, &script, (isa, kv_types));
        let labels = Labels {
            plan: &model.plan,
            weights: &model.weights,
            kv_types,
        };
        let failures = |checked: &mut dyn Stepwise| {
            let mut oracle = backend(Isa::Scalar);
            let report = compare(checked, &mut oracle, &script, &labels, Coverage::All).unwrap();
            let places = report.failures().map(|check| (check.step, check.index));
            places.collect::<Vec<(Step, usize)>>()
        };
        let found = failures(&mut Rounding {
            backend: backend(Isa::detect()),
        });
        let in_prompts = found.iter().any(|&(step, _)| step == Step::Prompt);
        assert_eq!(
            in_prompts,
            kv_types == KvType::F32.into(),
            "{kv_types}: {found:?}"
        );
        let is_rounded = |index: &usize| found.contains(&(Step::Decode, *index));
        assert!(attention.iter().any(is_rounded), "{kv_types}: {found:?}");

        let index = attention[1];
        let found = failures(&mut Wrong {
            backend: backend(Isa::detect()),
            index,
            harm: |memory| {
                let buffers = memory.buffers.to_mut();
                buffers.iter_mut().for_each(|values| nudge(values));
            },
        });
        let places = STEPS.map(|step| (step, index));
        assert_eq!(found, places, "{kv_types}");
    }
}

#[test]
fn detects_wrongly_rotated_keys() {
    let model = model();
    let script = Script::new(&tokens(&model), 24, 16, ([8, 2], None));
    let backend = |isa| backend(&model, &model.plan, &script, (isa, KvType::F16.into()));
    for too_far in [0, 1] {
        let mut wrong = Wrong {
            backend: backend(Isa::detect()),
            index: too_far,
            harm: |_| {},
        };
        for batch in &script.fill {
            for index in 0..model.plan.ops.len() {
                wrong.backend.run_one(index, batch).unwrap();
            }
        }
        let mut oracle = backend(Isa::Scalar);
        let plan = &model.plan;
        let found = moves::compare_moves(
            &mut wrong,
            &mut oracle,
            &script,
            plan,
            (16, KvType::F16.into()),
        )
        .unwrap();
        assert_eq!(found.passed, too_far == 0, "{found:?}");
    }
}

/// Checks a backend that does `harm` after operation `index`; returns the failures.
fn failures(model: &Model, index: usize, harm: fn(&mut Memory<'_>)) -> Vec<(Step, usize)> {
    let report = check_wrong(model, &model.plan, index, harm);
    let failures = report.failures();
    failures.map(|check| (check.step, check.index)).collect()
}

/// Checks a backend that does `harm` after operation `index` of `plan`.
fn check_wrong(model: &Model, plan: &Plan, index: usize, harm: fn(&mut Memory<'_>)) -> Report {
    let script = Script::new(&tokens(model), 20, 16, (PROMPT_ROWS, None));
    let backend = |isa| backend(model, plan, &script, (isa, KvType::F16.into()));
    let labels = Labels {
        plan,
        weights: &model.weights,
        kv_types: KvType::F16.into(),
    };
    let mut wrong = Wrong {
        backend: backend(Isa::detect()),
        index,
        harm,
    };
    let mut oracle = backend(Isa::Scalar);
    compare(&mut wrong, &mut oracle, &script, &labels, Coverage::All).unwrap()
}

/// Makes the largest value of a buffer slightly too large.
fn nudge(values: &mut [f32]) {
    nudge_by(values, 1e-3);
}

fn nudge_all(memory: &mut Memory<'_>, share: f32) {
    let buffers = memory.buffers.to_mut().iter_mut();
    buffers.for_each(|values| nudge_by(values, share));
}

fn nudge_by(values: &mut [f32], share: f32) {
    let largest = (0..values.len()).max_by(|&a, &b| values[a].abs().total_cmp(&values[b].abs()));
    if let Some(at) = largest {
        values[at] *= 1.0 + share;
    }
}

#[test]
fn gate_and_up_may_have_twice_the_error() {
    let model = short_model();
    let plan = model.compiled_plan(Fusion::On);
    let harms: [fn(&mut Memory<'_>); 2] = [
        |memory| nudge_all(memory, 1.5e-5),
        |memory| nudge_all(memory, 2.5e-5),
    ];
    let n_failures = |is_one: fn(&Op) -> bool| {
        let index = plan.ops.iter().position(is_one).unwrap();
        harms.map(|harm| check_wrong(&model, &plan, index, harm).failures().count())
    };
    let n = STEPS.len();
    assert_eq!(n_failures(|op| matches!(op, Op::MatMuls { .. })), [n, n]);
    assert_eq!(
        n_failures(|op| matches!(op, Op::GatedMatMul { .. })),
        [0, n]
    );
}

#[test]
fn a_gate_beside_products_of_experts_multiplies_them() {
    let model = loaded(synth::model("qwen3moe", GgmlType::Q8_0).unwrap().unwrap());
    let ops = &model.plan.ops;
    let is_gate = |op: &Op| matches!(op, Op::GatedActivation { .. });
    let gate = ops.iter().position(is_gate).unwrap();
    assert!(multiplies_products(&ops[gate - 2..=gate]));
    assert!(!multiplies_products(&ops[gate..=gate + 1]));
}

#[test]
fn names_only_the_wrong_operation() {
    let model = short_model();
    let ops = &model.plan.ops;
    for (index, op) in ops.iter().enumerate().step_by(ops.len() / 7) {
        let harm: fn(&mut Memory<'_>) = match op {
            Op::Quantize { .. } | Op::KvAppend { .. } => continue,
            _ => |memory| memory.buffers.to_mut().iter_mut().for_each(|b| nudge(b)),
        };
        let expected = STEPS.map(|step| (step, index));
        assert_eq!(failures(&model, index, harm), expected, "{op:?}");
    }
}

/// A backend that takes linear attention of all prompts in chunks.
struct InChunks {
    backend: CpuBackend,
    index: usize,
}

impl Stepwise for InChunks {
    fn takes_halves(&self, index: usize, batch: &Batch) -> bool {
        index == self.index && batch.tokens.len() >= CHUNK_ROWS
    }

    fn run_one(&mut self, index: usize, batch: &Batch) -> Result<(), RuntimeError> {
        self.backend.run_one(index, batch)
    }

    fn run_shift(&mut self, shift: &KvShift) -> Result<(), RuntimeError> {
        self.backend.run_shift(shift)
    }

    fn memory(&self, batch: &Batch) -> Result<Memory<'_>, RuntimeError> {
        self.backend.memory(batch)
    }
}

/// The check before the first use has a prompt for the kernels that take rows of a sequence in chunks, and compares nothing
/// else of it.
#[test]
fn first_uses_compare_chunks() {
    let in_chunks = Some(CHUNKED_ROWS);
    let models = [
        ("qwen35_wide", in_chunks),
        ("mamba2_wide", in_chunks),
        ("kimi_linear_wide", in_chunks),
        ("mamba2", None),
    ];
    for (name, rows) in models {
        let model = loaded(families::model(name, GgmlType::Q8_0).unwrap().unwrap());
        let chunk_rows = first_use::chunk_rows(&model.plan);
        assert_eq!(chunk_rows, rows, "{name}");
        let tokens = synth::prompt(60, model.config.n_vocab);
        let script = Script::new(&tokens, 24, 16, ([8, 2], chunk_rows));
        let backend = |isa| backend(&model, &model.plan, &script, (isa, KvType::F16.into()));
        let is_linear = |op: &Op| matches!(op, Op::LinearAttention { .. });
        let index = model.plan.ops.iter().position(is_linear).unwrap();
        let mut checked = InChunks {
            backend: backend(Isa::detect()),
            index,
        };
        let labels = Labels {
            plan: &model.plan,
            weights: &model.weights,
            kv_types: KvType::F16.into(),
        };
        let mut oracle = backend(Isa::Scalar);
        let report = compare(
            &mut checked,
            &mut oracle,
            &script,
            &labels,
            Coverage::Distinct,
        );
        let report = report.unwrap();
        assert_eq!(report.failures().count(), 0, "{name}");
        let of_chunks = report.checks.iter().filter(|check| check.n_tokens > 10);
        let found: Vec<usize> = of_chunks.map(|check| check.index).collect();
        assert_eq!(found, Vec::from_iter(rows.map(|_| index)), "{name}");
    }
}

/// The operations that keep states pass, and a state that is written wrongly is found.
#[test]
fn compares_states() {
    for name in ["lfm2", "qwen35_wide", "mamba2"] {
        let model = loaded(
            families::model_of(name, GgmlType::Q8_0, 2)
                .unwrap()
                .unwrap(),
        );
        let tokens = synth::prompt(60, model.config.n_vocab);
        // The usual kernels, and scalar ones.
        let mut isas = Isa::available();
        isas.sort_by_key(|&isa| isa != Isa::detect());
        for isa in first(1, isas) {
            let report = check(
                &model,
                &config(isa),
                &tokens,
                &Extent::after(40, Coverage::All),
            )
            .unwrap();
            let failures: Vec<&OpCheck> = report.failures().collect();
            assert!(failures.is_empty(), "{name}, {isa}: {failures:#?}");
        }
        let mut ops = model.plan.ops.iter().enumerate();
        let keeps = ops.find(|(_, op)| op.state().is_some());
        let (index, _) = keeps.unwrap();
        let script = Script::new(&tokens, 40, 16, (PROMPT_ROWS, None));
        let backend = |isa| backend(&model, &model.plan, &script, (isa, KvType::F16.into()));
        let mut wrong = Wrong {
            backend: backend(Isa::detect()),
            index,
            harm: |memory| nudge(&mut memory.states.to_mut()[0]),
        };
        let labels = Labels {
            plan: &model.plan,
            weights: &model.weights,
            kv_types: KvType::F16.into(),
        };
        let mut oracle = backend(Isa::Scalar);
        let report = compare(&mut wrong, &mut oracle, &script, &labels, Coverage::All).unwrap();
        let found = report.failures().map(|check| (check.step, check.index));
        let places = STEPS.map(|step| (step, index));
        assert_eq!(found.collect::<Vec<_>>(), places, "{name}");
    }
}

#[test]
fn detects_wrong_quantization_and_cache_writes() {
    let model = model();
    let at = |name: &str| {
        model
            .plan
            .ops
            .iter()
            .position(|op| op.name() == name)
            .unwrap()
    };

    let quantize = at("quantize");
    let zeroed = failures(&model, quantize, |memory| {
        for acts in memory.acts.to_mut() {
            let ActsBuffer::Rows(acts) = acts else {
                panic!("forge-mini has no experts");
            };
            let (n_tokens, n_in, format) = (acts.n_tokens(), acts.n_in(), acts.format());
            let zeros = vec![0.0; n_tokens * n_in];
            acts.quantize(Isa::Scalar, &Pool::new(1), &zeros, [n_tokens, n_in], format);
        }
    });
    assert_eq!(zeroed[0], (Step::Prompt, quantize));

    let append = at("kv_append");
    let lost = failures(&model, append, |memory| {
        let cache = memory.cache.to_mut();
        let other = cache[1].clone();
        cache[0] = other;
    });
    assert_eq!(lost[0], (Step::Prompt, append));

    let norm = at("rms_norm");
    let not_a_number = failures(&model, norm, |memory| {
        memory.buffers.to_mut()[1][0] = f32::NAN;
    });
    assert_eq!(not_a_number[0], (Step::Prompt, norm));
}

/// Returns the kind, shape and format of all operations.
fn kinds(model: &Model, plan: &Plan) -> HashSet<(&'static str, (String, String))> {
    let labels = Labels {
        plan,
        weights: &model.weights,
        kv_types: KvType::F16.into(),
    };
    let ops = plan.ops.iter();
    ops.map(|op| (op.name(), labels.shape_and_format(op)))
        .collect()
}

#[test]
fn representative_plan_covers_all_kinds_of_operations() {
    let model = model();
    for fusion in [Fusion::On, Fusion::Off] {
        let plan = model.compiled_plan(fusion);
        let sides = vec![Side::Gpu; plan.ops.len()];
        let (part, _) = first_use::representative(&plan, &model.weights, &sides);
        // The layers have two combinations of formats.
        assert!((2..5).contains(&part.kv.len()), "{}", part.kv.len());
        assert!(part.ops.len() < plan.ops.len() / 2);
        assert_eq!(kinds(&model, &part), kinds(&model, &plan));
        // All values are finite.
        let report = check_wrong(&model, &part, usize::MAX, |_| ());
        assert_eq!(report.failures().count(), 0);
        assert!(report.checks.iter().all(|check| check.max_abs.is_finite()));
    }
}

#[test]
fn rejects_devices_that_compute_wrong_results() {
    let model = model();
    let sides = vec![Side::Gpu; model.plan.ops.len()];
    let (part, _) = first_use::representative(&model.plan, &model.weights, &sides);
    let info = DeviceInfo {
        id: "cuda:3".parse().unwrap(),
        name: "Some GPU".into(),
        architecture: "sm_90".into(),
        total_bytes: 0,
        free_bytes: None,
        integrated: false,
        pci_address: None,
        n_compute_units: 1,
        max_shared_bytes: 0,
        driver_version: String::new(),
        runtime_version: String::new(),
        image: Ok("sm_90a".into()),
    };
    let right = check_wrong(&model, &part, usize::MAX, |_| ());
    first_use::verdict(&info, &right).unwrap();
    let is_product = |op: &Op| matches!(op, Op::MatMul { .. });
    let index = part.ops.iter().position(is_product).unwrap();
    let wrong = check_wrong(&model, &part, index, |memory| {
        memory.buffers.to_mut().iter_mut().for_each(|b| nudge(b));
    });
    let error = first_use::verdict(&info, &wrong).unwrap_err();
    let RuntimeError::Device(DeviceError::WrongGpu {
        n_failed, first, ..
    }) = &error
    else {
        panic!("{error}");
    };
    assert_eq!((*n_failed, first.index), (STEPS.len(), index));
    let message = error.to_string();
    let facts = [
        "Some GPU (cuda:3)",
        "matmul",
        "blk.0.attn",
        "run on the CPU",
        "check --device cuda:3",
    ];
    for fact in facts {
        assert!(message.contains(fact), "{fact:?} is not in {message}");
    }
}

#[test]
fn accepts_adjacent_f16_keys_only() {
    let spec = KvSpec {
        n_kv_heads: 1,
        k_dim: 4,
        v_dim: 1,
        mask: Mask::All,
        values: Values::Apart,
        heads: None,
    };
    // 1 and its neighbours are accepted, the value after a neighbour is not.
    let f16 = |k: &[u16], v: &[u16]| {
        let [k, v] = [k, v].map(|x| x.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>());
        LayerCache::from_planes(spec, KvType::F16.into(), [&k, &v])
    };
    let mut got = f16(&[0x3c01, 0x3c02, 0x3bff, 0x3c00], &[0x3c01]);
    got.take_next(&f16(&[0x3c00; 4], &[0x3c00]));
    let [k, v] = got.parts();
    assert_eq!(k.values[..], [1.0, 1.0 + 2.0 / 1024.0, 1.0, 1.0]);
    assert_eq!(v.values[..], [1.0 + 1.0 / 1024.0]);
}

/// Values that share a scale are accepted or rejected together.
#[test]
fn accepts_adjacent_quantized_heads_only() {
    let taken = |kv_type: KvType, dim: usize, own: &[u8], other: &[u8]| {
        let spec = KvSpec {
            n_kv_heads: 1,
            k_dim: dim,
            v_dim: dim,
            mask: Mask::All,
            values: Values::Apart,
            heads: None,
        };
        let layer = |planes| LayerCache::from_planes(spec, kv_type.into(), [planes, planes]);
        let (mut got, other) = (layer(own), layer(other));
        got.take_next(&other);
        let [got, other] = [&got, &other].map(|layer| layer.parts()[0].values.to_vec());
        let rows = got.chunks(dim).zip(other.chunks(dim));
        rows.map(|(got, other)| got == other).collect::<Vec<bool>>()
    };
    // Scales are 1; the second head is one code off, the third three codes.
    let codes = |off: [u8; 3]| off.map(|off| [[124 + off; 16], [3; 16]].concat()).concat();
    let planes = |off| [codes(off), [0x00, 0x3c].repeat(3)].concat();
    let got = taken(KvType::Q8_0, 32, &planes([0, 1, 3]), &planes([0; 3]));
    assert_eq!(got, [true, true, false]);
    // Adjacent codes, codes two apart, adjacent codes with adjacent scales, equal codes with distant scales.
    let planes = |codes: [u8; 8], scales: [u16; 4]| {
        let scales = scales.iter().flat_map(|scale| scale.to_le_bytes());
        codes.into_iter().chain(scales).collect::<Vec<u8>>()
    };
    let own = planes(
        [0x38, 0x41, 0x38, 0x42, 0x70, 0x77, 0x7e, 0x38],
        [0x3f80, 0x3f80, 0x3f80, 0x3f80],
    );
    let other = planes(
        [0x38, 0x40, 0x38, 0x40, 0x71, 0x77, 0x7e, 0x38],
        [0x3f80, 0x3f80, 0x3f7f, 0x3fa0],
    );
    let got = taken(KvType::F8E4M3, 2, &own, &other);
    assert_eq!(got, [true, false, true, false]);
    // Scales are 1, and each head has a value of -8. The second head is one code off, the third two.
    let planes = |off: [u8; 3]| {
        let codes = off.map(|off| [&[0x40][..], &[(4 + off) * 0x11; 15]].concat());
        [codes.concat(), [0x00, 0x3c].repeat(3)].concat()
    };
    let got = taken(KvType::Q4_0, 32, &planes([0, 1, 2]), &planes([0; 3]));
    assert_eq!(got, [true, true, false]);
}

#[test]
fn reads_heads_of_few_bits_of_a_gpu() {
    let dim = 32;
    let spec = KvSpec {
        n_kv_heads: 1,
        k_dim: dim,
        v_dim: dim,
        mask: Mask::All,
        values: Values::Apart,
        heads: None,
    };
    let read = |kv_type: KvType, planes: &[u8]| {
        let layer = LayerCache::from_planes(spec, kv_type.into(), [planes, planes]);
        layer.parts()[0].values.to_vec()
    };
    // Codes from 0 to 15, twice.
    let codes = [0x10, 0x32, 0x54, 0x76, 0x98, 0xba, 0xdc, 0xfe].repeat(2);
    // A scale of 2.
    let got = read(KvType::Q4_0, &[&codes[..], &[0x00, 0x40]].concat());
    let expected: Vec<f32> = (0..32).map(|i| (i % 16 - 8) as f32 * 2.0).collect();
    assert_eq!(got, expected);
    // A scale of 1, a minimum of -3, and fifth bits of the second half.
    let scales = [0x00, 0x3c, 0x00, 0xc2, 0x00, 0x00, 0xff, 0xff];
    let got = read(KvType::Q5_1, &[&codes[..], &scales].concat());
    let expected: Vec<f32> = (0..32).map(|i| i as f32 - 3.0).collect();
    assert_eq!(got, expected);
}

#[test]
fn differences_are_relative_to_their_row() {
    let inf = f32::INFINITY;
    for (got, expected, abs, rel) in [
        (vec![1.0, 2.0], vec![1.0, 2.0], 0.0, 0.0),
        (vec![1.0, 2.5], vec![1.0, 2.0], 0.5, 0.25),
        // The second row is small, so its relative error is larger.
        (vec![8.0, 8.0, 0.0, 1.5], vec![8.0, 8.5, 0.0, 1.0], 0.5, 0.5),
        (vec![inf, 1.0], vec![inf, 1.0], 0.0, 0.0),
        (vec![f32::NAN, 1.0], vec![f32::NAN, 1.0], 0.0, 0.0),
        (
            vec![f32::NAN, 1.0],
            vec![0.0, 1.0],
            f64::INFINITY,
            f64::INFINITY,
        ),
        (
            vec![0.0, 1.0],
            vec![f32::NAN, 1.0],
            f64::INFINITY,
            f64::INFINITY,
        ),
        (
            vec![inf, 1.0],
            vec![-inf, 1.0],
            f64::INFINITY,
            f64::INFINITY,
        ),
        (vec![1.0], vec![], f64::INFINITY, f64::INFINITY),
    ] {
        assert_eq!(
            compare_rows(&got, &expected, 2, &[]),
            Difference { abs, rel },
            "{got:?}"
        );
    }
}

#[test]
fn narrow_rows_are_relative_to_their_terms() {
    // Two tokens times two rows of weights: terms (3, 4) and (-3, 4); (12, -5) and (-12, -5).
    let norms = term_norms(&[3.0, 2.0, 12.0, -2.5], &[1.0, 2.0, -1.0, 2.0], 2);
    assert_eq!(norms, [5.0, 13.0]);
    let (got, expected) = ([1e-3, 0.0, 13.0, 26.0], [0.0, 0.0, 13.0, 26.0]);
    let alone = compare_rows(&got, &expected, 2, &[]);
    assert!(alone.rel > 1e30, "{alone:?}");
    let of_terms = compare_rows(&got, &expected, 2, &norms);
    assert_eq!(of_terms.rel, f64::from(1e-3f32) / 5.0);
    // A row that is larger than its floor uses its own magnitude.
    let large = compare_rows(&[13.0, 27.0], &[13.0, 26.0], 2, &[5.0]);
    assert_eq!(large.rel, 1.0 / 26.0);
    // No floor excuses NaN.
    assert_eq!(
        compare_rows(&[f32::NAN], &[0.0], 1, &[5.0]).rel,
        f64::INFINITY
    );
}
