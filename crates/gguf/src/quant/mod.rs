//! Quantization formats. [`GgmlType`] is the table of ids, names and block sizes. Each family of formats has a file
//! with its block layouts and scalar conversions. After ggml's `ggml.h` and `ggml-common.h`.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

pub mod f8;
mod fit;
pub mod grids;
pub mod iq;
pub mod k;
pub mod lattice;
pub mod legacy;
pub mod mxfp;
pub mod mxfp6;
pub mod nvfp;
pub mod plain;
pub mod q1;
pub mod q2;
mod rows;
pub mod ternary;

pub use rows::{can_quantize, quantize_rows};

use crate::computed_formats;
use crate::error::Error;

/// Declares [`GgmlType`] from a table of variant, id, values per block and bytes per block.
macro_rules! ggml_types {
    ($($(#[$doc:meta])* $name:ident = $id:literal: $len:literal in $bytes:literal,)*) => {
        /// A tensor format, named as GGML names it.
        #[expect(non_camel_case_types, reason = "GGML's names, as users and file names spell them")]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u32)]
        pub enum GgmlType { $($(#[$doc])* $name = $id,)* }

        impl GgmlType {
            /// Every type, by id.
            pub const ALL: &[GgmlType] = &[$(GgmlType::$name,)*];

            /// The name as GGML spells it, such as `Q4_K`.
            pub fn name(self) -> &'static str {
                match self { $(GgmlType::$name => stringify!($name),)* }
            }

            /// Values per block; 1 for formats without blocks.
            pub const fn block_len(self) -> usize {
                match self { $(GgmlType::$name => $len,)* }
            }

            /// Bytes per block.
            pub const fn block_bytes(self) -> usize {
                match self { $(GgmlType::$name => $bytes,)* }
            }
        }
    };
}

ggml_types! {
    /// IEEE single
    F32 = 0: 1 in 4,
    /// IEEE half
    F16 = 1: 1 in 2,
    /// 4 bits, scale
    Q4_0 = 2: 32 in 18,
    /// 4 bits, scale and minimum
    Q4_1 = 3: 32 in 20,
    /// 5 bits, scale
    Q5_0 = 6: 32 in 22,
    /// 5 bits, scale and minimum
    Q5_1 = 7: 32 in 24,
    /// 8 bits, scale
    Q8_0 = 8: 32 in 34,
    /// 8 bits, scale and sum; an activation format, in no file
    Q8_1 = 9: 32 in 36,
    /// 2 bits in groups of 16
    Q2_K = 10: 256 in 84,
    /// 3 bits in groups of 16
    Q3_K = 11: 256 in 110,
    /// 4 bits in groups of 32
    Q4_K = 12: 256 in 144,
    /// 5 bits in groups of 32
    Q5_K = 13: 256 in 176,
    /// 6 bits in groups of 16
    Q6_K = 14: 256 in 210,
    /// 8 bits and group sums; an activation format, in no file
    Q8_K = 15: 256 in 292,
    /// 2.06 bits, lattice
    IQ2_XXS = 16: 256 in 66,
    /// 2.31 bits, lattice
    IQ2_XS = 17: 256 in 74,
    /// 3.06 bits, lattice
    IQ3_XXS = 18: 256 in 98,
    /// 1.56 bits, lattice
    IQ1_S = 19: 256 in 50,
    /// 4 bits, non-linear
    IQ4_NL = 20: 32 in 18,
    /// 3.44 bits, lattice
    IQ3_S = 21: 256 in 110,
    /// 2.56 bits, lattice
    IQ2_S = 22: 256 in 82,
    /// 4.25 bits, non-linear
    IQ4_XS = 23: 256 in 136,
    /// integer
    I8 = 24: 1 in 1,
    /// integer
    I16 = 25: 1 in 2,
    /// integer
    I32 = 26: 1 in 4,
    /// integer
    I64 = 27: 1 in 8,
    /// IEEE double
    F64 = 28: 1 in 8,
    /// 1.75 bits, lattice
    IQ1_M = 29: 256 in 56,
    /// upper half of an IEEE single
    BF16 = 30: 1 in 2,
    /// ternary, 1.69 bits
    TQ1_0 = 34: 256 in 54,
    /// ternary, 2.06 bits
    TQ2_0 = 35: 256 in 66,
    /// OCP microscaling: E2M1 values, E8M0 scale
    MXFP4 = 39: 32 in 17,
    /// E2M1 values in groups of 16, UE4M3 scales
    NVFP4 = 40: 64 in 36,
    /// signs and a scale
    Q1_0 = 41: 128 in 18,
    /// 2 bits, scale
    Q2_0 = 42: 64 in 18,
}

macro_rules! computed {
    ($($name:ident $lower:ident),*) => { &[$(GgmlType::$name),*] };
}

impl GgmlType {
    /// The formats of weights that kernels compute with. Tensors of other formats can only be converted.
    pub const COMPUTED: &[GgmlType] = computed_formats!(computed);

    /// Returns the type with this id in files, if GGML currently defines one.
    pub fn from_id(id: u32) -> Option<Self> {
        Self::ALL.iter().copied().find(|ty| ty.id() == id)
    }

    /// The id used in files.
    pub fn id(self) -> u32 {
        self as u32
    }

    /// Returns the type with this name, ignoring case.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL
            .iter()
            .copied()
            .find(|ty| ty.name().eq_ignore_ascii_case(name))
    }

    /// Bytes of a row of `n` values; `None` if these are not whole blocks or the result overflows.
    pub fn row_bytes(self, n: usize) -> Option<usize> {
        if !n.is_multiple_of(self.block_len()) {
            return None;
        }
        (n / self.block_len()).checked_mul(self.block_bytes())
    }

    /// Whether [`dequantize`] supports this type.
    pub fn can_dequantize(self) -> bool {
        conversions(self).dequantize.is_some()
    }
}

/// A block of one format, laid out as in a file: little-endian, alignment 1.
pub trait Block:
    FromBytes + IntoBytes + Immutable + KnownLayout + Unaligned + Copy + 'static
{
    /// The format.
    const TYPE: GgmlType;

    /// Converts the block to f32; `out` is [`GgmlType::block_len`] long.
    fn dequantize(&self, out: &mut [f32]);
}

/// A block with a reference quantizer.
pub trait QuantizeBlock: Block {
    /// Quantizes `values`, [`GgmlType::block_len`] of them, to the same bits as ggml's reference quantizer.
    fn quantize(values: &[f32]) -> Self;
}

/// Views `bytes` as blocks, without a copy.
///
/// # Panics
/// If `bytes` is not a whole number of blocks.
pub fn blocks<B: Block>(bytes: &[u8]) -> &[B] {
    match <[B]>::ref_from_bytes(bytes) {
        Ok(blocks) => blocks,
        Err(_) => panic!(
            "{} bytes are not whole {} blocks",
            bytes.len(),
            B::TYPE.name()
        ),
    }
}

/// Views `bytes` as mutable blocks, without a copy.
///
/// # Panics
/// If `bytes` is not a whole number of blocks.
pub fn blocks_mut<B: Block>(bytes: &mut [u8]) -> &mut [B] {
    let n_bytes = bytes.len();
    match <[B]>::mut_from_bytes(bytes) {
        Ok(blocks) => blocks,
        Err(_) => panic!("{n_bytes} bytes are not whole {} blocks", B::TYPE.name()),
    }
}

/// Unpacks the low nibbles of `qs`, then the high ones.
fn nibbles<const N: usize, const TWO_N: usize>(qs: &[u8; N]) -> [u8; TWO_N] {
    const { assert!(TWO_N == 2 * N) };
    std::array::from_fn(|j| qs[j % N] >> (4 * (j / N)) & 15)
}

type Dequantize = fn(src: &[u8], dst: &mut [f32]);
type Quantize = fn(src: &[f32], dst: &mut [u8]);
type FitRows = fn(src: &[f32], row_len: usize, importance: Option<&[f32]>, dst: &mut [u8]);

/// The conversions available for a format.
struct Conversions {
    dequantize: Option<Dequantize>,
    quantize: Option<Quantize>,
    fit: Option<FitRows>,
}

const NONE: Conversions = Conversions {
    dequantize: None,
    quantize: None,
    fit: None,
};

/// The conversions of a format that is quantized by rounding.
const fn rounds<B: QuantizeBlock>() -> Conversions {
    Conversions {
        dequantize: Some(dequantize_blocks::<B>),
        quantize: Some(quantize_blocks::<B>),
        fit: Some(|src, _, _, dst| quantize_blocks::<B>(src, dst)),
    }
}

/// The conversions of a format that is quantized by searching for scales.
const fn fits<B: fit::Fit>(quantize: Option<Quantize>) -> Conversions {
    Conversions {
        dequantize: Some(dequantize_blocks::<B>),
        quantize,
        fit: Some(fit::fit_rows::<B>),
    }
}

fn conversions(ty: GgmlType) -> Conversions {
    match ty {
        GgmlType::F32 => rounds::<plain::F32>(),
        GgmlType::F16 => rounds::<plain::F16>(),
        GgmlType::BF16 => rounds::<plain::BF16>(),
        GgmlType::Q4_0 => fits::<legacy::Q4_0>(Some(quantize_blocks::<legacy::Q4_0>)),
        GgmlType::Q4_1 => fits::<legacy::Q4_1>(None),
        GgmlType::Q5_0 => fits::<legacy::Q5_0>(None),
        GgmlType::Q5_1 => fits::<legacy::Q5_1>(None),
        GgmlType::Q8_0 => fits::<legacy::Q8_0>(Some(quantize_blocks::<legacy::Q8_0>)),
        GgmlType::Q2_K => fits::<k::Q2K>(None),
        GgmlType::Q3_K => fits::<k::Q3K>(None),
        GgmlType::Q4_K => fits::<k::Q4K>(None),
        GgmlType::Q5_K => fits::<k::Q5K>(None),
        GgmlType::Q6_K => fits::<k::Q6K>(None),
        GgmlType::IQ4_NL => fits::<iq::Iq4Nl>(None),
        GgmlType::IQ4_XS => fits::<iq::Iq4Xs>(None),
        GgmlType::MXFP4 => rounds::<mxfp::Mxfp4>(),
        GgmlType::Q1_0 => Conversions {
            fit: Some(q1::fit_rows),
            ..rounds::<q1::Q1_0>()
        },
        GgmlType::Q2_0 => fits::<q2::Q2_0>(Some(quantize_blocks::<q2::Q2_0>)),
        GgmlType::TQ1_0 => fits::<ternary::Tq1_0>(Some(quantize_blocks::<ternary::Tq1_0>)),
        GgmlType::TQ2_0 => fits::<ternary::Tq2_0>(Some(quantize_blocks::<ternary::Tq2_0>)),
        GgmlType::IQ2_XXS => fits::<lattice::Iq2Xxs>(None),
        GgmlType::IQ2_XS => fits::<lattice::Iq2Xs>(None),
        GgmlType::IQ2_S => fits::<lattice::Iq2S>(None),
        GgmlType::IQ3_XXS => fits::<lattice::Iq3Xxs>(None),
        GgmlType::IQ3_S => fits::<lattice::Iq3S>(None),
        GgmlType::IQ1_S => fits::<lattice::Iq1S>(None),
        GgmlType::IQ1_M => fits::<lattice::Iq1M>(None),
        GgmlType::NVFP4 => rounds::<nvfp::Nvfp4>(),
        GgmlType::Q8_1
        | GgmlType::Q8_K
        | GgmlType::I8
        | GgmlType::I16
        | GgmlType::I32
        | GgmlType::I64
        | GgmlType::F64 => NONE,
    }
}

macro_rules! assert_sizes {
    ($($block:ty)*) => {
        $(const _: () = assert!(size_of::<$block>() == <$block as Block>::TYPE.block_bytes());)*
    };
}

assert_sizes! {
    plain::F32 plain::F16 plain::BF16
    legacy::Q4_0 legacy::Q4_1 legacy::Q5_0 legacy::Q5_1 legacy::Q8_0
    k::Q2K k::Q3K k::Q4K k::Q5K k::Q6K
    iq::Iq4Nl iq::Iq4Xs mxfp::Mxfp4 nvfp::Nvfp4 q1::Q1_0 q2::Q2_0 ternary::Tq1_0 ternary::Tq2_0
    lattice::Iq2Xxs lattice::Iq2Xs lattice::Iq2S lattice::Iq3Xxs lattice::Iq3S lattice::Iq1S lattice::Iq1M
}

fn dequantize_blocks<B: Block>(src: &[u8], dst: &mut [f32]) {
    let out = dst.chunks_exact_mut(B::TYPE.block_len());
    for (block, out) in blocks::<B>(src).iter().zip(out) {
        block.dequantize(out);
    }
}

fn quantize_blocks<B: QuantizeBlock>(src: &[f32], dst: &mut [u8]) {
    let values = src.chunks_exact(B::TYPE.block_len());
    let out = dst.chunks_exact_mut(B::TYPE.block_bytes());
    for (values, out) in values.zip(out) {
        out.copy_from_slice(B::quantize(values).as_bytes());
    }
}

/// Converts whole blocks of `src`, one row or many, to `dst.len()` f32 values. This scalar code defines each format;
/// all kernels are tested against it.
///
/// # Errors
/// If the type is not supported, or the lengths do not match.
pub fn dequantize(ty: GgmlType, src: &[u8], dst: &mut [f32]) -> Result<(), Error> {
    let convert = conversions(ty)
        .dequantize
        .ok_or_else(|| unsupported("dequantizing", ty, |c| c.dequantize.is_some()))?;
    check_lengths(ty, src.len(), dst.len())?;
    convert(src, dst);
    Ok(())
}

/// Converts `src`, one row or many, to whole blocks in `dst`, as ggml's reference quantizer does. Values should be
/// finite. [`quantize_rows`] supports more types and searches for better scales.
///
/// # Errors
/// If there is no quantizer for the type, or the lengths do not match.
pub fn quantize(ty: GgmlType, src: &[f32], dst: &mut [u8]) -> Result<(), Error> {
    let convert = conversions(ty)
        .quantize
        .ok_or_else(|| unsupported("quantizing to", ty, |c| c.quantize.is_some()))?;
    check_lengths(ty, dst.len(), src.len())?;
    convert(src, dst);
    Ok(())
}

fn unsupported(verb: &'static str, ty: GgmlType, can: fn(&Conversions) -> bool) -> Error {
    let supported = GgmlType::ALL.iter().filter(|&&ty| can(&conversions(ty)));
    Error::Unsupported {
        verb,
        ty: ty.name(),
        supported: supported.map(|ty| ty.name()).collect::<Vec<_>>().join(", "),
    }
}

fn check_lengths(ty: GgmlType, bytes: usize, values: usize) -> Result<(), Error> {
    if ty.row_bytes(values) == Some(bytes) {
        return Ok(());
    }
    Err(Error::LengthMismatch {
        ty: ty.name(),
        bytes,
        values,
        block_bytes: ty.block_bytes(),
        block_len: ty.block_len(),
    })
}
