//! Host memory that the device reads and writes too: kernels by its device address, copies without a detour.

use std::ffi::c_void;
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::error::GpuError;
use crate::gpu::{Gpu, Inner};
use crate::keeper::Memory;
use crate::memory::{Slice, out_of_memory};

/// Portable (every context may use it) and mapped (the device has an address of it).
const PORTABLE_MAPPED: u32 = 1 | 2;

/// Values in host memory, `[len]`, that the device has an address of. They begin as zeros. The device may change them at
/// any time while work that knows them is queued; when that is done an [`crate::Event`] or a word among them says.
pub struct Pinned<T> {
    host: *mut T,
    device: u64,
    len: usize,
    born: u64,
    gpu: Arc<Inner>,
    values: PhantomData<T>,
}

// SAFETY: the memory belongs to this value alone, wherever that is.
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
        let born = gpu.keeper.lock().tick();
        // SAFETY: the memory has that many bytes.
        unsafe { host.cast::<u8>().write_bytes(0, n_bytes) };
        let mut pinned = Pinned {
            host: host.cast(),
            device: 0,
            len,
            born,
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

    /// The values as the device sees them.
    pub fn device(&self) -> Slice<'_, T> {
        Slice::of_address(self.device, self.len)
    }

    /// A value as it is now; what the device wrote before it is seen after.
    ///
    /// # Panics
    /// If there is none at `i`.
    pub fn get(&self, i: usize) -> T {
        assert!(i < self.len, "{i} of {} values", self.len);
        // SAFETY: `i` is in range, and every pattern of bits is a value. Volatile, because the device may write it.
        let value = unsafe { self.host.add(i).read_volatile() };
        fence(Ordering::Acquire);
        value
    }

    /// The values, of which no queued work may write any.
    ///
    /// # Panics
    /// If there are fewer.
    pub fn read(&self, range: Range<usize>) -> Vec<T> {
        assert!(
            range.start <= range.end && range.end <= self.len,
            "{range:?} of {} values",
            self.len
        );
        fence(Ordering::Acquire);
        // SAFETY: the range is within the memory, every pattern of bits is a value, and nothing writes it meanwhile.
        unsafe { std::slice::from_raw_parts(self.host.add(range.start), range.len()) }.to_vec()
    }

    /// Overwrites a value; what was written before is seen by the device before it.
    ///
    /// # Panics
    /// If there is none at `i`.
    pub fn set(&mut self, i: usize, value: T) {
        assert!(i < self.len, "{i} of {} values", self.len);
        fence(Ordering::Release);
        // SAFETY: `i` is in range. Volatile, because the device may read it.
        unsafe { self.host.add(i).write_volatile(value) };
    }

    /// Overwrites the first values. No work may be queued that reads them.
    ///
    /// # Panics
    /// If there are fewer.
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

    /// As [`Pinned::write`], from the value at `first` on; of those no queued work may read.
    ///
    /// # Panics
    /// If there are fewer.
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
            .give_up(self.born, Memory::Pinned(self.host.cast()));
    }
}

impl Gpu {
    /// Queues a copy of the first values of `from`, as many as `to` has. They must not be overwritten before it is done.
    ///
    /// # Panics
    /// If there are fewer.
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
        let stream = self.inner.stream;
        // SAFETY: both ranges have that many bytes; pinned memory is freed only after what was queued before.
        self.inner.call("copy_to_device", |calls| unsafe {
            let n_bytes = to.len() * size_of::<T>();
            (calls.copy_to_device)(to.ptr(), from.host().cast(), n_bytes, stream)
        })
    }

    /// Queues a copy to the first values of `to`, as many as `from` has.
    ///
    /// # Panics
    /// If there are fewer.
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
        let stream = self.inner.stream;
        // SAFETY: as above.
        self.inner.call("copy_to_host", |calls| unsafe {
            let n_bytes = from.len() * size_of::<T>();
            (calls.copy_to_host)(to.host.cast(), from.ptr(), n_bytes, stream)
        })
    }
}
