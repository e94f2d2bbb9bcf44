//! Synthetic models: the shapes of released models with random weights. Speed and memory use are those of the released
//! model, and logits are finite and comparable between backends; the generated text is meaningless. A [`Draft`] is such a
//! model of any architecture.

mod draft;
mod named;
mod shapes;
mod tensors;

use std::io::Write;

use rocmforge_gguf::{OwnedValue, Writer};

use crate::error::QuantizeError;
use crate::mix::ModelFacts;
use crate::options::QuantizeOptions;
use crate::plan::TensorPlan;

pub use draft::{Draft, Tensor, Values};
pub use named::{SyntheticError, types_of};
pub use shapes::{
    SHAPES, Shape, ShapeChannels, ShapeExperts, ShapeGlobal, ShapeLatent, ShapeLinear, ShapeMamba,
    ShapeSelective,
};

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

impl Synthetic {
    /// Writes the GGUF file, with the same bytes every time.
    ///
    /// # Errors
    /// If the tensors cannot have the types chosen, or `out` returns an error.
    pub fn write(&self, out: impl Write) -> Result<(), QuantizeError> {
        self.draft()?.write(out)
    }

    /// Returns the size of the file in bytes.
    ///
    /// # Errors
    /// If the tensors cannot have the types chosen.
    pub fn file_bytes(&self) -> Result<u64, QuantizeError> {
        self.draft()?.file_bytes()
    }

    /// Returns the type of each tensor, with the type it replaces if rows are not whole blocks of that one.
    ///
    /// # Errors
    /// If the tensors cannot have the types chosen.
    pub fn plan(&self) -> Result<Vec<TensorPlan>, QuantizeError> {
        Ok(self.draft()?.plan().to_vec())
    }

    /// Returns the model with the type of each tensor chosen.
    ///
    /// # Errors
    /// If the tensors cannot have the types chosen.
    pub fn draft(&self) -> Result<Draft, QuantizeError> {
        Draft::of(
            &self.facts(),
            self.header(),
            tensors::all(&self.of_layers()),
            &self.types,
        )
    }

    fn n_layers(&self) -> usize {
        self.n_layers.unwrap_or(self.shape.n_layers)
    }

    /// Layers of the file, with those that predict further tokens ahead.
    fn n_blocks(&self) -> usize {
        self.n_layers() + self.shape.n_nextn
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
            n_layers: self.n_blocks(),
            n_experts: self.shape.experts.map_or(0, |experts| experts.n_experts),
            gqa: n_heads / n_kv_heads,
            is_70b: self.n_layers() == 80,
            n_v: self.n_blocks(),
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
            ("block_count", self.n_blocks()),
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

    /// Returns the shape with as many layers as the model has.
    fn of_layers(&self) -> Shape {
        Shape {
            n_layers: self.n_layers(),
            ..self.shape
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rocmforge_gguf::{GgmlType, Gguf};
    use rocmforge_model::Model;
    use rocmforge_testkit::sweep::every_nth;

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

    /// As many weights as are stated of the released models, in millions.
    #[test]
    fn shapes_of_hybrids_have_their_weights() {
        for (name, expected) in [
            ("qwen3.5-27b", 26_000..28_000),
            ("qwen3.5-35b-a3b", 34_000..36_000),
            ("granite-4-h-micro", 3_100..3_300),
            ("nemotron-3-nano-30b", 31_400..31_700),
            ("kimi-linear-48b", 48_000..49_500),
            ("jamba-reasoning-3b", 2_900..3_100),
        ] {
            let tensors = tensors::all(&Shape::find(name).unwrap());
            let sizes = tensors.iter().map(|t| t.dims.iter().product::<u64>());
            let n = sizes.sum::<u64>() / 1_000_000;
            assert!(expected.contains(&n), "{name}: {n}");
        }
    }

    /// Layers of one kind each, at the places of the released models.
    #[test]
    fn hybrids_have_attention_in_the_layers_of_released_models() {
        for (name, expected) in [
            ("nemotron-3-nano-30b", vec![5, 12, 19, 26, 33, 42]),
            ("kimi-linear-48b", vec![3, 7, 11, 15, 19, 23, 26]),
            ("jamba-reasoning-3b", vec![7, 21]),
            ("granite-4-h-micro", vec![5, 15, 25, 35]),
        ] {
            let shape = Shape::find(name).unwrap();
            let names: Vec<String> = { tensors::all(&shape).into_iter() }
                .map(|tensor| tensor.name)
                .collect();
            let has = |layer: usize, part: &str| names.contains(&format!("blk.{layer}.{part}"));
            let layers = 0..shape.n_layers;
            let is_attention = |layer: &usize| {
                ["attn_v.weight", "attn_v_b.weight"]
                    .iter()
                    .any(|part| has(*layer, part))
                    && !has(*layer, "ssm_a")
            };
            assert_eq!(
                layers.filter(is_attention).collect::<Vec<_>>(),
                expected,
                "{name}"
            );
        }
    }

    /// Loads a narrow model of every shape, with a layer of attention, and checks its types.
    #[test]
    fn loads_models_of_every_shape() {
        for (i, shape) in every_nth(2, 0, SHAPES.iter()).enumerate() {
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
            let has_heads = |n_layers: &usize| {
                let shape = Shape {
                    n_layers: *n_layers,
                    ..small
                };
                (0..*n_layers).any(|layer| shape.has_heads(layer))
            };
            let n_layers = (2..shape.n_layers).find(has_heads).unwrap();
            let synthetic = Synthetic {
                shape: small,
                types: QuantizeOptions::new(file_type),
                n_layers: Some(n_layers),
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
            assert_eq!(model.config.n_layers(), n_layers);
            assert_eq!(model.config.n_vocab, 512);
        }
    }
}
