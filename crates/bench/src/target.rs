//! A device that cases run on. It is opened once, and its peak rates are measured before the first case.

use std::fs;

use rocmforge_cpu::{Isa, Pool};
use rocmforge_engine::Device;
use rocmforge_gpu::{Factors, Gpu, matrix_ops, read_bandwidth};
use rocmforge_profile::schema::Ceilings;
use rocmforge_runtime::gpu::{DeviceId, GpuConfig, GpuError, OpenOptions, candidates};

use crate::error::BenchError;
use crate::row::Hardware;

/// A device to measure.
#[derive(Debug, Clone)]
pub enum BenchDevice {
    Cpu,
    /// A GPU by id, with the options to open it and run models on it.
    Gpu(DeviceId, Box<GpuConfig>),
}

impl BenchDevice {
    /// Returns its name as for `--device`.
    pub fn label(&self) -> String {
        match self {
            BenchDevice::Cpu => "cpu".to_string(),
            BenchDevice::Gpu(id, _) => id.to_string(),
        }
    }

    /// Whether it is an emulated GPU.
    pub fn is_emulated(&self) -> bool {
        matches!(self, BenchDevice::Gpu(DeviceId::Host(_), _))
    }
}

/// Returns the GPUs of this machine that this build has kernels for, and the errors of the others.
pub fn found_gpus(open: &OpenOptions) -> (Vec<DeviceId>, Vec<GpuError>) {
    let (candidates, mut errors) = candidates(open);
    let mut ids = Vec::new();
    for device in candidates {
        match device.image {
            Ok(_) => ids.push(device.id),
            Err(error) => errors.push(error),
        }
    }
    (ids, errors)
}

/// An opened device.
pub(super) struct Target {
    device: BenchDevice,
    hardware: Hardware,
    /// `None` for an emulated GPU.
    ceilings: Option<Ceilings>,
    pub on: Opened,
    isa: Isa,
    n_threads: usize,
}

/// The handle that kernels are called with.
pub(super) enum Opened {
    Cpu(Cpu),
    Gpu(Gpu),
}

/// The CPU's instruction set and thread pool.
pub(super) struct Cpu {
    pub isa: Isa,
    pub pool: Pool,
}

impl Target {
    /// Opens the device and measures its peak rates, which takes some tenths of a second.
    pub(super) fn open(
        device: &BenchDevice,
        isa: Isa,
        n_threads: usize,
    ) -> Result<Target, BenchError> {
        let mut hardware = Hardware {
            cpu_model: cpu_model(),
            cpu_arch: std::env::consts::ARCH.to_string(),
            n_threads,
            os: std::env::consts::OS.to_string(),
            ..Hardware::default()
        };
        let (on, ceilings) = match device {
            BenchDevice::Cpu => {
                let roofline = rocmforge_cpu::measure_roofline(isa, n_threads);
                let ceilings = Ceilings {
                    read_bytes_per_s: roofline.read_bytes_per_s,
                    f32_ops_per_s: Some(roofline.f32_ops_per_s),
                    i8_ops_per_s: Some(roofline.i8_ops_per_s),
                    start_us: None,
                };
                let pool = Pool::new(n_threads);
                hardware.n_threads = pool.n_threads();
                (Opened::Cpu(Cpu { isa, pool }), Some(ceilings))
            }
            BenchDevice::Gpu(id, config) => {
                let gpu = Gpu::open_with(*id, &config.open)?;
                let info = gpu.info()?;
                let known = |text: &str| Some(text.to_string()).filter(|text| !text.is_empty());
                hardware.gpu_name = known(&info.name);
                hardware.gpu_architecture = known(&info.architecture);
                hardware.driver = known(&info.driver_version);
                if let DeviceId::Hip(_) = id {
                    hardware.rocm_version = known(&info.runtime_version);
                }
                let ceilings = match device.is_emulated() {
                    true => None,
                    false => Some(Ceilings {
                        read_bytes_per_s: read_bandwidth(&gpu)?,
                        f32_ops_per_s: Some(matrix_ops(&gpu, Factors::F16)?),
                        i8_ops_per_s: Some(matrix_ops(&gpu, Factors::I8)?),
                        start_us: None,
                    }),
                };
                (Opened::Gpu(gpu), ceilings)
            }
        };
        Ok(Target {
            device: device.clone(),
            hardware,
            ceilings,
            on,
            isa,
            n_threads,
        })
    }

    pub(super) fn device(&self) -> &BenchDevice {
        &self.device
    }

    pub(super) fn hardware(&self) -> &Hardware {
        &self.hardware
    }

    pub(super) fn ceilings(&self) -> Option<&Ceilings> {
        self.ceilings.as_ref()
    }

    /// Returns the CPU's instruction set in use.
    pub(super) fn isa(&self) -> Isa {
        self.isa
    }

    /// Returns `cpu` or `gpu`.
    pub(super) fn backend(&self) -> &'static str {
        match self.on {
            Opened::Cpu(_) => "cpu",
            Opened::Gpu(_) => "gpu",
        }
    }

    /// Returns device, instruction set and number of CPU threads for an engine on this device.
    pub(super) fn engine_device(&self) -> (Device, Isa, usize) {
        let device = match &self.device {
            BenchDevice::Cpu => Device::Cpu,
            BenchDevice::Gpu(id, config) => Device::Gpu(GpuConfig {
                id: Some(*id),
                ..GpuConfig::clone(config)
            }),
        };
        (device, self.isa, self.n_threads)
    }

    /// Fails if a case needs more memory than is free on the device.
    pub(super) fn check_memory(&self, needed: u64) -> Result<(), BenchError> {
        let free = match &self.on {
            Opened::Cpu(_) => rocmforge_cpu::memory::available_bytes(),
            Opened::Gpu(gpu) => Some(gpu.free_bytes()?),
        };
        match free {
            Some(free) if free < needed => Err(BenchError::NoMemory {
                needed_mib: needed >> 20,
                free_mib: free >> 20,
            }),
            _ => Ok(()),
        }
    }
}

/// Returns the CPU model name, if the system reports it.
fn cpu_model() -> Option<String> {
    let info = fs::read_to_string("/proc/cpuinfo").ok()?;
    info.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == "model name").then(|| value.trim().to_string())
    })
}
