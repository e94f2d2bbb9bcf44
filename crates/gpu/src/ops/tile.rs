//! One product of the matrix units (`kernels/mma.hip`), to test that a device's tiles have the layout of
//! `kernels/mma.h`.

use crate::error::GpuError;
use crate::gpu::Gpu;
use crate::kernel::{Kernel, kernels, layout};
use crate::memory::{Address, Slice};

/// A product of two tiles, `c [16, 16] = a [16, k] b [16, k]^T`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tile {
    /// int8, k = 16, i32 sums.
    I8K16,
    /// int8, k = 32, i32 sums.
    I8K32,
    /// As `I8K32`, through sums that convert to floats cheaply.
    I8K32Float,
    /// f16, k = 8, f32 sums.
    F16K8,
    /// f16, k = 16, f32 sums.
    F16,
    /// As `F16`, with b as `[k, 16]`.
    F16Transposed,
}

impl Tile {
    /// Bytes of each operand.
    pub const fn operand_bytes(self) -> usize {
        match self {
            Tile::I8K16 | Tile::F16K8 => 256,
            _ => 512,
        }
    }

    fn kernel(self, kernels: &TileKernels) -> &Kernel<TileParams> {
        match self {
            Tile::I8K16 => &kernels.tile_i8_16,
            Tile::I8K32 => &kernels.tile_i8_32,
            Tile::I8K32Float => &kernels.tile_i8_started,
            Tile::F16K8 => &kernels.tile_f16_8,
            Tile::F16 => &kernels.tile_f16,
            Tile::F16Transposed => &kernels.tile_f16_transposed,
        }
    }
}

#[repr(C)]
#[derive(Clone, Copy)]
struct TileParams {
    a: Address,
    b: Address,
    c: Address,
}

layout!(TileParams { a, b, c });

const _: () = assert!(size_of::<TileParams>() == 24);

kernels! {
    struct TileKernels {
        tile_i8_16: TileParams,
        tile_i8_32: TileParams,
        tile_i8_started: TileParams,
        tile_f16_8: TileParams,
        tile_f16: TileParams,
        tile_f16_transposed: TileParams,
    }
}

/// Multiplies two tiles. `c [256]` gets the bits of i32 or f32 values.
///
/// # Panics
/// If an operand does not have `operand_bytes` bytes, or `c` does not have 256 values.
pub fn multiply_tiles(
    gpu: &Gpu,
    tile: Tile,
    a: Slice<'_, u8>,
    b: Slice<'_, u8>,
    c: Slice<'_, u32>,
) -> Result<(), GpuError> {
    assert_eq!(
        [a.len(), b.len()],
        [tile.operand_bytes(); 2],
        "bytes of the operands"
    );
    assert_eq!(c.len(), 256, "16 by 16 values");
    let params = TileParams {
        a: a.address(),
        b: b.address(),
        c: c.address(),
    };
    let n_threads = gpu.constant("mma", "tile_threads")?;
    let kernel = tile.kernel(&gpu.kernels().mma);
    gpu.launch(kernel, [1, 1, 1], n_threads, 0, &params)
}
