//! Devices: their names on the command line, the facts their drivers report, and the image of this build each one runs.

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use crate::driver::api::Vendor;
use crate::driver::libraries::HipFolders;
use crate::driver::{self, Driver, Facts};
use crate::error::GpuError;
use crate::image::images;
use crate::variant::Variants;

/// A GPU generation that the CPU emulator imitates: its matrix units and wave size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Persona {
    Gfx10,
    Gfx11,
    Gfx12,
    /// Waves of 64.
    Cdna,
    Nv,
    /// The kernels of [`Persona::Gfx10`] without checks of memory accesses: for tests of models, two to three times as fast.
    Quick,
}

impl Persona {
    pub const ALL: [Persona; 6] = [
        Persona::Gfx10,
        Persona::Gfx11,
        Persona::Gfx12,
        Persona::Cdna,
        Persona::Nv,
        Persona::Quick,
    ];

    /// `gfx10`, `gfx11`, `gfx12`, `cdna`, `nv` or `quick`.
    pub fn name(self) -> &'static str {
        match self {
            Persona::Gfx10 => "gfx10",
            Persona::Gfx11 => "gfx11",
            Persona::Gfx12 => "gfx12",
            Persona::Cdna => "cdna",
            Persona::Nv => "nv",
            Persona::Quick => "quick",
        }
    }

    /// The imitated GPU, for device names.
    pub(crate) fn describe(self) -> &'static str {
        match self {
            Persona::Gfx10 => "an AMD RDNA2 GPU",
            Persona::Gfx11 => "an AMD RDNA3 GPU",
            Persona::Gfx12 => "an AMD RDNA4 GPU",
            Persona::Cdna => "an AMD CDNA GPU",
            Persona::Nv => "an NVIDIA GPU",
            Persona::Quick => "an AMD RDNA2 GPU, without checks",
        }
    }
}

impl fmt::Display for Persona {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A device: `hip:0`, `cuda:1`, `host:gfx11`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DeviceId {
    /// Index of an AMD GPU among those HIP lists.
    Hip(u32),
    /// Index of an NVIDIA GPU among those CUDA lists.
    Cuda(u32),
    /// The CPU emulator, for tests.
    Host(Persona),
}

impl DeviceId {
    /// The device with this number, of a vendor whose devices are counted.
    pub(crate) fn of(vendor: Vendor, ordinal: u32) -> DeviceId {
        match vendor {
            Vendor::Hip => DeviceId::Hip(ordinal),
            Vendor::Cuda => DeviceId::Cuda(ordinal),
            Vendor::Host => unreachable!("emulated GPUs have names"),
        }
    }

    pub(crate) fn vendor(self) -> Vendor {
        match self {
            DeviceId::Hip(_) => Vendor::Hip,
            DeviceId::Cuda(_) => Vendor::Cuda,
            DeviceId::Host(_) => Vendor::Host,
        }
    }

    pub(crate) fn ordinal(self) -> u32 {
        match self {
            DeviceId::Hip(n) | DeviceId::Cuda(n) => n,
            DeviceId::Host(persona) => persona as u32,
        }
    }
}

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DeviceId::Hip(n) => write!(f, "hip:{n}"),
            DeviceId::Cuda(n) => write!(f, "cuda:{n}"),
            DeviceId::Host(persona) => write!(f, "host:{persona}"),
        }
    }
}

impl FromStr for DeviceId {
    type Err = String;

    /// Parses `hip:N`, `cuda:N` or `host:PERSONA`. N defaults to 0, the persona to the first one in this build.
    fn from_str(text: &str) -> Result<DeviceId, String> {
        let (kind, which) = text.split_once(':').unwrap_or((text, ""));
        let number = || match which {
            "" => Ok(0),
            which => which
                .parse()
                .map_err(|_| format!("{which:?} is not a device number")),
        };
        match kind {
            "hip" => Ok(DeviceId::Hip(number()?)),
            "cuda" => Ok(DeviceId::Cuda(number()?)),
            "host" if which.is_empty() => {
                let built = |p: &Persona| has_image(&format!("host-{p}"));
                let first = Persona::ALL.into_iter().find(built);
                Ok(DeviceId::Host(first.unwrap_or(Persona::Gfx11)))
            }
            "host" => {
                let persona = Persona::ALL.into_iter().find(|p| p.name() == which);
                let persona = persona.ok_or_else(|| {
                    format!("{which:?} is not one of gfx10, gfx11, gfx12, cdna, nv, quick")
                })?;
                Ok(DeviceId::Host(persona))
            }
            _ => Err(format!(
                "{text:?} is not a device such as hip:0, cuda:0 or host"
            )),
        }
    }
}

/// Options for opening devices. The defaults suit normal use.
#[derive(Clone, Debug, Default)]
pub struct OpenOptions {
    /// Image to run instead of the best one for the device.
    pub image: Option<String>,
    /// Kernel variants to run instead of those that launches would choose.
    pub variants: Variants,
    /// Limit on the bytes of all buffers; `None` for what the device has.
    pub memory_bytes: Option<u64>,
    /// HIP library to load instead of searching for it ([`hip_libraries`](crate::hip_libraries)).
    pub hip_library: Option<PathBuf>,
    /// CUDA library to load instead of searching the usual places.
    pub cuda_library: Option<PathBuf>,
    /// Where HIP may be beside `/opt`.
    pub hip_folders: Arc<HipFolders>,
    /// The profiler that operations are named for ([`Gpu::range`](crate::Gpu::range)), if they are.
    pub ranges: Option<Arc<RangeTool>>,
}

/// The profiler that runs this program.
#[derive(Clone, Debug, Default)]
pub struct RangeTool {
    /// The library by which NVIDIA's profilers take names. AMD's takes them by a library of ROCm.
    pub nvtx_injection: Option<PathBuf>,
}

impl RangeTool {
    /// Reads `NVTX_INJECTION64_PATH`, which the profiler sets.
    pub fn from_env() -> RangeTool {
        RangeTool {
            nvtx_injection: set("NVTX_INJECTION64_PATH").map(PathBuf::from),
        }
    }
}

/// A variable of the environment that is not empty.
fn set(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

impl OpenOptions {
    /// Reads `ROCMFORGE_GPU_IMAGE`, `ROCMFORGE_HIP_LIBRARY`, `ROCMFORGE_CUDA_LIBRARY`, `ROCM_PATH`, and the prefixes of
    /// Python in `VIRTUAL_ENV` and `CONDA_PREFIX`. No other code reads them.
    pub fn from_env() -> OpenOptions {
        OpenOptions {
            variants: Variants::default(),
            memory_bytes: None,
            image: set("ROCMFORGE_GPU_IMAGE").map(|name| name.to_string_lossy().into_owned()),
            hip_library: set("ROCMFORGE_HIP_LIBRARY").map(PathBuf::from),
            cuda_library: set("ROCMFORGE_CUDA_LIBRARY").map(PathBuf::from),
            hip_folders: Arc::new(HipFolders {
                rocm: set("ROCM_PATH").map(PathBuf::from),
                python: ["VIRTUAL_ENV", "CONDA_PREFIX"]
                    .into_iter()
                    .filter_map(set)
                    .map(PathBuf::from)
                    .collect(),
            }),
            ranges: None,
        }
    }

    pub(crate) fn driver(&self, vendor: Vendor) -> Result<&'static Driver, GpuError> {
        Driver::get(vendor, &driver::libraries(vendor, self))
    }
}

/// Facts about a device.
#[derive(Clone, Debug)]
pub struct DeviceInfo {
    pub id: DeviceId,
    /// The vendor's product name.
    pub name: String,
    /// e.g. `gfx1100`, `sm_90`, `host-nv`.
    pub architecture: String,
    pub total_bytes: u64,
    /// As of when the device was open; `None` if it was not opened.
    pub free_bytes: Option<u64>,
    /// Whether it shares the system memory.
    pub integrated: bool,
    /// Its place on the PCI bus, as the kernel writes it: `0000:03:00.0`.
    pub pci_address: Option<String>,
    /// Compute units or multiprocessors.
    pub n_compute_units: u32,
    /// Maximum shared memory of a block.
    pub max_shared_bytes: u32,
    /// Version of the kernel driver; may be empty.
    pub driver_version: String,
    /// Version of HIP or CUDA; empty for the CPU emulator.
    pub runtime_version: String,
    /// The image of this build that the device runs, or why there is none.
    pub image: Result<String, GpuError>,
}

impl DeviceInfo {
    /// The facts about a device that is not open.
    pub(crate) fn new(id: DeviceId, facts: &Facts, image: Result<String, GpuError>) -> DeviceInfo {
        DeviceInfo {
            id,
            name: facts.name.clone(),
            architecture: facts.architecture.clone(),
            total_bytes: facts.total_bytes,
            free_bytes: None,
            integrated: facts.integrated,
            pci_address: facts.pci_address.clone(),
            n_compute_units: facts.n_compute_units,
            max_shared_bytes: facts.max_shared_bytes,
            driver_version: facts.driver_version.clone(),
            runtime_version: facts.runtime_version.clone(),
            image,
        }
    }
}

/// The devices found, and why others were not.
#[derive(Clone, Debug, Default)]
pub struct Survey {
    pub devices: Vec<DeviceInfo>,
    /// The vendors' libraries that work: `HIP` or `CUDA`, and the name or path.
    pub libraries: Vec<(&'static str, PathBuf)>,
    /// For example that a vendor's library is not installed.
    pub errors: Vec<GpuError>,
}

fn has_image(target: &str) -> bool {
    images().iter().any(|image| image.target == target)
}

/// Returns the names of the images of this build, without duplicates.
pub fn image_targets() -> Vec<&'static str> {
    let mut targets: Vec<&str> = Vec::new();
    for image in images() {
        if !targets.contains(&image.target) {
            targets.push(image.target);
        }
    }
    targets
}

/// Chooses the image for a device: `wanted` if given, else the best one its architecture can run. AMD architectures run
/// only their own image. NVIDIA's `a` images run on one compute capability only; other PTX runs on its capability and
/// all later ones.
pub(crate) fn choose_image(facts: &Facts, wanted: Option<&str>) -> Result<String, GpuError> {
    if let Some(target) = wanted {
        if has_image(target) {
            return Ok(target.into());
        }
        return Err(GpuError::NoImage {
            target: target.into(),
        });
    }
    let candidates = candidates(&facts.architecture);
    if let Some(target) = candidates.iter().find(|target| has_image(target)) {
        return Ok(target.clone());
    }
    let targets = image_targets();
    Err(GpuError::NoImageForDevice {
        device: facts.name.clone(),
        architecture: facts.architecture.clone(),
        images: if targets.is_empty() {
            "none".into()
        } else {
            targets.join(", ")
        },
        wanted: candidates.last().cloned().unwrap_or_default(),
    })
}

/// Returns the images that an architecture can run, best first.
fn candidates(architecture: &str) -> Vec<String> {
    let capability = architecture
        .strip_prefix("sm_")
        .map(|n| n.parse::<u32>().unwrap_or(0));
    match capability {
        None => vec![architecture.into()],
        Some(90) => vec!["sm_90a".into(), "sm_80".into()],
        Some(80..) => vec!["sm_80".into()],
        Some(_) => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_device_names() {
        for name in ["hip:0", "cuda:3", "host:cdna", "host:nv", "host:quick"] {
            assert_eq!(name.parse::<DeviceId>().unwrap().to_string(), name);
        }
        assert_eq!("hip".parse(), Ok(DeviceId::Hip(0)));
        for name in [
            "",
            "gpu",
            "hip:x",
            "host:gfx9",
            "cuda:-1",
            "cuda:99999999999",
        ] {
            assert!(name.parse::<DeviceId>().is_err(), "{name}");
        }
    }

    #[test]
    fn images_for_each_architecture() {
        for (architecture, expected) in [
            ("gfx1101", &["gfx1101"][..]),
            ("sm_75", &[]),
            ("sm_80", &["sm_80"]),
            ("sm_89", &["sm_80"]),
            ("sm_90", &["sm_90a", "sm_80"]),
            ("sm_100", &["sm_80"]),
            ("sm_120", &["sm_80"]),
        ] {
            assert_eq!(candidates(architecture), expected, "{architecture}");
        }
    }
}
