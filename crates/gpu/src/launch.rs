//! Loads kernel modules at their first use and queues launches.

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

/// Dynamic shared memory that a launch may use without raising the function's limit.
const DEFAULT_SHARED_BYTES: u32 = 48 * 1024;

/// When a kernel may start.
enum Start {
    /// While the last blocks of its predecessor still run, on devices where kernels overlap.
    Overlapping,
    AfterPredecessor,
}

/// The parameters of a kernel, as declared in its source.
///
/// # Safety
/// The type is `#[repr(C)]` and has the fields of the kernel's struct in the same order. Addresses in it point to
/// memory that the kernel may use as its source says.
pub unsafe trait Params: Copy {}

/// A loaded image.
pub(crate) struct Module {
    pub(crate) handle: Handle,
    functions: HashMap<&'static str, Function>,
    /// Constants read from the image. Reading waits for the device, which is not allowed during a recording, so they
    /// are kept.
    constants: HashMap<&'static str, u32>,
}

#[derive(Clone, Copy)]
struct Function {
    handle: Handle,
    /// Dynamic shared memory that its launches may use.
    shared_bytes: u32,
    /// Threads per block and how many such blocks run at once, if this was queried.
    concurrency: Option<(u32, usize)>,
}

impl Gpu {
    /// Returns the loaded modules, after loading `module` if this is its first use.
    fn modules(
        &self,
        module: &'static str,
    ) -> Result<MutexGuard<'_, HashMap<&'static str, Module>>, GpuError> {
        let mut modules = self.inner.modules.lock().unwrap_or_else(|e| e.into_inner());
        if !modules.contains_key(module) {
            let image = Image::find(&self.inner.target, module)
                .ok_or_else(|| self.no_symbol(module, "kernel"))?;
            let mut handle = std::ptr::null_mut();
            let mut load =
                |image: &[u8]| self.inner.driver.vendor_api.load_module(image, &mut handle);
            let assembled = image.unpack_assembled()?.map(|image| load(&image));
            let (code, message) = match assembled {
                Some((0, message)) => (0, message),
                _ => load(&image.unpack()?),
            };
            if code != 0 {
                let more = format!("{message} (module {module} for {})", self.inner.target);
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

    /// Returns the modules loaded so far.
    pub fn loaded_modules(&self) -> Vec<&'static str> {
        let modules = self.inner.modules.lock().unwrap_or_else(|e| e.into_inner());
        modules.keys().copied().collect()
    }

    fn no_symbol(&self, module: &str, name: &str) -> GpuError {
        GpuError::NoSymbol {
            target: self.inner.target.clone(),
            module: module.into(),
            name: name.into(),
        }
    }

    /// Reads a constant that the image exports (`EXPORT_U32`).
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
        let c_name = CString::new(name).expect("names contain no NUL");
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
            return Err(self.no_symbol(module, name));
        }
        let mut value = 0u32;
        self.read_bytes(ptr, value.as_mut_bytes())?;
        let mut modules = self.modules(module)?;
        let module = modules.get_mut(module).expect("it is loaded");
        module.constants.insert(name, value);
        Ok(value)
    }

    /// Returns a kernel of a module, with its limit of dynamic shared memory raised to `shared_bytes`.
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
                .vendor_api
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

    /// Returns how many blocks of `n_threads` threads the device runs at once, for a kernel without dynamic shared
    /// memory.
    pub(crate) fn n_concurrent_blocks(
        &self,
        (module, name): (&'static str, &'static str),
        n_threads: u32,
    ) -> Result<usize, GpuError> {
        self.inner.ready()?;
        let handle = self.function(module, name, 0)?;
        let mut modules = self.modules(module)?;
        let functions = &mut modules.get_mut(module).expect("it is loaded").functions;
        let function = functions.get_mut(name).expect("`function` inserted it");
        if let Some((_, known)) = function.concurrency.filter(|known| known.0 == n_threads) {
            return Ok(known);
        }
        let mut blocks_per_unit = 0;
        // SAFETY: the function is of a loaded module; the number is written before the call returns.
        self.inner.call("active_blocks", |calls| unsafe {
            (calls.active_blocks)(&raw mut blocks_per_unit, handle, n_threads as i32, 0)
        })?;
        let n_units = self.n_compute_units() as usize;
        let at_once = (usize::try_from(blocks_per_unit).unwrap_or(0) * n_units).max(1);
        function.concurrency = Some((n_threads, at_once));
        Ok(at_once)
    }

    fn find_function(&self, module: Handle, name: &'static str) -> Result<Function, GpuError> {
        let c_name = CString::new(name).expect("names contain no NUL");
        let mut handle = std::ptr::null_mut();
        // SAFETY: the module is loaded.
        let code = unsafe {
            (self.inner.driver.calls.module_function)(&raw mut handle, module, c_name.as_ptr())
        };
        match code {
            0 => Ok(Function {
                handle,
                shared_bytes: DEFAULT_SHARED_BYTES,
                concurrency: None,
            }),
            code => Err(self.inner.failed(
                name_of(self.inner.driver.vendor, "module_function"),
                code,
                name,
            )),
        }
    }

    /// Queues a kernel: `grid` blocks of `n_threads` threads, with `shared_bytes` of dynamic shared memory. Kernels
    /// that can wait for their predecessor (`gpu.h`) start their blocks while the last blocks of the previous kernel
    /// still run.
    pub fn launch<P: Params>(
        &self,
        kernel: (&'static str, &'static str),
        grid: [u32; 3],
        n_threads: u32,
        shared_bytes: u32,
        params: &P,
    ) -> Result<(), GpuError> {
        let blocks = (grid, n_threads, shared_bytes);
        self.queue(kernel, blocks, params, Start::Overlapping)
    }

    /// Queues a kernel without dynamic shared memory that starts only after the previous kernel has ended. For
    /// long-running blocks of about the number of processors: blocks that start early would share processors that have
    /// room and leave others idle.
    pub(crate) fn launch_alone<P: Params>(
        &self,
        kernel: (&'static str, &'static str),
        grid: [u32; 3],
        n_threads: u32,
        params: &P,
    ) -> Result<(), GpuError> {
        self.queue(
            kernel,
            (grid, n_threads, 0),
            params,
            Start::AfterPredecessor,
        )
    }

    fn queue<P: Params>(
        &self,
        (module, name): (&'static str, &'static str),
        (grid, n_threads, shared_bytes): ([u32; 3], u32, u32),
        params: &P,
        start: Start,
    ) -> Result<(), GpuError> {
        if grid.contains(&0) {
            return Ok(());
        }
        let traced = trace::is_tracing(self).then(Instant::now);
        self.inner.ready()?;
        let launch = Launch {
            function: self.function(module, name, shared_bytes)?,
            grid,
            n_threads,
            shared_bytes,
            params: std::ptr::from_ref(params).cast(),
            params_bytes: size_of::<P>(),
            stream: self.inner.stream,
            overlaps: self.inner.overlaps && matches!(start, Start::Overlapping),
        };
        match self
            .inner
            .driver
            .vendor_api
            .launch(&self.inner.driver.calls, &launch)
        {
            0 => match traced {
                Some(at) => trace::record_launch((module, name), at),
                None => Ok(()),
            },
            code => Err(self
                .inner
                .failed(name_of(self.inner.driver.vendor, "launch"), code, name)),
        }
    }
}
