//! `rocmforge devices`: what this machine offers.

use std::fs;

use anyhow::Result;
use rocmforge::engine::{Isa, available_bytes, default_threads};
use serde::Serialize;

use crate::args::DevicesArgs;
use crate::output::{Out, size};

/// Said wherever somebody may look for a GPU.
const NO_GPU: &str = "GPU backends are not part of this build; models run on the CPU";

#[derive(Serialize)]
struct Report {
    devices: Vec<Cpu>,
    gpu: Gpu,
}

#[derive(Serialize)]
struct Cpu {
    /// What `--device` takes.
    id: &'static str,
    name: Option<String>,
    /// The instruction set that is used unless `--isa` says otherwise.
    isa: &'static str,
    isa_available: Vec<&'static str>,
    /// Extensions of the processor that matter here, used or not.
    features: Vec<&'static str>,
    /// Threads used by default: the logical cores that this process may use.
    threads: usize,
    /// Logical cores of the machine.
    cores: Option<usize>,
    memory_bytes: Option<u64>,
    memory_available_bytes: Option<u64>,
}

#[derive(Serialize)]
struct Gpu {
    supported: bool,
    reason: &'static str,
}

pub fn run(args: &DevicesArgs) -> Result<()> {
    let cpu = cpu();
    let mut out = Out::new();
    if args.json {
        out.json(&Report {
            devices: vec![cpu],
            gpu: Gpu {
                supported: false,
                reason: NO_GPU,
            },
        })?;
        return out.finish();
    }
    let number = |n: Option<usize>| n.map_or("n/a".into(), |n| n.to_string());
    let bytes = |n: Option<u64>| n.map_or("n/a".into(), size);
    out.line(&format!(
        "cpu   {}",
        cpu.name
            .as_deref()
            .unwrap_or("(the system does not name it)")
    ))?;
    out.line(&format!(
        "      instruction set  {} (available: {})",
        cpu.isa,
        cpu.isa_available.join(", ")
    ))?;
    out.line(&format!(
        "      features         {}",
        cpu.features.join(" ")
    ))?;
    out.line(&format!(
        "      threads          {} (of {} logical cores)",
        cpu.threads,
        number(cpu.cores)
    ))?;
    let (free, all) = (bytes(cpu.memory_available_bytes), bytes(cpu.memory_bytes));
    out.line(&format!("      memory           {free} available of {all}"))?;
    out.line(&format!("gpu   {NO_GPU}"))?;
    out.finish()
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

/// The processor's name, if the system knows it.
pub fn cpu_name() -> Option<String> {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    field(&info, "model name").map(str::to_string)
}

/// The value of the first line `name : value` of a /proc file.
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
    fn fields_of_proc_files() {
        let text = "processor\t: 0\nmodel name\t: Some CPU: fast\nMemTotal:       1024 kB\n";
        assert_eq!(field(text, "model name"), Some("Some CPU: fast"));
        assert_eq!(field(text, "MemTotal"), Some("1024 kB"));
        assert_eq!(field(text, "flags"), None);
    }
}
