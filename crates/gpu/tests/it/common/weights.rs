//! Weights for tests: random numbers, random blocks of any format, matrices on the device.

use half::{bf16, f16};
use rocmforge_gguf::GgmlType;
use rocmforge_gpu::{Buffer, Gpu, Matrix, RowOrder, ops};

/// A random number generator (SplitMix64).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number between -1 and 1.
    pub(crate) fn value(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }

    pub(crate) fn values(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.value()).collect()
    }
}

/// The offsets of the f16 scales in a block.
fn half_scales(ty: GgmlType) -> &'static [usize] {
    match ty {
        GgmlType::Q4_0 | GgmlType::Q5_0 | GgmlType::Q8_0 => &[0],
        GgmlType::IQ4_NL | GgmlType::IQ4_XS | GgmlType::Q1_0 | GgmlType::Q2_0 => &[0],
        GgmlType::IQ1_S | GgmlType::IQ2_XXS | GgmlType::IQ2_XS | GgmlType::IQ2_S => &[0],
        GgmlType::IQ3_XXS | GgmlType::IQ3_S => &[0],
        GgmlType::TQ1_0 => &[52],
        GgmlType::TQ2_0 => &[64],
        GgmlType::Q4_1 | GgmlType::Q5_1 | GgmlType::Q4_K | GgmlType::Q5_K => &[0, 2],
        GgmlType::Q2_K => &[80, 82],
        GgmlType::Q3_K => &[108],
        GgmlType::Q6_K => &[208],
        _ => &[],
    }
}

/// How the bytes of a block are chosen.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fill {
    Random,
    /// All bits of the codes and small scales are set.
    Ones,
    /// Scales of zero: all values are zero.
    ZeroScales,
    /// Scales that are subnormal f16 numbers.
    TinyScales,
}

/// Blocks as in a file, for `n` finite values.
pub(crate) fn blocks(ty: GgmlType, n: usize, fill: Fill, random: &mut Random) -> Vec<u8> {
    let mut bytes = vec![0; ty.row_bytes(n).unwrap()];
    for block in bytes.chunks_exact_mut(ty.block_bytes()) {
        for byte in block.iter_mut() {
            *byte = match fill {
                Fill::Ones => 0xff,
                _ => random.bits() as u8,
            };
        }
        let x = match fill {
            Fill::ZeroScales => 0.0,
            Fill::TinyScales => random.value() * 5e-5,
            _ => random.value(),
        };
        match ty {
            GgmlType::F32 => block.copy_from_slice(&x.to_le_bytes()),
            GgmlType::F16 => block.copy_from_slice(&f16::from_f32(x).to_le_bytes()),
            GgmlType::BF16 => block.copy_from_slice(&bf16::from_f32(x).to_le_bytes()),
            GgmlType::MXFP4 => {
                block[0] = match fill {
                    Fill::ZeroScales => 0,
                    Fill::TinyScales => random.bits() as u8 % 4,
                    _ => 120 + random.bits() as u8 % 8,
                }
            }
            GgmlType::NVFP4 => {
                for scale in &mut block[..4] {
                    *scale = match fill {
                        Fill::ZeroScales => 0,
                        Fill::TinyScales => random.bits() as u8 % 8,
                        _ => 40 + random.bits() as u8 % 32,
                    };
                }
            }
            GgmlType::IQ1_M => {
                // The upper nibbles of four words are the scale.
                let bits = f16::from_f32(x).to_bits();
                for part in 0..4 {
                    let byte = &mut block[49 + 2 * part];
                    *byte = *byte & 15 | ((bits >> (4 * part)) as u8 & 15) << 4;
                }
            }
            _ => {}
        }
        for &at in half_scales(ty) {
            let scale = f16::from_f32(if at == half_scales(ty)[0] {
                x
            } else {
                -0.5 * x
            });
            block[at..at + 2].copy_from_slice(&scale.to_le_bytes());
        }
    }
    bytes
}

/// Dequantizes blocks by the scalar code.
pub(crate) fn values(ty: GgmlType, blocks: &[u8]) -> Vec<f32> {
    let mut values = vec![0.0; blocks.len() / ty.block_bytes() * ty.block_len()];
    rocmforge_gguf::quant::dequantize(ty, blocks, &mut values).unwrap();
    values
}

/// The order of rows that tests give a matrix: tiles if they may.
pub(crate) fn order_of(gpu: &Gpu, ty: GgmlType, n_out: usize, n_in: usize) -> RowOrder {
    ops::row_order(gpu, ty, [n_out, n_in], usize::MAX)
}

/// A repacked matrix on the device.
pub(crate) struct Packed {
    pub(crate) ty: GgmlType,
    pub(crate) n_out: usize,
    pub(crate) n_in: usize,
    order: RowOrder,
    data: Buffer,
}

impl Packed {
    /// Repacks the blocks of a matrix `[n_out, n_in]`, uploaded to an odd address in two parts.
    pub(crate) fn new(gpu: &Gpu, ty: GgmlType, n_out: usize, n_in: usize, blocks: &[u8]) -> Packed {
        let order = order_of(gpu, ty, n_out, n_in);
        Packed::in_order(gpu, order, ty, [n_out, n_in], blocks)
    }

    /// As [`Packed::new`], in this order.
    pub(crate) fn in_order(
        gpu: &Gpu,
        order: RowOrder,
        ty: GgmlType,
        [n_out, n_in]: [usize; 2],
        blocks: &[u8],
    ) -> Packed {
        let n_bytes = ops::packed_bytes(gpu, ty, n_out, n_in).unwrap();
        let packed = Packed {
            ty,
            n_out,
            n_in,
            order,
            data: gpu.alloc::<u8>(n_bytes).unwrap(),
        };
        let row_bytes = ty.row_bytes(n_in).unwrap();
        let first = n_out / 3;
        for rows in [0..first, first..n_out] {
            let mut file = vec![0xffu8];
            file.extend(&blocks[rows.start * row_bytes..rows.end * row_bytes]);
            let file = gpu.upload(&file).unwrap();
            let file = file.as_slice().part(1..1 + rows.len() * row_bytes);
            ops::repack(gpu, file, &packed.matrix(), rows.start).unwrap();
            gpu.synchronize().unwrap();
        }
        packed
    }

    pub(crate) fn matrix(&self) -> Matrix<'_> {
        Matrix {
            ty: self.ty,
            n_out: self.n_out,
            n_in: self.n_in,
            order: self.order,
            data: self.data.as_slice(),
        }
    }
}
