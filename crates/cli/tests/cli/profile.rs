//! `profile` on the built-in model: its numbers are consistent with each other and with the work. No speed is asserted.

use std::process::{Command, Stdio};
use std::time::Duration;

use rocmforge_profile::schema::{Lane, Phase, Profile, Recommendation, SCHEMA};
use serde_json::Value;

use crate::gpu::host_device;
use crate::program::{command, repository, run};

/// Returns the number of layers of the built-in model.
fn n_layers() -> u64 {
    let path = repository("models/forge-mini-Q4_K_M.gguf");
    let report = run(&["inspect", path.to_str().unwrap(), "--json"]).json();
    let layers = report["metadata"]["llama.block_count"].as_u64();
    layers.unwrap_or_else(|| panic!("{report}"))
}

fn parse(json: Value) -> Profile {
    assert_eq!(json["schema"], SCHEMA);
    serde_json::from_value(json).unwrap()
}

fn near(a: f64, b: f64) {
    assert!(
        (a - b).abs() <= 1e-6 * a.abs().max(b.abs()).max(1e-3),
        "{a} is not {b}"
    );
}

/// Checks that a phase's parts add up to its totals.
fn reconcile(phase: &Phase) {
    near(phase.ops_ms + phase.between_ops_ms, phase.profiled.mean);
    near(phase.ops.iter().map(|row| row.total_ms).sum(), phase.ops_ms);
    near(phase.ops.iter().map(|row| row.share).sum(), 1.0);
    near(
        phase.tokens_per_s,
        phase.n_tokens as f64 / phase.unprofiled.mean * 1e3,
    );
    assert!(
        phase
            .ops
            .windows(2)
            .all(|pair| pair[0].share >= pair[1].share)
    );
    for row in &phase.ops {
        assert!(row.calls > 0 && row.call_us.min >= 0.0, "{row:?}");
        near(row.call_us.mean * row.calls as f64 / 1e3, row.total_ms);
    }
}

/// Checks what does not depend on the device.
fn check(profile: &Profile, n_prompt: usize, n_gen: usize, n_runs: usize) {
    let workload = &profile.workload;
    assert_eq!(
        (workload.n_prompt, workload.n_gen, workload.n_seqs),
        (n_prompt, n_gen, 1)
    );
    assert_eq!(
        (workload.n_profiled, workload.n_unprofiled),
        (n_runs, n_runs)
    );
    let [prefill, decode] = &profile.phases[..] else {
        panic!("two phases: {:?}", profile.phases);
    };
    assert_eq!(
        (prefill.name.as_str(), prefill.n_tokens),
        ("prefill", n_prompt)
    );
    assert_eq!(
        (decode.name.as_str(), decode.n_tokens),
        ("decode", n_gen - 1)
    );
    assert_eq!(decode.n_steps, n_gen - 1);
    for phase in [prefill, decode] {
        reconcile(phase);
        assert_eq!((phase.profiled.n, phase.unprofiled.n), (n_runs, n_runs));
    }
    // Both count every executed operation.
    let of_types: u64 = profile.ops_by_type.values().sum();
    assert_eq!(profile.ops_by_backend.values().sum::<u64>(), of_types);
    let of_rows = profile.phases.iter().flat_map(|phase| &phase.ops);
    assert_eq!(of_types, of_rows.map(|row| row.calls).sum::<u64>());
    let layers = n_layers();
    for phase in [prefill, decode] {
        let attention = phase.ops.iter().filter(|row| row.kind == "attention");
        let calls: u64 = attention.map(|row| row.calls).sum();
        assert_eq!(calls, layers * phase.n_steps as u64);
    }
    // The parts of the time to first token add up to its total, without loading.
    let ttft = &profile.ttft;
    let parts = [
        ttft.tokenize,
        ttft.embedding,
        ttft.prefill,
        ttft.first_token,
        ttft.h2d,
        ttft.d2h,
    ];
    near(parts.iter().flatten().sum(), ttft.total);
    near(
        ttft.total,
        prefill.profiled.mean + ttft.tokenize.unwrap_or(0.0),
    );
    assert!(ttft.model_load.is_some_and(|load| load > 0.0));
    assert_eq!(ttft.meets_target, ttft.total <= ttft.target);
    let overhead = &profile.overhead;
    near(
        overhead.profiled_ms,
        prefill.profiled.mean + decode.profiled.mean,
    );
    near(
        overhead.unprofiled_ms,
        prefill.unprofiled.mean + decode.unprofiled.mean,
    );
    assert!(overhead.scope_ns > 0.0);
    assert_eq!(profile.slow_ops, []);
    // The last token is not added to the KV cache.
    let (page, tokens) = (32, n_prompt + n_gen - 1);
    let slots = tokens.div_ceil(page) * page;
    near(
        profile.memory.fragmentation,
        (slots - tokens) as f64 / slots as f64,
    );
    assert!(profile.memory.kv_per_token.is_multiple_of(layers));
    assert!(
        profile
            .timeline
            .windows(2)
            .all(|pair| pair[0].start_us <= pair[1].start_us)
    );
    let scopes: Vec<&str> = profile
        .timeline
        .iter()
        .filter(|span| span.kind == "scope")
        .map(|span| span.name.as_str())
        .collect();
    assert!(
        scopes.contains(&"load model") && scopes.ends_with(&["prefill", "decode"]),
        "{scopes:?}"
    );
}

#[test]
fn json_profile_adds_up() {
    let profile = parse(
        run(&[
            "profile",
            "--prompt-tokens",
            "300",
            "-n",
            "5",
            "--runs",
            "2",
            "--json",
        ])
        .json(),
    );
    check(&profile, 300, 5, 2);
    let [prefill, decode] = &profile.phases[..] else {
        unreachable!("checked");
    };
    // The computing thread fits within the wall-clock time. (A GPU starts a token before the host has the last one.)
    assert!(prefill.between_ops_ms >= 0.0 && decode.between_ops_ms >= 0.0);
    // Chunks of 256 tokens.
    assert_eq!(prefill.n_steps, 2);
    assert_eq!(profile.machine.backend, "cpu");
    assert!(
        profile.ttft.h2d.is_none() && profile.ttft.d2h.is_none() && profile.ttft.tokenize.is_none()
    );
    assert_eq!(profile.launches, None);
    let backends: Vec<&str> = profile.time_by_backend.keys().map(String::as_str).collect();
    assert_eq!(backends, ["cpu"]);
    // A GEMV has its tensor's name, format and shape, and reads each weight once per token.
    let down = decode
        .ops
        .iter()
        .filter(|row| row.name.starts_with("matmul ffn_down "));
    let down: Vec<_> = down.collect();
    assert!(
        down.iter()
            .all(|row| row.name.ends_with(']') && row.bytes > 0 && row.i8_ops > 0)
    );
    assert_eq!(
        down.iter().map(|row| row.calls).sum::<u64>(),
        n_layers() * 4
    );
    let ceilings = profile.ceilings.unwrap();
    for row in &decode.ops {
        let seconds = row.bytes as f64 / ceilings.read_bytes_per_s;
        near(row.bandwidth_share.unwrap() * row.total_ms / 1e3, seconds);
    }
    assert!(prefill.least_ms.unwrap() > 0.0 && decode.least_ms.unwrap() > 0.0);
    assert!(prefill.kernels.is_empty() && decode.kernels.is_empty());
    assert!(profile.timeline.iter().all(|span| span.lane == Lane::Cpu));
    // Every step is in the timeline: two chunks of the prompt and four tokens.
    let steps = profile.timeline.iter().filter(|span| span.kind == "step");
    assert_eq!(steps.count(), 6);
    // If the system reports it.
    let peak = profile.memory.peak;
    assert!(peak.is_none_or(|peak| peak > profile.memory.weights / 2));
    // Without the buffer for measuring the memory's peak rate.
    assert!(peak.is_none_or(|peak| peak < 256 << 20), "{peak:?}");
    assert!(profile.memory.scratch.unwrap() > 0);
}

#[test]
fn split_model_has_times_of_both_devices() {
    let Some(device) = host_device() else { return };
    let flags = ["--prompt-tokens", "2", "-n", "2", "--runs", "1", "--json"];
    let shared = ["profile", "--device", &device, "-ngl", "4"];
    let profile = parse(run(&[&shared[..], &flags[..]].concat()).json());
    check(&profile, 2, 2, 1);
    let cpu = parse(run(&[&["profile"], &flags[..]].concat()).json());
    let of = |backend: &str| profile.ops_by_backend[backend];
    assert!(profile.time_by_backend.contains_key(&device));
    // On a CPU: two steps with six layers of twelve operations each, the embedding and the beginning.
    assert_eq!(
        (of("cpu"), cpu.ops_by_backend["cpu"]),
        (2 * (6 * 12 + 2), 2 * (10 * 12 + 6))
    );
    // There, RoPE and the KV append are three operations, and gate and up, and attention, with their conversion two; copies, beginning and
    // end of a step are the GPU's.
    assert_eq!(of(&device), 2 * (4 * 8 + 3 + 4));
    assert_eq!(profile.ops_by_type["copy"], 2);
    assert!(profile.machine.device.starts_with("4 of 10 layers"));
    assert!(profile.ceilings.is_none());
}

/// More generated tokens than one would guess from a short timeline.
#[test]
fn timeline_and_trace_have_every_step() {
    let dir = tempfile::tempdir().unwrap();
    let trace = dir.path().join("trace.json");
    let flags = [
        "profile",
        "--prompt-tokens",
        "8",
        "-n",
        "21",
        "--runs",
        "1",
        "--json",
    ];
    let run = run(&[&flags[..], &["--trace", trace.to_str().unwrap()]].concat());
    let profile = parse(run.json());
    let is_step = |name: &str| name.starts_with("step of ");
    let steps = profile.timeline.iter().filter(|span| is_step(&span.name));
    assert_eq!(steps.count(), 21);
    let events: Value = serde_json::from_str(&std::fs::read_to_string(trace).unwrap()).unwrap();
    let events = events["traceEvents"].as_array().unwrap();
    let steps = events
        .iter()
        .filter(|event| event["name"].as_str().is_some_and(is_step));
    assert_eq!(steps.count(), 21);
    assert!(
        profile.notes.iter().all(|note| !note.contains("timeline")),
        "{:?}",
        profile.notes
    );
    // What it does is said before it is done: a warm-up, a pair, and the sampling of the device.
    let told = "profiling 4 runs of 8 prompt tokens and 21 generated";
    assert!(run.stderr.contains(told), "{}", run.stderr);
}

#[test]
fn tokenizes_a_text_and_uses_the_given_target() {
    let flags = [
        "profile",
        "-p",
        "Once upon a time",
        "-n",
        "2",
        "--runs",
        "1",
    ];
    let profile = parse(run(&[&flags[..], &["--ttft-target", "0.001", "--json"]].concat()).json());
    assert!(profile.ttft.tokenize.is_some());
    assert_eq!(
        (profile.ttft.target, profile.ttft.meets_target),
        (0.001, false)
    );
    check(&profile, profile.workload.n_prompt, 2, 1);
    let ids = run(&["tokenize", "-p", "Once upon a time", "--ids"]).ok();
    let ids: Value = serde_json::from_slice(&ids.stdout).unwrap();
    let n_ids = ids.as_array().unwrap().len();
    // Including the BOS token, which tokenize may omit.
    assert!((n_ids..=n_ids + 1).contains(&profile.workload.n_prompt));
}

#[test]
fn prints_tables() {
    let run = run(&["profile", "--prompt-tokens", "8", "-n", "3", "--runs", "1"]).ok();
    let text = run.text();
    for part in [
        "forge-mini",
        "Time to first token",
        "model_load",
        "prefill: 8 tokens in 1 step\n",
        "decode: 2 tokens in 2 steps\n",
        "without profiling",
        "  roofline ",
        "gated_matmul ffn_gate+ffn_up Q4_K",
        "slow paths: none",
        "KV cache",
        "a timed scope costs",
        "Recommendations",
    ] {
        assert!(text.contains(part), "{part:?} is not in {text}");
    }
    assert!(
        text.lines()
            .all(|line| !line.contains("NaN") && !line.contains("inf")),
        "{text}"
    );
}

#[test]
fn writes_complete_files() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_string();
    let (trace, html, flames) = (path("trace.json"), path("page.html"), path("ops.svg"));
    // Existing files are replaced.
    std::fs::write(&trace, "old").unwrap();
    let small = [
        "profile",
        "--prompt-tokens",
        "8",
        "-n",
        "3",
        "--runs",
        "1",
        "--json",
    ];
    let files = ["--trace", &trace, "--html", &html, "--flamegraph", &flames];
    run(&[&small[..], &files].concat()).ok();
    let read = |path: &str| std::fs::read_to_string(path).unwrap();
    let events: Value = serde_json::from_str(&read(&trace)).unwrap();
    let events = events["traceEvents"].as_array().unwrap();
    assert!(events.iter().any(|event| event["name"] == "prefill"));
    assert!(read(&html).contains("</html>"));
    assert!(read(&flames).trim_end().ends_with("</svg>"));
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 3);
    let stacks = path("ops.folded");
    run(&[&small[..], &["--flamegraph", &stacks]].concat()).ok();
    let stacks = read(&stacks);
    let parts: Vec<_> = stacks.lines().map(|line| line.rsplit_once(' ')).collect();
    let is_stack = |part: &Option<(&str, &str)>| {
        part.is_some_and(|(names, us)| names.contains(';') && us.parse::<u64>().is_ok())
    };
    assert!(parts.len() > 3 && parts.iter().all(is_stack), "{stacks}");
    // A missing folder is reported before the work, and nothing is left behind.
    let nowhere = path("none/trace.json");
    let args = ["profile", "--html", &html, "--trace", &nowhere];
    run(&args).fails(1, "none/trace.json");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 4);
}

#[test]
fn profiles_context_shifting() {
    let args = [
        "profile",
        "--prompt-tokens",
        "40",
        "-n",
        "20",
        "--runs",
        "1",
        "--ctx",
        "48",
        "--json",
    ];
    run(&args).fails(1, "or --context-policy shift");
    let profile = run(&[&args[..], &["--context-policy", "shift"]].concat());
    let profile = parse(profile.json());
    let [prefill, decode] = &profile.phases[..] else {
        panic!("two phases: {:?}", profile.phases);
    };
    assert_eq!((prefill.n_steps, prefill.n_tokens), (1, 40));
    assert_eq!((decode.n_steps, decode.n_tokens), (19, 19));
    reconcile(prefill);
    reconcile(decode);
}

#[test]
fn one_token_has_no_decode() {
    let flags = [
        "profile",
        "--prompt-tokens",
        "3",
        "-n",
        "1",
        "--runs",
        "1",
        "--json",
    ];
    let profile = parse(run(&flags).json());
    let names: Vec<&str> = profile
        .phases
        .iter()
        .map(|phase| phase.name.as_str())
        .collect();
    assert_eq!(names, ["prefill"]);
}

#[test]
fn reports_what_cannot_be_profiled() {
    let profile = |flags: &[&str]| run(&[&["profile"], flags].concat());
    profile(&["--prompt-tokens", "0"]).fails(2, "--prompt-tokens");
    profile(&["-n", "0"]).fails(2, "--max-tokens");
    profile(&["--runs", "0"]).fails(2, "--runs");
    for target in ["0", "-1", "nan", "inf", "x"] {
        profile(&[&format!("--ttft-target={target}")]).fails(2, "milliseconds above 0");
    }
    profile(&["-p", "x", "--prompt-tokens", "3"]).fails(2, "cannot be used with");
    profile(&["-p", ""]).fails(1, "prompt");
    profile(&["-f", "/nonexistent/text"]).fails(1, "/nonexistent/text");
    profile(&["-m", "/nonexistent/model.gguf"]).fails(1, "/nonexistent/model.gguf");
    profile(&["--prompt-tokens", "100", "-n", "29", "--ctx", "128"]).fails(1, "--prompt-tokens");
    profile(&["--device", "cuda:4095"]).fails(1, "CUDA");
}

/// The runs that finished before Ctrl-C are printed.
#[test]
fn interrupted_profile_prints_finished_runs() {
    for seconds in [4, 16, 64] {
        let flags = [
            "profile",
            "--prompt-tokens",
            "1",
            "-n",
            "32",
            "--runs",
            "1000",
            "--json",
        ];
        let mut command = command(&flags);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.spawn().unwrap();
        std::thread::sleep(Duration::from_secs(seconds));
        // The run may have ended before the signal.
        let kill = Command::new("kill")
            .args(["-INT", &child.id().to_string()])
            .status();
        let output = child.wait_with_output().unwrap();
        if kill.is_err() {
            println!("skipped: there is no kill command");
            return;
        }
        let code = output.status.code();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(matches!(code, Some(0 | 130)), "{code:?}: {stderr}");
        // It ended by itself, or before a pair of runs was finished.
        if code == Some(0) || output.stdout.is_empty() {
            continue;
        }
        let profile = parse(serde_json::from_slice(&output.stdout).unwrap());
        let workload = &profile.workload;
        assert!((1..1000).contains(&workload.n_profiled));
        assert!((workload.n_profiled..=workload.n_profiled + 1).contains(&workload.n_unprofiled));
        profile.phases.iter().for_each(reconcile);
        return;
    }
    println!("skipped: no run ended in time");
}

/// Ctrl-C says which run it stopped, and leaves no file behind.
#[test]
#[cfg(unix)]
fn ctrl_c_says_what_it_stopped() {
    use std::io::{BufRead as _, BufReader, Read as _};

    let dir = tempfile::tempdir().unwrap();
    let page = dir.path().join("page.html");
    let flags = [
        "profile",
        "--prompt-tokens",
        "8",
        "-n",
        "1000",
        "--runs",
        "1000",
        "--html",
    ];
    let mut command = command(&[&flags[..], &[page.to_str().unwrap()]].concat());
    let mut child = command
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    let mut told = String::new();
    while !told.contains("profiling 2002 runs") {
        assert!(stderr.read_line(&mut told).unwrap() > 0, "{told}");
    }
    let pid = child.id().to_string();
    let kill = Command::new("kill").args(["-INT", &pid]).status();
    assert!(kill.unwrap().success());
    stderr.read_to_string(&mut told).unwrap();
    let code = child.wait().unwrap().code();
    assert!(told.contains("notice: stopped in run "), "{told}");
    assert!(told.contains(" of 2002 ("), "{told}");
    assert_eq!(code, Some(130));
    if told.contains("too early for results") {
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}

#[test]
fn profiles_a_gpu_by_its_events() {
    let Some(device) = host_device() else { return };
    // Few tokens, as emulated GPUs are slow.
    let on_device = |n_prompt: &str, n_gen: &str, more: &[&str]| {
        let work = ["--prompt-tokens", n_prompt, "-n", n_gen, "--runs", "1"];
        let flags = ["profile", "--json", "--ctx", "64", "--page", "32"];
        let flags = [&flags[..], &["--device", &device]].concat();
        parse(run(&[&flags[..], &work, more].concat()).json())
    };
    let profile = on_device("2", "3", &[]);
    check(&profile, 2, 3, 1);
    assert_eq!(profile.machine.backend, device);
    let ttft = &profile.ttft;
    assert!(ttft.h2d.is_some_and(|ms| ms > 0.0) && ttft.d2h.is_some_and(|ms| ms > 0.0));
    let layers = n_layers();
    for phase in &profile.phases {
        // The operation that the GPU fuses.
        let merged = phase.ops.iter().find(|row| row.kind == "rope_kv").unwrap();
        assert_eq!(merged.calls, layers * phase.n_steps as u64);
        near(
            phase.kernels.iter().map(|row| row.total_ms).sum(),
            phase.ops_ms,
        );
        let kernel = |name: &str| phase.kernels.iter().find(|row| row.name == name);
        assert_eq!(
            kernel("step_io::begin_step").unwrap().calls,
            phase.n_steps as u64
        );
        let bytes =
            |rows: &[rocmforge_profile::schema::OpRow]| rows.iter().map(|r| r.bytes).sum::<u64>();
        assert_eq!(bytes(&phase.kernels), bytes(&phase.ops));
    }
    let decode = &profile.phases[1];
    let n_launches: u64 = decode.kernels.iter().map(|row| row.calls).sum();
    let launches = profile.launches.as_ref().unwrap();
    near(launches.per_token, n_launches as f64 / 2.0);
    assert!(launches.graphs);
    assert_eq!(launches.verdicts.len(), 4);
    assert!(profile.notes.iter().any(|note| note.contains("graphs")));
    assert!(
        profile
            .timeline
            .iter()
            .any(|span| span.lane == Lane::Device && span.kind == "kernel")
    );
    assert!(
        profile.time_by_backend.contains_key(&device)
            && profile.time_by_backend.contains_key("cpu")
    );
    let memory = &profile.memory;
    assert!(memory.peak.unwrap() > memory.kv_pool + memory.scratch.unwrap());
    // Without graphs, launches of this device, which computes within them, take far longer than a graph would save.
    let launches = on_device("1", "2", &["--no-graphs"]).launches.unwrap();
    assert!(!launches.graphs);
    assert_eq!(launches.recommendation, Recommendation::UseHipGraph);
}
