//! What the drivers say, the kernels of this build, and whether results are right.

use std::time::Instant;

use rocmforge_cpu::Isa;
use rocmforge_engine::{Device, EngineConfig};
use rocmforge_gguf::{TokenId, escape_control};
use rocmforge_gpu::{compilers, images, left_out};
use rocmforge_model::Model;
use rocmforge_runtime::check::{self, Coverage, Extent, OpCheck};
use rocmforge_runtime::compare_graphs;
use rocmforge_runtime::gpu::{
    self, DeviceId, DeviceInfo, GpuConfig, GpuError, GraphCheck, OpenOptions, Survey,
};

use super::classes::{Class, Found};
use super::hardware::{PciGpu, Vendor};
use super::report::{Check, Status};
use crate::embedded;
use crate::flags::NO_KERNELS;

/// The vendors' libraries: which ones were loaded, and why others were not. Those that the machine has no GPU for may be
/// missing, unless the user names them.
pub fn libraries(survey: &Survey, gpus: &[PciGpu], options: &OpenOptions) -> Vec<Check> {
    let is_needed = |label: &str| {
        let (vendor, named) = match label {
            "HIP" => (Vendor::Amd, &options.hip_library),
            _ => (Vendor::Nvidia, &options.cuda_library),
        };
        named.is_some() || gpus.iter().any(|gpu| gpu.vendor == vendor)
    };
    let loaded = { survey.libraries.iter() }.flat_map(|(label, path)| {
        let name = format!("{label} library");
        let library = Check::new(name, Status::Ok, path.display().to_string());
        [Some(library), unseen(label, survey, gpus)]
    });
    let errors = survey.errors.iter().map(|error| {
        let (name, label) = about(error);
        match label.filter(|label| !is_needed(label)) {
            Some(_) => {
                let detail = "not needed: the PCI bus has no GPU for it";
                Check::new(name, Status::Skipped, detail)
            }
            None => Check::new(name, Status::Failed, error.to_string()),
        }
    });
    loaded.flatten().chain(errors).collect()
}

/// Whether a library offers fewer GPUs than the PCI bus has.
fn unseen(label: &str, survey: &Survey, gpus: &[PciGpu]) -> Option<Check> {
    let (vendor, variables, container) = match label {
        "HIP" => (
            Vendor::Amd,
            "HIP_VISIBLE_DEVICES and ROCR_VISIBLE_DEVICES",
            "--device /dev/kfd --device /dev/dri",
        ),
        _ => (Vendor::Nvidia, "CUDA_VISIBLE_DEVICES", "--gpus all"),
    };
    let is_of = |info: &&DeviceInfo| match info.id {
        DeviceId::Hip(_) => vendor == Vendor::Amd,
        DeviceId::Cuda(_) => vendor == Vendor::Nvidia,
        DeviceId::Host(_) => false,
    };
    let n_seen = survey.devices.iter().filter(is_of).count();
    let n_gpus = gpus.iter().filter(|gpu| gpu.vendor == vendor).count();
    let status = match n_seen {
        _ if n_seen >= n_gpus => return None,
        0 => Status::Failed,
        _ => Status::Warning,
    };
    let detail = format!("{label} offers {n_seen} of the {n_gpus} GPUs on the PCI bus");
    Some(Check::new(format!("{label} devices"), status, detail).advice(format!(
        "{variables} may hide GPUs; a container needs {container}; and {label} may not support the GPU"
    )))
}

/// The name of a check that an error is the result of, and the library if a machine may be without it.
fn about(error: &GpuError) -> (String, Option<&'static str>) {
    match error {
        GpuError::NoLibrary { driver, .. } | GpuError::NoFunction { driver, .. } => {
            (format!("{driver} library"), Some(*driver))
        }
        // The library may be there without a GPU.
        GpuError::Driver { call, .. } if call.starts_with("hip") => {
            ("HIP driver".into(), Some("HIP"))
        }
        GpuError::Driver { .. } => ("CUDA driver".into(), None),
        _ => ("gpu".into(), None),
    }
}

/// Whether the kernels of this build can be unpacked and have not changed. A machine without a GPU needs none.
pub fn kernels(gpus: &[PciGpu]) -> Check {
    const NAME: &str = "kernels";
    let targets = gpu::image_targets();
    if targets.is_empty() {
        let status = match gpus.is_empty() {
            true => Status::Skipped,
            false => Status::Warning,
        };
        let why = why_left_out(left_out());
        return Check::new(NAME, status, [NO_KERNELS, &why].concat());
    }
    let damaged = images().iter().filter_map(|image| image.verify().err());
    let damaged: Vec<GpuError> = damaged.collect();
    if let Some(first) = damaged.first() {
        let detail = format!("{} of {}: {first}", damaged.len(), images().len());
        return Check::new(NAME, Status::Failed, detail)
            .advice("this program is damaged: install or build it again")
            .fatal();
    }
    let by = { compilers().iter() }.map(|(version, of)| match compilers().len() {
        1 => version.to_string(),
        _ => format!("{version} ({of})"),
    });
    let detail = format!(
        "{} modules for {}, by {}{}",
        images().len(),
        targets.join(", "),
        by.collect::<Vec<_>>().join(", "),
        why_left_out(left_out())
    );
    match left_out().is_empty() || gpus.is_empty() {
        true => Check::new(NAME, Status::Ok, detail),
        false => Check::new(NAME, Status::Warning, detail)
            .advice("build again without this problem if a GPU here needs it"),
    }
}

/// Says which targets the build left out, and why; empty for none. Targets with the same reason are named together.
fn why_left_out(left_out: &[(&str, &str)]) -> String {
    let mut reasons: Vec<(&str, Vec<&str>)> = Vec::new();
    for (target, reason) in left_out {
        match reasons.iter_mut().find(|(known, _)| known == reason) {
            Some((_, targets)) => targets.push(target),
            None => reasons.push((reason, vec![target])),
        }
    }
    let parts = reasons
        .iter()
        .map(|(reason, targets)| format!("; not for {}: {reason}", targets.join(", ")));
    parts.collect()
}

/// Describes a device.
pub fn found(info: &DeviceInfo) -> Check {
    let detail = format!(
        "{}{}, {}, {} compute units, driver {}",
        escape_control(&info.name),
        info.pci_address
            .iter()
            .map(|at| format!(" at {at}"))
            .collect::<String>(),
        info.architecture,
        info.n_compute_units,
        info.driver_version,
    );
    let id = info.id.to_string();
    match &info.image {
        Ok(image) => Check::new(id, Status::Ok, format!("{detail}, kernels {image}")),
        Err(error) => Check::new(id, Status::Failed, format!("{detail}; {error}")),
    }
}

/// Measures the bandwidth of a device's memory.
pub fn bandwidth(id: &str, config: &GpuConfig) -> Check {
    let name = format!("{id} bandwidth");
    match gpu::read_bandwidth(config) {
        Ok(bytes) => Check::new(name, Status::Ok, format!("reads {:.0} GB/s", bytes / 1e9)),
        Err(error) => Check::new(name, Status::Failed, error.to_string()),
    }
}

/// Times a decode step of the built-in model as a graph and in separate launches.
pub fn graphs(id: &str, gpu: &GpuConfig) -> Check {
    let name = format!("{id} graphs");
    let config = built_in_config(Device::Gpu(gpu.clone()));
    let compared = built_in()
        .and_then(|model| compare_graphs(&model, &config, gpu).map_err(|error| error.to_string()));
    match compared {
        Ok(Some(found)) => compared_graphs(name, &found),
        Ok(None) => {
            let detail = "not measured, as the built-in model has no room on the GPU";
            Check::new(name, Status::Skipped, detail)
        }
        Err(error) => Check::new(name, Status::Failed, error),
    }
}

/// The check of graphs of a machine without a GPU.
pub fn no_graphs() -> Check {
    let detail = "no GPU to compare graphs with launches on";
    Check::new("graphs", Status::Skipped, detail)
}

fn compared_graphs(name: String, found: &GraphCheck) -> Check {
    match found {
        GraphCheck::Same(times) => {
            let [graph, launches] = [times.graph, times.launches].map(|t| 1e3 * t.as_secs_f64());
            let used = match times.are_launched() {
                true => "separate launches",
                false => "graphs",
            };
            let detail = format!(
                "a step of the built-in model takes {graph:.3} ms as a graph and {launches:.3} ms in separate launches: \
                 {used} are used for it"
            );
            Check::new(name, Status::Ok, detail)
        }
        GraphCheck::Fails(why) => Check::new(name, Status::Warning, why.as_str())
            .advice("update the GPU's driver and runtime; --no-graphs avoids this check"),
    }
}

fn built_in() -> Result<Model, String> {
    let file = embedded::open().map_err(|error| error.to_string())?;
    Model::load(file.into()).map_err(|error| error.to_string())
}

/// Compares the CPU's vector kernels with the scalar ones.
pub fn results_of_cpu() -> Check {
    match Isa::detect() {
        Isa::Scalar => Check::new(
            "cpu results",
            Status::Skipped,
            "this CPU runs the reference itself",
        ),
        // The last resort must work.
        _ => results("cpu", Device::Cpu).fatal(),
    }
}

/// Compares the kernels of a class with the scalar reference.
pub fn class(id: &str, class: Class, config: &GpuConfig, until: Instant) -> Check {
    let name = format!("{id} {}", class.name());
    match class.compare(config, until) {
        Ok(Found::Operations { reports, .. }) if reports.is_empty() => Check::new(
            name,
            Status::Skipped,
            "not compared, as there was no time left; see --limit",
        ),
        Ok(Found::Operations { reports, left }) => {
            let mut check = compared(id, name, &reports);
            if !left.is_empty() {
                check.detail += &format!("; no time was left for {}; see --limit", left.join(", "));
            }
            check
        }
        Ok(Found::Tokens(found)) => match found.n_wrong {
            0 => {
                let detail = format!("{} tokens are those of the CPU", found.n_tokens);
                Check::new(name, Status::Ok, detail)
            }
            n => wrong(id, name, format!("{n} of {} tokens differ", found.n_tokens)),
        },
        Err(error) => Check::new(name, Status::Failed, error),
    }
}

const EXTENT: Extent = Extent::after(0, Coverage::Distinct);

fn built_in_config(device: Device) -> EngineConfig {
    EngineConfig {
        n_ctx: Some(EXTENT.n_ctx()),
        ..EngineConfig::default()
    }
    .on(device)
}

/// Compares all operations of the built-in model with the scalar reference, in a prompt and in decode.
pub fn results(id: &str, device: Device) -> Check {
    let name = format!("{id} results");
    let config = built_in_config(device);
    let found = built_in().and_then(|model| {
        check::check(&model, &config, &tokens(&model), &EXTENT).map_err(|error| error.to_string())
    });
    match found {
        Ok(report) => compared(id, name, &[report]),
        Err(error) => Check::new(name, Status::Failed, error),
    }
}

/// Returns tokens from all of a model's vocabulary.
pub fn tokens(model: &Model) -> Vec<TokenId> {
    let n_vocab = model.config.n_vocab as u64;
    let token = |i: u64| (i * 2_654_435_761 % n_vocab) as TokenId;
    (0..64).map(token).collect()
}

fn compared(id: &str, name: String, reports: &[check::Report]) -> Check {
    let n: usize = reports.iter().map(|report| report.checks.len()).sum();
    let failures: Vec<&OpCheck> = reports.iter().flat_map(check::Report::failures).collect();
    match failures.first() {
        None => Check::new(
            name,
            Status::Ok,
            format!("{n} kinds of operations agree with the reference"),
        ),
        Some(first) => {
            let detail = format!(
                "{} of {n} kinds of operations are wrong, first {} ({}, {}): {:.1e} of at most {:.0e}",
                failures.len(),
                first.op,
                first.shape,
                first.format,
                first.max_rel,
                first.bound
            );
            wrong(id, name, detail)
        }
    }
}

fn wrong(id: &str, name: String, detail: String) -> Check {
    Check::new(name, Status::Failed, detail)
        .advice(format!(
            "results of {id} are wrong: use another --device, and report it with the output of rocmforge doctor --json"
        ))
        .fatal()
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::time::Duration;

    use rocmforge_runtime::gpu::StepTimes;

    use super::*;

    fn nvidia() -> PciGpu {
        PciGpu {
            vendor: Vendor::Nvidia,
            address: "0000:01:00.0".into(),
            device: "0x2330".into(),
            driver: Some("nvidia".into()),
        }
    }

    #[test]
    fn targets_that_were_left_out_are_named_with_the_reason() {
        assert_eq!(why_left_out(&[]), "");
        let old = "clang 20 omits a wait";
        let left_out = [("gfx1200", old), ("gfx942", "no lld"), ("gfx1201", old)];
        assert_eq!(
            why_left_out(&left_out),
            "; not for gfx1200, gfx1201: clang 20 omits a wait; not for gfx942: no lld"
        );
    }

    #[test]
    fn graphs_and_launches_are_told_with_what_is_used() {
        let times = |graph, launches| {
            let [graph, launches] = [graph, launches].map(Duration::from_micros);
            let found = GraphCheck::Same(StepTimes { graph, launches });
            let check = compared_graphs("hip:0 graphs".into(), &found);
            assert_eq!((&*check.name, check.status), ("hip:0 graphs", Status::Ok));
            check.detail
        };
        assert_eq!(
            times(500, 250),
            "a step of the built-in model takes 0.500 ms as a graph and 0.250 ms in separate launches: separate launches \
             are used for it"
        );
        assert!(times(250, 500).ends_with(": graphs are used for it"));
        let why = "the graph of a step fails (hipGraphLaunch failed) on hip:0";
        let check = compared_graphs("hip:0 graphs".into(), &GraphCheck::Fails(why.into()));
        assert_eq!((check.status, &*check.detail), (Status::Warning, why));
        assert!(check.advice.is_some());
    }

    /// On GPUs whose graphs are slower than launches, or cannot be recorded. Their kernels compute nothing.
    #[test]
    fn graphs_of_a_driver_that_lies_are_not_used() {
        let Some(image) = rocmforge_gpu::image_targets().first().copied() else {
            println!("skipped: built without any kernels");
            return;
        };
        let folder = tempfile::tempdir().unwrap();
        let check = |fault: &str| {
            let library = folder.path().join(format!("hip{fault}.so"));
            let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../gpu/tests/it/stub/driver.c");
            let mut cc = Command::new("cc");
            cc.args(["-shared", "-fPIC", "-w", "-DHIP", "-DANY_KERNEL"]);
            cc.args(["-DFREE_BYTES=1<<30", fault, "-o"]).arg(&library);
            assert!(cc.arg(source).status().unwrap().success());
            let gpu = GpuConfig {
                id: Some("hip:0".parse().unwrap()),
                open: OpenOptions {
                    image: Some(image.to_string()),
                    hip_library: Some(library),
                    ..OpenOptions::default()
                },
                ..GpuConfig::default()
            };
            graphs("hip:0", &gpu)
        };
        if Command::new("cc").arg("--version").output().is_err() {
            println!("skipped: no C compiler");
            return;
        }
        let slow = check("-DGRAPH_US=20000");
        assert_eq!(slow.status, Status::Ok, "{}", slow.detail);
        assert!(
            slow.detail.contains(": separate launches are used"),
            "{}",
            slow.detail
        );
        let failing = check("-DCAPTURE_CODE=901");
        assert_eq!(failing.status, Status::Warning, "{}", failing.detail);
        assert!(failing.detail.contains("901"), "{}", failing.detail);
    }

    /// A library that works but offers no GPU, though there is one, and one that no GPU needs.
    #[test]
    fn hidden_gpus_are_noticed() {
        let survey = Survey {
            libraries: vec![("CUDA", "libcuda.so.1".into())],
            errors: vec![GpuError::NoLibrary {
                driver: "HIP",
                text: "not found".into(),
                advice: "install it".into(),
            }],
            ..Survey::default()
        };
        let states = |gpus: &[PciGpu]| -> Vec<(String, Status)> {
            let checks = libraries(&survey, gpus, &OpenOptions::default());
            let state = |check: Check| (check.name, check.status);
            checks.into_iter().map(state).collect()
        };
        let with = |name: &str, status| (name.to_string(), status);
        assert_eq!(
            states(&[nvidia()]),
            [
                with("CUDA library", Status::Ok),
                with("CUDA devices", Status::Failed),
                with("HIP library", Status::Skipped),
            ]
        );
        assert_eq!(
            states(&[]),
            [
                with("CUDA library", Status::Ok),
                with("HIP library", Status::Skipped),
            ]
        );
    }
}
