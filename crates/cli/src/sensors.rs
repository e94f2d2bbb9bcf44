//! Which sensors a device has, and readings of them while work runs.

use std::time::{Duration, Instant};

use rocmforge_engine::Device;
use rocmforge_external::ExternalError;
use rocmforge_external::sampler::{EVERY, Places, Sampler, Source};
use rocmforge_gpu::DeviceId;
use rocmforge_profile::schema::Utilization;

/// How long the work runs before the first reading that counts: sensors report the mean of a second or so.
const BEFORE: Duration = Duration::from_secs(1);

/// How long readings count.
const READ: Duration = Duration::from_millis(1500);

/// The name of a GPU, and its sensors, or why they cannot be read; `None` for other devices.
pub fn of(device: &Device) -> Option<(String, Result<Source, ExternalError>)> {
    let Device::Gpu(gpu) = device else {
        return None;
    };
    let id = gpu.id.filter(|id| !matches!(id, DeviceId::Host(_)))?;
    let name = id.to_string();
    let address = rocmforge_gpu::pci_address(id, &gpu.open);
    let source = Source::of_gpu(&name, address.as_deref(), &Places::default());
    Some((name, source))
}

/// Repeats `run`, which returns the number of its tokens, and returns the readings and the energy per token. The inner
/// error is that of the gauge.
pub fn while_running<E>(
    source: &Source,
    mut run: impl FnMut() -> Result<usize, E>,
) -> Result<Result<Utilization, ExternalError>, E> {
    let sampler = match Sampler::start(source, EVERY) {
        Ok(sampler) => sampler,
        Err(error) => return Ok(Err(error)),
    };
    let mut run_for = |time: Duration| {
        let started = Instant::now();
        let mut n_tokens = 0;
        while started.elapsed() < time {
            n_tokens += run()?;
        }
        Ok((n_tokens, started))
    };
    run_for(BEFORE)?;
    let (n_tokens, started) = run_for(READ)?;
    let elapsed = started.elapsed();
    let found = sampler.finish_since(started);
    Ok(found.map(|found| found.per_token(n_tokens, elapsed)))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use rocmforge_external::sysfs;

    use super::*;

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
        let source = Source::Sysfs(sysfs::cards(root.path()).remove(0));
        let started = Instant::now();
        let mut runs = Vec::new();
        let found = while_running(&source, || {
            std::thread::sleep(Duration::from_millis(50));
            runs.push(started.elapsed());
            Ok::<_, ()>(8)
        });
        let found = found.unwrap().unwrap();
        assert_eq!(found.power_watts.unwrap().mean, 250.0);
        assert_eq!(found.clock_mhz.unwrap().mean, 2300.0);
        // The runs of the second part, which begins when a run has ended after a second.
        let first = runs.iter().position(|time| *time >= BEFORE).unwrap();
        let seconds = (runs[runs.len() - 1] - runs[first]).as_secs_f64();
        let n_tokens = 8 * (runs.len() - 1 - first);
        let joules = 250.0 * seconds / n_tokens as f64;
        let error = found.joules_per_token.unwrap() / joules - 1.0;
        assert!(error.abs() < 0.2, "{error}");
        assert_eq!(
            while_running(&source, || Err("stopped")).err(),
            Some("stopped")
        );
    }
}
