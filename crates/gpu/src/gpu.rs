//! An open device: its images, its memory and its queue.

use std::collections::HashMap;
use std::ffi::{CString, c_void};
use std::sync::{Arc, Mutex};

use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::driver::api::{Api, Handle};
use crate::driver::host;
use crate::error::GpuError;
use crate::image::Image;
use crate::memory::{Buffer, Slice};

/// The parameters of a kernel, as its source declares them.
///
/// # Safety
/// The type is `#[repr(C)]` and has the fields of the kernel's struct, in its order; addresses in it are of memory
/// that the kernel may use as its source says.
pub unsafe trait Params: Copy {}

/// A device. Launches are queued and run in order.
pub struct Gpu {
    inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) api: &'static Api,
    target: String,
    modules: Mutex<HashMap<&'static str, Module>>,
}

struct Module {
    handle: Handle,
    functions: HashMap<&'static str, Handle>,
}

// SAFETY: handles of drivers may be used from any thread; the map is behind a lock.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

impl Drop for Inner {
    fn drop(&mut self) {
        for module in self
            .modules
            .get_mut()
            .unwrap_or_else(|e| e.into_inner())
            .values()
        {
            // SAFETY: nothing of the module is used after this.
            unsafe { (self.api.module_unload)(module.handle) };
        }
    }
}

impl Inner {
    pub(crate) fn check(&self, call: &'static str, code: i32) -> Result<(), GpuError> {
        if code == 0 {
            return Ok(());
        }
        Err(GpuError::Driver {
            call,
            code,
            text: (self.api.error_text)(code),
        })
    }
}

impl Gpu {
    /// The CPU as a GPU with the matrix units of `persona`: `gfx10`, `gfx11`, `gfx12`, `cdna` or `nv`.
    pub fn host(persona: &str) -> Result<Gpu, GpuError> {
        let target = format!("host-{persona}");
        if !crate::images().iter().any(|image| image.target == target) {
            return Err(GpuError::NoImage { target });
        }
        Ok(Gpu {
            inner: Arc::new(Inner {
                api: &host::API,
                target,
                modules: Mutex::default(),
            }),
        })
    }

    /// The images in use, e.g. `gfx1100`.
    pub fn target(&self) -> &str {
        &self.inner.target
    }

    /// Takes device memory. What is in it is not defined.
    pub fn alloc<T>(&self, len: usize) -> Result<Buffer, GpuError> {
        Buffer::new(Arc::clone(&self.inner), len * size_of::<T>())
    }

    /// A buffer with these values.
    pub fn upload<T: IntoBytes + Immutable>(&self, values: &[T]) -> Result<Buffer, GpuError> {
        let buffer = self.alloc::<T>(values.len())?;
        self.write(buffer.as_slice(), values)?;
        Ok(buffer)
    }

    /// Overwrites `to`.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn write<T: IntoBytes + Immutable>(
        &self,
        to: Slice<'_, T>,
        values: &[T],
    ) -> Result<(), GpuError> {
        assert_eq!(to.len(), values.len(), "as many values");
        let bytes = values.as_bytes();
        // SAFETY: both ranges have that many bytes.
        let code = unsafe {
            (self.inner.api.copy_to_device)(to.ptr(), bytes.as_ptr().cast(), bytes.len())
        };
        self.inner.check("copy to the device", code)
    }

    /// The values after all launches so far.
    pub fn read<T: FromBytes + IntoBytes + Clone>(
        &self,
        from: Slice<'_, T>,
    ) -> Result<Vec<T>, GpuError> {
        let mut values = vec![T::new_zeroed(); from.len()];
        let bytes = values.as_mut_slice().as_mut_bytes();
        // SAFETY: both ranges have that many bytes.
        let code = unsafe {
            (self.inner.api.copy_to_host)(bytes.as_mut_ptr().cast(), from.ptr(), bytes.len())
        };
        self.inner.check("copy to the host", code)?;
        Ok(values)
    }

    /// Waits for all launches so far.
    pub fn synchronize(&self) -> Result<(), GpuError> {
        // SAFETY: the null stream always exists.
        let code = unsafe { (self.inner.api.stream_synchronize)(std::ptr::null_mut()) };
        self.inner.check("synchronize", code)
    }

    fn with_module<R>(
        &self,
        module: &'static str,
        then: impl FnOnce(&mut Module) -> Result<R, GpuError>,
    ) -> Result<R, GpuError> {
        let mut modules = self.inner.modules.lock().expect("nothing panics in it");
        if !modules.contains_key(module) {
            let image =
                Image::find(&self.inner.target, module).ok_or_else(|| self.no(module, "kernel"))?;
            let bytes = host::image_bytes(&image.unpack());
            let mut handle = std::ptr::null_mut();
            // SAFETY: the image is one of this program's own, for this driver.
            let code =
                unsafe { (self.inner.api.module_load)(&raw mut handle, bytes.as_ptr().cast()) };
            self.inner.check("load module", code)?;
            let functions = HashMap::new();
            modules.insert(module, Module { handle, functions });
        }
        then(modules.get_mut(module).expect("it was just put there"))
    }

    fn no(&self, module: &str, name: &str) -> GpuError {
        GpuError::NoSymbol {
            target: self.inner.target.clone(),
            module: module.into(),
            name: name.into(),
        }
    }

    /// A number that the image exports (`EXPORT_U32`).
    pub fn constant(&self, module: &'static str, name: &'static str) -> Result<u32, GpuError> {
        let c_name = CString::new(name).expect("names have no zeros");
        let (mut ptr, mut n_bytes) = (0, 0);
        self.with_module(module, |loaded| {
            // SAFETY: the module is loaded.
            let code = unsafe {
                (self.inner.api.module_global)(
                    &raw mut ptr,
                    &raw mut n_bytes,
                    loaded.handle,
                    c_name.as_ptr(),
                )
            };
            if code != 0 || n_bytes != size_of::<u32>() {
                return Err(self.no(module, name));
            }
            Ok(())
        })?;
        let mut value = 0u32;
        // SAFETY: the symbol has four bytes.
        let code = unsafe { (self.inner.api.copy_to_host)((&raw mut value).cast(), ptr, 4) };
        self.inner.check("copy to the host", code)?;
        Ok(value)
    }

    /// Queues a kernel: `grid` blocks of `n_threads` threads, with `shared_bytes` of dynamic shared memory.
    pub fn launch<P: Params>(
        &self,
        (module, name): (&'static str, &'static str),
        grid: [u32; 3],
        n_threads: u32,
        shared_bytes: u32,
        params: &P,
    ) -> Result<(), GpuError> {
        if grid.contains(&0) {
            return Ok(());
        }
        let function = self.with_module(module, |loaded| {
            if let Some(function) = loaded.functions.get(name) {
                return Ok(*function);
            }
            let c_name = CString::new(name).expect("names have no zeros");
            let mut function = std::ptr::null_mut();
            // SAFETY: the module is loaded.
            let code = unsafe {
                (self.inner.api.module_function)(&raw mut function, loaded.handle, c_name.as_ptr())
            };
            if code != 0 {
                return Err(self.no(module, name));
            }
            loaded.functions.insert(name, function);
            Ok(function)
        })?;
        let mut pointers = [std::ptr::from_ref(params).cast_mut().cast::<c_void>()];
        // SAFETY: `P` is what the kernel takes; the driver copies it before it returns.
        let code = unsafe {
            (self.inner.api.launch)(
                function,
                grid[0],
                grid[1],
                grid[2],
                n_threads,
                1,
                1,
                shared_bytes,
                std::ptr::null_mut(),
                pointers.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        };
        self.inner.check(name, code)
    }
}
