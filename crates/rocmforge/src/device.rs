//! Choosing the device, and falling back to the CPU where the user left the choice open.

use std::str::FromStr;

use rocmforge_engine::{ConfigError, DeviceError, EngineConfig, EngineError};
use rocmforge_runtime::BackendInfo;
use rocmforge_runtime::gpu::{self, DeviceId, GpuConfig, GpuError};

/// The device that runs a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Device {
    /// A GPU that this build has kernels for, else the CPU.
    #[default]
    Auto,
    Cpu,
    /// The best GPU: discrete before integrated, then the one with more memory.
    Gpu,
    /// A GPU by its id, such as `hip:0` or `cuda:1`.
    Id(DeviceId),
}

impl FromStr for Device {
    type Err = String;

    fn from_str(text: &str) -> Result<Device, String> {
        match text {
            "auto" => Ok(Device::Auto),
            "cpu" => Ok(Device::Cpu),
            "gpu" => Ok(Device::Gpu),
            id => id
                .parse()
                .map(Device::Id)
                .map_err(|error| format!("{error}; use auto, cpu, gpu, hip:N or cuda:N")),
        }
    }
}

/// A device that was found.
#[derive(Debug)]
pub struct Found {
    pub device: rocmforge_engine::Device,
    /// Which GPU was chosen of several, or why an automatic choice uses none of them.
    pub notices: Vec<String>,
}

impl Device {
    /// Finds the device on this machine. `gpu` says how a GPU is opened and used; its id is set here.
    ///
    /// An automatic choice falls back to the CPU. Another choice is checked when the engine starts.
    pub fn find(self, gpu: GpuConfig) -> Found {
        let on_gpu = |id| rocmforge_engine::Device::Gpu(GpuConfig { id, ..gpu.clone() });
        let found = |device, notices| Found { device, notices };
        match self {
            Device::Cpu => found(rocmforge_engine::Device::Cpu, Vec::new()),
            Device::Id(id) => found(on_gpu(Some(id)), Vec::new()),
            Device::Gpu | Device::Auto => match gpu::best(&gpu.open) {
                Ok(best) => {
                    let has_others = !best.passed_over.is_empty();
                    let notices = has_others.then(|| best.to_string()).into_iter().collect();
                    found(on_gpu(Some(best.chosen.id)), notices)
                }
                // The engine reports why.
                Err(_) if self == Device::Gpu => found(on_gpu(None), Vec::new()),
                Err(errors) => {
                    let errors = errors.iter().filter(|error| is_about_a_gpu(error));
                    let notices = errors.map(|error| format!("{error}; running on the CPU"));
                    found(rocmforge_engine::Device::Cpu, notices.collect())
                }
            },
        }
    }
}

/// Whether an error is about a GPU that this machine has.
pub fn is_about_a_gpu(error: &GpuError) -> bool {
    !matches!(
        error,
        GpuError::NoLibrary { .. } | GpuError::NoDevice { .. }
    )
}

/// Something that was started, and on what.
pub struct Started<T> {
    pub started: T,
    /// The settings it runs with.
    pub config: EngineConfig,
    /// Why the CPU runs the model instead of a GPU.
    pub not_on_gpu: Option<EngineError>,
}

/// Starts on the device of `config`. If that GPU computes wrong results or cannot run the model, and the user left the
/// choice of the device open, starts on the CPU instead.
///
/// # Errors
/// Those of `start`.
pub fn start_or_fall_back<T>(
    config: EngineConfig,
    asked: Device,
    start: impl Fn(&EngineConfig) -> Result<T, EngineError>,
) -> Result<Started<T>, EngineError> {
    match start(&config) {
        Err(
            error @ (EngineError::Device(DeviceError::WrongGpu { .. })
            | EngineError::Config(ConfigError::GpuLimit(_))),
        ) if asked == Device::Auto => {
            let config = config.on(rocmforge_engine::Device::Cpu);
            Ok(Started {
                started: start(&config)?,
                config,
                not_on_gpu: Some(error),
            })
        }
        started => Ok(Started {
            started: started?,
            config,
            not_on_gpu: None,
        }),
    }
}

/// Returns `config` with the CPU as its device if no part of the model is on a GPU.
pub fn settled(config: EngineConfig, info: &BackendInfo) -> EngineConfig {
    match info.is_on_gpu() {
        true => config,
        false => EngineConfig {
            device: rocmforge_engine::Device::Cpu,
            ..config
        },
    }
}

/// Returns what the user should know about how the model runs, slow operations included.
pub fn backend_notices(info: &BackendInfo) -> Vec<String> {
    let mut notices = info.notices.clone();
    if !info.slow_ops.is_empty() {
        let formats: Vec<&str> = info
            .slow_ops
            .iter()
            .map(|(name, _)| name.as_str())
            .collect();
        let n_ops: usize = info.slow_ops.iter().map(|(_, count)| count).sum();
        notices.push(format!(
            "{} has no fast kernel for {}; {n_ops} operations of every step run slowly",
            info.device,
            formats.join(", ")
        ));
    }
    notices
}

#[cfg(test)]
mod tests {
    use rocmforge_runtime::gpu::Limit;

    use super::*;

    #[test]
    fn falls_back_to_the_cpu_only_when_the_choice_was_open() {
        let config =
            || EngineConfig::default().on(rocmforge_engine::Device::Gpu(GpuConfig::default()));
        let start = |config: &EngineConfig| match config.device {
            rocmforge_engine::Device::Cpu => Ok("the CPU"),
            rocmforge_engine::Device::Gpu(_) => Err(ConfigError::GpuLimit(Limit {
                wanted: "heads of an even number of values".into(),
                value: 15,
            })
            .into()),
        };
        let started = start_or_fall_back(config(), Device::Auto, start).unwrap();
        assert_eq!(started.started, "the CPU");
        assert!(matches!(
            started.config.device,
            rocmforge_engine::Device::Cpu
        ));
        assert!(matches!(
            started.not_on_gpu,
            Some(EngineError::Config(ConfigError::GpuLimit(_)))
        ));
        for asked in [Device::Gpu, Device::Id(DeviceId::Cuda(0))] {
            let error = start_or_fall_back(config(), asked, start).err().unwrap();
            assert!(matches!(
                error,
                EngineError::Config(ConfigError::GpuLimit(_))
            ));
        }
    }
}
