//! Synthetic models: the shapes of released models with random weights. Speed and memory use are those of the released
//! model, and logits are finite and comparable between backends; the generated text is meaningless.
//!
//! Writing one takes little longer than writing its bytes: each tensor consists of runs of blocks from a small stock,
//! quantized once from normally distributed values with the tensor's variance.

mod named;
mod shapes;
mod tensors;

use std::collections::HashMap;
use std::io::Write;

use rocmforge_gguf::quant::quantize_rows;
use rocmforge_gguf::{Error, GgmlType, OwnedValue, TensorInfo, Writer};

use crate::error::QuantizeError;
use crate::mix::ModelFacts;
use crate::options::QuantizeOptions;
use crate::plan::{TensorPlan, choose_types};

pub use named::SyntheticError;
pub use shapes::{SHAPES, Shape, ShapeExperts, ShapeGlobal, ShapeLatent, ShapeLinear};

/// Number of values in a stock.
const STOCK: usize = 1 << 20;
/// Maximum length of a run of blocks taken from a stock, in bytes.
const RUN_BYTES: usize = 64 << 10;

/// A synthetic model to write or open.
#[derive(Debug)]
pub struct Synthetic {
    pub shape: Shape,
    /// Tensor types, chosen as for a quantized file.
    pub types: QuantizeOptions,
    /// Number of layers; `None` means those of the shape.
    pub n_layers: Option<usize>,
    /// Keys and values to add, such as those of a vocabulary.
    pub metadata: Vec<(String, OwnedValue)>,
}

/// The distribution of a tensor's values.
#[derive(Clone, Copy)]
enum Values {
    /// Normal with variance `1 / row length`.
    Matrix,
    /// Uniform within `reach` of `mean`.
    Vector { mean: f32, reach: f32 },
    /// RoPE frequency factors.
    RopeFreqs,
}

struct Tensor {
    info: TensorInfo,
    values: Values,
}

impl Synthetic {
    /// Writes the GGUF file, with the same bytes every time.
    ///
    /// # Errors
    /// If the tensors cannot have the types chosen, or `out` returns an error.
    pub fn write(&self, out: impl Write) -> Result<(), QuantizeError> {
        let tensors = self.tensors();
        let (writer, plans) = self.declared(&tensors)?;
        let mut stream = writer.stream(out)?;
        let mut random = Random::new(1);
        let mut stocks: HashMap<(GgmlType, u64), Vec<u8>> = HashMap::new();
        for (plan, tensor) in plans.iter().zip(&tensors) {
            if !matches!(tensor.values, Values::Matrix) {
                let values = vector(tensor, &mut random);
                let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
                stream.write(&bytes)?;
                continue;
            }
            let row_len = tensor.info.row_len();
            let stock = match stocks.entry((plan.to, row_len)) {
                std::collections::hash_map::Entry::Occupied(stock) => stock.into_mut(),
                std::collections::hash_map::Entry::Vacant(place) => {
                    place.insert(new_stock(plan.to, row_len, &mut random)?)
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

    /// Returns the size of the file in bytes.
    ///
    /// # Errors
    /// If the tensors cannot have the types chosen.
    pub fn file_bytes(&self) -> Result<u64, QuantizeError> {
        Ok(self.declared(&self.tensors())?.0.file_bytes()?)
    }

    /// Returns the type of each tensor, with the type it replaces if rows are not whole blocks of that one.
    ///
    /// # Errors
    /// If the tensors cannot have the types chosen.
    pub fn plan(&self) -> Result<Vec<TensorPlan>, QuantizeError> {
        Ok(self.declared(&self.tensors())?.1)
    }

    /// Returns a writer with all tensors declared, and their plans.
    fn declared(
        &self,
        tensors: &[Tensor],
    ) -> Result<(Writer<'static>, Vec<TensorPlan>), QuantizeError> {
        let infos: Vec<TensorInfo> = tensors.iter().map(|tensor| tensor.info.clone()).collect();
        let plans = choose_types(&self.facts(), &infos, &self.types)?;
        let mut writer = self.header();
        for plan in &plans {
            writer.declare_tensor(&plan.name, &plan.dims, plan.to)?;
        }
        Ok((writer, plans))
    }

    fn n_layers(&self) -> usize {
        self.n_layers.unwrap_or(self.shape.n_layers)
    }

    fn facts(&self) -> ModelFacts {
        let Shape {
            arch,
            n_heads,
            n_kv_heads,
            is_tied,
            ..
        } = self.shape;
        ModelFacts {
            arch: arch.to_string(),
            n_layers: self.n_layers(),
            n_experts: self.shape.experts.map_or(0, |experts| experts.n_experts),
            gqa: n_heads / n_kv_heads,
            is_70b: self.n_layers() == 80,
            n_v: self.n_layers(),
            is_tied,
        }
    }

    fn header(&self) -> Writer<'static> {
        let shape = &self.of_layers();
        let mut w = Writer::new(shape.arch);
        w.set(
            "general.name",
            format!("synthetic {} {}", shape.name, self.types.file_type.name()),
        );
        if let Some(id) = self.types.file_type.id() {
            w.set("general.file_type", id);
        }
        for (key, value) in [
            ("block_count", self.n_layers()),
            ("context_length", shape.n_ctx),
            ("embedding_length", shape.n_embd),
            ("feed_forward_length", shape.n_ff),
            ("attention.head_count", shape.n_heads),
            ("attention.head_count_kv", shape.n_kv_heads),
            ("attention.key_length", shape.head_dim),
            (
                "attention.value_length",
                shape.latent.map_or(shape.head_dim, |l| l.v_dim),
            ),
            (
                "rope.dimension_count",
                match (shape.latent, shape.linear) {
                    (Some(latent), _) => latent.n_rot,
                    (None, Some(linear)) => linear.n_rot,
                    (None, None) => shape.head_dim,
                },
            ),
            ("vocab_size", shape.n_vocab),
        ] {
            w.set(&format!("{}.{key}", shape.arch), value as u32);
        }
        w.set(&format!("{}.rope.freq_base", shape.arch), shape.rope_base);
        tensors::add_facts(shape, &mut w);
        w.set("tokenizer.ggml.model", "no_vocab");
        for (key, value) in &self.metadata {
            w.set(key, value.clone());
        }
        w
    }

    fn tensors(&self) -> Vec<Tensor> {
        tensors::all(&self.of_layers())
    }

    /// Returns the shape with as many layers as the model has.
    fn of_layers(&self) -> Shape {
        Shape {
            n_layers: self.n_layers(),
            ..self.shape
        }
    }
}

fn vector(tensor: &Tensor, random: &mut Random) -> Vec<f32> {
    let n = tensor.info.n_elements() as usize;
    match tensor.values {
        Values::Vector { mean, reach } => (0..n)
            .map(|_| mean + reach * (2.0 * random.unit() - 1.0))
            .collect(),
        // Llama 3 keeps high frequencies and divides low ones by 8.
        Values::RopeFreqs | Values::Matrix => (0..n)
            .map(|i| match (4 * i / n, n) {
                (0 | 1, _) => 1.0,
                (2, _) => 1.0 + 7.0 * (4 * i - 2 * n) as f32 / n as f32,
                _ => 8.0,
            })
            .collect(),
    }
}

/// Returns blocks of normally distributed values of variance `1 / row_len`.
fn new_stock(ty: GgmlType, row_len: u64, random: &mut Random) -> Result<Vec<u8>, Error> {
    let spread = 1.0 / (row_len as f32).sqrt();
    let values: Vec<f32> = (0..STOCK).map(|_| spread * random.normal()).collect();
    let mut blocks = vec![0; STOCK / ty.block_len() * ty.block_bytes()];
    quantize_rows(ty, &values, ty.block_len().max(256), None, &mut blocks)?;
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rocmforge_gguf::Gguf;
    use rocmforge_model::Model;

    use super::*;
    use crate::file_type::FileType;

    /// Rows of 1408 values, as in one released model, are not whole blocks of 256.
    #[test]
    fn reports_replaced_types() {
        for (name, expected) in [
            ("gpt2:Q2_K", vec![]),
            ("qwen1.5-moe-a2.7b:Q8_0", vec![]),
            (
                "qwen1.5-moe-a2.7b:Q4_K_M",
                vec![("blk.0.ffn_down_exps.weight", GgmlType::Q8_0)],
            ),
            (
                "qwen1.5-moe-a2.7b:IQ4_XS",
                vec![("blk.0.ffn_down_exps.weight", GgmlType::IQ4_NL)],
            ),
        ] {
            let model = Synthetic {
                n_layers: Some(1),
                ..name.parse().unwrap()
            };
            let plan = model.plan().unwrap();
            let replaced = plan.iter().filter(|tensor| tensor.instead_of.is_some());
            let replaced: Vec<_> = replaced.map(|t| (t.name.as_str(), t.to)).collect();
            assert_eq!(replaced, expected, "{name}");
        }
    }

    /// Loads a narrow model of every shape and checks its types.
    #[test]
    fn loads_models_of_every_shape() {
        for (i, shape) in SHAPES.iter().enumerate() {
            let file_type = [FileType::Q4_K_M, FileType::Q4_0, FileType::Q8_0][i % 3];
            let small = Shape {
                n_embd: 256,
                n_ff: 512,
                n_vocab: 512,
                n_ctx: 64,
                experts: shape.experts.map(|experts| ShapeExperts {
                    n_ff: 512,
                    n_ff_shared: experts.n_ff_shared.map(|_| 512),
                    ..experts
                }),
                ..*shape
            };
            let synthetic = Synthetic {
                shape: small,
                types: QuantizeOptions::new(file_type),
                n_layers: Some(2),
                metadata: vec![("tokenizer.ggml.pre".to_string(), "default".into())],
            };
            let mut bytes = Vec::new();
            synthetic.write(&mut bytes).unwrap();
            let gguf = Arc::new(Gguf::from_vec(bytes).unwrap());
            let pre = gguf.metadata().str("tokenizer.ggml.pre").unwrap();
            assert_eq!(pre, "default");
            if let Some(v) = gguf.tensor("blk.1.attn_v.weight") {
                let expected = match file_type {
                    _ if shape.experts.is_some_and(|experts| experts.n_experts == 8) => {
                        GgmlType::Q8_0
                    }
                    FileType::Q4_K_M => GgmlType::Q6_K,
                    other => other.tensor_type().unwrap(),
                };
                assert_eq!(v.ty, expected, "{}", shape.name);
            }
            let model = Model::load(gguf).unwrap_or_else(|e| panic!("{}: {e}", shape.name));
            assert_eq!(model.config.n_layers(), 2);
            assert_eq!(model.config.n_vocab, 512);
        }
    }
}
