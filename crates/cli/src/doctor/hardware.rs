//! The GPUs of the machine, as the PCI bus lists them, whether or not a driver is installed.

use std::fs;
use std::path::Path;

use super::report::{Check, Status};
use super::root::Root;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Vendor {
    Amd,
    Nvidia,
}

/// A GPU on the PCI bus.
#[derive(Debug, PartialEq, Eq)]
pub struct PciGpu {
    pub vendor: Vendor,
    /// e.g. `0000:03:00.0`.
    pub address: String,
    /// e.g. `0x744c`.
    pub device: String,
    /// The kernel driver that is bound to it, if one is.
    pub driver: Option<String>,
}

const DEVICES: &str = "/sys/bus/pci/devices";

/// Returns the GPUs of AMD and NVIDIA, by address.
pub fn gpus(root: &Root) -> Vec<PciGpu> {
    let Ok(entries) = fs::read_dir(root.path(DEVICES)) else {
        return Vec::new();
    };
    let paths = entries.flatten().map(|entry| entry.path());
    let mut gpus: Vec<PciGpu> = paths.filter_map(|path| gpu(&path)).collect();
    gpus.sort_by(|a, b| a.address.cmp(&b.address));
    gpus
}

fn gpu(path: &Path) -> Option<PciGpu> {
    let read = |name: &str| Some(fs::read_to_string(path.join(name)).ok()?.trim().to_string());
    let class = read("class")?;
    // Display controllers, and processing accelerators such as the MI300X.
    if !class.starts_with("0x03") && !class.starts_with("0x12") {
        return None;
    }
    let vendor = match read("vendor")?.as_str() {
        "0x1002" => Vendor::Amd,
        "0x10de" => Vendor::Nvidia,
        _ => return None,
    };
    let driver = fs::read_link(path.join("driver")).ok();
    Some(PciGpu {
        vendor,
        address: path.file_name()?.to_string_lossy().into_owned(),
        device: read("device")?,
        driver: driver.and_then(|to| Some(to.file_name()?.to_string_lossy().into_owned())),
    })
}

/// Lists them.
pub fn found(gpus: &[PciGpu]) -> Check {
    let list: Vec<String> = gpus.iter().map(describe).collect();
    match list.is_empty() {
        true => Check::new(
            "gpus",
            Status::Skipped,
            "no GPU of AMD or NVIDIA on the PCI bus",
        ),
        false => Check::new("gpus", Status::Ok, list.join("; ")),
    }
}

fn describe(gpu: &PciGpu) -> String {
    let vendor = match gpu.vendor {
        Vendor::Amd => "AMD",
        Vendor::Nvidia => "NVIDIA",
    };
    let driver = gpu.driver.as_deref().unwrap_or("none");
    format!(
        "{vendor} {} at {}, driver {driver}",
        gpu.device, gpu.address
    )
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn finds_gpus_on_the_bus() {
        let folder = tempfile::tempdir().unwrap();
        let root = Root(folder.path().into());
        assert_eq!(gpus(&root), []);
        for (address, class, vendor, device, driver) in [
            (
                "0000:0b:00.0",
                "0x030000",
                "0x1002",
                "0x744c",
                Some("amdgpu"),
            ),
            ("0000:0b:00.1", "0x040300", "0x1002", "0xab30", None),
            ("0000:03:00.0", "0x120000", "0x1002", "0x74a1", None),
            (
                "0000:01:00.0",
                "0x030200",
                "0x10de",
                "0x2330",
                Some("nvidia"),
            ),
            ("0000:00:02.0", "0x030000", "0x8086", "0x4680", Some("i915")),
        ] {
            let path = root.path(DEVICES).join(address);
            fs::create_dir_all(&path).unwrap();
            for (name, value) in [("class", class), ("vendor", vendor), ("device", device)] {
                fs::write(path.join(name), format!("{value}\n")).unwrap();
            }
            if let Some(driver) = driver {
                symlink(
                    format!("../../../bus/pci/drivers/{driver}"),
                    path.join("driver"),
                )
                .unwrap();
            }
        }
        let check = found(&gpus(&root));
        assert_eq!(
            check.detail,
            "NVIDIA 0x2330 at 0000:01:00.0, driver nvidia; AMD 0x74a1 at 0000:03:00.0, driver none; \
             AMD 0x744c at 0000:0b:00.0, driver amdgpu"
        );
    }
}
