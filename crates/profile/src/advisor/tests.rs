use super::*;
use crate::schema::*;
use crate::stats::Summary;

/// 10 GB/s, 100 G f32 and 400 G int8 operations per second, 2 us to start.
const CEILINGS: Ceilings = Ceilings {
    read_bytes_per_s: 10e9,
    f32_ops_per_s: Some(100e9),
    i8_ops_per_s: Some(400e9),
    start_us: Some(2.0),
};

fn one(ms: f64) -> Summary {
    Summary::of(&[ms]).unwrap()
}

/// A row of `calls` calls that take `total_ms` in total and have this cost.
fn row(name: &str, calls: u64, total_ms: f64, cost: Cost) -> OpRow {
    let seconds = total_ms / 1e3;
    let arithmetic = cost.f32_ops as f64 / 100e9 + cost.i8_ops as f64 / 400e9;
    OpRow {
        name: name.to_string(),
        kind: name.split(' ').next().unwrap().to_string(),
        calls,
        total_ms,
        call_us: one(total_ms * 1e3 / calls as f64),
        share: 0.0,
        bytes: cost.bytes,
        f32_ops: cost.f32_ops,
        i8_ops: cost.i8_ops,
        bandwidth_share: Some(cost.bytes as f64 / 10e9 / seconds),
        ops_share: Some(arithmetic / seconds),
        bound: crate::ops::bound(&cost, calls, &CEILINGS),
    }
}

fn megabytes(n: u64) -> Cost {
    Cost {
        bytes: n * 1_000_000,
        ..Cost::default()
    }
}

/// A phase of `wall_ms` with 10 tokens.
fn phase(name: &str, wall_ms: f64, mut ops: Vec<OpRow>) -> Phase {
    let ops_ms: f64 = ops.iter().map(|row| row.total_ms).sum();
    for row in &mut ops {
        row.share = row.total_ms / ops_ms;
    }
    let least = ops
        .iter()
        .map(|row| cost(row).least_seconds(&CEILINGS).unwrap());
    Phase {
        name: name.to_string(),
        n_tokens: 10,
        n_steps: 10,
        profiled: one(wall_ms),
        unprofiled: one(wall_ms),
        tokens_per_s: 1e4 / wall_ms,
        ops_ms,
        between_ops_ms: wall_ms - ops_ms,
        least_ms: Some(1e3 * least.sum::<f64>()),
        ops,
        kernels: Vec::new(),
    }
}

fn profile(phases: Vec<Phase>) -> Profile {
    let ttft = crate::ttft::TtftProfiler::new().finish_with(std::time::Duration::from_millis(10));
    Profile {
        schema: SCHEMA,
        version: String::new(),
        created: String::new(),
        command: String::new(),
        machine: Machine {
            device: String::new(),
            backend: "cpu".to_string(),
            cpu: String::new(),
            isa: String::new(),
            n_threads: 1,
            os: String::new(),
            driver: None,
        },
        model: ModelFacts {
            name: String::new(),
            arch: String::new(),
            format: String::new(),
            n_params: 0,
            weight_bytes: 0,
        },
        workload: Workload {
            n_prompt: 1,
            n_gen: 11,
            n_seqs: 1,
            n_profiled: 1,
            n_unprofiled: 1,
        },
        ceilings: Some(CEILINGS),
        ttft,
        phases,
        launches: None,
        time_by_backend: Default::default(),
        ops_by_backend: Default::default(),
        ops_by_type: Default::default(),
        slow_ops: Vec::new(),
        memory: Memory {
            weights: 0,
            kv_pool: 0,
            kv_per_token: 0,
            scratch: None,
            peak: None,
            fragmentation: 0.0,
        },
        utilization: None,
        overhead: Overhead {
            profiled_ms: 0.0,
            unprofiled_ms: 0.0,
            scope_ns: 0.0,
        },
        advice: Vec::new(),
        timeline: Vec::new(),
        notes: Vec::new(),
    }
}

/// Checks the gain of the advice whose title contains `part`.
fn check(advice: &[Advice], part: &str, gain: f64) {
    let found = advice.iter().find(|advice| advice.title.contains(part));
    let titles: Vec<&str> = advice.iter().map(|advice| advice.title.as_str()).collect();
    let found = found.unwrap_or_else(|| panic!("no {part:?} in {titles:?}"));
    assert!(
        (found.gain - gain).abs() < 1e-6,
        "{found:?}, expected {gain}"
    );
    assert!(!found.reason.is_empty());
}

#[test]
fn ranks_rows_by_saving() {
    // 100 MB need 10 ms: one row runs at half the bandwidth, the other near all of it.
    let rows = vec![
        row("matmul ffn_down Q6_K [1, 1]", 10, 20.0, megabytes(100)),
        row("matmul attn_output Q4_K [1, 1]", 10, 10.5, megabytes(100)),
    ];
    let decode = phase("decode", 31.0, rows);
    // A phase that saves less time, but a larger share of itself.
    let few = vec![row("matmul ffn_up Q4_K [1, 1]", 10, 5.0, megabytes(10))];
    let prefill = phase("prefill", 5.0, few);
    let advice = advise(&profile(vec![prefill, decode]), &[], &Facts::default());
    assert!(advice[0].title.contains("ffn_down Q6_K"), "{advice:?}");
    assert_eq!(advice[0].phase, "decode");
    check(&advice, "ffn_down", 10.0 / 31.0);
    check(&advice, "ffn_up", 4.0 / 5.0);
    // 0.5 ms of 31 ms is below the smallest gain.
    assert!(
        advice
            .iter()
            .all(|advice| !advice.title.contains("attn_output"))
    );
    assert!(
        advice[0].reason.contains("50 % of the read bandwidth"),
        "{}",
        advice[0].reason
    );
}

#[test]
fn advises_on_compute_bound_rows() {
    let cost = Cost {
        bytes: 1000,
        i8_ops: 4_000_000_000,
        ..Cost::default()
    };
    let prefill = phase(
        "prefill",
        40.0,
        vec![row("matmul a Q4_K [1, 1]", 1, 40.0, cost)],
    );
    let advice = advise(&profile(vec![prefill]), &[], &Facts::default());
    // It takes 40 ms, and 10 ms at the peak.
    check(&advice, "matmul a", 0.75);
    assert!(
        advice[0].reason.contains("arithmetic"),
        "{}",
        advice[0].reason
    );
}

#[test]
fn advises_fewer_bytes_at_the_roofline() {
    let rows = vec![row("matmul a Q4_K [1, 1]", 10, 10.0, megabytes(90))];
    let advice = advise(
        &profile(vec![phase("decode", 10.0, rows)]),
        &[],
        &Facts::default(),
    );
    check(&advice, "Read fewer bytes", 9.0 / 10.0 / 2.0);
    // Far from the roofline, kernels come first.
    let rows = vec![row("matmul a Q4_K [1, 1]", 10, 10.0, megabytes(50))];
    let advice = advise(
        &profile(vec![phase("decode", 10.0, rows)]),
        &[],
        &Facts::default(),
    );
    assert!(
        advice
            .iter()
            .all(|advice| !advice.title.contains("fewer bytes"))
    );
}

#[test]
fn advises_to_fuse_small_operations() {
    // 10 kB need 1 us, a start 2 us.
    let small = Cost {
        bytes: 10_000 * 1000,
        ..Cost::default()
    };
    let rows = vec![
        row("norm_quantize [64]", 1000, 5.0, small),
        row("matmul a Q4_K [1, 1]", 10, 5.0, megabytes(49)),
    ];
    let advice = advise(
        &profile(vec![phase("decode", 10.0, rows)]),
        &[],
        &Facts::default(),
    );
    check(&advice, "small operations", 4.0 / 10.0);
    assert!(
        advice
            .iter()
            .all(|advice| !advice.title.contains("Speed up norm"))
    );
}

#[test]
fn names_slow_paths() {
    let rows = vec![
        row(
            "matmuls attn_q+attn_v Q2_K+Q3_K [1+1, 1]",
            10,
            50.0,
            megabytes(100),
        ),
        row("matmul ffn_down Q6_K [1, 1]", 10, 11.0, megabytes(100)),
    ];
    let mut profile = profile(vec![phase("decode", 61.0, rows)]);
    profile.slow_ops = vec![SlowOp {
        reason: "Q3_K".to_string(),
        count: 3,
    }];
    let advice = advise(&profile, &[], &Facts::default());
    check(&advice, "Add a fast kernel for Q3_K", 40.0 / 61.0);
    assert!(
        advice
            .iter()
            .all(|advice| !advice.title.contains("Speed up matmuls"))
    );
    // The name contains no other format.
    profile.slow_ops[0].reason = "Q3".to_string();
    let advice = advise(&profile, &[], &Facts::default());
    assert!(
        advice
            .iter()
            .all(|advice| !advice.title.contains("fast kernel"))
    );
    // Attention is named by its heads.
    let rows = vec![row("attention 4/4 heads [100]", 10, 50.0, megabytes(100))];
    let mut profile = profile_of(rows);
    profile.slow_ops = vec![SlowOp {
        reason: "attention with heads of 100 values".to_string(),
        count: 1,
    }];
    check(
        &advise(&profile, &[], &Facts::default()),
        "heads of 100",
        0.8,
    );
}

fn profile_of(rows: Vec<OpRow>) -> Profile {
    profile(vec![phase("decode", 50.0, rows)])
}

#[test]
fn advises_more_threads() {
    let rows = vec![row("matmul a Q4_K [1, 1]", 10, 50.0, megabytes(100))];
    let more = Ceilings {
        read_bytes_per_s: 25e9,
        ..CEILINGS
    };
    let facts = Facts {
        more_threads: Some(MoreThreads {
            n_cores: 8,
            ceilings: more,
        }),
        ..Facts::default()
    };
    check(
        &advise(&profile_of(rows), &[], &facts),
        "--threads 8",
        1.0 - 10.0 / 25.0,
    );
}

#[test]
fn advises_a_smaller_kv_cache_for_memory_bound_attention() {
    let rows = vec![
        row("attention 32/8 heads [128]", 10, 20.0, megabytes(150)),
        row("matmul a Q4_K [1, 1]", 10, 30.0, megabytes(200)),
    ];
    let facts = Facts {
        smaller_kv: Some(SmallerKv {
            name: "q8_0".to_string(),
            bytes_share: 0.53125,
        }),
        ..Facts::default()
    };
    check(
        &advise(&profile_of(rows), &[], &facts),
        "KV cache as q8_0",
        20.0 * 0.46875 / 50.0,
    );
}

#[test]
fn advises_on_gaps_between_operations() {
    let rows = vec![row("matmul a Q4_K [1, 1]", 10, 40.0, megabytes(390))];
    check(
        &advise(&profile_of(rows), &[], &Facts::default()),
        "gaps between the operations",
        0.2,
    );
}

#[test]
fn advises_on_launches_in_decode_only() {
    let rows = vec![row("matmul a Q4_K [1, 1]", 10, 50.0, megabytes(490))];
    let mut profile = profile_of(rows);
    for (recommendation, title) in [
        (Recommendation::NoAction, None),
        (Recommendation::UseHipGraph, Some("graphs")),
        (Recommendation::BatchOperations, Some("fewer and larger")),
        (
            Recommendation::DeferSynchronization,
            Some("Defer the host's wait"),
        ),
    ] {
        profile.launches = Some(Launches {
            per_token: 300.0,
            graphs: false,
            submit_us: one(1.0),
            overhead_us: 500.0,
            recommendation,
            reason: "300 launches".to_string(),
            verdicts: Vec::new(),
        });
        let advice = advise(&profile, &[], &Facts::default());
        match title {
            // 500 us of a token of 5 ms.
            Some(title) => check(&advice, title, 0.1),
            None => assert!(advice.iter().all(|advice| advice.reason != "300 launches")),
        }
    }
}

#[test]
fn advises_on_dominant_loading() {
    let rows = vec![row("matmul a Q4_K [1, 1]", 10, 50.0, megabytes(490))];
    let mut profile = profile_of(rows);
    profile.ttft.model_load = Some(9.0);
    let has_load = |profile: &Profile| {
        let advice = advise(profile, &[], &Facts::default());
        advice.into_iter().find(|advice| advice.phase == "start")
    };
    assert_eq!(has_load(&profile), None);
    profile.ttft.model_load = Some(90.0);
    check(&[has_load(&profile).unwrap()], "Load the model once", 0.9);
}

#[test]
fn gives_no_advice_without_measurements() {
    let mut profile = profile_of(vec![row("matmul a Q4_K [1, 1]", 10, 50.0, megabytes(10))]);
    profile.ceilings = None;
    assert_eq!(advise(&profile, &[], &Facts::default()), []);
}

/// A decode phase of 30 ms whose only row takes this long, and 10 ms at its bound.
fn decode_with(row_ms: f64) -> Phase {
    phase(
        "decode",
        30.0,
        vec![row("matmul a Q4_K [1, 1]", 10, row_ms, megabytes(100))],
    )
}

fn view(row_ms: f64, read_bytes_per_s: f64) -> View {
    View {
        phases: vec![decode_with(row_ms)],
        ceilings: Some(Ceilings {
            read_bytes_per_s,
            ..CEILINGS
        }),
    }
}

#[test]
fn advice_has_the_range_of_its_runs() {
    let profile = profile(vec![decode_with(20.0)]);
    let views = [view(16.0, 10e9), view(25.0, 10e9)];
    let advice = advise(&profile, &views, &Facts::default());
    check(&advice, "Speed up matmul a", 10.0 / 30.0);
    let [low, high] = advice
        .iter()
        .find(|of| of.title.contains("Speed up"))
        .and_then(|of| of.gain_range)
        .unwrap();
    // By hand: 16 - 10 and 25 - 10 of 30 ms.
    assert!(
        (low - 0.2).abs() < 1e-9 && (high - 0.5).abs() < 1e-9,
        "{low} {high}"
    );
}

#[test]
fn advice_of_a_single_disturbed_run_is_not_given() {
    let profile = profile(vec![decode_with(20.0)]);
    let has = |views: &[View]| {
        let advice = advise(&profile, views, &Facts::default());
        advice.iter().any(|of| of.title.contains("Speed up"))
    };
    assert!(has(&[view(20.0, 10e9), view(19.0, 10e9)]));
    // One run is as fast as the bound.
    assert!(!has(&[view(30.0, 10e9), view(10.2, 10e9)]));
    // With the peak of a busier moment there is nothing to gain.
    assert!(!has(&[view(20.0, 10e9), view(20.0, 5.1e9)]));
}

#[test]
fn few_and_large_items_only() {
    let rows = |phase: &str| {
        let rows = (0..6).map(|i| {
            let name = format!("matmul {phase}{i} Q4_K [1, 1]");
            row(&name, 10, 20.0, megabytes(100))
        });
        rows.collect::<Vec<_>>()
    };
    let phases = vec![
        phase("prefill", 160.0, rows("p")),
        phase("decode", 160.0, rows("d")),
    ];
    let advice = advise(&profile(phases), &[], &Facts::default());
    assert_eq!(advice.len(), MAX_ADVICE);
    for phase in ["prefill", "decode"] {
        let rows = advice
            .iter()
            .filter(|of| of.phase == phase && of.title.contains("matmul"));
        assert!(rows.count() <= N_ROWS);
    }
    // 40 % of a phase that takes a hundredth of the run.
    let small = phase(
        "prefill",
        1.0,
        vec![row("matmul s Q4_K [1, 1]", 10, 0.9, megabytes(5))],
    );
    let large = phase(
        "decode",
        99.0,
        vec![row("matmul l Q4_K [1, 1]", 10, 98.0, megabytes(960))],
    );
    let advice = advise(&profile(vec![small, large]), &[], &Facts::default());
    assert!(advice.iter().all(|of| of.phase == "decode"), "{advice:?}");
}

#[test]
fn a_phase_above_the_roofline_is_not_at_its_limit() {
    // 300 MB in 10 ms are three times the bandwidth of memory: they come from a cache.
    let rows = vec![row("matmul a Q4_K [1, 1]", 10, 10.0, megabytes(300))];
    let phase = phase("decode", 10.0, rows);
    assert!(phase.ops[0].is_above_bandwidth() && !phase.ops[0].is_above_ops());
    assert_eq!(phase.roofline_share(), Some(3.0));
    assert_eq!(advise(&profile(vec![phase]), &[], &Facts::default()), []);
}
