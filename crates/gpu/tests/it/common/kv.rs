//! KV caches for tests: rows encoded and decoded by plain loops.

use half::{bf16, f16};
use rocmforge_gguf::quant::legacy::{Q4_0, Q5_1};
use rocmforge_gguf::quant::{QuantizeBlock, f8};
use rocmforge_gpu::{KvShape, KvType};
use rocmforge_plan::Values;

/// The keys or values of a layer, rows in cache order.
pub(crate) struct Stored {
    ty: KvType,
    dim: usize,
    codes: Vec<u8>,
    scales: Vec<u8>,
}

/// Encodes a row as codes and scales, without rotating it. Codes past the end of the row are 0.
pub(crate) fn encode(ty: KvType, x: &[f32]) -> [Vec<u8>; 2] {
    match ty {
        KvType::F16 => {
            let bits = x.iter().map(|&x| f16::from_f32(x).to_bits());
            [bits.flat_map(u16::to_le_bytes).collect(), vec![]]
        }
        KvType::Q8_0 => {
            let (mut codes, mut scales) = (Vec::new(), Vec::new());
            for block in x.chunks(32) {
                let is_number = block.iter().all(|x| x.is_finite());
                let max = block.iter().fold(0f32, |max, x| max.max(x.abs()));
                let (d, inverse) = (max / 127.0, 1.0 / (max / 127.0));
                let d = if is_number {
                    f16::from_f32(d)
                } else {
                    f16::NAN
                };
                scales.extend(d.to_bits().to_le_bytes());
                codes.extend(
                    block
                        .iter()
                        .map(|&x| match is_number && inverse.is_finite() {
                            true => (x * inverse).round_ties_even() as i8 as u8,
                            false => 0,
                        }),
                );
            }
            [codes, scales]
        }
        KvType::F8E4M3 => {
            let mut codes = vec![0; x.len()];
            let scale = f8::quantize(x, &mut codes);
            [codes, scale.to_le_bytes().to_vec()]
        }
        KvType::Q5_1 => in_blocks(x, |block: Q5_1, codes| {
            let high = u32::from_le_bytes(block.qh);
            let codes = (0..32).map(|i| codes[i] | (high >> i << 4 & 16) as u8);
            ([block.d.0, block.m.0].concat(), codes.collect())
        }),
        KvType::Q4_0 => in_blocks(x, |block: Q4_0, codes| (block.d.0.to_vec(), codes.to_vec())),
    }
}

/// Encodes blocks of four or five bits as the `gguf` crate does. `parts` returns scale and perhaps minimum of a block, and
/// its codes.
fn in_blocks<B: NibbleBlock>(
    x: &[f32],
    parts: impl Fn(B, &[u8; 32]) -> (Vec<u8>, Vec<u8>),
) -> [Vec<u8>; 2] {
    let (mut codes, mut scales) = (Vec::new(), Vec::new());
    for values in x.chunks(32) {
        // Without -0, which may be the minimum.
        let mut padded = [values[0] + 0.0; 32];
        for (padded, x) in padded.iter_mut().zip(values) {
            *padded = x + 0.0;
        }
        let block = B::quantize(&padded);
        let nibbles = block.nibbles();
        let nibbles = std::array::from_fn(|i| nibbles[i % 16] >> (i / 16 * 4) & 15);
        let (mut scale, mut all) = parts(block, &nibbles);
        // Differences of larger values may overflow.
        if !values.iter().all(|x| x.abs() <= f32::MAX / 2.0) {
            scale.fill(0);
            scale[..2].copy_from_slice(&f16::NAN.to_le_bytes());
            all.fill(0);
        }
        all[values.len()..].fill(0);
        codes.extend(all.chunks(2).map(|two| two[0] & 15 | two[1] << 4));
        if scale.len() == 4 {
            let high = (0..32).fold(0u32, |high, i| high | u32::from(all[i] >> 4) << i);
            scale.extend(high.to_le_bytes());
        }
        scales.extend(scale);
    }
    [codes, scales]
}

trait NibbleBlock: QuantizeBlock {
    fn nibbles(&self) -> [u8; 16];
}

impl NibbleBlock for Q5_1 {
    fn nibbles(&self) -> [u8; 16] {
        self.qs
    }
}

impl NibbleBlock for Q4_0 {
    fn nibbles(&self) -> [u8; 16] {
        self.qs
    }
}

/// Multiplies runs of `len` values by the normalized Hadamard matrix, with the bits of every device.
pub(crate) fn rotated(x: &[f32], len: usize) -> Vec<f32> {
    let mut x = x.to_vec();
    if len == 1 {
        return x;
    }
    for run in x.chunks_exact_mut(len) {
        for step in (0..len.ilog2()).map(|i| 1 << i) {
            for i in (0..len).filter(|i| i & step == 0) {
                (run[i], run[i + step]) = (run[i] + run[i + step], run[i] - run[i + step]);
            }
        }
        let factor = (1.0 / (len as f64).sqrt()) as f32;
        run.iter_mut().for_each(|x| *x *= factor);
    }
    x
}

/// Multiplies runs of `len` values by the normalized Hadamard matrix, by its definition.
pub(crate) fn hadamard(x: &mut [f64], len: usize) {
    for run in x.chunks_exact_mut(len) {
        let sign = |i: usize, j: usize| match (i & j).count_ones() % 2 {
            0 => 1.0,
            _ => -1.0,
        };
        let product = |i| {
            { run.iter().enumerate() }
                .map(|(j, x)| sign(i, j) * x)
                .sum()
        };
        let rotated: Vec<f64> = (0..len).map(product).collect();
        for (x, rotated) in run.iter_mut().zip(rotated) {
            *x = rotated / (len as f64).sqrt();
        }
    }
}

/// Decodes a row of `dim` values, rotated as they are stored.
pub(crate) fn decode(ty: KvType, codes: &[u8], scales: &[u8], dim: usize) -> Vec<f64> {
    let half = |bytes: &[u8]| f16::from_le_bytes([bytes[0], bytes[1]]).to_f64();
    let mut values: Vec<f64> = match ty {
        KvType::F16 => codes.chunks(2).map(half).collect(),
        KvType::Q8_0 => {
            let blocks = codes.chunks(32).zip(scales.chunks(2));
            let value = |code: &u8, scale| f64::from(*code as i8) * half(scale);
            blocks
                .flat_map(|(codes, scale)| codes.iter().map(move |code| value(code, scale)))
                .collect()
        }
        KvType::F8E4M3 => {
            let factor = bf16::from_le_bytes([scales[0], scales[1]]).to_f64();
            let numbers = codes.iter().map(|&code| f64::from(f8::number(code)));
            numbers.map(|x| x * factor).collect()
        }
        KvType::Q5_1 => {
            codes
                .iter()
                .flat_map(|byte| [byte & 15, byte >> 4])
                .enumerate()
        }
        .map(|(i, code)| {
            let scales = &scales[i / 32 * 8..][..8];
            let code = code | (scales[4 + i % 32 / 8] >> (i % 8) & 1) << 4;
            // Rounded to f32, as everywhere.
            f64::from((f64::from(code) * half(scales) + half(&scales[2..])) as f32)
        })
        .collect(),
        KvType::Q4_0 => {
            codes
                .iter()
                .flat_map(|byte| [byte & 15, byte >> 4])
                .enumerate()
        }
        .map(|(i, code)| (f64::from(code) - 8.0) * half(&scales[i / 32 * 2..]))
        .collect(),
    };
    values.truncate(dim);
    values
}

/// The largest error of stored values near the magnitude `largest`, for those of a type with blocks: half a step, and the
/// rounding of scale and minimum to f16.
pub(crate) fn block_error(ty: KvType, largest: f64) -> f64 {
    let (step, n_steps) = match ty {
        KvType::F16 | KvType::F8E4M3 => unreachable!("{ty:?} has no blocks"),
        KvType::Q8_0 => (largest / 127.0, 127.0),
        // The range is twice the largest magnitude.
        KvType::Q5_1 => (largest * 2.0 / 31.0, 31.0),
        // A value opposite to the largest is clamped to 7 steps.
        KvType::Q4_0 => (largest / 4.0, 8.0),
    };
    step * (0.501 + n_steps / 2048.0) + largest / 2048.0
}

impl Stored {
    /// Rows of NaN.
    pub(crate) fn new(ty: KvType, n_rows: usize, dim: usize) -> Stored {
        let [codes, scales] = encode(ty, &vec![f32::NAN; dim]);
        Stored {
            ty,
            dim,
            codes: codes.repeat(n_rows),
            scales: scales.repeat(n_rows),
        }
    }

    /// A cache of this shape, read from the device as `bytes`: keys (0) or values (1).
    pub(crate) fn of_bytes(shape: &KvShape, which: usize, bytes: &[u8]) -> Stored {
        let dim = [shape.k_dim, shape.v_dim][which];
        let ty = [shape.types.keys(), shape.types.values()][which];
        let n_rows = match (shape.values, which) {
            (Values::InKeys, 1) => 0,
            _ => shape.n_blocks * shape.n_kv_heads * shape.page,
        };
        let mut stored = Stored::new(ty, n_rows, dim);
        assert_eq!(bytes.len(), stored.codes.len() + stored.scales.len());
        let (codes, scales) = bytes.split_at(stored.codes.len());
        stored.codes.copy_from_slice(codes);
        stored.scales.copy_from_slice(scales);
        stored
    }

    fn row_bytes(&self) -> [usize; 2] {
        encode(self.ty, &vec![0.0; self.dim]).map(|bytes| bytes.len())
    }

    pub(crate) fn set(&mut self, row: usize, [codes, scales]: [&[u8]; 2]) {
        let [n_codes, n_scales] = self.row_bytes();
        self.codes[row * n_codes..][..n_codes].copy_from_slice(codes);
        self.scales[row * n_scales..][..n_scales].copy_from_slice(scales);
    }

    pub(crate) fn row(&self, row: usize) -> [&[u8]; 2] {
        let [n_codes, n_scales] = self.row_bytes();
        [
            &self.codes[row * n_codes..][..n_codes],
            &self.scales[row * n_scales..][..n_scales],
        ]
    }

    /// Decodes all rows.
    pub(crate) fn values(&self) -> Vec<f64> {
        let n_rows = self.codes.len() / self.row_bytes()[0];
        let decoded = (0..n_rows).map(|row| {
            let [codes, scales] = self.row(row);
            decode(self.ty, codes, scales, self.dim)
        });
        decoded.flatten().collect()
    }

    /// The bytes in the device's layout.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        [&self.codes[..], &self.scales].concat()
    }
}
