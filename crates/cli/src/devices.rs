//! `rocmforge devices`: lists CPU and GPUs.

use std::fs;

use anyhow::Result;
use rocmforge_cpu::memory::available_bytes;
use rocmforge_cpu::{Isa, default_threads};
use rocmforge_gguf::escape_control;
use rocmforge_runtime::gpu;
use rocmforge_runtime::gpu::{DeviceInfo, GpuConfig, OpenOptions};
use serde::Serialize;

use crate::args::DevicesArgs;
use crate::flags::NO_KERNELS;
use crate::output::{Out, size};

#[derive(Serialize)]
struct Report {
    devices: Vec<Device>,
    gpu: Gpus,
    /// Targets of this build's GPU kernels.
    images: Vec<&'static str>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Device {
    Cpu(Cpu),
    Gpu(Gpu),
}

#[derive(Serialize)]
struct Cpu {
    /// Value for `--device`.
    id: &'static str,
    name: Option<String>,
    /// The default instruction set.
    isa: &'static str,
    isa_available: Vec<&'static str>,
    /// Relevant instruction set extensions of the CPU, used or not.
    features: Vec<&'static str>,
    /// Default number of threads: the logical cores available to this process.
    threads: usize,
    /// Logical cores of the machine.
    cores: Option<usize>,
    memory_bytes: Option<u64>,
    memory_available_bytes: Option<u64>,
}

#[derive(Serialize)]
struct Gpu {
    /// Value for `--device`.
    id: String,
    name: String,
    architecture: String,
    compute_units: u32,
    memory_bytes: u64,
    /// null if it was not opened: this build has no kernels for it, or it is integrated beside a card.
    memory_available_bytes: Option<u64>,
    /// Its place on the PCI bus, as in /sys/bus/pci/devices; null if the driver does not say.
    pci_address: Option<String>,
    /// Whether the GPU shares the system's memory.
    integrated: bool,
    driver_version: String,
    runtime_version: String,
    /// The kernel image that it uses.
    image: Option<String>,
    /// Why it cannot run models.
    problem: Option<String>,
    /// Read bandwidth, measured now; null if it was not opened.
    read_gb_s: Option<f64>,
}

/// The usable GPUs and the problems of others.
#[derive(Serialize)]
struct Gpus {
    supported: bool,
    reasons: Vec<String>,
}

pub fn run(args: &DevicesArgs) -> Result<()> {
    let cpu = cpu();
    let options = OpenOptions::from_env();
    let survey = gpu::survey(&options).with_free_memory(&options);
    let gpus = survey.devices.iter().map(|info| Gpu::new(info, &options));
    let gpus: Vec<Gpu> = gpus.collect();
    let images = gpu::image_targets();
    let mut reasons: Vec<String> = Vec::new();
    if images.is_empty() {
        reasons.push(NO_KERNELS.to_string());
    }
    reasons.extend(survey.errors.iter().map(ToString::to_string));
    let supported = gpus.iter().any(|gpu| gpu.image.is_some());
    let mut out = Out::new();
    if args.json {
        let gpus = gpus.into_iter().map(Device::Gpu);
        out.json(&Report {
            devices: std::iter::once(Device::Cpu(cpu)).chain(gpus).collect(),
            gpu: Gpus { supported, reasons },
            images,
        })?;
        return out.finish();
    }
    print_cpu(&mut out, &cpu)?;
    for gpu in &gpus {
        print_gpu(&mut out, gpu)?;
    }
    if !supported {
        out.line("gpu   no usable GPU; models run on the CPU")?;
        for reason in &reasons {
            out.line(&format!("      {reason}"))?;
        }
    }
    let images = match images.is_empty() {
        true => "none".to_string(),
        false => images.join(", "),
    };
    out.line(&format!("GPU kernels in this build: {images}"))?;
    out.finish()
}

fn print_cpu(out: &mut Out, cpu: &Cpu) -> Result<()> {
    let number = |n: Option<usize>| n.map_or("n/a".into(), |n| n.to_string());
    let bytes = |n: Option<u64>| n.map_or("n/a".into(), size);
    let name = cpu.name.as_deref();
    let (free, all) = (bytes(cpu.memory_available_bytes), bytes(cpu.memory_bytes));
    let threads = format!("{} (of {} logical cores)", cpu.threads, number(cpu.cores));
    let isas = cpu.isa_available.join(", ");
    out.line(&format!("cpu   {}", name.unwrap_or("(unknown)")))?;
    for (what, value) in [
        (
            "instruction set",
            format!("{} (available: {isas})", cpu.isa),
        ),
        ("features", cpu.features.join(" ")),
        ("threads", threads),
        ("memory", format!("{free} available of {all}")),
    ] {
        out.line(&format!("      {what:<16} {value}"))?;
    }
    Ok(())
}

fn print_gpu(out: &mut Out, gpu: &Gpu) -> Result<()> {
    let free = gpu.memory_available_bytes.map_or("n/a".into(), size);
    let all = size(gpu.memory_bytes);
    let shared = match gpu.integrated {
        true => ", shared with the CPU",
        false => "",
    };
    let known = |text: &str| {
        if text.is_empty() {
            "n/a".to_string()
        } else {
            text.to_string()
        }
    };
    let units = format!("{}, {} compute units", gpu.architecture, gpu.compute_units);
    let address = gpu.pci_address.as_deref().unwrap_or("n/a").to_string();
    let versions = format!(
        "{} (runtime {})",
        known(&gpu.driver_version),
        known(&gpu.runtime_version)
    );
    let kernels = gpu.image.as_ref().or(gpu.problem.as_ref());
    let bandwidth = gpu
        .read_gb_s
        .map_or("n/a".into(), |speed| format!("{speed:.0} GB/s"));
    out.line(&format!("{:<5} {}", gpu.id, gpu.name))?;
    for (what, value) in [
        ("architecture", units),
        ("PCI address", address),
        ("memory", format!("{free} available of {all}{shared}")),
        ("read bandwidth", bandwidth),
        ("driver", versions),
        ("kernels", kernels.cloned().unwrap_or_default()),
    ] {
        out.line(&format!("      {what:<16} {value}"))?;
    }
    Ok(())
}

impl Gpu {
    fn new(info: &DeviceInfo, options: &OpenOptions) -> Gpu {
        Gpu {
            id: info.id.to_string(),
            name: escape_control(&info.name).into_owned(),
            architecture: info.architecture.clone(),
            compute_units: info.n_compute_units,
            memory_bytes: info.total_bytes,
            memory_available_bytes: info.free_bytes,
            pci_address: info.pci_address.clone(),
            integrated: info.integrated,
            driver_version: info.driver_version.clone(),
            runtime_version: info.runtime_version.clone(),
            image: info.image.as_ref().ok().cloned(),
            problem: info.image.as_ref().err().map(ToString::to_string),
            read_gb_s: read_gb_s(info, options),
        }
    }
}

/// Measures read bandwidth; takes a moment and a part of the free memory.
fn read_gb_s(info: &DeviceInfo, options: &OpenOptions) -> Option<f64> {
    info.free_bytes?;
    let config = GpuConfig {
        id: Some(info.id),
        open: options.clone(),
        ..GpuConfig::default()
    };
    let measured = gpu::read_bandwidth(&config).ok()?;
    Some(measured / 1e9).filter(|speed| speed.is_finite())
}

fn cpu() -> Cpu {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let memory = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let cores = info
        .lines()
        .filter(|line| line.starts_with("processor"))
        .count();
    let kib = field(&memory, "MemTotal")
        .and_then(|text| text.trim_end_matches("kB").trim().parse::<u64>().ok());
    Cpu {
        id: "cpu",
        name: cpu_name(),
        isa: Isa::detect().name(),
        isa_available: Isa::available().iter().map(|isa| isa.name()).collect(),
        features: features(),
        threads: default_threads(),
        cores: (cores > 0).then_some(cores),
        memory_bytes: kib.map(|kib| kib * 1024),
        memory_available_bytes: available_bytes(),
    }
}

/// Returns the CPU's name.
pub fn cpu_name() -> Option<String> {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    field(&info, "model name").map(str::to_string)
}

/// Returns the value of the first line `name : value` in a /proc file.
fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then(|| value.trim())
    })
}

#[cfg(target_arch = "x86_64")]
fn features() -> Vec<&'static str> {
    use std::arch::is_x86_feature_detected as has;
    let all = [
        ("avx", has!("avx")),
        ("f16c", has!("f16c")),
        ("fma", has!("fma")),
        ("avx2", has!("avx2")),
        ("avxvnni", has!("avxvnni")),
        ("avx512f", has!("avx512f")),
        ("avx512bw", has!("avx512bw")),
        ("avx512vnni", has!("avx512vnni")),
        ("avx512bf16", has!("avx512bf16")),
        ("avx512fp16", has!("avx512fp16")),
    ];
    all.iter()
        .filter(|(_, has)| *has)
        .map(|(name, _)| *name)
        .collect()
}

#[cfg(not(target_arch = "x86_64"))]
fn features() -> Vec<&'static str> {
    Vec::new()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_proc_fields() {
        let text = "processor\t: 0\nmodel name\t: Some CPU: fast\nMemTotal:       1024 kB\n";
        assert_eq!(field(text, "model name"), Some("Some CPU: fast"));
        assert_eq!(field(text, "MemTotal"), Some("1024 kB"));
        assert_eq!(field(text, "flags"), None);
    }
}
