//! The function table. Signatures are those of CUDA's driver API, which HIP's match call for call.

use std::ffi::{c_char, c_void};

/// An opaque object of a driver.
pub(crate) type Handle = *mut c_void;

/// What a driver can do. Results are the driver's own codes; 0 is success.
pub(crate) struct Api {
    pub(crate) alloc: unsafe extern "C" fn(*mut u64, usize) -> i32,
    pub(crate) free: unsafe extern "C" fn(u64) -> i32,
    pub(crate) copy_to_device: unsafe extern "C" fn(u64, *const c_void, usize) -> i32,
    pub(crate) copy_to_host: unsafe extern "C" fn(*mut c_void, u64, usize) -> i32,
    pub(crate) module_load: unsafe extern "C" fn(*mut Handle, *const c_void) -> i32,
    pub(crate) module_unload: unsafe extern "C" fn(Handle) -> i32,
    pub(crate) module_function: unsafe extern "C" fn(*mut Handle, Handle, *const c_char) -> i32,
    pub(crate) module_global:
        unsafe extern "C" fn(*mut u64, *mut usize, Handle, *const c_char) -> i32,
    /// function, grid (x, y, z), block (x, y, z), dynamic shared bytes, stream, parameters, extra.
    pub(crate) launch: unsafe extern "C" fn(
        Handle,
        u32,
        u32,
        u32,
        u32,
        u32,
        u32,
        u32,
        Handle,
        *mut *mut c_void,
        *mut *mut c_void,
    ) -> i32,
    pub(crate) stream_synchronize: unsafe extern "C" fn(Handle) -> i32,
    /// The text of a code.
    pub(crate) error_text: fn(i32) -> String,
}
