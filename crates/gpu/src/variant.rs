//! Kernels by name, to take instead of those that launches choose: by tests, and by users who suspect a kernel.
//!
//! The ops ask [`crate::Gpu::takes`] where they choose. What a variant's kernel cannot take (heads of widths that it was
//! not compiled for) goes the usual way.

use std::fmt;
use std::str::FromStr;

/// A kernel that can be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Variant {
    /// Products of any number of rows by the kernels for few, 8 rows at a time.
    ProductsMatvec,
    /// Products of a few rows by the kernels for many.
    ProductsMatmul,
    /// The smaller tiles of the products of many rows, or the larger ones.
    TilesSmall,
    TilesLarge,
    /// Attention of each row by itself, of any number of rows.
    AttentionDecode,
    /// Attention of rows that share what they load, of a few rows too.
    AttentionPrefill,
    /// Attention by the kernel for heads of any width.
    AttentionGeneric,
    /// Neither a context nor a row of weights is split among blocks or waves.
    SplitsOff,
    /// A norm's row is a whole block's, however short it is.
    NormsBlock,
    /// Norms, rotations and elementwise operations move one value at a time.
    LoadsNarrow,
    /// Norms of heads, rotations and the append to the cache are launches of their own.
    RopeSeparate,
    /// Launches are made as without measurements. They are so with any other variant, too.
    TuningOff,
}

/// Every variant's name, `KIND=NAME`: of each kind one can be asked for.
const NAMES: [(Variant, &str); 12] = [
    (Variant::ProductsMatvec, "products=matvec"),
    (Variant::ProductsMatmul, "products=matmul"),
    (Variant::TilesSmall, "tiles=small"),
    (Variant::TilesLarge, "tiles=large"),
    (Variant::AttentionDecode, "attention=decode"),
    (Variant::AttentionPrefill, "attention=prefill"),
    (Variant::AttentionGeneric, "attention=generic"),
    (Variant::SplitsOff, "splits=off"),
    (Variant::NormsBlock, "norms=block"),
    (Variant::LoadsNarrow, "loads=narrow"),
    (Variant::RopeSeparate, "rope=separate"),
    (Variant::TuningOff, "tuning=off"),
];

/// The simplest of each kind.
const PLAIN: (&str, &str) = (
    "plain",
    "products=matvec,tiles=small,attention=generic,splits=off,norms=block,loads=narrow,rope=separate,tuning=off",
);

/// Kernels that were asked for; by default none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Variants {
    /// Bit `variant as u32`.
    bits: u32,
}

impl Variants {
    /// Names of all, and of [`FromStr`]'s short form, as a message lists them.
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
    /// As [`FromStr`] takes it; nothing for none.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = NAMES.iter().filter(|(variant, _)| self.contains(*variant));
        let names: Vec<&str> = names.map(|(_, name)| *name).collect();
        f.write_str(&names.join(","))
    }
}

impl FromStr for Variants {
    type Err = String;

    /// Names of variants with commas between them, or `plain`: the simplest of each kind.
    fn from_str(text: &str) -> Result<Variants, String> {
        let list = if text == PLAIN.0 { PLAIN.1 } else { text };
        let mut variants = Variants::default();
        for wanted in list.split(',') {
            let Some((variant, name)) = NAMES.iter().find(|(_, name)| *name == wanted) else {
                return Err(format!(
                    "no kernel variant {wanted:?}; there are {}",
                    Variants::known()
                ));
            };
            if let Some(other) = variants.of_kind(kind_of(name)) {
                return Err(format!("{other} and {name} exclude each other"));
            }
            variants.bits |= 1 << *variant as u32;
        }
        Ok(variants)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
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
    fn plain_is_one_of_each_kind() {
        let plain: Variants = "plain".parse().unwrap();
        assert_eq!(plain.to_string(), PLAIN.1);
        for (_, name) in NAMES {
            assert!(plain.of_kind(kind_of(name)).is_some(), "{name}");
        }
    }

    #[test]
    fn what_is_not_known_is_refused_with_what_is() {
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
