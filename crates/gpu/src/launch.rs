//! Loads kernel modules at their first use and queues launches.

use std::collections::HashMap;
use std::ffi::CString;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{MutexGuard, OnceLock};
use std::time::Instant;

use zerocopy::IntoBytes as _;

use crate::driver::api::{Field, Handle, Launch, name_of};
use crate::error::GpuError;
use crate::gpu::Gpu;
use crate::image::Image;
use crate::kernel::{Function, Kernel, Layout};
use crate::trace;

/// Dynamic shared memory that a launch may use without raising the function's limit.
const DEFAULT_SHARED_BYTES: u32 = 48 * 1024;

/// When a kernel may start.
enum Start {
    /// While the last blocks of its predecessor still run, on devices where kernels overlap.
    Overlapping,
    AfterPredecessor,
}

/// A loaded image.
pub(crate) struct Module {
    pub(crate) handle: Handle,
    /// Constants read from the image. Reading waits for the device, which is not allowed during a recording, so they
    /// are kept.
    constants: HashMap<&'static str, u32>,
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
                constants: HashMap::new(),
            };
            modules.insert(module, loaded);
        }
        Ok(modules)
    }

    /// Loads the kernels that `queue` would launch, without launching them: the first launch of a kernel takes milliseconds
    /// otherwise. No other thread may use the device meanwhile.
    ///
    /// # Errors
    /// Those of `queue`.
    pub fn load_kernels<E>(&self, queue: impl FnOnce() -> Result<(), E>) -> Result<(), E> {
        self.inner.loads_only.store(true, Ordering::Release);
        let result = queue();
        self.inner.loads_only.store(false, Ordering::Release);
        self.inner.begin_sequence();
        result
    }

    /// Returns the modules loaded so far.
    pub fn loaded_modules(&self) -> Vec<&'static str> {
        let modules = self.inner.modules.lock().unwrap_or_else(|e| e.into_inner());
        modules.keys().copied().collect()
    }

    pub(crate) fn no_symbol(&self, module: &str, name: &str) -> GpuError {
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

    /// Finds a kernel, after loading its module, unless that was done before.
    fn function<'k, P>(&self, kernel: &'k Kernel<P>) -> Result<&'k Function, GpuError> {
        if let Some(function) = kernel.function.get() {
            return Ok(function);
        }
        let modules = self.modules(kernel.module)?;
        // Another thread may have been first.
        if kernel.function.get().is_none() {
            let c_name = CString::new(kernel.name).expect("names contain no NUL");
            let (module, mut handle) = (modules[kernel.module].handle, std::ptr::null_mut());
            let calls = &self.inner.driver.calls;
            // SAFETY: the module is loaded.
            let code = unsafe { (calls.module_function)(&raw mut handle, module, c_name.as_ptr()) };
            if code != 0 {
                let call = name_of(self.inner.driver.vendor, "module_function");
                return Err(self.inner.failed(call, code, kernel.name));
            }
            let function = Function {
                handle,
                shared_bytes: AtomicU32::new(DEFAULT_SHARED_BYTES),
                concurrency: OnceLock::new(),
            };
            let is_first = kernel.function.set(function).is_ok();
            assert!(is_first, "the modules are locked");
        }
        Ok(kernel.function.get().expect("it was set"))
    }

    /// Raises a kernel's limit of dynamic shared memory to `shared_bytes`.
    fn allow_shared<P>(
        &self,
        kernel: &Kernel<P>,
        function: &Function,
        shared_bytes: u32,
    ) -> Result<(), GpuError> {
        // Keeps other threads from setting a lower limit after this.
        let _modules = self.modules(kernel.module)?;
        if shared_bytes <= function.shared_bytes.load(Ordering::Acquire) {
            return Ok(());
        }
        let vendor_api = &self.inner.driver.vendor_api;
        let code = vendor_api.allow_shared(function.handle, shared_bytes);
        if code != 0 {
            let more = format!("{shared_bytes} bytes of shared memory for {}", kernel.name);
            return Err(self.inner.failed("allow shared memory", code, &more));
        }
        function.shared_bytes.store(shared_bytes, Ordering::Release);
        Ok(())
    }

    /// Returns how many blocks the device runs at once, with as many threads and bytes of dynamic shared memory as `blocks`
    /// says.
    pub(crate) fn n_concurrent_blocks<P>(
        &self,
        kernel: &Kernel<P>,
        blocks: (u32, u32),
    ) -> Result<usize, GpuError> {
        self.inner.ready()?;
        let function = self.function(kernel)?;
        if let Some((_, known)) = function.concurrency.get().filter(|known| known.0 == blocks) {
            return Ok(*known);
        }
        let shared_bytes = blocks.1;
        if shared_bytes > function.shared_bytes.load(Ordering::Acquire) {
            self.allow_shared(kernel, function, shared_bytes)?;
        }
        let mut blocks_per_unit = 0;
        let facts = &self.inner.facts;
        self.inner.call("active_blocks", |calls| {
            let of = (function.handle, blocks);
            { &self.inner.driver.vendor_api }.active_blocks(calls, facts, of, &mut blocks_per_unit)
        })?;
        let n_units = facts.n_multiprocessors as usize;
        let at_once = (usize::try_from(blocks_per_unit).unwrap_or(0) * n_units).max(1);
        let _ = function.concurrency.set((blocks, at_once));
        Ok(at_once)
    }

    /// Returns how much dynamic shared memory the blocks of a launch take, at least `shared_bytes`, so that all processors get
    /// about as many of them: else blocks that start early fill some processors while others idle. `at_once`: how many the
    /// device would run at once.
    pub(crate) fn shared_bytes_for_even_blocks(
        &self,
        n_blocks: u32,
        at_once: usize,
        shared_bytes: u32,
    ) -> u32 {
        let facts = &self.inner.facts;
        let each = n_blocks.div_ceil(facts.n_multiprocessors.max(1));
        let is_even = (each * facts.n_multiprocessors) as usize >= at_once;
        if is_even || facts.max_shared_bytes < LEAST_SHARED_BYTES {
            return shared_bytes;
        }
        shared_bytes.max(bytes_of_each(each, facts.max_shared_bytes))
    }

    /// Returns the parameters as the kernel declares them: the whole, then its fields. `None` where images do not say.
    pub(crate) fn declared_layout<P>(
        &self,
        kernel: &Kernel<P>,
    ) -> Result<Option<Vec<Field>>, GpuError> {
        self.inner.ready()?;
        let function = self.function(kernel)?;
        Ok(self
            .inner
            .driver
            .vendor_api
            .declared_layout(function.handle))
    }

    /// Queues a kernel: `grid` blocks of `n_threads` threads, with `shared_bytes` of dynamic shared memory. Kernels
    /// that can wait for their predecessor (`gpu.h`) start their blocks while the last blocks of the previous kernel
    /// still run.
    pub(crate) fn launch<P: Layout>(
        &self,
        kernel: &Kernel<P>,
        grid: [u32; 3],
        n_threads: u32,
        shared_bytes: u32,
        params: &P,
    ) -> Result<(), GpuError> {
        self.launch_clusters(kernel, (grid, 1), n_threads, shared_bytes, params)
    }

    /// [`launch`](Gpu::launch) of a grid and the number of blocks of a cluster. Those run at the same time on neighbouring
    /// processors and share their memory. Only Hopper's kernels (`kernels/hopper`) have clusters of more than one.
    pub(crate) fn launch_clusters<P: Layout>(
        &self,
        kernel: &Kernel<P>,
        (grid, cluster): ([u32; 3], u32),
        n_threads: u32,
        shared_bytes: u32,
        params: &P,
    ) -> Result<(), GpuError> {
        let blocks = ((grid, cluster), n_threads, shared_bytes);
        self.queue(kernel, blocks, params, Start::Overlapping)
    }

    /// Queues a kernel without dynamic shared memory that starts only after the previous kernel has ended. For
    /// long-running blocks of about the number of processors: blocks that start early would share processors that have
    /// room and leave others idle.
    pub(crate) fn launch_alone<P: Layout>(
        &self,
        kernel: &Kernel<P>,
        grid: [u32; 3],
        n_threads: u32,
        params: &P,
    ) -> Result<(), GpuError> {
        self.queue(
            kernel,
            ((grid, 1), n_threads, 0),
            params,
            Start::AfterPredecessor,
        )
    }

    /// Says that the kernel queued last writes weights. The next one starts after it has ended, because kernels may read
    /// weights while their predecessor runs.
    pub(crate) fn wrote_weights(&self) {
        self.inner.writes_weights.store(true, Ordering::Release);
    }

    fn queue<P: Layout>(
        &self,
        kernel: &Kernel<P>,
        ((grid, cluster), n_threads, shared_bytes): (([u32; 3], u32), u32, u32),
        params: &P,
        start: Start,
    ) -> Result<(), GpuError> {
        if grid.contains(&0) {
            return Ok(());
        }
        let traced = trace::is_tracing(self).then(Instant::now);
        self.inner.ready()?;
        let function = self.function(kernel)?;
        if shared_bytes > function.shared_bytes.load(Ordering::Acquire) {
            self.allow_shared(kernel, function, shared_bytes)?;
        }
        if self.inner.loads_only.load(Ordering::Acquire) {
            self.inner.driver.vendor_api.load_function(function.handle);
            return Ok(());
        }
        let after_weights = self.inner.writes_weights.swap(false, Ordering::AcqRel);
        let launch = Launch {
            function: function.handle,
            grid,
            cluster,
            n_threads,
            shared_bytes,
            params: std::ptr::from_ref(params).cast(),
            params_bytes: size_of::<P>(),
            stream: self.inner.stream(),
            overlaps: self.inner.overlaps && matches!(start, Start::Overlapping) && !after_weights,
        };
        match self
            .inner
            .driver
            .vendor_api
            .launch(&self.inner.driver.calls, &launch)
        {
            0 => match traced {
                Some(at) => trace::record_launch((kernel.module, kernel.name), at),
                None => Ok(()),
            },
            code => Err(self.inner.failed(
                name_of(self.inner.driver.vendor, "launch"),
                code,
                kernel.name,
            )),
        }
    }
}

/// Processors with less shared memory than this run blocks as they come: the other way was not measured.
const LEAST_SHARED_BYTES: u32 = 200 << 10;

/// What the driver takes of a processor's shared memory for each block.
const RESERVED_BYTES: u32 = 1 << 10;

/// Returns how much shared memory a block takes so that `each` of them fit on a processor, and no more. A single block may have
/// `max_bytes`.
fn bytes_of_each(each: u32, max_bytes: u32) -> u32 {
    const UNIT: u32 = 256;
    let bytes = (max_bytes + RESERVED_BYTES) / (each + 1);
    (bytes / UNIT + 1) * UNIT - RESERVED_BYTES
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::process::Command;

    use super::*;
    use crate::device::{DeviceId, OpenOptions, image_targets};

    /// Blocks of so many threads and bytes of shared memory that HIP's stub runs at once. By its count, each of 96
    /// multiprocessors has 2048 threads and 64 KiB.
    fn at_once(arch: &str, blocks: (u32, u32)) -> Option<usize> {
        let Some(image) = image_targets().first().copied() else {
            println!("skipped: built without any kernels");
            return None;
        };
        let dir = tempfile::tempdir().unwrap();
        let library = dir.path().join("hip.so");
        let mut cc = Command::new("cc");
        cc.args(["-shared", "-fPIC", "-w", "-DHIP", "-DANY_KERNEL"])
            .args(["-DTHREADS=2048", "-DSHARED_BYTES=65536"])
            .arg(format!("-DARCH=\"{arch}\""))
            .arg("-o")
            .arg(&library)
            .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/stub/driver.c"));
        let Ok(status) = cc.status() else {
            println!("skipped: no C compiler");
            return None;
        };
        assert!(status.success());
        let options = OpenOptions {
            image: Some(image.to_string()),
            hip_library: Some(library),
            ..OpenOptions::default()
        };
        let gpu = Gpu::open_with(DeviceId::Hip(0), &options).unwrap();
        let kernel = Kernel::<u32>::new("elementwise", "add");
        Some(gpu.n_concurrent_blocks(&kernel, blocks).unwrap())
    }

    /// A work-group processor has twice the shared memory that HIP counts.
    #[test]
    fn pairs_of_compute_units_run_blocks_in_all_their_memory() {
        for (blocks, of_one, of_pair) in [
            // Threads are the limit, of which HIP counts those of the pair.
            ((128, 0), 16, 16),
            ((256, 4096), 8, 8),
            // Shared memory is.
            ((128, 24 << 10), 2, 4),
            ((256, 64 << 10), 1, 2),
            // Shared memory is, of one unit; threads are, of both.
            ((512, 20 << 10), 3, 4),
            // HIP counts no blocks of twice as many threads.
            ((1024, 48 << 10), 1, 1),
        ] {
            for (arch, expected) in [("gfx942", of_one), ("gfx1100", of_pair)] {
                let Some(found) = at_once(arch, blocks) else {
                    return;
                };
                assert_eq!(found, 96 * expected, "{arch} {blocks:?}");
            }
        }
    }

    #[test]
    fn as_many_blocks_fit_and_no_more() {
        // Of an H200.
        let max_bytes = 227 << 10;
        for each in 1..=16 {
            let bytes = bytes_of_each(each, max_bytes) + RESERVED_BYTES;
            assert_eq!((max_bytes + RESERVED_BYTES) / bytes, each);
        }
    }
}
