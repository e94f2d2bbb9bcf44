//! Reads the utilization of AMD GPUs from the amdgpu driver's files below `/sys/class/drm`, without any tool.
//!
//! The files are documented in the kernel's amdgpu documentation ("GPU Power/Thermal Controls and Monitoring", "Memory
//! Domains and Information"): `gpu_busy_percent`, `mem_info_vram_used` and `mem_info_vram_total` below `card*/device`,
//! `power1_average` (microwatts; newer chips have `power1_input`) and `temp1_input` (thousandths of a degree) below its
//! `hwmon/hwmon*`.

use std::fs::{self, File};
use std::io::Read as _;
use std::path::{Path, PathBuf};

use super::error::ExternalError;

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
}

/// Returns the AMD GPUs below `root` (`/sys`, except in tests) sorted by PCI address, as HIP numbers them.
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
            temperature: sensor("temp1_input").map(|thousandths| thousandths / 1e3),
        }
    }

    /// Returns the utilization in percent and the memory in use.
    ///
    /// # Errors
    /// If the driver reports no utilization.
    pub fn busy(&self) -> Result<(f64, Option<u64>), ExternalError> {
        let state = self.state();
        let busy = state
            .busy_percent
            .ok_or_else(|| ExternalError::Unavailable {
                source_name: format!("sysfs ({})", self.name),
                reason: format!(
                    "{} has no percentage; some chips need a newer kernel",
                    self.device.join("gpu_busy_percent").display()
                ),
            })?;
        Ok((busy, state.vram_used_bytes))
    }

    fn sensors(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.device.join("hwmon"));
        let dirs = entries.into_iter().flatten().flatten();
        let mut dirs: Vec<PathBuf> = dirs.map(|entry| entry.path()).collect();
        dirs.sort();
        dirs
    }
}

/// Reads the first page of a file, without the line end.
fn text(path: &Path) -> Option<String> {
    let mut text = String::new();
    let file = File::open(path).ok()?;
    file.take(MAX_BYTES).read_to_string(&mut text).ok()?;
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
        ];
        let newer: &[_] = &[
            ("vendor", "0x1002"),
            ("gpu_busy_percent", "garbage"),
            ("hwmon/hwmon2/power1_input", "12500000"),
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
        };
        assert_eq!(found[0].state(), all);
        assert_eq!(found[0].busy().unwrap(), (87.0, Some(6 << 30)));
        let little = CardState {
            power_watts: Some(12.5),
            ..CardState::default()
        };
        assert_eq!(found[1].state(), little);
        let error = found[1].busy().unwrap_err().to_string();
        assert!(
            error.contains("card0") && error.contains("gpu_busy_percent"),
            "{error}"
        );
        assert_eq!(cards(&dir.path().join("nothing")), []);
    }
}
