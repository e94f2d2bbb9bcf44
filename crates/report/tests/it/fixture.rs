//! Profiles like those of llama-3.2-1b, built from its shapes.

use std::collections::BTreeMap;

use rocmforge_profile::schema::*;
use rocmforge_profile::stats::Summary;

const N_LAYERS: u64 = 16;
const N_PROMPT: u64 = 128;

/// An operation's work for one token: name, type, calls per step, bytes and operations per call, microseconds per
/// decode call.
struct Work {
    name: &'static str,
    kind: &'static str,
    calls: u64,
    bytes: u64,
    i8_ops: u64,
    f32_ops: u64,
    decode_us: f64,
    prefill_us: f64,
}

/// The cost of a matrix of `rows` x `columns` with `bits` per weight.
const fn matmul(name: &'static str, calls: u64, shape: [u64; 2], bits: u64, us: [f64; 2]) -> Work {
    let n = shape[0] * shape[1];
    Work {
        name,
        kind: "matmul",
        calls,
        bytes: n * bits / 16,
        i8_ops: 2 * n,
        f32_ops: 0,
        decode_us: us[0],
        prefill_us: us[1],
    }
}

const fn vector(name: &'static str, kind: &'static str, calls: u64, n: u64, us: [f64; 2]) -> Work {
    Work {
        name,
        kind,
        calls,
        bytes: 0,
        i8_ops: 0,
        f32_ops: 4 * n,
        decode_us: us[0],
        prefill_us: us[1],
    }
}

fn works() -> Vec<Work> {
    vec![
        vector(
            "norm_quantize [2048]",
            "norm",
            2 * N_LAYERS + 1,
            2048,
            [3.1, 160.0],
        ),
        matmul(
            "matmul attn_q Q4_K [2048, 2048]",
            N_LAYERS,
            [2048, 2048],
            9,
            [95.0, 2_900.0],
        ),
        matmul(
            "matmul attn_k Q4_K [512, 2048]",
            N_LAYERS,
            [512, 2048],
            9,
            [26.0, 760.0],
        ),
        matmul(
            "matmul attn_v Q6_K [512, 2048]",
            N_LAYERS,
            [512, 2048],
            13,
            [37.0, 900.0],
        ),
        vector("rope_kv [40, 64]", "rope", N_LAYERS, 2560, [4.0, 250.0]),
        Work {
            bytes: 2 * 512 * 160 * 2,
            f32_ops: 4 * 2048 * 160,
            ..vector(
                "attention [32, 64]",
                "attention",
                N_LAYERS,
                0,
                [38.0, 3_100.0],
            )
        },
        matmul(
            "matmul attn_output Q4_K [2048, 2048]",
            N_LAYERS,
            [2048, 2048],
            9,
            [97.0, 2_950.0],
        ),
        matmul(
            "matmul ffn_gate+up Q4_K [16384, 2048]",
            N_LAYERS,
            [16384, 2048],
            9,
            [760.0, 22_400.0],
        ),
        matmul(
            "matmul ffn_down Q6_K [2048, 8192]",
            N_LAYERS,
            [2048, 8192],
            13,
            [610.0, 14_100.0],
        ),
        matmul(
            "matmul output Q6_K [128256, 2048]",
            1,
            [128_256, 2048],
            13,
            [9_400.0, 9_500.0],
        ),
        vector("embed token_embd [2048]", "embed", 1, 0, [2.0, 90.0]),
        vector("argmax [128256]", "sample", 1, 128_256, [31.0, 31.0]),
    ]
}

fn about(value: f64) -> Summary {
    Summary::of(&[0.97, 0.99, 1.0, 1.02, 1.06].map(|part| part * value)).unwrap()
}

fn phase(name: &str, n_steps: u64, ceilings: &Ceilings) -> Phase {
    let n_tokens = if name == "prefill" { N_PROMPT } else { n_steps };
    let mut ops: Vec<OpRow> = works()
        .iter()
        .map(|work| {
            let calls = work.calls * n_steps;
            let us = if name == "prefill" {
                work.prefill_us
            } else {
                work.decode_us
            };
            let total_ms = calls as f64 * us / 1e3;
            // Only the last token has an output projection.
            let n_rows = if work.calls == 1 {
                1
            } else {
                n_tokens / n_steps
            };
            let bytes = work.bytes * calls;
            let (i8_ops, f32_ops) = (work.i8_ops * calls * n_rows, work.f32_ops * calls * n_rows);
            let bandwidth_share = bytes as f64 / (total_ms / 1e3) / ceilings.read_bytes_per_s;
            let ops_share = i8_ops as f64 / (total_ms / 1e3) / ceilings.i8_ops_per_s.unwrap()
                + f32_ops as f64 / (total_ms / 1e3) / ceilings.f32_ops_per_s.unwrap();
            OpRow {
                name: work.name.to_owned(),
                kind: work.kind.to_owned(),
                calls,
                total_ms,
                call_us: about(us),
                share: 0.0,
                bytes,
                f32_ops,
                i8_ops,
                bandwidth_share: Some(bandwidth_share),
                ops_share: Some(ops_share),
                bound: Some(match () {
                    () if us < 5.0 => Bound::Launch,
                    () if bandwidth_share > ops_share => Bound::Memory,
                    () => Bound::Compute,
                }),
            }
        })
        .collect();
    let ops_ms: f64 = ops.iter().map(|row| row.total_ms).sum();
    for row in &mut ops {
        row.share = row.total_ms / ops_ms;
    }
    ops.sort_by(|a, b| b.total_ms.total_cmp(&a.total_ms));
    let between_ops_ms = ops_ms * 0.012;
    let wall = ops_ms + between_ops_ms;
    Phase {
        name: name.to_owned(),
        n_tokens: n_tokens as usize,
        n_steps: n_steps as usize,
        profiled: about(wall),
        unprofiled: about(wall * 0.994),
        tokens_per_s: n_tokens as f64 / (wall * 0.994 / 1e3),
        ops_ms,
        between_ops_ms,
        least_ms: Some(wall * 0.61),
        ops,
        kernels: Vec::new(),
    }
}

/// One prefill step and two decode steps, with the steps around their operations.
fn timeline() -> Vec<Span> {
    let mut spans = Vec::new();
    let mut now = 120.0;
    let span = |name: &str, kind: &str, start_us: f64, duration_us: f64, depth| Span {
        name: name.to_owned(),
        kind: kind.to_owned(),
        lane: Lane::Cpu,
        start_us,
        duration_us,
        depth,
    };
    for step in ["prefill step", "decode step", "decode step"] {
        let start = now;
        let at = spans.len();
        let works = works();
        let (ends, layer): (Vec<&Work>, Vec<&Work>) =
            works.iter().partition(|work| work.calls == 1);
        let repeated = (0..N_LAYERS).flat_map(|_| layer.iter().copied());
        for work in ends[1..2]
            .iter()
            .copied()
            .chain(repeated)
            .chain(ends[..1].iter().copied())
            .chain(ends[2..].iter().copied())
        {
            let us = if step == "prefill step" {
                work.prefill_us
            } else {
                work.decode_us
            };
            spans.push(span(work.name, work.kind, now, us, 1));
            now += us + 0.8;
        }
        spans.insert(at, span(step, "step", start, now - start, 0));
        now += 45.0;
    }
    spans
}

/// A CPU profile, without anything that only a device has.
pub(crate) fn cpu() -> Profile {
    let ceilings = Ceilings {
        read_bytes_per_s: 29.9e9,
        f32_ops_per_s: Some(361.0e9),
        i8_ops_per_s: Some(1.31e12),
        start_us: None,
    };
    let phases = vec![
        phase("prefill", 1, &ceilings),
        phase("decode", 32, &ceilings),
    ];
    let run_ms: f64 = phases.iter().map(|phase| phase.profiled.p50).sum();
    let ops_by_type =
        works()
            .iter()
            .fold(BTreeMap::new(), |mut types: BTreeMap<String, u64>, work| {
                *types.entry(work.kind.to_owned()).or_default() += work.calls * 33;
                types
            });
    let n_ops = ops_by_type.values().sum();
    let prefill = phases[0].profiled.p50;
    Profile {
        schema: SCHEMA,
        version: "0.1.0".to_owned(),
        created: "2030-01-02T03:04:05Z".to_owned(),
        command: "rocmforge profile -m llama-3.2-1b-Q4_K_M.gguf -p 128 -n 32 --html report.html".to_owned(),
        machine: Machine {
            device: "Intel Xeon (Emerald Rapids)".to_owned(),
            backend: "cpu".to_owned(),
            cpu: "Intel Xeon (Emerald Rapids)".to_owned(),
            isa: "AVX-512 VNNI".to_owned(),
            n_threads: 2,
            os: "Linux 6.12".to_owned(),
            driver: None,
        },
        model: ModelFacts {
            name: "Llama 3.2 1B Instruct".to_owned(),
            arch: "llama".to_owned(),
            format: "Q4_K - Medium".to_owned(),
            n_params: 1_235_814_400,
            weight_bytes: 799_862_912,
        },
        workload: Workload {
            n_prompt: N_PROMPT as usize,
            n_gen: 32,
            n_seqs: 1,
            n_profiled: 5,
            n_unprofiled: 5,
        },
        ceilings: Some(ceilings),
        ttft: Ttft {
            model_load: Some(171.0),
            tokenize: Some(0.8),
            embedding: Some(0.09),
            prefill: Some(prefill),
            first_token: Some(9.6),
            h2d: None,
            d2h: None,
            total: prefill + 11.2,
            target: 200.0,
            meets_target: false,
            dominant: "prefill".to_owned(),
            notes: vec!["The first token's product with the vocabulary is counted in first token, not in prefill.".to_owned()],
        },
        phases,
        launches: None,
        time_by_backend: BTreeMap::from([("cpu".to_owned(), run_ms)]),
        ops_by_backend: BTreeMap::from([("cpu".to_owned(), n_ops)]),
        ops_by_type,
        slow_ops: Vec::new(),
        memory: Memory {
            weights: 799_862_912,
            kv_pool: 268_435_456,
            kv_per_token: 32_768,
            scratch: Some(9_437_184),
            peak: Some(1_093_664_768),
            fragmentation: 0.06,
        },
        utilization: None,
        overhead: Overhead {
            profiled_ms: run_ms,
            unprofiled_ms: run_ms * 0.994,
            scope_ns: 48.0,
        },
        advice: vec![
            Advice {
                title: "Read ffn_gate and ffn_up faster".to_owned(),
                reason: "38 % of decode at 61 % of the read bandwidth; other products of Q4_K reach 75 %".to_owned(),
                gain: 0.11,
                gain_range: Some([0.09, 0.14]),
                phase: "decode".to_owned(),
            },
            Advice {
                title: "Use a smaller type for ffn_down".to_owned(),
                reason: "Q6_K has 1.5 times the bytes of Q4_K and decode is bound by memory".to_owned(),
                gain: 0.08,
                gain_range: None,
                phase: "decode".to_owned(),
            },
        ],
        timeline: timeline(),
        notes: vec!["Peak memory is that of the process.".to_owned()],
    }
}

/// A device profile: kernels and copies on its lane, launches on the host's, no arithmetic peaks.
pub(crate) fn gpu() -> Profile {
    let mut profile = cpu();
    profile.machine.device = "NVIDIA H200".to_owned();
    profile.machine.backend = "cuda:0".to_owned();
    profile.machine.driver = Some("580.159.04".to_owned());
    profile.ceilings = Some(Ceilings {
        read_bytes_per_s: 4.405e12,
        f32_ops_per_s: None,
        i8_ops_per_s: None,
        start_us: None,
    });
    for phase in &mut profile.phases {
        for row in &mut phase.ops {
            row.total_ms /= 60.0;
            row.ops_share = None;
        }
        phase.kernels = phase.ops.clone();
        for kernel in &mut phase.kernels {
            kernel.name = format!("{}_2_8", kernel.kind);
        }
    }
    profile.ttft.h2d = Some(0.2);
    profile.ttft.d2h = Some(0.1);
    profile.ttft.total = 6.0;
    profile.ttft.prefill = Some(5.2);
    profile.ttft.first_token = Some(0.3);
    profile.ttft.meets_target = true;
    profile.launches = Some(Launches {
        per_token: 162.0,
        graphs: true,
        submit_us: about(2.7),
        overhead_us: 38.0,
        recommendation: Recommendation::NoAction,
        reason: "A step takes 38 µs beyond its kernels, 1.8 % of it.".to_owned(),
        verdicts: Vec::new(),
    });
    if let (Some(launches), Some(ceilings)) = (&mut profile.launches, &mut profile.ceilings) {
        launches.verdicts.push(Verdict {
            recommendation: Recommendation::UseHipGraph,
            applies: false,
            reason: "They are in use.".to_owned(),
        });
        ceilings.start_us = Some(2.7);
    }
    profile.utilization = Some(Utilization {
        source: "NVML".to_owned(),
        busy_percent: Summary::of(&[91.0, 97.0, 99.0]).unwrap(),
        memory_used_bytes: Some(6 << 30),
        meets_target: true,
        power_watts: Summary::of(&[297.0, 301.0, 305.0]),
        temperature: Summary::of(&[61.0, 62.0, 63.0]),
        clock_mhz: Summary::of(&[2300.0, 2310.0, 2290.0]),
        throttled_by: vec!["power".to_owned()],
        joules_per_token: Some(1.52),
    });
    profile.slow_ops = vec![SlowOp {
        reason: "matmul of MXFP6 on cuda".to_owned(),
        count: 3,
    }];
    let mut host = Vec::new();
    for span in &mut profile.timeline {
        span.lane = Lane::Device;
        let submitted = Span {
            name: format!("submit {}", span.name),
            kind: "submit".to_owned(),
            lane: Lane::Cpu,
            start_us: span.start_us * 0.3,
            duration_us: span.duration_us * 0.3,
            depth: span.depth,
        };
        host.push(submitted);
    }
    // A copy that overlaps the end of a kernel.
    host.push(Span {
        name: "copy of logits".to_owned(),
        kind: "d2h".to_owned(),
        lane: Lane::Device,
        start_us: 200.0,
        duration_us: 5_000.0,
        depth: 0,
    });
    profile.timeline.extend(host);
    profile
        .timeline
        .sort_by(|a, b| a.start_us.total_cmp(&b.start_us));
    profile
}

/// A profile without any optional measurement.
pub(crate) fn bare() -> Profile {
    let mut profile = cpu();
    profile.ceilings = None;
    profile.phases.clear();
    profile.time_by_backend.clear();
    profile.ops_by_backend.clear();
    profile.ops_by_type.clear();
    profile.timeline.clear();
    profile.advice.clear();
    profile.notes.clear();
    let ttft = &mut profile.ttft;
    for part in [
        &mut ttft.model_load,
        &mut ttft.tokenize,
        &mut ttft.embedding,
        &mut ttft.prefill,
        &mut ttft.first_token,
    ] {
        *part = None;
    }
    profile.memory.scratch = None;
    profile.memory.peak = None;
    profile
}
