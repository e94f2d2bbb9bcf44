//! Kernels of a device: modules are loaded at their first use, and launches queued.

use std::collections::HashMap;
use std::ffi::CString;
use std::sync::MutexGuard;
use std::time::Instant;

use zerocopy::IntoBytes as _;

use crate::driver::api::{Handle, Launch, name_of};
use crate::error::GpuError;
use crate::gpu::Gpu;
use crate::image::Image;
use crate::trace;

/// Dynamic shared memory that a launch may have without asking for more.
const PLAIN_SHARED_BYTES: u32 = 48 * 1024;

/// The parameters of a kernel, as its source declares them.
///
/// # Safety
/// The type is `#[repr(C)]` and has the fields of the kernel's struct, in its order; addresses in it are of memory
/// that the kernel may use as its source says.
pub unsafe trait Params: Copy {}

/// A loaded image.
pub(crate) struct Module {
    pub(crate) handle: Handle,
    functions: HashMap<&'static str, Function>,
    /// Numbers that were read from the image: reading waits for the device, which a recording does not allow.
    constants: HashMap<&'static str, u32>,
}

#[derive(Clone, Copy)]
struct Function {
    handle: Handle,
    /// Dynamic shared memory that its launches may have.
    shared_bytes: u32,
    /// Threads of a block, and how many such blocks the device runs at once, where that was asked for.
    at_once: Option<(u32, usize)>,
}

impl Gpu {
    /// The module of this name, loaded at its first use.
    fn modules(
        &self,
        module: &'static str,
    ) -> Result<MutexGuard<'_, HashMap<&'static str, Module>>, GpuError> {
        let mut modules = self.inner.modules.lock().unwrap_or_else(|e| e.into_inner());
        if !modules.contains_key(module) {
            let image =
                Image::find(&self.inner.target, module).ok_or_else(|| self.no(module, "kernel"))?;
            let mut handle = std::ptr::null_mut();
            let mut load = |image: &[u8]| self.inner.driver.own.load_module(image, &mut handle);
            let assembled = image.unpack_assembled()?.map(|image| load(&image));
            let (code, said) = match assembled {
                Some((0, said)) => (0, said),
                _ => load(&image.unpack()?),
            };
            if code != 0 {
                let more = format!("{said} (module {module} for {})", self.inner.target);
                return Err(self.inner.failed("load module", code, more.trim()));
            }
            let loaded = Module {
                handle,
                functions: HashMap::new(),
                constants: HashMap::new(),
            };
            modules.insert(module, loaded);
        }
        Ok(modules)
    }

    /// The modules that were loaded so far.
    pub fn loaded_modules(&self) -> Vec<&'static str> {
        let modules = self.inner.modules.lock().unwrap_or_else(|e| e.into_inner());
        modules.keys().copied().collect()
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
        self.inner.ready()?;
        let handle = {
            let modules = self.modules(module)?;
            let module = &modules[module];
            if let Some(value) = module.constants.get(name) {
                return Ok(*value);
            }
            module.handle
        };
        let c_name = CString::new(name).expect("names have no zeros");
        let (mut ptr, mut n_bytes) = (0, 0);
        // SAFETY: the module is loaded.
        let code = unsafe {
            (self.inner.driver.calls.module_global)(
                &raw mut ptr,
                &raw mut n_bytes,
                handle,
                c_name.as_ptr(),
            )
        };
        if code != 0 || n_bytes != size_of::<u32>() {
            return Err(self.no(module, name));
        }
        let mut value = 0u32;
        self.read_bytes(ptr, value.as_mut_bytes())?;
        let mut modules = self.modules(module)?;
        let module = modules.get_mut(module).expect("it is loaded");
        module.constants.insert(name, value);
        Ok(value)
    }

    /// A kernel of a module, allowed this much dynamic shared memory.
    fn function(
        &self,
        module: &'static str,
        name: &'static str,
        shared_bytes: u32,
    ) -> Result<Handle, GpuError> {
        let mut modules = self.modules(module)?;
        let module = modules.get_mut(module).expect("it is loaded");
        let known = module.functions.get(name).copied();
        let mut function = match known {
            Some(function) if function.shared_bytes >= shared_bytes => return Ok(function.handle),
            Some(function) => function,
            None => self.find_function(module.handle, name)?,
        };
        if shared_bytes > function.shared_bytes {
            let code = self
                .inner
                .driver
                .own
                .allow_shared(function.handle, shared_bytes);
            if code != 0 {
                let more = format!("{shared_bytes} bytes of shared memory for {name}");
                return Err(self.inner.failed("allow shared memory", code, &more));
            }
            function.shared_bytes = shared_bytes;
        }
        module.functions.insert(name, function);
        Ok(function.handle)
    }

    /// How many blocks of `n_threads` threads of a kernel without dynamic shared memory the device runs at once.
    pub(crate) fn blocks_at_once(
        &self,
        (module, name): (&'static str, &'static str),
        n_threads: u32,
    ) -> Result<usize, GpuError> {
        self.inner.ready()?;
        let handle = self.function(module, name, 0)?;
        let mut modules = self.modules(module)?;
        let functions = &mut modules.get_mut(module).expect("it is loaded").functions;
        let function = functions.get_mut(name).expect("it was found");
        if let Some((_, known)) = function.at_once.filter(|known| known.0 == n_threads) {
            return Ok(known);
        }
        let mut of_unit = 0;
        // SAFETY: the function is of a loaded module; the number is written before the call returns.
        self.inner.call("active_blocks", |calls| unsafe {
            (calls.active_blocks)(&raw mut of_unit, handle, n_threads as i32, 0)
        })?;
        let n_units = self.n_compute_units() as usize;
        let at_once = (usize::try_from(of_unit).unwrap_or(0) * n_units).max(1);
        function.at_once = Some((n_threads, at_once));
        Ok(at_once)
    }

    fn find_function(&self, module: Handle, name: &'static str) -> Result<Function, GpuError> {
        let c_name = CString::new(name).expect("names have no zeros");
        let mut handle = std::ptr::null_mut();
        // SAFETY: the module is loaded.
        let code = unsafe {
            (self.inner.driver.calls.module_function)(&raw mut handle, module, c_name.as_ptr())
        };
        match code {
            0 => Ok(Function {
                handle,
                shared_bytes: PLAIN_SHARED_BYTES,
                at_once: None,
            }),
            code => Err(self.inner.failed(
                name_of(self.inner.driver.vendor, "module_function"),
                code,
                name,
            )),
        }
    }

    /// Queues a kernel: `grid` blocks of `n_threads` threads, with `shared_bytes` of dynamic shared memory. Where kernels
    /// can wait for those before them (`gpu.h`), its blocks start while the last ones of the kernel before it still run.
    pub fn launch<P: Params>(
        &self,
        kernel: (&'static str, &'static str),
        grid: [u32; 3],
        n_threads: u32,
        shared_bytes: u32,
        params: &P,
    ) -> Result<(), GpuError> {
        let blocks = (grid, n_threads, shared_bytes);
        self.queue(kernel, blocks, params, self.inner.overlaps)
    }

    /// [`Gpu::launch`] of a kernel without dynamic shared memory that starts when the one before it has ended: for blocks
    /// that last long, of which there are about as many as processors. Those that start early go where there is room and
    /// leave other processors idle.
    pub(crate) fn launch_alone<P: Params>(
        &self,
        kernel: (&'static str, &'static str),
        grid: [u32; 3],
        n_threads: u32,
        params: &P,
    ) -> Result<(), GpuError> {
        self.queue(kernel, (grid, n_threads, 0), params, false)
    }

    fn queue<P: Params>(
        &self,
        (module, name): (&'static str, &'static str),
        (grid, n_threads, shared_bytes): ([u32; 3], u32, u32),
        params: &P,
        overlaps: bool,
    ) -> Result<(), GpuError> {
        if grid.contains(&0) {
            return Ok(());
        }
        let traced = trace::is_on(self).then(Instant::now);
        self.inner.ready()?;
        let launch = Launch {
            function: self.function(module, name, shared_bytes)?,
            grid,
            n_threads,
            shared_bytes,
            params: std::ptr::from_ref(params).cast(),
            params_bytes: size_of::<P>(),
            stream: self.inner.stream,
            overlaps,
        };
        match self
            .inner
            .driver
            .own
            .launch(&self.inner.driver.calls, &launch)
        {
            0 => match traced {
                Some(at) => trace::launched((module, name), at),
                None => Ok(()),
            },
            code => Err(self
                .inner
                .failed(name_of(self.inner.driver.vendor, "launch"), code, name)),
        }
    }
}
