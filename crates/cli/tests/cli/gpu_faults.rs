//! Drivers that are missing, broken, out of memory, wrong, or lose their device: each gives a one-line error that says
//! what to do, an exit code, and no hang. The tests build stub libraries.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rocmforge_testkit::sweep::is_full_run;
use serde_json::Value;

use crate::program::{Run, command, finish, repository, run};

/// Timeout for hanging programs, far longer than any test takes.
const PATIENCE: Duration = Duration::from_secs(300);

/// A vendor's names: of its API, in `--device`, and of its calls.
pub(crate) struct Vendor {
    pub(crate) name: &'static str,
    pub(crate) device: &'static str,
    pub(crate) prefix: &'static str,
    launch: &'static str,
}

pub(crate) const VENDORS: [Vendor; 2] = [
    Vendor {
        name: "HIP",
        device: "hip:0",
        prefix: "hip",
        launch: "hipModuleLaunchKernel",
    },
    Vendor {
        name: "CUDA",
        device: "cuda:0",
        prefix: "cu",
        launch: "cuLaunchKernel",
    },
];

impl Vendor {
    /// The environment variable that names its driver library.
    pub(crate) fn library(&self) -> String {
        format!("ROCMFORGE_{}_LIBRARY", self.name)
    }
}

/// Returns an image for the stub.
pub(crate) fn image() -> Option<String> {
    let report = run(&["devices", "--json"]).json();
    let image = report["images"][0].as_str().map(str::to_string);
    if image.is_none() {
        println!("skipped: built without any kernels");
    }
    image
}

/// Builds a driver library with these faults; `None`, with a message, without a C compiler.
pub(crate) fn stub(vendor: &Vendor, name: &str, faults: &[&str]) -> Option<PathBuf> {
    let library = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{}-{name}.so", vendor.name));
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-fPIC", "-w", &format!("-D{}", vendor.name)]);
    cc.args(faults).arg("-o").arg(&library);
    let Ok(status) = cc
        .arg(repository("crates/gpu/tests/it/stub/driver.c"))
        .status()
    else {
        println!("skipped: no C compiler");
        return None;
    };
    assert!(status.success());
    Some(library)
}

/// Runs `generate` with this library for `vendor` and none for the other.
fn generate(vendor: &Vendor, library: &Path, flags: &[&str]) -> Run {
    let prompt = [
        "generate", "-p", "The ship", "--temp", "0", "-n", "8", "--ctx", "64",
    ];
    let mut command = command(&[&prompt[..], flags].concat());
    for other in VENDORS {
        let library = match other.name == vendor.name {
            true => library,
            false => Path::new("/no/such/library.so"),
        };
        command.env(other.library(), library);
    }
    in_time(command)
}

/// Runs the program, which must end by itself.
pub(crate) fn in_time(mut command: Command) -> Run {
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // The output fits into the pipes.
    let started = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if started.elapsed() > PATIENCE {
            child.kill().unwrap();
            panic!("the program hangs: {command:?}");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let output = child.wait_with_output().unwrap();
    Run {
        stdout: output.stdout,
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        code: output.status.code(),
    }
}

#[test]
fn reports_a_missing_library() {
    let none = Path::new("/no/such/library.so");
    for vendor in VENDORS {
        let part = format!("no {} driver library", vendor.name);
        let on = |device| generate(&vendor, none, &["--device", device]);
        on(vendor.device).fails(1, &part);
        assert!(on(vendor.device).stderr.contains("install"));
        on("gpu").fails(1, &part);
        // No GPU was requested.
        let auto = on("auto").ok();
        assert_eq!(auto.stdout, on("cpu").ok().stdout);
        assert!(!auto.stderr.contains("librar"), "{}", auto.stderr);
    }
}

#[test]
fn reports_broken_drivers() {
    let Some(image) = image() else { return };
    for vendor in VENDORS {
        let call = |name: &str| format!("{}{name}", vendor.prefix);
        let cases: [(&str, &[&str], String); 6] = [
            (
                "none",
                &["-DN_DEVICES=0"],
                format!("no device {}", vendor.device),
            ),
            (
                "symbol",
                &["-DWITHOUT_GRAPHS"],
                format!("has no function {}", call("GraphLaunch")),
            ),
            (
                "init",
                &["-DINIT_CODE=3"],
                format!("{} failed with 3 (", call("Init")),
            ),
            ("load", &["-DLOAD_CODE=218"], "218".to_string()),
            (
                "number",
                &["-DFREE_BYTES=1<<30"],
                "has no plane".to_string(),
            ),
            (
                "refuse",
                &["-DANY_KERNEL", "-DFREE_BYTES=1<<30", "-DLAUNCH_CODE=701"],
                format!("{} failed with 701", vendor.launch),
            ),
        ];
        for (name, faults, part) in cases {
            let name = format!("cli-{name}");
            let Some(library) = stub(&vendor, &name, faults) else {
                return;
            };
            let flags = ["--device", vendor.device, "--gpu-image", &image];
            generate(&vendor, &library, &flags).fails(1, &part);
        }
    }
}

#[test]
fn reports_too_little_memory() {
    let Some(image) = image() else { return };
    for vendor in VENDORS {
        let cases: [(&str, &[&str], &str, &str); 3] = [
            ("tiny", &["-DFREE_BYTES=1<<20"], "64", "the weights need"),
            // The stub's weights take 4 bytes each; the rest fits a shorter context.
            ("small", &["-DFREE_BYTES=1<<27"], "1000000", "or less"),
            (
                "full",
                &["-DFREE_BYTES=1<<30", "-DALLOC_CODE=2"],
                "64",
                "has no room for",
            ),
        ];
        for (name, faults, n_ctx, part) in cases {
            let faults = [&["-DANY_KERNEL"][..], faults].concat();
            let name = format!("cli-{name}");
            let Some(library) = stub(&vendor, &name, &faults) else {
                return;
            };
            let on = ["--device", vendor.device, "--gpu-image", &image];
            let refused = generate(&vendor, &library, &[&on[..], &["--ctx", n_ctx]].concat());
            refused.fails(1, part);
            let Some((_, fitting)) = refused.stderr.split_once("use a context of ") else {
                continue;
            };
            // The context in the message fits.
            let fitting = fitting.split_whitespace().next().unwrap();
            let flags = ["--ctx", fitting, "--gpu-check", "never", "--no-graphs"];
            generate(&vendor, &library, &[&on[..], &flags].concat()).ok();
        }
    }
}

/// The device fails while generating, at a launch or at a wait.
#[test]
fn reports_a_lost_device() {
    let Some(image) = image() else { return };
    for vendor in VENDORS {
        let on = ["--device", vendor.device, "--gpu-image", &image];
        let flags = ["--gpu-check", "never", "--no-graphs", "--ignore-eos"];
        let flags = [&on[..], &flags].concat();
        let works = ["-DANY_KERNEL", "-DFREE_BYTES=1<<30"];
        let Some(library) = stub(&vendor, "cli-works", &works) else {
            return;
        };
        let whole = generate(&vendor, &library, &flags).ok();
        // Later and later, until the run completes.
        for (what, fault, count, strides) in [
            ("launch", "-DLAUNCH_CODE=719", "-DGOOD_LAUNCHES", [300, 500]),
            (
                "wait",
                "-DEVENT_SYNC_CODE=719",
                "-DGOOD_EVENT_SYNCS",
                [6, 9],
            ),
        ] {
            let mut n_partial = 0;
            for n in (0..).step_by(strides[usize::from(!is_full_run())]) {
                let good = format!("{count}={n}");
                let faults = [&works[..], &[fault, &good]].concat();
                let Some(library) = stub(&vendor, &format!("cli-lost-{what}"), &faults) else {
                    return;
                };
                let lost = generate(&vendor, &library, &flags);
                if lost.code == Some(0) {
                    assert_eq!(lost.stdout, whole.stdout);
                    break;
                }
                lost.fails(1, "719");
                assert!(
                    lost.stderr.contains("restart the program"),
                    "{}",
                    lost.stderr
                );
                let len = lost.stdout.len();
                n_partial += usize::from(len > 0 && len < whole.stdout.len());
            }
            assert!(n_partial > 0, "no {what} failed between two tokens");
        }
    }
}

#[test]
fn rejects_a_gpu_with_wrong_results() {
    let Some(image) = image() else { return };
    let cache = tempfile::tempdir().unwrap();
    let cache = cache.path().to_str().unwrap();
    for vendor in VENDORS {
        let faults = ["-DANY_KERNEL", "-DFREE_BYTES=1<<30"];
        let Some(library) = stub(&vendor, "cli-wrong", &faults) else {
            return;
        };
        let on = |device: &str, more: &[&str]| {
            let flags = [
                "--device",
                device,
                "--gpu-image",
                &image,
                "--cache-dir",
                cache,
            ];
            generate(&vendor, &library, &[&flags[..], more].concat())
        };
        for device in [vendor.device, "gpu"] {
            let refused = on(device, &[]);
            refused.fails(1, "computes wrong results");
            let advice = format!("rocmforge check --device {}", vendor.device);
            for part in ["Stub", "embed", "--device cpu", &advice] {
                assert!(refused.stderr.contains(part), "{part}: {}", refused.stderr);
            }
        }
        let auto = on("auto", &["--json"]);
        assert!(
            auto.stderr.contains("running on the CPU"),
            "{}",
            auto.stderr
        );
        let (auto, cpu) = (auto.json(), on("cpu", &["--json"]).json());
        assert_eq!(auto["text"], cpu["text"]);
        assert_eq!(auto["device"], cpu["device"]);
        let mut bench = command(&[
            "bench",
            "-p",
            "8,16",
            "-n",
            "0",
            "-r",
            "1",
            "--no-warmup",
            "-b",
            "1,2",
            "-o",
            "json",
            "--device",
            "auto",
            "--gpu-image",
            &image,
            "--cache-dir",
            cache,
        ]);
        for other in VENDORS {
            let library = match other.name == vendor.name {
                true => library.as_path(),
                false => Path::new("/no/such/library.so"),
            };
            bench.env(other.library(), library);
        }
        let bench = in_time(bench);
        let told = bench.stderr.matches("running on the CPU").count();
        assert_eq!(told, 1, "{}", bench.stderr);
        let rows = bench.json();
        let rows = rows.as_array().unwrap();
        assert_eq!(rows.len(), 4);
        assert!(rows.iter().all(|row| row["backends"] == "CPU"), "{rows:?}");
        // Only passed checks are saved.
        assert!(!Path::new(cache).join("gpu-checks").exists());
        // Without the check, it answers.
        on(vendor.device, &["--gpu-check", "never", "--no-graphs"]).ok();
        // The command in the message shows the wrong operation.
        let mut check = command(&[
            "check",
            "--json",
            "--device",
            vendor.device,
            "--gpu-image",
            &image,
        ]);
        check.env(vendor.library(), &library);
        let check = finish(check);
        check.fails(1, "operations differ");
        let report: Value = serde_json::from_slice(&check.stdout).unwrap();
        assert_eq!(report["passed"], false);
    }
}

/// A working device is checked once; an emulated GPU only on request.
#[test]
fn uses_a_gpu_with_correct_results() {
    let Some(image) = image() else { return };
    let Some(persona) = image.strip_prefix("host-") else {
        println!("skipped: built without the target host");
        return;
    };
    let device = format!("host:{persona}");
    let run = |flags: &[&str]| {
        let all = [
            "generate", "-p", "The", "--temp", "0", "-n", "2", "--ctx", "8", "--json",
        ];
        in_time(command(&[&all[..], flags].concat())).json()
    };
    let checked = run(&["--device", &device, "--gpu-check", "always"]);
    assert_eq!(checked["text"], run(&["--device", "cpu"])["text"]);
}

/// A driver that records or launches no graph, or stops doing so: the steps are launched one by one, and the user is told
/// once.
#[test]
fn steps_are_launched_if_graphs_fail() {
    let Some(image) = image() else { return };
    let works = ["-DANY_KERNEL", "-DFREE_BYTES=1<<30"];
    for vendor in VENDORS {
        let on = |name: &str, faults: &[&str], flags: &[&str]| {
            let library = stub(&vendor, name, &[&works[..], faults].concat())?;
            let on = ["--device", vendor.device, "--gpu-image", &image];
            let usual = ["--gpu-check", "never", "--ignore-eos"];
            let flags = [&on[..], &usual, flags].concat();
            Some(generate(&vendor, &library, &flags).ok())
        };
        let Some(launched) = on("cli-launches", &[], &["--no-graphs"]) else {
            return;
        };
        let graphs = on("cli-graphs", &[], &[]).unwrap();
        assert_eq!(graphs.stdout, launched.stdout);
        assert!(!graphs.stderr.contains("graph"), "{}", graphs.stderr);
        let cases: [(&str, &[&str], &str); 5] = [
            ("begin", &["-DCAPTURE_CODE=901"], "recorded"),
            ("end", &["-DEND_CAPTURE_CODE=901"], "recorded"),
            ("instantiate", &["-DINSTANTIATE_CODE=801"], "recorded"),
            (
                "launch",
                &["-DGRAPH_CODE=801", "-DGOOD_GRAPHS=2"],
                "launched",
            ),
            (
                "part",
                &["-DGRAPH_CODE=801", "-DGOOD_GRAPHS=2", "-DPARTS_OF_GRAPHS"],
                "launched",
            ),
        ];
        for (name, faults, part) in cases {
            let fallen_back = on(&format!("cli-no-{name}"), faults, &[]).unwrap();
            let expected = format!("notice: the graph of a step cannot be {part} (");
            let told = fallen_back.stderr.matches(&expected).count();
            assert_eq!(told, 1, "{name}: {}", fallen_back.stderr);
            assert_eq!(fallen_back.stdout, launched.stdout, "{name}");
        }
    }
}

/// The device that is asked for is the only one opened: the stub ends the process that opens the first.
#[test]
fn no_other_device_is_opened() {
    let Some(image) = image() else { return };
    let works = ["-DN_DEVICES=2", "-DANY_KERNEL", "-DFREE_BYTES=1<<30"];
    for vendor in VENDORS {
        let faults = [&works[..], &["-DCLOSED=1"]].concat();
        let Some(library) = stub(&vendor, "cli-second", &faults) else {
            return;
        };
        let kind = vendor.device.split(':').next().unwrap();
        let on = |device: &str| {
            let on = ["--device", device, "--gpu-image", &image];
            generate(
                &vendor,
                &library,
                &[&on[..], &["--gpu-check", "never"]].concat(),
            )
        };
        on(&format!("{kind}:1")).ok();
        // By a signal.
        assert_eq!(on(&format!("{kind}:0")).code, None);
    }
}

/// An integrated GPU does not hide the card, and is never opened: the stub ends the process that does.
#[test]
fn the_card_is_chosen_and_the_choice_is_said() {
    let Some(image) = image() else { return };
    let faults = [
        "-DN_DEVICES=2",
        "-DINTEGRATED=1",
        "-DLARGE=1",
        "-DCLOSED=1",
        "-DANY_KERNEL",
        "-DFREE_BYTES=1<<30",
    ];
    for vendor in VENDORS {
        let Some(library) = stub(&vendor, "cli-two", &faults) else {
            return;
        };
        let kind = vendor.device.split(':').next().unwrap();
        let mut listed = command(&["devices", "--json"]);
        for other in &VENDORS {
            let library = match other.name == vendor.name {
                true => library.as_path(),
                false => Path::new("/no/such/library.so"),
            };
            listed.env(other.library(), library);
        }
        listed.env("ROCMFORGE_GPU_IMAGE", &image);
        let listed = in_time(listed).json();
        let free = |n: usize| &listed["devices"][n + 1]["memory_available_bytes"];
        assert!(free(0).is_null() && free(1).is_u64(), "{listed}");
        for device in ["auto", "gpu"] {
            let flags = [
                "--device",
                device,
                "--gpu-image",
                &image,
                "--gpu-check",
                "never",
                "--no-graphs",
            ];
            let run = generate(&vendor, &library, &flags).ok();
            let expected = format!(
                "notice: {kind}:1 (Stub 9000) was chosen; passed over: {kind}:0 (Stub 9000): it shares the CPU's memory\n"
            );
            assert!(run.stderr.contains(&expected), "{}", run.stderr);
        }
    }
}
