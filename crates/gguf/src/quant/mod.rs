//! Quantization formats. [`GgmlType`] is the one table of ids, names and block
//! sizes; a format's layout and meaning stand in one block file next to this
//! one. Facts after ggml `ggml.h` and `ggml-common.h`.

use crate::error::Error;

/// Declares [`GgmlType`] from one table of variant, id, values of a block and
/// bytes of a block.
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

            /// Values of a block; 1 where values stand alone.
            pub const fn block_len(self) -> usize {
                match self { $(GgmlType::$name => $len,)* }
            }

            /// Bytes of a block.
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
}

impl GgmlType {
    /// The type with this id in files, if GGML defines one today.
    pub fn from_id(id: u32) -> Option<Self> {
        Self::ALL.iter().copied().find(|ty| ty.id() == id)
    }

    /// The id in files.
    pub fn id(self) -> u32 {
        self as u32
    }

    /// The type of this name, in any case.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL
            .iter()
            .copied()
            .find(|ty| ty.name().eq_ignore_ascii_case(name))
    }

    /// Bytes of a row of `n` values; `None` unless they are whole blocks (or the
    /// product overflows).
    pub fn row_bytes(self, n: usize) -> Option<usize> {
        if !n.is_multiple_of(self.block_len()) {
            return None;
        }
        (n / self.block_len()).checked_mul(self.block_bytes())
    }

    /// Whether [`dequantize`] handles this type.
    pub fn can_dequantize(self) -> bool {
        dequantizer(self).is_some()
    }
}

type Dequantize = fn(&[u8], &mut [f32]);

fn dequantizer(ty: GgmlType) -> Option<Dequantize> {
    match ty {
        GgmlType::F32 => Some(|src, dst| {
            for (y, x) in dst.iter_mut().zip(src.as_chunks().0) {
                *y = f32::from_le_bytes(*x);
            }
        }),
        _ => None,
    }
}

/// Converts whole blocks of `src` to f32: `dst.len()` values, one row or many.
/// Scalar, and the definition of every format in this program.
///
/// # Errors
/// If the type has no scalar definition here, or the lengths do not match.
pub fn dequantize(ty: GgmlType, src: &[u8], dst: &mut [f32]) -> Result<(), Error> {
    let convert = dequantizer(ty).ok_or_else(|| Error::Unsupported {
        verb: "dequantizing",
        ty: ty.name(),
        supported: GgmlType::ALL
            .iter()
            .filter(|ty| ty.can_dequantize())
            .map(|ty| ty.name())
            .collect::<Vec<_>>()
            .join(", "),
    })?;
    check_lengths(ty, src.len(), dst.len())?;
    convert(src, dst);
    Ok(())
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
