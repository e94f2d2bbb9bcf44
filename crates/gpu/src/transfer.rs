//! Copies between host and device, and on the device.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::error::GpuError;
use crate::gpu::Gpu;
use crate::memory::{Buffer, Slice};

impl Gpu {
    /// Allocates device memory. Its content is undefined.
    pub fn alloc<T>(&self, len: usize) -> Result<Buffer, GpuError> {
        Buffer::new(Arc::clone(&self.inner), len * size_of::<T>())
    }

    /// Returns a new buffer with these values.
    pub fn upload<T: IntoBytes + Immutable>(&self, values: &[T]) -> Result<Buffer, GpuError> {
        let buffer = self.alloc::<T>(values.len())?;
        self.write(buffer.as_slice(), values)?;
        Ok(buffer)
    }

    /// Overwrites `to`, and waits until that is done.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn write<T: IntoBytes + Immutable>(
        &self,
        to: Slice<'_, T>,
        values: &[T],
    ) -> Result<(), GpuError> {
        assert_eq!(to.len(), values.len(), "lengths differ");
        let bytes = values.as_bytes();
        let stream = self.inner.stream();
        // SAFETY: both ranges have that many bytes, and live until the wait below is over.
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
        assert_eq!(to.len(), from.len(), "lengths differ");
        let stream = self.inner.stream();
        // SAFETY: both ranges have that many bytes.
        self.inner.call("copy_on_device", |calls| unsafe {
            (calls.copy_on_device)(to.ptr(), from.ptr(), to.len() * size_of::<T>(), stream)
        })
    }

    /// Queues setting every byte to `byte`.
    pub fn fill_bytes<T>(&self, to: Slice<'_, T>, byte: u8) -> Result<(), GpuError> {
        let stream = self.inner.stream();
        // SAFETY: the range has that many bytes.
        self.inner.call("fill_bytes", |calls| unsafe {
            (calls.fill_bytes)(to.ptr(), byte, to.len() * size_of::<T>(), stream)
        })
    }

    /// Returns the values after all launches so far.
    pub fn read<T: FromBytes + IntoBytes + Clone>(
        &self,
        from: Slice<'_, T>,
    ) -> Result<Vec<T>, GpuError> {
        let mut values = vec![T::new_zeroed(); from.len()];
        let bytes = values.as_mut_slice().as_mut_bytes();
        self.read_bytes(from.ptr(), bytes)?;
        Ok(values)
    }

    pub(crate) fn read_bytes(&self, from: u64, to: &mut [u8]) -> Result<(), GpuError> {
        let stream = self.inner.stream();
        let n_bytes = to.len() as u64;
        let copied_to_host = &self.inner.copied_to_host;
        copied_to_host.fetch_add(n_bytes, Ordering::Relaxed);
        // SAFETY: both ranges have that many bytes, and live until the wait below is over.
        let copied = self.inner.call("copy_to_host", |calls| unsafe {
            (calls.copy_to_host)(to.as_mut_ptr().cast(), from, to.len(), stream)
        });
        copied.and_then(|()| self.synchronize())
    }

    /// Waits for all launches so far.
    pub fn synchronize(&self) -> Result<(), GpuError> {
        let stream = self.inner.stream();
        // SAFETY: the stream lives as long as the device.
        self.inner.call("stream_synchronize", |calls| unsafe {
            (calls.stream_synchronize)(stream)
        })
    }
}
