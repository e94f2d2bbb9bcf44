//! Graphs that fail, are wrong or are slow, on a stub of HIP's library, whose rows choose the token after their own.

use std::path::Path;
use std::process::Command;

use rocmforge_gpu::{DeviceId, OpenOptions, image_targets};

use super::*;

/// Opens a stub with these faults. Prints a skip and returns `None` without a C compiler or an image to load.
fn stub(faults: &[&str]) -> Option<Gpu> {
    let Some(image) = image_targets().first().copied() else {
        println!("skipped: built without any kernels");
        return None;
    };
    let dir = tempfile::tempdir().unwrap();
    let library = dir.path().join("hip.so");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../gpu/tests/it/stub/driver.c");
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-fPIC", "-w", "-DHIP", "-DANY_KERNEL"])
        .arg("-DFREE_BYTES=1<<30")
        .args(faults);
    let Ok(status) = cc.arg("-o").arg(&library).arg(source).status() else {
        println!("skipped: no C compiler");
        return None;
    };
    assert!(status.success());
    let options = OpenOptions {
        image: Some(image.to_string()),
        hip_library: Some(library),
        ..OpenOptions::default()
    };
    Some(Gpu::open_with(DeviceId::Hip(0), &options).unwrap())
}

fn model() -> Model {
    let writer = synth::model("llama", GgmlType::F32).unwrap().unwrap();
    let gguf = Gguf::from_vec(writer.to_vec().unwrap()).unwrap();
    Model::load(Arc::new(gguf)).unwrap()
}

/// Decodes a token of each of `n` sequences, and checks which ones the stub chose.
fn decode(backend: &mut GpuBackend, step: u64, n: usize) {
    let greedy = |_| {
        Want::Sample(SampleRow {
            params: Arc::new(SamplingParams {
                temperature: 0.0,
                ..SamplingParams::default()
            }),
            index: step,
            counts: Vec::new(),
            dry: None,
            mu: None,
            logprobs: None,
            mask: None,
        })
    };
    let mut batch = batch(step, greedy);
    batch.tokens.truncate(n);
    batch.positions.truncate(n);
    batch.slots.truncate(n);
    batch.seqs.truncate(n);
    batch.logits.truncate(n);
    let id = |row: &RowOutput| match row {
        RowOutput::Sampled { sampled, .. } => sampled.id,
        other => panic!("{other:?}"),
    };
    let found: Vec<u32> = run(backend, batch).iter().map(id).collect();
    let expected: Vec<u32> = (0..n as u32).map(|i| 300 + (11 + i) % 16).collect();
    assert_eq!(found, expected, "step {step}");
}

/// Steps of one sequence are launched if that is faster, and the user is told.
#[test]
fn the_faster_of_graphs_and_launches_is_taken() {
    let model = model();
    for (fault, faster) in [
        ("-DGRAPH_US=5000", Graphs::OfSeveral),
        ("-DLAUNCH_US=200", Graphs::On),
    ] {
        let Some(gpu) = stub(&[fault]) else { return };
        let mut backend = backend(&gpu, &model, Graphs::On);
        assert_eq!(backend.check_graphs().unwrap(), Some(faster));
        let info = backend.info();
        assert_eq!(info.graphs, faster);
        let told = info.notices.iter().any(|notice| {
            notice.contains("ms in separate launches") && notice.ends_with("so it is launched")
        });
        assert_eq!(told, faster == Graphs::OfSeveral, "{:?}", info.notices);
        backend.graphs.clear();
        (0..3).for_each(|step| decode(&mut backend, step, 1));
        assert_eq!(backend.graphs.is_empty(), faster == Graphs::OfSeveral);
        (3..6).for_each(|step| decode(&mut backend, step, N_SEQS));
        let has_graph = backend.graphs.values().any(Option::is_some);
        assert!(has_graph, "steps of several sequences have one");
    }
}

/// Graphs that do not work are found by the check, which says why.
#[test]
fn graphs_that_fail_or_are_wrong_are_not_used() {
    let model = model();
    for (fault, part) in [
        ("-DCAPTURE_CODE=901", "cannot be recorded ("),
        ("-DGRAPH_CODE=801", "cannot be launched ("),
        (
            "-DWRONG_GRAPHS",
            "gives different results from separate launches on Stub 9000",
        ),
    ] {
        let Some(gpu) = stub(&[fault]) else { return };
        let mut compared = backend(&gpu, &model, Graphs::On);
        match compared.compare_graphs().unwrap() {
            GraphCheck::Fails(why) => assert!(why.contains(part), "{why}"),
            GraphCheck::Same(times) => panic!("{fault}: {times:?}"),
        }
        let Some(gpu) = stub(&[fault]) else { return };
        let mut backend = backend(&gpu, &model, Graphs::On);
        assert_eq!(backend.check_graphs().unwrap(), None, "{fault}");
        let info = backend.info();
        assert_eq!(info.graphs, Graphs::Off);
        assert_eq!(info.notices.len(), 1, "{:?}", info.notices);
        assert!(info.notices[0].contains(part), "{:?}", info.notices);
        (0..4).for_each(|step| decode(&mut backend, step, N_SEQS));
    }
}

/// Graphs may work at first. When one fails later, the step is launched, and the user is told once.
#[test]
fn steps_go_on_when_graphs_stop_working() {
    static TOLD: Mutex<Vec<String>> = Mutex::new(Vec::new());
    let model = model();
    for (faults, part) in [
        (["-DCAPTURE_CODE=901", "-DGOOD_CAPTURES=1"], "recorded"),
        (["-DEND_CAPTURE_CODE=901", "-DGOOD_CAPTURES=1"], "recorded"),
        (["-DINSTANTIATE_CODE=801", "-DGOOD_CAPTURES=1"], "recorded"),
        (["-DGRAPH_CODE=801", "-DGOOD_GRAPHS=2"], "launched"),
    ] {
        let Some(gpu) = stub(&faults) else { return };
        let mut backend = backend(&gpu, &model, Graphs::On);
        backend.tell_notices(|text| TOLD.lock().unwrap().push(text.to_string()));
        // One graph is recorded and replayed.
        (0..3).for_each(|step| decode(&mut backend, step, N_SEQS));
        assert_eq!(*TOLD.lock().unwrap(), [""; 0]);
        (3..6).for_each(|step| decode(&mut backend, step, 1));
        (6..9).for_each(|step| decode(&mut backend, step, N_SEQS));
        let told = std::mem::take(&mut *TOLD.lock().unwrap());
        let expected = format!("the graph of a step cannot be {part} (");
        assert_eq!(told.len(), 1, "{faults:?}: {told:?}");
        assert!(told[0].starts_with(&expected), "{told:?}");
        assert_eq!(backend.info().graphs, Graphs::Off);
        assert!(backend.notices.is_empty());
    }
}
