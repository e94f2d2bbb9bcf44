//! Chooses a GPU of this machine by what the drivers say about all of them. Only the chosen one is opened: opening an
//! integrated GPU has crashed programs that did not want it.

use std::cmp::Reverse;
use std::fmt;

use rocmforge_gguf::escape_control;

use crate::device::{DeviceId, OpenOptions, choose_image};
use crate::driver::api::Vendor;
use crate::driver::{Driver, label};
use crate::error::GpuError;
use crate::gpu::Gpu;

/// A GPU that was not opened, as its driver describes it.
#[derive(Clone, Debug)]
pub struct Candidate {
    pub id: DeviceId,
    /// The vendor's product name.
    pub name: String,
    /// Whether it shares the system memory.
    pub integrated: bool,
    pub total_bytes: u64,
    /// The image of this build that the device runs, or why there is none.
    pub image: Result<String, GpuError>,
}

/// The GPU that was chosen, and the others.
#[derive(Clone, Debug)]
pub struct Selection {
    pub chosen: Candidate,
    /// The others that were looked at, the better ones first. NVIDIA's are not where AMD has a discrete GPU that works.
    pub passed_over: Vec<(Candidate, Reason)>,
}

/// Why a GPU was not chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// This build has no kernels for it.
    NoImage,
    /// It is integrated, and the chosen one is not.
    Integrated,
    LessMemory,
    /// It is as good, but has a later number.
    Later,
    CannotOpen(GpuError),
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::NoImage => f.write_str("this build has no kernels for it"),
            Reason::Integrated => f.write_str("it shares the CPU's memory"),
            Reason::LessMemory => f.write_str("it has less memory"),
            Reason::Later => f.write_str("it is no better"),
            Reason::CannotOpen(error) => write!(f, "{error}"),
        }
    }
}

impl fmt::Display for Selection {
    /// One line, such as `hip:1 (Radeon RX 7900 XT) was chosen; passed over: hip:0 (Radeon 610M): it shares ...`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |gpu: &Candidate| format!("{} ({})", gpu.id, escape_control(&gpu.name));
        write!(f, "{} was chosen", name(&self.chosen))?;
        for (i, (other, reason)) in self.passed_over.iter().enumerate() {
            let before = if i == 0 { "; passed over: " } else { "; " };
            write!(f, "{before}{}: {reason}", name(other))?;
        }
        Ok(())
    }
}

/// Lists the AMD and NVIDIA GPUs of this machine without opening any, and why others are missing.
pub fn candidates(options: &OpenOptions) -> (Vec<Candidate>, Vec<GpuError>) {
    let mut all = (Vec::new(), Vec::new());
    for vendor in [Vendor::Hip, Vendor::Cuda] {
        let (found, errors) = of_vendor(vendor, options);
        all.0.extend(found);
        all.1.extend(errors);
    }
    all
}

/// Returns the place of a GPU on the PCI bus as the kernel writes it, `0000:03:00.0`, without opening the GPU; `None` if
/// its driver does not tell.
pub fn pci_address(id: DeviceId, options: &OpenOptions) -> Option<String> {
    let driver = options.driver(id.vendor()).ok()?;
    driver.pci_address(id.ordinal() as i32)
}

fn of_vendor(vendor: Vendor, options: &OpenOptions) -> (Vec<Candidate>, Vec<GpuError>) {
    let counted = options
        .driver(vendor)
        .and_then(|driver| Ok((driver, driver.n_devices()?)));
    let (driver, n_devices) = match counted {
        Ok(counted) => counted,
        Err(error) => return (Vec::new(), vec![error]),
    };
    let (mut found, mut errors) = (Vec::new(), Vec::new());
    if n_devices == 0 {
        errors.push(GpuError::NoDevice {
            driver: label(vendor),
            device: DeviceId::of(vendor, 0).to_string(),
            n_devices,
        });
    }
    for ordinal in 0..n_devices as u32 {
        match candidate(driver, DeviceId::of(vendor, ordinal), options) {
            Ok(candidate) => found.push(candidate),
            Err(error) => errors.push(error),
        }
    }
    (found, errors)
}

fn candidate(driver: &Driver, id: DeviceId, options: &OpenOptions) -> Result<Candidate, GpuError> {
    let facts = driver.vendor_api.facts(driver, id.ordinal() as i32)?;
    Ok(Candidate {
        id,
        image: choose_image(&facts, options.image.as_deref()),
        name: facts.name,
        integrated: facts.integrated,
        total_bytes: facts.total_bytes,
    })
}

/// The better a GPU, the lower: one that runs this build's kernels, not integrated, with more memory, AMD before NVIDIA,
/// of a low number.
fn rank(candidate: &Candidate) -> impl Ord + use<> {
    (
        candidate.image.is_err(),
        candidate.integrated,
        Reverse(candidate.total_bytes),
        matches!(candidate.id, DeviceId::Cuda(_)),
        candidate.id.ordinal(),
    )
}

impl Gpu {
    /// Opens the best GPU of this machine. CUDA is asked only if HIP has no discrete GPU that works.
    ///
    /// # Errors
    /// One for each device that cannot be used, and for each driver that has none.
    pub fn open_best(options: &OpenOptions) -> Result<(Gpu, Selection), Vec<GpuError>> {
        let mut untried: Vec<Candidate> = Vec::new();
        let mut failed: Vec<(Candidate, GpuError)> = Vec::new();
        let mut errors = Vec::new();
        for vendor in [Vendor::Hip, Vendor::Cuda] {
            let (found, missing) = of_vendor(vendor, options);
            untried.extend(found);
            untried.sort_by_key(rank);
            errors.extend(missing);
            let is_wanted = |candidate: &&Candidate| {
                candidate.image.is_ok() && (vendor == Vendor::Cuda || !candidate.integrated)
            };
            while let Some(best) = untried.first().filter(is_wanted) {
                let opened = Gpu::open_with(best.id, options);
                let chosen = untried.remove(0);
                match opened {
                    Ok(gpu) => return Ok((gpu, selection(chosen, untried, failed))),
                    Err(error) => failed.push((chosen, error)),
                }
            }
        }
        errors.extend(failed.into_iter().map(|(_, error)| error));
        errors.extend(untried.into_iter().filter_map(|other| other.image.err()));
        Err(errors)
    }
}

fn selection(
    chosen: Candidate,
    others: Vec<Candidate>,
    failed: Vec<(Candidate, GpuError)>,
) -> Selection {
    let failed = failed
        .into_iter()
        .map(|(other, error)| (other, Reason::CannotOpen(error)));
    let worse = others.into_iter().map(|other| {
        let reason = match &other {
            other if other.image.is_err() => Reason::NoImage,
            other if other.integrated && !chosen.integrated => Reason::Integrated,
            other if other.total_bytes < chosen.total_bytes => Reason::LessMemory,
            _ => Reason::Later,
        };
        (other, reason)
    });
    let passed_over = failed.chain(worse).collect();
    Selection {
        chosen,
        passed_over,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn gpu(id: &str, integrated: bool, gib: u64) -> Candidate {
        Candidate {
            id: id.parse().unwrap(),
            name: "Some GPU".into(),
            integrated,
            total_bytes: gib * GIB,
            image: Ok("gfx1100".into()),
        }
    }

    fn without_image(candidate: Candidate) -> Candidate {
        let error = GpuError::NoImage {
            target: "gfx1036".into(),
        };
        Candidate {
            image: Err(error),
            ..candidate
        }
    }

    /// Sorts them, and returns the reasons why the others were passed over.
    fn reasons(mut candidates: Vec<Candidate>) -> Vec<(String, Option<Reason>)> {
        candidates.sort_by_key(rank);
        let chosen = candidates.remove(0);
        let chosen = selection(chosen, candidates, Vec::new());
        let others = chosen.passed_over.into_iter();
        let others = others.map(|(other, reason)| (other.id.to_string(), Some(reason)));
        std::iter::once((chosen.chosen.id.to_string(), None))
            .chain(others)
            .collect()
    }

    #[test]
    fn the_best_gpu_is_chosen() {
        let because = |id: &str, reason| (id.to_string(), Some(reason));
        let first = |id: &str| (id.to_string(), None);
        for (candidates, expected) in [
            // Much memory is that of the system.
            (
                vec![gpu("hip:0", true, 64), gpu("hip:1", false, 20)],
                vec![first("hip:1"), because("hip:0", Reason::Integrated)],
            ),
            (
                vec![gpu("hip:0", false, 8), gpu("hip:1", false, 20)],
                vec![first("hip:1"), because("hip:0", Reason::LessMemory)],
            ),
            (
                vec![
                    without_image(gpu("hip:0", false, 32)),
                    gpu("hip:1", true, 16),
                ],
                vec![first("hip:1"), because("hip:0", Reason::NoImage)],
            ),
            (
                vec![gpu("hip:1", false, 20), gpu("hip:0", false, 20)],
                vec![first("hip:0"), because("hip:1", Reason::Later)],
            ),
            (
                vec![gpu("cuda:0", false, 20), gpu("hip:0", false, 20)],
                vec![first("hip:0"), because("cuda:0", Reason::Later)],
            ),
            (
                vec![gpu("hip:0", true, 64), gpu("cuda:0", false, 8)],
                vec![first("cuda:0"), because("hip:0", Reason::Integrated)],
            ),
            (
                vec![gpu("hip:0", true, 16), gpu("hip:1", true, 8)],
                vec![first("hip:0"), because("hip:1", Reason::LessMemory)],
            ),
        ] {
            assert_eq!(reasons(candidates), expected);
        }
    }
}
