//! The autotuning table: which launch configuration to use where several give the same bits. Measurements fill it
//! (`tune`), and ops look it up when they choose.
//! Only choices that cannot change a result are here: how many weight rows a wave takes, how many waves of the device
//! serve the virtual waves of a row, how many query heads of a block share a split, the order in which blocks start, and
//! tiles of GEMM that add in the same order. All of these keep the terms of each sum in the same order. Other tiles,
//! splits of a context, and whether few rows use the GEMM kernels change the order of additions. Those follow fixed
//! rules, so that a model gives the same answers before and after tuning, here and on another machine.
//! A table may come from an untrusted file: choices that a kernel does not support for a shape are ignored at the
//! launch.

use std::collections::HashMap;
use std::fmt;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::str::FromStr;

use rocmforge_gguf::GgmlType;

use crate::error::GpuError;
use crate::gpu::Gpu;
use crate::image::fingerprint;
use crate::kv::KvTypes;

/// Maximum number of matrices in one launch.
const MAX_MATRICES: usize = 3;
/// Maximum number of waves that share a row: the waves of a block.
const MAX_SPLIT: usize = 8;

/// The properties of a launch that a choice depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Shape {
    /// GEMV: one row of activations with up to three matrices of one format. `n_out` of each, 0 for unused entries.
    Matvec {
        ty: GgmlType,
        n_out: [usize; MAX_MATRICES],
        n_in: usize,
    },
    /// GEMM. `n_rows` is rounded up to a power of two.
    Matmul {
        ty: GgmlType,
        n_out: usize,
        n_in: usize,
        n_rows: usize,
    },
    /// Attention of a few rows; `n_rows` as above. The length of the context and its splits are left out: with few
    /// blocks in a long context there are also few in a short one, where attention takes little time.
    Attention {
        types: KvTypes,
        n_heads: usize,
        n_kv_heads: usize,
        dim: usize,
        n_rows: usize,
    },
}

/// The order in which the blocks of a GEMM start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BlockOrder {
    /// All outputs of some rows, then those of the next rows.
    OutputsFirst,
    /// All rows of some outputs, so that their weights are read once.
    RowsFirst,
}

/// The output tile of a block of a GEMM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MatmulTiles {
    /// The fewest loads per product.
    Large,
    /// More blocks. Where weights are codes, their waves also split the columns of the weights.
    Small,
}

/// The tuned choice for a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Choice {
    Matvec {
        /// Weight rows that a wave takes at a time: 1 or 2.
        rows: usize,
        /// Maximum number of waves that share a row, a power of two. A matrix with fewer virtual waves per row uses
        /// that many.
        split: usize,
    },
    Matmul {
        /// Ignored if they give other bits than the usual ones.
        tiles: MatmulTiles,
        order: BlockOrder,
    },
    Attention {
        /// Query heads per block, a power of two.
        heads: usize,
    },
}

/// Choices by shape.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tuning {
    choices: HashMap<Shape, Choice>,
}

impl Tuning {
    /// Returns a table with this one entry.
    pub fn only(shape: Shape, choice: Choice) -> Tuning {
        Tuning::from_iter([(shape, choice)])
    }

    pub fn get(&self, shape: &Shape) -> Option<Choice> {
        self.choices.get(shape).copied()
    }

    pub fn contains(&self, shape: &Shape) -> bool {
        self.choices.contains_key(shape)
    }

    pub fn len(&self) -> usize {
        self.choices.len()
    }

    pub fn is_empty(&self) -> bool {
        self.choices.is_empty()
    }

    /// Returns a hash of the table, to tell tables apart.
    pub fn fingerprint(&self) -> u64 {
        let of_each = self.choices.iter().map(|entry| {
            let mut hash = DefaultHasher::new();
            entry.hash(&mut hash);
            hash.finish()
        });
        of_each.fold(0, u64::wrapping_add)
    }
}

impl FromIterator<(Shape, Choice)> for Tuning {
    fn from_iter<T: IntoIterator<Item = (Shape, Choice)>>(entries: T) -> Tuning {
        Tuning {
            choices: entries.into_iter().collect(),
        }
    }
}

/// Returns what a table is valid for in one line of text: device, driver and kernels.
///
/// # Errors
/// Those of the device.
pub fn tuning_key(gpu: &Gpu) -> Result<String, GpuError> {
    let info = gpu.info()?;
    let facts = [
        info.name.as_str(),
        info.architecture.as_str(),
        info.driver_version.as_str(),
        info.runtime_version.as_str(),
        gpu.target(),
    ];
    let facts = facts.map(|fact| fact.replace(char::is_control, " "));
    let kernels = fingerprint(gpu.target());
    Ok(format!("{}; {kernels:016x}", facts.join("; ")))
}

impl fmt::Display for Shape {
    /// Formats the shape as [`FromStr`] takes it, such as `matvec Q4_K 4096+1024x4096`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Shape::Matvec { ty, n_out, n_in } => {
                let outs: Vec<String> = matrices(n_out).map(|n| n.to_string()).collect();
                write!(f, "matvec {} {}x{n_in}", ty.name(), outs.join("+"))
            }
            Shape::Matmul {
                ty,
                n_out,
                n_in,
                n_rows,
            } => write!(f, "matmul {} {n_out}x{n_in} rows {n_rows}", ty.name()),
            Shape::Attention {
                types,
                n_heads,
                n_kv_heads,
                dim,
                n_rows,
            } => write!(
                f,
                "attention {} {n_heads}/{n_kv_heads}x{dim} rows {n_rows}",
                types.name()
            ),
        }
    }
}

fn matrices(n_out: &[usize; MAX_MATRICES]) -> impl Iterator<Item = usize> {
    n_out.iter().copied().filter(|&n| n > 0)
}

impl fmt::Display for Choice {
    /// Formats the choice as [`FromStr`] takes it, such as `rows 1 split 4`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Choice::Matvec { rows, split } => write!(f, "rows {rows} split {split}"),
            Choice::Matmul { tiles, order } => {
                let tiles = match tiles {
                    MatmulTiles::Large => "large",
                    MatmulTiles::Small => "small",
                };
                let order = match order {
                    BlockOrder::OutputsFirst => "outputs",
                    BlockOrder::RowsFirst => "rows",
                };
                write!(f, "{tiles} tiles {order} first")
            }
            Choice::Attention { heads } => write!(f, "heads {heads}"),
        }
    }
}

/// Text that is neither a shape nor a choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoTuning;

fn number(text: &str) -> Result<usize, NoTuning> {
    // Only the canonical form is accepted, and only numbers that a launch can have.
    match text.parse::<u32>() {
        Ok(n) if n > 0 && n.to_string() == text => Ok(n as usize),
        _ => Err(NoTuning),
    }
}

fn pair<'a>(text: &'a str, by: &str) -> Result<[&'a str; 2], NoTuning> {
    let (a, b) = text.split_once(by).ok_or(NoTuning)?;
    Ok([a, b])
}

fn format(text: &str) -> Result<GgmlType, NoTuning> {
    let ty = GgmlType::from_name(text).filter(|ty| ty.name() == text);
    ty.ok_or(NoTuning)
}

impl FromStr for Shape {
    type Err = NoTuning;

    fn from_str(text: &str) -> Result<Shape, NoTuning> {
        let words: Vec<&str> = text.split(' ').collect();
        match words[..] {
            ["matvec", ty, extents] => {
                let [outs, n_in] = pair(extents, "x")?;
                let mut n_out = [0; MAX_MATRICES];
                let outs: Vec<&str> = outs.split('+').collect();
                if outs.len() > MAX_MATRICES {
                    return Err(NoTuning);
                }
                for (to, n) in n_out.iter_mut().zip(outs) {
                    *to = number(n)?;
                }
                Ok(Shape::Matvec {
                    ty: format(ty)?,
                    n_out,
                    n_in: number(n_in)?,
                })
            }
            ["matmul", ty, extents, "rows", n_rows] => {
                let [n_out, n_in] = pair(extents, "x")?;
                Ok(Shape::Matmul {
                    ty: format(ty)?,
                    n_out: number(n_out)?,
                    n_in: number(n_in)?,
                    n_rows: number(n_rows)?,
                })
            }
            ["attention", types, extents, "rows", n_rows] => {
                let [heads, dim] = pair(extents, "x")?;
                let [n_heads, n_kv_heads] = pair(heads, "/")?;
                let mut all = KvTypes::ALL.iter().copied();
                let types = all.find(|known| known.name() == types);
                Ok(Shape::Attention {
                    types: types.ok_or(NoTuning)?,
                    n_heads: number(n_heads)?,
                    n_kv_heads: number(n_kv_heads)?,
                    dim: number(dim)?,
                    n_rows: number(n_rows)?,
                })
            }
            _ => Err(NoTuning),
        }
    }
}

impl FromStr for Choice {
    type Err = NoTuning;

    fn from_str(text: &str) -> Result<Choice, NoTuning> {
        let words: Vec<&str> = text.split(' ').collect();
        match words[..] {
            ["rows", rows, "split", split] => {
                let (rows, split) = (number(rows)?, number(split)?);
                let known = rows <= 2 && split <= MAX_SPLIT && split.is_power_of_two();
                match known {
                    true => Ok(Choice::Matvec { rows, split }),
                    false => Err(NoTuning),
                }
            }
            [tiles, "tiles", order, "first"] => Ok(Choice::Matmul {
                tiles: match tiles {
                    "large" => MatmulTiles::Large,
                    "small" => MatmulTiles::Small,
                    _ => return Err(NoTuning),
                },
                order: match order {
                    "outputs" => BlockOrder::OutputsFirst,
                    "rows" => BlockOrder::RowsFirst,
                    _ => return Err(NoTuning),
                },
            }),
            ["heads", heads] => match number(heads)? {
                heads if heads.is_power_of_two() && heads <= 8 => Ok(Choice::Attention { heads }),
                _ => Err(NoTuning),
            },
            _ => Err(NoTuning),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPES: [&str; 6] = [
        "matvec Q4_K 4096x14336",
        "matvec F16 1+2+3x4",
        "matmul MXFP4 128256x4096 rows 512",
        "attention F16 32/8x128 rows 1",
        "attention F8E4M3 8/1x256 rows 8",
        "attention Q8_0_Q4_0 32/8x128 rows 1",
    ];
    const CHOICES: [&str; 6] = [
        "rows 1 split 8",
        "rows 2 split 1",
        "large tiles outputs first",
        "small tiles rows first",
        "heads 1",
        "heads 8",
    ];

    #[test]
    fn shapes_and_choices_round_trip() {
        for text in SHAPES {
            assert_eq!(text.parse::<Shape>().unwrap().to_string(), text);
        }
        for text in CHOICES {
            assert_eq!(text.parse::<Choice>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn rejects_other_text() {
        for text in [
            "",
            "matvec",
            "matvec Q4_K",
            "matvec q4_k 1x1",
            "matvec Q4_K 1x0",
            "matvec Q4_K 01x1",
            "matvec Q4_K 1+2+3+4x5",
            "matvec Q4_K 99999999999x1",
            "matvec Q9_K 1x1",
            "matmul Q4_K 1x1 rows -1",
            "attention F32 1/1x1 rows 1",
            "attention F16 1x1 rows 1",
            "attention Q4_0_Q8_0 1/1x1 rows 1",
        ] {
            assert_eq!(text.parse::<Shape>(), Err(NoTuning), "{text}");
        }
        for text in [
            "",
            "rows 3 split 1",
            "rows 1 split 3",
            "rows 1 split 16",
            "rows 0 split 1",
            "heads 16",
            "heads 3",
            "first",
            "outputs first",
            "tiny tiles rows first",
            "large tiles heads first",
        ] {
            assert_eq!(text.parse::<Choice>(), Err(NoTuning), "{text}");
        }
    }

    #[test]
    fn fingerprint_ignores_order() {
        let entries = SHAPES.map(|shape| (shape.parse().unwrap(), "heads 1".parse().unwrap()));
        let all = Tuning::from_iter(entries);
        let reversed: Tuning = entries.into_iter().rev().collect();
        assert_eq!(all.fingerprint(), reversed.fingerprint());
        let fewer = Tuning::from_iter(entries[1..].to_vec());
        assert_ne!(all.fingerprint(), fewer.fingerprint());
        assert_eq!(Tuning::default().fingerprint(), 0);
    }
}
