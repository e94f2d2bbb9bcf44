//! What the drivers say, the kernels of this build, and whether results are right.

use rocmforge_cpu::Isa;
use rocmforge_engine::{Device, EngineConfig};
use rocmforge_gguf::{TokenId, escape_control};
use rocmforge_gpu::{images, left_out};
use rocmforge_model::Model;
use rocmforge_runtime::check::{self, Coverage};
use rocmforge_runtime::gpu::{
    self, DeviceId, DeviceInfo, GpuConfig, GpuError, OpenOptions, Survey,
};

use super::hardware::{PciGpu, Vendor};
use super::report::{Check, Status};
use crate::embedded;
use crate::flags::NO_KERNELS;
use crate::output::size;

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
    let name = |label: &str| format!("{label} library");
    let loaded = { survey.libraries.iter() }
        .map(|(label, path)| Check::new(name(label), Status::Ok, path.display().to_string()));
    let errors = survey.errors.iter().map(|error| {
        let label = label_of(error);
        match label.filter(|label| !is_needed(label)) {
            Some(label) => {
                let detail = "not usable, and the PCI bus has no GPU that needs it";
                Check::new(name(label), Status::Skipped, detail)
            }
            None => Check::new(
                label.map_or("gpu".into(), name),
                Status::Failed,
                error.to_string(),
            ),
        }
    });
    loaded.chain(errors).collect()
}

/// The library that an error is about.
fn label_of(error: &GpuError) -> Option<&'static str> {
    match error {
        GpuError::NoLibrary { driver, .. } | GpuError::NoFunction { driver, .. } => Some(*driver),
        GpuError::Driver { call, .. } if call.starts_with("hip") => Some("HIP"),
        GpuError::Driver { call, .. } if call.starts_with("cu") => Some("CUDA"),
        _ => None,
    }
}

/// Whether the kernels of this build can be unpacked and have not changed.
pub fn kernels() -> Check {
    const NAME: &str = "kernels";
    let targets = gpu::image_targets();
    if targets.is_empty() {
        return Check::new(NAME, Status::Warning, NO_KERNELS);
    }
    let damaged: Vec<String> = images()
        .iter()
        .filter_map(|image| {
            let error = image.verify().err()?;
            Some(format!("{} for {}: {error}", image.module, image.target))
        })
        .collect();
    if let Some(first) = damaged.first() {
        let detail = format!(
            "{} of {} are damaged, first {first}",
            damaged.len(),
            images().len()
        );
        return Check::new(NAME, Status::Failed, detail)
            .advice("this program file is damaged: install it again")
            .fatal();
    }
    let detail = format!("{} modules for {}", images().len(), targets.join(", "));
    match left_out().first() {
        Some((target, reason)) => Check::new(
            NAME,
            Status::Warning,
            format!("{detail}; not for {target}: {reason}"),
        )
        .advice("build again without this problem if a GPU here needs it"),
        None => Check::new(NAME, Status::Ok, detail),
    }
}

/// Checks a device: its facts, its bandwidth, and its results.
pub fn device(info: &DeviceInfo, options: &OpenOptions) -> Vec<Check> {
    let id = info.id.to_string();
    let detail = format!(
        "{}, {}, {} compute units, {} available of {}, driver {}",
        escape_control(&info.name),
        info.architecture,
        info.n_compute_units,
        size(info.free_bytes),
        size(info.total_bytes),
        info.driver_version,
    );
    let image = match &info.image {
        Ok(image) => image,
        Err(error) => return vec![Check::new(id, Status::Failed, format!("{detail}; {error}"))],
    };
    let config = GpuConfig {
        id: Some(info.id),
        open: options.clone(),
        ..GpuConfig::default()
    };
    let bandwidth = match gpu::read_bandwidth(&config) {
        Ok(bytes) => Check::new(
            format!("{id} bandwidth"),
            Status::Ok,
            format!("reads {:.0} GB/s", bytes / 1e9),
        ),
        Err(error) => Check::new(format!("{id} bandwidth"), Status::Failed, error.to_string()),
    };
    let found = Check::new(id.clone(), Status::Ok, format!("{detail}, kernels {image}"));
    vec![found, bandwidth, results(&id, Device::Gpu(config))]
}

/// Checks the results of an emulated GPU.
pub fn emulated(id: DeviceId) -> Check {
    let config = GpuConfig {
        id: Some(id),
        ..GpuConfig::default()
    };
    results(&id.to_string(), Device::Gpu(config))
}

/// Compares the CPU's vector kernels with the scalar ones.
pub fn results_of_cpu() -> Check {
    match Isa::detect() {
        Isa::Scalar => Check::new(
            "cpu results",
            Status::Skipped,
            "this CPU runs the reference itself",
        ),
        _ => results("cpu", Device::Cpu),
    }
}

/// Compares all operations of the built-in model with the scalar reference, in a prompt and in decode.
fn results(id: &str, device: Device) -> Check {
    let name = format!("{id} results");
    let config = EngineConfig {
        n_ctx: Some(check::n_ctx(0)),
        ..EngineConfig::default()
    }
    .on(device);
    let compared = embedded::open()
        .map_err(|error| error.to_string())
        .and_then(|file| Model::load(file.into()).map_err(|error| error.to_string()))
        .and_then(|model| {
            let n_vocab = model.config.n_vocab as u64;
            let token = |i: u64| (i * 2_654_435_761 % n_vocab) as TokenId;
            let tokens: Vec<TokenId> = (0..64).map(token).collect();
            check::check(&model, &config, &tokens, 0, Coverage::Distinct)
                .map_err(|error| error.to_string())
        });
    let report = match compared {
        Ok(report) => report,
        Err(error) => return Check::new(name, Status::Failed, error),
    };
    let n = report.checks.len();
    match report.failures().next() {
        None => Check::new(
            name,
            Status::Ok,
            format!("{n} kinds of operations agree with the reference"),
        ),
        Some(first) => Check::new(
            name,
            Status::Failed,
            format!(
                "{} of {n} kinds of operations are wrong, first {} ({}, {}): {:.1e} of at most {:.0e}",
                report.failures().count(),
                first.op,
                first.shape,
                first.format,
                first.max_rel,
                first.bound
            ),
        )
        .advice(format!(
            "results of {id} are wrong: use another --device, and report it with the output of rocmforge doctor --json"
        ))
        .fatal(),
    }
}
