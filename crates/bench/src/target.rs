//! A device that cases run on: opened once, with what it can do at best measured before the first case.

use std::fs;

use rocmforge_cpu::{Isa, Pool};
use rocmforge_engine::Device;
use rocmforge_gpu::{Factors, Gpu, matrix_ops, read_bandwidth};
use rocmforge_runtime::gpu::{DeviceId, GpuConfig, GpuError, OpenOptions, survey};

use crate::BenchError;
use crate::row::Hardware;
use rocmforge_profile::schema::Ceilings;

/// What a suite may run on.
#[derive(Debug, Clone)]
pub enum BenchDevice {
    Cpu,
    /// A GPU by its id, with how to open it and run models on it.
    Gpu(DeviceId, GpuConfig),
}

impl BenchDevice {
    /// As `--device` takes it.
    pub fn label(&self) -> String {
        match self {
            BenchDevice::Cpu => "cpu".to_string(),
            BenchDevice::Gpu(id, _) => id.to_string(),
        }
    }

    /// Whether it is a CPU that plays a GPU.
    pub fn is_emulated(&self) -> bool {
        matches!(self, BenchDevice::Gpu(DeviceId::Host(_), _))
    }
}

/// The GPUs of this machine that this build has kernels for, and why others are left out.
pub fn found_gpus(open: &OpenOptions) -> (Vec<DeviceId>, Vec<GpuError>) {
    let survey = survey(open);
    let (mut ids, mut errors) = (Vec::new(), survey.errors);
    for device in survey.devices {
        match device.image {
            Ok(_) => ids.push(device.id),
            Err(error) => errors.push(error),
        }
    }
    (ids, errors)
}

/// A device in use.
pub(super) struct Target {
    device: BenchDevice,
    hardware: Hardware,
    /// `None` of an emulated device.
    ceilings: Option<Ceilings>,
    pub on: Opened,
    isa: Isa,
    n_threads: usize,
}

/// What kernels are called with.
pub(super) enum Opened {
    Cpu(Cpu),
    Gpu(Gpu),
}

/// The CPU's kernels and threads.
pub(super) struct Cpu {
    pub isa: Isa,
    pub pool: Pool,
}

impl Target {
    /// Opens the device and measures what it can do, for some tenths of a second.
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

    /// The CPU's instruction set in use.
    pub(super) fn isa(&self) -> Isa {
        self.isa
    }

    /// `cpu` or `gpu`.
    pub(super) fn backend(&self) -> &'static str {
        match self.on {
            Opened::Cpu(_) => "cpu",
            Opened::Gpu(_) => "gpu",
        }
    }

    /// For an engine on this device: instruction set and threads of the host.
    pub(super) fn engine_device(&self) -> (Device, Isa, usize) {
        let device = match &self.device {
            BenchDevice::Cpu => Device::Cpu,
            BenchDevice::Gpu(id, config) => Device::Gpu(GpuConfig {
                id: Some(*id),
                ..config.clone()
            }),
        };
        (device, self.isa, self.n_threads)
    }

    /// Refuses a case that needs more memory than the device has.
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

/// The processor's name, if the system knows it.
fn cpu_model() -> Option<String> {
    let info = fs::read_to_string("/proc/cpuinfo").ok()?;
    info.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == "model name").then(|| value.trim().to_string())
    })
}
