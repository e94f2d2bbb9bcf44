//! `--device`: the built-in model on an emulated GPU, and errors of missing devices.

use rocmforge_gguf::{GgmlType, Writer};
use rocmforge_testkit::models;
use rocmforge_testkit::models::dflash::{Dflash, dflash};
use rocmforge_testkit::models::eagle3::{Eagle3, eagle3};
use serde_json::Value;

use crate::program::run;

/// Returns an emulated GPU of this build, as a value for `--device`.
pub fn host_device() -> Option<String> {
    let report = run(&["devices", "--json"]).json();
    let images: Vec<&Value> = report["images"].as_array().unwrap().iter().collect();
    let names = images.iter().filter_map(|image| image.as_str());
    let host = names.filter_map(|name| name.strip_prefix("host-")).next();
    if host.is_none() {
        println!("skipped: built without the target host");
    }
    host.map(|persona| format!("host:{persona}"))
}

#[test]
fn gpu_gives_the_same_text() {
    let Some(device) = host_device() else { return };
    let generate = |device: &str| {
        let flags = [
            "--temp", "0", "-n", "4", "--ctx", "64", "--json", "--device", device,
        ];
        run(&[&["generate", "-p", "The ship"], &flags[..]].concat()).json()
    };
    let (cpu, gpu) = (generate("cpu"), generate(&device));
    assert_eq!(gpu["text"], cpu["text"]);
    let name = gpu["device"].as_str().unwrap();
    assert!(name.contains(&device), "{name}");
}

/// A drafter that reads the model's cache takes its memory before the model does, within what both may take.
#[test]
fn drafts_from_the_cache_on_a_gpu_change_no_text() {
    let Some(device) = host_device() else { return };
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_string();
    let [file, drafter] = ["model.gguf", "mtp-model.gguf"].map(path);
    let ty = GgmlType::Q4_0;
    let model = models::model("gemma4", ty).unwrap().unwrap();
    std::fs::write(&file, model.to_vec().unwrap()).unwrap();
    let model = models::assistant("gemma4", ty).unwrap().unwrap();
    std::fs::write(&drafter, model.to_vec().unwrap()).unwrap();
    let answer = |how: &str| {
        let fixed = "--ids 5,9,17,33,65,3 -n 6 --temp 0 --ctx 64 --gpu-memory 96 --json";
        let fixed: Vec<&str> = fixed.split(' ').collect();
        let more = ["--device", &device, "--speculate", how];
        run(&[&["generate", "-m", &file], &fixed[..], &more].concat()).json()
    };
    let plain = answer("off");
    for how in ["auto", &format!("draft:{drafter},n=2")] {
        let drafted = answer(how);
        assert_eq!(drafted["ids"], plain["ids"], "{how}");
        assert_eq!(drafted["speculation"]["drafter"], "assistant", "{how}");
        assert!(drafted["device"].as_str().unwrap().contains(&device));
    }
}

/// As one with a cache of its own, whose model computes with a matrix of its file.
#[test]
fn drafts_from_layers_on_a_gpu_change_no_text() {
    let drafter = eagle3(Eagle3::Short, GgmlType::Q4_0).unwrap();
    changes_no_text("eagle3", drafter);
}

/// As one with a cache that another plan writes.
#[test]
fn drafts_of_blocks_on_a_gpu_change_no_text() {
    let drafter = dflash(Dflash::Own, GgmlType::Q4_0).unwrap();
    changes_no_text("dflash", drafter);
}

/// A drafter that takes values of layers, given and found.
fn changes_no_text(name: &str, own: Writer<'_>) {
    let Some(device) = host_device() else { return };
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_string();
    let [file, drafter] =
        ["model.gguf".to_string(), format!("model-{name}.gguf")].map(|name| path(&name));
    let model = models::model("llama", GgmlType::Q4_0).unwrap().unwrap();
    std::fs::write(&file, model.to_vec().unwrap()).unwrap();
    std::fs::write(&drafter, own.to_vec().unwrap()).unwrap();
    let answer = |how: &str| {
        let fixed = "--ids 5,9,17,33,65,3 -n 6 --temp 0 --ctx 64 --gpu-memory 96 --json";
        let fixed: Vec<&str> = fixed.split(' ').collect();
        let more = ["--device", &device, "--speculate", how];
        run(&[&["generate", "-m", &file], &fixed[..], &more].concat()).json()
    };
    let plain = answer("off");
    for how in ["auto", &format!("draft:{drafter},n=2")] {
        let drafted = answer(how);
        assert_eq!(drafted["ids"], plain["ids"], "{how}");
        assert_eq!(drafted["speculation"]["drafter"], name, "{how}");
        assert!(drafted["device"].as_str().unwrap().contains(&device));
    }
}

#[test]
fn kernel_variants_give_the_same_text() {
    let Some(device) = host_device() else { return };
    let on = |device: &str, variant: &str| {
        let flags = [
            "--temp",
            "0",
            "-n",
            "3",
            "--ctx",
            "64",
            "--json",
            "--device",
            device,
            "--kernel-variant",
            variant,
        ];
        run(&[&["generate", "-p", "The ship"], &flags[..]].concat()).json()
    };
    // The CPU has no kernel variants.
    let cpu = on("cpu", "plain");
    let gpu = on(&device, "plain");
    assert_eq!(gpu["text"], cpu["text"]);
    let name = gpu["device"].as_str().unwrap();
    assert!(name.contains("attention=generic"), "{name}");
}

#[test]
fn bench_rows_name_the_kernel_variant() {
    let Some(device) = host_device() else { return };
    let bench = |more: &[&str]| {
        let small = [
            "bench",
            "-p",
            "0",
            "-n",
            "1",
            "-r",
            "1",
            "--no-warmup",
            "-o",
            "json",
            "--device",
            &device,
        ];
        run(&[&small[..], more].concat()).json()[0]["kernel_variant"].clone()
    };
    assert_eq!(bench(&[]), "");
    let asked = ["--kernel-variant", "splits=off,tiles=small"];
    assert_eq!(bench(&asked), "tiles=small,splits=off");
}

#[test]
fn offloading_gives_the_same_text() {
    let Some(device) = host_device() else { return };
    let generate = |flags: &[&str]| {
        let all = [
            "generate", "-p", "The ship", "--temp", "0", "-n", "3", "--ctx", "64", "--json",
        ];
        run(&[&all[..], flags].concat())
    };
    let cpu = generate(&["--device", "cpu"]).json();
    let half = generate(&["--device", &device, "-ngl", "5"]).json();
    assert_eq!(half["text"], cpu["text"]);
    let name = half["device"].as_str().unwrap();
    assert!(
        name.starts_with("5 of 10 layers") && name.contains("CPU ("),
        "{name}"
    );
    // Without GPU layers, no GPU is needed.
    let none = generate(&["--device", "cuda:4095", "--gpu-layers", "0"]).json();
    assert_eq!(none["device"], cpu["device"]);
    let limited = ["--device", &device, "--gpu-memory", "6"];
    generate(&limited).fails(1, "--gpu-layers auto");
    let auto = generate(&[&limited[..], &["--gpu-layers", "auto"]].concat());
    assert!(
        auto.stderr.contains("notice: --gpu-layers auto: "),
        "{}",
        auto.stderr
    );
    assert_eq!(auto.json()["text"], cpu["text"]);
}

#[test]
fn rejects_more_layers_than_the_model_has() {
    let generate = |flags: &[&str]| run(&[&["generate", "-p", "x", "-n", "1"], flags].concat());
    for layers in ["-1", "ten", "1.5", ""] {
        generate(&["--gpu-layers", layers]).fails(2, "0 or more, `auto` or `all`");
    }
    generate(&["--gpu-memory", "0"]).fails(2, "--gpu-memory");
    for flags in [&["-ngl", "3"][..], &["--cpu-moe"], &["--gpu-memory", "6"]] {
        let on_cpu = [&["--device", "cpu"], flags].concat();
        generate(&on_cpu).fails(2, "needs a GPU, but --device cpu uses none");
        run(&[&["bench", "-p", "1", "-n", "0"], &on_cpu[..]].concat()).fails(2, "--device cpu");
    }
    // GPU flags need GPU layers.
    for (flags, told) in [
        (&["--cpu-moe"][..], "--cpu-moe"),
        (&["--gpu-memory", "6"], "--gpu-memory 6"),
        (&["--kernel-variant", "plain"], "--kernel-variant"),
    ] {
        for command in [&["generate", "-p", "x", "-n", "1"][..], &["bench"]] {
            let refused = run(&[command, &["-ngl", "0"], flags].concat());
            refused.fails(2, &format!("{told} needs a GPU"));
        }
    }
    let suite = ["bench", "matmul", "--device", "cpu", "--gpu-memory", "6"];
    run(&suite).fails(2, "--gpu-memory 6 needs a GPU");
    if let Some(device) = host_device() {
        let refused = generate(&["--device", &device, "-ngl", "99"]);
        refused.fails(1, "this model has 10");
    }
}

#[test]
fn bench_accepts_lists_of_layers() {
    let Some(device) = host_device() else { return };
    let args = [
        "bench",
        "-p",
        "0",
        "-n",
        "1",
        "-r",
        "1",
        "--no-warmup",
        "-o",
        "json",
        "--device",
        &device,
        "-ngl",
        "0,5",
    ];
    let rows = run(&args).json();
    let of = |i: usize, field: &str| rows[i][field].clone();
    assert_eq!(
        (of(0, "n_gpu_layers"), of(1, "n_gpu_layers")),
        (0.into(), 5.into())
    );
    assert_eq!(
        (of(0, "backends"), of(1, "backends")),
        ("CPU".into(), "GPU,CPU".into())
    );
    // There is no roofline for two devices together.
    assert!(of(1, "roofline_share").is_null() && !of(0, "roofline_share").is_null());
}

#[test]
fn bench_reports_what_auto_chose() {
    let Some(device) = host_device() else { return };
    let bench = |mib: &str, form: &str| {
        let fixed = "bench -p 0 -n 1 -r 1 --no-warmup -t 1 -ngl auto";
        let fixed: Vec<&str> = fixed.split(' ').collect();
        let more = ["--device", &device, "--gpu-memory", mib, "-o", form];
        run(&[&fixed[..], &more].concat()).ok()
    };
    let row = |mib: &str| bench(mib, "json").json()[0].clone();
    let none = row("1");
    assert_eq!(
        (&none["backends"], &none["n_gpu_layers"]),
        (&"CPU".into(), &0.into())
    );
    assert_eq!(
        (&none["gpu_info"], &none["kernel_variant"]),
        (&"".into(), &"".into())
    );
    assert!(!none["roofline_share"].is_null(), "the CPU's");
    let (some, all) = (row("14"), row("512"));
    let n = some["n_gpu_layers"].as_u64().unwrap();
    assert!((1..10).contains(&n), "{n}");
    assert_eq!(some["backends"], "GPU,CPU");
    assert_eq!(
        (&all["backends"], &all["n_gpu_layers"]),
        (&"GPU".into(), &10.into())
    );
    assert!(bench("1", "md").text().contains(" tg1 ngl auto 0 "));
}

#[test]
fn baselines_record_what_auto_chose() {
    let Some(device) = host_device() else { return };
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().to_str().unwrap();
    let with = |mib: &str, more: &[&str]| {
        let fixed = "bench -p 0 -n 1 -r 3 --no-warmup -t 1 -ngl auto";
        let fixed: Vec<&str> = fixed.split(' ').collect();
        let where_ = [
            "--device",
            &device,
            "--gpu-memory",
            mib,
            "--baseline-dir",
            folder,
        ];
        run(&[&fixed[..], &where_, more].concat())
    };
    with("1", &["--save-baseline", "none"]).ok();
    with("512", &["--save-baseline", "all"]).ok();
    let show = |name: &str| {
        let text = std::fs::read_to_string(format!("{folder}/{name}.json")).unwrap();
        let file: Value = serde_json::from_str(&text).unwrap();
        let benchmarks = file["baselines"].as_object().unwrap();
        benchmarks.values().next().unwrap().clone()
    };
    let (none, all) = (show("none"), show("all"));
    let model = "forge-mini-Q4_K_M (embedded) llama 11M Q4_K - Medium tg1 ngl auto";
    assert_eq!(none["name"], format!("{model} 0 t1"));
    assert_eq!(all["name"], format!("{model} all"));
    assert!(none["hardware"]["gpu_name"].is_null() && none["hardware"]["n_threads"] == 1);
    assert!(all["hardware"]["gpu_name"].is_string());
    // Results of the CPU are compared with results of the CPU.
    let compared = with("1", &["--compare-baseline", "none"]);
    assert!(matches!(compared.code, Some(0 | 3)), "{}", compared.stderr);
    assert!(
        compared.text().contains("ngl auto 0"),
        "{}",
        compared.text()
    );
}

#[test]
fn profile_reports_the_placement() {
    let Some(device) = host_device() else { return };
    let fixed = "profile --prompt-tokens 3 -n 2 --runs 1 --json -ngl auto --gpu-memory 1 --device";
    let fixed: Vec<&str> = fixed.split(' ').collect();
    let profile = run(&[&fixed[..], &[&device]].concat()).json();
    assert_eq!(profile["machine"]["backend"], "cpu");
    let ttft = &profile["ttft"];
    assert!(ttft["h2d"].is_null() && ttft["d2h"].is_null(), "{ttft}");
}

#[test]
fn rejects_cpu_moe_for_dense_models() {
    let Some(device) = host_device() else { return };
    let flags = ["--device", &device, "--cpu-moe"];
    for command in [
        &["generate", "-p", "x", "-n", "1"][..],
        &["bench", "-p", "1", "-n", "0"],
        &["profile", "--prompt-tokens", "1", "-n", "1"],
    ] {
        let refused = run(&[command, &flags].concat());
        refused.fails(1, "this model has no experts");
    }
}

#[test]
fn reports_missing_devices() {
    let generate = |flags: &[&str]| run(&[&["generate", "-p", "x", "-n", "1"], flags].concat());
    generate(&["--device", "cuda:4095"]).fails(1, "CUDA");
    generate(&["--device", "hip:4095"]).fails(1, "HIP");
    generate(&["--device", "tpu"]).fails(2, "hip:N or cuda:N");
    generate(&["--device", "host:gfx9"]).fails(2, "gfx10");
    let image = ["--device", "host:nv", "--gpu-image", "gfx1"];
    generate(&image).fails(1, "no kernels for gfx1");
    let variant = ["--device", "host:nv", "--kernel-variant", "tiles=tiny"];
    let refused = generate(&variant);
    refused.fails(2, "tiles=tiny");
    assert!(
        refused.stderr.contains("attention=generic"),
        "what there is"
    );
    if let Some(device) = host_device() {
        let flags = ["--device", &device, "--kv-type", "f32"];
        generate(&flags).fails(1, "--kv-type f16");
        let flags = [
            "--device",
            &device,
            "--kv-type",
            "q4_0",
            "--kv-type-v",
            "q8_0",
        ];
        let failed = generate(&flags);
        failed.fails(1, "q8_0/q4_0, but not q4_0/q8_0");
        failed.fails(1, "(--kv-type-k f16 --kv-type-v f16)");
    }
}
