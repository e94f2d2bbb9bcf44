//! Forced kernel variants: kernels by name that override what launches would choose. For tests, and for users who
//! suspect a kernel.
//! The ops call [`crate::Gpu::takes`] where they choose. Input that a variant's kernel does not support (head widths it
//! was not compiled for) goes the usual way.

use std::fmt;
use std::str::FromStr;

/// Up to this many rows, attention with [`Variant::RowsAnswer`] divides the context of each as if it were the only one. Whether the
/// kernels of products suit as many decides which ones take any number.
pub const MAX_ANSWER_ROWS: usize = 64;

/// A kernel variant that can be forced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Variant {
    /// GEMM of any number of rows by the GEMV kernels, 8 rows at a time.
    ProductsMatvec,
    /// GEMV by the GEMM kernels.
    ProductsMatmul,
    /// GEMM of int8 codes where there are kernels for f16.
    ProductsCodes,
    /// The smaller or the larger tiles of GEMM of codes. For a single token's experts, waves with fewer or more rows of weights.
    TilesSmall,
    TilesLarge,
    /// The widest tiles of GEMM in f16, for any number of rows from 33 on.
    TilesWide,
    /// Attention of each row by itself, for any number of rows.
    AttentionDecode,
    /// Attention with loads shared by several rows, even for few rows.
    AttentionPrefill,
    /// Attention with the rounding errors of queries and weights, where there are kernels without.
    AttentionExact,
    /// Attention by the kernel for any head width.
    AttentionGeneric,
    /// Neither contexts nor weight rows are split among blocks or waves.
    SplitsOff,
    /// Tiles of GEMM in f16 are divided wherever they can be.
    SplitsOn,
    /// Norms use a whole block for each row, however short it is.
    NormsBlock,
    /// Activations of experts and heads are converted by launches of their own, not by the products of one token.
    ActsSeparate,
    /// Norms, rotations and elementwise operations load one value at a time.
    LoadsNarrow,
    /// Norms of heads, rotations and the append to the KV cache are separate launches.
    RopeSeparate,
    /// Linear attention row by row, also of prompts.
    LinearRows,
    /// Kernels for many rows and for few, of which each gives a row the same bits whatever the other rows of a step are.
    RowsPrompt,
    RowsAnswer,
    /// Launches ignore autotuning. So they do with any other variant.
    TuningOff,
}

/// Every variant with its name `KIND=NAME`. One of each kind can be forced.
const NAMES: [(Variant, &str); 20] = [
    (Variant::ProductsMatvec, "products=matvec"),
    (Variant::ProductsMatmul, "products=matmul"),
    (Variant::ProductsCodes, "products=codes"),
    (Variant::TilesSmall, "tiles=small"),
    (Variant::TilesLarge, "tiles=large"),
    (Variant::TilesWide, "tiles=wide"),
    (Variant::AttentionDecode, "attention=decode"),
    (Variant::AttentionPrefill, "attention=prefill"),
    (Variant::AttentionExact, "attention=exact"),
    (Variant::AttentionGeneric, "attention=generic"),
    (Variant::SplitsOff, "splits=off"),
    (Variant::SplitsOn, "splits=on"),
    (Variant::NormsBlock, "norms=block"),
    (Variant::ActsSeparate, "acts=separate"),
    (Variant::LoadsNarrow, "loads=narrow"),
    (Variant::RopeSeparate, "rope=separate"),
    (Variant::LinearRows, "linear=rows"),
    (Variant::RowsPrompt, "rows=prompt"),
    (Variant::RowsAnswer, "rows=answer"),
    (Variant::TuningOff, "tuning=off"),
];

/// The simplest variant of each kind that has one.
const PLAIN: (&str, &str) = (
    "plain",
    "products=matvec,tiles=small,attention=generic,splits=off,norms=block,acts=separate,loads=narrow,rope=separate,linear=rows,tuning=off",
);

/// A set of forced variants; empty by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Variants {
    /// Bit `variant as u32`.
    bits: u32,
}

impl Variants {
    /// Returns the names of all variants and of the short form `plain`, separated by commas.
    pub fn known() -> String {
        let names = NAMES.iter().map(|(_, name)| *name);
        names.chain([PLAIN.0]).collect::<Vec<_>>().join(", ")
    }

    pub fn is_empty(self) -> bool {
        self.bits == 0
    }

    pub fn contains(self, variant: Variant) -> bool {
        self.bits & (1 << variant as u32) != 0
    }

    /// Returns these and `variant`.
    #[must_use]
    pub fn with(self, variant: Variant) -> Variants {
        Variants {
            bits: self.bits | 1 << variant as u32,
        }
    }

    fn of_kind(self, kind: &str) -> Option<&'static str> {
        let mut names = NAMES.iter().filter(|(variant, _)| self.contains(*variant));
        names
            .find(|(_, name)| kind_of(name) == kind)
            .map(|(_, name)| *name)
    }
}

fn kind_of(name: &str) -> &str {
    name.split_once('=').map_or(name, |(kind, _)| kind)
}

impl fmt::Display for Variants {
    /// Formats the names as [`FromStr`] takes them; empty for no variants.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = NAMES.iter().filter(|(variant, _)| self.contains(*variant));
        let names: Vec<&str> = names.map(|(_, name)| *name).collect();
        f.write_str(&names.join(","))
    }
}

impl FromStr for Variants {
    type Err = String;

    /// Parses names separated by commas, or `plain`: the simplest variant of each kind.
    fn from_str(text: &str) -> Result<Variants, String> {
        let list = if text == PLAIN.0 { PLAIN.1 } else { text };
        let mut variants = Variants::default();
        for wanted in list.split(',') {
            let Some((variant, name)) = NAMES.iter().find(|(_, name)| *name == wanted) else {
                return Err(format!(
                    "unknown kernel variant {wanted:?}; known variants: {}",
                    Variants::known()
                ));
            };
            if let Some(other) = variants.of_kind(kind_of(name)) {
                return Err(format!("{other} and {name} exclude each other; choose one"));
            }
            variants = variants.with(*variant);
        }
        Ok(variants)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for (variant, name) in NAMES {
            let variants: Variants = name.parse().unwrap();
            assert!(variants.contains(variant));
            assert_eq!(variants.to_string(), name);
        }
        let two: Variants = "attention=decode,tiles=small".parse().unwrap();
        assert_eq!(two.to_string(), "tiles=small,attention=decode");
        assert_eq!(Variants::default().to_string(), "");
    }

    #[test]
    fn plain_has_one_variant_of_each_kind() {
        let plain: Variants = "plain".parse().unwrap();
        assert_eq!(plain.to_string(), PLAIN.1);
        // Neither kind of rows has simpler kernels.
        for (_, name) in NAMES.iter().filter(|(_, name)| kind_of(name) != "rows") {
            assert!(plain.of_kind(kind_of(name)).is_some(), "{name}");
        }
    }

    #[test]
    fn rejects_unknown_names_and_lists_known_ones() {
        for text in [
            "",
            "tiles",
            "tiles=",
            "tiles=tiny",
            "tiles=small,",
            "plain,x",
        ] {
            let message = text.parse::<Variants>().unwrap_err();
            for name in ["tiles=small", "attention=generic", "plain"] {
                assert!(message.contains(name), "{text}: {message}");
            }
        }
        for text in ["tiles=small,tiles=large", "tiles=small,tiles=small"] {
            let message = text.parse::<Variants>().unwrap_err();
            assert!(message.contains("exclude"), "{message}");
        }
    }
}
