//! Power, temperature and clock of a server's GPU, read in the background for its metrics.

use std::sync::Arc;
use std::time::Duration;

use rocmforge_engine::Device;
use rocmforge_external::ExternalError;
use rocmforge_external::sampler::{Follower, Source};
use rocmforge_server::{SensorReading, Sensors};

use super::log;
use crate::sensors;

/// Time between readings. Sensors report the mean of a second or so.
const EVERY: Duration = Duration::from_secs(1);

/// Starts reading the sensors of a GPU. `None` for other devices, or after a notice where the GPU's cannot be read.
pub fn follow(device: &Device) -> Option<Arc<dyn Sensors>> {
    let (device, source) = sensors::of(device)?;
    match source {
        Ok(source) => Some(Arc::new(Followed::start(device, source))),
        Err(error) => {
            log::note(&not_told(&error));
            None
        }
    }
}

fn not_told(why: &ExternalError) -> String {
    format!("notice: metrics do not tell power and clock: {why}")
}

#[derive(Debug)]
struct Followed {
    device: String,
    follower: Follower,
}

impl Followed {
    fn start(device: String, source: Source) -> Followed {
        let tell = |error: &ExternalError| log::note(&not_told(error));
        Followed {
            device,
            follower: Follower::start(source, EVERY, tell),
        }
    }
}

impl Sensors for Followed {
    fn device(&self) -> &str {
        &self.device
    }

    fn newest(&self) -> SensorReading {
        let newest = self.follower.newest().unwrap_or_default();
        SensorReading {
            power_watts: newest.power_watts,
            temperature: newest.temperature,
            clock_mhz: newest.clock_mhz,
            clock_limits: newest.limits.known().collect(),
            joules: self.follower.joules(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::Instant;

    use rocmforge_external::sysfs;

    use super::*;

    #[test]
    fn a_gpu_is_read_in_the_background() {
        assert!(follow(&Device::Cpu).is_none());
        let root = tempfile::tempdir().unwrap();
        let device = root.path().join("class/drm/card0/device");
        fs::create_dir_all(device.join("hwmon/hwmon1")).unwrap();
        // Version 1.3 of gpu_metrics; the last eight bytes say that the power limit holds the clock down.
        let mut metrics = [0; 120];
        metrics[..4].copy_from_slice(&[120, 0, 1, 3]);
        metrics[112] = 1;
        fs::write(device.join("gpu_metrics"), metrics).unwrap();
        for (file, text) in [
            ("vendor", "0x1002"),
            ("gpu_busy_percent", "98"),
            ("hwmon/hwmon1/power1_average", "250000000"),
            ("hwmon/hwmon1/freq1_input", "2300000000"),
        ] {
            fs::write(device.join(file), text).unwrap();
        }
        let source = Source::Sysfs(sysfs::cards(root.path()).remove(0));
        let followed = Followed::start("hip:0".to_string(), source);
        let started = Instant::now();
        while followed.newest() == SensorReading::default() {
            assert!(started.elapsed() < Duration::from_secs(60));
            std::thread::sleep(Duration::from_millis(5));
        }
        let expected = SensorReading {
            power_watts: Some(250.0),
            temperature: None,
            clock_mhz: Some(2300.0),
            clock_limits: vec![
                ("power", true),
                ("temperature", false),
                ("current", false),
                ("hardware", false),
            ],
            joules: Some(0.0),
        };
        let found = followed.newest();
        // A second reading may have come.
        let joules = found.joules.map(|joules| joules.min(0.0));
        assert_eq!(SensorReading { joules, ..found }, expected);
        assert_eq!(followed.device(), "hip:0");
    }
}
