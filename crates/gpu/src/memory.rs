//! Device memory: buffers that own it and slices that point into it.

use std::fs;
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use zerocopy::{Immutable, IntoBytes};

use crate::deferred_free::Memory;
use crate::driver::api::code;
use crate::error::GpuError;
use crate::gpu::{Gpu, Inner};

/// An allocation on the device, freed on drop. Aligned to 256 bytes.
pub struct Buffer {
    pub(crate) ptr: u64,
    n_bytes: usize,
    created_at: u64,
    gpu: Arc<Inner>,
}

impl Buffer {
    pub(crate) fn new(gpu: Arc<Inner>, n_bytes: usize) -> Result<Buffer, GpuError> {
        let mut ptr = 0;
        if n_bytes as u64 > gpu.remaining_bytes() {
            let [free, total] = gpu.memory()?;
            let bytes = n_bytes as u64;
            return Err(GpuError::OutOfMemory { bytes, free, total });
        }
        // SAFETY: `ptr` is written before the call returns.
        let allocated = gpu.call("alloc", |calls| unsafe {
            (calls.alloc)(&raw mut ptr, n_bytes.max(1))
        });
        allocated.map_err(|error| out_of_memory(&gpu, error, n_bytes))?;
        let created_at = gpu.deferred_free.lock().tick();
        gpu.allocated.fetch_add(n_bytes as u64, Ordering::Relaxed);
        Ok(Buffer {
            ptr,
            n_bytes,
            created_at,
            gpu,
        })
    }

    pub fn n_bytes(&self) -> usize {
        self.n_bytes
    }

    /// Whether this memory belongs to `gpu`.
    pub(crate) fn is_of(&self, gpu: &Gpu) -> bool {
        Arc::ptr_eq(&self.gpu, &gpu.inner)
    }

    /// Whether its device is known to be lost.
    pub fn is_lost(&self) -> bool {
        self.gpu.is_lost()
    }

    /// Returns the whole buffer as values of `T`.
    ///
    /// # Panics
    /// If the size is not a multiple of the size of `T`.
    pub fn as_slice<T>(&self) -> Slice<'_, T> {
        assert!(
            self.n_bytes.is_multiple_of(size_of::<T>()),
            "the buffer is not a whole number of values"
        );
        Slice {
            ptr: self.ptr,
            len: self.n_bytes / size_of::<T>(),
            lifetime: PhantomData,
        }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let n_bytes = self.n_bytes as u64;
        self.gpu.allocated.fetch_sub(n_bytes, Ordering::Relaxed);
        self.gpu.release(self.created_at, Memory::Device(self.ptr));
    }
}

impl Inner {
    /// Frees memory as soon as no graph may use it.
    pub(crate) fn release(&self, created_at: u64, memory: Memory) {
        let free = self.deferred_free.lock().release(created_at, memory);
        self.free(&free);
    }

    pub(crate) fn end_recording(&self) {
        let free = self.deferred_free.lock().end();
        self.free(&free);
    }

    pub(crate) fn drop_graph(&self, created_at: u64) {
        let free = self.deferred_free.lock().remove_graph(created_at);
        self.free(&free);
    }

    /// Frees memory after all queued work is done. Errors cannot be reported here; a lost device has no memory to free.
    fn free(&self, all: &[Memory]) {
        if all.is_empty() {
            return;
        }
        // SAFETY: nothing uses the memory after this: its owner is dropped, and so are the graphs that may have used
        // it.
        let _ = self.call("free", |calls| unsafe {
            (calls.stream_synchronize)(self.stream());
            for memory in all {
                match memory {
                    Memory::Device(ptr) => (calls.free)(*ptr),
                    Memory::Pinned(ptr) => (calls.free_pinned)(*ptr),
                };
            }
            0
        });
    }
}

/// Converts the error of an allocation of `n_bytes`. If memory ran out, the result says how much is free.
pub(crate) fn out_of_memory(gpu: &Inner, error: GpuError, n_bytes: usize) -> GpuError {
    if !matches!(
        error,
        GpuError::Driver {
            code: code::OUT_OF_MEMORY,
            ..
        }
    ) {
        return error;
    }
    let [free, total] = gpu.memory().unwrap_or_default();
    GpuError::OutOfMemory {
        bytes: n_bytes as u64,
        free,
        total,
    }
}

/// Returns a line of `/proc/meminfo` in bytes.
pub(crate) fn meminfo_bytes(name: &str) -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// A device address in the parameters of a kernel. Only a [`Slice`] has one.
#[repr(transparent)]
#[derive(Clone, Copy, Default, PartialEq, Eq, IntoBytes, Immutable)]
pub(crate) struct Address(u64);

impl Address {
    /// The address of an operand that is missing.
    pub(crate) const NULL: Address = Address(0);

    /// The address with these of its lowest bits set, which are zeros.
    pub(crate) fn with_bits(self, bits: u64) -> Address {
        Address(self.0 | bits)
    }

    pub(crate) fn is_aligned_to(self, n_bytes: u64) -> bool {
        self.0.is_multiple_of(n_bytes)
    }
}

/// Values in device memory, `[len]`. Copies refer to the same memory; the order of launches decides who writes when.
pub struct Slice<'a, T> {
    ptr: u64,
    len: usize,
    lifetime: PhantomData<&'a T>,
}

impl<T> Clone for Slice<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Slice<'_, T> {}

impl<'a, T> Slice<'a, T> {
    pub(crate) fn of_address(ptr: u64, len: usize) -> Slice<'a, T> {
        let lifetime = PhantomData;
        Slice { ptr, len, lifetime }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The device address, for calls of the driver.
    pub(crate) fn ptr(&self) -> u64 {
        self.ptr
    }

    /// The device address, for the parameters of a kernel.
    pub(crate) fn address(&self) -> Address {
        Address(self.ptr)
    }

    /// Returns part of the values.
    ///
    /// # Panics
    /// If the range goes past the end.
    pub fn part(&self, range: Range<usize>) -> Slice<'a, T> {
        assert!(
            range.start <= range.end && range.end <= self.len,
            "{range:?} of {} values",
            self.len
        );
        Slice {
            ptr: self.ptr + (range.start * size_of::<T>()) as u64,
            len: range.len(),
            lifetime: PhantomData,
        }
    }

    /// Reinterprets the bytes as values of `U`.
    ///
    /// # Panics
    /// If the size or the alignment does not suit `U`.
    pub fn cast<U>(&self) -> Slice<'a, U> {
        let n_bytes = self.len * size_of::<T>();
        assert!(
            n_bytes.is_multiple_of(size_of::<U>())
                && self.ptr.is_multiple_of(align_of::<U>() as u64),
            "the bytes are not whole, aligned values"
        );
        Slice {
            ptr: self.ptr,
            len: n_bytes / size_of::<U>(),
            lifetime: PhantomData,
        }
    }
}
