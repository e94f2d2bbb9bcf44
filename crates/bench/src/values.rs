//! Input data of the cases: pseudo-random numbers, and weights quantized from them, so that scales and codes have
//! realistic sizes.

use rocmforge_gguf::GgmlType;
use rocmforge_gguf::quant::mxfp6::{self, E2M3, E3M2};
use rocmforge_gguf::quant::quantize_rows;
use zerocopy::IntoBytes as _;

use crate::error::BenchError;
use crate::options::Effort;

/// Rows quantized for a matrix, which repeats them: this takes less time to prepare and just as much to read.
const STOCK_ROWS: usize = 16;
/// Copies of an operand that are read in turn have at least this many bytes together, or this count, so that none is
/// still in a CPU or GPU cache when its turn comes.
const COLD_BYTES: usize = 512 << 20;
const MAX_COPIES: usize = 1024;

/// splitmix64.
#[derive(Debug, Clone)]
pub(super) struct Random(pub u64);

impl Random {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Returns a number in 0..n.
    pub(super) fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }

    /// Returns `n` numbers in [-1, 1].
    pub(super) fn floats(&mut self, n: usize) -> Vec<f32> {
        (0..n)
            .map(|_| (self.next() >> 40) as f32 / (1 << 23) as f32 - 1.0)
            .collect()
    }

    /// Returns `n` numbers in [-1, 1] as f16 bits.
    pub(super) fn halves(&mut self, n: usize) -> Vec<u16> {
        let floats = self.floats(n);
        floats
            .iter()
            .map(|&x| half::f16::from_f32(x).to_bits())
            .collect()
    }
}

/// A number format: a GGML type, or one that only the library has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    Ggml(GgmlType),
    Mxfp6E2M3,
    Mxfp6E3M2,
}

impl Format {
    pub(super) fn name(self) -> &'static str {
        match self {
            Format::Ggml(ty) => ty.name(),
            Format::Mxfp6E2M3 => "MXFP6-E2M3",
            Format::Mxfp6E3M2 => "MXFP6-E3M2",
        }
    }

    /// Returns the bytes of `n` values, which must be whole blocks.
    pub(super) fn bytes(self, n: usize) -> usize {
        match self {
            Format::Ggml(ty) => ty.row_bytes(n).expect("whole blocks"),
            Format::Mxfp6E2M3 | Format::Mxfp6E3M2 => n / mxfp6::LEN * size_of::<E2M3>(),
        }
    }

    /// Returns a matrix `[n_out, n_in]` as stored in a file.
    pub(super) fn matrix(self, n_out: usize, n_in: usize) -> Result<Vec<u8>, BenchError> {
        let n_rows = n_out.min(STOCK_ROWS);
        let values = Random(1).floats(n_rows * n_in);
        let mut stock = vec![0; self.bytes(values.len())];
        let blocks = values.as_chunks::<{ mxfp6::LEN }>().0;
        match self {
            Format::Ggml(ty) => quantize_rows(ty, &values, n_in, None, &mut stock)?,
            Format::Mxfp6E2M3 => {
                let bytes = blocks.iter().zip(stock.chunks_exact_mut(size_of::<E2M3>()));
                bytes.for_each(|(x, out)| out.copy_from_slice(E2M3::quantize(x).as_bytes()));
            }
            Format::Mxfp6E3M2 => {
                let bytes = blocks.iter().zip(stock.chunks_exact_mut(size_of::<E3M2>()));
                bytes.for_each(|(x, out)| out.copy_from_slice(E3M2::quantize(x).as_bytes()));
            }
        }
        let bytes = self.bytes(n_out * n_in);
        Ok(stock.into_iter().cycle().take(bytes).collect())
    }
}

/// Returns how many copies of an operand of `n_bytes` ensure that it is read from memory; one for [`Effort::Quick`].
pub(super) fn n_copies(n_bytes: usize, effort: Effort) -> usize {
    let copies = COLD_BYTES.div_ceil(n_bytes.max(1)).clamp(1, MAX_COPIES);
    effort.pick(copies, 1)
}

#[cfg(test)]
mod tests {
    use rocmforge_gguf::quant::dequantize;

    use super::*;

    #[test]
    fn matrices_approximate_their_source_values() {
        let values = Random(1).floats(16 * 256);
        for &ty in GgmlType::COMPUTED {
            // Rows 16 to 31 repeat the first 16.
            let data = Format::Ggml(ty).matrix(32, 256).unwrap();
            let mut back = vec![0.0; 32 * 256];
            dequantize(ty, &data, &mut back).unwrap();
            assert_eq!(back[..16 * 256], back[16 * 256..]);
            let squares =
                |of: &dyn Fn(usize) -> f32| (0..values.len()).map(|i| of(i).powi(2)).sum::<f32>();
            let error = squares(&|i| values[i] - back[i]) / squares(&|i| values[i]);
            // Two bits leave an error of a tenth of the squares; signs alone a quarter, as values are uniform.
            let most = match ty {
                GgmlType::Q1_0 => 0.26,
                GgmlType::TQ1_0 | GgmlType::TQ2_0 | GgmlType::IQ1_S | GgmlType::IQ1_M => 0.25,
                _ => 0.15,
            };
            assert!(error < most, "{}: {error}", ty.name());
        }
        for (format, numbers) in [
            (Format::Mxfp6E2M3, E2M3::number as fn(u8) -> f32),
            (Format::Mxfp6E3M2, E3M2::number as fn(u8) -> f32),
        ] {
            let data = format.matrix(16, 256).unwrap();
            assert_eq!(data.len(), 16 * 256 / 32 * 25);
            // The first value of each block: scale times the lowest six bits.
            for (block, x) in data.chunks(25).zip(values.chunks(32)) {
                let scale = 2f32.powi(i32::from(block[0]) - 127);
                let number = scale * numbers(block[1] & 63);
                assert!((number - x[0]).abs() <= 0.125, "{number} {}", x[0]);
            }
        }
    }
}
