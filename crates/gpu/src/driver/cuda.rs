//! NVIDIA's driver API (`libcuda.so.1`). Images are PTX, which the driver compiles when it loads a module.

use std::ffi::{CStr, c_char, c_uint, c_void};
use std::fs;

use libloading::Library;

use super::api::{Calls, Handle, Launch, functions};
use super::{Context, Driver, Facts, VendorApi, c_string, launch_in_order};
use crate::error::GpuError;

/// Library locations: the linker's path, mounts of containers, WSL.
pub(super) const LIBRARIES: &[&str] = &[
    "libcuda.so.1",
    "/usr/local/nvidia/lib64/libcuda.so.1",
    "/usr/lib/wsl/lib/libcuda.so.1",
];

// Values of CUdevice_attribute.
const MULTIPROCESSOR_COUNT: i32 = 16;
const INTEGRATED: i32 = 18;
const COMPUTE_CAPABILITY_MAJOR: i32 = 75;
const COMPUTE_CAPABILITY_MINOR: i32 = 76;
const MAX_SHARED_BYTES_OPTIN: i32 = 97;
/// Value of CUfunction_attribute: maximum dynamic shared memory of a launch.
const MAX_DYNAMIC_SHARED_BYTES: i32 = 8;
// Values of CUjit_option.
const JIT_ERROR_LOG_BUFFER: c_uint = 5;
const JIT_ERROR_LOG_BUFFER_SIZE_BYTES: c_uint = 6;

functions! {
    /// Functions that only CUDA has.
    struct CudaCalls;
    device_get = "cuDeviceGet": fn(*mut i32, i32);
    context_retain = "cuDevicePrimaryCtxRetain": fn(*mut Handle, i32);
    context_release = "cuDevicePrimaryCtxRelease_v2": fn(i32);
    context_set = "cuCtxSetCurrent": fn(Handle);
    module_load = "cuModuleLoadDataEx":
        fn(*mut Handle, *const c_void, c_uint, *mut c_uint, *mut *mut c_void);
    function_set = "cuFuncSetAttribute": fn(Handle, i32, i32);
    error_name = "cuGetErrorName": fn(i32, *mut *const c_char);
    error_string = "cuGetErrorString": fn(i32, *mut *const c_char);
}

/// The first driver version whose graphs keep overlapping launches.
const OVERLAPS_IN_GRAPHS: i32 = 12_030;
/// The first architecture whose kernels wait for their predecessors themselves (`gpu.h`).
const FIRST_OVERLAPPING_SM: u32 = 90;
/// Value of CUlaunchAttributeID: the blocks of a cluster, along each dimension of the grid.
const CLUSTER_DIMENSION: c_uint = 4;
/// Value of CUresult.
const NOT_SUPPORTED: i32 = 801;
/// Value of CUlaunchAttributeID: the kernel may start before its predecessor in the stream has ended.
const PROGRAMMATIC_STREAM_SERIALIZATION: c_uint = 6;

/// `CUlaunchAttribute`, whose value is a union of 64 bytes.
#[repr(C, align(8))]
struct Attribute {
    id: c_uint,
    _pad: u32,
    value: [u32; 16],
}

impl Attribute {
    fn new(id: c_uint, of_value: &[u32]) -> Attribute {
        let mut value = [0; 16];
        value[..of_value.len()].copy_from_slice(of_value);
        Attribute { id, _pad: 0, value }
    }
}

/// `CUlaunchConfig`.
#[repr(C)]
struct Config {
    grid: [c_uint; 3],
    block: [c_uint; 3],
    shared_bytes: c_uint,
    stream: Handle,
    attributes: *const Attribute,
    n_attributes: c_uint,
}

const _: () = assert!(size_of::<Attribute>() == 72 && size_of::<Config>() == 56);

/// `cuLaunchKernelEx`, part of drivers since 11.8.
type LaunchEx =
    unsafe extern "C" fn(*const Config, Handle, *mut *mut c_void, *mut *mut c_void) -> i32;

/// `cuFuncLoad`, part of drivers since 12.4.
type FunctionLoad = unsafe extern "C" fn(Handle) -> i32;

pub(super) struct Cuda {
    calls: CudaCalls,
    function_load: Option<FunctionLoad>,
    launch_ex: Option<LaunchEx>,
}

impl Cuda {
    pub(super) fn of_library(library: &Library) -> Result<Cuda, &'static str> {
        // SAFETY: the driver's header gives the function this signature under this name.
        let launch_ex = unsafe { library.get::<LaunchEx>(b"cuLaunchKernelEx") };
        // SAFETY: as above.
        let function_load = unsafe { library.get::<FunctionLoad>(b"cuFuncLoad") };
        Ok(Cuda {
            function_load: function_load.ok().map(|symbol| *symbol),
            calls: CudaCalls::of_library(library, 0)?,
            launch_ex: launch_ex.ok().map(|symbol| *symbol),
        })
    }

    fn device(&self, driver: &Driver, ordinal: i32) -> Result<i32, GpuError> {
        let mut device = 0;
        // SAFETY: `device` is written before the call returns.
        let code = unsafe { (self.calls.device_get)(&raw mut device, ordinal) };
        match code {
            0 => Ok(device),
            code => Err(driver.error("cuDeviceGet", code, "")),
        }
    }
}

impl VendorApi for Cuda {
    fn facts(&self, driver: &Driver, ordinal: i32) -> Result<Facts, GpuError> {
        let device = self.device(driver, ordinal)?;
        let attribute = |number| driver.attribute(number, device);
        let major = attribute(COMPUTE_CAPABILITY_MAJOR)?;
        let minor = attribute(COMPUTE_CAPABILITY_MINOR)?;
        let version = driver.version()?;
        let n_multiprocessors = attribute(MULTIPROCESSOR_COUNT)?.max(0) as u32;
        Ok(Facts {
            name: driver.device_name(device)?,
            architecture: format!("sm_{major}{minor}"),
            n_multiprocessors,
            n_compute_units: n_multiprocessors,
            integrated: attribute(INTEGRATED)? != 0,
            total_bytes: driver.total_bytes(device),
            pci_address: driver.pci_address(device),
            max_shared_bytes: attribute(MAX_SHARED_BYTES_OPTIN)?.max(0) as u32,
            clock_khz: 1_000_000,
            driver_version: kernel_driver_version().unwrap_or_default(),
            runtime_version: format!("{}.{}", version / 1000, version % 1000 / 10),
        })
    }

    fn open(&self, driver: &Driver, ordinal: i32) -> Result<Context, GpuError> {
        let device = self.device(driver, ordinal)?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: `handle` is written before the call returns.
        let code = unsafe { (self.calls.context_retain)(&raw mut handle, device) };
        if code != 0 {
            return Err(driver.error("cuDevicePrimaryCtxRetain", code, ""));
        }
        Ok(Context {
            ordinal: device,
            handle,
        })
    }

    fn make_current(&self, context: Context) -> i32 {
        // SAFETY: the context is retained until `close`.
        unsafe { (self.calls.context_set)(context.handle) }
    }

    fn close(&self, context: Context) {
        // SAFETY: it was retained once in `open`. Errors cannot be reported here.
        unsafe { (self.calls.context_release)(context.ordinal) };
    }

    fn load_module(&self, image: &[u8], to: &mut Handle) -> (i32, String) {
        // PTX is text with a terminating NUL.
        let mut image = image.to_vec();
        image.push(0);
        let mut log = vec![0u8; 8192];
        let mut options = [JIT_ERROR_LOG_BUFFER, JIT_ERROR_LOG_BUFFER_SIZE_BYTES];
        let mut values: [*mut c_void; 2] = [
            log.as_mut_ptr().cast(),
            std::ptr::without_provenance_mut(log.len() - 1),
        ];
        // SAFETY: the image ends with a NUL; the log has as many bytes as the driver is told.
        let code = unsafe {
            (self.calls.module_load)(
                &raw mut *to,
                image.as_ptr().cast(),
                options.len() as c_uint,
                options.as_mut_ptr(),
                values.as_mut_ptr(),
            )
        };
        (code, c_string(&log))
    }

    fn allow_shared(&self, function: Handle, bytes: u32) -> i32 {
        let bytes = i32::try_from(bytes).unwrap_or(i32::MAX);
        // SAFETY: the function belongs to a loaded module.
        unsafe { (self.calls.function_set)(function, MAX_DYNAMIC_SHARED_BYTES, bytes) }
    }

    fn load_function(&self, function: Handle) {
        if let Some(load) = self.function_load {
            // SAFETY: the function belongs to a loaded module. An error comes again with the launch.
            unsafe { load(function) };
        }
    }

    fn can_overlap(&self, driver: &Driver, target: &str) -> bool {
        kernels_wait(target)
            && self.launch_ex.is_some()
            && driver.version().is_ok_and(|v| v >= OVERLAPS_IN_GRAPHS)
    }

    fn launch(&self, calls: &Calls, launch: &Launch) -> i32 {
        let overlaps = Attribute::new(PROGRAMMATIC_STREAM_SERIALIZATION, &[1]);
        let cluster = Attribute::new(CLUSTER_DIMENSION, &[launch.cluster, 1, 1]);
        let attributes = [overlaps, cluster];
        let attributes = match (launch.overlaps, launch.cluster > 1) {
            (false, false) => return launch_in_order(calls, launch),
            (true, false) => &attributes[..1],
            (false, true) => &attributes[1..],
            (true, true) => &attributes[..],
        };
        let Some(launch_ex) = self.launch_ex else {
            return NOT_SUPPORTED;
        };
        let config = Config {
            grid: launch.grid,
            block: [launch.n_threads, 1, 1],
            shared_bytes: launch.shared_bytes,
            stream: launch.stream,
            attributes: attributes.as_ptr(),
            n_attributes: attributes.len() as c_uint,
        };
        let mut params = [launch.params.cast_mut()];
        // SAFETY: the function takes one struct, which `params` points to. The driver copies everything before it
        // returns.
        unsafe {
            launch_ex(
                &raw const config,
                launch.function,
                params.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        }
    }

    fn error_text(&self, code: i32) -> String {
        let text = |call: unsafe extern "C" fn(i32, *mut *const c_char) -> i32| {
            let mut text = std::ptr::null();
            // SAFETY: the driver points `text` to a constant of its own, or leaves it null.
            unsafe {
                if call(code, &raw mut text) != 0 || text.is_null() {
                    return "unknown".to_string();
                }
                CStr::from_ptr(text).to_string_lossy().into_owned()
            }
        };
        format!(
            "{}: {}",
            text(self.calls.error_name),
            text(self.calls.error_string)
        )
    }
}

/// Whether the kernels of an image wait for their predecessors themselves.
fn kernels_wait(target: &str) -> bool {
    let number = target.strip_prefix("sm_").map(|n| n.trim_end_matches('a'));
    number.is_some_and(|n| n.parse().is_ok_and(|n: u32| n >= FIRST_OVERLAPPING_SM))
}

/// Returns e.g. `580.159.03`, from the line "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.159.03  ...".
fn kernel_driver_version() -> Option<String> {
    let text = fs::read_to_string("/proc/driver/nvidia/version").ok()?;
    let line = text.lines().next()?;
    line.split_whitespace()
        .find(|word| word.contains('.') && word.bytes().all(|b| b.is_ascii_digit() || b == b'.'))
        .map(String::from)
}

#[cfg(test)]
mod tests {
    use super::kernels_wait;

    #[test]
    fn kernels_wait_from_sm_90_on() {
        assert!(["sm_90", "sm_90a", "sm_100", "sm_120a"].map(kernels_wait) == [true; 4]);
        assert!(["sm_80", "sm_89", "gfx1100", "host-nv", "sm_"].map(kernels_wait) == [false; 5]);
    }
}
