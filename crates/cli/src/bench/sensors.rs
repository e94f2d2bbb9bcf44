//! Power, temperature and clock of a GPU, read while a test runs again, so that reading does not disturb what is timed.

use std::time::{Duration, Instant};

use rocmforge_bench::BenchError;
use rocmforge_bench::requests::{Requests, Watch, Workload};
use rocmforge_engine::Device;
use rocmforge_external::sampler::{EVERY, Sampler, Source};
use rocmforge_gpu::DeviceId;
use rocmforge_profile::schema::Utilization;

use crate::output;

/// How long a test runs before its first reading: sensors report the mean of a second or so.
const BEFORE: Duration = Duration::from_secs(1);

/// How long it is read.
const READ: Duration = Duration::from_millis(1500);

/// The sensors of a GPU; `None` for other devices, or after a notice where the GPU's cannot be read.
pub fn of(device: &Device) -> Option<Source> {
    let Device::Gpu(gpu) = device else {
        return None;
    };
    let id = gpu.id.filter(|id| !matches!(id, DeviceId::Host(_)))?;
    match Source::of_backend(&id.to_string(), 1, &|name| std::env::var(name).ok()) {
        Ok(source) => Some(source),
        Err(error) => {
            output::note(&format!("notice: power is not measured: {error}"));
            None
        }
    }
}

/// Runs a workload of `n_tokens` again and reads the sensors. `None` if they failed, which a notice says.
pub fn read(
    source: &Source,
    requests: &mut Requests,
    (workload, n_tokens): (&Workload, usize),
    stop: &dyn Fn() -> bool,
) -> Result<Option<Utilization>, BenchError> {
    let mut run_for = |time: Duration| {
        let started = Instant::now();
        let mut n_runs = 0;
        while started.elapsed() < time {
            requests.run(workload, Watch::No, stop)?;
            n_runs += 1;
        }
        Ok::<_, BenchError>((n_runs * n_tokens, started.elapsed()))
    };
    run_for(BEFORE)?;
    let sampler = Sampler::start(source, EVERY);
    let (n_tokens, elapsed) = run_for(READ)?;
    match sampler.and_then(Sampler::finish) {
        Ok(found) => Ok(Some(found.per_token(n_tokens, elapsed))),
        Err(error) => {
            output::note(&format!("notice: power was not measured: {error}"));
            Ok(None)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;
    use std::sync::Arc;

    use rocmforge_engine::{EngineConfig, KvTokens};
    use rocmforge_gguf::{Gguf, LoadMode};
    use rocmforge_model::Model;

    use super::*;

    /// A GPU's files beside an engine that does not use it.
    #[test]
    fn energy_is_power_by_time_and_tokens() {
        let root = tempfile::tempdir().unwrap();
        let device = root.path().join("class/drm/card0/device");
        fs::create_dir_all(device.join("hwmon/hwmon1")).unwrap();
        for (file, text) in [
            ("vendor", "0x1002"),
            ("gpu_busy_percent", "98"),
            ("hwmon/hwmon1/power1_average", "250000000"),
            ("hwmon/hwmon1/freq1_input", "2300000000"),
        ] {
            fs::write(device.join(file), text).unwrap();
        }
        let source = Source::Sysfs {
            root: root.path().to_path_buf(),
            card: 0,
        };
        let file =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/forge-mini-Q4_K_M.gguf");
        let model = Model::load(Arc::new(Gguf::open(&file, LoadMode::Mmap).unwrap())).unwrap();
        let config = EngineConfig {
            n_ctx: Some(64),
            kv_tokens: KvTokens::Exactly(256),
            n_threads: Some(1),
            ..EngineConfig::default()
        };
        let mut requests = Requests::new(&model, &config, 0).unwrap();
        let workload = Workload {
            n_prompt: 0,
            n_gen: 4,
            n_depth: 0,
        };
        let started = Instant::now();
        let found = read(&source, &mut requests, (&workload, 4), &|| false);
        let elapsed = started.elapsed();
        let found = found.unwrap().unwrap();
        assert_eq!(found.power_watts.unwrap().mean, 250.0);
        assert_eq!(found.clock_mhz.unwrap().mean, 2300.0);
        // Tokens of the part that was read: between one run and as many as the CPU can do.
        let joules = found.joules_per_token.unwrap();
        let n_tokens = 250.0 * READ.as_secs_f64() / joules;
        assert!(joules > 0.0 && n_tokens <= 4.0 * 250.0 * elapsed.as_secs_f64() * 1e3);
        let stopped = read(&source, &mut requests, (&workload, 4), &|| true);
        assert!(matches!(stopped, Err(BenchError::Stopped)));
    }
}
