//! Pinned host memory that the device can access: kernels by its device address, copies directly.

use std::ffi::c_void;
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::thread::Builder;

use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::deferred_free::Memory;
use crate::error::GpuError;
use crate::gpu::{Gpu, Inner};
use crate::memory::{Slice, out_of_memory};

/// Portable (usable by every context) and mapped (has a device address).
const PORTABLE_MAPPED: u32 = 1 | 2;

/// Values in pinned host memory, `[len]`, zeros at first. The device may change them at any time while work that uses
/// them is queued. An [`crate::Event`] or a flag among the values tells when that work is done.
pub struct Pinned<T> {
    host: *mut T,
    device: u64,
    len: usize,
    created_at: u64,
    gpu: Arc<Inner>,
    values: PhantomData<T>,
}

// SAFETY: the memory belongs to this value alone.
unsafe impl<T: Send> Send for Pinned<T> {}

impl<T: FromBytes + IntoBytes + Immutable + Copy> Pinned<T> {
    pub fn new(gpu: &Gpu, len: usize) -> Result<Pinned<T>, GpuError> {
        let gpu = Arc::clone(&gpu.inner);
        let n_bytes = (len * size_of::<T>()).max(1);
        let (mut host, mut device) = (std::ptr::null_mut::<c_void>(), 0);
        // SAFETY: `host` is written before the call returns.
        let allocated = gpu.call("alloc_pinned", |calls| unsafe {
            (calls.alloc_pinned)(&raw mut host, n_bytes, PORTABLE_MAPPED)
        });
        allocated.map_err(|error| out_of_memory(&gpu, error, n_bytes))?;
        let created_at = gpu.deferred_free.lock().tick();
        // SAFETY: the memory has that many bytes.
        unsafe { host.cast::<u8>().write_bytes(0, n_bytes) };
        let mut pinned = Pinned {
            host: host.cast(),
            device: 0,
            len,
            created_at,
            gpu,
            values: PhantomData,
        };
        // SAFETY: the memory was allocated as mapped; `device` is written before the call returns.
        pinned.gpu.call("device_address", |calls| unsafe {
            (calls.device_address)(&raw mut device, host, 0)
        })?;
        pinned.device = device;
        Ok(pinned)
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the values at their device address.
    pub fn device(&self) -> Slice<'_, T> {
        Slice::of_address(self.device, self.len)
    }

    /// Reads one value as it is now. What the device wrote before this value is visible afterwards.
    ///
    /// # Panics
    /// If `i` is out of range.
    pub fn get(&self, i: usize) -> T {
        assert!(i < self.len, "{i} of {} values", self.len);
        // SAFETY: `i` is in range, and every bit pattern is a value. Volatile, because the device may write it.
        let value = unsafe { self.host.add(i).read_volatile() };
        fence(Ordering::Acquire);
        value
    }

    /// Copies values out. No queued work may write them.
    ///
    /// # Panics
    /// If the range goes past the end.
    pub fn read(&self, range: Range<usize>) -> Vec<T> {
        assert!(
            range.start <= range.end && range.end <= self.len,
            "{range:?} of {} values",
            self.len
        );
        fence(Ordering::Acquire);
        // SAFETY: the range is within the memory, every bit pattern is a value, and nothing writes it meanwhile.
        unsafe { std::slice::from_raw_parts(self.host.add(range.start), range.len()) }.to_vec()
    }

    /// Overwrites one value. The device sees earlier writes before this one.
    ///
    /// # Panics
    /// If `i` is out of range.
    pub fn set(&mut self, i: usize, value: T) {
        assert!(i < self.len, "{i} of {} values", self.len);
        fence(Ordering::Release);
        // SAFETY: `i` is in range. Volatile, because the device may read it.
        unsafe { self.host.add(i).write_volatile(value) };
    }

    /// Overwrites the first values. No queued work may read any value.
    ///
    /// # Panics
    /// If `values` is longer than the memory.
    pub fn write(&mut self, values: &[T]) {
        assert!(
            values.len() <= self.len,
            "{} of {} values",
            values.len(),
            self.len
        );
        // SAFETY: both ranges have that many values, and do not overlap.
        unsafe {
            self.host
                .copy_from_nonoverlapping(values.as_ptr(), values.len())
        };
    }

    /// As [`Pinned::write`], by up to `n_threads` threads: a GPU takes the pages of a file faster than one thread reads them.
    ///
    /// # Panics
    /// If `values` is longer than the memory.
    pub fn write_by(&mut self, n_threads: usize, values: &[T])
    where
        T: Send + Sync,
    {
        /// Less is copied faster than a thread starts.
        const LEAST_BYTES: usize = 1 << 20;
        let n_bytes = size_of_val(values);
        let n_threads = n_threads.min(n_bytes / LEAST_BYTES).max(1);
        if n_threads == 1 {
            return self.write(values);
        }
        assert!(
            values.len() <= self.len,
            "{} of {} values",
            values.len(),
            self.len
        );
        // SAFETY: the memory has that many values, every bit pattern is one, and nothing else uses it.
        let memory = unsafe { std::slice::from_raw_parts_mut(self.host, values.len()) };
        let n_each = values.len().div_ceil(n_threads);
        let mut are_started = true;
        std::thread::scope(|scope| {
            let mut parts = memory.chunks_mut(n_each).zip(values.chunks(n_each));
            let own = parts.next();
            for (to, from) in parts {
                let copy = || to.copy_from_slice(from);
                are_started &= Builder::new().spawn_scoped(scope, copy).is_ok();
            }
            own.into_iter()
                .for_each(|(to, from)| to.copy_from_slice(from));
        });
        // Where the system starts no more threads, this one copies.
        if !are_started {
            self.write(values);
        }
    }

    /// As [`Pinned::write`], from `first` on. No queued work may read the overwritten values.
    ///
    /// # Panics
    /// If `values` goes past the end.
    pub fn write_at(&mut self, first: usize, values: &[T]) {
        let end = first.checked_add(values.len());
        assert!(
            end.is_some_and(|end| end <= self.len),
            "{} of {} values from {first}",
            values.len(),
            self.len
        );
        // SAFETY: both ranges have that many values, and do not overlap.
        unsafe {
            self.host
                .add(first)
                .copy_from_nonoverlapping(values.as_ptr(), values.len())
        };
        fence(Ordering::Release);
    }

    pub(crate) fn host(&self) -> *const T {
        self.host
    }
}

impl<T> Drop for Pinned<T> {
    fn drop(&mut self) {
        self.gpu
            .release(self.created_at, Memory::Pinned(self.host.cast()));
    }
}

impl Gpu {
    /// Queues a copy of the first `to.len()` values of `from`. They must not be overwritten before the copy is done.
    ///
    /// # Panics
    /// If `from` has fewer values.
    pub fn write_pinned<T: FromBytes + IntoBytes + Immutable + Copy>(
        &self,
        to: Slice<'_, T>,
        from: &Pinned<T>,
    ) -> Result<(), GpuError> {
        assert!(
            to.len() <= from.len(),
            "{} of {} values",
            to.len(),
            from.len()
        );
        let stream = self.inner.stream();
        // SAFETY: both ranges have that many bytes; pinned memory is freed only after the work queued before.
        self.inner.call("copy_to_device", |calls| unsafe {
            let n_bytes = to.len() * size_of::<T>();
            (calls.copy_to_device)(to.ptr(), from.host().cast(), n_bytes, stream)
        })
    }

    /// Queues a copy of `from` to the first values of `to`.
    ///
    /// # Panics
    /// If `to` has fewer values.
    pub fn read_pinned<T: FromBytes + IntoBytes + Immutable + Copy>(
        &self,
        from: Slice<'_, T>,
        to: &mut Pinned<T>,
    ) -> Result<(), GpuError> {
        assert!(
            from.len() <= to.len(),
            "{} of {} values",
            from.len(),
            to.len()
        );
        let stream = self.inner.stream();
        let n_bytes = from.len() * size_of::<T>();
        let copied_to_host = &self.inner.copied_to_host;
        copied_to_host.fetch_add(n_bytes as u64, Ordering::Relaxed);
        // SAFETY: as above.
        self.inner.call("copy_to_host", |calls| unsafe {
            (calls.copy_to_host)(to.host.cast(), from.ptr(), n_bytes, stream)
        })
    }
}
