//! Reads the utilization of AMD GPUs from the amdgpu driver's files below `/sys/class/drm`, without any tool.
//!
//! The files are documented in the kernel's amdgpu documentation ("GPU Power/Thermal Controls and Monitoring", "Memory
//! Domains and Information"): `gpu_busy_percent`, `mem_info_vram_used` and `mem_info_vram_total` below `card*/device`,
//! `power1_average` (microwatts; newer chips have `power1_input`), `temp1_input` (thousandths of a degree, at the edge;
//! Instinct MI300 and newer have only `temp2_input`, of the hot spot) and `freq1_input` (hertz) below its `hwmon/hwmon*`;
//! `gpu_metrics`, a struct of `kgd_pp_interface.h`, for the limits of its clock.

use std::fs::{self, File};
use std::io::Read as _;
use std::path::{Path, PathBuf};

use super::error::ExternalError;
use super::sampler::ClockLimits;

/// PCI vendor id of AMD.
const AMD: &str = "0x1002";

/// A sysfs file is at most one page.
const MAX_BYTES: u64 = 4096;

/// A GPU of the amdgpu driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Card {
    /// Name such as `card0`.
    pub name: String,
    /// PCI address such as `0000:03:00.0`, or the card's name if the system has no such link.
    pub pci: String,
    device: PathBuf,
}

/// Current readings of a card.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct CardState {
    pub busy_percent: Option<f64>,
    pub vram_used_bytes: Option<u64>,
    pub vram_total_bytes: Option<u64>,
    pub power_watts: Option<f64>,
    /// Edge temperature in degrees Celsius.
    pub temperature: Option<f64>,
    /// Of the compute units.
    pub clock_mhz: Option<f64>,
    pub limits: ClockLimits,
}

/// Returns the AMD GPUs below `root` (`/sys`, except in tests) sorted by PCI address.
pub fn cards(root: &Path) -> Vec<Card> {
    let Ok(entries) = fs::read_dir(root.join("class/drm")) else {
        return Vec::new();
    };
    let names = entries.flatten().map(|entry| entry.file_name());
    let names = names.filter_map(|name| name.into_string().ok());
    let mut cards: Vec<Card> = names
        .filter_map(|name| {
            // `card0-DP-1` is a connector.
            let number = name.strip_prefix("card")?;
            number.parse::<u32>().ok()?;
            let device = root.join("class/drm").join(&name).join("device");
            if text(&device.join("vendor"))? != AMD {
                return None;
            }
            let real = fs::canonicalize(&device).ok();
            let pci = real.as_deref().and_then(Path::file_name);
            let pci = pci
                .and_then(|pci| pci.to_str())
                .filter(|pci| pci.contains(':'));
            Some(Card {
                pci: pci.unwrap_or(&name).to_string(),
                name,
                device,
            })
        })
        .collect();
    cards.sort_by(|a, b| a.pci.cmp(&b.pci));
    cards
}

impl Card {
    /// Reads the available values.
    pub fn state(&self) -> CardState {
        let number = |file: &str| text(&self.device.join(file))?.parse::<u64>().ok();
        let sensors = self.sensors();
        let sensor = |file: &str| {
            let read = |dir: &PathBuf| text(&dir.join(file))?.parse::<f64>().ok();
            sensors.iter().find_map(read)
        };
        CardState {
            busy_percent: number("gpu_busy_percent")
                .filter(|percent| *percent <= 100)
                .map(|percent| percent as f64),
            vram_used_bytes: number("mem_info_vram_used"),
            vram_total_bytes: number("mem_info_vram_total"),
            power_watts: sensor("power1_average")
                .or_else(|| sensor("power1_input"))
                .map(|microwatts| microwatts / 1e6),
            temperature: sensor("temp1_input")
                .or_else(|| sensor("temp2_input"))
                .map(|thousandths| thousandths / 1e3),
            clock_mhz: sensor("freq1_input").map(|hertz| hertz / 1e6),
            limits: bytes(&self.device.join("gpu_metrics"))
                .and_then(|metrics| throttle_status(&metrics))
                .map_or(ClockLimits::default(), ClockLimits::of_amd),
        }
    }

    /// Returns the utilization in percent.
    ///
    /// # Errors
    /// If the driver reports none in this state.
    pub fn busy(&self, state: &CardState) -> Result<f64, ExternalError> {
        state
            .busy_percent
            .ok_or_else(|| ExternalError::Unavailable {
                source_name: format!("sysfs ({})", self.name),
                reason: format!(
                    "{} has no percentage; some chips need a newer kernel",
                    self.device.join("gpu_busy_percent").display()
                ),
            })
    }

    fn sensors(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.device.join("hwmon"));
        let dirs = entries.into_iter().flatten().flatten();
        let mut dirs: Vec<PathBuf> = dirs.map(|entry| entry.path()).collect();
        dirs.sort();
        dirs
    }
}

/// `indep_throttle_status` of `gpu_metrics_v1_3`, which RDNA's discrete cards have. Other versions have no such field, or
/// bits that differ by chip.
fn throttle_status(metrics: &[u8]) -> Option<u64> {
    const FORMAT_AND_CONTENT: [u8; 2] = [1, 3];
    const AT: usize = 112;
    if metrics.get(2..4)? != FORMAT_AND_CONTENT {
        return None;
    }
    let status = metrics.get(AT..AT + 8)?;
    let status = u64::from_le_bytes(status.try_into().ok()?);
    // What the chip does not report.
    (status != u64::MAX).then_some(status)
}

/// Reads the first page of a file.
fn bytes(path: &Path) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let file = File::open(path).ok()?;
    file.take(MAX_BYTES).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

/// Reads the first page of a text, without the line end.
fn text(path: &Path) -> Option<String> {
    let text = String::from_utf8(bytes(path)?).ok()?;
    Some(text.trim().to_string())
}

#[cfg(all(test, unix))]
pub(super) mod tests {
    use super::*;

    /// Names and contents of files below a device.
    type Files<'a> = &'a [(&'a str, &'a str)];

    /// Creates a tree as the kernel does: PCI devices, and links to them below `class/drm`.
    pub(crate) fn tree(root: &Path, cards: &[(&str, &str, Files<'_>)]) {
        let drm = root.join("class/drm");
        fs::create_dir_all(drm.join("card0-DP-1")).unwrap();
        fs::create_dir_all(drm.join("renderD128")).unwrap();
        fs::write(drm.join("version"), "drm 1.1.0 20060810\n").unwrap();
        for (card, pci, files) in cards {
            let device = root.join("devices/pci0000:00").join(pci);
            for (file, content) in *files {
                let file = device.join(file);
                fs::create_dir_all(file.parent().unwrap()).unwrap();
                fs::write(file, format!("{content}\n")).unwrap();
            }
            fs::create_dir_all(drm.join(card)).unwrap();
            std::os::unix::fs::symlink(&device, drm.join(card).join("device")).unwrap();
        }
    }

    #[test]
    fn lists_amd_cards_in_bus_order() {
        let dir = tempfile::tempdir().unwrap();
        let rx: &[_] = &[
            ("vendor", "0x1002"),
            ("gpu_busy_percent", "87"),
            ("mem_info_vram_used", "6442450944"),
            ("mem_info_vram_total", "21458059264"),
            ("hwmon/hwmon4/power1_average", "251000000"),
            ("hwmon/hwmon4/temp1_input", "61000"),
            ("hwmon/hwmon4/freq1_input", "2304000000"),
        ];
        let newer: &[_] = &[
            ("vendor", "0x1002"),
            ("gpu_busy_percent", "garbage"),
            ("hwmon/hwmon2/power1_input", "12500000"),
            ("hwmon/hwmon2/temp2_input", "48000"),
        ];
        tree(
            dir.path(),
            &[
                ("card0", "0000:83:00.0", newer),
                ("card1", "0000:00:02.0", &[("vendor", "0x8086")]),
                ("card2", "0000:03:00.0", rx),
            ],
        );
        let found = cards(dir.path());
        let names: Vec<_> = found
            .iter()
            .map(|c| (c.name.as_str(), c.pci.as_str()))
            .collect();
        assert_eq!(
            names,
            [("card2", "0000:03:00.0"), ("card0", "0000:83:00.0")]
        );
        let all = CardState {
            busy_percent: Some(87.0),
            vram_used_bytes: Some(6 << 30),
            vram_total_bytes: Some(21_458_059_264),
            power_watts: Some(251.0),
            temperature: Some(61.0),
            clock_mhz: Some(2304.0),
            limits: ClockLimits::default(),
        };
        assert_eq!(found[0].state(), all);
        assert_eq!(found[0].busy(&all).unwrap(), 87.0);
        // Version 1.3, of 120 bytes, whose last eight say what throttles: PPT0 and the hot spot.
        let mut metrics = [0xff; 120];
        metrics[..4].copy_from_slice(&[120, 0, 1, 3]);
        metrics[112..].copy_from_slice(&(1_u64 | 1 << 36).to_le_bytes());
        let file = found[0].device.join("gpu_metrics");
        let limits_of = |metrics: &[u8]| {
            fs::write(&file, metrics).unwrap();
            found[0].state().limits
        };
        let limits = limits_of(&metrics);
        assert_eq!(
            (limits.power, limits.temperature, limits.current),
            (Some(true), Some(true), Some(false))
        );
        assert_eq!(limits_of(&metrics[..119]), ClockLimits::default());
        metrics[112..].fill(0xff);
        assert_eq!(limits_of(&metrics), ClockLimits::default());
        metrics[112..].fill(1);
        metrics[3] = 4;
        assert_eq!(limits_of(&metrics), ClockLimits::default());
        // Without a sensor at the edge, the hot spot's.
        let little = CardState {
            power_watts: Some(12.5),
            temperature: Some(48.0),
            ..CardState::default()
        };
        assert_eq!(found[1].state(), little);
        let error = found[1].busy(&little).unwrap_err().to_string();
        assert!(
            error.contains("card0") && error.contains("gpu_busy_percent"),
            "{error}"
        );
        assert_eq!(cards(&dir.path().join("nothing")), []);
    }
}
