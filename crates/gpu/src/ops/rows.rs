//! Rows of weight matrices: repacks file blocks into planes, and dequantizes them (`kernels/format/rows.hip`).

use rocmforge_gguf::GgmlType;
use zerocopy::{Immutable, IntoBytes};

use super::formats::n_chunks;
use crate::error::GpuError;
use crate::gpu::Gpu;
use crate::kernel::{Count, Kernel, kernels, layout};
use crate::memory::{Address, Slice};
use crate::operands::{ExpertMatrices, Matrix, OutMode, RowOrder};

/// Threads per block of every kernel here.
const THREADS: u32 = 256;

/// Alignment of planes in bytes (`PLANE_ALIGN` in `kernels/quant.h`).
const PLANE_ALIGN: usize = 256;

/// A matrix as kernels read it (`Weights` in `kernels/quant.h`).
#[repr(C)]
#[derive(Clone, Copy, IntoBytes, Immutable)]
pub(crate) struct Weights {
    data: Address,
    n_out: u32,
    n_in: u32,
}

layout!(Weights { data, n_out, n_in });

/// The address of a matrix as kernels take it: its lowest bits say whether the rows lie in tiles.
///
/// # Panics
/// If the planes do not begin at a multiple of 256 bytes; if the rows lie in tiles, and those are not whole.
pub(super) fn planes(matrix: &Matrix<'_>) -> Address {
    let address = matrix.data.address();
    assert!(
        address.is_aligned_to(PLANE_ALIGN as u64),
        "planes are aligned"
    );
    match matrix.order {
        RowOrder::Apart => address,
        RowOrder::Tiles => {
            assert!(
                RowOrder::is_whole(matrix.n_out, matrix.n_in),
                "tiles are whole"
            );
            address.with_bits(RowOrder::TILE_ROWS as u64 - 1)
        }
    }
}

impl From<&Matrix<'_>> for Weights {
    fn from(matrix: &Matrix<'_>) -> Weights {
        Weights {
            data: planes(matrix),
            n_out: u32::try_from(matrix.n_out).expect("the number of rows fits 32 bits"),
            n_in: u32::try_from(matrix.n_in).expect("the number of columns fits 32 bits"),
        }
    }
}

/// Bytes behind the planes for the range of a matrix that has one (`kernels/range.h`).
fn range_bytes(ty: GgmlType) -> usize {
    match ty {
        GgmlType::F32 | GgmlType::F16 => 0,
        _ => PLANE_ALIGN,
    }
}

#[repr(C)]
#[derive(Clone, Copy)]
struct RepackParams {
    file: Address,
    w: Weights,
    first_row: u32,
    n_rows: u32,
}

layout!(RepackParams {
    file,
    w,
    first_row,
    n_rows
});

#[repr(C)]
#[derive(Clone, Copy)]
struct GetRowsParams {
    w: Weights,
    ids: Address,
    out: Address,
    n_ids: u32,
    scale: f32,
    add: u32,
    pad: u32,
}

layout!(GetRowsParams {
    w,
    ids,
    out,
    n_ids,
    scale,
    add,
    pad
});

#[repr(C)]
#[derive(Clone, Copy)]
struct DequantizeParams {
    w: Weights,
    out: Address,
    matrix_bytes: Count,
}

layout!(DequantizeParams {
    w,
    out,
    matrix_bytes
});

const _: () = assert!(size_of::<RepackParams>() == 32);
const _: () = assert!(size_of::<GetRowsParams>() == 48);
const _: () = assert!(size_of::<DequantizeParams>() == 32);

kernels! {
    struct RowsKernels {
        repack: RepackParams,
        get_rows: GetRowsParams,
        dequantize: DequantizeParams,
        dequantize_f16: DequantizeParams,
    }
}

/// Returns the bytes of a matrix `[n_out, n_in]` in device layout.
///
/// # Errors
/// [`GpuError::Format`] for types without kernels.
///
/// # Panics
/// If a row is not a whole number of blocks.
pub fn packed_bytes(gpu: &Gpu, ty: GgmlType, n_out: usize, n_in: usize) -> Result<usize, GpuError> {
    assert!(
        n_in.is_multiple_of(ty.block_len()),
        "a row is not whole blocks"
    );
    let module = gpu.kernels().rows.of(ty)?.repack.module;
    let planes = [
        ("plane_0_values", "plane_0_bytes"),
        ("plane_1_values", "plane_1_bytes"),
        ("plane_2_values", "plane_2_bytes"),
        ("plane_3_values", "plane_3_bytes"),
    ];
    let n_values = n_out * n_in.next_multiple_of(32);
    let mut total = 0;
    for (values, bytes) in planes {
        let n_fields = n_values / gpu.constant(module, values)? as usize;
        let n_bytes = n_fields * gpu.constant(module, bytes)? as usize;
        total += n_bytes.next_multiple_of(PLANE_ALIGN);
    }
    Ok(total + range_bytes(ty))
}

/// Writes rows `first_row..` of `out` from blocks in file layout, `file_rows` `[rows, row bytes]` of any alignment.
///
/// # Errors
/// [`GpuError::Format`] for types without kernels; errors of the launch.
///
/// # Panics
/// If `file_rows` is not whole rows, or more rows than `out` has.
pub fn repack(
    gpu: &Gpu,
    file_rows: Slice<'_, u8>,
    out: &Matrix<'_>,
    first_row: usize,
) -> Result<(), GpuError> {
    let Matrix {
        ty, n_out, n_in, ..
    } = *out;
    let row_bytes = ty
        .row_bytes(n_in)
        .expect("rows are a whole number of blocks");
    assert!(
        row_bytes > 0 && file_rows.len().is_multiple_of(row_bytes),
        "file_rows is not whole rows"
    );
    let n_rows = file_rows.len() / row_bytes;
    assert!(
        first_row + n_rows <= n_out,
        "{n_rows} rows from {first_row} exceed {n_out} rows"
    );
    if first_row == 0 {
        let n_bytes = out.data.len();
        gpu.fill_bytes(out.data.part(n_bytes - range_bytes(ty)..n_bytes), 0)?;
    }
    let params = RepackParams {
        file: file_rows.address(),
        w: out.into(),
        first_row: first_row as u32,
        n_rows: n_rows as u32,
    };
    let grid = grid(ty, n_rows, n_in);
    let kernel = &gpu.kernels().rows.of(ty)?.repack;
    gpu.launch(kernel, grid, THREADS, 0, &params)?;
    gpu.wrote_weights();
    Ok(())
}

/// `out[i, :] (+)= scale * table[ids[i], :]`, out `[ids.len(), n_in]`. Ids past the end use the last row.
///
/// # Errors
/// [`GpuError::Format`] for types without kernels; errors of the launch.
///
/// # Panics
/// If `out` has another shape, or the table has no rows.
pub fn get_rows(
    gpu: &Gpu,
    table: &Matrix<'_>,
    ids: Slice<'_, u32>,
    scale: f32,
    mode: OutMode,
    out: Slice<'_, f32>,
) -> Result<(), GpuError> {
    assert!(table.n_out > 0, "the table has no rows");
    assert_eq!(out.len(), ids.len() * table.n_in, "[n_ids, n_in]");
    let params = GetRowsParams {
        w: table.into(),
        ids: ids.address(),
        out: out.address(),
        n_ids: ids.len() as u32,
        scale,
        add: u32::from(mode == OutMode::Add),
        pad: 0,
    };
    let kernel = &gpu.kernels().rows.of(table.ty)?.get_rows;
    let grid = grid(table.ty, ids.len(), table.n_in);
    gpu.launch(kernel, grid, THREADS, 0, &params)
}

/// Dequantizes a whole matrix, out `[n_out, n_in]`.
///
/// # Errors
/// [`GpuError::Format`] for types without kernels; errors of the launch.
///
/// # Panics
/// If `out` has another shape.
pub fn dequantize(gpu: &Gpu, matrix: &Matrix<'_>, out: Slice<'_, f32>) -> Result<(), GpuError> {
    let kernel = &gpu.kernels().rows.of(matrix.ty)?.dequantize;
    dequantize_to(gpu, matrix, [1, 0], kernel, out)
}

/// As [`dequantize`], rounded to f16 (bits).
///
/// # Errors
/// As [`dequantize`].
///
/// # Panics
/// As [`dequantize`].
pub fn dequantize_f16(gpu: &Gpu, matrix: &Matrix<'_>, out: Slice<'_, u16>) -> Result<(), GpuError> {
    let kernel = &gpu.kernels().rows.of(matrix.ty)?.dequantize_f16;
    dequantize_to(gpu, matrix, [1, 0], kernel, out)
}

/// As [`dequantize_f16`], of all matrices of a stack, out `[n_experts, n_out, n_in]`.
///
/// # Errors
/// As [`dequantize`].
///
/// # Panics
/// As [`dequantize`].
pub(super) fn dequantize_stack_f16(
    gpu: &Gpu,
    matrices: &ExpertMatrices<'_>,
    out: Slice<'_, u16>,
) -> Result<(), GpuError> {
    let kernel = &gpu.kernels().rows.of(matrices.ty)?.dequantize_f16;
    let stack = [matrices.stack.n_experts, matrices.expert_bytes()];
    dequantize_to(gpu, &matrices.matrix(0), stack, kernel, out)
}

/// Dequantizes as many matrices, so many bytes after one another.
fn dequantize_to<T>(
    gpu: &Gpu,
    matrix: &Matrix<'_>,
    [n_matrices, matrix_bytes]: [usize; 2],
    kernel: &Kernel<DequantizeParams>,
    out: Slice<'_, T>,
) -> Result<(), GpuError> {
    let n_values = n_matrices * matrix.n_out * matrix.n_in;
    assert_eq!(out.len(), n_values, "[n_out, n_in]");
    let params = DequantizeParams {
        w: matrix.into(),
        out: out.address(),
        matrix_bytes: Count(matrix_bytes as u64),
    };
    let [n_blocks, ..] = grid(matrix.ty, matrix.n_out, matrix.n_in);
    let grid = [n_blocks, n_matrices as u32, 1];
    gpu.launch(kernel, grid, THREADS, 0, &params)
}

/// Returns a grid with one thread per chunk.
fn grid(ty: GgmlType, n_rows: usize, n_in: usize) -> [u32; 3] {
    let n_blocks = (n_rows * n_chunks(ty, n_in)).div_ceil(THREADS as usize);
    let n_blocks = u32::try_from(n_blocks).expect("the number of blocks fits 32 bits");
    [n_blocks, 1, 1]
}
