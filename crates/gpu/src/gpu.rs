//! An open device: its identity, its facts, and calls to its driver.

use std::any::Any;
use std::cell::Cell;
use std::collections::HashMap;
use std::ffi::{CStr, c_void};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};

use crate::deferred_free::DeferredFree;
use crate::device::{DeviceId, DeviceInfo, OpenOptions, Persona, Survey, choose_image};
use crate::driver::api::{Calls, Handle, Vendor, name_of};
use crate::driver::{Context, Driver, Facts, label};
use crate::error::GpuError;
use crate::launch::Module;
use crate::memory::{Buffer, meminfo_bytes};
use crate::ranges::{NamedRange, Ranges};
use crate::tuning::{Choice, Shape, Tuning};
use crate::variant::{Variant, Variants};

/// An open device. Launches are queued on its one stream and run in order. Clones refer to the same device.
#[derive(Clone)]
pub struct Gpu {
    pub(crate) inner: Arc<Inner>,
    variants: Variants,
    tuning: Arc<Tuning>,
    /// If they were asked for.
    ranges: Option<Arc<Result<Ranges, String>>>,
}

pub(crate) struct Inner {
    pub(crate) driver: &'static Driver,
    context: Context,
    /// See [`Inner::stream`].
    stream: Handle,
    /// The stream of a recording, if one is open.
    pub(crate) capturing: AtomicPtr<c_void>,
    id: DeviceId,
    pub(crate) facts: Facts,
    pub(crate) target: String,
    /// Whether its kernels may start before their predecessors have ended.
    pub(crate) overlaps: bool,
    /// Whether the kernel queued last writes weights.
    pub(crate) writes_weights: AtomicBool,
    /// Whether launches only load their kernels.
    pub(crate) loads_only: AtomicBool,
    /// Changes where launches do not follow those before them on the device: they are recorded, replayed or only loaded.
    sequence: AtomicU64,
    pub(crate) modules: Mutex<HashMap<&'static str, Module>>,
    /// The table of kernels, which `ops` defines (`ops/kernels.rs`).
    pub(crate) kernels: OnceLock<Box<dyn Any + Send + Sync>>,
    pub(crate) deferred_free: DeferredFree,
    /// Memory that products share (`ops/half.rs`).
    pub(crate) half_parts: Mutex<Weak<Buffer>>,
    /// Bytes of all buffers.
    pub(crate) allocated: AtomicU64,
    /// Bytes copied to the host.
    pub(crate) copied_to_host: AtomicU64,
    /// Limit on `allocated`.
    memory_bytes: u64,
    /// The error that made the device unusable.
    lost: OnceLock<GpuError>,
    /// Identifies the open device in `CURRENT`.
    serial: u64,
}

thread_local! {
    /// The serial of the device that is current in the thread's driver.
    static CURRENT: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: driver handles may be used from any thread; the map is behind a lock.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

impl Drop for Inner {
    fn drop(&mut self) {
        // After a lost device, driver calls may never return.
        if self.lost.get().is_none() && self.make_current().is_ok() {
            let calls = &self.driver.calls;
            let modules = self.modules.get_mut().unwrap_or_else(|e| e.into_inner());
            for module in modules.values() {
                // SAFETY: nothing of the module is used after this. Errors cannot be reported here.
                unsafe { (calls.module_unload)(module.handle) };
            }
            // SAFETY: as above.
            unsafe { (calls.stream_destroy)(self.stream) };
            self.driver.vendor_api.close(self.context);
        }
        CURRENT.set(0);
    }
}

impl Inner {
    /// The number of the sequence that the next launch is in.
    pub(crate) fn sequence(&self) -> u64 {
        self.sequence.load(Ordering::Acquire)
    }

    /// Says that what was queued so far need not have run when the next launch does.
    pub(crate) fn begin_sequence(&self) {
        self.sequence.fetch_add(1, Ordering::AcqRel);
    }

    /// Makes this the calling thread's current device.
    fn make_current(&self) -> Result<(), GpuError> {
        if CURRENT.get() == self.serial {
            return Ok(());
        }
        let code = self.driver.vendor_api.make_current(self.context);
        if code != 0 {
            return Err(self.failed("select the device", code, ""));
        }
        CURRENT.set(self.serial);
        Ok(())
    }

    /// Calls a function of the table, with this as the current device. `field` is the function's name in the table.
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

    /// Returns the stream that work is queued on: the one of the device, or of the recording that is open.
    pub(crate) fn stream(&self) -> Handle {
        let capturing = self.capturing.load(Ordering::Acquire);
        match capturing.is_null() {
            true => self.stream,
            false => capturing,
        }
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.lost.get().is_some()
    }

    /// Fails if the device is known to be lost; else makes it the thread's current device.
    pub(crate) fn ready(&self) -> Result<(), GpuError> {
        match self.lost.get() {
            Some(cause) => Err(GpuError::Lost {
                cause: Box::new(cause.clone()),
            }),
            None => self.make_current(),
        }
    }

    /// Builds the error of a failed call. Remembers it if the device is lost.
    pub(crate) fn failed(&self, call: &'static str, code: i32, more: &str) -> GpuError {
        let error = self.driver.error(call, code, more);
        if error.is_fatal() && self.driver.vendor != Vendor::Host {
            // The first error is the most informative one.
            let _ = self.lost.set(error.clone());
        }
        error
    }

    /// Returns free and total bytes of device memory. For a device that shares the system memory, free is limited to
    /// what the system has available.
    pub(crate) fn memory(&self) -> Result<[u64; 2], GpuError> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: both are written before the call returns.
        self.call("memory_info", |calls| unsafe {
            (calls.memory_info)(&raw mut free, &raw mut total)
        })?;
        let mut free = (free as u64).min(self.remaining_bytes());
        if self.facts.integrated {
            free = free.min(meminfo_bytes("MemAvailable").unwrap_or(free));
        }
        Ok([free, (total as u64).min(self.memory_bytes)])
    }

    /// Bytes that buffers may still allocate.
    pub(crate) fn remaining_bytes(&self) -> u64 {
        let allocated = self.allocated.load(Ordering::Relaxed);
        self.memory_bytes.saturating_sub(allocated)
    }
}

impl Survey {
    /// Opens each device that this build has kernels for briefly, for its free memory. One that cannot be opened becomes an
    /// error. Integrated GPUs beside a card stay closed: opening them has ended programs.
    #[must_use]
    pub fn with_free_memory(self, options: &OpenOptions) -> Survey {
        let is_card = |info: &DeviceInfo| !info.integrated && info.image.is_ok();
        let has_card = self.devices.iter().any(is_card);
        let devices = self.devices.into_iter();
        let mut survey = Survey {
            devices: Vec::new(),
            ..self
        };
        for info in devices {
            let opened = match info.image.is_ok() && (is_card(&info) || !has_card) {
                true => Gpu::open_with(info.id, options).and_then(|gpu| gpu.info()),
                false => Ok(info),
            };
            match opened {
                Ok(info) => survey.devices.push(info),
                Err(error) => survey.errors.push(error),
            }
        }
        survey
    }
}

impl Gpu {
    /// Opens a device with the best image of this build, or as the environment variables say
    /// ([`OpenOptions::from_env`]).
    pub fn open(id: DeviceId) -> Result<Gpu, GpuError> {
        Gpu::open_with(id, &OpenOptions::from_env())
    }

    /// Opens a device.
    ///
    /// # Errors
    /// [`GpuError::NoLibrary`] or [`GpuError::NoFunction`] if the driver is missing or too old. [`GpuError::NoDevice`].
    /// [`GpuError::NoImageForDevice`] or [`GpuError::NoImage`] if this build has no kernels for the device.
    /// [`GpuError::Driver`] if the driver refuses.
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
        let facts = driver.vendor_api.facts(driver, id.ordinal() as i32)?;
        let target = choose_image(&facts, options.image.as_deref())?;
        let mut gpu = Gpu::start((driver, id), facts, target, options.memory_bytes)?;
        if let Some(tool) = &options.ranges {
            gpu.ranges = Some(Arc::new(Ranges::of(driver.vendor, tool, options)));
        }
        Ok(gpu.with_variants(options.variants))
    }

    /// Opens a device with a chosen image.
    fn start(
        (driver, id): (&'static Driver, DeviceId),
        facts: Facts,
        target: String,
        memory_bytes: Option<u64>,
    ) -> Result<Gpu, GpuError> {
        static SERIAL: AtomicU64 = AtomicU64::new(1);
        let context = driver.vendor_api.open(driver, id.ordinal() as i32)?;
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
        let mut stream = std::ptr::null_mut();
        let mut code = driver.vendor_api.make_current(context);
        if code == 0 {
            CURRENT.set(serial);
            // SAFETY: `stream` is written before the call returns.
            code = unsafe { (driver.calls.stream_create)(&raw mut stream, 1) };
        }
        if code != 0 {
            driver.vendor_api.close(context);
            CURRENT.set(0);
            return Err(driver.error(name_of(driver.vendor, "stream_create"), code, ""));
        }
        Ok(Gpu {
            inner: Arc::new(Inner {
                driver,
                context,
                stream,
                capturing: AtomicPtr::default(),
                id,
                facts,
                overlaps: driver.vendor_api.can_overlap(driver, &target),
                writes_weights: AtomicBool::new(false),
                target,
                loads_only: AtomicBool::new(false),
                sequence: AtomicU64::new(0),
                modules: Mutex::default(),
                kernels: OnceLock::new(),
                deferred_free: DeferredFree::default(),
                half_parts: Mutex::default(),
                allocated: AtomicU64::new(0),
                copied_to_host: AtomicU64::new(0),
                memory_bytes: memory_bytes.unwrap_or(u64::MAX),
                lost: OnceLock::new(),
                serial,
            }),
            variants: Variants::default(),
            tuning: Arc::default(),
            ranges: None,
        })
    }

    /// Whether operations are to be named for a profiler ([`OpenOptions::ranges`]).
    ///
    /// # Errors
    /// Why no profiler takes the names. On AMD only a missing library is known.
    pub fn has_ranges(&self) -> Result<bool, &str> {
        match self.ranges.as_deref() {
            None => Ok(false),
            Some(Ok(_)) => Ok(true),
            Some(Err(reason)) => Err(reason),
        }
    }

    /// Begins a range with this name on the calling thread, if a profiler takes it and launches are real.
    pub fn range(&self, name: &CStr) -> Option<NamedRange<'_>> {
        if self.inner.loads_only.load(Ordering::Relaxed) {
            return None;
        }
        let ranges = self.ranges.as_deref()?.as_ref().ok()?;
        Some(ranges.begin(name))
    }

    /// Opens the CPU emulator as the GPU that [`Persona::name`] calls `persona`.
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

    /// Lists the AMD and NVIDIA devices of this machine without opening any, and why others could not be listed.
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
            if let Some(library) = &driver.library {
                survey.libraries.push((label(vendor), library.clone()));
            }
            for n in 0..n_devices as u32 {
                let id = DeviceId::of(vendor, n);
                match driver.vendor_api.facts(driver, n as i32) {
                    Ok(facts) => {
                        let image = choose_image(&facts, options.image.as_deref());
                        survey.devices.push(DeviceInfo::new(id, &facts, image));
                    }
                    Err(error) => survey.errors.push(error),
                }
            }
        }
        survey
    }

    /// Returns the facts about the device, with its free memory as of now.
    pub fn info(&self) -> Result<DeviceInfo, GpuError> {
        let [free_bytes, total_bytes] = self.inner.memory()?;
        Ok(DeviceInfo {
            total_bytes,
            free_bytes: Some(free_bytes),
            ..DeviceInfo::new(
                self.inner.id,
                &self.inner.facts,
                Ok(self.inner.target.clone()),
            )
        })
    }

    pub fn id(&self) -> DeviceId {
        self.inner.id
    }

    /// Bytes copied to the host through this handle and its clones. What kernels write to host memory does not count.
    pub fn bytes_copied_to_host(&self) -> u64 {
        self.inner.copied_to_host.load(Ordering::Relaxed)
    }

    /// Bytes of device memory allocated through this handle and its clones.
    pub fn allocated_bytes(&self) -> u64 {
        self.inner.allocated.load(Ordering::Relaxed)
    }

    /// Whether it shares the system memory.
    pub fn is_integrated(&self) -> bool {
        self.inner.facts.integrated
    }

    /// Compute units or multiprocessors.
    pub fn n_compute_units(&self) -> u32 {
        self.inner.facts.n_compute_units
    }

    /// Maximum shared memory of a block.
    pub fn max_shared_bytes(&self) -> u32 {
        self.inner.facts.max_shared_bytes
    }

    /// Ticks per second of the clock that kernels read, if the driver reports it.
    pub(crate) fn clock_hz(&self) -> Option<f64> {
        let khz = self.inner.facts.clock_khz;
        (khz > 0).then(|| f64::from(khz) * 1e3)
    }

    /// Bytes of free device memory now. For a device that shares the system memory, limited to what the system has
    /// available.
    pub fn free_bytes(&self) -> Result<u64, GpuError> {
        Ok(self.inner.memory()?[0])
    }

    pub fn total_bytes(&self) -> Result<u64, GpuError> {
        Ok(self.inner.memory()?[1])
    }

    /// Name of the image in use, e.g. `gfx1100`.
    pub fn target(&self) -> &str {
        &self.inner.target
    }

    /// Returns a handle of the same device whose operations use the forced `variants`.
    #[must_use]
    pub fn with_variants(&self, variants: Variants) -> Gpu {
        Gpu {
            variants,
            ..self.clone()
        }
    }

    /// The forced kernel variants.
    pub fn variants(&self) -> Variants {
        self.variants
    }

    /// Returns a handle of the same device whose launches follow `tuning`.
    #[must_use]
    pub fn with_tuning(&self, tuning: Arc<Tuning>) -> Gpu {
        Gpu {
            tuning,
            ..self.clone()
        }
    }

    pub fn tuning(&self) -> &Tuning {
        &self.tuning
    }

    /// Returns the tuned choice for launches of this shape, if any. Forced variants override tuning.
    pub(crate) fn tuned(&self, shape: impl FnOnce() -> Shape) -> Option<Choice> {
        match self.tuning.is_empty() || !self.variants.is_empty() {
            true => None,
            false => self.tuning.get(&shape()),
        }
    }

    /// Whether this variant is forced.
    pub fn takes(&self, variant: Variant) -> bool {
        self.variants.contains(variant)
    }
}
