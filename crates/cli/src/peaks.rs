//! The peak rates of the device that a command was asked to use.

use anyhow::Result;
use rocmforge_cpu::default_threads;
use rocmforge_engine::{Device, Engine, EngineConfig};
use rocmforge_profile::schema::Ceilings;

/// The peak rates of a device, and which it is.
pub struct Peaks {
    asked: Device,
    /// `None` if they could not be measured.
    pub ceilings: Option<Ceilings>,
}

impl Peaks {
    /// Measures the device of `config`. Call it before a model takes its memory.
    ///
    /// # Errors
    /// The device fails.
    pub fn measure(config: &EngineConfig) -> Result<Peaks> {
        Ok(Peaks {
            asked: config.device.clone(),
            ceilings: ceilings(config)?,
        })
    }

    /// Returns whether `engine` runs on this device alone. The peaks of a GPU that is not used, or only for a part of the
    /// model, do not apply.
    pub fn are_of(&self, engine: &Engine, config: &EngineConfig) -> bool {
        is_on_gpu(&self.asked) == is_on_gpu(&config.device)
            && engine.backend_info().parts.is_empty()
    }
}

fn is_on_gpu(device: &Device) -> bool {
    matches!(device, Device::Gpu(_))
}

/// Measures the device's peaks; `None` if that is not possible.
pub fn ceilings(config: &EngineConfig) -> Result<Option<Ceilings>> {
    match &config.device {
        Device::Cpu => {
            let n_threads = config.n_threads.unwrap_or_else(default_threads);
            Ok(Some(Ceilings::of_cpu(config.isa, n_threads)))
        }
        Device::Gpu(gpu) => Ok(Ceilings::of_gpu(gpu)?),
    }
}
