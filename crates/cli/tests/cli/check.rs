//! `check` on the built-in model. The engine's tests cover the detection of wrong results.

use rocmforge_cpu::Isa;
use rocmforge_gguf::{Gguf, LoadMode, Writer};
use serde_json::Value;

use crate::program::{repository, run};

#[test]
fn built_in_model_passes() {
    if Isa::detect() == Isa::Scalar {
        println!("skipped: this processor has only the scalar path");
        return;
    }
    let report = run(&["check", "--json", "--depth", "20"]).json();
    assert_eq!(report["passed"], true);
    let checks = report["checks"].as_array().unwrap();
    assert_eq!(report["n_checked"], checks.len());
    assert!(report["n_checked"].as_u64() < report["n_ops"].as_u64());
    let output = |check: &&Value| check["tensor"] == "token_embd.weight" && check["op"] == "matmul";
    let output: Vec<&Value> = checks.iter().filter(output).collect();
    assert_eq!(
        output.len(),
        4,
        "in the prompt's step and in the next three"
    );
    assert_eq!(output[0]["shape"], "256 -> 4096, Store");
    assert_eq!(output[0]["format"], "Q6_K x Q8x256");
    for check in checks {
        let (error, bound) = (&check["max_rel"], &check["bound"]);
        assert!(error.as_f64() <= bound.as_f64(), "{check}");
    }
    let table = run(&["check", "--depth", "0", "--kv-type", "f32", "--page", "16"]).ok();
    assert!(table.text().contains("attention"), "{}", table.text());
    assert!(
        table.text().contains(" operations compared, one per kind"),
        "{}",
        table.text()
    );
    let verdict = table.text().lines().last();
    assert_eq!(
        verdict,
        Some("passed: every result agrees with the scalar reference")
    );
    assert!(!table.text().contains("WRONG"), "{}", table.text());
}

/// A server's kernels are checked, too; those of Hopper differ from those of a single request.
#[test]
fn kernels_of_servers_pass() {
    let devices = run(&["devices", "--json"]).ok();
    if !devices.text().contains("host-nv") {
        println!("skipped: built without the target host-nv");
        return;
    }
    let check = |max_seqs| {
        let args = ["check", "--device", "host:nv", "--depth", "0", "--json"];
        let report = run(&[&args[..], &["--max-seqs", max_seqs]].concat()).json();
        assert_eq!(report["passed"], true, "{report}");
        let checks = report["checks"].as_array().unwrap();
        let products = checks.iter().filter(|check| {
            let op = check["op"].as_str().unwrap();
            check["step"] == "few" && op.contains("matmul")
        });
        let errors = products.map(|check| check["max_abs"].as_f64().unwrap());
        errors.collect::<Vec<f64>>()
    };
    let (one, several) = (check("1"), check("8"));
    assert!(one.len() > 2 && one.len() == several.len());
    assert_ne!(one, several, "other kernels add in another order");
}

/// The kernels of long prompts are checked where a prompt is long.
#[test]
fn long_prompts_pass() {
    if Isa::detect() == Isa::Scalar {
        println!("skipped: this processor has only the scalar path");
        return;
    }
    let check = |n: &str| {
        let args = ["check", "--depth", "0", "--prompt-tokens", n, "--json"];
        let report = run(&args).json();
        assert_eq!(report["passed"], true, "{report}");
        report["checks"].as_array().unwrap().len()
    };
    assert_eq!(check("300"), check("1"));
}

#[test]
fn reports_what_cannot_be_checked() {
    run(&["check", "--isa", "scalar"]).fails(1, "nothing to compare");
    run(&["check", "--threads", "0"]).fails(2, "threads");
    run(&["check", "--depth", "many"]).fails(2, "--depth");
    run(&["check", "--max-seqs", "0"]).fails(2, "sequences");
    run(&["check", "--prompt-tokens", "0"]).fails(2, "--prompt-tokens");
    run(&["check", "--depth", "18446744073709551615"]).fails(2, "context");
    run(&["check", "--depth", "1000000000"]).fails(1, "KV cache");
}

#[test]
fn names_tensors_that_are_not_finite() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("nan.gguf");
    let source = Gguf::open(&repository("models/forge-mini-Q4_K_M.gguf"), LoadMode::Mmap).unwrap();
    let mut writer = Writer::new("llama");
    for (key, value) in source.metadata().iter() {
        writer.set(key, value);
    }
    for info in source.tensors() {
        let mut data = source.tensor_data(info).to_vec();
        if info.name == "output_norm.weight" {
            data[8..12].copy_from_slice(&f32::NAN.to_le_bytes());
        }
        writer
            .add_tensor(&info.name, &info.dims, info.ty, data)
            .unwrap();
    }
    std::fs::write(&path, writer.to_vec().unwrap()).unwrap();
    for flags in [&[][..], &["--json"]] {
        let args = [&["check", "-m", path.to_str().unwrap()], flags].concat();
        run(&args).fails(
            1,
            "'output_norm.weight' has 1 values that are NaN or infinite, the first at index 2",
        );
    }
}
