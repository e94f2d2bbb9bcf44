//! What stands between the user and the GPUs: kernel drivers, device files, and groups.

use std::fs::{self, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use super::groups;
use super::hardware::{PciGpu, Vendor};
use super::report::{Check, Status};
use super::root::Root;

/// Checks the kernel drivers of the GPUs, and whether this user may open AMD's device files.
pub fn checks(root: &Root, gpus: &[PciGpu]) -> Vec<Check> {
    let of = |vendor| gpus.iter().filter(move |gpu| gpu.vendor == vendor);
    let mut checks = Vec::new();
    if of(Vendor::Amd).next().is_some() {
        checks.push(amdgpu(root, of(Vendor::Amd)));
        let files = device_files(root);
        let groups = groups::groups(root, files.status);
        checks.extend([files, groups]);
    }
    if of(Vendor::Nvidia).next().is_some() {
        checks.push(nvidia(root, of(Vendor::Nvidia)));
    }
    checks
}

fn amdgpu<'a>(root: &Root, gpus: impl Iterator<Item = &'a PciGpu>) -> Check {
    const NAME: &str = "amd driver";
    let others = unbound(gpus, "amdgpu");
    if !root.path("/sys/module/amdgpu").exists() {
        return Check::new(NAME, Status::Failed, "the kernel module amdgpu is not loaded").advice(
            "load it: sudo modprobe amdgpu; if that fails, see the kernel's log: sudo dmesg | grep amdgpu",
        );
    }
    if !others.is_empty() {
        return Check::new(NAME, Status::Warning, others.join("; ")).advice(
            "give them to amdgpu if they shall run models; if that fails: sudo dmesg | grep amdgpu",
        );
    }
    let version = root.read("/sys/module/amdgpu/version");
    let detail = match version {
        Some(version) => format!("amdgpu {version}"),
        None => "amdgpu of the kernel".into(),
    };
    Check::new(NAME, Status::Ok, detail)
}

fn nvidia<'a>(root: &Root, gpus: impl Iterator<Item = &'a PciGpu>) -> Check {
    const NAME: &str = "nvidia driver";
    let others = unbound(gpus, "nvidia");
    let version = root.read("/proc/driver/nvidia/version");
    match version.as_deref().and_then(|text| text.lines().next()) {
        None => Check::new(NAME, Status::Failed, "NVIDIA's kernel driver is not loaded").advice(
            "install NVIDIA's driver, version 525 or newer, or load it: sudo modprobe nvidia; a container needs --gpus all",
        ),
        Some(_) if !others.is_empty() => Check::new(NAME, Status::Warning, others.join("; "))
            .advice("bind NVIDIA's driver to the GPUs that shall run models"),
        Some(version) => Check::new(NAME, Status::Ok, version),
    }
}

/// The GPUs that another driver has, or none.
fn unbound<'a>(gpus: impl Iterator<Item = &'a PciGpu>, wanted: &str) -> Vec<String> {
    let others = gpus.filter(|gpu| gpu.driver.as_deref() != Some(wanted));
    let describe = |gpu: &PciGpu| match &gpu.driver {
        Some(driver) => format!("{} is run by {driver}, not {wanted}", gpu.address),
        None => format!("{} has no driver", gpu.address),
    };
    others.map(describe).collect()
}

/// Whether the process may read and write /dev/kfd and the render nodes.
fn device_files(root: &Root) -> Check {
    const NAME: &str = "amd device files";
    let kfd = root.path("/dev/kfd");
    if !kfd.exists() {
        return Check::new(NAME, Status::Failed, "/dev/kfd does not exist").advice(
            "in a container, pass the devices in: --device /dev/kfd --device /dev/dri; else the kernel lacks \
             CONFIG_HSA_AMD",
        );
    }
    let render = render_nodes(root);
    if render.is_empty() {
        return Check::new(NAME, Status::Failed, "there is no /dev/dri/renderD*")
            .advice("in a container, pass the devices in: --device /dev/kfd --device /dev/dri");
    }
    let denied: Vec<String> = std::iter::once(kfd)
        .chain(render)
        .filter_map(|path| denial(root, &path))
        .collect();
    match denied.is_empty() {
        true => Check::new(NAME, Status::Ok, "/dev/kfd and /dev/dri are open to this user"),
        false => Check::new(NAME, Status::Failed, denied.join("; ")).advice(
            "join the groups: sudo usermod -aG render,video \"$USER\", then log in again; in a container add \
             --group-add with the numbers above",
        ),
    }
}

/// The render nodes of AMD's GPUs, and those of which the vendor is not known.
fn render_nodes(root: &Root) -> Vec<PathBuf> {
    let entries = fs::read_dir(root.path("/dev/dri")).into_iter().flatten();
    let is_render = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let vendor = root.read(&format!("/sys/class/drm/{name}/device/vendor"));
        name.starts_with("renderD") && vendor.is_none_or(|vendor| vendor == "0x1002")
    };
    let mut nodes: Vec<PathBuf> = entries
        .flatten()
        .map(|entry| entry.path())
        .filter(is_render)
        .collect();
    nodes.sort();
    nodes
}

/// Why a file cannot be opened, if it cannot.
fn denial(root: &Root, path: &Path) -> Option<String> {
    let error = OpenOptions::new().read(true).write(true).open(path).err()?;
    let shown = format!("/{}", path.strip_prefix(&root.0).unwrap_or(path).display());
    let shown = shown.replace("//", "/");
    Some(match (error.kind(), fs::metadata(path)) {
        (ErrorKind::PermissionDenied, Ok(file)) => {
            let group = groups::name_of(root, file.gid());
            let group = group.map(|name| format!("{name}, ")).unwrap_or_default();
            format!("no permission for {shown} (group {group}{})", file.gid())
        }
        _ => format!("{shown}: {error}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn amd(driver: Option<&str>) -> PciGpu {
        PciGpu {
            vendor: Vendor::Amd,
            address: "0000:03:00.0".into(),
            device: "0x744c".into(),
            driver: driver.map(Into::into),
        }
    }

    /// Of all but the groups, which have tests of their own.
    fn states(checks: &[Check]) -> Vec<(Status, &str)> {
        let mut states = Vec::new();
        for check in checks.iter().filter(|check| check.name != "groups") {
            states.push((check.status, check.detail.as_str()));
        }
        states
    }

    #[test]
    fn says_what_is_missing_for_an_amd_gpu() {
        let folder = tempfile::tempdir().unwrap();
        let root = Root(folder.path().into());
        assert!(
            checks(&root, &[]).is_empty(),
            "nothing to check without GPUs"
        );
        let found = checks(&root, &[amd(None)]);
        assert_eq!(
            states(&found),
            [
                (Status::Failed, "the kernel module amdgpu is not loaded"),
                (Status::Failed, "/dev/kfd does not exist"),
            ]
        );
        let make = |path: &str| {
            let path = root.path(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "6.12.12\n").unwrap();
        };
        make("/sys/module/amdgpu/version");
        make("/dev/kfd");
        let found = checks(&root, &[amd(Some("vfio-pci"))]);
        assert_eq!(
            states(&found),
            [
                (
                    Status::Warning,
                    "0000:03:00.0 is run by vfio-pci, not amdgpu"
                ),
                (Status::Failed, "there is no /dev/dri/renderD*"),
            ]
        );
        make("/dev/dri/card0");
        // That of another vendor is none.
        make("/dev/dri/renderD129");
        make("/sys/class/drm/renderD129/device/vendor");
        fs::write(
            root.path("/sys/class/drm/renderD129/device/vendor"),
            "0x10de\n",
        )
        .unwrap();
        assert_eq!(checks(&root, &[amd(None)])[1].detail, found[1].detail);
        make("/dev/dri/renderD128");
        let found = checks(&root, &[amd(Some("amdgpu"))]);
        assert_eq!(
            states(&found),
            [
                (Status::Ok, "amdgpu 6.12.12"),
                (Status::Ok, "/dev/kfd and /dev/dri are open to this user"),
            ]
        );
        // A folder cannot be opened for writing, whoever asks.
        fs::remove_file(root.path("/dev/kfd")).unwrap();
        fs::create_dir(root.path("/dev/kfd")).unwrap();
        let found = checks(&root, &[amd(Some("amdgpu"))]);
        assert_eq!(found[1].status, Status::Failed);
        assert!(
            found[1].detail.starts_with("/dev/kfd: "),
            "{}",
            found[1].detail
        );
    }

    #[test]
    fn nvidia_without_its_driver_fails() {
        let folder = tempfile::tempdir().unwrap();
        let root = Root(folder.path().into());
        let gpu = PciGpu {
            vendor: Vendor::Nvidia,
            driver: Some("nouveau".into()),
            ..amd(None)
        };
        let found = checks(&root, &[gpu]);
        assert_eq!(
            states(&found),
            [(Status::Failed, "NVIDIA's kernel driver is not loaded")]
        );
    }
}
