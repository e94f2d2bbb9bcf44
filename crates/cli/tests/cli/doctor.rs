//! `doctor`: faults of drivers, several libraries, damaged kernels, and the bundle for reports.

use std::fs;
use std::path::Path;
use std::process::Command;

use rocmforge_testkit::sweep::every_nth;
use serde_json::Value;

use crate::gpu::host_device;
use crate::gpu_faults::{VENDORS, Vendor, image, in_time, stub};
use crate::program::{Run, command, run};

/// Runs `doctor --json` with this library for `vendor` and none for the other.
fn doctor(vendor: &Vendor, library: &Path, image: &str) -> Run {
    doctor_with(vendor, library, image, &[])
}

fn doctor_with(vendor: &Vendor, library: &Path, image: &str, flags: &[&str]) -> Run {
    let mut command = command(&[&["doctor", "--json"], flags].concat());
    for other in VENDORS {
        let library = match other.name == vendor.name {
            true => library,
            false => Path::new("/no/such/library.so"),
        };
        command.env(other.library(), library);
    }
    command.env("ROCMFORGE_GPU_IMAGE", image);
    in_time(command)
}

/// The status and the detail of a check.
fn check<'a>(report: &'a Value, name: &str) -> [&'a str; 2] {
    let checks = report["checks"].as_array().unwrap();
    let check = checks.iter().find(|check| check["name"] == name);
    let check = check.unwrap_or_else(|| panic!("no check {name}: {report}"));
    ["status", "detail"].map(|key| check[key].as_str().unwrap())
}

/// Faults of a driver leave the CPU; wrong results do not pass.
#[test]
fn doctor_names_what_is_wrong() {
    let Some(image) = image() else { return };
    for (turn, vendor) in VENDORS.into_iter().enumerate() {
        let [library, device] = [
            format!("{} library", vendor.name),
            vendor.device.to_string(),
        ];
        let driver = format!("{} driver", vendor.name);
        let call = |name: &str| format!("{}{name}", vendor.prefix);
        let works = ["-DANY_KERNEL", "-DFREE_BYTES=1<<30"];
        let refuses = [&works[..], &["-DLAUNCH_CODE=701"]].concat();
        let cases: [(&str, &[&str], &str, &str, String); 4] = [
            (
                "wrong",
                &works,
                "failed",
                &format!("{device} results"),
                "are wrong".into(),
            ),
            (
                "symbol",
                &["-DWITHOUT_GRAPHS"],
                "degraded",
                &library,
                call("GraphLaunch"),
            ),
            (
                "refuse",
                &refuses,
                "degraded",
                &format!("{device} results"),
                "701".into(),
            ),
            (
                "init",
                &["-DINIT_CODE=3"],
                "degraded",
                &driver,
                call("Init"),
            ),
        ];
        for (name, faults, verdict, failed, part) in every_nth(2, turn, cases) {
            // The stub of CUDA refuses kernels of Hopper, which are the first that are wrong.
            if name == "wrong" && vendor.name == "CUDA" {
                continue;
            }
            let Some(library) = stub(&vendor, &format!("doctor-{name}"), faults) else {
                return;
            };
            let run = doctor(&vendor, &library, &image);
            let report: Value = serde_json::from_slice(&run.stdout).unwrap();
            assert_eq!(report["verdict"], verdict, "{name}: {report}");
            assert_eq!(run.code, Some(i32::from(verdict == "failed")), "{name}");
            let [status, detail] = check(&report, failed);
            assert_eq!(status, "failed", "{name}: {detail}");
            assert!(detail.contains(&part), "{name}: {detail}");
            assert_eq!(check(&report, "cpu results")[0], "ok");
            if failed.ends_with("results") {
                let [status, detail] = check(&report, &format!("{device} graphs"));
                assert_eq!(status, "skipped", "{name}: {detail}");
            }
            assert_ne!(report["next"], "", "{name}");
        }
    }
}

/// Opening an integrated GPU has ended programs. The others are checked nevertheless.
#[test]
fn a_driver_that_ends_the_process_is_a_finding() {
    let Some(image) = image() else { return };
    let faults = [
        "-DN_DEVICES=2",
        "-DINTEGRATED=1",
        "-DCLOSED=1",
        "-DARCH=\"gfx1100\"",
        "-DANY_KERNEL",
        "-DFREE_BYTES=1<<30",
        "-DLAUNCH_CODE=701",
    ];
    let vendor = &VENDORS[0];
    let Some(library) = stub(vendor, "doctor-crash", &faults) else {
        return;
    };
    let report = doctor(vendor, &library, &image).ok().json();
    assert_eq!(report["verdict"], "degraded");
    let [status, detail] = check(&report, "hip:0");
    assert_eq!(status, "failed");
    assert!(detail.contains("signal: 6"), "{detail}");
    // HIP's multiprocessors are pairs of compute units.
    let [status, detail] = check(&report, "hip:1");
    assert!(detail.contains("192 compute units"), "{detail}");
    assert_eq!(status, "ok");
    assert_eq!(check(&report, "hip:1 results")[0], "failed");
    assert_eq!(check(&report, "cpu results")[0], "ok");
}

#[test]
fn a_driver_that_never_answers_is_a_finding() {
    let Some(image) = image() else { return };
    let hangs = tempfile::NamedTempFile::new().unwrap();
    let hang_file = format!("-DHANG_FILE=\"{}\"", hangs.path().display());
    // It may leave its output open or not.
    let closes = ["-DCLOSES_OUTPUT", "-UCLOSES_OUTPUT"];
    let check_one = |(vendor, closes): (Vendor, &str)| {
        let faults = ["-DANY_KERNEL", "-DFREE_BYTES=1<<30", &hang_file, closes];
        let Some(library) = stub(&vendor, "doctor-hang", &faults) else {
            return;
        };
        let run = doctor_with(&vendor, &library, &image, &["--limit", "8"]);
        let report = run.ok().json();
        assert_eq!(check(&report, vendor.device)[0], "ok");
        let [status, detail] = check(&report, &format!("{} bandwidth", vendor.device));
        assert_eq!([status, detail], ["failed", "no answer within 8 s"]);
        assert_eq!(check(&report, "cpu results")[0], "ok");
    };
    // Both wait for all of the limit.
    std::thread::scope(|scope| {
        for one in VENDORS.into_iter().zip(closes) {
            let check_one = &check_one;
            scope.spawn(move || check_one(one));
        }
    });
}

/// Of three GPUs, AMD's runtime leaves the first and the last, and HIP shows the second of these.
#[test]
fn doctor_counts_gpus_after_both_variables() {
    let Some(image) = image() else { return };
    let faults = [
        "-DN_DEVICES=3",
        "-DANY_KERNEL",
        "-DFREE_BYTES=1<<30",
        "-DLAUNCH_CODE=701",
    ];
    let Some(library) = stub(&VENDORS[0], "doctor-visible", &faults) else {
        return;
    };
    let run = |variables: &[(&str, &str)]| {
        let mut command = command(&["doctor", "--json"]);
        command.env("ROCMFORGE_HIP_LIBRARY", &library);
        command.env("ROCMFORGE_CUDA_LIBRARY", "/no/such/library.so");
        command.env("ROCMFORGE_GPU_IMAGE", &image);
        command.envs(variables.iter().copied());
        in_time(command).json()
    };
    let both = [
        ("ROCR_VISIBLE_DEVICES", "0,2"),
        ("HIP_VISIBLE_DEVICES", "1"),
    ];
    let report = run(&both);
    assert_eq!(check(&report, "environment")[0], "ok");
    let [_, detail] = check(&report, "hip:0");
    assert!(detail.contains("at 0000:03:02.0"), "{detail}");
    let names = report["checks"].as_array().unwrap().iter();
    assert!(
        !names
            .map(|check| &check["name"])
            .any(|name| name == "hip:1")
    );

    // The second variable counts what the first one leaves.
    let none = [("ROCR_VISIBLE_DEVICES", "2"), ("HIP_VISIBLE_DEVICES", "2")];
    let report = run(&none);
    assert_eq!(check(&report, "environment")[0], "warning");
    assert_eq!(report["verdict"], "degraded");
}

#[test]
fn doctor_finds_missing_libraries_and_whole_kernels() {
    let none = Path::new("/no/such/library.so");
    let report = doctor(&VENDORS[0], none, "").ok().json();
    assert_eq!(report["verdict"], "degraded");
    assert_eq!(check(&report, "graphs")[0], "skipped");
    for vendor in VENDORS {
        let [status, detail] = check(&report, &format!("{} library", vendor.name));
        assert_eq!(status, "failed");
        assert!(detail.contains("install"), "{detail}");
    }
    let has_kernels = !run(&["devices", "--json"]).json()["images"]
        .as_array()
        .unwrap()
        .is_empty();
    let [status, _] = check(&report, "kernels");
    assert!(has_kernels && status == "ok" || !has_kernels && status != "ok");
    assert_eq!(check(&report, "cpu results")[0], "ok");
}

#[test]
fn doctor_checks_an_emulated_gpu() {
    let Some(device) = host_device() else { return };
    let report = run(&["doctor", "--json", "--emulated", &device]).json();
    let [status, detail] = check(&report, &format!("{device} results"));
    assert_eq!(status, "ok", "{detail}");
}

/// Of several libraries the newest of `ROCM_PATH` is loaded, and all are listed.
#[test]
fn doctor_lists_the_libraries_and_loads_that_of_rocm_path() {
    let Some(image) = image() else { return };
    let faults = ["-DANY_KERNEL", "-DFREE_BYTES=1<<30", "-DLAUNCH_CODE=701"];
    let Some(library) = stub(&VENDORS[0], "doctor-rocm", &faults) else {
        return;
    };
    let rocm = tempfile::tempdir().unwrap();
    let lib = rocm.path().join("lib");
    fs::create_dir(&lib).unwrap();
    fs::copy(&library, lib.join("libamdhip64.so.8")).unwrap();
    fs::write(lib.join("libamdhip64.so.5"), "not a library").unwrap();
    let mut command = command(&["doctor", "--json"]);
    command.env("ROCM_PATH", rocm.path());
    command.env("ROCMFORGE_CUDA_LIBRARY", "/no/such/library.so");
    command.env("ROCMFORGE_GPU_IMAGE", &image);
    let report = in_time(command).json();
    let [new, old] = ["8", "5"].map(|n| {
        lib.join(format!("libamdhip64.so.{n}"))
            .display()
            .to_string()
    });
    assert_eq!(check(&report, "HIP library"), ["ok", &new]);
    let [status, detail] = check(&report, "HIP libraries");
    assert_eq!(status, "ok");
    let expected = format!("{new} (loaded, by ROCM_PATH); {old} (by ROCM_PATH)");
    assert!(detail.starts_with(&expected), "{detail}");
    let [_, detail] = check(&report, "environment");
    assert!(detail.contains("ROCM_PATH="), "{detail}");
    let [_, detail] = check(&report, "hip:0");
    assert!(detail.contains("Stub 9000 at 0000:03:00.0"), "{detail}");
    let [_, detail] = check(&report, "hip:0 memory");
    assert!(
        detail.contains("the runtime says 1.0 GiB free of 4.0 GiB"),
        "{detail}"
    );
}

#[test]
fn doctor_names_the_package_of_a_missing_library() {
    let none = Path::new("/no/such/library.so");
    let report = doctor(&VENDORS[0], none, "").ok().json();
    let [_, detail] = check(&report, "HIP library");
    assert!(detail.contains("amdrocm-runtime"), "{detail}");
}

/// A development build reads its kernels from an archive. One of which a byte is wrong takes its place.
#[test]
fn doctor_names_a_damaged_kernel() {
    let images = rocmforge_gpu::images();
    let Some(archive) = rocmforge_gpu::kernel_archive().filter(|_| !images.is_empty()) else {
        return println!("skipped: the kernels are a part of the program, or there are none");
    };
    let folder = tempfile::tempdir().unwrap();
    let damaged = folder.path().join("kernels");
    let mut bytes = fs::read(archive).unwrap();
    bytes[100] ^= 1;
    fs::write(&damaged, &bytes).unwrap();
    let source = format!(
        r#"#define _GNU_SOURCE
#include <dlfcn.h>
#include <string.h>
typedef int open_type(const char*, int, unsigned);
static int from(const char* name, const char* path, int flags, unsigned mode) {{
    open_type* real = (open_type*)dlsym(RTLD_NEXT, name);
    return real(strcmp(path, "{archive}") ? path : "{}", flags, mode);
}}
int open(const char* path, int flags, unsigned mode) {{ return from("open", path, flags, mode); }}
int open64(const char* path, int flags, unsigned mode) {{ return from("open64", path, flags, mode); }}
"#,
        damaged.display()
    );
    let (code, library) = (folder.path().join("open.c"), folder.path().join("open.so"));
    fs::write(&code, source).unwrap();
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-fPIC", "-w", "-o"])
        .args([&library, &code]);
    let Ok(status) = cc.arg("-ldl").status() else {
        return println!("skipped: no C compiler");
    };
    assert!(status.success());
    let mut command = command(&["doctor", "--json"]);
    command.env("LD_PRELOAD", &library);
    for vendor in VENDORS {
        command.env(vendor.library(), "/no/such/library.so");
    }
    let run = in_time(command);
    run.fails(1, "this program is damaged");
    let report: Value = serde_json::from_slice(&run.stdout).unwrap();
    assert_eq!(report["verdict"], "failed");
    let [status, detail] = check(&report, "kernels");
    assert_eq!(status, "failed");
    // The archive begins with the first image.
    let owner = format!("{} for {} are damaged", images[0].module, images[0].target);
    assert!(detail.contains(&owner), "{detail}");
}

#[test]
fn bundle_has_what_a_report_needs_and_no_personal_path() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("doctor.tar");
    let mut command = command(&["doctor", "--bundle", file.to_str().unwrap()]);
    command.env("HOME", home.path());
    command.env("ROCM_PATH", home.path().join("rocm"));
    command.env("ROCMFORGE_HUB_TOKEN", "hf_secret");
    for vendor in VENDORS {
        command.env(vendor.library(), home.path().join("none.so"));
    }
    let bundled = in_time(command).ok();
    assert!(bundled.stderr.contains("wrote "), "{}", bundled.stderr);
    let bytes = fs::read(&file).unwrap();
    assert_eq!(bytes.len() % 512, 0);
    let text = String::from_utf8(bytes).unwrap();
    for part in [
        "rocmforge-doctor/doctor.txt",
        "rocmforge-doctor/doctor.json",
        "\"verdict\"",
        "rocmforge-doctor/versions.txt",
        "rocmforge-doctor/environment.txt",
        "ROCM_PATH=~/rocm\n",
        "ROCMFORGE_HUB_TOKEN is set",
        "rocmforge-doctor/kernel.log",
    ] {
        assert!(text.contains(part), "{part}");
    }
    for part in [home.path().to_str().unwrap(), "hf_secret"] {
        assert!(!text.contains(part), "{part}");
    }
    // An unwritable folder is reported before the checks.
    let file = home.path().join("none/doctor.tar");
    let refused = run(&["doctor", "--bundle", file.to_str().unwrap()]);
    refused.fails(1, "cannot write");
    assert!(refused.stdout.is_empty());
}
