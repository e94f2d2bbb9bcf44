//! How blocks of each format unpack to small integers, as the dot products need it.
//!
//! Every format is `x = d * scale * code + offset` with an f32 `d` per block, an integer `scale` per 16 or 32 values or
//! none, and codes of at most 8 bits. Byte layouts are those of [`rocmforge_gguf::quant`]; an implementation is the
//! vector form of the scalar `dequantize`.

use rocmforge_gguf::quant::Block;

use super::bytes::SimdBytes;
use crate::acts::{CodeRow, PACK, PackedRow};

/// The integers to which a block unpacks.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Codes {
    /// u8 up to `max`.
    Unsigned { max: u32 },
    /// i8 from `-max` to `max`.
    Signed { max: u32 },
}

/// The offset added to `d * scale * code`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Offset {
    None,
    /// `d * scale * -2^log2`: codes are stored as unsigned.
    Power {
        log2: u32,
    },
    /// `m * min` with an f32 `m` per block and an integer `min` per scale; just `m` without scales.
    Min,
}

/// Integer scales, one lane per row.
pub(crate) struct Scales<S: SimdBytes> {
    /// i16: the scales of value groups 0..8 and 8..16.
    pub scales: [S::Bytes; 2],
    /// i16, likewise: the factors of `m` in [`Offset::Min`].
    pub mins: [S::Bytes; 2],
}

/// A block format with a fast dot product.
pub(crate) trait Format: 'static {
    type Block: Block;

    const CODES: Codes;
    const OFFSET: Offset;
    /// Parts of a block without integer scales, each with its own product of `d` and the activations' scale. Where there
    /// are several, "block" means a part in all that follows, except that chunks are counted over all parts.
    const PARTS: usize = 1;
    /// Parts that share a scale of the activations: 2 if a part has one group, else 1.
    const PARTS_PER_SCALE: usize = 1;
    /// Groups of 16 values in a block: 1, 2 or 16.
    const GROUPS: usize;
    /// Groups of 16 values that share a scale: 1 or 2.
    const GROUPS_PER_SCALE: usize;
    /// Whether there are integer scales. Without them, a block has one or two groups.
    const SCALED: bool;

    /// Whether no integer scale is negative.
    const UNSIGNED_SCALES: bool;

    /// Activation codes of a block, `[[i8; 16]; GROUPS]`.
    type ActCodes: Fixed<[i8; 16]>;
    /// Sums of activation codes, one per scale, `[i16; GROUPS / GROUPS_PER_SCALE]`.
    type ActSums: Fixed<i16>;

    /// Activation codes of a block of a group of tokens, `[[i8; 16]; 4 * GROUPS]`.
    type PackedCodes: Fixed<[i8; 16]>;
    /// Pairs of sums of a block of a group of tokens: of neighbouring scales, or of the halves of a block without
    /// scales.
    type PackedSums: Fixed<[i16; 2 * PACK]>;

    /// `[V; 1]`, `[V; 2]` or `[V; 4]`.
    type Chunk<V: Copy>: AsRef<[V]>;
    /// Chunks of a block.
    const CHUNKS: usize;

    /// Unpacks one chunk of the codes of the rows of vector `i`, in groups of 16 values. Groups that share a scale are
    /// neighbours in one chunk.
    fn codes<S: SimdBytes>(
        s: S,
        rows: &S::Rows<'_, Self::Block>,
        i: usize,
        chunk: usize,
    ) -> Self::Chunk<S::Bytes>;

    /// Index in the block of the group at `place` in `chunk`.
    fn group(chunk: usize, place: usize) -> usize;

    /// Unpacks the integer scales of the rows of vector `i`.
    #[inline(always)]
    fn scales<S: SimdBytes>(s: S, rows: &S::Rows<'_, Self::Block>, i: usize) -> Scales<S> {
        let _ = (rows, i);
        Scales {
            scales: [s.zero(); 2],
            mins: [s.zero(); 2],
        }
    }

    /// Loads `d` of each row.
    fn d<S: SimdBytes>(s: S, rows: &S::Rows<'_, Self::Block>) -> S::F32;

    /// Loads `d` of a part of each row.
    #[inline(always)]
    fn d_of_part<S: SimdBytes>(s: S, rows: &S::Rows<'_, Self::Block>, part: usize) -> S::F32 {
        let _ = part;
        Self::d(s, rows)
    }

    /// Loads `m` of each row.
    #[inline(always)]
    fn m<S: SimdBytes>(s: S, rows: &S::Rows<'_, Self::Block>) -> S::F32 {
        let _ = rows;
        s.splat(0.0)
    }
}

/// An array whose length is fixed by the format, so that indexing is checked once per block.
pub(crate) trait Fixed<T>: AsRef<[T]> + Copy + 'static {
    /// Views `x` as whole arrays.
    fn split(x: &[T]) -> &[Self];
}

impl<T: Copy + 'static, const N: usize> Fixed<T> for [T; N] {
    #[inline]
    fn split(x: &[T]) -> &[[T; N]] {
        x.as_chunks().0
    }
}

/// Activations of one token, by blocks of a weight format.
pub(crate) struct TokenBlocks<'a, F: Format> {
    pub codes: &'a [F::ActCodes],
    pub scales: &'a [f32],
    pub sums: &'a [F::ActSums],
}

impl<F: Format> Clone for TokenBlocks<'_, F> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<F: Format> Copy for TokenBlocks<'_, F> {}

impl<'a, F: Format> TokenBlocks<'a, F> {
    pub(crate) fn new(row: CodeRow<'a>) -> TokenBlocks<'a, F> {
        let sums = match F::GROUPS_PER_SCALE {
            1 => row.sums16,
            _ => row.sums32,
        };
        TokenBlocks {
            codes: F::ActCodes::split(row.codes),
            scales: row.scales,
            sums: F::ActSums::split(sums),
        }
    }

    /// `n` blocks from `first` on, in slices that the compiler knows to be equally long.
    #[inline(always)]
    pub(crate) fn range(self, first: usize, n: usize) -> TokenBlocks<'a, F> {
        TokenBlocks {
            codes: &self.codes[first..][..n],
            scales: &self.scales[first / F::PARTS_PER_SCALE..][..n / F::PARTS_PER_SCALE],
            sums: &self.sums[first..][..n],
        }
    }
}

/// Activations of a group of tokens, by blocks of a weight format.
pub(crate) struct PackedBlocks<'a, F: Format> {
    pub codes: &'a [F::PackedCodes],
    pub scales: &'a [[f32; PACK]],
    pub sums: &'a [F::PackedSums],
}

impl<F: Format> Clone for PackedBlocks<'_, F> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<F: Format> Copy for PackedBlocks<'_, F> {}

impl<'a, F: Format> PackedBlocks<'a, F> {
    pub(crate) fn new(row: PackedRow<'a>) -> PackedBlocks<'a, F> {
        let sums = match F::GROUPS_PER_SCALE {
            2 if F::SCALED => row.sums32,
            _ => row.sums16,
        };
        PackedBlocks {
            codes: F::PackedCodes::split(row.codes),
            scales: row.scales,
            sums: F::PackedSums::split(sums),
        }
    }

    /// Like [`TokenBlocks::range`].
    #[inline(always)]
    pub(crate) fn range(self, first: usize, n: usize) -> PackedBlocks<'a, F> {
        PackedBlocks {
            codes: &self.codes[first..][..n],
            scales: &self.scales[first / F::PARTS_PER_SCALE..][..n / F::PARTS_PER_SCALE],
            sums: &self.sums[first / F::PARTS_PER_SCALE..][..n / F::PARTS_PER_SCALE],
        }
    }
}

/// Scales per block; 1 without integer scales.
pub(crate) const fn n_scales<F: Format>() -> usize {
    F::GROUPS / F::GROUPS_PER_SCALE
}

/// The offset in a product with vectors `S`: that of the format, or that of its signed codes.
pub(crate) const fn offset<S: SimdBytes, F: Format>() -> Offset {
    match (F::CODES, S::SIGNED_OFFSET) {
        (Codes::Signed { .. }, Some(log2)) => {
            assert!(matches!(F::OFFSET, Offset::None), "one offset is enough");
            Offset::Power { log2 }
        }
        _ => F::OFFSET,
    }
}

/// Largest power of two of product steps, at most `steps` (also one), whose sum stays within `limit`; 0 if none does.
const fn steps_within<S: SimdBytes, F: Format>(limit: u32, steps: usize) -> usize {
    let max = match F::CODES {
        Codes::Unsigned { max } => max,
        Codes::Signed { max } => match S::SIGNED_OFFSET {
            Some(log2) => max + (1 << log2),
            None => max,
        },
    };
    let limit = (limit / (S::DOT_PRODUCTS * 127 * max)) as usize;
    if limit == 0 {
        return 0;
    }
    let mut n = 1;
    while 2 * n <= limit && 2 * n <= steps {
        n *= 2;
    }
    n
}

/// Whether four steps of dots fit in i16, the limit of [`SimdBytes::add_scaled_small`]. With fewer, the extra dots cost
/// more than it saves.
pub(crate) const fn has_small_dots<S: SimdBytes, F: Format>() -> bool {
    F::UNSIGNED_SCALES && steps_within::<S, F>(i16::MAX as u32, 4) == 4
}

/// Product steps of a scale's codes that one [`SimdBytes::Dot`] accumulates without overflow, of `steps` in total. Both
/// are powers of two.
pub(crate) const fn dot_steps<S: SimdBytes, F: Format>(steps: usize) -> usize {
    let limit = if has_small_dots::<S, F>() {
        i16::MAX as u32
    } else {
        S::DOT_LIMIT
    };
    let n = steps_within::<S, F>(limit, steps);
    assert!(n > 0, "one step does not overflow");
    n
}

/// The 16 bytes of `bytes` from `start`.
#[inline(always)]
pub(crate) fn at(bytes: &[u8], start: usize) -> &[u8; 16] {
    bytes[start..]
        .first_chunk()
        .expect("a chunk lies within its block")
}
