//! The drivers: one function table for HIP, CUDA and the CPU emulator, and the [`VendorApi`] trait for what differs.

pub(crate) mod api;
mod cuda;
mod hip;
pub(crate) mod host;
mod kfd;
pub(crate) mod libraries;
pub(crate) mod packages;

use std::error::Error as _;
use std::ffi::c_void;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock};

use libloading::Library;

use crate::device::OpenOptions;
use crate::error::{GpuError, advice};
use api::{Calls, Field, Handle, Launch, Vendor, code, name_of};

/// What a driver reports about a device.
pub(crate) struct Facts {
    pub(crate) name: String,
    /// e.g. `gfx1100`, `sm_90`.
    pub(crate) architecture: String,
    /// What the driver counts occupancy for: on RDNA, pairs of compute units.
    pub(crate) n_multiprocessors: u32,
    /// Compute units or multiprocessors.
    pub(crate) n_compute_units: u32,
    /// Whether it shares the system memory.
    pub(crate) integrated: bool,
    /// 0 if the driver does not say.
    pub(crate) total_bytes: u64,
    /// Its place on the PCI bus, as the kernel writes it: `0000:03:00.0`.
    pub(crate) pci_address: Option<String>,
    /// Maximum shared memory of a block.
    pub(crate) max_shared_bytes: u32,
    /// Thousands of ticks per second of `device_clock()`; 0 if the driver does not report it.
    pub(crate) clock_khz: u32,
    /// Version of the kernel driver.
    pub(crate) driver_version: String,
    /// Version of the library.
    pub(crate) runtime_version: String,
}

/// An open device. The meaning of the handle depends on the vendor.
#[derive(Clone, Copy)]
pub(crate) struct Context {
    pub(crate) ordinal: i32,
    pub(crate) handle: Handle,
}

/// The operations that differ between drivers.
pub(crate) trait VendorApi: Send + Sync {
    fn facts(&self, driver: &Driver, ordinal: i32) -> Result<Facts, GpuError>;
    fn open(&self, driver: &Driver, ordinal: i32) -> Result<Context, GpuError>;
    /// Makes a device current in the calling thread. Returns the driver's code.
    fn make_current(&self, context: Context) -> i32;
    fn close(&self, context: Context);
    /// Loads a module on the current device. Returns the driver's code and its message about the image.
    fn load_module(&self, image: &[u8], to: &mut Handle) -> (i32, String);
    /// Raises a function's limit of dynamic shared memory. Returns the driver's code.
    fn allow_shared(&self, function: Handle, bytes: u32) -> i32;
    /// Loads the code of a function, if the driver would wait for its first launch.
    fn load_function(&self, _function: Handle) {}
    fn error_text(&self, code: i32) -> String;

    /// Returns the parameters as a function declares them, if images say so: the whole, then its fields.
    fn declared_layout(&self, _function: Handle) -> Option<Vec<Field>> {
        None
    }

    /// Whether kernels of this image may start before their predecessors have ended.
    fn can_overlap(&self, _driver: &Driver, _target: &str) -> bool {
        false
    }

    /// Counts the blocks that a multiprocessor runs at once: of a function, with as many threads and bytes of dynamic
    /// shared memory as `blocks` says. Returns the driver's code.
    fn active_blocks(
        &self,
        calls: &Calls,
        _facts: &Facts,
        (function, blocks): (Handle, (u32, u32)),
        n_blocks: &mut i32,
    ) -> i32 {
        active_blocks(calls, function, blocks, n_blocks)
    }

    /// Queues a kernel. Returns the driver's code.
    fn launch(&self, calls: &Calls, launch: &Launch) -> i32 {
        launch_in_order(calls, launch)
    }
}

/// Asks the driver for the blocks that a multiprocessor runs at once.
fn active_blocks(
    calls: &Calls,
    function: Handle,
    (n_threads, shared_bytes): (u32, u32),
    n_blocks: &mut i32,
) -> i32 {
    // SAFETY: the function is of a loaded module; the number is written before the call returns.
    unsafe { (calls.active_blocks)(n_blocks, function, n_threads as i32, shared_bytes as usize) }
}

/// Queues a kernel that starts after its predecessor has ended.
fn launch_in_order(calls: &Calls, launch: &Launch) -> i32 {
    let mut params = [launch.params.cast_mut()];
    let [x, y, z] = launch.grid;
    // SAFETY: the function takes one struct, which `params` points to. Drivers copy it before they return.
    unsafe {
        (calls.launch)(
            launch.function,
            x,
            y,
            z,
            launch.n_threads,
            1,
            1,
            launch.shared_bytes,
            launch.stream,
            params.as_mut_ptr(),
            std::ptr::null_mut::<*mut c_void>(),
        )
    }
}

/// A loaded driver. It stays loaded until the program ends.
pub(crate) struct Driver {
    pub(crate) vendor: Vendor,
    /// The vendor's library, as it was found.
    pub(crate) library: Option<PathBuf>,
    pub(crate) calls: Calls,
    pub(crate) vendor_api: Box<dyn VendorApi>,
}

impl Driver {
    /// Returns the driver of a vendor, from the first of `libraries` that can be opened. The CPU emulator needs none.
    pub(crate) fn get(vendor: Vendor, libraries: &[PathBuf]) -> Result<&'static Driver, GpuError> {
        static HOST: OnceLock<Driver> = OnceLock::new();
        static LOADED: Mutex<Vec<(Vendor, PathBuf, &'static Driver)>> = Mutex::new(Vec::new());
        if vendor == Vendor::Host {
            return Ok(HOST.get_or_init(host::driver));
        }
        let mut loaded = LOADED.lock().unwrap_or_else(|e| e.into_inner());
        let known = loaded
            .iter()
            .find(|(v, path, _)| *v == vendor && libraries.contains(path));
        if let Some((_, _, driver)) = known {
            return Ok(driver);
        }
        if vendor == Vendor::Hip {
            hip::before_load();
        }
        let (path, library) = open_first(vendor, libraries)?;
        let name = path.display().to_string();
        let vendor_api: Result<Box<dyn VendorApi>, &'static str> = match vendor {
            Vendor::Hip => {
                hip::Hip::of_library(&library).map(|vendor_api| Box::new(vendor_api) as _)
            }
            Vendor::Cuda | Vendor::Host => {
                cuda::Cuda::of_library(&library).map(|vendor_api| Box::new(vendor_api) as _)
            }
        };
        let tables = vendor_api
            .and_then(|vendor_api| Ok((vendor_api, Calls::of_library(&library, vendor as usize)?)));
        // Vendor libraries keep threads and cannot be unloaded safely.
        std::mem::forget(library);
        let (vendor_api, calls) = tables.map_err(|symbol| GpuError::NoFunction {
            driver: label(vendor),
            library: name,
            symbol,
        })?;
        let driver: &'static Driver = Box::leak(Box::new(Driver {
            vendor,
            library: Some(path.clone()),
            calls,
            vendor_api,
        }));
        loaded.push((vendor, path, driver));
        Ok(driver)
    }

    /// Initializes the driver and counts its devices.
    pub(crate) fn n_devices(&self) -> Result<usize, GpuError> {
        // SAFETY: the driver takes no flags.
        let code = unsafe { (self.calls.init)(0) };
        if code == code::NO_DEVICE {
            return Ok(0);
        }
        self.check("init", code)?;
        let mut count = 0;
        // SAFETY: `count` is written before the call returns.
        let code = unsafe { (self.calls.device_count)(&raw mut count) };
        if code == code::NO_DEVICE {
            return Ok(0);
        }
        self.check("device_count", code)?;
        Ok(usize::try_from(count).unwrap_or(0))
    }

    /// Converts the code of a function of the table to a result.
    pub(crate) fn check(&self, field: &'static str, code: i32) -> Result<(), GpuError> {
        match code {
            0 => Ok(()),
            code => Err(self.error(name_of(self.vendor, field), code, "")),
        }
    }

    /// Builds the error of a failed call; `more` is appended to the driver's text.
    pub(crate) fn error(&self, call: &'static str, code: i32, more: &str) -> GpuError {
        let mut text = self.vendor_api.error_text(code);
        if !more.is_empty() {
            text = format!("{text}: {more}");
        }
        GpuError::Driver {
            call,
            code,
            text,
            advice: if self.vendor == Vendor::Host {
                ""
            } else {
                advice(code)
            },
        }
    }

    /// Reads a device attribute; `number` is the vendor's.
    fn attribute(&self, number: i32, ordinal: i32) -> Result<i32, GpuError> {
        let mut value = 0;
        // SAFETY: `value` is written before the call returns.
        let code = unsafe { (self.calls.device_attribute)(&raw mut value, number, ordinal) };
        self.check("device_attribute", code)?;
        Ok(value)
    }

    /// Returns the memory of a device that need not be open; 0 if the driver does not say.
    fn total_bytes(&self, ordinal: i32) -> u64 {
        let mut bytes = 0;
        // SAFETY: `bytes` is written before the call returns.
        match unsafe { (self.calls.total_memory)(&raw mut bytes, ordinal) } {
            0 => bytes as u64,
            _ => 0,
        }
    }

    /// Returns the PCI address in the kernel's form, if the driver says it.
    pub(crate) fn pci_address(&self, ordinal: i32) -> Option<String> {
        let mut text = [0u8; 64];
        // SAFETY: the driver writes at most `text.len()` bytes, the last one a NUL.
        let code = unsafe {
            (self.calls.pci_bus_id)(text.as_mut_ptr().cast(), text.len() as i32, ordinal)
        };
        let (domain, location) = (code == 0).then(|| kfd::parse_bus_id(&c_string(&text)))??;
        Some(kfd::bus_id(domain, location))
    }

    fn device_name(&self, ordinal: i32) -> Result<String, GpuError> {
        let mut name = [0u8; 256];
        // SAFETY: the driver writes at most `name.len()` bytes, the last one a NUL.
        let code = unsafe {
            (self.calls.device_name)(name.as_mut_ptr().cast(), name.len() as i32, ordinal)
        };
        self.check("device_name", code)?;
        Ok(c_string(&name))
    }

    fn version(&self) -> Result<i32, GpuError> {
        let mut version = 0;
        // SAFETY: `version` is written before the call returns.
        let code = unsafe { (self.calls.driver_version)(&raw mut version) };
        self.check("driver_version", code)?;
        Ok(version)
    }
}

/// Returns the driver's name in messages.
pub(crate) fn label(vendor: Vendor) -> &'static str {
    match vendor {
        Vendor::Hip => "HIP",
        Vendor::Cuda => "CUDA",
        Vendor::Host => "host",
    }
}

/// Returns where to look for the vendor's library, in order.
pub(crate) fn libraries(vendor: Vendor, options: &OpenOptions) -> Vec<PathBuf> {
    match (vendor, &options.cuda_library) {
        (Vendor::Hip, _) => {
            let all = libraries::hip_libraries(Path::new("/"), options).into_iter();
            all.map(|(path, _)| path).collect()
        }
        (Vendor::Cuda, Some(library)) => vec![library.clone()],
        (Vendor::Cuda, None) => cuda::LIBRARIES.iter().map(PathBuf::from).collect(),
        (Vendor::Host, _) => Vec::new(),
    }
}

/// Returns what to install if the vendor's library is missing.
fn advice_for_library(vendor: Vendor) -> String {
    match vendor {
        Vendor::Hip => {
            let os_release = std::fs::read_to_string("/etc/os-release").unwrap_or_default();
            packages::hip_advice(&os_release, Path::new("/opt"))
        }
        _ => "on a machine with an NVIDIA GPU, install the NVIDIA driver (which contains libcuda.so.1)".into(),
    }
}

fn open_first(vendor: Vendor, libraries: &[PathBuf]) -> Result<(PathBuf, Library), GpuError> {
    let mut absent: Vec<String> = Vec::new();
    let mut said: Vec<String> = Vec::new();
    for path in libraries {
        // SAFETY: these are the vendor's own libraries, or those the user named instead.
        match unsafe { Library::new(path) } {
            Ok(library) => return Ok((path.clone(), library)),
            Err(error) => {
                let (words, path) = (linker_message(&error), path.display().to_string());
                // Another path in the message is a library that this one depends on.
                match words == format!("{path}: {NO_SUCH_FILE}") {
                    true => absent.push(path),
                    false => said.push(words),
                }
            }
        }
    }
    if !absent.is_empty() {
        said.push(format!("not found: {}", absent.join(", ")));
    }
    Err(GpuError::NoLibrary {
        driver: label(vendor),
        text: said.join("; "),
        advice: advice_for_library(vendor),
    })
}

/// The dynamic linker's message for a missing library, after its name.
const NO_SUCH_FILE: &str = "cannot open shared object file: No such file or directory";

/// Returns the dynamic linker's message.
fn linker_message(error: &libloading::Error) -> String {
    error
        .source()
        .map_or_else(|| error.to_string(), |source| source.to_string())
}

/// Returns the C string in a buffer, up to its first NUL.
fn c_string(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).trim().to_string()
}
