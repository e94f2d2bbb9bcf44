//! Writes GGUF version 3, in the layout described in `file.rs`. Tensors are added with their data or only declared; the
//! data of declared tensors is then written through a [`DataStream`], so a file may be larger than memory.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet, VecDeque};
use std::io::{self, Write};

use crate::error::Error;
use crate::file::{ALIGNMENT_KEY, DEFAULT_ALIGNMENT, checked_alignment};
use crate::metadata::{MAX_KEY_BYTES, MAX_KEYS};
use crate::owned::{OwnedValue, encode_string};
use crate::quant::{self, GgmlType};
use crate::tensors::{MAX_DIMS, MAX_NAME_BYTES, MAX_TENSORS, checked_bytes};

/// Builds a GGUF file. Metadata and tensors are written in the order they were added.
#[derive(Clone, Debug, Default)]
pub struct Writer<'a> {
    metadata: Vec<(String, OwnedValue)>,
    /// Indices of `metadata` by key.
    by_key: HashMap<String, usize>,
    tensors: Vec<Tensor<'a>>,
    tensor_names: HashSet<String>,
}

#[derive(Clone, Debug)]
struct Tensor<'a> {
    name: String,
    dims: Vec<u64>,
    ty: GgmlType,
    n_bytes: u64,
    /// `None` for a tensor that is only declared.
    data: Option<Cow<'a, [u8]>>,
}

impl<'a> Writer<'a> {
    /// Starts a file with `general.architecture` set to `arch`.
    pub fn new(arch: &str) -> Self {
        let mut writer = Writer::default();
        writer.set("general.architecture", arch);
        writer
    }

    /// Sets a metadata key, replacing its previous value. `general.alignment` (a u32) sets the alignment of the
    /// tensors.
    pub fn set(&mut self, key: &str, value: impl Into<OwnedValue>) -> &mut Self {
        let value = value.into();
        match self.by_key.get(key) {
            Some(&at) => self.metadata[at].1 = value,
            None => {
                self.by_key.insert(key.to_owned(), self.metadata.len());
                self.metadata.push((key.to_owned(), value));
            }
        }
        self
    }

    /// Adds a tensor. `dims` are in `ne` order (row length first); `data` holds its blocks in row-major order.
    ///
    /// # Errors
    /// If the name is already used or invalid, the shape is invalid, or the length of `data` does not match shape and
    /// type.
    pub fn add_tensor(
        &mut self,
        name: &str,
        dims: &[u64],
        ty: GgmlType,
        data: impl Into<Cow<'a, [u8]>>,
    ) -> Result<&mut Self, Error> {
        let data = data.into();
        let expected = checked_bytes(name, dims, ty)?;
        if data.len() as u64 != expected {
            return Err(Error::DataLength {
                name: name.to_owned(),
                expected,
                found: data.len() as u64,
            });
        }
        self.push(name, dims, ty, Some(data))
    }

    /// Declares a tensor whose data is written later, through [`Writer::stream`].
    ///
    /// # Errors
    /// If the name is already used or invalid, or the shape is invalid.
    pub fn declare_tensor(
        &mut self,
        name: &str,
        dims: &[u64],
        ty: GgmlType,
    ) -> Result<&mut Self, Error> {
        self.push(name, dims, ty, None)
    }

    fn push(
        &mut self,
        name: &str,
        dims: &[u64],
        ty: GgmlType,
        data: Option<Cow<'a, [u8]>>,
    ) -> Result<&mut Self, Error> {
        check_name("tensor name", name, MAX_NAME_BYTES)?;
        if dims.is_empty() || dims.len() > MAX_DIMS as usize {
            return Err(Error::BadShape {
                name: name.to_owned(),
                dims: dims.to_vec(),
                problem: "one to four dimensions are valid",
            });
        }
        let n_bytes = checked_bytes(name, dims, ty)?;
        if !self.tensor_names.insert(name.to_owned()) {
            return Err(Error::DuplicateTensor {
                name: name.to_owned(),
            });
        }
        self.tensors.push(Tensor {
            name: name.to_owned(),
            dims: dims.to_vec(),
            ty,
            n_bytes,
            data,
        });
        Ok(self)
    }

    /// Adds a tensor of f32 values converted to `ty` by [`quant::quantize`].
    ///
    /// # Errors
    /// As [`Writer::add_tensor`], and if there is no quantizer for `ty`.
    pub fn add_tensor_f32(
        &mut self,
        name: &str,
        dims: &[u64],
        ty: GgmlType,
        values: &[f32],
    ) -> Result<&mut Self, Error> {
        // Only whole blocks of `values`; `quantize` rejects a remainder.
        let n_bytes = values.len() / ty.block_len() * ty.block_bytes();
        let mut data = vec![0; n_bytes];
        quant::quantize(ty, values, &mut data)?;
        self.add_tensor(name, dims, ty, data)
    }

    /// Returns the file as bytes.
    ///
    /// # Errors
    /// If a key is empty or too long, or `general.alignment` is invalid.
    pub fn to_vec(&self) -> Result<Vec<u8>, Error> {
        let data = self.tensors.iter().filter_map(|t| t.data.as_deref());
        let mut out = Vec::with_capacity(data.map(<[u8]>::len).sum());
        self.write_to(&mut out)?;
        Ok(out)
    }

    /// Writes the file to `out`.
    ///
    /// # Errors
    /// As [`Writer::to_vec`]; if writing to `out` fails, or a tensor was declared without data.
    pub fn write_to(&self, out: impl Write) -> Result<(), Error> {
        let mut stream = self.stream(out)?;
        for t in &self.tensors {
            let data = t.data.as_deref().ok_or_else(|| Error::Unwritable {
                what: "tensor",
                name: t.name.clone(),
                problem: "it was declared without data",
            })?;
            stream.write(data)?;
        }
        stream.finish().map(drop)
    }

    /// Writes the header to `out`. The data of all tensors, added or declared, must follow in order.
    ///
    /// # Errors
    /// As [`Writer::to_vec`], and if writing to `out` fails.
    pub fn stream<W: Write>(&self, mut out: W) -> Result<DataStream<W>, Error> {
        let alignment = self.alignment()?;
        let header = self.header(alignment)?;
        let write = |source| Error::Write { source };
        out.write_all(&header).map_err(write)?;
        pad(&mut out, header.len() as u64, alignment).map_err(write)?;
        let left = self.tensors.iter().map(|t| (t.name.clone(), t.n_bytes));
        Ok(DataStream {
            out,
            alignment,
            left: left.collect(),
            written: 0,
        })
    }

    /// Length of the whole file in bytes.
    ///
    /// # Errors
    /// As [`Writer::to_vec`].
    pub fn file_bytes(&self) -> Result<u64, Error> {
        let alignment = self.alignment()?;
        let header = self.header(alignment)?.len() as u64;
        let tensors = self.tensors.iter().map(|t| t.n_bytes);
        Ok(std::iter::once(header)
            .chain(tensors)
            .map(|n| n.next_multiple_of(alignment))
            .fold(0, u64::saturating_add))
    }

    fn alignment(&self) -> Result<u64, Error> {
        match self.metadata.iter().find(|(k, _)| k == ALIGNMENT_KEY) {
            None => Ok(DEFAULT_ALIGNMENT),
            Some((_, OwnedValue::U32(v))) => checked_alignment(u64::from(*v)),
            Some((key, other)) => Err(Error::WrongType {
                key: key.clone(),
                wanted: "u32",
                found: other.ty().name().to_owned(),
            }),
        }
    }

    fn header(&self, alignment: u64) -> Result<Vec<u8>, Error> {
        check_limit("the number of metadata keys", self.metadata.len(), MAX_KEYS)?;
        check_limit("the number of tensors", self.tensors.len(), MAX_TENSORS)?;
        let mut out = b"GGUF".to_vec();
        out.extend(3u32.to_le_bytes());
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend((self.metadata.len() as u64).to_le_bytes());
        for (key, value) in &self.metadata {
            check_name("metadata key", key, MAX_KEY_BYTES)?;
            encode_string(key.as_bytes(), &mut out);
            out.extend(value.ty().id().to_le_bytes());
            value.encode(&mut out);
        }
        let mut offset = 0u64;
        for t in &self.tensors {
            encode_string(t.name.as_bytes(), &mut out);
            out.extend((t.dims.len() as u32).to_le_bytes());
            out.extend(t.dims.iter().flat_map(|d| d.to_le_bytes()));
            out.extend(t.ty.id().to_le_bytes());
            out.extend(offset.to_le_bytes());
            let padded = t.n_bytes.checked_next_multiple_of(alignment);
            offset = padded
                .and_then(|n| offset.checked_add(n))
                .ok_or_else(|| Error::BadShape {
                    name: t.name.clone(),
                    dims: t.dims.clone(),
                    problem: "the file would be too large",
                })?;
        }
        Ok(out)
    }
}

/// Writes the data section of a file: takes the tensors' bytes in order, in pieces of any length, and pads after each
/// tensor.
#[derive(Debug)]
pub struct DataStream<W> {
    out: W,
    alignment: u64,
    /// Names and lengths in bytes of the tensors that are not complete.
    left: VecDeque<(String, u64)>,
    /// Bytes of the first of these written so far.
    written: u64,
}

impl<W: Write> DataStream<W> {
    /// Writes the next bytes of the current tensor.
    ///
    /// # Errors
    /// If they exceed the tensor, no tensor is left, or writing fails.
    pub fn write(&mut self, data: &[u8]) -> Result<(), Error> {
        let found = self.written.saturating_add(data.len() as u64);
        let (name, expected) = match self.left.front() {
            Some((name, expected)) => (name.clone(), *expected),
            None => ("after the last".to_owned(), 0),
        };
        if found > expected {
            return Err(Error::DataLength {
                name,
                expected,
                found,
            });
        }
        let write = |source| Error::Write { source };
        self.out.write_all(data).map_err(write)?;
        self.written = found;
        if found == expected {
            pad(&mut self.out, found, self.alignment).map_err(write)?;
            self.left.pop_front();
            self.written = 0;
        }
        Ok(())
    }

    /// Finishes the file and returns the output.
    ///
    /// # Errors
    /// If a tensor is not complete, or writing fails.
    pub fn finish(mut self) -> Result<W, Error> {
        if let Some((name, expected)) = self.left.pop_front() {
            return Err(Error::DataLength {
                name,
                expected,
                found: self.written,
            });
        }
        self.out.flush().map_err(|source| Error::Write { source })?;
        Ok(self.out)
    }
}

fn check_name(what: &'static str, name: &str, max_bytes: u64) -> Result<(), Error> {
    let problem = if name.is_empty() {
        "it is empty"
    } else if name.len() as u64 > max_bytes {
        "it is too long"
    } else {
        return Ok(());
    };
    Err(Error::Unwritable {
        what,
        name: name.to_owned(),
        problem,
    })
}

fn check_limit(what: &'static str, found: usize, limit: u64) -> Result<(), Error> {
    if found as u64 <= limit {
        return Ok(());
    }
    Err(Error::Unwritable {
        what,
        name: found.to_string(),
        problem: "there are too many",
    })
}

fn pad(out: &mut impl Write, len: u64, alignment: u64) -> io::Result<()> {
    let n = len.next_multiple_of(alignment) - len;
    io::copy(&mut io::Read::take(io::repeat(0), n), out).map(drop)
}
