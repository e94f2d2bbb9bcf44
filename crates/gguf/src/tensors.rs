//! Tensor infos: the part of the header that describes each tensor. Shapes, offsets and lengths are validated here, so
//! that other code can slice without further checks.

use crate::error::Error;
use crate::metadata::{check_count, find_by, name, sorted_by};
use crate::quant::GgmlType;
use crate::reader::Reader;

/// Maximum number of tensors in a file. The largest known models have about 3,000.
pub(crate) const MAX_TENSORS: u64 = 1 << 16;

/// Maximum length of a tensor name in bytes. llama.cpp allows 63, some builds of GGML 127.
pub(crate) const MAX_NAME_BYTES: u64 = 255;

/// Maximum number of dimensions, as in GGML.
pub(crate) const MAX_DIMS: u32 = 4;

/// Smallest tensor info: name length, one letter, dimension count, type, offset.
const MIN_INFO_BYTES: u64 = 8 + 1 + 4 + 4 + 8;

/// Name, shape, format and position of a tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// Name as in the file, such as `blk.0.attn_q.weight`.
    pub name: String,
    /// One to four sizes, none of them zero, fastest-varying first as in GGML's `ne`: `dims[0]` is the row length.
    pub dims: Vec<u64>,
    /// Format of the blocks.
    pub ty: GgmlType,
    /// Position of the first byte, from the start of the file.
    pub offset: u64,
    /// Length in bytes.
    pub n_bytes: u64,
    /// Index of the part of a split model that holds it, from 0.
    pub part: u16,
}

impl TensorInfo {
    /// Number of values.
    pub fn n_elements(&self) -> u64 {
        self.dims.iter().product()
    }

    /// Values per row: `dims[0]`.
    pub fn row_len(&self) -> u64 {
        self.dims.first().copied().unwrap_or(1)
    }

    /// Number of rows: the product of the dimensions after the first.
    pub fn n_rows(&self) -> u64 {
        self.dims.iter().skip(1).product()
    }
}

/// A tensor whose format is unknown, so that neither its length is known nor its values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownTensor {
    /// Name as in the file.
    pub name: String,
    /// One to four sizes, as in [`TensorInfo::dims`].
    pub dims: Vec<u64>,
    /// The id of the format.
    pub type_id: u32,
}

impl UnknownTensor {
    /// What a program says that needs the tensor.
    pub fn error(&self) -> Error {
        Error::UnknownTensorType {
            name: self.name.clone(),
            id: self.type_id,
        }
    }
}

/// The tensors of a file, with an index by name.
#[derive(Debug, Default)]
pub(crate) struct Tensors {
    pub(crate) infos: Vec<TensorInfo>,
    pub(crate) unknown: Vec<UnknownTensor>,
    by_name: Vec<u32>,
}

impl Tensors {
    /// Parses `n` infos at `pos`. The data section begins at the next multiple of `alignment` after them.
    pub(crate) fn parse(bytes: &[u8], pos: usize, n: u64, alignment: u64) -> Result<Self, Error> {
        let mut r = Reader::at(bytes, pos);
        check_count(&r, n, MIN_INFO_BYTES, MAX_TENSORS, "the number of tensors")?;
        let (mut infos, mut unknown) = (Vec::new(), Vec::new());
        for _ in 0..n {
            match parse_info(&mut r, alignment)? {
                Info::Known(info) => infos.push(info),
                Info::Unknown(tensor) => unknown.push(tensor),
            }
        }
        place(&mut infos, r.pos() as u64, alignment, bytes.len() as u64)?;
        Tensors::sorted(infos, unknown)
    }

    /// Joins the tensors of all parts of a split model, in order.
    pub(crate) fn join(parts: Vec<Tensors>) -> Result<Self, Error> {
        let n: usize = parts.iter().map(Tensors::len).sum();
        if n as u64 > MAX_TENSORS {
            return Err(Error::PartTensors {
                expected: MAX_TENSORS,
                found: n as u64,
                n_parts: parts.len() as u64,
            });
        }
        let mut infos = Vec::with_capacity(n);
        let mut unknown = Vec::new();
        for (no, part) in parts.into_iter().enumerate() {
            unknown.extend(part.unknown);
            let no = u16::try_from(no).expect("the number of parts is limited to 2^16");
            infos.extend(part.infos.into_iter().map(|t| TensorInfo { part: no, ..t }));
        }
        Tensors::sorted(infos, unknown)
    }

    /// Tensors of any format.
    pub(crate) fn len(&self) -> usize {
        self.infos.len() + self.unknown.len()
    }

    fn sorted(infos: Vec<TensorInfo>, unknown: Vec<UnknownTensor>) -> Result<Self, Error> {
        let by_name = sorted_by(&infos, |t| &t.name).map_err(|t| Error::DuplicateTensor {
            name: t.name.clone(),
        })?;
        Ok(Tensors {
            infos,
            unknown,
            by_name,
        })
    }

    pub(crate) fn get(&self, name: &str) -> Option<&TensorInfo> {
        find_by(&self.infos, &self.by_name, name, |t| &t.name)
    }
}

/// What the header says of a tensor.
enum Info {
    Known(TensorInfo),
    Unknown(UnknownTensor),
}

/// Parses one info, whose offset is still relative to the data section.
fn parse_info(r: &mut Reader<'_>, alignment: u64) -> Result<Info, Error> {
    const WHAT: &str = "a tensor info";
    let name = name(r, "tensor name", MAX_NAME_BYTES)?;
    let at = r.pos() as u64;
    let n_dims = r.u32(WHAT)?;
    if n_dims > MAX_DIMS {
        return Err(Error::Limit {
            what: "the number of dimensions of a tensor",
            offset: at,
            found: n_dims.into(),
            limit: MAX_DIMS.into(),
        });
    }
    let mut dims = Vec::with_capacity(MAX_DIMS as usize);
    for _ in 0..n_dims {
        dims.push(r.u64(WHAT)?);
    }
    if dims.is_empty() {
        // GGML reads a tensor without dimensions as a single value.
        dims.push(1);
    }
    let id = r.u32(WHAT)?;
    let offset = r.u64(WHAT)?;
    let Some(ty) = GgmlType::from_id(id) else {
        return Ok(Info::Unknown(UnknownTensor {
            name: name.into(),
            dims,
            type_id: id,
        }));
    };
    let n_bytes = checked_bytes(name, &dims, ty)?;
    if !offset.is_multiple_of(alignment) {
        return Err(Error::Misaligned {
            name: name.into(),
            offset,
            alignment,
        });
    }
    Ok(Info::Known(TensorInfo {
        name: name.into(),
        dims,
        ty,
        offset,
        n_bytes,
        part: 0,
    }))
}

/// Returns the size in bytes of a tensor of this shape. Rejects zero sizes, overflowing products and rows that are not
/// whole blocks.
pub(crate) fn checked_bytes(name: &str, dims: &[u64], ty: GgmlType) -> Result<u64, Error> {
    let bad = |problem| Error::BadShape {
        name: name.into(),
        dims: dims.to_vec(),
        problem,
    };
    if dims.contains(&0) {
        return Err(bad("a dimension is zero"));
    }
    let row_len = dims.first().copied().unwrap_or(1);
    if !row_len.is_multiple_of(ty.block_len() as u64) {
        return Err(Error::PartialBlock {
            name: name.into(),
            row_len,
            block_len: ty.block_len(),
            ty: ty.name(),
        });
    }
    let elements = dims.iter().try_fold(1u64, |n, &d| n.checked_mul(d));
    elements
        .map(|n| n / ty.block_len() as u64)
        .and_then(|blocks| blocks.checked_mul(ty.block_bytes() as u64))
        .ok_or_else(|| bad("their product is too large"))
}

/// Converts offsets to file offsets, and checks that all tensors lie in the file and do not overlap.
fn place(infos: &mut [TensorInfo], pos: u64, alignment: u64, file: u64) -> Result<(), Error> {
    let start = pos.checked_next_multiple_of(alignment);
    for t in infos.iter_mut() {
        let offset = start.and_then(|s| s.checked_add(t.offset));
        let end = offset.and_then(|o| o.checked_add(t.n_bytes));
        match (offset, end) {
            (Some(offset), Some(end)) if end <= file => t.offset = offset,
            _ => {
                return Err(Error::TensorOutOfFile {
                    name: t.name.clone(),
                    offset: offset.unwrap_or(u64::MAX),
                    end: end.unwrap_or(u64::MAX),
                    file_bytes: file,
                });
            }
        }
    }
    let mut order: Vec<&TensorInfo> = infos.iter().collect();
    order.sort_by_key(|t| t.offset);
    match order
        .windows(2)
        .find(|w| w[0].offset + w[0].n_bytes > w[1].offset)
    {
        None => Ok(()),
        Some(w) => Err(Error::Overlap {
            first: w[0].name.clone(),
            second: w[1].name.clone(),
            offset: w[1].offset,
        }),
    }
}
