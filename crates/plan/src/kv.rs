//! The KV cache as plans and batches see it: storage types, what each layer stores, and moves of cached tokens.

use std::fmt;

use rocmforge_gguf::quant::f8;
use rocmforge_gguf::quant::legacy::{Q4_0, Q5_1};

/// The storage type of cached keys and values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum KvType {
    #[default]
    F16,
    F32,
    /// int8 in blocks of 32 values of a head (or of the whole head if it is smaller) with an f16 scale.
    Q8_0,
    /// 8-bit floating point with a 4-bit exponent, and a bf16 scale per head (`rocmforge_gguf::quant::f8`).
    F8E4M3,
    /// 5 bits in blocks of 32 values with an f16 scale and minimum, of heads that a Hadamard matrix has rotated
    /// ([`KvType::hadamard_len`]). A smaller head takes a whole block.
    Q5_1,
    /// 4 bits in blocks of 32 values with an f16 scale, of rotated heads as well.
    Q4_0,
}

/// Values of a head that are rotated together, at most: those of one wave of a GPU, eight in a lane.
const MAX_HADAMARD: usize = 256;

impl KvType {
    pub const ALL: [KvType; 6] = [
        KvType::F16,
        KvType::F32,
        KvType::Q8_0,
        KvType::F8E4M3,
        KvType::Q5_1,
        KvType::Q4_0,
    ];

    /// The name used in options and messages.
    pub fn name(self) -> &'static str {
        match self {
            KvType::F16 => "f16",
            KvType::F32 => "f32",
            KvType::Q8_0 => "q8_0",
            KvType::F8E4M3 => "fp8",
            KvType::Q5_1 => "q5_1",
            KvType::Q4_0 => "q4_0",
        }
    }

    /// Number of values that share a scale; a head of `dim` values must be a whole number of such blocks.
    pub fn block_len(self, dim: usize) -> usize {
        match self {
            KvType::F16 | KvType::F32 | KvType::F8E4M3 => 1,
            KvType::Q8_0 | KvType::Q5_1 | KvType::Q4_0 => dim.clamp(1, 32),
        }
    }

    /// Bytes of one head of `dim` values.
    pub fn head_bytes(self, dim: usize) -> usize {
        match self {
            KvType::F16 => 2 * dim,
            KvType::F32 => 4 * dim,
            KvType::Q8_0 => dim + 2 * dim.div_ceil(32),
            KvType::F8E4M3 => dim + f8::SCALE_BYTES,
            KvType::Q5_1 => dim.div_ceil(32) * size_of::<Q5_1>(),
            KvType::Q4_0 => dim.div_ceil(32) * size_of::<Q4_0>(),
        }
    }

    /// Returns how many neighbouring values of a head are multiplied by a normalized Hadamard matrix before they are
    /// stored, so that a value far larger than the others does not coarsen the steps of its whole block; 1 for none. It is
    /// the largest power of two, up to 256, that divides all of `dims`, and at least 32.
    ///
    /// Queries are multiplied by the same matrix, which changes no product with a key; the outputs of attention are
    /// multiplied by that of the values, which is its own inverse.
    pub fn hadamard_len(self, dims: &[usize]) -> usize {
        match self {
            KvType::F16 | KvType::F32 | KvType::Q8_0 | KvType::F8E4M3 => 1,
            KvType::Q5_1 | KvType::Q4_0 => {
                let bits = dims.iter().fold(MAX_HADAMARD, |bits, dim| bits | dim);
                match bits & bits.wrapping_neg() {
                    len @ 32.. => len,
                    _ => 1,
                }
            }
        }
    }
}

/// The storage types of cached keys and of cached values. Its text is that of the type if both have one, else both:
/// `q8_0/q4_0`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct KvTypes {
    pub keys: KvType,
    pub values: KvType,
}

impl KvTypes {
    /// Returns the one type of keys and values, if it is one.
    pub fn same(self) -> Option<KvType> {
        (self.keys == self.values).then_some(self.keys)
    }
}

impl From<KvType> for KvTypes {
    fn from(kv_type: KvType) -> KvTypes {
        KvTypes {
            keys: kv_type,
            values: kv_type,
        }
    }
}

impl fmt::Display for KvTypes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.same() {
            Some(kv_type) => f.write_str(kv_type.name()),
            None => write!(f, "{}/{}", self.keys.name(), self.values.name()),
        }
    }
}

/// Which positions of its sequence a row sees: of those up to its own, except for the last two masks. A sequence with
/// these is computed whole, in one step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mask {
    All,
    /// The last ones, of this number; not 0.
    Window(u32),
    /// Those in the same chunk of this length, a power of two; chunks begin at multiples of it.
    Chunk(u32),
    /// All positions, also those after its own.
    Both,
    /// Those at most this far away, before its own and after it.
    Near(u32),
}

impl Mask {
    /// Returns the first position that a row at `pos` sees.
    #[inline]
    pub fn first_seen(self, pos: usize) -> usize {
        match self {
            Mask::All | Mask::Both => 0,
            Mask::Near(reach) => pos.saturating_sub(reach as usize),
            Mask::Window(window) => (pos + 1).saturating_sub(window as usize),
            Mask::Chunk(chunk) => pos - pos % chunk as usize,
        }
    }

    /// Returns the last position that a row at `pos` sees in a sequence of `len` positions.
    #[inline]
    pub fn last_seen(self, pos: usize, len: usize) -> usize {
        match self {
            Mask::All | Mask::Window(_) | Mask::Chunk(_) => pos,
            Mask::Both => pos.max(len.saturating_sub(1)),
            Mask::Near(reach) => pos.max((pos + reach as usize).min(len.saturating_sub(1))),
        }
    }

    /// Returns whether rows see positions after their own.
    #[inline]
    pub fn looks_ahead(self) -> bool {
        matches!(self, Mask::Both | Mask::Near(_))
    }

    /// # Panics
    /// If the length of a window is 0, or that of a chunk is not a power of two.
    pub fn check(self) {
        match self {
            Mask::All | Mask::Both | Mask::Near(_) => {}
            Mask::Window(window) => assert!(window > 0, "a row sees itself"),
            Mask::Chunk(chunk) => assert!(chunk.is_power_of_two(), "chunks of {chunk} positions"),
        }
    }
}

/// What one layer stores in the KV cache for each token.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct KvSpec {
    pub n_kv_heads: usize,
    /// Values per head of a key.
    pub k_dim: usize,
    /// Values per head of a value.
    pub v_dim: usize,
    /// Which positions attention sees.
    pub mask: Mask,
    pub values: Values,
    /// Of latent attention: the widths of keys and values of each query head, which the latent vectors stand for.
    pub heads: Option<[usize; 2]>,
}

/// Where the values of a layer are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Values {
    /// In memory of their own.
    #[default]
    Apart,
    /// In the keys: a value is the first `v_dim` values of its key (latent attention, MLA).
    InKeys,
}

impl KvSpec {
    /// Bytes (K and V) that one token takes in this layer's cache.
    pub fn bytes_per_token(&self, kv_types: impl Into<KvTypes>) -> u64 {
        let KvTypes { keys, values } = kv_types.into();
        let values = match self.values {
            Values::Apart => values.head_bytes(self.v_dim),
            Values::InKeys => 0,
        };
        (self.n_kv_heads * (keys.head_bytes(self.k_dim) + values)) as u64
    }

    /// Values of a key and of a value that are rotated together ([`KvType::hadamard_len`]). Those of a value in its key are
    /// never rotated with the rest of the key.
    pub fn hadamard_lens(&self, KvTypes { keys, values }: KvTypes) -> [usize; 2] {
        match self.values {
            Values::Apart => [
                keys.hadamard_len(&[self.k_dim]),
                values.hadamard_len(&[self.v_dim]),
            ],
            Values::InKeys => [keys.hadamard_len(&[self.k_dim, self.v_dim]); 2],
        }
    }

    /// Numbers (of K and V) that one token has in this layer's cache.
    pub fn numbers_per_token(&self) -> usize {
        let values = match self.values {
            Values::Apart => self.v_dim,
            Values::InKeys => 0,
        };
        self.n_kv_heads * (self.k_dim + values)
    }
}

/// A run of consecutive cached tokens and where it moves to. Neither end crosses a block boundary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotRun {
    /// First source slot: `block * page + offset`.
    pub from: u32,
    pub to: u32,
    pub n_tokens: u32,
}

/// A change of the cache when a sequence drops tokens. The runs may be applied in any order: no run reads a slot that
/// another run writes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct KvShift {
    /// Tokens that keep their positions.
    pub copied: Vec<SlotRun>,
    /// Tokens whose positions decrease by `back_by`, so that their keys are rotated back. A run may stay in place.
    pub turned: Vec<SlotRun>,
    pub back_by: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rotates_as_many_values_as_a_power_of_two_divides() {
        for (dims, wanted) in [
            (&[128][..], 128),
            (&[96], 32),
            (&[192], 64),
            (&[512], 256),
            (&[80], 1),
            (&[16], 1),
            (&[576, 512], 64),
            (&[288, 256], 32),
        ] {
            assert_eq!(KvType::Q4_0.hadamard_len(dims), wanted, "{dims:?}");
            assert_eq!(KvType::Q8_0.hadamard_len(dims), 1);
        }
    }

    /// Each type is that of its own part.
    #[test]
    fn keys_and_values_have_types_apart() {
        let spec = KvSpec {
            n_kv_heads: 2,
            k_dim: 192,
            v_dim: 128,
            mask: Mask::All,
            values: Values::Apart,
            heads: None,
        };
        let of = |keys, values| KvTypes { keys, values };
        for (types, name, bytes, rotated) in [
            (of(KvType::F16, KvType::Q8_0), "f16/q8_0", 384 + 136, [1, 1]),
            (
                of(KvType::Q8_0, KvType::Q4_0),
                "q8_0/q4_0",
                204 + 72,
                [1, 128],
            ),
            (
                of(KvType::Q4_0, KvType::Q8_0),
                "q4_0/q8_0",
                108 + 136,
                [64, 1],
            ),
            (KvType::Q5_1.into(), "q5_1", 144 + 96, [64, 128]),
        ] {
            assert_eq!(types.to_string(), name);
            assert_eq!(spec.bytes_per_token(types), 2 * bytes, "{name}");
            assert_eq!(spec.hadamard_lens(types), rotated, "{name}");
        }
    }
}
