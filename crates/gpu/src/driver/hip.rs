//! AMD's HIP runtime (`libamdhip64.so`), ROCm 5.2 and newer. Images are code objects for one architecture.

use std::ffi::{CStr, c_char, c_void};
use std::{env, fs};

use libloading::Library;

use super::api::{Calls, Handle, functions};
use super::{Context, Driver, Facts, VendorApi, active_blocks, kfd};
use crate::error::GpuError;

// Values of hipDeviceAttribute_t since ROCm 5.
const INTEGRATED: i32 = 16;
/// Work-group processors on RDNA, which are pairs of compute units, unless `GPU_ENABLE_WGP_MODE` is 0. So are attribute
/// 10015's physical multiprocessors (`maxPhysicalComputeUnits_` in ROCm/clr).
const MULTIPROCESSOR_COUNT: i32 = 63;
/// Since ROCm 5.5.
const WALL_CLOCK_RATE: i32 = 10017;

/// Shared memory of a block on every architecture that images are built for.
const MAX_SHARED_BYTES: u32 = 64 * 1024;

/// More than hipDeviceProp_t of any version (1472 bytes in ROCm 6).
const PROPERTIES_BYTES: usize = 16 * 1024;
/// hipDeviceProp_t begins with a name of this many bytes.
const PROPERTIES_NAME: usize = 256;

functions! {
    /// Functions that only HIP has.
    struct HipCalls;
    set_device = "hipSetDevice": fn(i32);
    runtime_version = "hipRuntimeGetVersion": fn(*mut i32);
    module_load = "hipModuleLoadData": fn(*mut Handle, *const c_void);
}

type Properties = unsafe extern "C" fn(*mut c_void, i32) -> i32;
type Text = unsafe extern "C" fn(i32) -> *const c_char;

pub(super) struct Hip {
    calls: HipCalls,
    properties: Properties,
    error_name: Text,
    error_string: Text,
}

/// Sets the environment that the library reads when it is loaded.
pub(super) fn before_load() {
    // With more queues ROCm keeps an idle GPU at full load.
    if env::var_os("GPU_MAX_HW_QUEUES").is_none() {
        // SAFETY: this program reads its environment only through std, which locks it. The only C code that reads this
        // variable is the library that this thread is about to load.
        unsafe { env::set_var("GPU_MAX_HW_QUEUES", "1") };
    }
}

impl Hip {
    pub(super) fn of_library(library: &Library) -> Result<Hip, &'static str> {
        // SAFETY: both functions fill a struct, in different versions; the architecture is found by its text, not its
        // offset.
        let properties = unsafe {
            library
                .get::<Properties>("hipGetDevicePropertiesR0600")
                .or_else(|_| library.get::<Properties>("hipGetDeviceProperties"))
                .map_err(|_| "hipGetDeviceProperties")?
        };
        let text = |name: &'static str| {
            // SAFETY: both take a code and return a constant.
            unsafe { library.get::<Text>(name) }
                .map(|text| *text)
                .map_err(|_| name)
        };
        Ok(Hip {
            calls: HipCalls::of_library(library, 0)?,
            properties: *properties,
            error_name: text("hipGetErrorName")?,
            error_string: text("hipGetErrorString")?,
        })
    }

    /// Returns e.g. `gfx90a`, or `None` if the properties do not say.
    fn architecture(&self, driver: &Driver, ordinal: i32) -> Result<Option<String>, GpuError> {
        let mut properties = vec![0u64; PROPERTIES_BYTES / 8];
        // SAFETY: the struct of any version fits.
        let code = unsafe { (self.properties)(properties.as_mut_ptr().cast(), ordinal) };
        if code != 0 {
            return Err(driver.error("hipGetDeviceProperties", code, ""));
        }
        let bytes = zerocopy::IntoBytes::as_bytes(properties.as_slice());
        Ok(architecture_in(&bytes[PROPERTIES_NAME..]))
    }
}

/// Returns the number of compute units, of `n_multiprocessors` that HIP counts and those that the kernel counts.
fn n_compute_units(architecture: &str, n_multiprocessors: u32, kernel: Option<u32>) -> u32 {
    let has_pairs = ["gfx10", "gfx11", "gfx12"]
        .iter()
        .any(|family| architecture.starts_with(family));
    match kernel {
        // HIP may leave out a few.
        Some(n) if n > n_multiprocessors + n_multiprocessors / 2 => n,
        None if has_pairs => 2 * n_multiprocessors,
        _ => n_multiprocessors,
    }
}

/// Finds the architecture name in a hipDeviceProp_t: `gfx90a` of `gfx90a:sramecc+:xnack-`. Its offset differs between
/// versions of the struct. No other field looks like it.
fn architecture_in(properties: &[u8]) -> Option<String> {
    let at = properties
        .windows(4)
        .position(|w| w.starts_with(b"gfx") && w[3].is_ascii_digit())?;
    let name = properties[at..]
        .iter()
        .take_while(|b| b.is_ascii_alphanumeric());
    Some(name.map(|b| char::from(*b)).collect())
}

impl VendorApi for Hip {
    fn facts(&self, driver: &Driver, ordinal: i32) -> Result<Facts, GpuError> {
        let mut runtime = 0;
        // SAFETY: `runtime` is written before the call returns.
        let code = unsafe { (self.calls.runtime_version)(&raw mut runtime) };
        if code != 0 {
            return Err(driver.error("hipRuntimeGetVersion", code, ""));
        }
        let pci_address = driver.pci_address(ordinal);
        let nodes = kfd::nodes(kfd::TOPOLOGY.as_ref());
        let at = pci_address.as_deref().and_then(kfd::parse_bus_id);
        let node = nodes.into_iter().find(|node| Some(node.location) == at);
        let of_kernel = node.as_ref().and_then(|node| node.n_compute_units);
        let architecture = match self.architecture(driver, ordinal)? {
            Some(name) => name,
            None => node.map_or_else(|| "unknown".into(), |node| node.architecture),
        };
        let n_multiprocessors = driver.attribute(MULTIPROCESSOR_COUNT, ordinal)?.max(0) as u32;
        Ok(Facts {
            name: driver.device_name(ordinal)?,
            n_compute_units: n_compute_units(&architecture, n_multiprocessors, of_kernel),
            architecture,
            n_multiprocessors,
            integrated: driver.attribute(INTEGRATED, ordinal)? != 0,
            total_bytes: driver.total_bytes(ordinal),
            pci_address,
            max_shared_bytes: MAX_SHARED_BYTES,
            clock_khz: driver
                .attribute(WALL_CLOCK_RATE, ordinal)
                .map_or(0, |khz| khz.max(0) as u32),
            driver_version: kernel_driver_version().unwrap_or_default(),
            runtime_version: version_text(runtime),
        })
    }

    fn open(&self, driver: &Driver, ordinal: i32) -> Result<Context, GpuError> {
        let context = Context {
            ordinal,
            handle: std::ptr::null_mut(),
        };
        match self.make_current(context) {
            0 => Ok(context),
            code => Err(driver.error("hipSetDevice", code, "")),
        }
    }

    fn make_current(&self, context: Context) -> i32 {
        // SAFETY: the call accepts any number.
        unsafe { (self.calls.set_device)(context.ordinal) }
    }

    /// HIP keeps its one context per device until the program ends.
    fn close(&self, _: Context) {}

    fn load_module(&self, image: &[u8], to: &mut Handle) -> (i32, String) {
        // SAFETY: the image is a complete ELF file, which contains its size.
        let code = unsafe { (self.calls.module_load)(&raw mut *to, image.as_ptr().cast()) };
        (code, String::new())
    }

    /// AMD has no such limit: launches may use all shared memory that a block can have.
    fn allow_shared(&self, _: Handle, _: u32) -> i32 {
        0
    }

    /// On RDNA, HIP counts the threads of a work-group processor, but half of its shared memory: that of one compute unit
    /// (`ihipOccupancyMaxActiveBlocksPerMultiprocessor` in ROCm's clr, 5 to 7). What it says of blocks of twice as many
    /// threads is right for pairs of blocks: in each half, there is memory for one of each pair.
    fn active_blocks(
        &self,
        calls: &Calls,
        facts: &Facts,
        (function, blocks): (Handle, (u32, u32)),
        n_blocks: &mut i32,
    ) -> i32 {
        let code = active_blocks(calls, function, blocks, n_blocks);
        if code != 0 || facts.n_compute_units <= facts.n_multiprocessors {
            return code;
        }
        let (pair, mut n_pairs) = ((2 * blocks.0, blocks.1), 0);
        let code = active_blocks(calls, function, pair, &mut n_pairs);
        *n_blocks = (*n_blocks).max(2 * n_pairs);
        code
    }

    fn error_text(&self, code: i32) -> String {
        let text = |call: Text| {
            // SAFETY: the driver returns a constant of its own, or null.
            unsafe {
                let text = call(code);
                if text.is_null() {
                    return "unknown".to_string();
                }
                CStr::from_ptr(text).to_string_lossy().into_owned()
            }
        };
        format!("{}: {}", text(self.error_name), text(self.error_string))
    }
}

/// Formats 60342134 as `6.3.42134`.
fn version_text(version: i32) -> String {
    let (major, minor) = (version / 10_000_000, version / 100_000 % 100);
    format!("{major}.{minor}.{}", version % 100_000)
}

/// Returns the version of the amdgpu module, or of the kernel if amdgpu is built in.
fn kernel_driver_version() -> Option<String> {
    let module = fs::read_to_string("/sys/module/amdgpu/version");
    let version = module.or_else(|_| {
        fs::read_to_string("/proc/sys/kernel/osrelease").map(|v| format!("Linux {v}"))
    });
    Some(version.ok()?.trim().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_compute_units() {
        for (architecture, hip, kernel, expected) in [
            ("gfx1100", 42, Some(84), 84),
            ("gfx1100", 84, Some(84), 84),
            ("gfx1100", 42, None, 84),
            ("gfx1151", 19, Some(40), 40),
            ("gfx942", 304, Some(304), 304),
            ("gfx942", 300, Some(304), 300),
            ("gfx942", 304, None, 304),
        ] {
            let n = n_compute_units(architecture, hip, kernel);
            assert_eq!(n, expected, "{architecture} {hip} {kernel:?}");
        }
    }

    /// Properties as ROCm 6 and 5 lay them out, with the name at byte 1160 and at byte 396.
    #[test]
    fn finds_architecture_without_features() {
        for (at, name, expected) in [
            (1160, "gfx90a:sramecc+:xnack-", Some("gfx90a")),
            (396, "gfx1100", Some("gfx1100")),
            (1160, "", None),
            (1160, "gfx", None),
        ] {
            let mut bytes = vec![0u8; 4096];
            bytes[at..at + name.len()].copy_from_slice(name.as_bytes());
            assert_eq!(architecture_in(&bytes).as_deref(), expected);
        }
    }

    #[test]
    fn formats_versions() {
        assert_eq!(version_text(60342134), "6.3.42134");
        assert_eq!(version_text(50221153), "5.2.21153");
    }
}
