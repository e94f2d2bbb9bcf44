//! Dequantization to f32: 4096 x 4096 values of every format.
//!
//! GEMM and GEMV kernels do not dequantize first; they multiply blocks directly. On the CPU this is the conversion used
//! for embedding lookups, here with all threads; a GPU has a kernel for whole matrices.

use rocmforge_cpu as cpu;
use rocmforge_gguf::GgmlType;
use rocmforge_gguf::quant::mxfp6::{self, E2M3, E3M2};
use rocmforge_gpu::{Gpu, Matrix, RowOrder, ops};

use crate::case::{Case, Prepared, Work, time_cpu, time_gpu};
use crate::error::BenchError;
use crate::options::Effort;
use crate::suites::matmul::upload;
use crate::target::{Cpu, Opened};
use crate::values::Format;

/// Rows per task: a chunk of the output that fits in a cache.
const ROWS_OF_TASK: usize = 16;

pub(super) fn cases(effort: Effort) -> Vec<Case> {
    let side = effort.pick(4096, 256);
    let formats = GgmlType::COMPUTED.iter().copied().map(Format::Ggml);
    let formats = formats.chain([Format::Mxfp6E2M3, Format::Mxfp6E3M2]);
    formats.map(|format| case(format, side)).collect()
}

fn case(format: Format, side: usize) -> Case {
    let n = side * side;
    let name = format!("{}/{n}", format.name());
    Case::new(
        name,
        Some(format.name()),
        format!("{n} elements"),
        move |target| {
            target.check_memory((2 * format.bytes(n) + n * size_of::<f32>()) as u64)?;
            let data = format.matrix(side, side)?;
            let n_bytes = data.len();
            let prepared = match &target.on {
                Opened::Cpu(cpu) => on_cpu(cpu, format, side, data),
                Opened::Gpu(gpu) => on_gpu(gpu, format, side, data)?,
            };
            let bits = 8.0 * n_bytes as f64 / n as f64;
            // Blocks in, values out.
            let (read, written) = (n_bytes as f64, (n * size_of::<f32>()) as f64);
            Ok(prepared
                .metric("bits_per_element", bits)
                .metric("bytes_read", read)
                .metric("bytes_written", written)
                .metric("compression", written / read))
        },
    )
}

fn work(format: Format, n: usize) -> Work {
    Work {
        bytes: (format.bytes(n) + n * size_of::<f32>()) as u64,
        elements: n as u64,
        ..Work::default()
    }
}

fn on_cpu(cpu: &Cpu, format: Format, side: usize, data: Vec<u8>) -> Prepared<'_> {
    let ids: Vec<u32> = (0..side as u32).collect();
    let mut out = vec![0.0; side * side];
    Prepared::new(work(format, side * side), move |n| {
        time_cpu(n, || {
            let rows = |first: usize, out: &mut [f32]| match format {
                Format::Ggml(ty) => {
                    let table = rocmforge_plan::Weight {
                        ty,
                        n_out: side,
                        n_in: side,
                        data: &data,
                    };
                    cpu::get_rows(&table, &ids[first..][..out.len() / side], out);
                }
                Format::Mxfp6E2M3 => mxfp6_values(&data, first * side, out, E2M3::dequantize),
                Format::Mxfp6E3M2 => mxfp6_values(&data, first * side, out, E3M2::dequantize),
            };
            cpu.pool.for_each_rows(&mut out, side, ROWS_OF_TASK, &rows);
        })
    })
}

/// Returns the values from index `first` on, of blocks `B`.
fn mxfp6_values<
    B: zerocopy::FromBytes + zerocopy::Immutable + zerocopy::KnownLayout + zerocopy::Unaligned,
>(
    data: &[u8],
    first: usize,
    out: &mut [f32],
    dequantize: fn(&B, &mut [f32; mxfp6::LEN]),
) {
    let from = first / mxfp6::LEN * size_of::<B>();
    let blocks = data[from..].chunks_exact(size_of::<B>());
    for (block, out) in blocks.zip(out.as_chunks_mut::<{ mxfp6::LEN }>().0) {
        let block = B::ref_from_bytes(block).expect("a chunk is a block");
        dequantize(block, out);
    }
}

fn on_gpu(
    gpu: &Gpu,
    format: Format,
    side: usize,
    data: Vec<u8>,
) -> Result<Prepared<'_>, BenchError> {
    let blocks = match format {
        Format::Ggml(ty) => upload(gpu, ty, [side, side], &data, 1)?.remove(0),
        Format::Mxfp6E2M3 | Format::Mxfp6E3M2 => gpu.upload(&data)?,
    };
    let out = gpu.alloc::<f32>(side * side)?;
    Ok(Prepared::new(work(format, side * side), move |n| {
        let (blocks, out) = (blocks.as_slice::<u8>(), out.as_slice::<f32>());
        time_gpu(gpu, n, || match format {
            Format::Ggml(ty) => {
                let matrix = Matrix {
                    ty,
                    n_out: side,
                    n_in: side,
                    order: RowOrder::Apart,
                    data: blocks,
                };
                ops::dequantize(gpu, &matrix, out)
            }
            Format::Mxfp6E2M3 => ops::dequantize_mxfp6(gpu, ops::Mxfp6::E2M3, blocks, out),
            Format::Mxfp6E3M2 => ops::dequantize_mxfp6(gpu, ops::Mxfp6::E3M2, blocks, out),
        })
    }))
}

#[cfg(test)]
mod tests {
    use rocmforge_gguf::GgmlType;

    use super::*;

    /// The specification says 1.0 "bytes per element" for Q4_K; a block is 144 bytes for 256 values.
    #[test]
    fn counts_the_bytes_of_blocks() {
        for (format, bytes) in [
            (Format::Ggml(GgmlType::Q4_K), 144),
            (Format::Ggml(GgmlType::Q4_0), 8 * 18),
            (Format::Ggml(GgmlType::F16), 512),
            (Format::Mxfp6E2M3, 8 * 25),
        ] {
            assert_eq!(work(format, 256).bytes, bytes + 1024, "{}", format.name());
        }
    }
}
