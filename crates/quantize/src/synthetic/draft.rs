//! Models whose weights are random. Writing one takes little longer than writing its bytes: each tensor consists of runs of
//! blocks from a small stock, quantized once from normally distributed values with the tensor's variance.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io::Write;

use rocmforge_gguf::quant::quantize_rows;
use rocmforge_gguf::{Error, GgmlType, Gguf, TensorInfo, Writer};

use crate::error::QuantizeError;
use crate::mix::ModelFacts;
use crate::options::QuantizeOptions;
use crate::plan::{TensorPlan, choose_types};

/// Most values in a stock.
const STOCK: usize = 1 << 20;
/// Maximum length of a run of blocks taken from a stock, in bytes.
const RUN_BYTES: usize = 64 << 10;

/// A model of which everything but the weights is known, with the type of each tensor chosen.
#[derive(Debug)]
pub struct Draft {
    tensors: Vec<Tensor>,
    plans: Vec<TensorPlan>,
    /// The metadata and all tensors, declared.
    writer: Writer<'static>,
}

/// A tensor with random values.
#[derive(Clone, Debug)]
pub struct Tensor {
    pub name: String,
    /// Row length first.
    pub dims: Vec<u64>,
    pub values: Values,
}

/// The distribution of a tensor's values.
#[derive(Clone, Copy, Debug)]
pub enum Values {
    /// Normal with variance `1 / row length`.
    Matrix,
    /// Normal with variance 16.
    Embedding,
    /// In F32, uniform within `reach` of `mean`.
    Vector { mean: f32, reach: f32 },
    /// RoPE frequency factors, in F32.
    RopeFreqs,
}

impl Draft {
    /// A model with the metadata of `header`. The types are chosen as for a quantized file.
    ///
    /// # Errors
    /// If the tensors cannot have the types chosen.
    pub fn new(
        header: Writer<'static>,
        tensors: Vec<Tensor>,
        types: &QuantizeOptions,
    ) -> Result<Draft, QuantizeError> {
        let file = Gguf::from_vec(header.to_vec()?)?;
        let facts = ModelFacts::of(file.metadata(), &infos(&tensors))?;
        Draft::of(&facts, header, tensors, types)
    }

    pub(super) fn of(
        facts: &ModelFacts,
        header: Writer<'static>,
        tensors: Vec<Tensor>,
        types: &QuantizeOptions,
    ) -> Result<Draft, QuantizeError> {
        let plans = choose_types(facts, &infos(&tensors), types)?;
        let mut writer = header;
        for plan in &plans {
            writer.declare_tensor(&plan.name, &plan.dims, plan.to)?;
        }
        Ok(Draft {
            tensors,
            plans,
            writer,
        })
    }

    /// The type of each tensor, with the type it replaces if rows are not whole blocks of that one.
    pub fn plan(&self) -> &[TensorPlan] {
        &self.plans
    }

    /// Returns the size of the file in bytes.
    ///
    /// # Errors
    /// If the metadata is invalid.
    pub fn file_bytes(&self) -> Result<u64, QuantizeError> {
        Ok(self.writer.file_bytes()?)
    }

    /// Writes the GGUF file, with the same bytes every time.
    ///
    /// # Errors
    /// If `out` returns an error.
    pub fn write(&self, out: impl Write) -> Result<(), QuantizeError> {
        let mut stream = self.writer.stream(out)?;
        let mut random = Random::new(1);
        let mut stocks: HashMap<(GgmlType, u32), Vec<u8>> = HashMap::new();
        // Equal parts of small tensors are few.
        let sizes = self
            .tensors
            .iter()
            .map(|tensor| tensor.dims.iter().product());
        let n_stock = STOCK.min(2 * sizes.max().unwrap_or(0) as usize);
        for (plan, tensor) in self.plans.iter().zip(&self.tensors) {
            let row_len = tensor.dims[0];
            let variance = match tensor.values {
                Values::Matrix => 1.0 / row_len as f32,
                Values::Embedding => 16.0,
                Values::Vector { .. } | Values::RopeFreqs => {
                    stream.write(&vector(tensor, &mut random))?;
                    continue;
                }
            };
            let stock = match stocks.entry((plan.to, variance.to_bits())) {
                Entry::Occupied(stock) => stock.into_mut(),
                Entry::Vacant(place) => {
                    place.insert(new_stock(plan.to, n_stock, variance, &mut random)?)
                }
            };
            let block = plan.to.block_bytes();
            let n_stock = stock.len() / block;
            let mut left = plan.bytes as usize / block;
            while left > 0 {
                let n = left.min(RUN_BYTES / block);
                let first = random.below(n_stock - n);
                stream.write(&stock[first * block..][..n * block])?;
                left -= n;
            }
        }
        stream.finish()?;
        Ok(())
    }
}

/// Returns what a file in F32 says of the tensors.
fn infos(tensors: &[Tensor]) -> Vec<TensorInfo> {
    let info = |tensor: &Tensor| TensorInfo {
        name: tensor.name.clone(),
        dims: tensor.dims.clone(),
        ty: GgmlType::F32,
        offset: 0,
        n_bytes: tensor.dims.iter().product::<u64>() * size_of::<f32>() as u64,
        part: 0,
    };
    tensors.iter().map(info).collect()
}

/// Returns the bytes of a tensor in F32 that is no matrix.
fn vector(tensor: &Tensor, random: &mut Random) -> Vec<u8> {
    let n = tensor.dims.iter().product::<u64>() as usize;
    let value = |i: usize| match tensor.values {
        Values::Vector { mean, reach } => mean + reach * (2.0 * random.unit() - 1.0),
        // Llama 3 keeps high frequencies and divides low ones by 8.
        _ => match (4 * i / n, n) {
            (0 | 1, _) => 1.0,
            (2, _) => 1.0 + 7.0 * (4 * i - 2 * n) as f32 / n as f32,
            _ => 8.0,
        },
    };
    (0..n).map(value).flat_map(f32::to_le_bytes).collect()
}

/// Returns blocks of about `n` normally distributed values.
fn new_stock(ty: GgmlType, n: usize, variance: f32, random: &mut Random) -> Result<Vec<u8>, Error> {
    let spread = variance.sqrt();
    let row_len = ty.block_len().max(256);
    let n = n.next_multiple_of(row_len);
    let values: Vec<f32> = (0..n).map(|_| spread * random.normal()).collect();
    let mut blocks = vec![0; n / ty.block_len() * ty.block_bytes()];
    quantize_rows(ty, &values, row_len, None, &mut blocks)?;
    Ok(blocks)
}

/// The splitmix64 random number generator.
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Random {
        Random(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Returns a number in `0.0..1.0`.
    fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1 << 24) as f32
    }

    /// Returns a number in `0..n`.
    fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }

    /// Returns a sum of twelve uniform numbers, which is nearly normal.
    fn normal(&mut self) -> f32 {
        (0..12).map(|_| self.unit()).sum::<f32>() - 6.0
    }
}
