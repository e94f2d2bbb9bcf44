//! Missing drivers, broken drivers and lost devices, simulated by stub libraries that the tests build. Every failure is
//! an error with the driver's message and advice; nothing panics or hangs.

use std::path::PathBuf;
use std::process::Command;

use std::sync::Arc;

use rocmforge_gguf::GgmlType;
use rocmforge_gpu::{
    AsyncKernelLauncher, BatchError, BatchQuantizedMatmul, DeviceId, Event, Gpu, GpuError,
    LaunchHandle, MatmulInput, OpenOptions, Pinned, QuantizedMatmulOp, Uploader, image_targets,
    ops,
};

const VENDORS: [DeviceId; 2] = [DeviceId::Hip(0), DeviceId::Cuda(0)];

/// Builds `stub/driver.c` with these faults and returns options that open it. Prints a skip and returns `None` without
/// a C compiler or an image to load.
fn stub(id: DeviceId, name: &str, faults: &[&str]) -> Option<OpenOptions> {
    let Some(image) = image_targets().first().copied() else {
        println!("skipped: built without any kernels");
        return None;
    };
    let is_hip = matches!(id, DeviceId::Hip(_));
    let vendor = if is_hip { "HIP" } else { "CUDA" };
    let library = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{vendor}-{name}.so"));
    let source = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/it/stub/driver.c");
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-fPIC", "-w", &format!("-D{vendor}")])
        .args(faults);
    let Ok(status) = cc.arg("-o").arg(&library).arg(source).status() else {
        println!("skipped: no C compiler");
        return None;
    };
    assert!(status.success());
    Some(with_library(id, library, Some(image.to_string())))
}

fn with_library(id: DeviceId, library: PathBuf, image: Option<String>) -> OpenOptions {
    let mut options = OpenOptions {
        image,
        ..OpenOptions::default()
    };
    match id {
        DeviceId::Hip(_) => options.hip_library = Some(library),
        _ => options.cuda_library = Some(library),
    }
    options
}

/// The error of opening a stub with these faults.
fn open_error(id: DeviceId, name: &str, faults: &[&str]) -> Option<GpuError> {
    let options = stub(id, name, faults)?;
    Some(
        Gpu::open_with(id, &options)
            .err()
            .expect("the stub is broken"),
    )
}

/// Launches overlap only if the kernels wait for their predecessors and the driver's graphs preserve the overlap.
#[test]
fn overlapping_launches() {
    let id = DeviceId::Cuda(0);
    for (image, name, flags) in [
        ("sm_90a", "overlapping", &["-DONLY_OVERLAPPING"][..]),
        ("sm_90a", "old", &["-DONLY_PLAIN", "-DVERSION=12020"]),
        ("sm_80", "plain", &["-DONLY_PLAIN"]),
    ] {
        if !image_targets().contains(&image) {
            println!("skipped: built without {image}");
            continue;
        }
        let Some(mut options) = stub(id, name, flags) else {
            return;
        };
        options.image = Some(image.into());
        let gpu = Gpu::open_with(id, &options).unwrap();
        let [x, y] = [2.0f32, 1.0].map(|value| gpu.upload(&[value; 300]).unwrap());
        ops::add(&gpu, x.as_slice(), y.as_slice()).unwrap();
        let sum = gpu.read(y.as_slice::<f32>()).unwrap();
        assert_eq!(sum, [3.0; 300], "{name}");
    }
}

#[test]
fn complete_driver() {
    for id in VENDORS {
        let Some(options) = stub(id, "whole", &[]) else {
            return;
        };
        let gpu = Gpu::open_with(id, &options).unwrap();
        let [x, y] = [2.0f32, 1.0].map(|value| gpu.upload(&[value; 300]).unwrap());
        ops::add(&gpu, x.as_slice(), y.as_slice()).unwrap();
        assert_eq!(gpu.read(y.as_slice::<f32>()).unwrap(), [3.0; 300]);
        gpu.fill_bytes(x.as_slice::<f32>(), 0).unwrap();
        gpu.copy(x.as_slice::<f32>(), y.as_slice()).unwrap();
        assert_eq!(gpu.read(y.as_slice::<f32>()).unwrap(), [0.0; 300]);
        let mut pinned = Pinned::<u8>::new(&gpu, 8).unwrap();
        pinned.write(&[7; 8]);
        let bytes = gpu.alloc::<u8>(8).unwrap();
        gpu.write_pinned(bytes.as_slice(), &pinned).unwrap();
        gpu.read_pinned(bytes.as_slice(), &mut pinned).unwrap();
        assert_eq!(pinned.get(7), 7);
        let graph = gpu
            .capture(|| ops::add(&gpu, x.as_slice(), y.as_slice()))
            .unwrap();
        graph.launch().unwrap();
        assert_eq!(gpu.read(y.as_slice::<f32>()).unwrap(), [0.0; 300]);
        let event = Event::new(&gpu).unwrap();
        event.record().unwrap();
        assert!(!event.is_done().unwrap());
        event.wait().unwrap();
        assert_eq!(event.elapsed_ms(&event).unwrap(), 1.5);
        let mut uploader = Uploader::new(&gpu, 4).unwrap();
        let chunks = [[1u8; 4], [2; 4], [3; 4]];
        let all = chunks.iter().map(|chunk| chunk.as_slice());
        let mut seen = Vec::new();
        uploader
            .upload_all(all, |_, chunk| {
                seen.push(gpu.read(chunk)?[0]);
                Ok(())
            })
            .unwrap();
        assert_eq!(seen, [1, 2, 3]);
        let error = gpu.constant("elementwise", "nothing_such").unwrap_err();
        assert!(matches!(error, GpuError::NoSymbol { .. }), "{error}");
    }
}

#[test]
fn lists_devices() {
    let (Some(hip), Some(cuda)) = (stub(VENDORS[0], "list", &[]), stub(VENDORS[1], "list", &[]))
    else {
        return;
    };
    let options = OpenOptions {
        cuda_library: cuda.cuda_library,
        ..hip
    };
    let closed = Gpu::survey(&options);
    assert!(closed.devices.iter().all(|info| info.free_bytes.is_none()));
    let survey = closed.with_free_memory(&options);
    assert_eq!(survey.errors, []);
    let [amd, nvidia] = &survey.devices[..] else {
        panic!("{survey:?}");
    };
    assert_eq!([&*amd.name, &*nvidia.name], ["Stub 9000"; 2]);
    assert_eq!(
        [&*amd.architecture, &*nvidia.architecture],
        ["gfx942", "sm_90"]
    );
    assert_eq!([amd.n_compute_units, nvidia.n_compute_units], [96, 132]);
    assert_eq!(
        [&*amd.runtime_version, &*nvidia.runtime_version],
        ["6.3.42134", "13.2"]
    );
    assert_eq!(
        [amd.max_shared_bytes, nvidia.max_shared_bytes],
        [65536, 232448]
    );
    assert_eq!((amd.free_bytes, amd.total_bytes), (Some(1000), 4000));
    assert_eq!(
        [&amd.pci_address, &nvidia.pci_address].map(|address| address.as_deref()),
        [Some("0000:03:00.0"), Some("0000:c3:00.0")]
    );
    assert_eq!(amd.image.as_deref(), Ok(options.image.as_deref().unwrap()));
}

/// Of all GPUs of a vendor the best is opened, and no other: the stub ends the process that opens it.
#[test]
fn only_the_best_gpu_is_opened() {
    // Integrated and large, discrete, discrete and large.
    let faults = ["-DN_DEVICES=3", "-DINTEGRATED=1", "-DLARGE=5", "-DCLOSED=3"];
    for id in VENDORS {
        let Some(options) = stub(id, "several", &faults) else {
            return;
        };
        let none = Some("/no/such/library.so".into());
        let options = match id {
            DeviceId::Hip(_) => OpenOptions {
                cuda_library: none,
                ..options
            },
            _ => OpenOptions {
                hip_library: none,
                ..options
            },
        };
        let (gpu, selection) = Gpu::open_best(&options).unwrap();
        let kind = if id == VENDORS[0] { "hip" } else { "cuda" };
        assert_eq!(gpu.id().to_string(), format!("{kind}:2"));
        let expected = format!(
            "{kind}:2 (Stub 9000) was chosen; passed over: {kind}:1 (Stub 9000): it has less memory; {kind}:0 (Stub \
             9000): it shares the CPU's memory"
        );
        assert_eq!(selection.to_string(), expected);
    }
}

/// An AMD GPU in the CPU does not hide NVIDIA's card; CUDA is not asked where AMD has a card.
#[test]
fn discrete_before_integrated_over_vendors() {
    let of = |id, name, faults: &[&str]| stub(id, name, faults);
    let (Some(integrated), Some(discrete), Some(cuda)) = (
        of(VENDORS[0], "apu", &["-DINTEGRATED=1", "-DCLOSED=1"]),
        of(VENDORS[0], "card", &[]),
        of(VENDORS[1], "card", &[]),
    ) else {
        return;
    };
    let with_cuda = |hip: OpenOptions, cuda_library| OpenOptions {
        cuda_library,
        ..hip
    };
    let options = with_cuda(integrated, cuda.cuda_library);
    let (gpu, _) = Gpu::open_best(&options).unwrap();
    assert_eq!(gpu.id(), VENDORS[1]);
    let options = with_cuda(discrete, Some("/no/such/library.so".into()));
    let (gpu, selection) = Gpu::open_best(&options).unwrap();
    assert_eq!((gpu.id(), selection.passed_over.len()), (VENDORS[0], 0));
}

/// A GPU that cannot be opened is passed over, and an error if there is no other.
#[test]
fn the_next_best_gpu_is_opened_if_the_best_fails() {
    let (Some(broken), Some(cuda)) = (
        stub(VENDORS[0], "unset", &["-DSET_CODE=46"]),
        stub(VENDORS[1], "next", &[]),
    ) else {
        return;
    };
    let options = OpenOptions {
        cuda_library: cuda.cuda_library,
        ..broken.clone()
    };
    let (gpu, selection) = Gpu::open_best(&options).unwrap();
    assert_eq!(gpu.id(), VENDORS[1]);
    let text = selection.to_string();
    assert!(
        text.contains("passed over: hip:0 (Stub 9000): hipSetDevice failed with 46"),
        "{text}"
    );
    let options = OpenOptions {
        cuda_library: Some("/no/such/library.so".into()),
        ..broken
    };
    let errors = Gpu::open_best(&options).err().unwrap();
    assert!(
        errors
            .iter()
            .any(|error| error.to_string().starts_with("hipSetDevice")),
        "{errors:?}"
    );
}

/// On RDNA, HIP's multiprocessors are pairs of compute units, also those that it calls physical.
#[test]
fn compute_units_are_counted_one_by_one() {
    for (arch, n) in [("gfx1100", 192), ("gfx942:sramecc+:xnack-", 96)] {
        let faults = [&*format!("-DARCH=\"{arch}\"")];
        let Some(options) = stub(VENDORS[0], &format!("units-{n}"), &faults) else {
            return;
        };
        let gpu = Gpu::open_with(VENDORS[0], &options).unwrap();
        assert_eq!(gpu.n_compute_units(), n);
    }
}

#[test]
fn missing_library() {
    for id in VENDORS {
        let options = with_library(id, "/no/such/library.so".into(), None);
        let error = Gpu::open_with(id, &options).err().unwrap();
        assert!(matches!(error, GpuError::NoLibrary { .. }), "{error}");
        let text = error.to_string();
        assert!(
            text.contains("/no/such/library.so") && text.contains("install"),
            "{text}"
        );
        let survey = Gpu::survey(&options);
        assert!(survey.errors.contains(&error), "{survey:?}");
    }
}

#[test]
fn invalid_library() {
    for id in VENDORS {
        let file = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("text.so");
        std::fs::write(&file, "not an ELF file").unwrap();
        let error = Gpu::open_with(id, &with_library(id, file, None))
            .err()
            .unwrap();
        assert!(matches!(error, GpuError::NoLibrary { .. }), "{error}");
    }
}

#[test]
fn missing_function() {
    for (id, name) in VENDORS.into_iter().zip(["hipGraphLaunch", "cuGraphLaunch"]) {
        let Some(error) = open_error(id, "symbol", &["-DWITHOUT_GRAPHS"]) else {
            return;
        };
        assert!(
            matches!(error, GpuError::NoFunction { symbol, .. } if symbol == name),
            "{error}"
        );
        assert!(error.to_string().contains("newer"), "{error}");
    }
}

#[test]
fn driver_init_fails() {
    for (id, call) in VENDORS.into_iter().zip(["hipInit", "cuInit"]) {
        let Some(error) = open_error(id, "init", &["-DINIT_CODE=3"]) else {
            return;
        };
        let text = error.to_string();
        assert!(
            text.starts_with(call) && text.contains("the stub says no"),
            "{text}"
        );
        assert!(text.contains("dmesg"), "{text}");
    }
}

#[test]
fn no_devices() {
    for id in VENDORS {
        for (name, fault) in [("none", "-DN_DEVICES=0"), ("no-device", "-DINIT_CODE=100")] {
            let Some(error) = open_error(id, name, &[fault]) else {
                return;
            };
            assert!(
                matches!(error, GpuError::NoDevice { n_devices: 0, .. }),
                "{error}"
            );
        }
        let Some(options) = stub(id, "first-only", &[]) else {
            return;
        };
        let second = match id {
            DeviceId::Hip(_) => DeviceId::Hip(1),
            _ => DeviceId::Cuda(1),
        };
        let error = Gpu::open_with(second, &options).err().unwrap();
        assert!(
            matches!(error, GpuError::NoDevice { n_devices: 1, .. }),
            "{error}"
        );
    }
}

#[test]
fn missing_image() {
    for id in VENDORS {
        let Some(options) = stub(id, "image", &[]) else {
            return;
        };
        let options = OpenOptions {
            image: Some("gfx000".into()),
            ..options
        };
        let error = Gpu::open_with(id, &options).err().unwrap();
        assert!(matches!(error, GpuError::NoImage { .. }), "{error}");
        // The stub's own architecture, if this build has no kernels for it.
        let options = OpenOptions {
            image: None,
            ..options
        };
        let has = |names: &[&str]| names.iter().any(|name| image_targets().contains(name));
        match (id, Gpu::open_with(id, &options)) {
            (DeviceId::Hip(_), opened) if has(&["gfx942"]) => drop(opened.unwrap()),
            (DeviceId::Cuda(_), opened) if has(&["sm_80", "sm_90a"]) => drop(opened.unwrap()),
            (_, opened) => {
                let error = opened.err().unwrap();
                assert!(
                    matches!(error, GpuError::NoImageForDevice { .. }),
                    "{error}"
                );
                assert!(
                    error.to_string().contains("ROCMFORGE_GPU_TARGETS="),
                    "{error}"
                );
            }
        }
    }
}

#[test]
fn driver_rejects_image() {
    for id in VENDORS {
        let Some(options) = stub(id, "load", &["-DLOAD_CODE=218"]) else {
            return;
        };
        let gpu = Gpu::open_with(id, &options).unwrap();
        let x = gpu.upload(&[1.0f32]).unwrap();
        let text = ops::add(&gpu, x.as_slice(), x.as_slice())
            .unwrap_err()
            .to_string();
        assert!(
            text.contains("218") && text.contains("elementwise"),
            "{text}"
        );
        assert!(
            text.contains("ptxas: the stub takes no PTX") || id == VENDORS[0],
            "{text}"
        );
    }
}

#[test]
fn out_of_memory() {
    for id in VENDORS {
        let Some(options) = stub(id, "alloc", &["-DALLOC_CODE=2"]) else {
            return;
        };
        let gpu = Gpu::open_with(id, &options).unwrap();
        let error = gpu.alloc::<u8>(5000).err().unwrap();
        let expected = GpuError::OutOfMemory {
            bytes: 5000,
            free: 1000,
            total: 4000,
        };
        assert_eq!(error, expected);
    }
}

#[test]
fn launch_rejected() {
    for id in VENDORS {
        let Some(options) = stub(id, "launch", &["-DLAUNCH_CODE=701"]) else {
            return;
        };
        let gpu = Gpu::open_with(id, &options).unwrap();
        let x = gpu.upload(&[1.0f32; 4]).unwrap();
        let error = ops::add(&gpu, x.as_slice(), x.as_slice()).unwrap_err();
        assert!(
            error.to_string().contains("add") && !error.is_fatal(),
            "{error}"
        );
        assert_eq!(gpu.read(x.as_slice::<f32>()).unwrap(), [1.0; 4]);
    }
}

/// Work, and earlier graphs, go on after a recording that failed. The stub's stream of that recording takes none.
#[test]
fn failed_recordings_leave_the_device_usable() {
    for id in VENDORS {
        for (name, fault) in [
            ("begin", "-DCAPTURE_CODE=901"),
            ("end", "-DEND_CAPTURE_CODE=901"),
            ("instantiate", "-DINSTANTIATE_CODE=801"),
            ("copy", "-DGOOD_CAPTURES=1"),
        ] {
            let faults = [fault, "-DGOOD_CAPTURES=1"];
            let Some(options) = stub(id, &format!("recording-{name}"), &faults) else {
                return;
            };
            let gpu = Gpu::open_with(id, &options).unwrap();
            let [x, y] = [2.0f32, 1.0].map(|value| gpu.upload(&[value; 300]).unwrap());
            let add = || ops::add(&gpu, x.as_slice(), y.as_slice());
            let graph = gpu.capture(add).unwrap();
            graph.launch().unwrap();
            for _ in 0..2 {
                let failed = gpu.capture(|| match name {
                    "copy" => gpu.read(y.as_slice::<f32>()).map(drop),
                    _ => add(),
                });
                let error = failed.err().unwrap();
                assert!(!error.is_fatal(), "{error}");
            }
            add().unwrap();
            graph.launch().unwrap();
            let event = Event::new(&gpu).unwrap();
            event.record().unwrap();
            event.wait().unwrap();
            assert_eq!(gpu.read(y.as_slice::<f32>()).unwrap(), [7.0; 300], "{name}");
        }
    }
}

/// After a device fault the failing call reports it, and every later call returns the cause at once.
#[test]
fn device_lost() {
    for id in VENDORS {
        let faults = ["-DSYNC_CODE=719", "-DGOOD_SYNCS=1"];
        let Some(options) = stub(id, "lost", &faults) else {
            return;
        };
        let gpu = Gpu::open_with(id, &options).unwrap();
        let x = gpu.upload(&[1.0f32; 4]).unwrap();
        let graph = gpu
            .capture(|| ops::add(&gpu, x.as_slice(), x.as_slice()))
            .unwrap();
        let error = gpu.read(x.as_slice::<f32>()).unwrap_err();
        assert!(error.is_fatal(), "{error}");
        assert!(
            error.to_string().contains("the stub's kernel faulted"),
            "{error}"
        );
        for later in [
            ops::add(&gpu, x.as_slice(), x.as_slice()),
            gpu.synchronize(),
            graph.launch(),
            gpu.alloc::<u8>(1).map(drop),
            gpu.capture(|| Ok(())).map(drop),
        ] {
            let later = later.unwrap_err();
            assert_eq!(
                later,
                GpuError::Lost {
                    cause: Box::new(error.clone())
                }
            );
            assert!(later.is_fatal());
        }
    }
}

/// The second of three batches breaks the device, at once or while it runs (then the third is the first to notice).
/// The second gets its error, the third the cause of the loss, and the first its results.
#[test]
fn failed_batches_get_their_own_error() {
    for id in VENDORS {
        for (name, faults) in [
            ("batch", &["-DLAUNCH_CODE=719", "-DGOOD_LAUNCHES=2"][..]),
            ("batch-late", &["-DFAULT_LAUNCHES=2"]),
        ] {
            let faults = [faults, &["-DANY_KERNEL", "-DFREE_BYTES=1000000"]].concat();
            let Some(options) = stub(id, name, &faults) else {
                return;
            };
            let gpu = Gpu::open_with(id, &options).unwrap();
            let mut batch = BatchQuantizedMatmul::new(&gpu);
            // One launch repacks the weight and one runs each batch; f32 is not converted.
            let shape = [4, 8];
            let weight = batch.add_weight(GgmlType::F32, shape, &[0; 128]).unwrap();
            let launcher = AsyncKernelLauncher::new(Arc::new(batch), 3).unwrap();
            let x = [1.0; 8];
            let op = QuantizedMatmulOp {
                weight,
                n_rows: 1,
                input: MatmulInput::Host(&x),
            };
            let [first, second] = [0; 2].map(|_| launcher.submit(&[op]).unwrap());
            assert!(first.is_done(), "{name}");
            // A lost device accepts no more batches.
            let third = launcher.submit(&[op]).and_then(LaunchHandle::wait);
            let third = third.map(drop).unwrap_err();
            assert!(second.is_done(), "{name}");
            let second = second.wait().map(drop).unwrap_err();
            assert!(
                second.to_string().contains("the stub's kernel faulted"),
                "{second}"
            );
            let cause = Box::new(second);
            assert_eq!(third, GpuError::Lost { cause }, "{name}");
            assert_eq!(launcher.n_in_flight(), 0);
            let first = first.wait().unwrap();
            assert_eq!((first.len(), first.output(0).len()), (1, 4));
            // HIP's stub reports no clock rate.
            let knows_clock = matches!(id, DeviceId::Cuda(_));
            assert_eq!(first.timing(0).is_some(), knows_clock);
            assert!(launcher.submit(&[op]).is_err(), "{name}");
        }
    }
}

/// A full launcher rejects batches until the device has finished one.
#[test]
fn full_launcher_rejects_batches() {
    for id in VENDORS {
        let faults = ["-DLATE_COPIES", "-DANY_KERNEL", "-DFREE_BYTES=1000000"];
        let Some(options) = stub(id, "late", &faults) else {
            return;
        };
        let gpu = Gpu::open_with(id, &options).unwrap();
        let mut batch = BatchQuantizedMatmul::new(&gpu);
        let shape = [4, 8];
        let weight = batch.add_weight(GgmlType::F32, shape, &[0; 128]).unwrap();
        let launcher = AsyncKernelLauncher::new(Arc::new(batch), 2).unwrap();
        let op = QuantizedMatmulOp {
            weight,
            n_rows: 1,
            input: MatmulInput::Host(&[1.0; 8]),
        };
        let [first, _second] = [0; 2].map(|_| launcher.submit(&[op]).unwrap());
        let full = GpuError::Batch(BatchError::QueueFull { n: 2 });
        assert_eq!(launcher.submit(&[op]).map(drop).unwrap_err(), full);
        assert_eq!(launcher.n_in_flight(), 2);
        assert_eq!(first.wait().unwrap().len(), 1);
        assert!(launcher.submit(&[op]).is_ok());
    }
}
