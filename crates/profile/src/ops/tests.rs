use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use rocmforge_gguf::{Gguf, LoadMode};
use rocmforge_model::Model;
use rocmforge_plan::Fusion;
use rocmforge_plan::KvType;
use rocmforge_plan::{SeqShape, Side};
use rocmforge_runtime::times::{LaunchTime, PartTime};

use super::*;
use crate::phases::{PhaseTimes, Walls};
use crate::schema::{Lane, Span};
use crate::telemetry::{self, BackendExecutionSummary, ExecutionEvent};
use crate::timeline::Timeline;

const US: Duration = Duration::from_micros(1);

fn ceilings(arithmetic: Option<f64>, start_us: Option<f64>) -> Ceilings {
    Ceilings {
        read_bytes_per_s: 1e9,
        f32_ops_per_s: arithmetic,
        i8_ops_per_s: arithmetic.map(|ops| 4.0 * ops),
        start_us,
    }
}

fn cost(bytes: u64, f32_ops: u64, i8_ops: u64) -> Cost {
    Cost {
        bytes,
        f32_ops,
        i8_ops,
    }
}

#[test]
fn finds_the_bound_of_an_operation() {
    let known = ceilings(Some(1e9), Some(2.0));
    let unknown = ceilings(None, Some(2.0));
    for (cost, calls, ceilings, expected) in [
        // 10 us of memory; 1, 20 and 20 us of arithmetic.
        (cost(10_000, 1_000, 0), 1, known, Some(Bound::Memory)),
        (cost(10_000, 20_000, 0), 1, known, Some(Bound::Compute)),
        (cost(10_000, 0, 80_000), 1, known, Some(Bound::Compute)),
        // The same work in ten calls: starting them takes longer.
        (cost(10_000, 1_000, 0), 10, known, Some(Bound::Launch)),
        (cost(10_000, 20_000, 0), 10, known, Some(Bound::Launch)),
        (cost(0, 100, 0), 1, known, Some(Bound::Launch)),
        (
            cost(10_000, 1_000, 0),
            10,
            ceilings(Some(1e9), None),
            Some(Bound::Memory),
        ),
        (Cost::default(), 1, known, None),
        // Without a measured peak: low arithmetic intensity is memory-bound anyway.
        (cost(10_000, 80_000, 0), 1, unknown, Some(Bound::Memory)),
        (cost(10_000, 80_001, 0), 1, unknown, None),
        (cost(10_000, 80_000, 0), 10, unknown, Some(Bound::Launch)),
    ] {
        assert_eq!(bound(&cost, calls, &ceilings), expected, "{cost:?} {calls}");
    }
    assert_eq!(
        cost(10_000, 5_000, 20_000).least_seconds(&known),
        Some(10e-6)
    );
    assert_eq!(
        cost(1_000, 5_000, 20_000).least_seconds(&known),
        Some(10e-6)
    );
    assert_eq!(cost(1_000, 5_000, 20_000).least_seconds(&unknown), None);
}

#[test]
fn rows_are_averages_of_one_run() {
    let mut groups = Groups::default();
    for _ in 0..2 {
        groups.add("norm", "norm [64]", 10 * US, cost(0, 1_000, 0));
        for us in [20, 40, 30] {
            groups.add("matmul", "matmul a", us * US, cost(15_000, 0, 40_000));
        }
    }
    assert_eq!(groups.total(), 200 * US);
    let rows = groups.rows(2, Some(&ceilings(Some(1e9), Some(2.0))));
    let names: Vec<&str> = rows.iter().map(|row| row.name.as_str()).collect();
    assert_eq!(names, ["matmul a", "norm [64]"]);
    let matmul = &rows[0];
    assert_eq!((matmul.kind.as_str(), matmul.calls), ("matmul", 3));
    let near = |a: f64, b: f64| assert!((a - b).abs() < 1e-9, "{a} {b}");
    near(matmul.total_ms, 0.09);
    near(matmul.share, 0.9);
    assert_eq!(
        (matmul.bytes, matmul.f32_ops, matmul.i8_ops),
        (45_000, 0, 120_000)
    );
    // 45 us of memory and 30 us of arithmetic in 90 us.
    near(matmul.bandwidth_share.unwrap(), 0.5);
    near(matmul.ops_share.unwrap(), 1.0 / 3.0);
    assert_eq!(matmul.bound, Some(Bound::Memory));
    assert_eq!((matmul.call_us.n, matmul.call_us.p50), (6, 30.0));
    assert_eq!(rows[1].bound, Some(Bound::Launch));
    let blind = &groups.rows(2, None)[0];
    assert_eq!(
        (blind.bandwidth_share, blind.ops_share, blind.bound),
        (None, None, None)
    );
}

/// Runs a test with the operations of forge-mini.
fn with_model(test: impl FnOnce(&Model, &PlanOps<'_>)) {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../models/forge-mini-Q4_K_M.gguf"
    );
    let gguf = Gguf::open(Path::new(path), LoadMode::Read).unwrap();
    let model = Model::load(Arc::new(gguf)).unwrap();
    let plan = model.compiled_plan(Fusion::On);
    let ops = PlanOps::new(PlanCost {
        plan: &plan,
        weights: &model.weights,
        kv_types: KvType::F16.into(),
    });
    test(&model, &ops);
}

fn decode_shape() -> BatchShape {
    BatchShape {
        seqs: vec![SeqShape {
            first_pos: 9,
            n_rows: 1,
        }],
        n_logits: 1,
    }
}

#[test]
fn names_operations_by_type_tensor_format_and_shape() {
    with_model(|model, ops| {
        let c = &model.config;
        let name = |index| ops.describe(&StepPart::Ops(index..index + 1));
        let embed = format!("embed token_embd Q6_K [{}, {}]", c.n_vocab, c.n_embd);
        let (kind, found) = name(0);
        // The quantization mix chooses the type of the table.
        let words: Vec<&str> = found.split(' ').collect();
        let expected: Vec<&str> = embed.split(' ').collect();
        assert_eq!(kind, "embed");
        assert_eq!(
            (words[..2].to_vec(), &words[3..]),
            (expected[..2].to_vec(), &expected[3..])
        );
        assert_eq!(
            name(1),
            (
                "norm_quantize",
                format!("norm_quantize [{}]", c.n_embd).as_str()
            )
        );
        assert!(
            name(2).1.starts_with("matmuls attn_q+attn_k+attn_v "),
            "{:?}",
            name(2)
        );
        let gated = name(10).1;
        assert!(
            gated.starts_with("gated_matmul ffn_gate+ffn_up Q4_K ["),
            "{gated}"
        );
        let converted = ops.describe(&StepPart::Ops(10..12));
        assert_eq!(converted, ("gated_matmul", gated));
        let n_ff = c.layers[0].feed_forward.n_ff();
        assert!(
            gated.ends_with(&format!("[{n_ff}+{n_ff}, {}]", c.n_embd)),
            "{gated}"
        );
        assert!(ops.is_embedding(&StepPart::Ops(0..1)) && !ops.is_embedding(&StepPart::Ops(1..2)));
        let last = ops.cost.plan.ops.len() - 1;
        assert!(ops.is_for_logits(&StepPart::Ops(last..last + 1)));
        assert!(ops.is_for_logits(&StepPart::Choose) && !ops.is_for_logits(&StepPart::Begin));
        assert_eq!(ops.describe(&StepPart::Ops(3..6)).0, "rope_kv");
    });
}

/// A step of consecutive parts of 10 us each; its second operation has two launches.
fn step(with_launches: bool) -> StepTimes {
    let parts = [
        StepPart::Begin,
        StepPart::Ops(0..1),
        StepPart::Ops(1..2),
        StepPart::Ops(3..6),
        StepPart::Choose,
    ];
    let part = |(i, part): (usize, &StepPart)| PartTime {
        part: part.clone(),
        side: match with_launches {
            true => Side::Gpu,
            false => Side::Cpu,
        },
        start: 10 * i as u32 * US,
        duration: 10 * US,
    };
    let kernels = [
        (0, "begin_step", 0, 10),
        (1, "get_rows", 10, 10),
        (2, "norm", 20, 3),
        (2, "quantize", 23, 7),
        (3, "rope_kv", 30, 10),
        (4, "argmax", 40, 10),
    ];
    let launch = |&(part, kernel, start, us): &(usize, &'static str, u32, u32)| LaunchTime {
        kernel: ("module", kernel),
        part,
        queued: start / 2 * US,
        submit: US,
        start: start * US,
        duration: us * US,
    };
    StepTimes {
        step: 7,
        shape: decode_shape(),
        started: Instant::now(),
        parts: parts.iter().enumerate().map(part).collect(),
        launches: match with_launches {
            true => kernels.iter().map(launch).collect(),
            false => Vec::new(),
        },
    }
}

#[test]
fn attributes_work_to_the_longest_kernel() {
    with_model(|_, ops| {
        let (mut rows, mut kernels) = (Groups::default(), Groups::default());
        ops.add_step(&step(true), &mut rows, &mut kernels);
        let kernels = kernels.rows(1, None);
        let work = |name: &str| {
            let row = kernels
                .iter()
                .find(|row| row.name == format!("module::{name}"));
            let row = row.unwrap();
            (row.calls, row.bytes, row.f32_ops)
        };
        let norm = ops.cost(&StepPart::Ops(1..2), &decode_shape());
        assert!(norm.f32_ops > 0);
        assert_eq!(work("norm"), (1, 0, 0));
        assert_eq!(work("quantize"), (1, norm.bytes, norm.f32_ops));
        // Three fused operations: the sum of their costs.
        let each = (3..6).map(|i| ops.cost(&StepPart::Ops(i..i + 1), &decode_shape()));
        assert_eq!(
            work("rope_kv").2,
            each.map(|cost| cost.f32_ops).sum::<u64>()
        );
        let total: Duration = step(true).duration();
        assert_eq!(rows.total(), total);
        let of_kernels: f64 = kernels.iter().map(|row| row.total_ms).sum();
        assert!((of_kernels - 0.05).abs() < 1e-9, "{of_kernels}");
    });
}

#[test]
fn sums_up_a_phase() {
    with_model(|_, ops| {
        let ceilings = ceilings(Some(1e9), Some(2.0));
        let mut times = PhaseTimes::default();
        for _ in 0..4 {
            times.add_step(ops, &step(false), Some(&ceilings));
        }
        let walls = Walls {
            profiled: vec![0.110, 0.112],
            unprofiled: vec![0.100, 0.104],
        };
        let phase = times.phase("decode", 2, &walls, Some(&ceilings)).unwrap();
        assert_eq!((phase.n_steps, phase.n_tokens), (2, 2));
        let near = |a: f64, b: f64| assert!((a - b).abs() < 1e-9, "{a} {b}");
        near(phase.ops_ms, 0.1);
        near(phase.ops_ms + phase.between_ops_ms, phase.profiled.mean);
        near(phase.ops.iter().map(|row| row.total_ms).sum(), phase.ops_ms);
        near(phase.ops.iter().map(|row| row.share).sum(), 1.0);
        near(phase.tokens_per_s, 2.0 / 0.102e-3);
        let least = ops.least_seconds(&decode_shape(), &ceilings).unwrap();
        near(phase.least_ms.unwrap(), 2.0 * least * 1e3);
        assert_eq!(phase.kernels, []);
        assert_eq!(times.phase("decode", 2, &Walls::default(), None), None);
        // Without peaks, the least time of a compute-bound step is unknown.
        let blind = self::ceilings(None, None);
        let prompt = BatchShape {
            seqs: vec![SeqShape {
                first_pos: 0,
                n_rows: 512,
            }],
            n_logits: 1,
        };
        assert_eq!(ops.least_seconds(&prompt, &blind), None);
        assert!(ops.least_seconds(&decode_shape(), &blind).is_some());
    });
}

#[test]
fn a_timeline_has_a_bound() {
    with_model(|_, ops| {
        // Six spans on a CPU; on a GPU 18, with two for each of six launches.
        for (with_launches, n) in [(false, 6), (true, 18)] {
            let step = step(with_launches);
            let mut timeline = Timeline::new(step.started);
            let added = [(); 3].map(|()| timeline.add_step_within(ops, &step, 2 * n));
            assert_eq!(added, [true, true, false]);
            assert_eq!(timeline.finish().len(), 2 * n);
        }
    });
}

#[test]
fn nests_spans_on_their_lanes() {
    with_model(|_, ops| {
        let spans = |with_launches| {
            let step = step(with_launches);
            let mut timeline = Timeline::new(step.started);
            timeline.add_step(ops, &step);
            timeline.finish()
        };
        let shape = |spans: &[Span], lane| -> Vec<(String, usize)> {
            let of_lane = spans.iter().filter(|span| span.lane == lane);
            of_lane
                .map(|span| (span.kind.clone(), span.depth))
                .collect()
        };
        let cpu = spans(false);
        let expected = [
            ("step", 0),
            ("begin", 1),
            ("embed", 1),
            ("norm_quantize", 1),
            ("rope_kv", 1),
            ("choose", 1),
        ];
        assert_eq!(
            shape(&cpu, Lane::Cpu),
            expected.map(|(kind, depth)| (kind.to_string(), depth))
        );
        assert_eq!(shape(&cpu, Lane::Device), []);
        let gpu = spans(true);
        let host = shape(&gpu, Lane::Cpu);
        assert_eq!(host[0], ("step".to_string(), 0));
        assert!(
            host[1..]
                .iter()
                .all(|span| *span == ("launch".to_string(), 1))
        );
        let device = shape(&gpu, Lane::Device);
        let expected = [
            ("begin", 0),
            ("kernel", 1),
            ("embed", 0),
            ("kernel", 1),
            ("norm_quantize", 0),
            ("kernel", 1),
            ("kernel", 1),
            ("rope_kv", 0),
            ("kernel", 1),
            ("choose", 0),
            ("kernel", 1),
        ];
        assert_eq!(
            device,
            expected.map(|(kind, depth)| (kind.to_string(), depth))
        );
        assert!(
            gpu.windows(2)
                .all(|pair| pair[0].start_us <= pair[1].start_us)
        );
    });
}

#[test]
fn events_name_backend_and_type() {
    with_model(|_, ops| {
        let mut times = step(true);
        times.step = 7;
        times.parts[1].side = Side::Cpu;
        let all: Vec<ExecutionEvent> = telemetry::events(&times, ops, "cuda:1").collect();
        let words: Vec<(&str, &str)> = all
            .iter()
            .map(|event| (event.backend.as_str(), event.op_type.as_str()))
            .collect();
        assert_eq!(
            words,
            [
                ("cuda:1", "begin"),
                ("cpu", "embed"),
                ("cuda:1", "norm_quantize"),
                ("cuda:1", "rope_kv"),
                ("cuda:1", "choose"),
            ]
        );
        assert!(all.iter().all(|of| of.step == 7 && of.duration == 10 * US));
        let mut summary = BackendExecutionSummary::default();
        summary.add_step(&times, ops, "cuda:1");
        assert_eq!(summary.ops_executed, 5);
        assert_eq!(summary.operations_by_backend["cuda:1"], 4);
        // One operation, and the host's time for six launches.
        assert_eq!(summary.time_by_backend["cpu"], 16 * US);
        assert_eq!(summary.time_by_backend["cuda:1"], 40 * US);
        assert_eq!(summary.operations_by_type.values().sum::<u64>(), 5);
    });
}
