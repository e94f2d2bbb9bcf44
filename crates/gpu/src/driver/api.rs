//! The driver function table. HIP's module API and CUDA's driver API match call for call, so one table of signatures
//! holds the names of both. The CPU emulator fills it with its own functions (`host/`).
//!
//! Signatures are those of `cuda.h` and `hip/hip_runtime_api.h`. Device addresses are `u64` in both.

use std::ffi::{c_char, c_uint, c_void};

use libloading::Library;

/// An opaque driver object: a context, stream, event, module, function or graph.
pub(crate) type Handle = *mut c_void;

/// The vendor of a table. The number is the column of its names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Vendor {
    Hip = 0,
    Cuda = 1,
    Host = 2,
}

/// Declares a struct of C functions that return the driver's code, with a loader that finds them in a library.
macro_rules! functions {
    (
        $(#[$doc:meta])*
        struct $table:ident;
        $($(#[$field_doc:meta])* $field:ident = $($name:literal)|+ : fn($($arg:ty),* $(,)?);)*
    ) => {
        $(#[$doc])*
        pub(crate) struct $table {
            $($(#[$field_doc])* pub(crate) $field: unsafe extern "C" fn($($arg),*) -> i32,)*
        }

        impl $table {
            /// Loads the functions of a library by the names in `column`. Fails with the first missing name.
            pub(crate) fn of_library(library: &Library, column: usize) -> Result<Self, &'static str> {
                Ok(Self {
                    $($field: {
                        let name = [$($name),+][column];
                        // SAFETY: the driver's headers give the function this signature under this name.
                        let symbol = unsafe {
                            library.get::<unsafe extern "C" fn($($arg),*) -> i32>(name.as_bytes())
                        };
                        *symbol.map_err(|_| name)?
                    },)*
                })
            }
        }
    };
}
pub(crate) use functions;

/// Names of the functions of [`Calls`], in the columns of [`Vendor`].
macro_rules! calls {
    ($($(#[$doc:meta])* $field:ident = $hip:literal | $cuda:literal : fn($($arg:ty),* $(,)?);)*) => {
        functions! {
            /// The functions that every driver has. They return the driver's own codes; 0 is success.
            struct Calls;
            $($(#[$doc])* $field = $hip | $cuda : fn($($arg),*);)*
        }

        /// Returns the vendor's name of a function of the table, for messages.
        pub(crate) fn name_of(vendor: Vendor, field: &'static str) -> &'static str {
            let row = match field {
                $(stringify!($field) => [$hip, $cuda, stringify!($field)],)*
                other => [other; 3],
            };
            row[vendor as usize]
        }
    };
}

calls! {
    /// Flags must be 0.
    init = "hipInit" | "cuInit": fn(c_uint);
    device_count = "hipGetDeviceCount" | "cuDeviceGetCount": fn(*mut i32);
    device_name = "hipDeviceGetName" | "cuDeviceGetName": fn(*mut c_char, i32, i32);
    /// Attribute numbers are the vendor's own.
    device_attribute = "hipDeviceGetAttribute" | "cuDeviceGetAttribute": fn(*mut i32, i32, i32);
    /// The bytes of a device's memory. The device need not be open.
    total_memory = "hipDeviceTotalMem" | "cuDeviceTotalMem_v2": fn(*mut usize, i32);
    /// Such as `0000:03:00.0`.
    pci_bus_id = "hipDeviceGetPCIBusId" | "cuDeviceGetPCIBusId": fn(*mut c_char, i32, i32);
    driver_version = "hipDriverGetVersion" | "cuDriverGetVersion": fn(*mut i32);
    /// Free and total bytes of the current device.
    memory_info = "hipMemGetInfo" | "cuMemGetInfo_v2": fn(*mut usize, *mut usize);

    alloc = "hipMalloc" | "cuMemAlloc_v2": fn(*mut u64, usize);
    free = "hipFree" | "cuMemFree_v2": fn(u64);
    /// Flags: 1 portable, 2 mapped; the same for both vendors.
    alloc_pinned = "hipHostMalloc" | "cuMemHostAlloc": fn(*mut *mut c_void, usize, c_uint);
    free_pinned = "hipHostFree" | "cuMemFreeHost": fn(*mut c_void);
    device_address = "hipHostGetDevicePointer" | "cuMemHostGetDevicePointer_v2":
        fn(*mut u64, *mut c_void, c_uint);
    copy_to_device = "hipMemcpyHtoDAsync" | "cuMemcpyHtoDAsync_v2":
        fn(u64, *const c_void, usize, Handle);
    copy_to_host = "hipMemcpyDtoHAsync" | "cuMemcpyDtoHAsync_v2":
        fn(*mut c_void, u64, usize, Handle);
    copy_on_device = "hipMemcpyDtoDAsync" | "cuMemcpyDtoDAsync_v2": fn(u64, u64, usize, Handle);
    fill_bytes = "hipMemsetD8Async" | "cuMemsetD8Async": fn(u64, u8, usize, Handle);

    module_unload = "hipModuleUnload" | "cuModuleUnload": fn(Handle);
    module_function = "hipModuleGetFunction" | "cuModuleGetFunction":
        fn(*mut Handle, Handle, *const c_char);
    module_global = "hipModuleGetGlobal" | "cuModuleGetGlobal_v2":
        fn(*mut u64, *mut usize, Handle, *const c_char);
    /// Function, grid (x, y, z), block (x, y, z), dynamic shared bytes, stream, parameters, extra.
    launch = "hipModuleLaunchKernel" | "cuLaunchKernel": fn(
        Handle,
        c_uint,
        c_uint,
        c_uint,
        c_uint,
        c_uint,
        c_uint,
        c_uint,
        Handle,
        *mut *mut c_void,
        *mut *mut c_void,
    );

    /// Blocks of a function that a compute unit runs at once: function, threads per block, dynamic shared bytes.
    active_blocks = "hipModuleOccupancyMaxActiveBlocksPerMultiprocessor"
        | "cuOccupancyMaxActiveBlocksPerMultiprocessor": fn(*mut i32, Handle, i32, usize);

    /// Flags: 1 for a stream that does not wait for the null stream.
    stream_create = "hipStreamCreateWithFlags" | "cuStreamCreate": fn(*mut Handle, c_uint);
    stream_destroy = "hipStreamDestroy" | "cuStreamDestroy_v2": fn(Handle);
    stream_synchronize = "hipStreamSynchronize" | "cuStreamSynchronize": fn(Handle);
    /// Flags must be 0.
    stream_wait = "hipStreamWaitEvent" | "cuStreamWaitEvent": fn(Handle, Handle, c_uint);

    event_create = "hipEventCreateWithFlags" | "cuEventCreate": fn(*mut Handle, c_uint);
    event_destroy = "hipEventDestroy" | "cuEventDestroy_v2": fn(Handle);
    event_record = "hipEventRecord" | "cuEventRecord": fn(Handle, Handle);
    event_query = "hipEventQuery" | "cuEventQuery": fn(Handle);
    event_synchronize = "hipEventSynchronize" | "cuEventSynchronize": fn(Handle);
    event_elapsed = "hipEventElapsedTime" | "cuEventElapsedTime": fn(*mut f32, Handle, Handle);

    /// Mode 2 is relaxed: other threads and first uses of modules may make any call.
    capture_begin = "hipStreamBeginCapture" | "cuStreamBeginCapture_v2": fn(Handle, i32);
    capture_end = "hipStreamEndCapture" | "cuStreamEndCapture": fn(Handle, *mut Handle);
    graph_instantiate = "hipGraphInstantiateWithFlags" | "cuGraphInstantiateWithFlags":
        fn(*mut Handle, Handle, u64);
    graph_destroy = "hipGraphDestroy" | "cuGraphDestroy": fn(Handle);
    graph_launch = "hipGraphLaunch" | "cuGraphLaunch": fn(Handle, Handle);
    graph_exec_destroy = "hipGraphExecDestroy" | "cuGraphExecDestroy": fn(Handle);
}

/// Error codes that both vendors share.
pub(crate) mod code {
    pub(crate) const OUT_OF_MEMORY: i32 = 2;
    pub(crate) const NO_DEVICE: i32 = 100;
    pub(crate) const NOT_FOUND: i32 = 500;
    pub(crate) const NOT_READY: i32 = 600;

    /// Whether the device or its context is lost: every later call would fail too.
    pub(crate) fn is_fatal(code: i32) -> bool {
        // ECC, NVLink or HSA failures; illegal addresses and instructions; timeouts; asserts; a destroyed context;
        // an unspecified launch failure; an unknown error.
        matches!(
            code,
            214 | 220 | 700 | 702 | 709 | 710 | 714..=719 | 999 | 1052 | 1053
        )
    }
}

/// A field of the parameters of a kernel or of a struct in them, or an element of an array. Offset and size are in
/// bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    /// Empty for elements, and for the whole of the parameters or of a table's entry.
    pub name: String,
    pub at: u32,
    pub size: u32,
}

/// One launch of a kernel whose only parameter is a struct.
pub(crate) struct Launch {
    pub(crate) function: Handle,
    pub(crate) grid: [u32; 3],
    /// Blocks that run on neighbouring processors and share their memory, along the first dimension of the grid.
    pub(crate) cluster: u32,
    pub(crate) n_threads: u32,
    /// Bytes of dynamic shared memory.
    pub(crate) shared_bytes: u32,
    pub(crate) params: *const c_void,
    pub(crate) params_bytes: usize,
    pub(crate) stream: Handle,
    /// Whether the kernel may start before its predecessor has ended. It then waits for it itself.
    pub(crate) overlaps: bool,
}
