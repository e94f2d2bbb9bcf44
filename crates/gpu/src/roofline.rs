//! What a device's memory can do at best (`kernels/bandwidth.hip`): the bound of everything that reads each weight once.

use crate::error::GpuError;
use crate::event::Event;
use crate::gpu::Gpu;
use crate::launch::Params;
use crate::memory::Slice;

const THREADS: u32 = 256;
/// Blocks for each compute unit: as many threads as any of them holds.
const BLOCKS_PER_UNIT: u32 = 8;
/// Most that is read at once; larger than any cache, and a small part of any card.
const MAX_BYTES: u64 = 2 << 30;
/// Part of the free memory that is taken.
const PART_OF_FREE: u64 = 4;
/// Timed passes, of which the best counts: others may use the device too.
const N_PASSES: usize = 5;

#[repr(C)]
#[derive(Clone, Copy)]
struct ReadParams {
    words: u64,
    sums: u64,
    n_words: u64,
    n_blocks: u32,
    _pad: u32,
}

const _: () = assert!(size_of::<ReadParams>() == 32);

// SAFETY: as `ReadParams` in bandwidth.hip.
unsafe impl Params for ReadParams {}

/// Reads all of `words`, which begin at a multiple of 16 bytes. `sums` `[n_blocks]`: what the words that each block read
/// add up to, mod 2^32.
///
/// # Panics
/// If the words are not aligned.
pub fn read_all(gpu: &Gpu, words: Slice<'_, u32>, sums: Slice<'_, u32>) -> Result<(), GpuError> {
    assert!(words.ptr().is_multiple_of(16), "words are aligned");
    let params = ReadParams {
        words: words.ptr(),
        sums: sums.ptr(),
        n_words: words.len() as u64,
        n_blocks: sums.len() as u32,
        _pad: 0,
    };
    gpu.launch(
        ("bandwidth", "read_all"),
        [params.n_blocks, 1, 1],
        THREADS,
        0,
        &params,
    )
}

/// Bytes that a second reads from the memory of `gpu`, measured: the best of 5 passes over 2 GiB, or over a quarter of
/// what is free.
///
/// # Errors
/// Those of the device, and [`GpuError::OutOfMemory`].
pub fn read_bandwidth(gpu: &Gpu) -> Result<f64, GpuError> {
    let n_bytes = MAX_BYTES.min(gpu.free_bytes()? / PART_OF_FREE);
    let words = gpu.alloc::<u32>(n_bytes as usize / size_of::<u32>())?;
    let sums = gpu.alloc::<u32>((gpu.n_compute_units() * BLOCKS_PER_UNIT) as usize)?;
    // Memory that was never written may not be there.
    gpu.fill_bytes(words.as_slice::<u32>(), 1)?;
    read_all(gpu, words.as_slice(), sums.as_slice())?;
    let (start, end) = (Event::new(gpu)?, Event::new(gpu)?);
    let mut best_ms = f32::INFINITY;
    for _ in 0..N_PASSES {
        start.record()?;
        read_all(gpu, words.as_slice(), sums.as_slice())?;
        end.record()?;
        end.wait()?;
        best_ms = best_ms.min(end.elapsed_ms(&start)?);
    }
    Ok(words.n_bytes() as f64 / f64::from(best_ms) * 1e3)
}
