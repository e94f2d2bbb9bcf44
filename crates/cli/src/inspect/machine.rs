//! How a model fits on the devices of this machine.

use rocmforge_engine::EngineConfig;
use rocmforge_gguf::escape_control;
use rocmforge_model::Model;
use rocmforge_runtime::gpu::{self, GpuConfig, OpenOptions};
use rocmforge_runtime::{ConfigError, Device, Fit, Fits, RuntimeError, fit};
use serde_json::{Value as Json, json};

use crate::output::size;

/// A device, and how the model fits there.
pub struct OnDevice {
    /// Value for `--device`.
    id: String,
    name: Option<String>,
    fit: Result<Fit, RuntimeError>,
}

/// Returns how `model` fits on the CPU and on each GPU.
pub fn devices(model: &Model, config: &EngineConfig) -> Vec<OnDevice> {
    let on_cpu = OnDevice {
        id: "cpu".to_string(),
        name: None,
        fit: fit(model, &config.clone().on(Device::Cpu), None),
    };
    let open = OpenOptions::from_env();
    let gpus = gpu::survey(&open).devices.into_iter().map(|info| {
        let gpu = GpuConfig {
            id: Some(info.id),
            open: open.clone(),
            ..GpuConfig::default()
        };
        let config = config.clone().on(Device::Gpu(gpu));
        OnDevice {
            id: info.id.to_string(),
            name: Some(escape_control(&info.name).into_owned()),
            fit: match info.image {
                Ok(_) => fit(model, &config, None),
                Err(error) => Err(error.into()),
            },
        }
    });
    std::iter::once(on_cpu).chain(gpus).collect()
}

impl OnDevice {
    pub fn fit(&self) -> Option<Fit> {
        self.fit.as_ref().ok().copied()
    }

    /// What is missing for the model to run there, and why.
    pub fn problem(&self) -> Option<(&'static str, String)> {
        let error = self.fit.as_ref().err()?;
        let name = match error {
            RuntimeError::Config(
                ConfigError::NoMemory { .. }
                | ConfigError::NoMemoryAtAll { .. }
                | ConfigError::NoMemoryForWeights { .. },
            ) => "memory",
            RuntimeError::Config(_) => "other settings",
            RuntimeError::Device(_) => "device",
        };
        Some((name, error.to_string()))
    }

    /// Whether weights and context stay in the device's memory.
    pub fn holds_all(&self) -> bool {
        self.fit().is_some_and(|fit| fit.fits == Fits::Whole)
    }

    pub fn id(&self) -> &str {
        &self.id
    }

    /// Describes the device and the fit in a line.
    pub fn line(&self) -> String {
        let name = self.name.iter().map(|name| format!("{name}: "));
        let name: String = name.collect();
        format!("{:<8}  {name}{}", self.id, self.sentence())
    }

    fn sentence(&self) -> String {
        let fit = match &self.fit {
            Ok(fit) => fit,
            Err(reason) => return format!("no, {reason}"),
        };
        let needed = size(fit.needed_bytes);
        let free = fit.free_bytes.map_or_else(
            || "an unknown amount is free".to_string(),
            |n| format!("{} are free", size(n)),
        );
        let n_ctx = fit.n_ctx;
        match fit.fits {
            Fits::Whole => {
                format!("yes, with a context of {n_ctx} tokens; it needs {needed}, {free}")
            }
            Fits::WithoutWeights => format!(
                "slowly: it needs {needed} and {free}, so weights are read from the file for each token"
            ),
            Fits::Layers { n, of } => format!(
                "in part: {n} of {of} layers with --gpu-layers auto; the whole needs {needed}, {free}"
            ),
        }
    }

    pub fn json(&self) -> Json {
        let fit = self.fit();
        let fits = match fit.map(|fit| fit.fits) {
            None => "no",
            Some(Fits::Whole) => "yes",
            Some(Fits::WithoutWeights) => "without_weights",
            Some(Fits::Layers { .. }) => "in_part",
        };
        let layers = match fit.map(|fit| fit.fits) {
            Some(Fits::Layers { n, .. }) => Some(n),
            _ => None,
        };
        json!({
            "id": self.id,
            "name": self.name,
            "fits": fits,
            "gpu_layers": layers,
            "ctx": fit.map(|fit| fit.n_ctx),
            "needed_bytes": fit.map(|fit| fit.needed_bytes),
            "free_bytes": fit.and_then(|fit| fit.free_bytes),
            "problem": self.problem().map(|(_, reason)| reason),
        })
    }
}
