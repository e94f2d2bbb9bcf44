//! Tests of gauges with constructed file trees and scripts that imitate the tools.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use super::gauges::{busy_percent, nvidia_reading};
use super::*;
use crate::amd_smi::tests::METRIC;
use crate::sysfs::tests::tree;
use crate::tools::tests::script;

/// A generous timeout; what it bounds ends long before.
const LONG: Duration = Duration::from_secs(60);

/// A gauge with given readings that signals when all were read.
struct Given(Vec<Option<f64>>, std::sync::mpsc::Sender<()>);

impl Probe for Given {
    fn read(&mut self) -> Result<Option<Reading>, ExternalError> {
        if self.0.is_empty() {
            // The test may have ended.
            let _ = self.1.send(());
            return Ok(None);
        }
        Ok(self.0.remove(0).map(|busy_percent| Reading {
            busy_percent,
            memory_used_bytes: Some(busy_percent as u64 * 1000),
            ..Reading::default()
        }))
    }
}

#[test]
fn summarises_readings() {
    for (readings, mean, meets_target) in [
        (vec![None, Some(70.0), Some(100.0), Some(91.0)], 87.0, true),
        (vec![Some(80.0), Some(80.0)], 80.0, false),
        (vec![Some(0.0), Some(10.0)], 5.0, false),
    ] {
        let n = readings.iter().flatten().count();
        let most = readings.iter().flatten().fold(0.0_f64, |a, b| a.max(*b));
        let (done, all_read) = std::sync::mpsc::channel();
        let probe = Box::new(Given(readings, done));
        let sampler = Sampler::with_probe("given", probe, Duration::from_millis(1));
        all_read.recv_timeout(LONG).unwrap();
        let found = sampler.finish().unwrap();
        assert_eq!((found.busy_percent.n, found.busy_percent.mean), (n, mean));
        assert_eq!(found.memory_used_bytes, Some(most as u64 * 1000));
        assert_eq!(
            (found.meets_target, found.source.as_str()),
            (meets_target, "given")
        );
    }
    // Only what was read since a time.
    let (done, all_read) = std::sync::mpsc::channel();
    let probe = Box::new(Given(vec![Some(10.0), Some(20.0)], done));
    let sampler = Sampler::with_probe("given", probe, Duration::from_millis(1));
    all_read.recv_timeout(LONG).unwrap();
    let late = sampler
        .finish_since(Instant::now())
        .unwrap_err()
        .to_string();
    assert!(late.contains("too short"), "{late}");
    let (done, _all_read) = std::sync::mpsc::channel();
    let silent = Sampler::with_probe("silent", Box::new(Given(vec![], done)), LONG);
    let error = silent.finish().unwrap_err().to_string();
    assert!(
        error.contains("silent") && error.contains("too short"),
        "{error}"
    );
}

#[test]
fn cpu_share_is_relative_to_all_threads() {
    let second = Duration::from_secs(1);
    for (computing, n_threads, percent) in [
        (Duration::from_millis(500), 1, 50.0),
        (second, 2, 50.0),
        (2 * second, 2, 100.0),
        (Duration::from_millis(2100), 2, 100.0),
        (Duration::ZERO, 8, 0.0),
    ] {
        assert_eq!(busy_percent(computing, second, n_threads), percent);
    }
}

#[test]
fn measures_this_process() {
    let sampler = Sampler::start(&Source::Process { n_threads: 1 }, LONG).unwrap();
    let start = Instant::now();
    let mut sum = 0_u64;
    while start.elapsed() < Duration::from_millis(50) {
        sum = sum.wrapping_mul(31).wrapping_add(std::hint::black_box(7));
    }
    std::hint::black_box(sum);
    let found = sampler.finish().unwrap();
    let busy = found.busy_percent;
    assert!(
        busy.n == 1 && busy.mean > 0.0 && busy.max <= 100.0,
        "{busy:?}"
    );
    if cfg!(target_os = "linux") {
        assert!(found.memory_used_bytes.unwrap() > 1 << 20);
    }
}

#[test]
fn reads_sysfs_during_a_run() {
    let dir = tempfile::tempdir().unwrap();
    let files: &[_] = &[
        ("vendor", "0x1002"),
        ("gpu_busy_percent", "93"),
        ("mem_info_vram_used", "5000000000"),
    ];
    tree(dir.path(), &[("card1", "0000:03:00.0", files)]);
    let source = Source::Sysfs(sysfs::cards(dir.path()).remove(0));
    let found = Sampler::start(&source, LONG).unwrap().finish().unwrap();
    assert_eq!(found.busy_percent.mean, 93.0);
    assert_eq!(found.memory_used_bytes, Some(5_000_000_000));
    assert!(found.meets_target);
    assert_eq!(found.source, "sysfs (card1, 0000:03:00.0)");

    // The GPU disappears between two readings.
    let sampler = Sampler::start(&source, Duration::from_millis(1)).unwrap();
    fs::remove_dir_all(dir.path().join("devices")).unwrap();
    let start = Instant::now();
    while !sampler.worker.as_ref().unwrap().is_finished() && start.elapsed() < LONG {
        std::thread::yield_now();
    }
    for gone in [sampler.finish().err(), Sampler::start(&source, LONG).err()] {
        let gone = gone.unwrap().to_string();
        assert!(gone.contains("gpu_busy_percent"), "{gone}");
    }
}

fn nvidia(dir: &Path, text: &str) -> Result<Utilization, ExternalError> {
    let program = script(dir, "nvidia-smi", text);
    let gpu = "0".to_string();
    Sampler::start(&Source::NvidiaSmi { program, gpu }, LONG)?.finish()
}

#[test]
fn reads_nvidia_smi_line_by_line() {
    let dir = tempfile::tempdir().unwrap();
    // Drivers that know all names, the older ones of two, and the first two.
    let power = ",power.draw,temperature.gpu,clocks.sm,clocks_";
    for (known, line) in [
        (
            "event_reasons.active",
            "412.5, 61, 1980, 0x0000000000000004",
        ),
        (
            "throttle_reasons.active",
            "412.5, 61, 1980, 0x0000000000000004",
        ),
        ("", ""),
    ] {
        let is_old = known.is_empty();
        let more = if is_old {
            String::new()
        } else {
            format!("{power}{known}")
        };
        let query = format!(
            "--query-gpu=utilization.gpu,memory.used{more} --format=csv,noheader,nounits -i 0"
        );
        let found = nvidia(
            dir.path(),
            &format!(
                "case \"$*\" in\n'{query}') exit 0;;\n'{query} -lms 100') ;;\n*) echo \"$*\" >&2; exit 2;; esac\n\
                while :; do echo '88, 4096{}{line}'; sleep 0.02; done",
                if is_old { "" } else { ", " }
            ),
        )
        .unwrap();
        assert_eq!(found.busy_percent.mean, 88.0);
        assert_eq!(
            (found.memory_used_bytes, found.meets_target),
            (Some(4 << 30), true)
        );
        let mean = |summary: Option<Summary>| summary.map(|summary| summary.mean);
        let some = |value: f64| (!is_old).then_some(value);
        assert_eq!(mean(found.power_watts), some(412.5));
        assert_eq!(mean(found.temperature), some(61.0));
        assert_eq!(mean(found.clock_mhz), some(1980.0));
        assert_eq!(
            found.throttled_by,
            if is_old { &[][..] } else { &["power"] }
        );
        let condition = (!is_old).then_some("412 W, 61 °C, 1980 MHz, clock held down by power");
        assert_eq!(found.condition().as_deref(), condition);
        let found = found.per_token(200, Duration::from_secs(2));
        assert_eq!(found.joules_per_token, some(4.125));
    }
    for (text, part) in [
        (
            "echo '[N/A], 4096'; sleep 100",
            "it printed \"[N/A], 4096\"",
        ),
        (
            "echo 'No devices were found'; sleep 100",
            "No devices were found",
        ),
        (
            "echo 'driver mismatch' >&2; exit 9",
            "it ended: driver mismatch",
        ),
        ("head -c 100000 /dev/zero", "it printed"),
    ] {
        let text = format!("case \"$*\" in *-lms*) ;; *) exit 0;; esac\n{text}");
        let error = nvidia(dir.path(), &text).unwrap_err().to_string();
        assert!(error.contains(part) && error.len() < 600, "{text}: {error}");
    }
    let gone = Source::NvidiaSmi {
        program: "/no/such/nvidia-smi".into(),
        gpu: "0".into(),
    };
    let error = Sampler::start(&gone, LONG).err().unwrap();
    assert!(matches!(error, ExternalError::Start { .. }), "{error}");
}

#[test]
fn nvidia_lines() {
    let reading = |busy_percent, memory_used_bytes| Reading {
        busy_percent,
        memory_used_bytes,
        ..Reading::default()
    };
    assert_eq!(nvidia_reading("0, 0\n").unwrap(), reading(0.0, Some(0)));
    assert_eq!(nvidia_reading("100,[N/A]").unwrap(), reading(100.0, None));
    for wrong in ["", "5", "101, 1", "-1, 1", "nan, 1", "x, y", "\u{0}"] {
        assert!(nvidia_reading(wrong).is_err(), "{wrong:?}");
    }
}

#[test]
fn runs_amd_smi_for_each_reading() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("metric.json"), METRIC).unwrap();
    let json = dir.path().join("metric.json");
    let source = |text: &str| Source::AmdSmi {
        program: script(dir.path(), "amd-smi", text),
        gpu: "0".to_string(),
    };
    let good = format!(
        "[ \"$*\" = 'metric -g 0 --usage --mem-usage --power --temperature --clock --json' ] && cat {}",
        json.display()
    );
    let found = Sampler::start(&source(&good), LONG)
        .unwrap()
        .finish()
        .unwrap();
    assert_eq!(found.busy_percent.mean, 97.0);
    assert_eq!(found.memory_used_bytes, Some(5120 << 20));
    for (text, part) in [
        ("echo 'AMD-SMI: no permission' >&2; exit 1", "no permission"),
        ("echo nonsense", "not what amd-smi writes"),
        ("echo '[{\"gpu\": 0}]'", "gfx_activity is N/A"),
    ] {
        let error = Sampler::start(&source(text), LONG)
            .err()
            .unwrap()
            .to_string();
        assert!(error.contains(part), "{text}: {error}");
    }
}

/// HIP numbers its GPUs in another order than the kernel, and in one that depends on variables; the kernel numbers its
/// cards in the order in which it found them.
#[test]
fn gpus_are_joined_with_their_gauges_by_the_pci_address() {
    let (tools, sys) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (near, far) = ("0000:03:00.0", "0000:c3:00.0");
    let files: &[_] = &[("vendor", "0x1002"), ("gpu_busy_percent", "1")];
    let silent: &[_] = &[("vendor", "0x1002")];
    tree(
        sys.path(),
        &[
            ("card0", far, files),
            ("card1", near, files),
            ("card2", "0000:e3:00.0", silent),
        ],
    );
    let places = Places {
        path: tools.path().into(),
        sysfs: sys.path().to_path_buf(),
    };
    let of = |name: &str, pci: &str| Source::of_gpu(name, Some(pci), &places);
    let error = |name: &str, pci: Option<&str>| {
        let error = Source::of_gpu(name, pci, &places).unwrap_err();
        error.to_string()
    };
    for name in ["hip:0", "hip:1"] {
        for (pci, card) in [(near, "card1"), (far, "card0"), ("0000:C3:00.0", "card0")] {
            let found = of(name, pci).unwrap().name();
            assert_eq!(
                found,
                format!("sysfs ({card}, {})", pci.to_ascii_lowercase())
            );
        }
    }
    for (name, pci, part) in [
        // Nothing is guessed, even if there is one card only.
        ("hip:0", None, "does not tell its PCI address"),
        ("cuda:0", None, "does not tell its PCI address"),
        ("cuda:0", Some(near), "nvidia-smi is not in PATH"),
        (
            "hip:0",
            Some("0000:e3:00.0"),
            "no gpu_busy_percent of 0000:e3:00.0",
        ),
        ("hip:0", Some("0000:04:00.0"), "amd-smi is not in PATH"),
        ("tpu:0", Some(near), "no gauge"),
    ] {
        let error = error(name, pci);
        assert!(error.contains(part) && error.contains(name), "{error}");
    }
    let amd = script(tools.path(), "amd-smi", "exit 0");
    let nvidia = script(tools.path(), "nvidia-smi", "exit 0");
    for pci in ["0000:e3:00.0", "0000:04:00.0"] {
        let (program, gpu) = (amd.clone(), pci.to_string());
        assert_eq!(of("hip:0", pci).unwrap(), Source::AmdSmi { program, gpu });
    }
    let (program, gpu) = (nvidia, near.to_string());
    assert_eq!(
        of("cuda:1", near).unwrap(),
        Source::NvidiaSmi { program, gpu }
    );
}
