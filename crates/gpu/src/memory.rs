//! Device memory: buffers that own it and slices that point into it.

use std::marker::PhantomData;
use std::ops::Range;
use std::sync::Arc;

use crate::error::GpuError;
use crate::gpu::Inner;

/// An allocation on the device, freed when it is dropped. Its first byte is aligned to 256 bytes.
pub struct Buffer {
    pub(crate) ptr: u64,
    n_bytes: usize,
    gpu: Arc<Inner>,
}

impl Buffer {
    pub(crate) fn new(gpu: Arc<Inner>, n_bytes: usize) -> Result<Buffer, GpuError> {
        let mut ptr = 0;
        // SAFETY: `ptr` is written before the call returns.
        let code = unsafe { (gpu.api.alloc)(&raw mut ptr, n_bytes.max(1)) };
        gpu.check("alloc", code)?;
        Ok(Buffer { ptr, n_bytes, gpu })
    }

    pub fn n_bytes(&self) -> usize {
        self.n_bytes
    }

    /// The whole buffer as values of `T`.
    ///
    /// # Panics
    /// If it is not a whole number of them.
    pub fn as_slice<T>(&self) -> Slice<'_, T> {
        assert!(self.n_bytes.is_multiple_of(size_of::<T>()), "whole values");
        Slice {
            ptr: self.ptr,
            len: self.n_bytes / size_of::<T>(),
            lifetime: PhantomData,
        }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: the buffer is not used after this; work that was queued before has its memory until it is done,
        // because drivers free in order. A failure has nobody to be told to.
        unsafe { (self.gpu.api.free)(self.ptr) };
    }
}

/// Values in device memory, `[len]`. Copies refer to the same memory: the order of launches says who writes when.
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
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The address, for the parameters of a kernel.
    pub fn ptr(&self) -> u64 {
        self.ptr
    }

    /// Part of the values.
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

    /// The same bytes as other values.
    ///
    /// # Panics
    /// If they are not a whole number of them, or not aligned for them.
    pub fn cast<U>(&self) -> Slice<'a, U> {
        let n_bytes = self.len * size_of::<T>();
        assert!(
            n_bytes.is_multiple_of(size_of::<U>())
                && self.ptr.is_multiple_of(align_of::<U>() as u64),
            "whole and aligned values"
        );
        Slice {
            ptr: self.ptr,
            len: n_bytes / size_of::<U>(),
            lifetime: PhantomData,
        }
    }
}
