//! KV caches for tests: rows encoded and decoded by plain loops.

use half::{bf16, f16};
use rocmforge_gguf::quant::f8;
use rocmforge_gpu::{KvShape, KvType};
use rocmforge_plan::Values;

/// The keys or values of a layer, rows in cache order.
pub(crate) struct Stored {
    ty: KvType,
    dim: usize,
    codes: Vec<u8>,
    scales: Vec<u8>,
}

/// Encodes a row as codes and scales.
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
    }
}

/// Decodes a row.
pub(crate) fn decode(ty: KvType, codes: &[u8], scales: &[u8]) -> Vec<f64> {
    let half = |bytes: &[u8]| f16::from_le_bytes([bytes[0], bytes[1]]).to_f64();
    match ty {
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
    }
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
        let n_rows = match (shape.values, which) {
            (Values::InKeys, 1) => 0,
            _ => shape.n_blocks * shape.n_kv_heads * shape.page,
        };
        let mut stored = Stored::new(shape.ty, n_rows, dim);
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
            decode(self.ty, codes, scales)
        });
        decoded.flatten().collect()
    }

    /// The bytes in the device's layout.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        [&self.codes[..], &self.scales].concat()
    }
}
