//! Importance matrices as files: GGUF with two F32 tensors for each weight tensor NAME, `NAME.in_sum2`
//! `[n_matrices, n_columns]` and `NAME.counts` `[n_matrices, 1]`, as llama.cpp's `llama-imatrix` writes them.

use std::collections::BTreeMap;
use std::path::Path;

use rocmforge_gguf::quant::dequantize;
use rocmforge_gguf::{Error, GgmlType, Gguf, LoadMode, TensorInfo, Writer};

use super::{Entry, Imatrix, ImatrixError};

const SUMS: &str = ".in_sum2";
const COUNTS: &str = ".counts";
const DATASETS: &str = "imatrix.datasets";
const N_CHUNKS: &str = "imatrix.chunk_count";
const CHUNK_SIZE: &str = "imatrix.chunk_size";

impl Imatrix {
    /// Reads the file at `path`.
    ///
    /// # Errors
    /// If it cannot be read, is in llama.cpp's older form, holds something else, or is damaged.
    pub fn open(path: &Path) -> Result<Imatrix, ImatrixError> {
        match Gguf::open(path, LoadMode::Read) {
            Ok(gguf) => Imatrix::from_gguf(&gguf),
            Err(Error::NotGguf { .. }) => Err(ImatrixError::NotGguf),
            Err(error) => Err(error.into()),
        }
    }

    /// Reads an open file.
    ///
    /// # Errors
    /// If it holds something else or is damaged.
    pub fn from_gguf(gguf: &Gguf) -> Result<Imatrix, ImatrixError> {
        let mut entries = BTreeMap::new();
        for info in gguf.tensors() {
            let Some(name) = info.name.strip_suffix(SUMS) else {
                continue;
            };
            entries.insert(name.to_string(), read_entry(gguf, name, info)?);
        }
        if entries.is_empty() {
            return Err(ImatrixError::NotImatrix);
        }
        let metadata = gguf.metadata();
        let datasets = match metadata.opt_strings(DATASETS)? {
            Some(strings) => strings
                .iter()
                .map(|name| String::from_utf8_lossy(name).into_owned())
                .collect(),
            None => Vec::new(),
        };
        Ok(Imatrix {
            datasets,
            n_chunks: metadata.opt_u32(N_CHUNKS)?.unwrap_or(0),
            chunk_size: metadata.opt_u32(CHUNK_SIZE)?.unwrap_or(0),
            entries,
        })
    }

    /// The file.
    ///
    /// # Errors
    /// If a name is one that no file can hold.
    pub fn to_writer(&self) -> Result<Writer<'static>, ImatrixError> {
        let mut writer = Writer::default();
        writer.set("general.type", "imatrix");
        writer.set(DATASETS, self.datasets.clone());
        writer.set(N_CHUNKS, self.n_chunks);
        writer.set(CHUNK_SIZE, self.chunk_size);
        for (name, Entry { sums, counts }) in &self.entries {
            let n_matrices = counts.len() as u64;
            let dims = [sums.len() as u64 / n_matrices, n_matrices];
            let counts: Vec<f32> = counts.iter().map(|&count| count as f32).collect();
            writer.add_tensor_f32(&format!("{name}{SUMS}"), &dims, GgmlType::F32, sums)?;
            let dims = [1, n_matrices];
            writer.add_tensor_f32(&format!("{name}{COUNTS}"), &dims, GgmlType::F32, &counts)?;
        }
        Ok(writer)
    }
}

fn read_entry(gguf: &Gguf, name: &str, sums: &TensorInfo) -> Result<Entry, ImatrixError> {
    let damaged = |problem| ImatrixError::Entry {
        name: name.to_string(),
        problem,
    };
    let counts = gguf
        .tensor(&format!("{name}{COUNTS}"))
        .ok_or_else(|| damaged("it has no counts"))?;
    if sums.ty != GgmlType::F32 || counts.ty != GgmlType::F32 {
        return Err(damaged("it is not F32"));
    }
    let read = |info: &TensorInfo| -> Result<Vec<f32>, ImatrixError> {
        let mut values = vec![0.0; info.n_elements() as usize];
        dequantize(info.ty, gguf.tensor_data(info), &mut values)?;
        // Sums of squares and numbers of tokens.
        match values.iter().all(|x| (0.0..=f32::MAX).contains(x)) {
            true => Ok(values),
            false => Err(damaged("a value is negative or not finite")),
        }
    };
    let (sums, counts) = (read(sums)?, read(counts)?);
    if !sums.len().is_multiple_of(counts.len()) {
        return Err(damaged("its sums and counts are of different shapes"));
    }
    Ok(Entry {
        sums,
        counts: counts.iter().map(|count| count.round() as u64).collect(),
    })
}
