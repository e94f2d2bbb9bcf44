//! An open device: its images, its memory and its queue.

use std::cell::Cell;
use std::collections::HashMap;
use std::ffi::CString;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Instant;

use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::device::{DeviceId, DeviceInfo, OpenOptions, Persona, Survey, choose_image};
use crate::driver::api::{Calls, Handle, Launch, Vendor, name_of};
use crate::driver::{Context, Driver, Facts, label};
use crate::error::GpuError;
use crate::image::Image;
use crate::keeper::Keeper;
use crate::memory::{Buffer, Slice, machine_bytes};
use crate::trace;

/// Dynamic shared memory that a launch may have without asking for more.
const PLAIN_SHARED_BYTES: u32 = 48 * 1024;

/// The parameters of a kernel, as its source declares them.
///
/// # Safety
/// The type is `#[repr(C)]` and has the fields of the kernel's struct, in its order; addresses in it are of memory
/// that the kernel may use as its source says.
pub unsafe trait Params: Copy {}

/// A device in use. Launches are queued on its one stream and run in order. Clones are the same device.
#[derive(Clone)]
pub struct Gpu {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) driver: &'static Driver,
    context: Context,
    pub(crate) stream: Handle,
    id: DeviceId,
    facts: Facts,
    target: String,
    modules: Mutex<HashMap<&'static str, Module>>,
    pub(crate) keeper: Keeper,
    /// Bytes of all buffers.
    pub(crate) allocated: AtomicU64,
    /// The error after which the device can do no more.
    lost: OnceLock<GpuError>,
    /// Tells devices in use apart, for `CURRENT`.
    serial: u64,
}

struct Module {
    handle: Handle,
    functions: HashMap<&'static str, Function>,
    /// Numbers that were read from the image: reading waits for the device, which a recording does not allow.
    constants: HashMap<&'static str, u32>,
}

#[derive(Clone, Copy)]
struct Function {
    handle: Handle,
    /// Dynamic shared memory that its launches may have.
    shared_bytes: u32,
}

thread_local! {
    /// The serial of the device that is the thread's current one in its driver.
    static CURRENT: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: handles of drivers may be used from any thread; the map is behind a lock.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

impl Drop for Inner {
    fn drop(&mut self) {
        // A driver that lost its device may never return.
        if self.lost.get().is_none() && self.make_current().is_ok() {
            let calls = &self.driver.calls;
            let modules = self.modules.get_mut().unwrap_or_else(|e| e.into_inner());
            for module in modules.values() {
                // SAFETY: nothing of the module is used after this. Failures have nobody to be told to.
                unsafe { (calls.module_unload)(module.handle) };
            }
            // SAFETY: as above.
            unsafe { (calls.stream_destroy)(self.stream) };
            self.driver.own.close(self.context);
        }
        CURRENT.set(0);
    }
}

impl Inner {
    /// Makes this the thread's device.
    fn make_current(&self) -> Result<(), GpuError> {
        if CURRENT.get() == self.serial {
            return Ok(());
        }
        let code = self.driver.own.make_current(self.context);
        if code != 0 {
            return Err(self.failed("select the device", code, ""));
        }
        CURRENT.set(self.serial);
        Ok(())
    }

    /// Calls a function of the table with this as the thread's device; `field` is its name there.
    pub(crate) fn call(
        &self,
        field: &'static str,
        call: impl FnOnce(&Calls) -> i32,
    ) -> Result<(), GpuError> {
        self.ready()?;
        match call(&self.driver.calls) {
            0 => Ok(()),
            code => Err(self.failed(name_of(self.driver.vendor, field), code, "")),
        }
    }

    /// Whether the device works, as far as is known; makes it the thread's.
    pub(crate) fn ready(&self) -> Result<(), GpuError> {
        match self.lost.get() {
            Some(cause) => Err(GpuError::Lost {
                cause: Box::new(cause.clone()),
            }),
            None => self.make_current(),
        }
    }

    /// The error of a failed call; remembers it if the device is lost with it.
    pub(crate) fn failed(&self, call: &'static str, code: i32, more: &str) -> GpuError {
        let error = self.driver.error(call, code, more);
        if error.is_fatal() && self.driver.vendor != Vendor::Host {
            // The first error is the one that says most.
            let _ = self.lost.set(error.clone());
        }
        error
    }

    /// Free and total bytes of device memory; of a device that shares the machine's, no more than the machine has left.
    pub(crate) fn memory(&self) -> Result<[u64; 2], GpuError> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: both are written before the call returns.
        self.call("memory_info", |calls| unsafe {
            (calls.memory_info)(&raw mut free, &raw mut total)
        })?;
        let mut free = free as u64;
        if self.facts.integrated {
            free = free.min(machine_bytes("MemAvailable").unwrap_or(free));
        }
        Ok([free, total as u64])
    }
}

impl Gpu {
    /// Opens a device with the best image of this build, or as the environment says ([`OpenOptions::from_env`]).
    pub fn open(id: DeviceId) -> Result<Gpu, GpuError> {
        Gpu::open_with(id, &OpenOptions::from_env())
    }

    /// Opens a device.
    ///
    /// # Errors
    /// [`GpuError::NoLibrary`], [`GpuError::NoFunction`]: the driver is missing or too old. [`GpuError::NoDevice`].
    /// [`GpuError::NoImageForDevice`], [`GpuError::NoImage`]: this build has no kernels for it. [`GpuError::Driver`]:
    /// the driver refuses.
    pub fn open_with(id: DeviceId, options: &OpenOptions) -> Result<Gpu, GpuError> {
        let driver = options.driver(id.vendor())?;
        let n_devices = driver.n_devices()?;
        if id.ordinal() as usize >= n_devices {
            return Err(GpuError::NoDevice {
                driver: label(driver.vendor),
                device: id.to_string(),
                n_devices,
            });
        }
        let facts = driver.own.facts(driver, id.ordinal() as i32)?;
        let target = choose_image(&facts, options.image.as_deref())?;
        Gpu::start(driver, id, facts, target)
    }

    /// Opens a device whose image is chosen.
    fn start(
        driver: &'static Driver,
        id: DeviceId,
        facts: Facts,
        target: String,
    ) -> Result<Gpu, GpuError> {
        static SERIAL: AtomicU64 = AtomicU64::new(1);
        let context = driver.own.open(driver, id.ordinal() as i32)?;
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
        let mut stream = std::ptr::null_mut();
        let mut code = driver.own.make_current(context);
        if code == 0 {
            CURRENT.set(serial);
            // SAFETY: `stream` is written before the call returns.
            code = unsafe { (driver.calls.stream_create)(&raw mut stream, 1) };
        }
        if code != 0 {
            driver.own.close(context);
            CURRENT.set(0);
            return Err(driver.error(name_of(driver.vendor, "stream_create"), code, ""));
        }
        Ok(Gpu {
            inner: Arc::new(Inner {
                driver,
                context,
                stream,
                id,
                facts,
                target,
                modules: Mutex::default(),
                keeper: Keeper::default(),
                allocated: AtomicU64::new(0),
                lost: OnceLock::new(),
                serial,
            }),
        })
    }

    /// The CPU as a GPU with the matrix units of `persona`: `gfx10`, `gfx11`, `gfx12`, `cdna` or `nv`.
    pub fn host(persona: &str) -> Result<Gpu, GpuError> {
        let target = format!("host-{persona}");
        let Some(known) = Persona::ALL.into_iter().find(|p| p.name() == persona) else {
            return Err(GpuError::NoImage { target });
        };
        let options = OpenOptions {
            image: Some(target),
            ..OpenOptions::default()
        };
        Gpu::open_with(DeviceId::Host(known), &options)
    }

    /// The AMD and NVIDIA devices of this machine.
    pub fn list() -> Vec<DeviceInfo> {
        Gpu::survey(&OpenOptions::from_env()).devices
    }

    /// The AMD and NVIDIA devices of this machine, and what kept others from being found. Each is used for a moment, to
    /// ask for its memory.
    pub fn survey(options: &OpenOptions) -> Survey {
        let mut survey = Survey::default();
        for vendor in [Vendor::Hip, Vendor::Cuda] {
            let found = options
                .driver(vendor)
                .and_then(|driver| Ok((driver, driver.n_devices()?)));
            let (driver, n_devices) = match found {
                Ok(found) => found,
                Err(error) => {
                    survey.errors.push(error);
                    continue;
                }
            };
            for n in 0..n_devices as u32 {
                let id = match vendor {
                    Vendor::Hip => DeviceId::Hip(n),
                    _ => DeviceId::Cuda(n),
                };
                match Gpu::describe(driver, id, options) {
                    Ok(info) => survey.devices.push(info),
                    Err(error) => survey.errors.push(error),
                }
            }
        }
        survey
    }

    fn describe(
        driver: &'static Driver,
        id: DeviceId,
        options: &OpenOptions,
    ) -> Result<DeviceInfo, GpuError> {
        let facts = driver.own.facts(driver, id.ordinal() as i32)?;
        let image = choose_image(&facts, options.image.as_deref());
        let mut info = Gpu::start(driver, id, facts, String::new())?.info()?;
        info.image = image;
        Ok(info)
    }

    /// What is known of the device; the free memory is that of now.
    pub fn info(&self) -> Result<DeviceInfo, GpuError> {
        let [free_bytes, total_bytes] = self.inner.memory()?;
        let facts = &self.inner.facts;
        Ok(DeviceInfo {
            id: self.inner.id,
            name: facts.name.clone(),
            architecture: facts.architecture.clone(),
            total_bytes,
            free_bytes,
            integrated: facts.integrated,
            n_compute_units: facts.n_compute_units,
            max_shared_bytes: facts.max_shared_bytes,
            driver_version: facts.driver_version.clone(),
            runtime_version: facts.runtime_version.clone(),
            image: Ok(self.inner.target.clone()),
        })
    }

    pub fn id(&self) -> DeviceId {
        self.inner.id
    }

    /// Bytes of device memory that buffers of this process's use of the device have now.
    pub fn allocated_bytes(&self) -> u64 {
        self.inner.allocated.load(Ordering::Relaxed)
    }

    /// Compute units or multiprocessors.
    pub fn n_compute_units(&self) -> u32 {
        self.inner.facts.n_compute_units
    }

    /// The most shared memory that a block can have.
    pub fn max_shared_bytes(&self) -> u32 {
        self.inner.facts.max_shared_bytes
    }

    /// Device memory that is free now. A device that shares the machine's memory has no more than the machine.
    pub fn free_bytes(&self) -> Result<u64, GpuError> {
        Ok(self.inner.memory()?[0])
    }

    pub fn total_bytes(&self) -> Result<u64, GpuError> {
        Ok(self.inner.memory()?[1])
    }

    /// The image in use, e.g. `gfx1100`.
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
        let stream = self.inner.stream;
        // SAFETY: both ranges have that many bytes, and are there until the wait below is over.
        self.inner.call("copy_to_device", |calls| unsafe {
            (calls.copy_to_device)(to.ptr(), bytes.as_ptr().cast(), bytes.len(), stream)
        })?;
        self.synchronize()
    }

    /// Queues a copy on the device.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn copy<T>(&self, from: Slice<'_, T>, to: Slice<'_, T>) -> Result<(), GpuError> {
        assert_eq!(to.len(), from.len(), "as many values");
        let stream = self.inner.stream;
        // SAFETY: both ranges have that many bytes.
        self.inner.call("copy_on_device", |calls| unsafe {
            (calls.copy_on_device)(to.ptr(), from.ptr(), to.len() * size_of::<T>(), stream)
        })
    }

    /// Queues setting every byte to `byte`.
    pub fn fill_bytes<T>(&self, to: Slice<'_, T>, byte: u8) -> Result<(), GpuError> {
        let stream = self.inner.stream;
        // SAFETY: the range has that many bytes.
        self.inner.call("fill_bytes", |calls| unsafe {
            (calls.fill_bytes)(to.ptr(), byte, to.len() * size_of::<T>(), stream)
        })
    }

    /// The values after all launches so far.
    pub fn read<T: FromBytes + IntoBytes + Clone>(
        &self,
        from: Slice<'_, T>,
    ) -> Result<Vec<T>, GpuError> {
        let mut values = vec![T::new_zeroed(); from.len()];
        let bytes = values.as_mut_slice().as_mut_bytes();
        self.read_bytes(from.ptr(), bytes)?;
        Ok(values)
    }

    fn read_bytes(&self, from: u64, to: &mut [u8]) -> Result<(), GpuError> {
        let stream = self.inner.stream;
        // SAFETY: both ranges have that many bytes, and are there until the wait below is over.
        let copied = self.inner.call("copy_to_host", |calls| unsafe {
            (calls.copy_to_host)(to.as_mut_ptr().cast(), from, to.len(), stream)
        });
        copied.and_then(|()| self.synchronize())
    }

    /// Waits for all launches so far.
    pub fn synchronize(&self) -> Result<(), GpuError> {
        let stream = self.inner.stream;
        // SAFETY: the stream is there as long as the device.
        self.inner.call("stream_synchronize", |calls| unsafe {
            (calls.stream_synchronize)(stream)
        })
    }

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
            let assembled = image.unpack_assembled().map(|image| load(&image));
            let (code, said) = match assembled {
                Some((0, said)) => (0, said),
                _ => load(&image.unpack()),
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
            }),
            code => Err(self.inner.failed(
                name_of(self.inner.driver.vendor, "module_function"),
                code,
                name,
            )),
        }
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
