//! Measured peak rates of a device: memory bandwidth (`kernels/bandwidth.hip`), the bound of operations that use each
//! weight once, and matrix units (`kernels/arithmetic.hip`), the bound of operations that use each weight often.

use crate::error::GpuError;
use crate::event::Event;
use crate::gpu::Gpu;
use crate::kernel::{Count, Kernel, kernels, layout};
use crate::memory::{Address, Slice};

const THREADS: u32 = 256;
/// Blocks per compute unit: the most threads that any unit holds.
const BLOCKS_PER_UNIT: u32 = 8;
/// Bytes read at most in one pass: larger than any cache, and a small part of any card's memory.
const MAX_BYTES: u64 = 2 << 30;
/// One in this many parts of the free memory is used.
const PART_OF_FREE: u64 = 4;
/// Timed passes. The best one counts, since other programs may use the device too.
const N_PASSES: usize = 5;

/// Bytes of one operand of a tile.
const OPERAND_BYTES: usize = 16 * 32;
/// Steps of the arithmetic measurement: milliseconds on any GPU.
const N_STEPS: u32 = 1024;

#[repr(C)]
#[derive(Clone, Copy)]
struct ReadParams {
    words: Address,
    sums: Address,
    n_words: Count,
    n_blocks: u32,
    pad: u32,
}

layout!(ReadParams {
    words,
    sums,
    n_words,
    n_blocks,
    pad
});

const _: () = assert!(size_of::<ReadParams>() == 32);

#[repr(C)]
#[derive(Clone, Copy)]
struct ArithmeticParams {
    a: Address,
    b: Address,
    sums: Address,
    n_steps: u32,
    pad: u32,
}

layout!(ArithmeticParams {
    a,
    b,
    sums,
    n_steps,
    pad
});

const _: () = assert!(size_of::<ArithmeticParams>() == 32);

kernels! {
    struct BandwidthKernels {
        read_all: ReadParams,
    }
}

kernels! {
    struct ArithmeticKernels {
        multiply_i8: ArithmeticParams,
        multiply_f16: ArithmeticParams,
    }
}

/// Reads all of `words`, which must be aligned to 16 bytes. `sums` `[n_blocks]`: the sum, mod 2^32, of the words that
/// each block read.
///
/// # Panics
/// If the words are not aligned.
pub fn read_all(gpu: &Gpu, words: Slice<'_, u32>, sums: Slice<'_, u32>) -> Result<(), GpuError> {
    assert!(
        words.address().is_aligned_to(16),
        "words are not aligned to 16 bytes"
    );
    let params = ReadParams {
        words: words.address(),
        sums: sums.address(),
        n_words: Count(words.len() as u64),
        n_blocks: sums.len() as u32,
        pad: 0,
    };
    gpu.launch(
        &gpu.kernels().bandwidth.read_all,
        [params.n_blocks, 1, 1],
        THREADS,
        0,
        &params,
    )
}

/// Measures the memory read bandwidth of `gpu` in bytes per second: the best of 5 passes over 2 GiB, or over a quarter
/// of the free memory if that is less.
///
/// # Errors
/// Those of the device, and [`GpuError::OutOfMemory`].
pub fn read_bandwidth(gpu: &Gpu) -> Result<f64, GpuError> {
    let n_bytes = MAX_BYTES.min(gpu.free_bytes()? / PART_OF_FREE);
    let words = gpu.alloc::<u32>(n_bytes as usize / size_of::<u32>())?;
    let sums = gpu.alloc::<u32>((gpu.n_compute_units() * BLOCKS_PER_UNIT) as usize)?;
    // Memory that was never written may have no physical pages.
    gpu.fill_bytes(words.as_slice::<u32>(), 1)?;
    read_all(gpu, words.as_slice(), sums.as_slice())?;
    let best_ms = best_ms(gpu, || read_all(gpu, words.as_slice(), sums.as_slice()))?;
    Ok(words.n_bytes() as f64 / best_ms * 1e3)
}

/// Returns the shortest of 5 times of the work that `launch` queues, in milliseconds by the device's clock.
fn best_ms(gpu: &Gpu, launch: impl Fn() -> Result<(), GpuError>) -> Result<f64, GpuError> {
    let (start, end) = (Event::new(gpu)?, Event::new(gpu)?);
    let mut best_ms = f32::INFINITY;
    for _ in 0..N_PASSES {
        start.record()?;
        launch()?;
        end.record()?;
        end.wait()?;
        best_ms = best_ms.min(end.elapsed_ms(&start)?);
    }
    Ok(f64::from(best_ms))
}

/// Factor types of the matrix units. Sums have 32 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Factors {
    I8,
    F16,
}

impl Factors {
    fn kernel(self, kernels: &ArithmeticKernels) -> &Kernel<ArithmeticParams> {
        match self {
            Factors::I8 => &kernels.multiply_i8,
            Factors::F16 => &kernels.multiply_f16,
        }
    }

    /// Values in a row of an operand, 32 bytes.
    fn k(self) -> usize {
        match self {
            Factors::I8 => 32,
            Factors::F16 => 16,
        }
    }
}

/// The work of one wave in one step of [`multiply_all`].
#[derive(Clone, Copy, Debug)]
pub struct MatrixStep {
    /// Accumulators of 16 x 16 values.
    pub n_tiles: usize,
    /// Products added to each accumulator.
    pub n_products: usize,
    /// Threads per wave.
    pub wave_size: usize,
}

impl MatrixStep {
    /// Reads the constants of the device's kernel.
    ///
    /// # Errors
    /// Those of loading the kernel.
    pub fn of(gpu: &Gpu) -> Result<MatrixStep, GpuError> {
        let constant = |name| Ok::<_, GpuError>(gpu.constant("arithmetic", name)? as usize);
        Ok(MatrixStep {
            n_tiles: constant("arithmetic_tiles")?,
            n_products: constant("arithmetic_unrolled")?,
            wave_size: constant("arithmetic_wave")?,
        })
    }
}

/// Multiplies `a` with `b`, 16 rows of 32 bytes each, `n_steps` times in every wave. `sums` has one f32 or i32 for each
/// of the 256 threads of a block: the sum of the thread's accumulators, where accumulator i starts as i everywhere.
///
/// # Panics
/// If the operands have another size, or `sums` is not a multiple of 256.
pub fn multiply_all(
    gpu: &Gpu,
    factors: Factors,
    [a, b]: [Slice<'_, u8>; 2],
    sums: Slice<'_, u32>,
    n_steps: u32,
) -> Result<(), GpuError> {
    assert_eq!(
        [a.len(), b.len()],
        [OPERAND_BYTES; 2],
        "16 rows of 32 bytes"
    );
    assert!(
        sums.len().is_multiple_of(THREADS as usize),
        "one sum per thread"
    );
    let params = ArithmeticParams {
        a: a.address(),
        b: b.address(),
        sums: sums.address(),
        n_steps,
        pad: 0,
    };
    let n_blocks = (sums.len() / THREADS as usize) as u32;
    gpu.launch(
        factors.kernel(&gpu.kernels().arithmetic),
        [n_blocks, 1, 1],
        THREADS,
        0,
        &params,
    )
}

/// Measures the peak rate of the matrix units of `gpu` in operations per second (a multiply-add counts as two): the
/// best of 5 passes over all compute units with operands in registers. GPUs without matrix units use dot product
/// instructions.
///
/// # Errors
/// Those of the device.
pub fn matrix_ops(gpu: &Gpu, factors: Factors) -> Result<f64, GpuError> {
    // Small numbers in both forms: 0x2c2c is 0.065 as f16.
    let operand = gpu.upload(&[0x2cu8; OPERAND_BYTES])?;
    let operands = [operand.as_slice(), operand.as_slice()];
    let n_blocks = (gpu.n_compute_units() * BLOCKS_PER_UNIT) as usize;
    let n_threads = n_blocks * THREADS as usize;
    let sums = gpu.alloc::<u32>(n_threads)?;
    let multiply = || multiply_all(gpu, factors, operands, sums.as_slice(), N_STEPS);
    multiply()?;
    let best_ms = best_ms(gpu, multiply)?;
    let step = MatrixStep::of(gpu)?;
    let of_wave = step.n_tiles * step.n_products * N_STEPS as usize;
    let products = (n_threads / step.wave_size * of_wave) as f64;
    Ok(products * (2 * 16 * 16 * factors.k()) as f64 / best_ms * 1e3)
}
