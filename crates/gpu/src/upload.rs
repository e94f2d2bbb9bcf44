//! Uploads file data to the device in a pipeline of three stages: one chunk is read into pinned memory while the
//! previous one is copied and the one before that is repacked by kernels. Two staging slots alternate; events mark when
//! each is free.

use std::num::NonZero;
use std::thread::available_parallelism;

use rocmforge_gguf::GgmlType;

use crate::error::GpuError;
use crate::event::{Event, Stream};
use crate::gpu::Gpu;
use crate::memory::{Buffer, Slice};
use crate::operands::Matrix;
use crate::ops;
use crate::pinned::Pinned;

/// Bytes of a matrix that are copied, then repacked on the device, at once. Rows are not split.
const CHUNK_BYTES: usize = 16 << 20;
/// More threads do not read faster.
const MAX_THREADS: usize = 8;
/// Rows repacked at once are a multiple of this, except for the last ones.
const ROW_STEP: usize = 16;

/// Returns the bytes of whole rows of a matrix `[n_out, n_in]` that [`Uploader::repack`] copies at once.
///
/// # Panics
/// If a row is not a whole number of blocks.
pub fn chunk_bytes(ty: GgmlType, shape: [usize; 2]) -> usize {
    let [n_rows, row_bytes] = chunk(ty, shape);
    n_rows * row_bytes
}

/// Returns the rows copied at once, and the bytes of one row.
fn chunk(ty: GgmlType, [n_out, n_in]: [usize; 2]) -> [usize; 2] {
    let row_bytes = ty
        .row_bytes(n_in)
        .expect("rows are a whole number of blocks")
        .max(1);
    let fitting = CHUNK_BYTES / row_bytes / ROW_STEP * ROW_STEP;
    [fitting.max(ROW_STEP).min(n_out.max(1)), row_bytes]
}

/// Copies chunks of bytes to the device.
pub struct Uploader {
    /// First field, so that its copies end before their memory is freed.
    copies: Stream,
    slots: [Slot; 2],
    n_uploads: usize,
    /// Threads that read a chunk.
    n_threads: usize,
    gpu: Gpu,
}

struct Slot {
    host: Pinned<u8>,
    device: Buffer,
    /// The copy from `host` to `device`.
    copied: Event,
    /// The launches that read `device`.
    used: Event,
}

impl Uploader {
    /// Creates an uploader for chunks of at most `chunk_bytes`. Allocates twice that in pinned and in device memory.
    pub fn new(gpu: &Gpu, chunk_bytes: usize) -> Result<Uploader, GpuError> {
        let slot = || {
            Ok(Slot {
                host: Pinned::new(gpu, chunk_bytes)?,
                device: gpu.alloc::<u8>(chunk_bytes)?,
                copied: Event::new(gpu)?,
                used: Event::new(gpu)?,
            })
        };
        Ok(Uploader {
            copies: Stream::new(gpu)?,
            slots: [slot()?, slot()?],
            n_uploads: 0,
            n_threads: available_parallelism()
                .map_or(1, NonZero::get)
                .min(MAX_THREADS),
            gpu: gpu.clone(),
        })
    }

    pub fn chunk_bytes(&self) -> usize {
        self.slots[0].host.len()
    }

    /// Copies one chunk to the device and calls `then` with it, which queues the launches that use it. Returns when the
    /// chunk is read, before it is copied.
    ///
    /// # Panics
    /// If the chunk is longer than `chunk_bytes`.
    pub fn upload(
        &mut self,
        chunk: &[u8],
        then: impl FnOnce(Slice<'_, u8>) -> Result<(), GpuError>,
    ) -> Result<(), GpuError> {
        let slot = &mut self.slots[self.n_uploads % 2];
        if self.n_uploads >= 2 {
            slot.copied.wait()?;
            slot.used.block_stream(self.copies.handle)?;
        }
        slot.host.write_by(self.n_threads, chunk);
        let (device, copies) = (
            slot.device.as_slice::<u8>().part(0..chunk.len()),
            self.copies.handle,
        );
        // SAFETY: both ranges have that many bytes. The pinned memory is not written before `copied`, the device memory
        // not before `used`.
        self.gpu.inner.call("copy_to_device", |calls| unsafe {
            (calls.copy_to_device)(device.ptr(), slot.host.host().cast(), chunk.len(), copies)
        })?;
        slot.copied.record_on(copies)?;
        slot.copied.block_stream(self.gpu.inner.stream())?;
        let queued = then(device);
        slot.used.record()?;
        self.n_uploads += 1;
        queued
    }

    /// Copies chunks to the device one after the other. Calls `then` with the index of each chunk and the chunk on the
    /// device.
    ///
    /// # Panics
    /// If a chunk is longer than `chunk_bytes`.
    pub fn upload_all<'c>(
        &mut self,
        chunks: impl IntoIterator<Item = &'c [u8]>,
        mut then: impl FnMut(usize, Slice<'_, u8>) -> Result<(), GpuError>,
    ) -> Result<(), GpuError> {
        let mut chunks = chunks.into_iter().enumerate();
        chunks.try_for_each(|(i, chunk)| self.upload(chunk, |bytes| then(i, bytes)))
    }

    /// Copies a matrix to the device and repacks it into `out`. `blocks` are its rows in file layout.
    ///
    /// # Errors
    /// [`GpuError::Format`] for types without kernels. Errors of the device.
    ///
    /// # Panics
    /// If the uploader was created for less than [`chunk_bytes`] of the matrix, or the rows are not those of `out`.
    pub fn repack(&mut self, blocks: &[u8], out: &Matrix<'_>) -> Result<(), GpuError> {
        let gpu = self.gpu.clone();
        let [n_rows, row_bytes] = chunk(out.ty, [out.n_out, out.n_in]);
        self.upload_all(blocks.chunks(n_rows * row_bytes), |i, blocks| {
            ops::repack(&gpu, blocks, out, i * n_rows)
        })
    }

    /// Waits until everything is copied and used.
    pub fn finish(self) -> Result<(), GpuError> {
        self.gpu.synchronize()
    }
}
