//! The memory of each GPU as its runtime, the kernel and the system see it, joined by the PCI address. On an APU they
//! differ: the firmware's part (VRAM), what the GPU may map (GTT), and what the system has left.

use std::fs;

use rocmforge_runtime::gpu::{DeviceInfo, Survey};

use super::hardware::PciGpu;
use super::report::{Check, Status};
use super::root::Root;
use crate::output::size;

/// The memory of an open device.
pub fn of_device(root: &Root, info: &DeviceInfo) -> Check {
    let mut facts = Vec::new();
    if let Some(address) = &info.pci_address {
        facts.push(place(root, address));
    }
    let free = info
        .free_bytes
        .map(|free| format!("{} free of ", size(free)));
    facts.push(format!(
        "the runtime says {}{}",
        free.unwrap_or_default(),
        size(info.total_bytes)
    ));
    facts.extend(
        info.pci_address
            .as_ref()
            .and_then(|address| of_kernel(root, address)),
    );
    if info.integrated {
        facts.extend(of_system(root));
    }
    Check::new(format!("{} memory", info.id), Status::Ok, facts.join("; "))
}

/// The memory of GPUs on the PCI bus that no runtime lists.
pub fn of_unlisted(root: &Root, gpus: &[PciGpu], survey: &Survey) -> Vec<Check> {
    let is_seen = |gpu: &PciGpu| {
        let mut devices = survey.devices.iter();
        devices.any(|info| info.pci_address.as_ref() == Some(&gpu.address))
    };
    let unlisted = gpus.iter().filter(|gpu| !is_seen(gpu));
    let check = |gpu: &PciGpu| {
        let memory = of_kernel(root, &gpu.address)?;
        let name = format!("{} memory", gpu.address);
        let detail = format!(
            "{}; no runtime lists this GPU; {memory}",
            place(root, &gpu.address)
        );
        Some(Check::new(name, Status::Ok, detail))
    };
    unlisted.filter_map(check).collect()
}

fn folder(address: &str) -> String {
    format!("/sys/bus/pci/devices/{address}")
}

/// The address and the names in `/dev/dri`, such as `0000:03:00.0 (card1, renderD128)`.
fn place(root: &Root, address: &str) -> String {
    let entries = fs::read_dir(root.path(&format!("{}/drm", folder(address))));
    let names = entries.into_iter().flatten().flatten();
    let names = names.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let mut names: Vec<String> = names
        .filter(|name| name.starts_with("card") || name.starts_with("renderD"))
        .collect();
    names.sort();
    match names.is_empty() {
        true => address.to_string(),
        false => format!("{address} ({})", names.join(", ")),
    }
}

/// What the driver amdgpu says in sysfs.
fn of_kernel(root: &Root, address: &str) -> Option<String> {
    let bytes = |name: &str| -> Option<u64> {
        let file = format!("{}/mem_info_{name}", folder(address));
        root.read(&file)?.parse().ok()
    };
    let shown = |label: &str, name: &str| {
        let total = bytes(&format!("{name}_total"))?;
        let used = bytes(&format!("{name}_used")).map(|used| format!("{} used of ", size(used)));
        Some(format!(
            "{label} {}{}",
            used.unwrap_or_default(),
            size(total)
        ))
    };
    let parts = [shown("VRAM", "vram"), shown("GTT", "gtt")];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    (!parts.is_empty()).then(|| format!("the kernel says {}", parts.join(", ")))
}

fn of_system(root: &Root) -> Option<String> {
    let text = root.read("/proc/meminfo")?;
    let bytes = |name: &str| -> Option<u64> {
        let mut lines = text.lines().filter_map(|line| line.split_once(':'));
        let value = lines.find(|(key, _)| *key == name)?.1;
        let kib: u64 = value.trim().strip_suffix("kB")?.trim().parse().ok()?;
        kib.checked_mul(1024)
    };
    let (free, all) = (bytes("MemAvailable")?, bytes("MemTotal")?);
    Some(format!(
        "the system has {} available of {}",
        size(free),
        size(all)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::hardware::Vendor;

    fn info(id: &str, address: &str, integrated: bool) -> DeviceInfo {
        DeviceInfo {
            id: id.parse().unwrap(),
            name: "Some GPU".into(),
            architecture: "gfx1151".into(),
            total_bytes: 16 << 30,
            free_bytes: Some(15 << 30),
            integrated,
            pci_address: Some(address.into()),
            n_compute_units: 40,
            max_shared_bytes: 65536,
            driver_version: String::new(),
            runtime_version: String::new(),
            image: Ok("gfx1151".into()),
        }
    }

    fn gpu(address: &str) -> PciGpu {
        PciGpu {
            vendor: Vendor::Amd,
            address: address.into(),
            device: "0x1586".into(),
            driver: Some("amdgpu".into()),
        }
    }

    #[test]
    fn runtime_kernel_and_system_are_joined_by_the_pci_address() {
        let folder = tempfile::tempdir().unwrap();
        let root = Root(folder.path().into());
        let write = |path: &str, text: &str| {
            let path = root.path(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let apu = "/sys/bus/pci/devices/0000:c5:00.0";
        write(&format!("{apu}/mem_info_vram_total"), "536870912\n");
        write(&format!("{apu}/mem_info_vram_used"), "268435456\n");
        write(&format!("{apu}/mem_info_gtt_total"), "103079215104\n");
        write(&format!("{apu}/drm/renderD128/dev"), "");
        write(&format!("{apu}/drm/card1/dev"), "");
        write(
            "/sys/bus/pci/devices/0000:03:00.0/mem_info_vram_total",
            "21474836480\n",
        );
        write(
            "/proc/meminfo",
            "MemTotal: 131072000 kB\nMemAvailable: 125829120 kB\n",
        );
        let survey = Survey {
            devices: vec![info("hip:0", "0000:c5:00.0", true)],
            ..Survey::default()
        };
        let gpus = [gpu("0000:03:00.0"), gpu("0000:c5:00.0")];
        let checks = [of_device(&root, &survey.devices[0])].into_iter();
        let lines: Vec<String> = checks
            .chain(of_unlisted(&root, &gpus, &survey))
            .map(|check| format!("{}: {}", check.name, check.detail))
            .collect();
        assert_eq!(
            lines,
            [
                "hip:0 memory: 0000:c5:00.0 (card1, renderD128); the runtime says 15.0 GiB free of 16.0 GiB; the kernel says \
                 VRAM 256.0 MiB used of 512.0 MiB, GTT 96.0 GiB; the system has 120.0 GiB available of 125.0 GiB",
                "0000:03:00.0 memory: 0000:03:00.0; no runtime lists this GPU; the kernel says VRAM 20.0 GiB",
            ]
        );
    }

    #[test]
    fn nothing_can_be_read() {
        let folder = tempfile::tempdir().unwrap();
        let root = Root(folder.path().into());
        let info = DeviceInfo {
            pci_address: None,
            free_bytes: None,
            ..info("cuda:0", "", true)
        };
        assert_eq!(of_device(&root, &info).detail, "the runtime says 16.0 GiB");
        let unlisted = of_unlisted(&root, &[gpu("0000:03:00.0")], &Survey::default());
        assert_eq!(unlisted, []);
    }
}
